"""Batches in which no row lacks a value that the table has are merged row by row, in tables with older columns too."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink
from stream_merge.merge import merge_on_read
from stream_merge.merge.locate import probes
from stream_merge.partial_updates.carried_values import CarriedValues
from tests.conftest import CreateTable
from tests.spark.jobs import jobs_since, next_job_id
from tests.spark.test_key_moves import SCHEMA, TARGET, delete, moving, upsert


@pytest.fixture
def table(create_table: CreateTable) -> str:
    """Return a table of three rows, with deletion vectors."""
    rows = [(key, "p", f"a{key}", f"b{key}", 1) for key in (1, 2, 3)]
    return create_table(TARGET, rows, deletion_vectors=True, properties={"delta.columnMapping.mode": "name"})


@pytest.fixture
def by_column(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets longer with each merge that reads old rows."""
    merges: list[int] = []
    stage = merge_on_read._stage_dependent
    monkeypatch.setattr(merge_on_read, "_stage_dependent", lambda job: merges.append(1) or stage(job))
    return merges


@pytest.fixture
def rows_of(read_rows):
    """Return a function that reads columns of a table, in the order of the keys."""
    return lambda *args: sorted(read_rows(*args), key=lambda row: row.id)


def older(path: str, create_source) -> None:
    """Leave a row in the table whose column `b` is older than the row."""
    moving(path).merge(create_source(SCHEMA, [upsert(3, "A3", None, 5, "b")]))


