"""Columns of a batch that are NULL and have no type: `lit(None)`, or a field that no record of the batch has."""

from __future__ import annotations

from datetime import date

import pytest

from stream_merge import merge_sink

DAY = date.fromisoformat("2026-01-02")


@pytest.mark.parametrize("mode", ["evolve", "lenient"])
def test_a_column_comes_once_it_has_a_type(spark, create_table, create_source, read_rows, deletion_vectors, mode):
    """The table would otherwise have a column of the type VOID, to which no value can be written."""
    path = create_table("id INT, v INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by="s", except_columns="s", schema_changes=mode)
    sink.merge(create_source("id INT, v INT, s INT", [(1, 1, 1)]).selectExpr("*", "NULL AS n"))
    sink.merge(create_source("id INT, v INT, m STRING, s INT", [(2, 2, "m", 2)]).selectExpr("*", "NULL AS n"))
    assert [name for name in spark.read.format("delta").load(path).columns if name[0] != "_"] == ["id", "v", "m"]
    sink.merge(create_source("id INT, v INT, n DATE, m STRING, s INT", [(1, 3, DAY, "m", 3)]))
    sink.merge(create_source("id INT, v INT, s INT", [(2, 4, 4)]).selectExpr("*", "NULL AS n", "NULL AS m"))
    assert read_rows(path, "id", "v", "n", "m") == [(1, 3, DAY, "m"), (2, 4, None, None)]


def test_a_sink_of_only_such_columns_writes_no_others(create_table, create_source, read_rows):
    path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=True)
    sink = merge_sink(path, keys="id", columns="n", schema_changes="evolve")
    sink.merge(create_source("id INT, v INT", [(1, 9), (2, 9)]).selectExpr("*", "NULL AS n"))
    assert read_rows(path) == [(1, 1), (2, None)]


def test_values_follow_a_row_to_another_key(create_table, create_source, read_rows):
    path = create_table("id INT, v INT, n STRING", [(1, 1, "kept")], deletion_vectors=True)
    sink = merge_sink(
        path,
        keys="id",
        sequence_by="s",
        except_columns=["s", "op", "old", "new", "unset"],
        unchanged_columns="unset",
        old_key="old",
        new_key="new",
        delete_when="op = 'd'",
    )
    schema = "id INT, v INT, s INT, op STRING, old STRUCT<id: INT>, new STRUCT<id: INT>, unset ARRAY<STRING>"
    moved = create_source(schema, [(1, None, 2, "d", None, (2,), None), (2, 5, 2, "c", (1,), None, ["n"])])
    sink.merge(moved.selectExpr("*", "NULL AS n"))
    assert read_rows(path, "id", "v", "n") == [(2, 5, "kept")]


def test_rows_beside_them_are_set_aside(spark, create_table, create_source, read_rows, tmp_path):
    path = create_table("id INT, v INT, n STRING", [(1, 1, "old")], deletion_vectors=True)
    sink = merge_sink(path, keys="id", sequence_by="s", except_columns="s", quarantine=str(tmp_path / "set_aside"))
    rows = create_source("id INT, v BIGINT, s INT", [(1, 2, 1), (2, 2**40, 1), (3, 3, 1)])
    assert sink.merge(rows.selectExpr("*", "NULL AS n")).num_quarantined_rows == 1
    assert read_rows(path, "id", "v", "n") == [(1, 2, None), (3, 3, None)]
    (set_aside,) = spark.read.format("delta").load(str(tmp_path / "set_aside")).select("row").collect()
    assert set_aside.row == '{"id":2,"v":1099511627776,"s":1,"n":null}'
