"""Random logs, cut into batches, shuffled and repeated at random: the table is what the plain fold of the log gives."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_merge import merge_sink
from tests.conftest import CreateTable
from tests.spark.drawing import deliveries, drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.any_strategy]

KEYS = (1, 2, 3, None)
SCHEMA = "id INT, part STRING, v STRING, seq INT, op STRING"


@dataclass(frozen=True, slots=True)
class Log:
    """A log, and the batches that it arrives in: every change at least once."""

    changes: list[tuple[Any, ...]]
    batches: list[list[tuple[Any, ...]]]

    def fold(self) -> list[tuple[Any, ...]]:
        """Return the rows that the changes give in the order of their sequence."""
        rows: dict[Any, tuple[Any, ...]] = {}
        for key, part, value, seq, op in sorted(self.changes, key=lambda change: change[3]):
            rows.pop((key, part), None)
            if op == "u":
                rows[key, part] = (key, part, value, seq)
        return sorted(rows.values(), key=repr)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a log."""
    number = draw(st.integers(3, 14))
    sequences = draw(st.permutations(range(number)))
    changes = [
        (
            draw(st.sampled_from(KEYS)),
            draw(st.sampled_from(["x", None])),
            draw(st.sampled_from(["a", "b", None])),
            sequences[i],
            draw(st.sampled_from("uud")),
        )
        for i in range(number)
    ]
    return Log(changes, draw(deliveries(changes, max_batches=4)))


@pytest.fixture
def merged(
    spark: SparkSession, create_table: CreateTable, read_rows: Any, deletion_vectors: bool, tmp_path: Path
) -> Callable[..., list[tuple[Any, ...]]]:
    """Return a function that merges batches into a new table of some columns and returns its rows."""
    numbers = itertools.count()

    def merge(
        batches: list[list[tuple[Any, ...]]], schema: str, *columns: str, **options: Any
    ) -> list[tuple[Any, ...]]:
        path = str(tmp_path / f"target_{next(numbers)}")
        types = [field for field in schema.split(", ") if field.split()[0] in columns]
        create_table(", ".join(types), path=path, deletion_vectors=deletion_vectors)
        sink = merge_sink(path, delete_when="op = 'd'", **options)
        for batch in batches:
            sink.merge(spark.createDataFrame(batch, schema).coalesce(1))
        rows = [tuple(row) for row in read_rows(path, *columns)]
        shutil.rmtree(path)
        return rows

    return merge


@pytest.mark.parametrize("sequence", ["seq", "seq * 2"], ids=["column", "expression"])
def test_any_split_repetition_and_order_gives_the_fold(
    merged: Callable[..., list[tuple[Any, ...]]], sequence: str
) -> None:
    @drawn(6)
    @given(log=logs())
    def check(log: Log) -> None:
        options = {"keys": ["id", "part"], "null_keys": "match", "sequence_by": sequence}
        assert merged(log.batches, SCHEMA, "id", "part", "v", "seq", **options) == log.fold()

    check()


@dataclass(frozen=True, slots=True)
class TiedLog:
    """Batches of changes of which many have the same sequence, but in one batch no two of one key."""

    batches: list[list[tuple[Any, ...]]]

    def fold(self) -> list[tuple[Any, ...]]:
        """Return the rows that the changes give in the order of their sequence; of one sequence, in that of their batches."""
        rows: dict[Any, tuple[Any, ...]] = {}
        changes = [(change[3], number, change) for number, batch in enumerate(self.batches) for change in batch]
        for seq, _, (key, part, value, _, op) in sorted(changes, key=lambda each: each[:2]):
            rows.pop((key, part), None)
            if op == "u":
                rows[key, part] = (key, part, value, seq)
        return sorted(rows.values(), key=repr)

    def fold_without_tombstones(self) -> list[tuple[Any, ...]]:
        """Return the rows when a change is compared with the row alone: after a delete, any change brings it back."""
        rows: dict[Any, tuple[Any, ...]] = {}
        for batch in self.batches:
            newest = {change[:2]: change for change in sorted(batch, key=lambda change: change[3])}
            for key, (*row, op) in newest.items():
                if key in rows and row[3] < rows[key][3]:
                    continue
                rows.pop(key, None)
                if op == "u":
                    rows[key] = tuple(row)
        return sorted(rows.values(), key=repr)


def without_ties(batch: list[tuple[Any, ...]], *identity: int) -> list[tuple[Any, ...]]:
    """Return a batch without changes that have key and sequence in common with an earlier one."""
    return list({tuple(change[i] for i in identity): change for change in reversed(batch)}.values())


@st.composite
def tied_logs(draw: st.DrawFn) -> TiedLog:
    """Draw a log."""
    changes = [
        (draw(st.sampled_from([1, 2, None])), "x", f"v{i}", draw(st.integers(0, 3)), draw(st.sampled_from("uud")))
        for i in range(draw(st.integers(4, 14)))
    ]
    return TiedLog([without_ties(batch, 0, 3) for batch in draw(deliveries(changes, max_batches=5))])


