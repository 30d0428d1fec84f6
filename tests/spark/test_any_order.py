"""Random logs, cut into batches, shuffled and repeated at random: the table is what the plain fold of the log gives.

What becomes of a key is decided by its own changes, so each merge carries the logs of many keys that know nothing of
each other.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_merge import merge_sink
from tests.conftest import CreateTable
from tests.spark.drawing import LOGS, delivered, drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.any_strategy, pytest.mark.always]

NUM_BATCHES = 4
SEEDS = st.integers(0, 2**32)

Batches = list[list[tuple[Any, ...]]]
Fold = Callable[[Batches], list[tuple[Any, ...]]]


@pytest.fixture
def check(
    spark: SparkSession, create_table: CreateTable, read_rows: Any, deletion_vectors: bool, tmp_path: Path
) -> Callable[..., None]:
    """Return a function that merges batches into a new table of some columns and compares its rows with those of a
    fold."""
    numbers = itertools.count()

    def merge_and_compare(batches: Batches, fold: Fold, schema: str, columns: Sequence[str], **options: Any) -> None:
        path = str(tmp_path / f"target_{next(numbers)}")
        types = [field for field in schema.split(", ") if field.split()[0] in columns]
        create_table(", ".join(types), path=path, deletion_vectors=deletion_vectors)
        sink = merge_sink(path, delete_when="op = 'd'", **options)
        for batch in batches:
            sink.merge(spark.createDataFrame(batch, schema).coalesce(1))
        rows, expected = [tuple(row) for row in read_rows(path, *columns)], fold(batches)
        shutil.rmtree(path)
        if sorted(rows, key=repr) != sorted(expected, key=repr):
            log = min({row[0] for row in {*rows} ^ {*expected}})
            own = [[change for change in batch if change[0] in (log, None)] for batch in batches]
            found = [row for row in rows if row[0] == log]
            wanted = [row for row in expected if row[0] == log]
            pytest.fail(f"of these changes\n{own}\nthere is\n{found}\nand there should be\n{wanted}")

    return merge_and_compare


def in_order(batches: Batches, place: int) -> Iterator[tuple[Any, ...]]:
    """Return all changes in the order of the sequence at a place of them; of one sequence, in that of their batches."""
    return iter(sorted((change for batch in batches for change in batch), key=lambda change: change[place]))


def without_ties(batch: list[tuple[Any, ...]], *identity: int) -> list[tuple[Any, ...]]:
    """Return a batch without changes that have key and sequence in common with an earlier one."""
    return list({tuple(change[i] for i in identity): change for change in reversed(batch)}.values())


SCHEMA = "log INT, id INT, part STRING, v STRING, seq INT, op STRING"


def whole_rows(seed: int) -> Batches:
    """Draw logs of changes that set all of a row. In every other one changes of one key have the same sequence."""
    draw = random.Random(seed)
    batches: Batches = [[] for _ in range(NUM_BATCHES)]
    for log in range(LOGS):
        number = draw.randint(3, 14)
        sequences = draw.sample(range(number), number) if log % 2 else draw.choices(range(4), k=number)
        changes = [
            (log, draw.choice((1, 2, None)), draw.choice(("x", None)), f"v{i}", seq, draw.choice("uud"))
            for i, seq in enumerate(sequences)
        ]
        for batch, own in zip(batches, delivered(draw, changes, NUM_BATCHES), strict=True):
            batch += own if log % 2 else without_ties(own, 1, 2, 4)
    return [draw.sample(batch, len(batch)) for batch in batches]


def fold(batches: Batches) -> list[tuple[Any, ...]]:
    """Return the rows that the changes give."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for *row, op in in_order(batches, 4):
        rows.pop(tuple(row[:3]), None)
        if op == "u":
            rows[tuple(row[:3])] = tuple(row)
    return list(rows.values())


