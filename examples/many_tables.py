"""Merge the events of a shop, many tables in one stream, into a Delta table each; new tables are created as their
events come.

.venv/bin/python examples/many_tables.py
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge import MergeResult, merge_router, merge_sink
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package

SCHEMAS = {
    "shop.customers": "id BIGINT, name STRING, op STRING, version BIGINT",
    "shop.orders": "id BIGINT, customer_id BIGINT, total DECIMAL(10, 2), op STRING, version BIGINT",
}
EVENTS = [
    ("shop.customers", {"id": 1, "name": "Ada", "op": "c", "version": 1}),
    ("shop.orders", {"id": 7, "customer_id": 1, "total": 12.5, "op": "c", "version": 2}),
    ("shop.orders", {"id": 8, "customer_id": 1, "total": 3, "op": "c", "version": 3}),
    ("shop.customers", {"id": 1, "name": "Ada L.", "op": "u", "version": 4}),
    ("shop.orders", {"id": 8, "customer_id": 1, "total": 3, "op": "d", "version": 5}),
]


def decode(source: str, records: DataFrame) -> DataFrame:
    """Return the typed changes in the records of one source."""
    return records.select(F.from_json("value", SCHEMAS[source]).alias("row")).select("row.*")


def run(spark: SparkSession, root: Path) -> list[MergeResult]:
    """Merge all events that are new since the last run, and return what was done to each table."""
    results: list[MergeResult] = []
    sink = merge_sink(
        f"{root}/spark-warehouse/{{table}}",
        keys="id",
        sequence_by="version",
        delete_when="op = 'd'",
        create_if_missing=True,
        on_result=results.append,
    )
    router = merge_router({re.compile(r"shop\.(?P<table>\w+)"): sink}, by="topic", prepare=decode)
    records = spark.readStream.schema("topic STRING, value STRING").json(f"{root}/spark-warehouse/shop_events")
    query = (
        records.writeStream.foreachBatch(router)
        .option("checkpointLocation", f"{root}/checkpoints/shop")
        .trigger(availableNow=True)  # leave it out for a stream that does not end
        .start()
    )
    query.awaitTermination()
    return results


def write_events(root: Path, events: list[tuple[str, dict[str, object]]]) -> None:
    """Put one more file of events where the stream looks for them."""
    folder = root / "spark-warehouse" / "shop_events"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"topic": topic, "value": json.dumps(value)}) + "\n" for topic, value in events)
    (folder / f"{uuid.uuid4()}.json").write_text(lines)


if __name__ == "__main__":
    if fault := find_java_fault():
        sys.exit(fault)
    session = (
        SparkSession.builder.appName("many tables")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    here = Path.cwd()
    write_events(here, EVENTS)
    for result in run(session, here):
        print(
            f"{result.target}, batch {result.batch_id}: {result.num_target_rows_inserted} inserted, "
            f"{result.num_target_rows_updated} updated, {result.num_target_rows_deleted} deleted"
        )
    for table in ("customers", "orders"):
        session.read.format("delta").load(f"{here}/spark-warehouse/{table}").orderBy("id").show()