@pytest.mark.parametrize(
    ("sequence", "remembers"),
    [("seq", True), ("seq * 2", True), ("seq", False)],
    ids=["column", "expression", "no tombstones"],
)
def test_of_one_sequence_the_change_of_the_later_batch_wins(
    merged: Callable[..., list[tuple[Any, ...]]], sequence: str, remembers: bool
) -> None:
    options = {"keys": ["id", "part"], "null_keys": "match", "sequence_by": sequence}
    if not remembers:
        options["tombstone_retention"] = timedelta(0)

    @drawn(2)
    @given(log=tied_logs())
    def check(log: TiedLog) -> None:
        expected = log.fold() if remembers else log.fold_without_tombstones()
        assert merged(log.batches, SCHEMA, "id", "part", "v", "seq", **options) == expected

    check()


TIE_BREAK_SCHEMA = "id INT, part STRING, v STRING, seq INT, tie INT, op STRING"


@pytest.mark.parametrize("columns", [["seq", "tie"], ["seq"]], ids=["both columns", "one of the columns"])
def test_a_tie_break_decides_between_changes_of_one_sequence_whatever_their_batches(
    merged: Callable[..., list[tuple[Any, ...]]], columns: list[str]
) -> None:
    options = {"keys": ["id", "part"], "null_keys": "match", "sequence_by": "seq", "tie_break_by": "tie"}

    @drawn(2)
    @given(log=logs())
    def check(log: Log) -> None:
        expected = [(*row[:3], *(row[3] // 4, row[3] % 4)[: len(columns)]) for row in log.fold()]
        batches = [
            [(*change[:3], change[3] // 4, change[3] % 4, change[4]) for change in batch] for batch in log.batches
        ]
        assert merged(batches, TIE_BREAK_SCHEMA, "id", "part", "v", *columns, **options) == expected

    check()


PARTIAL_SCHEMA = "id INT, a STRING, b STRING, seq INT, op STRING, unset ARRAY<STRING>"


@dataclass(frozen=True, slots=True)
class PartialLog:
    """A log whose changes set some columns, with deletes and truncates, and the batches that it arrives in."""

    changes: list[tuple[Any, ...]]
    batches: list[list[tuple[Any, ...]]]

    def fold(self) -> list[tuple[Any, ...]]:
        """Return the rows that the changes give in the order of their sequence."""
        rows: dict[Any, dict[str, Any]] = {}
        for key, a, b, seq, op, unset in sorted(self.changes, key=lambda change: change[3]):
            if op == "t":
                rows.clear()
            elif op == "d":
                rows.pop(key, None)
            else:
                row = rows.setdefault(key, {"a": None, "b": None})
                row |= {name: value for name, value in (("a", a), ("b", b)) if name not in unset}
                row["seq"] = seq
        return sorted(((key, row["a"], row["b"], row["seq"]) for key, row in rows.items()), key=repr)


@st.composite
def partial_logs(draw: st.DrawFn) -> PartialLog:
    """Draw a log."""
    number = draw(st.integers(3, 16))
    sequences = draw(st.permutations(range(number)))
    changes: list[tuple[Any, ...]] = []
    for i in range(number):
        op = draw(st.sampled_from("uuuuuuudddt"))
        unset = draw(st.sampled_from([[], ["a"], ["b"], ["a", "b"]])) if op == "u" else []
        a, b = (f"{name}{sequences[i]}" if op == "u" and name not in unset else None for name in "ab")
        changes.append((None if op == "t" else draw(st.sampled_from([1, 2])), a, b, sequences[i], op, unset))
    return PartialLog(changes, draw(deliveries(changes, max_batches=5)))


@pytest.mark.parametrize("sequence", ["seq", "seq * 2"], ids=["column", "expression"])
def test_changes_of_single_columns_in_any_order_give_the_fold(
    merged: Callable[..., list[tuple[Any, ...]]], sequence: str
) -> None:
    options = {"keys": "id", "sequence_by": sequence, "truncate_when": "op = 't'", "unchanged_columns": "unset"}

    @drawn(3)
    @given(log=partial_logs())
    def check(log: PartialLog) -> None:
        assert merged(log.batches, PARTIAL_SCHEMA, "id", "a", "b", "seq", **options) == log.fold()

    check()


@st.composite
def tied_partial_logs(draw: st.DrawFn) -> PartialLog:
    """Draw a log of few sequences, and the batches that it arrives in: in one batch no two changes of one key have the same."""
    changes: list[tuple[Any, ...]] = []
    for i in range(draw(st.integers(3, 14))):
        op = draw(st.sampled_from("uuuuudd"))
        unset = draw(st.sampled_from([[], ["a"], ["b"], ["a", "b"]])) if op == "u" else []
        a, b = (f"{name}{i}" if op == "u" and name not in unset else None for name in "ab")
        changes.append((draw(st.sampled_from([1, 2])), a, b, draw(st.integers(0, 3)), op, unset))
    batches = [without_ties(batch, 0, 3) for batch in draw(deliveries(changes, max_batches=5))]
    # In the order of the batches, which decides between changes of one sequence.
    return PartialLog([change for batch in batches for change in batch], batches)


@pytest.mark.parametrize("sequence", ["seq", "seq * 2"], ids=["column", "expression"])
def test_of_one_sequence_the_columns_of_the_later_batch_win(
    merged: Callable[..., list[tuple[Any, ...]]], sequence: str
) -> None:
    options = {"keys": "id", "sequence_by": sequence, "unchanged_columns": "unset"}

    @drawn(3)
    @given(log=tied_partial_logs())
    def check(log: PartialLog) -> None:
        assert merged(log.batches, PARTIAL_SCHEMA, "id", "a", "b", "seq", **options) == log.fold()

    check()
