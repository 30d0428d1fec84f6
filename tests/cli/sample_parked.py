"""Writes a parking table, for those who read one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

COLUMNS = (
    "parked_for STRING, batch_id BIGINT, app_id STRING, target STRING, source STRING, planned_ms BIGINT, "
    "error STRING, columns ARRAY<STRING>, record STRUCT<value: STRING>"
)


def write_parked(spark: SparkSession, path: str, records: Sequence[tuple[int, str, str, str]]) -> None:
    """Write the parking table of records: micro-batch, target, source and error of each."""
    rows = [
        ("k", batch_id, "app", target, source, 1, error, ["value"], ("x",))
        for batch_id, target, source, error in records
    ]
    frame = spark.createDataFrame(rows, COLUMNS).selectExpr("*", "TIMESTAMP '2026-01-01 09:58:20 UTC' AS parked_at")
    frame.write.format("delta").partitionBy("parked_for", "batch_id").save(path)
