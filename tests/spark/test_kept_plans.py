"""Plans that are kept from batch to batch give what building them anew would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.kept_plans import KeptPlans, kept_plan
from tests.conftest import CreateTable
from tests.debezium.records import decode, envelope, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CreateSource = Callable[..., DataFrame]


class Counted:
    """A function that builds a frame, and how often it was called."""

    def __init__(self, build: Callable[[DataFrame], DataFrame]) -> None:
        self.num_calls = 0
        self._build = build

    def __call__(self, rows: DataFrame) -> DataFrame:
        self.num_calls += 1
        return self._build(rows)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name) or ""
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def doubled(rows: DataFrame) -> DataFrame:
    """Use the rows twice, and names that need quoting."""
    named = rows.withColumn("a b", F.col("`x.y`") * 2).withColumn("n", F.lit(1))
    return named.where("n = 1").union(named.where("`a b` > 2"))


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_each_batch_is_what_building_it_gives(create_source: CreateSource) -> None:
    plans, build = KeptPlans(max_columns=100), Counted(doubled)
    for number in range(4):
        rows = create_source("`x.y` int, s string", [(number, "a"), (number + 1, None), (None, "")])
        made = plans.apply("doubled", rows, build)
        expected = doubled(rows)
        assert values(made) == values(expected)
        assert made.schema == expected.schema
    # Once as it comes, once for the plan that is kept.
    assert build.num_calls == 2


def test_rows_of_another_schema_have_another_plan(create_source: CreateSource) -> None:
    plans, build = KeptPlans(max_columns=100), Counted(lambda rows: rows.withColumn("n", F.col("k") + 1))
    for kind, value in (("int", 2), ("bigint", 2**40)) * 3:
        rows = create_source(f"k {kind}", [(value,)])
        made = plans.apply("n", rows, build)
        assert made.dtypes == [("k", kind), ("n", kind)]
        assert values(made) == [(value, value + 1)]
    assert build.num_calls == 4


def test_a_column_that_may_be_null_later(spark: SparkSession) -> None:
    plans, build = KeptPlans(max_columns=100), Counted(lambda rows: rows.withColumn("is_null", F.col("k").isNull()))
    for _ in range(3):
        made = plans.apply("n", spark.range(1).select(F.col("id").alias("k")), build)
        assert values(made) == [(0, False)]
    made = plans.apply("n", spark.range(1).selectExpr("IF(id = 0, NULL, id) AS k"), build)
    assert values(made) == [(None, True)]


def test_settings_that_change_make_another_plan(spark: SparkSession, create_source: CreateSource) -> None:
    plans = KeptPlans(max_columns=100)
    shown = {}
    rows = create_source("s string", [("2024-07-01 12:00:00",)])
    for zone in ("UTC", "Asia/Tokyo") * 3:
        with setting(spark, "spark.sql.session.timeZone", zone):
            made = plans.apply("at", rows, lambda rows: rows.selectExpr("unix_micros(CAST(s AS TIMESTAMP)) AS at"))
            shown[zone] = values(made)
    assert shown == {"UTC": [(1719835200000000,)], "Asia/Tokyo": [(1719835200000000 - 9 * 3_600_000_000,)]}


def test_plans_are_kept_up_to_a_number_of_columns(create_source: CreateSource) -> None:
    plans, rows = KeptPlans(max_columns=3), create_source("k int", [(1,)])
    build = Counted(lambda rows: rows.withColumn("n", F.lit(1)))
    for name in ("a", "b", "a", "b"):
        assert values(plans.apply(name, rows, build)) == [(1, 1)]
    # Both have two columns, so that one displaces the other.
    assert build.num_calls == 4
    for _ in range(3):
        plans.apply("b", rows, build)
    assert build.num_calls == 5


def test_a_plan_that_reads_something_else_is_not_kept(spark: SparkSession, create_source: CreateSource) -> None:
    rows = create_source("k int", [(1,)])
    with pytest.raises(ValueError, match="nothing but its rows"):
        kept_plan(rows, lambda rows: rows.join(spark.range(3), F.col("k") == F.col("id")))
    rows.createOrReplaceTempView("other_rows")
    try:
        with pytest.raises(ValueError, match="nothing but its rows"):
            kept_plan(rows, lambda rows: rows.withColumn("n", F.expr("(SELECT max(k) FROM other_rows)")))
    finally:
        spark.catalog.dropTempView("other_rows")


def test_a_streams_plan_is_built_as_it_comes(
    spark: SparkSession, create_table: CreateTable, table_path: str, tmp_path: Path
) -> None:
    create_table("k int", [(1,), (2,)], path=table_path)
    plans, build = KeptPlans(max_columns=100), Counted(lambda rows: rows.withColumn("n", F.col("k") + 1))
    for number in range(3):
        rows = plans.apply("n", spark.readStream.format("delta").load(table_path), build)
        writer = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        writer.trigger(availableNow=True).start(str(tmp_path / f"copy{number}")).awaitTermination()
        assert values(spark.read.format("delta").load(str(tmp_path / f"copy{number}"))) == [(1, 2), (2, 3)]
    assert build.num_calls == 3


def test_records_of_the_same_columns_are_decoded_by_one_plan(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = KeptPlans(max_columns=100)
    # The package has a function of the module's name.
    monkeypatch.setattr(import_module("stream_merge.debezium.changes"), "_plans", plans)
    for number in range(3):
        sent = record({"id": number}, envelope("c", {"id": number, "name": f"n{number}", "at": 86_400 + number}))
        for kind, at in (("INT", 86_400 + number), ("STRING", str(86_400 + number))):
            (row,) = decode(spark, sent, columns=f"id INT, name STRING, at {kind}", keys=["id"])
            assert (row["id"], row["name"], row["at"]) == (number, f"n{number}", at)
            assert (row["_change"]["error"], row["_change"]["op"]) == (None, "c")
    assert len(plans._made) == 2
    assert all(plans._made.values())
