"""Refuses a second call for a table in one micro-batch: its rows would be taken for a replay and lost."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stream_merge.errors import MergedTwiceError
from stream_merge.table.exactly_once import BatchIdentity

MAX_CALLS = 10_000


@dataclass(slots=True)
class _Calls:
    """The calls for the tables of one id in a micro-batch. A copy of a table's folder has the table's id.

    Attributes:
        micro_batch: The query's run, and the micro-batch's number.
        folders: The folders of the tables, as the calls spelled them.
    """

    micro_batch: tuple[str, int]
    folders: list[str] = field(default_factory=list)


_lock = threading.Lock()
_calls: OrderedDict[tuple[str, str], _Calls] = OrderedDict()
"""Maps application id and Delta's id of the table to the calls of the last micro-batch, in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that merges a micro-batch into a table.

    Attributes:
        target: The table's name in messages.
        folder: The table's folder.
        table_id: Delta's id of the table.
        identity: The ids under which the batch is recorded.
        run_id: The run of the query.
    """

    target: str
    folder: str
    table_id: str
    identity: BatchIdentity
    run_id: str

    @contextmanager
    def only(self, *, is_applied: bool, has_same_log: Callable[[str], bool]) -> Iterator[None]:
        """Refuse a second call for a table in one micro-batch, be it after the first one or beside it.

        A replay comes in another run of the query. A call that raised does not count, so it may be repeated.

        Args:
            is_applied: Whether the table holds the batch already, as it does if a call by another spelling of its
                folder, such as a symbolic link, has merged it. A copy of the table holds it if this is a replay.
            has_same_log: Returns whether a folder with a table of this id has this table's log: only a copy has not.

        Raises:
            MergedTwiceError: Another call for the table was made in this micro-batch.
        """
        with _lock:
            calls = self._others()
            if self.folder in calls.folders or (is_applied and any(map(has_same_log, calls.folders))):
                raise self._error()
            calls.folders.append(self.folder)
            _calls[self._key] = calls
            _calls.move_to_end(self._key)
            while len(_calls) > MAX_CALLS:
                _calls.popitem(last=False)
        try:
            yield
        except BaseException:
            with _lock:
                calls.folders.remove(self.folder)
            raise

    def check_own(self) -> None:
        """Refuse a batch that the table got while it was merged, if another call of the query has merged it.

        Raises:
            MergedTwiceError: There was another call, for the same table by another spelling of its folder.
        """
        with _lock:
            if len(self._others().folders) > 1:
                raise self._error()

    @property
    def _key(self) -> tuple[str, str]:
        return self.identity.app_id, self.table_id

    def _others(self) -> _Calls:
        micro_batch = (self.run_id, self.identity.batch_id)
        known = _calls.get(self._key)
        return known if known is not None and known.micro_batch == micro_batch else _Calls(micro_batch)

    def _error(self) -> MergedTwiceError:
        return MergedTwiceError(
            [
                f"{self.target}: batch {self.identity.batch_id} is merged a second time by the same query. The table "
                "records one merge for each batch and app_id, so it would skip the rows of this call as a replay. Give "
                "each sink of the table an app_id of its own, which must never change, or put the rows of both calls "
                "into one frame"
            ]
        )
