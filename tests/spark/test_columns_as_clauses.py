"""Clauses that are given as a `Column`, against Delta's own MERGE, which takes the same."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.errors import ClauseError
from tests.conftest import CreateTable

pytestmark = [pytest.mark.any_strategy, pytest.mark.always]

SCHEMA = "k INT, n INT, v STRING, a ARRAY<INT>, at TIMESTAMP"
UTC = dt.timezone.utc
FIRST, SECOND = (dt.datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1))
"""Both are half past two in Berlin."""
IN_BETWEEN = dt.datetime(2024, 10, 27, 1, tzinfo=UTC)

CLAUSES: dict[str, Callable[[], tuple[Mapping[str, Column], Column | None]]] = {
    "a moment of the hour that comes twice": lambda: ({"at": F.lit(SECOND)}, None),
    "its first half": lambda: ({"at": F.lit(FIRST)}, None),
    "a condition on it": lambda: ({"n": F.col("source.n")}, F.col("source.at") >= F.lit(IN_BETWEEN)),
    "a moment that comes once": lambda: ({"at": F.lit(dt.datetime(2024, 7, 1, tzinfo=UTC))}, None),
    "the name of a setting in a text": lambda: ({"v": F.lit("it's \\ ${spark.master} $ {a} ${")}, None),
    "transform": lambda: ({"a": F.transform(F.col("source.a"), lambda x: x + F.col("target.n"))}, None),
    "transform with an index": lambda: ({"a": F.transform(F.col("source.a"), lambda x, i: x * i)}, None),
    "filter": lambda: ({"a": F.filter(F.col("target.a"), lambda x: x > 1)}, None),
    "exists": lambda: ({"n": F.col("source.n")}, F.exists(F.col("target.a"), lambda x: x == 1)),
    "aggregate": lambda: ({"n": F.aggregate(F.col("source.a"), F.lit(0), lambda total, x: total + x)}, None),
    "zip_with": lambda: ({"a": F.zip_with(F.col("source.a"), F.col("target.a"), lambda x, y: F.coalesce(x, y))}, None),
    "one in the other": lambda: (
        {"a": F.transform(F.col("source.a"), lambda x: F.aggregate(F.col("target.a"), x, lambda s, y: s + x * y))},
        None,
    ),
    "a text in a lambda function": lambda: (
        {"v": F.array_join(F.transform(F.col("source.a"), lambda x: F.concat(x.cast("string"), F.lit("${a}"))), ",")},
        None,
    ),
}


@pytest.fixture
def source(spark: SparkSession):
    rows = [(1, 10, "a", [1, 2], FIRST), (2, 20, "b", [3], SECOND)]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


@pytest.fixture
def targets(create_table: CreateTable, tmp_path, deletion_vectors: bool) -> list[str]:
    rows = [(1, 1, "x", [1, 5], IN_BETWEEN), (2, 2, "y", None, IN_BETWEEN)]
    names = ("ours", "deltas")
    return [create_table(SCHEMA, rows, path=str(tmp_path / name), deletion_vectors=deletion_vectors) for name in names]


@pytest.mark.every_case
@pytest.mark.parametrize("name", CLAUSES)
def test_they_mean_what_they_mean_to_delta(
    spark: SparkSession, settings, source, targets: list[str], name: str
) -> None:
    settings({"spark.sql.session.timeZone": "Europe/Berlin"})
    values, condition = CLAUSES[name]()
    ours, deltas = targets
    merge_sink(ours, on="target.k = source.k").when_matched_update(set=values, condition=condition).merge(source)
    table = DeltaTable.forPath(spark, deltas).alias("target")
    table.merge(source.alias("source"), "target.k = source.k").whenMatchedUpdate(condition, dict(values)).execute()

    def rows_of(path: str) -> list[tuple[Any, ...]]:
        # Python would lose which half of the hour it is.
        read = spark.read.format("delta").load(path).withColumn("at", F.unix_micros("at"))
        return sorted(map(tuple, read.collect()), key=repr)

    assert rows_of(ours) == rows_of(deltas)


def test_a_python_function_needs_a_name(spark: SparkSession, source, targets: list[str]) -> None:
    def upper(text):
        return f"<{text}>"

    sink, message = merge_sink(targets[0], on="target.k = source.k"), "Python function .* register it with spark.udf"
    for function in (F.udf(lambda text: text, "string"), F.udf(upper, "string")):
        with pytest.raises(ClauseError, match=message):
            sink.when_matched_update(set={"v": function(F.col("source.v"))}).merge(source)
    try:
        registered = spark.udf.register("in_brackets", upper, "string")
        sink.when_matched_update(set={"v": registered(F.col("source.v"))}).merge(source)
        rows = spark.read.format("delta").load(targets[0]).select("k", "v").orderBy("k").collect()
        assert [tuple(row) for row in rows] == [(1, "<a>"), (2, "<b>")]
    finally:
        spark.sql("DROP TEMPORARY FUNCTION IF EXISTS in_brackets")


def test_fields_of_a_struct_are_not_set_one_by_one(spark: SparkSession, source, targets: list[str]) -> None:
    changed = F.struct(F.col("source.n").alias("n")).withField("m", F.lit(1))["n"]
    with pytest.raises(ClauseError, match=r"withField and dropFields .* F\.struct"):
        merge_sink(targets[0], on="target.k = source.k").when_matched_update(set={"n": changed}).merge(source)
