"""The state machine: one table, and everything that may happen to it, beside a model of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stream_merge.errors import BatchIdRegressionError
from tests.random.changing import ChangingSource
from tests.random.model import Row
from tests.random.table import ANY, CHANGES, COLUMNS, COUNT, ORDERED, UPSERT, Changes, beside
from tests.random.writers import WrittenTable
from tests.spark.delta_log import latest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


STATEMENTS = ("insert", "update", "delete", "compact")


class TableMachine(ChangingSource, WrittenTable):
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

    @precondition(lambda self: self.setup.sets_columns)
    @rule(drawn=CHANGES, as_texts=st.booleans(), warm=st.booleans())
    def merge_columns(self, drawn: Changes, as_texts: bool, warm: bool) -> None:
        """Changes that set single columns, in any order."""
        self._merge(COLUMNS, COLUMNS, drawn, as_texts=as_texts, is_warm=warm)

    @precondition(lambda self: self.setup.sets_columns)
    @rule(drawn=CHANGES)
    def merge_columns_once_more(self, drawn: Changes) -> None:
        self._merge(COLUMNS, COLUMNS, drawn, as_texts=False, is_warm=True)

    @rule(kind=st.sampled_from((UPSERT, COUNT)), drawn=CHANGES, warm=st.booleans())
    def merge_out_of_order(self, kind: str, drawn: Changes, warm: bool) -> None:
        self._merge(kind, kind, drawn, as_texts=False, is_warm=warm)

    @precondition(lambda self: self.last)
    @rule(number=st.integers(0, 3), warm=st.booleans())
    def replay(self, number: int, warm: bool) -> None:
        """The table has the batch, so nothing comes of it."""
        app_id = sorted(self.last)[number % len(self.last)]
        kind, changes, types = self.last[app_id]
        if not warm:
            self.sinks.pop(app_id, None)
        before = latest_version(self.path)
        frame = self._replayable(changes, types)
        self._sink(kind, app_id, changes[0])(frame, self.batches[app_id])
        assert latest_version(self.path) == before

    def _replayable(self, changes: Sequence[Row], types: Mapping[str, str]) -> DataFrame:
        # The struct of a key may have another type by now.
        try:
            return self._frame_of(changes, {name: types[name] for name in changes[0]})
        except pa.ArrowException:
            return self._frame(ORDERED, self._changes(ANY, ORDERED), as_texts=False)

    @precondition(lambda self: any(self.batches.values()))
    @rule(warm=st.booleans())
    def go_backwards(self, warm: bool) -> None:
        """An older batch is refused."""
        app_id = next(app_id for app_id, number in self.batches.items() if number)
        kind = self.last[app_id][0]
        if not warm:
            self.sinks.pop(app_id, None)
        changes = self._changes(ANY, kind)
        frame = self._frame(kind, changes, as_texts=False)
        try:
            self._sink(kind, app_id, changes[0])(frame, self.batches[app_id] - 1)
        except BatchIdRegressionError:
            return
        raise AssertionError("an older batch was not refused")

    # Conflicts.

    @rule(
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, ORDERED, COLUMNS, COLUMNS, UPSERT, COUNT)),
        others=CHANGES,
        by=st.sampled_from((ORDERED, ORDERED, COLUMNS, COLUMNS, UPSERT, COUNT, *STATEMENTS)),
        step=st.sampled_from(("after_open", "after_persist", "locating", "writing", "before_commit", "before_commit")),
        warm=st.booleans(),
    )
    def merge_beside_another(self, drawn: Changes, kind: str, others: Changes, by: str, step: str, warm: bool) -> None:
        """Another writer commits at a step of the merge, which then comes after it."""
        kind, by = self._possible(kind), self._possible(by)
        changes = self._changes(drawn, kind)

        def interfere() -> None:
            self._noted(f"{by} beside {kind}")
            self._write(by, others, warm=warm)

        with beside(step, interfere):
            self._merge_changes(kind, "first" if kind == ORDERED else kind, changes, as_texts=False, is_warm=warm)

    @precondition(lambda self: self.setup.maintains)
    @rule(
        drawn=CHANGES,
        others=CHANGES,
        by=st.sampled_from((ORDERED, COLUMNS, UPSERT, COUNT, *STATEMENTS)),
        step=st.sampled_from(("compacting", "compacted", "compaction_committed")),
        warm=st.booleans(),
    )
    def maintain_beside_another(self, drawn: Changes, others: Changes, by: str, step: str, warm: bool) -> None:
        """Another writer commits while the sink compacts the table, after its batch."""
        by = self._possible(by)
        changes = self._changes(drawn, ORDERED)
        batch_id, types = self.batches.get("first", -1) + 1, self._types(ORDERED)

        def interfere() -> None:
            self._noted(f"{by} beside {step}")
            self._took(ORDERED, "first", batch_id, changes, types)
            self._write(by, others, warm=warm)

        with beside(step, interfere):
            self._merge_changes(ORDERED, "first", changes, as_texts=False, is_warm=warm)

    def _write(self, by: str, drawn: Changes, *, warm: bool) -> None:
        """Let another writer write."""
        match by:
            case "insert":
                self.insert(drawn)
            case "update":
                self.update(len(drawn) % 3)
            case "delete":
                self.delete(len(drawn) % 3)
            case "compact":
                self.compact("OPTIMIZE TARGET")
            case _:
                self._merge(by, f"other {by}", drawn, as_texts=False, is_warm=warm)