def fold_without_tombstones(batches: Batches) -> list[tuple[Any, ...]]:
    """Return the rows when a change is compared with the row alone: after a delete, any change brings it back."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for batch in batches:
        newest = {change[:3]: change for change in in_order([batch], 4)}
        for key, (*row, op) in newest.items():
            if key in rows and row[4] < rows[key][4]:
                continue
            rows.pop(key, None)
            if op == "u":
                rows[key] = tuple(row)
    return list(rows.values())


@pytest.mark.parametrize(
    ("sequence", "remembers"),
    [("seq", True), ("seq * 2", True), ("seq", False)],
    ids=["column", "expression", "no tombstones"],
)
def test_any_split_repetition_and_order_gives_the_fold(
    check: Callable[..., None], sequence: str, remembers: bool
) -> None:
    """Of one sequence the change of the later batch wins."""
    options = {"keys": ["log", "id", "part"], "null_keys": "match", "sequence_by": sequence}
    if not remembers:
        options["tombstone_retention"] = timedelta(0)

    @drawn(2)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        expected = fold if remembers else fold_without_tombstones
        check(whole_rows(seed), expected, SCHEMA, ("log", "id", "part", "v", "seq"), **options)

    run()


TIE_BREAK_SCHEMA = "log INT, id INT, part STRING, v STRING, seq INT, tie INT, op STRING"


@pytest.mark.parametrize("columns", [("seq", "tie"), ("seq",)], ids=["both columns", "one of the columns"])
def test_a_tie_break_decides_between_changes_of_one_sequence_whatever_their_batches(
    check: Callable[..., None], columns: tuple[str, ...]
) -> None:
    keys = ["log", "id", "part"]
    options = {"keys": keys, "null_keys": "match", "sequence_by": "seq", "tie_break_by": "tie"}

    def broken(batches: Batches) -> Batches:
        return [[(*row, seq // 4, seq % 4, op) for *row, seq, op in batch] for batch in batches]

    def joined(batches: Batches) -> list[tuple[Any, ...]]:
        rows = fold([[(*row, 4 * seq + tie, op) for *row, seq, tie, op in batch] for batch in batches])
        return [(*row, *(seq // 4, seq % 4)[: len(columns)]) for *row, seq in rows]

    @drawn(1)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        check(broken(whole_rows(seed)), joined, TIE_BREAK_SCHEMA, (*keys, "v", *columns), **options)

    run()


PARTIAL_SCHEMA = "log INT, id INT, a STRING, b STRING, seq INT, op STRING, unset ARRAY<STRING>"


def single_columns(seed: int) -> Batches:
    """Draw logs of changes that set some columns, with deletes, and TRUNCATEs of all; ties as in `whole_rows`."""
    draw = random.Random(seed)
    truncates = [(None, None, None, None, at, "t", []) for at in draw.sample(range(1, 16, 2), draw.randint(0, 2))]
    batches = delivered(draw, truncates, NUM_BATCHES)
    for log in range(LOGS):
        number = draw.randint(3, 14)
        sequences = draw.sample(range(number), number) if log % 2 else draw.choices(range(2, 12, 3), k=number)
        changes = []
        for i, seq in enumerate(sequences):
            op = draw.choice("uuuuudd")
            unset = draw.choice(([], ["a"], ["b"], ["a", "b"])) if op == "u" else []
            a, b = (f"{name}{i}" if op == "u" and name not in unset else None for name in "ab")
            changes.append((log, draw.choice((1, 2)), a, b, 2 * seq, op, unset))
        for batch, own in zip(batches, delivered(draw, changes, NUM_BATCHES), strict=True):
            batch += own if log % 2 else without_ties(own, 1, 4)
    return [draw.sample(batch, len(batch)) for batch in batches]


def fold_columns(batches: Batches) -> list[tuple[Any, ...]]:
    """Return the rows that the changes give."""
    rows: dict[Any, dict[str, Any]] = {}
    for log, key, a, b, seq, op, unset in in_order(batches, 4):
        if op == "t":
            rows.clear()
        elif op == "d":
            rows.pop((log, key), None)
        else:
            row = rows.setdefault((log, key), {"a": None, "b": None})
            row |= {name: value for name, value in (("a", a), ("b", b)) if name not in unset}
            row["seq"] = seq
    return [(*key, row["a"], row["b"], row["seq"]) for key, row in rows.items()]


@pytest.mark.parametrize("sequence", ["seq", "seq * 2"], ids=["column", "expression"])
def test_changes_of_single_columns_in_any_order_give_the_fold(check: Callable[..., None], sequence: str) -> None:
    """Of one sequence the columns of the later batch win."""
    options = {"sequence_by": sequence, "truncate_when": "op = 't'", "unchanged_columns": "unset"}

    @drawn(2)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        columns = ("log", "id", "a", "b", "seq")
        check(single_columns(seed), fold_columns, PARTIAL_SCHEMA, columns, keys=["log", "id"], **options)

    run()
