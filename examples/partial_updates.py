"""Fill one table from two sources: each writes its own columns, late changes included, and NULL means "unknown".

.venv/bin/python examples/partial_updates.py
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stream_merge import merge_sink
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package

CONTACTS = [(1, "ada@example.org", None, 1), (1, None, "+44 1", 2), (2, "grace@example.org", None, 1)]
"""id, email, phone, version: what a change does not know is NULL."""
SCORES = [(1, 0.7, 9), (1, 0.9, 4), (3, 0.5, 4)]
"""id, score, version: the second is late. Both sources count versions in the same way, since a table has one order."""


def merge_contacts(target: str, changes: DataFrame) -> None:
    """Write email and phone, each with the newest value that a change knew."""
    sink = merge_sink(
        target,
        keys=["id"],
        sequence_by="version",
        columns=["email", "phone"],
        ignore_null_updates=True,
        tombstone_retention=timedelta(days=30),  # deletes are remembered for so long; 7 days by default
    )
    sink.merge(changes)


def merge_scores(target: str, changes: DataFrame) -> None:
    """Write the newest score, and leave all else alone."""
    sink = merge_sink(
        target, keys=["id"], sequence_by="version", columns=["score"], tombstone_retention=timedelta(days=30)
    )
    sink.merge(changes)


def run(spark: SparkSession, root: Path) -> DataFrame:
    """Create the table, merge both sources, and return it."""
    target = f"{root}/spark-warehouse/profiles"
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{target}` (id BIGINT, email STRING, phone STRING, score DOUBLE) USING delta"
    )
    merge_contacts(target, spark.createDataFrame(CONTACTS, "id BIGINT, email STRING, phone STRING, version BIGINT"))
    merge_scores(target, spark.createDataFrame(SCORES, "id BIGINT, score DOUBLE, version BIGINT"))
    return spark.read.format("delta").load(target).select("id", "email", "phone", "score").orderBy("id")


if __name__ == "__main__":
    if fault := find_java_fault():
        sys.exit(fault)
    session = (
        SparkSession.builder.appName("partial updates")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    run(session, Path.cwd()).show()
