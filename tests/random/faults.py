"""Processes that die while a batch is merged, and calls of the file system that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stream_merge import steps
from stream_merge.errors import CommitStateUnknownError
from tests.random.model import Row
from tests.random.table import CHANGES, COLUMNS, COUNT, ORDERED, Changes, DrivenTable
from tests.spark.delta_log import actions_of, latest_version

Fault = Callable[[], AbstractContextManager[None]]

CALLS = (
    *((number, "") for number in range(1, 100, 7)),
    *((number, name) for name in ("rename", "create", "open", "mkdirs", "listStatus") for number in (1, 2, 3, 5, 8)),
    # The first file to be renamed is the commit, whose answer is then lost.
    *[(1, "rename")] * 10,
)
"""Which call of the file system fails: the n-th of all or of those of a name."""

STEPS = (
    *steps.STEPS,
    *("altered", "columns_added", "feature_added", "remembering", "remembered", "handing_on", "handed_on"),
    *steps.MAINTENANCE_STEPS,
)


class KilledError(BaseException):
    """Raised where the process is killed; no exception of the program, which might catch it."""


class FaultyTable(DrivenTable):
    """A table whose merges are disturbed."""

    def _merge_with_fault(self, changes: Sequence[Row], kind: str, fault: Fault, *, warm: bool) -> None:
        app_id = "first" if kind == ORDERED else kind
        batch_id = self.batches.get(app_id, -1) + 1
        frame, types = self._frame(kind, changes, as_texts=False), self._types(kind)
        before = latest_version(self.path)
        error: BaseException | None = None
        with fault():
            try:
                self._sink(kind, app_id, changes[0])(frame, batch_id)
            except (Exception, KilledError) as raised:  # noqa: BLE001 - whatever it is, the log decides
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
        self._sink(kind, app_id, changes[0])(frame, batch_id)
        self._took(kind, app_id, batch_id, changes, types)

    def _fault(self) -> str:
        return self.faults.failed() if self.faults is not None else ""

    @rule(
        drawn=CHANGES, kind=st.sampled_from((ORDERED, COLUMNS, COUNT)), step=st.sampled_from(STEPS), warm=st.booleans()
    )
    def merge_killed(self, drawn: Changes, kind: str, step: str, warm: bool) -> None:
        """The process dies at a step, and the batch is repeated."""
        kind = self._possible(kind)
        self._merge_with_fault(self._changes(drawn, kind), kind, self._killed(step), warm=warm)

    def _possible(self, kind: str) -> str:
        return kind if self.setup.sets_columns or kind != COLUMNS else ORDERED

    @staticmethod
    def _killed(step: str) -> Fault:
        """Return what lets the process die at a step."""

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

        return fault

    @precondition(lambda self: self.faults is not None)
    @rule(
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, COLUMNS, COUNT)),
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

        kind = self._possible(kind)
        self._merge_with_fault(self._changes(drawn, kind), kind, fault, warm=warm)
