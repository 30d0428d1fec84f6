"""The state machine: one table, and everything that may happen to it, beside a model of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stream_merge import steps
from stream_merge.errors import BatchIdRegressionError, CommitStateUnknownError
from tests.random.model import Row
from tests.random.table import CHANGES, COUNT, ORDERED, UPSERT, Changes
from tests.random.writers import WrittenTable
from tests.spark.delta_log import actions_of, latest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CALLS = (
    *((number, "") for number in range(1, 100, 7)),
    *((number, name) for name in ("rename", "create", "open", "mkdirs", "listStatus") for number in (1, 2, 3, 5, 8)),
    # The first file to be renamed is the commit, whose answer is then lost.
    *[(1, "rename")] * 10,
)
"""Which call of the file system fails: the n-th of all or of those of a name."""

STEPS = (*steps.STEPS, "columns_added", "feature_added", "remembering", "remembered")


class KilledError(Exception):
    """Raised where the process is killed."""


class TableMachine(WrittenTable):
    """All that may happen to the table."""

    @rule(
        app_id=st.sampled_from(("first", "first", "second")), drawn=CHANGES, as_texts=st.booleans(), warm=st.booleans()
    )
    def merge_in_order(self, app_id: str, drawn: Changes, as_texts: bool, warm: bool) -> None:
        self._merge(ORDERED, app_id, drawn, as_texts=as_texts, is_warm=warm)

    @rule(drawn=CHANGES)
    def merge_once_more(self, drawn: Changes) -> None:
        """Most of what happens to a table are merges."""
        self._merge(ORDERED, "first", drawn, as_texts=False, is_warm=True)

    @rule(kind=st.sampled_from((UPSERT, COUNT)), drawn=CHANGES, warm=st.booleans())
    def merge_out_of_order(self, kind: str, drawn: Changes, warm: bool) -> None:
        self._merge(kind, kind, drawn, as_texts=False, is_warm=warm)

    @precondition(lambda self: self.last)
    @rule(number=st.integers(0, 3), warm=st.booleans())
    def replay(self, number: int, warm: bool) -> None:
        """The table has the batch, so nothing comes of it."""
        app_id = sorted(self.last)[number % len(self.last)]
        kind, changes = self.last[app_id]
        if not warm:
            self.sinks.pop(app_id, None)
        before = latest_version(self.path)
        frame = self._replayable(changes)
        self._sink(kind, app_id)(frame, self.batches[app_id])
        assert latest_version(self.path) == before

    def _replayable(self, changes: Sequence[Row]) -> DataFrame:
        # Columns may have been renamed since.
        names = list(changes[0])
        types = {"op": "STRING", **self.source_types, **self.model.columns}
        try:
            return self._frame_of(changes, {name: types.get(name, "STRING") for name in names})
        except pa.ArrowException:
            return self._frame(self._changes([((0, 0), (0, 0), "u", 0, 0)], ORDERED), as_texts=False)

    @precondition(lambda self: any(self.batches.values()))
    @rule(warm=st.booleans())
    def go_backwards(self, warm: bool) -> None:
        """An older batch is refused."""
        app_id = next(app_id for app_id, number in self.batches.items() if number)
        kind = self.last[app_id][0]
        if not warm:
            self.sinks.pop(app_id, None)
        frame = self._frame(self._changes([((0, 0), (0, 0), "u", 0, 0)], kind), as_texts=False)
        try:
            self._sink(kind, app_id)(frame, self.batches[app_id] - 1)
        except BatchIdRegressionError:
            return
        raise AssertionError("an older batch was not refused")

    # Faults.

    def _merge_with_fault(self, drawn: Changes, kind: str, fault: Callable[[], Any], *, warm: bool) -> None:
        app_id = "first" if kind == ORDERED else kind
        changes = self._changes(drawn, kind)
        batch_id = self.batches.get(app_id, -1) + 1
        frame = self._frame(changes, as_texts=False)
        before = latest_version(self.path)
        error: BaseException | None = None
        with fault():
            try:
                self._sink(kind, app_id)(frame, batch_id)
            except Exception as raised:  # noqa: BLE001 - whatever it is, the log decides
                error = raised
        later = range(before + 1, latest_version(self.path) + 1)
        txns = [txn for version in later for txn in actions_of(self.path, version, "txn")]
        is_there = any((txn["appId"], txn["version"]) == (app_id, batch_id) for txn in txns)
        note(f"fault: {self._fault()} {type(error).__name__} {str(error)[:300]}, in the table: {is_there}")
        self._noted(f"fault {type(error).__name__} {is_there}")
        if error is None:
            assert is_there
        if is_there:
            assert error is None or isinstance(error, (KilledError, CommitStateUnknownError)), "a landed commit failed"
        if not warm:
            self.sinks.pop(app_id, None)
        self._sink(kind, app_id)(frame, batch_id)
        self._merged(kind, changes)
        self.batches[app_id] = batch_id
        self.last[app_id] = (kind, changes)

    def _fault(self) -> str:
        return self.faults.failed() if self.faults is not None else ""

    @rule(drawn=CHANGES, kind=st.sampled_from((ORDERED, COUNT)), step=st.sampled_from(STEPS), warm=st.booleans())
    def merge_killed(self, drawn: Changes, kind: str, step: str, warm: bool) -> None:
        """The process dies at a step, and the batch is repeated."""

        def observe(name: str) -> None:
            if name == step:
                steps.observer = None
                raise KilledError(step)

        @contextmanager
        def fault() -> Iterator[None]:
            steps.observer = observe
            try:
                yield
            finally:
                steps.observer = None

        self._merge_with_fault(drawn, kind, fault, warm=warm)

    @precondition(lambda self: self.faults is not None)
    @rule(
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, COUNT)),
        calls=st.sampled_from(CALLS),
        after=st.booleans(),
        warm=st.booleans(),
    )
    def merge_with_broken_files(
        self, drawn: Changes, kind: str, calls: tuple[int, str], after: bool, warm: bool
    ) -> None:
        """The n-th call of the file system fails, before it is carried out or after, and the batch is repeated."""
        faults = self.faults
        assert faults is not None

        @contextmanager
        def fault() -> Iterator[None]:
            faults.arm(*calls, carried_out=after)
            try:
                yield
            finally:
                failed = faults.failed()
                faults.arm(0, "", carried_out=False)
                note(f"failed: {failed}")
                self._noted(f"failed {' '.join(failed.split()[:2])}")

        self._merge_with_fault(drawn, kind, fault, warm=warm)
