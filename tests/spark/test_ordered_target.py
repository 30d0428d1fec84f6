"""What a table gets so that the order of changes can be kept: when the sink makes it, or before its first batch."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from stream_merge import MergeSink, merge_sink
from stream_merge.batch.target import FEATURE
from stream_merge.bridge.extension import add_columns_and_feature
from stream_merge.bridge.table import open_table
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID, SEQUENCE
from stream_merge.errors import UnresolvedColumnError
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.tables import recorded_state

SCHEMA = "id INT, a STRING, b STRING, part DATE, at INT, n INT, op STRING, unset ARRAY<STRING>"
COLUMNS = "id INT, a STRING, b STRING, part DATE"


def sending_some(path: str, **options: Any) -> MergeSink:
    """Return a sink that needs columns of its own for the sequences of rows and of values, and the feature."""
    return merge_sink(
        path,
        **{
            "keys": "id",
            "sequence_by": ["at", "-n"],
            "delete_when": "op = 'd'",
            "unchanged_columns": "unset",
            "except_columns": ["at", "n", "op", "unset"],
            **options,
        },
    )


def change(key: int, a: str | None, b: str | None, at: int, *unset: str, op: str = "u") -> tuple[Any, ...]:
    return (key, a, b, None, at, 0, op, list(unset))


def operations(path: str) -> list[str]:
    return [actions_of(path, version, "commitInfo")[0]["operation"] for version in range(latest_version(path) + 1)]


def merge_some(sink: MergeSink, create_source: Any) -> None:
    """Merge changes whose result depends on every column that the sink added."""
    sink.merge(create_source(SCHEMA, [change(1, "a5", None, 5, "b"), change(2, "x", "y", 5), change(3, "p", "q", 1)]))
    sink.merge(create_source(SCHEMA, [change(2, None, None, 6, op="d"), change(1, "old", "b4", 4)]))
    sink.merge(create_source(SCHEMA, [change(2, "late", "late", 5), change(1, "older", "older", 3)]))


EXPECTED = [Row(id=1, a="a5", b="b4"), Row(id=3, a="p", b="q")]


@pytest.mark.core
@pytest.mark.parametrize("layout", ["partition_by", "cluster_by"])
def test_a_new_table_has_all_of_it_from_the_start(spark, create_source, read_rows, table_path, layout):
    sink = sending_some(table_path, create_if_missing=True, **{layout: "part"})
    merge_some(sink, create_source)
    assert read_rows(table_path, "id", "a", "b") == EXPECTED
    assert operations(table_path)[0] == "CREATE TABLE"
    assert set(operations(table_path)[1:4]) == {"MERGE"}
    # Nothing was looked up in a table that has just been made.
    assert recorded_state(table_path).older_columns == ("b",)
    assert spark.read.format("delta").load(table_path).columns == ["id", "a", "b", "part", SEQUENCE, COLUMN_SEQUENCES]


@pytest.mark.core
def test_a_table_that_is_there_gets_columns_and_feature_in_one_commit(create_table, create_source, read_rows):
    path = create_table(COLUMNS)
    before = latest_version(path)
    merge_some(sending_some(path), create_source)
    assert read_rows(path, "id", "a", "b") == EXPECTED
    assert operations(path)[before + 1 :] == ["ADD COLUMNS", *["MERGE"] * 3]
    [protocol], [metadata] = (actions_of(path, before + 1, kind) for kind in ("protocol", "metaData"))
    assert FEATURE in protocol["writerFeatures"]
    assert not [name for name in metadata["configuration"] if name.startswith("delta.feature")]


@pytest.mark.parametrize("step", ["columns_added", "feature_added"])
def test_a_sink_that_dies_after_that_commit_leaves_a_table_that_the_next_one_takes(
    create_table, create_source, read_rows, at_step, step
):
    path = create_table(COLUMNS)
    before = latest_version(path)

    def die() -> None:
        raise KeyboardInterrupt

    at_step(step, die)
    with pytest.raises(KeyboardInterrupt):
        merge_some(sending_some(path), create_source)
    assert operations(path)[before + 1 :] == ["ADD COLUMNS"]
    merge_some(sending_some(path), create_source)
    assert operations(path)[before + 1 :] == ["ADD COLUMNS", *["MERGE"] * 3]
    assert read_rows(path, "id", "a", "b") == EXPECTED


def test_columns_that_another_sink_adds_meanwhile_are_not_added_twice(create_table, create_source, read_rows):
    path = create_table(COLUMNS)
    table = open_table(create_source("id INT", []).sparkSession, path)
    for types in ({"x": "INT"}, {"x": "INT", "y": "STRUCT<s0: BIGINT, s1: STRING>"}):
        add_columns_and_feature(table, types, FEATURE)
    names = table.begin().struct_type.names
    assert (names.count("x"), names.count("y")) == (1, 1)


def test_a_new_table_is_as_one_that_was_there(spark, create_table, create_source, table_path, tmp_path):
    merge_some(sending_some(table_path, create_if_missing=True), create_source)
    path = create_table(COLUMNS, path=str(tmp_path / "old"))
    merge_some(sending_some(path), create_source)
    new, old = (spark.read.format("delta").load(each).schema for each in (table_path, path))
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in new] == [
        (f.name, f.dataType.simpleString(), f.nullable) for f in old
    ]
    assert isinstance(new[SEQUENCE].dataType, T.StructType)
    features = [actions_of(each, version, "protocol") for each, version in ((table_path, 0), (path, 1))]
    assert all(FEATURE in feature[0]["writerFeatures"] for feature in features)


def test_a_new_table_without_a_key(create_source, read_rows, table_path):
    schema = "a STRING, op STRING, at INT, before STRUCT<a: STRING>"
    sink = merge_sink(
        table_path,
        before="before",
        sequence_by="at",
        delete_when="op = 'd'",
        except_columns=["op", "at", "before"],
        create_if_missing=True,
    )
    sink.merge(create_source(schema, [("x", "c", 1, None), ("x", "c", 2, None), ("y", "c", 3, None)]))
    sink.merge(create_source(schema, [(None, "d", 4, ("x",))]))
    assert sorted(row["a"] for row in read_rows(table_path, "a")) == ["x", "y"]
    assert operations(table_path) == ["CREATE TABLE", "MERGE", "MERGE"]
    assert ROW_ID in actions_of(table_path, 0, "metaData")[0]["schemaString"]


def test_a_table_that_keeps_no_order_gets_nothing(create_source, table_path):
    sink = merge_sink(table_path, keys="id", create_if_missing=True, columns=["a"])
    sink.merge(create_source(SCHEMA, [change(1, "a", "b", 1)]))
    assert operations(table_path) == ["CREATE TABLE", "MERGE"]
    metadata, protocol = (actions_of(table_path, 0, kind)[0] for kind in ("metaData", "protocol"))
    assert "_stream_merge" not in metadata["schemaString"]
    assert FEATURE not in protocol.get("writerFeatures", [])


def test_a_table_without_the_keys_column_is_refused_by_name(create_table, create_source, deletion_vectors):
    path = create_table("other INT, v INT, s INT", deletion_vectors=deletion_vectors)
    with pytest.raises(UnresolvedColumnError, match=r"has no column k, which keys names; it has other, v, s"):
        merge_sink(path, keys="k", sequence_by="s").merge(create_source("k INT, v INT, s INT", [(1, 1, 1)]))