@pytest.mark.parametrize("locator", [None, "index"])
def test_a_batch_of_whole_rows_reads_no_old_row(create_source, rows_of, table, by_column, locator):
    older(table, create_source)
    assert len(by_column) == 1
    sink = moving(table, locator=locator)
    for seq in (10, 20):
        changes = [upsert(3, f"A{seq}", f"B{seq}", seq), delete(seq // 10, seq), upsert(seq, "n", "m", seq)]
        sink.merge(create_source(SCHEMA, changes))
    assert len(by_column) == 1
    assert rows_of(table, "id", "a", "b", "seq", "_stream_merge_column_sequences") == [
        Row(id=3, a="A20", b="B20", seq=20, _stream_merge_column_sequences=None),
        Row(id=10, a="n", b="m", seq=10, _stream_merge_column_sequences=None),
        Row(id=20, a="n", b="m", seq=20, _stream_merge_column_sequences=None),
    ]


def test_a_row_that_moves_to_a_free_key_needs_no_old_row_of_that_key(create_source, rows_of, table, by_column):
    sink = moving(table)
    for key in (10, 20):
        arrival = upsert(key, f"A{key}", None, key + 1, "b", old=key // 10)
        result = sink.merge(create_source(SCHEMA, [delete(key // 10, key, new=key), arrival, upsert(3, "c", "d", key)]))
        assert (result.num_target_rows_inserted, result.num_target_rows_updated) == (1, 1)
        assert result.num_unresolved_rows == 0
    assert by_column == []
    expected = [
        Row(id=3, a="c", b="d", seq=20),
        Row(id=10, a="A10", b="b1", seq=11),
        Row(id=20, a="A20", b="b2", seq=21),
    ]
    assert rows_of(table, "id", "a", "b", "seq") == expected


def test_a_row_that_lacks_a_value_and_is_in_the_table_is_merged_by_column(create_source, rows_of, table, by_column):
    sink = moving(table)
    # Key 2 has a row, and no departure gives the arrival its value.
    changes = [upsert(2, "A2", None, 10, "b", old=9), upsert(3, "A3", "B3", 10)]
    result = sink.merge(create_source(SCHEMA, changes))
    assert (len(by_column), result.num_target_rows_updated, result.num_unresolved_rows) == (1, 2, 0)
    assert rows_of(table, "id", "a", "b", "seq") == [
        Row(id=1, a="a1", b="b1", seq=1),
        Row(id=2, a="A2", b="b2", seq=10),
        Row(id=3, a="A3", b="B3", seq=10),
    ]


def test_rows_that_lack_values_are_merged_by_column_if_not_all_of_them_are_listed(
    create_source, rows_of, table, by_column, monkeypatch
):
    monkeypatch.setattr(probes, "MAX_COLLECTED", 1)
    lacking = [upsert(key, f"A{key}", None, 10, "b", old=key + 5) for key in (2, 3)]
    moving(table).merge(create_source(SCHEMA, [upsert(1, "A1", "B1", 10), *lacking]))
    assert len(by_column) == 1
    assert rows_of(table, "id", "a", "b") == [
        Row(id=1, a="A1", b="B1"),
        Row(id=2, a="A2", b="b2"),
        Row(id=3, a="A3", b="b3"),
    ]


def test_a_whole_change_that_is_older_than_its_row_sets_the_columns_that_are_older_still(
    create_source, rows_of, table, by_column
):
    older(table, create_source)
    result = moving(table).merge(create_source(SCHEMA, [upsert(3, "late", "late", 4), upsert(1, "A", "B", 4)]))
    assert len(by_column) == 2
    assert result.num_target_rows_updated == 2
    assert rows_of(table, "id", "a", "b", "seq") == [
        Row(id=1, a="A", b="B", seq=4),
        Row(id=2, a="a2", b="b2", seq=1),
        Row(id=3, a="A3", b="late", seq=5),
    ]


def test_values_that_follow_a_row_are_no_row_themselves(create_source, rows_of, table, by_column):
    """The row of key 2 came before, so that the departure brings only the value that it lacked."""
    sink = moving(table)
    sink.merge(create_source(SCHEMA, [upsert(7, "A7", None, 11, "b", old=1)]))
    sink.merge(create_source(SCHEMA, [delete(1, 10, new=7), upsert(3, "c", "d", 10)]))
    assert rows_of(table, "id", "a", "b") == [
        Row(id=2, a="a2", b="b2"),
        Row(id=3, a="c", b="d"),
        Row(id=7, a="A7", b="b1"),
    ]


def test_a_conflict_with_a_writer_of_the_key_that_a_row_moves_to(create_source, rows_of, table, by_column, at_step):
    sink = moving(table)
    sink.merge(create_source(SCHEMA, [upsert(3, "c", "d", 2)]))
    other = merge_sink(table, keys=["id", "Part 2"], sequence_by="seq", columns=["id", "Part 2", "a", "b", "seq"])
    at_step(
        "before_commit",
        lambda: other.merge(create_source(TARGET, [(10, "p", "x", "y", 20)])),
    )
    changes = [delete(1, 10, new=10), upsert(10, "A", None, 11, "b", old=1), upsert(2, "A", "B", 10)]
    result = sink.merge(create_source(SCHEMA, changes))
    assert result.num_commit_attempts == 2
    assert rows_of(table, "id", "a", "b", "seq") == [
        Row(id=2, a="A", b="B", seq=10),
        Row(id=3, a="c", b="d", seq=2),
        Row(id=10, a="x", b="y", seq=20),
    ]


def test_a_move_takes_few_jobs_more(spark, create_source, table):
    """Each job takes longer to plan than to run. Once there were 16 more."""
    sink = moving(table)
    nums_of_jobs = []
    for key in (10, 20, 30):
        moved = [delete(key // 10, key, new=key), upsert(key, "A", None, key + 1, "b", old=key // 10)]
        for changes in ([upsert(5, "c", "d", key)], [*moved, upsert(5, "c", "d", key + 5)]):
            first = next_job_id(spark)
            sink.merge(create_source(SCHEMA, changes))
            nums_of_jobs.append(len(jobs_since(spark, first)))
    *_, without, with_moves = nums_of_jobs
    assert with_moves - without <= 8, nums_of_jobs


def test_the_expressions_of_moves_are_made_once(create_source, table, monkeypatch):
    """Each part of an expression is a call into the JVM, of which a batch with moves once made 3,700 more."""
    made: list[str] = []
    for name in ("_left", "_records", "_fills", "_registers", "_awaited", "_there"):
        make = getattr(CarriedValues, name)
        monkeypatch.setattr(CarriedValues, name, lambda *args, make=make, name=name: made.append(name) or make(*args))
    sink = moving(table)
    nums_made = []
    for key in (10, 20, 30):
        moved = [delete(key // 10, key, new=key), upsert(key, "A", None, key + 1, "b", old=key // 10)]
        sink.merge(create_source(SCHEMA, moved))
        nums_made.append(len(made))
    # Only in the second batch there are values that earlier batches remember.
    assert nums_made == [5, 6, 6], made
