"""A target that is given as a path below the working directory, as in the examples: Spark's SQL takes absolute paths
only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stream_merge import merge_router, merge_sink
from tests.conftest import CreateTable

pytestmark = pytest.mark.core


@pytest.fixture
def relative(spark: SparkSession, tmp_path: Path) -> str:
    """Return the test's folder relative to where the JVM runs."""
    return os.path.relpath(tmp_path, spark._jvm.java.lang.System.getProperty("user.dir"))


def test_a_table_is_created_merged_into_and_explained(create_source, read_rows, relative, tmp_path):
    sink = merge_sink(
        f"{relative}/odd name 100%",
        keys="id",
        sequence_by="seq",
        delete_when="op = 'd'",
        except_columns=["seq", "op"],
        create_if_missing=True,
    )
    schema = "id INT, n INT, seq INT, op STRING"
    sink.merge(create_source(schema, [(1, 1, 1, "c"), (2, 2, 1, "c")]))
    late = create_source(schema, [(1, 3, 3, "u"), (2, None, 3, "d"), (3, 3, 3, "c")])
    assert f"MergeSink[{relative}/odd name 100%] at version" in sink.explain(late)
    result = sink.merge(late)
    assert (result.target, result.num_tombstones) == (f"{relative}/odd name 100%", 1)
    sink.merge(create_source(schema, [(2, 2, 2, "u")]))
    path = str(tmp_path / "odd name 100%")
    assert [tuple(row) for row in read_rows(path, "id", "n")] == [(1, 3), (3, 3)]


def test_a_table_that_is_there_is_found(create_source, create_table: CreateTable, read_rows, relative):
    path = create_table("id INT, n INT", [(1, 1)])
    for n, target in enumerate((f"{relative}/target", f"delta.`{relative}/target`"), start=2):
        sink = merge_sink(target, on="source.id = target.id").when_matched_update(set={"n": "source.n"})
        sink.merge(create_source("id INT, n INT", [(1, n)]))
        assert [tuple(row) for row in read_rows(path)] == [(1, n)]


def test_state_is_forgotten(spark, create_source, create_table: CreateTable, relative):
    create_table("id INT, n INT")
    merge_sink(f"{relative}/target", keys="id", sequence_by="n").merge(create_source("id INT, n INT", [(1, 1)]))
    other = merge_sink(f"{relative}/target", keys="n", sequence_by="id")
    other.reset_state(spark)
    assert other.merge(create_source("id INT, n INT", [(2, 1)])).num_target_rows_updated == 1


def test_rows_are_set_aside(spark, create_source, create_table: CreateTable, relative, tmp_path):
    create_table("id INT, n INT")
    sink = merge_sink(f"{relative}/target", keys="id", quarantine=f"{relative}/rejected", expect={"positive": "n > 0"})
    for number in (1, 2):
        sink.merge(create_source("id INT, n INT", [(number, number), (9, -number)]))
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected"))
    assert sorted(json.loads(row["row"])["n"] for row in rejected.collect()) == [-2, -1]


def test_a_router_sees_that_two_spellings_are_one_table(create_source, create_table: CreateTable, relative, tmp_path):
    create_table("id INT, n INT")
    sinks = {"a": merge_sink(f"{relative}/target", keys="id"), "b": merge_sink(str(tmp_path / "target"), keys="id")}
    router = merge_router(sinks, by="topic", prepare=lambda _, rows: rows.drop("topic"))
    with pytest.raises(Exception, match="have different sinks for one table"):
        router.merge(create_source("topic STRING, id INT, n INT", [("a", 1, 1), ("b", 1, 1)]))
