"""Tables without a key: changes add rows and remove rows that are equal, whatever the order in which they come."""

from __future__ import annotations

import datetime as dt
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from stream_merge import MergeSink, merge_sink
from stream_merge.batch.reduce import Reduction
from stream_merge.column_names import ROW_ID, SEQUENCE
from stream_merge.errors import ConfigError, ConfigurationChangedError, MergeExecutionError, UnresolvedColumnError
from tests.conftest import CreateTable
from tests.spark.drawing import LOGS, delivered, drawn
from tests.spark.tables import change_rows, files_below, recorded_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.any_strategy, pytest.mark.one_in(3)]

SCHEMA = "a INT, b STRING"
CHANGES = "a INT, b STRING, old STRUCT<a: INT, b: STRING>, seq INT, op STRING"
X, Y, Z = (1, "x"), (2, None), (None, "z")
one_strategy = pytest.mark.parametrize("deletion_vectors", [True], ids=["merge_on_read"])
"""For what does not depend on how rows are written."""

MOMENT = dt.datetime.fromisoformat("2024-02-29T01:02:03.456789")


def add(seq: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row, None, seq, "c")


def remove(seq: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (None, None, row, seq, "d")


def change(seq: int, old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*new, old, seq, "u")


def truncate(seq: int) -> tuple[Any, ...]:
    return (None, None, None, seq, "t")


def keyless(path: str, **options: Any) -> MergeSink:
    return merge_sink(
        path,
        **{
            "before": "old",
            "sequence_by": "seq",
            "delete_when": "op = 'd'",
            "truncate_when": "op = 't'",
            "except_columns": ["old", "seq", "op"],
            **options,
        },
    )


@pytest.mark.core
@one_strategy
def test_columns_and_fields_in_another_order(spark, create_table, deletion_vectors, read_rows):
    """A SELECT that was written anew, a schema in alphabetical order, MySQL's ADD COLUMN ... FIRST."""
    path = create_table(
        "a INT, s STRUCT<x: STRING, y: ARRAY<STRUCT<p: INT, q: INT>>>, m MAP<STRUCT<k: INT, l: INT>, INT>",
        deletion_vectors=deletion_vectors,
    )

    def row(number, is_turned):
        items = "named_struct('q', 2, 'p', 1)" if is_turned else "named_struct('p', 1, 'q', 2)"
        text = f"'x', '{number}'"
        struct = (
            f"named_struct('y', array({items}), {text})" if is_turned else f"named_struct({text}, 'y', array({items}))"
        )
        key = "named_struct('l', 2, 'k', 1)" if is_turned else "named_struct('k', 1, 'l', 2)"
        columns = [f"{number} a", f"{struct} s", f"map({key}, 1) m"]
        return columns[::-1] if is_turned else columns

    def merge(*changes):
        """Merge changes: their number, operation, and whether the row, or the one before, is turned around."""
        selects = []
        for number, op, is_turned, was_turned in changes:
            names = [column.rpartition(" ") for column in row(number, was_turned)]
            image = f"named_struct({', '.join(f'{chr(39)}{name}{chr(39)}, {value}' for value, _, name in names)})"
            old, seq = (image, number + 10) if op == "d" else (f"IF(true, NULL, {image})", number)
            selects.append(f"SELECT {', '.join(row(number, is_turned))}, {old} old, {seq} seq, '{op}' op")
        return keyless(path, truncate_when=None).merge(spark.sql(" UNION ALL ".join(selects)))

    merge((1, "c", False, False), (2, "c", False, False))
    merge((3, "c", True, True), (4, "c", True, True))
    merge((1, "d", True, False), (3, "d", True, False))
    merge((2, "d", False, True))
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN m FIRST")
    merge((5, "c", True, True))
    assert [row.a for row in read_rows(path, "a")] == [4, 5]
    for change in ((4, "d", False, False), (5, "d", False, True)):
        assert merge(change).num_target_rows_deleted == 1
    assert read_rows(path) == []


@pytest.fixture
def merged(spark: SparkSession, create_table: CreateTable, read_rows: Any, deletion_vectors: bool) -> Any:
    """Return a function that merges batches into a new table and returns its rows."""
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)

    def merge(*batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        for batch in batches:
            sink.merge(spark.createDataFrame(batch, CHANGES).coalesce(1))
        return [tuple(row) for row in read_rows(path, "a", "b")]

    return merge


def sorted_rows(*rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sorted(rows, key=repr)]


@pytest.mark.core
def test_equal_rows_are_counted(merged):
    rows = merged(
        [add(1, X), add(2, X), add(3, X), add(4, Y), add(5, Z)],
        [remove(6, X), change(7, X, Y), change(8, Z, Z)],
    )
    assert rows == sorted_rows(X, Y, Y, Z)
    assert merged([remove(9, Y), remove(10, Y), remove(11, Z), remove(12, X)]) == []


@pytest.mark.core
def test_what_is_delivered_again_changes_nothing(merged):
    batches = [[add(1, X), add(2, X), add(2, X)], [remove(3, X), remove(3, X), change(4, X, Y)], [add(5, X)]]
    rows = merged(*batches)
    assert rows == sorted_rows(X, Y)
    for batch in reversed(batches):
        assert merged(batch) == rows
    assert merged([event for batch in batches for event in batch]) == rows


@one_strategy
def test_a_removal_waits_for_its_row(merged):
    assert merged([remove(5, X), remove(6, Y)]) == []
    assert merged([add(9, X)]) == [X]
    assert merged([remove(5, X)]) == [X]
    assert merged([add(1, X), add(2, Y)]) == [X]
    assert merged([add(1, X), add(2, Y), add(9, X)]) == [X]
    assert merged([remove(10, X)]) == []


@one_strategy
def test_a_late_removal_takes_the_row_that_a_newer_one_had_taken(merged):
    assert merged([add(1, X), remove(5, X)], [remove(3, X)]) == []
    # The database had removed it again: 3 took 1, and 5 takes 4.
    assert merged([add(4, X)]) == []
    assert merged([add(6, X)]) == [X]


@one_strategy
def test_an_update_to_itself_keeps_the_row(merged):
    assert merged([change(5, X, X)]) == [X]
    assert merged([add(1, X)]) == [X]
    assert merged([change(5, X, X), remove(7, X)]) == []


@pytest.mark.parametrize(
    ("partition", "kind", "kept"),
    [("b", "STRING", None), ("a", "STRING", ""), ("b", "CHAR(2)", None), ("b", "BINARY", None)],
)
def test_an_empty_value(create_table, spark, read_rows, deletion_vectors, partition, kind, kept):
    """In a partition column Delta makes NULL of it."""
    path = create_table(f"a INT, b {kind}", partition_by=[partition], deletion_vectors=deletion_vectors)
    sink, empty = keyless(path), (1, "")
    given = "BINARY" if kind == "BINARY" else "STRING"
    typed = ("a", f"CAST(b AS {given}) AS b", f"CAST(old AS STRUCT<a: INT, b: {given}>) AS old", "seq", "op")

    def merged(*events):
        sink.merge(spark.createDataFrame(events, CHANGES).selectExpr(*typed))
        return read_rows(path, "a", "b")

    merged(add(1, empty), add(2, X), add(3, empty))
    assert merged(remove(4, empty), change(6, X, empty)) == [(1, kept)] * 2
    assert merged(remove(9, empty)) == [(1, kept)]
    assert merged(add(8, empty)) == [(1, kept)] * 2


def test_truncates_take_what_is_older(merged):
    assert merged([add(1, X), remove(7, X), add(2, Y), remove(3, Z)], [truncate(5)]) == []
    # 7 had taken 1, which the database had truncated: it removed 6.
    assert merged([add(6, X)]) == []
    assert merged([add(1, X), add(4, Y), remove(4, X), add(2, Z)]) == []
    assert merged([add(8, Z), add(9, X)]) == sorted_rows(X, Z)
    assert merged([truncate(5), truncate(3)]) == sorted_rows(X, Z)


@one_strategy
def test_a_truncate_gives_a_removal_the_newer_row(merged):
    # 7 takes one of two equal rows; the older one goes with the TRUNCATE, whichever it took.
    assert merged([add(1, X), add(6, X)], [remove(7, X)]) == [X]
    assert merged([truncate(5)]) == []


@one_strategy
def test_a_truncate_of_an_empty_table_is_remembered(merged):
    assert merged([truncate(3), remove(1, Z)], [add(0, Z), add(2, Y)]) == []
    assert merged([add(4, Y)]) == [Y]


def test_a_truncate_comes_with_changes_around_it(merged):
    assert merged([add(1, X)], [truncate(5), add(6, X), add(4, Y), change(7, X, Z), remove(3, X)]) == [Z]


TYPES = {
    "`odd name.x``y`": ("STRING", "a.b"),
    "Ünï": ("DECIMAL(12, 3)", Decimal("1.500")),
    "m": ("MAP<INT, STRING>", {2: "b", 1: None}),
    "bytes": ("BINARY", bytearray(b"\x00\xff")),
    "l": ("ARRAY<INT>", [1, None]),
    "s": ("STRUCT<p: DOUBLE, q: MAP<STRING, INT>>", (float("nan"), {"k": 1})),
    "d": ("DATE", dt.date(2024, 2, 29)),
    "t": ("TIMESTAMP", MOMENT),
    "n": ("TIMESTAMP_NTZ", MOMENT),
    "f": ("BOOLEAN", True),
    "c": ("CHAR(5)", "ab"),
}


def test_rows_of_any_type_are_known_by_their_contents(spark, create_table, read_rows, deletion_vectors):
    columns = ", ".join(f"{name if name[0] == '`' else f'`{name}`'} {kind}" for name, (kind, _) in TYPES.items())
    given_columns = columns.replace("CHAR(5)", "STRING")
    fields = given_columns.replace("` ", "`: ")
    # Only with column mapping may names be odd.
    properties = {"delta.columnMapping.mode": "name"}
    path = create_table(columns, deletion_vectors=deletion_vectors, properties=properties)
    full = tuple(value for _, value in TYPES.values())
    nothing = (None,) * len(full)
    rows = [full, nothing]
    for position in range(len(full)):
        # Only one value of it, or all but one.
        rows.append((*nothing[:position], full[position], *nothing[position + 1 :]))
        rows.append((*full[:position], None, *full[position + 1 :]))
    rows.append((*full[:4], [None, 1], *full[5:]))
    schema = f"{given_columns}, old STRUCT<{fields}>, seq INT, op STRING"
    sink = keyless(path)
    sink.merge(spark.createDataFrame([(*row, None, i, "c") for i, row in enumerate(rows)], schema))
    assert len(read_rows(path)) == len(rows)
    reordered = {1: None, 2: "b"}
    gone = [tuple(reordered if value == full[2] else value for value in row) for row in rows]
    half = len(rows) // 2
    sink.merge(spark.createDataFrame([(*nothing, row, 100 + i, "d") for i, row in enumerate(gone[:half])], schema))
    assert len(read_rows(path)) == len(rows) - half
    sink.merge(spark.createDataFrame([(*nothing, row, 200 + i, "d") for i, row in enumerate(gone[half:])], schema))
    assert read_rows(path) == []


@pytest.mark.any_strategy
@pytest.mark.parametrize("is_padded", [True, False])
def test_rows_with_padded_texts_inside_are_known_by_their_contents(
    spark, create_table, read_rows, deletion_vectors, is_padded
):
    """Whether the row before the change comes with the blanks or without."""
    declared = "STRUCT<a: CHAR(4), v: VARCHAR(4), l: ARRAY<CHAR(3)>, m: MAP<CHAR(2), STRUCT<c: CHAR(2), n: INT>>>"
    path = create_table(f"s {declared}", deletion_vectors=deletion_vectors)
    given = re.sub(r"(VAR)?CHAR\(\d\)", "STRING", declared)
    schema = f"s {given}, old STRUCT<s: {given}>, seq INT, op STRING"
    plain, padded = ("x", "v ", ["y"], {"k": ("z", 1)}), ("x   ", "v ", ["y  "], {"k ": ("z ", 1)})
    others = [("x", "v", ["y"], {"k": ("z", 1)}), (None, "v ", ["y"], None), None]
    before = padded if is_padded else plain
    sink = keyless(path)
    sink.merge(spark.createDataFrame([(row, None, i, "c") for i, row in enumerate([plain, padded, *others])], schema))
    assert len(read_rows(path)) == 5
    for number, num_left in ((10, 4), (11, 3)):
        sink.merge(spark.createDataFrame([(None, (before,), number, "d")], schema))
        assert len(read_rows(path)) == num_left
    left = read_rows(path)
    assert sorted(str(row["s"] and row["s"]["v"]) for row in left) == ["None", "v", "v "]


def test_the_change_feed_shows_the_rows_once(spark, create_table, create_source, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors, properties={"delta.enableChangeDataFeed": "true"})
    sink = keyless(path)
    sink.merge(create_source(CHANGES, [add(1, X), add(2, X)]))
    version = sink.merge(create_source(CHANGES, [change(3, X, Y)])).version
    assert [row[:3] for row in change_rows(spark, path, version)] == [("delete", *X), ("insert", *Y)]


def test_a_repetition_writes_no_rows(spark, create_table, create_source, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)
    sink.merge(create_source(CHANGES, [add(1, X), add(2, X), remove(3, X)]))
    before = files_below(path)
    again = sink.merge(create_source(CHANGES, [add(1, X), add(2, X), remove(3, X)]))
    assert (again.num_target_rows_inserted, again.num_target_rows_updated, again.num_target_rows_deleted) == (0, 0, 0)
    assert files_below(path) == before


OTHERS = {
    "removes the row": ("DELETE FROM {table} WHERE a = 1", [Y]),
    "rewrites the files": ("OPTIMIZE {table}", [X, Y]),
    "adds a row of its own": ("INSERT INTO {table} (a, b) VALUES (1, 'x')", [X, X, Y]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_writer_is_faster(spark, create_table, create_source, read_rows, at_step, deletion_vectors, name):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)
    for batch in ([add(1, X)], [add(2, X), add(3, Y)]):
        sink.merge(create_source(CHANGES, batch))
    statement, expected = OTHERS[name]
    at_step("before_commit", lambda: spark.sql(statement.format(table=f"delta.`{path}`")))
    sink.merge(create_source(CHANGES, [remove(4, X)]))
    assert [tuple(row) for row in read_rows(path, "a", "b")] == expected


def test_another_sink_of_the_table_is_faster(create_table, create_source, read_rows, at_step, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)
    sink.merge(create_source(CHANGES, [add(1, X), add(2, Y)]))
    other = keyless(path)
    at_step("before_commit", lambda: other.merge(create_source(CHANGES, [remove(6, X)])))
    result = sink.merge(create_source(CHANGES, [remove(4, X)]))
    assert result.num_commit_attempts == 2
    assert [tuple(row) for row in read_rows(path, "a", "b")] == [Y]
    # Both are remembered: one waits for a row.
    sink.merge(create_source(CHANGES, [add(5, X), add(7, X)]))
    assert [tuple(row) for row in read_rows(path, "a", "b")] == [X, Y]


@one_strategy
def test_files_without_equal_rows_are_not_read(spark, create_table, create_source, deletion_vectors, monkeypatch):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)
    for seq in range(1, 5):
        sink.merge(create_source(CHANGES, [add(seq, (seq * 10, "x"))]))
    read: list[int] = []
    rows_in = Reduction.rows_in

    def counted(reduction, ranges):
        read.append(len(reduction.batch.caches.active_files(reduction.transaction).may_match(ranges, None)))
        return rows_in(reduction, ranges)

    monkeypatch.setattr(Reduction, "rows_in", counted)
    sink.merge(create_source(CHANGES, [remove(9, (30, "x"))]))
    assert read == [1]


@one_strategy
def test_ids_are_in_the_order_of_the_sequence(spark, create_table, create_source, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    schema = CHANGES.replace("seq INT", "seq STRUCT<p: BIGINT, at: TIMESTAMP>")
    moments = [None, dt.datetime.fromisoformat("1969-01-01"), MOMENT]
    numbers = [None, -(2**63), -17, -16, -1, 0, 1, 15, 16, 255, 256, 2**40, 2**63 - 1]
    sequences = [(number, moment) for number in numbers for moment in moments]
    keyless(path).merge(create_source(schema, [(*X, None, sequence, "c") for sequence in sequences]))
    table = spark.read.format("delta").load(path)
    by_sequence = [row[ROW_ID] for row in table.orderBy(SEQUENCE).collect()]
    assert len(set(by_sequence)) == len(sequences)
    assert by_sequence == sorted(by_sequence)


@one_strategy
def test_new_columns_leave_rows_as_they_are(spark, create_table, create_source, read_rows, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path, merge_schema=True)
    sink.merge(create_source(CHANGES, [add(1, X), add(2, Y)]))
    wider = "a INT, b STRING, c INT, old STRUCT<a: INT, b: STRING, c: INT>, seq INT, op STRING"
    sink.merge(create_source(wider, [(*X, 5, (*X, None), 3, "u"), (None, None, None, (*Y, None), 4, "d")]))
    assert [tuple(row) for row in read_rows(path, "a", "b", "c")] == [(*X, 5)]
    assert set(spark.read.format("delta").load(path).columns) == {"a", "b", "c", ROW_ID, SEQUENCE}


@one_strategy
def test_wider_numbers_leave_rows_as_they_are(spark, create_table, create_source, read_rows, deletion_vectors):
    """Digits after the point that are none, and a point that an integer gets."""
    columns = "a INT, b DECIMAL(10, 2), l ARRAY<DECIMAL(4, 1)>"
    values = [
        (7, Decimal("1.50"), [Decimal("0.0")]),
        (-100, Decimal("100.00"), [None, Decimal("20.0")]),
        (0, Decimal("0.00"), []),
        (1, Decimal("-99999999.90"), None),
        (None, Decimal("-0.01"), [Decimal("3.5")]),
    ]
    path = create_table(columns, deletion_vectors=deletion_vectors, properties={"delta.enableTypeWidening": "true"})
    changes = f"{columns}, old STRUCT<{columns}>, seq INT, op STRING"
    sink = keyless(path)
    sink.merge(create_source(changes, [(*row, None, seq, "c") for seq, row in enumerate(values)]))
    for name, kind in (("a", "DECIMAL(14, 4)"), ("b", "DECIMAL(20, 9)"), ("l.element", "DECIMAL(9, 4)")):
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN {name} TYPE {kind}")
    removals = [(None, None, None, row, 100 + seq, "d") for seq, row in enumerate(values[1:])]
    sink.merge(create_source(changes, removals))
    assert [tuple(row) for row in read_rows(path, "a", "b", "l")] == [values[0]]


def test_what_is_remembered_of_equal_rows_is_forgotten_together(create_table, create_source, read_rows, monkeypatch):
    from stream_merge.tombstones import store

    path = create_table(SCHEMA)
    sink = keyless(path, tombstone_retention=dt.timedelta(days=7))
    day = 24 * 3600 * 1000
    now = [100 * day]
    monkeypatch.setattr(store, "now_ms", lambda: now[0])

    def merge(*changes):
        sink.merge(create_source(CHANGES, changes))
        return [tuple(row) for row in read_rows(path, "a", "b")]

    assert merge(remove(5, X)) == []
    now[0] += 5 * day
    assert merge(add(1, X)) == []
    now[0] += 5 * day
    # The removal is ten days old, the row that it took five: neither counts without the other.
    assert merge(add(8, X)) == [X]
    assert merge(remove(9, X)) == []
    now[0] += 8 * day
    assert merge(add(10, X), add(11, Y)) == [X, Y]
    assert merge(remove(12, X)) == [Y]
    assert recorded_state(path).num_rows > 0


@one_strategy
def test_many_batches_are_remembered_in_few_files(create_table, create_source, read_rows, deletion_vectors, max_files):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = keyless(path)
    for seq in range(0, 10, 2):
        sink.merge(create_source(CHANGES, [remove(seq + 1, X)]))
    assert len(recorded_state(path).files) <= max_files
    sink.merge(create_source(CHANGES, [add(seq, X) for seq in range(0, 12, 2)]))
    assert [tuple(row) for row in read_rows(path, "a", "b")] == [X]


def test_a_removal_must_say_which_row(spark, create_table, create_source, read_rows, tmp_path):
    path = create_table(SCHEMA)
    lost = (None, None, None, 4, "d")
    with pytest.raises(MergeExecutionError, match=r"1 change\(s\) remove a row without identifying it"):
        keyless(path).merge(create_source(CHANGES, [add(1, X), lost]))
    rejected = str(tmp_path / "rejected")
    result = keyless(path, quarantine=rejected).merge(create_source(CHANGES, [add(1, X), lost, truncate(0)]))
    assert result.num_quarantined_rows == 1
    assert [row["reason"] for row in read_rows(rejected)] == [
        "a change removes a row, but before, which identifies the row, is NULL"
    ]
    assert [tuple(row) for row in read_rows(path, "a", "b")] == [X]


def test_values_that_do_not_fit_are_set_aside(create_table, create_source, read_rows, tmp_path):
    path = create_table("a INT NOT NULL, b STRING")
    schema = "a STRING, b STRING, old STRUCT<a: STRING, b: STRING>, seq INT, op STRING, error STRING"
    sink = keyless(
        path,
        quarantine=str(tmp_path / "rejected"),
        error_column="error",
        except_columns=["old", "seq", "op", "error"],
    )
    batch = [("1", "x", None, 1, "c", None), ("one", "x", None, 2, "c", None), ("3", "x", None, 3, "c", "bad")]
    batch += [(None, "x", None, 4, "c", None), (None, None, ("1", "x"), 5, "d", None), ("6", "y", None, 6, "c", None)]
    batch += [(None, None, ("one", "x"), 7, "d", None)]
    result = sink.merge(create_source(schema, batch))
    assert [tuple(row) for row in read_rows(path, "a", "b")] == [(6, "y")]
    assert result.num_quarantined_rows == 4


def test_a_batch_that_does_not_go_with_the_sink_is_refused(spark, create_table, create_source):
    path = create_table(SCHEMA)
    with pytest.raises(UnresolvedColumnError, match="before has no field b"):
        keyless(path).merge(create_source("a INT, b STRING, old STRUCT<a: INT>, seq INT, op STRING", []))
    with pytest.raises(ConfigError, match="before is of type string"):
        keyless(path, before="op").merge(create_source(CHANGES, []))
    keyless(path).merge(create_source(CHANGES, [add(1, X)]))
    with pytest.raises(ConfigurationChangedError):
        keyless(path, sequence_by="seq * 2").merge(create_source(CHANGES, [add(1, X)]))


def test_explain_says_how_rows_are_found(create_table, create_source):
    path = create_table(SCHEMA)
    batch = create_source(CHANGES, [add(1, X)])
    assert f"by their contents, under ids in {ROW_ID}" in keyless(path).explain(batch)
    keyless(path).merge(batch)
    assert ROW_ID in keyless(path).explain(batch)


@dataclass(frozen=True, slots=True)
class Logs:
    """Logs of rows without a key, each of other rows, and the batches that they arrive in: every event at least
    once."""

    rows: list[tuple[Any, ...]]
    batches: list[list[tuple[Any, ...]]]


def draw_logs(seed: int) -> Logs:
    """Draw logs that a database can have written, with some TRUNCATEs of all rows, and cut them up."""
    draw, num_events, num_batches = random.Random(seed), 18, 5
    truncates = draw.sample(range(num_events), draw.randint(0, 2))
    rows: list[tuple[Any, ...]] = []
    batches = delivered(draw, [truncate(seq) for seq in truncates], num_batches)
    for log in range(LOGS):
        contents = [(log, "x"), (log, None), (None, f"z{log}")]
        table: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for seq in range(draw.randint(4, num_events)):
            if seq in truncates:
                table = []
                continue
            op = draw.choice("ccccuuuddd" if table else "c")
            old = table.pop(draw.randrange(len(table))) if op in "ud" else None
            new = draw.choice(contents) if op in "cu" else None
            table += [new] if new is not None else []
            events.append((*(new or (None, None)), old, seq, op))
        if any(seq > events[-1][3] for seq in truncates):
            table = []
        rows += table
        for batch, own in zip(batches, delivered(draw, events, num_batches), strict=True):
            batch += own
    return Logs(rows, [draw.sample(batch, len(batch)) for batch in batches])


@pytest.mark.always
@pytest.mark.slow
def test_any_split_repetition_and_order_gives_the_database_s_rows(
    spark: SparkSession, create_table: CreateTable, deletion_vectors: bool, tmp_path: Path
) -> None:
    numbers = iter(range(10**6))

    @drawn(3)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        logs = draw_logs(seed)
        path = str(tmp_path / f"target_{next(numbers)}")
        create_table(SCHEMA, path=path, deletion_vectors=deletion_vectors)
        sink = keyless(path)
        for batch in logs.batches:
            sink.merge(spark.createDataFrame(batch, CHANGES).coalesce(1))
        table: DataFrame = spark.read.format("delta").load(path)
        assert Counter(tuple(row) for row in table.select("a", "b").collect()) == Counter(logs.rows)
        assert table.select(ROW_ID).where(F.col(ROW_ID).isNull()).isEmpty()
        shutil.rmtree(path)

    check()


def test_texts_that_are_not_utf_8_are_other_texts(spark, create_table, deletion_vectors):
    path = create_table("v STRING, w INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, before="old", sequence_by="q", delete_when="op = 'd'", except_columns=["old", "q", "op"])
    nobody = "CAST(NULL AS STRUCT<v: STRING, w: INT>)"
    texts = ["CAST(x'80' AS STRING)", "CAST(x'81' AS STRING)", "'\\u0000bytes:81'"]
    added = [f"SELECT {text} v, 1 w, {nobody} old, {n} q, 'u' op" for n, text in enumerate(texts)]
    sink.merge(spark.sql(" UNION ALL ".join(added)))
    removed = f"named_struct('v', {texts[1]}, 'w', 1)"
    sink.merge(spark.sql(f"SELECT CAST(NULL AS STRING) v, CAST(NULL AS INT) w, {removed} old, 9 q, 'd' op"))
    left = spark.read.format("delta").load(path).selectExpr("hex(v)").collect()
    assert sorted(row[0] for row in left) == ["0062797465733A3831", "80"]
