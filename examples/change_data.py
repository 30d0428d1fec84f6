"""Keep a Delta table equal to a database table by the records that Debezium writes: deletes stay deleted, values that
were not sent are kept, and a record that cannot be decoded is set aside. Here the records come from files; `records`
below says how from Kafka.

.venv/bin/python examples/change_data.py
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stream_merge import MergeResult, debezium, merge_sink
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package

TOPIC = "shop.public.customers"
NOT_SENT = "__debezium_unavailable_value"
"""What Debezium writes in the place of a large value that an update did not change (PostgreSQL's TOAST)."""


def event(op: str, lsn: int, after: dict[str, object] | None = None) -> str:
    """Return a message as Debezium writes it, without its schema."""
    return json.dumps({"op": op, "before": None, "after": after, "source": {"lsn": lsn, "sequence": f'[null,"{lsn}"]'}})


FIRST = [
    ({"id": 1}, event("c", 10, {"id": 1, "name": "Ada", "notes": "a long text"})),
    ({"id": 2}, event("c", 20, {"id": 2, "name": "Grace", "notes": None})),
    ({"id": 1}, event("u", 30, {"id": 1, "name": "Ada L.", "notes": NOT_SENT})),
    ({"id": 2}, event("d", 50)),
    ({"id": 2}, None),  # the tombstone that follows a delete, for Kafka's sake
]
LATE = [
    ({"id": 2}, event("u", 40, {"id": 2, "name": "Grace H.", "notes": None})),  # older than the delete
    ({"id": 3}, '{"op": "c", "after": '),  # cut off
    ({"id": 4}, event("c", 60, {"id": 4, "name": "Barbara", "notes": None})),
]


def records(spark: SparkSession, root: Path) -> DataFrame:
    """Return the stream of records with the columns of Spark's Kafka source, which is

    spark.readStream.format("kafka").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", TOPIC)
    .option("includeHeaders", "true").load()
    """
    schema = "topic STRING, partition INT, offset BIGINT, key STRING, value STRING"
    return spark.readStream.schema(schema).json(f"{root}/spark-warehouse/customer_records")


def run(spark: SparkSession, root: Path) -> list[MergeResult]:
    """Merge all records that are new since the last run, and return what each micro-batch did."""
    results: list[MergeResult] = []
    sink = merge_sink(
        f"{root}/spark-warehouse/customers_of_the_database",
        keys=["id"],
        create_if_missing=True,
        quarantine=f"{root}/spark-warehouse/customers_rejected",
        on_result=results.append,
        **debezium.MERGE_OPTIONS,
    )

    def merge_customers(batch: DataFrame, batch_id: int) -> None:
        sink(debezium.changes(batch, columns="id BIGINT, name STRING, notes STRING", keys=["id"]), batch_id)

    query = (
        records(spark, root)
        .writeStream.foreachBatch(merge_customers)
        .option("checkpointLocation", f"{root}/checkpoints/customers_of_the_database")
        .trigger(availableNow=True)  # leave it out for a stream that does not end
        .start()
    )
    query.awaitTermination()
    return results


def write_records(root: Path, log: list[tuple[dict[str, object], str | None]], first_offset: int = 0) -> None:
    """Put one more file of records where the stream looks for them."""
    folder = root / "spark-warehouse" / "customer_records"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"topic": TOPIC, "partition": 0, "offset": offset, "key": json.dumps(key), "value": value})
        for offset, (key, value) in enumerate(log, start=first_offset)
    ]
    (folder / f"{uuid.uuid4()}.json").write_text("\n".join(lines))


if __name__ == "__main__":
    if fault := find_java_fault():
        sys.exit(fault)
    session = (
        SparkSession.builder.appName("change data")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    here = Path.cwd()
    for part, offset in ((FIRST, 0), (LATE, len(FIRST))):
        write_records(here, part, offset)
        for result in run(session, here):
            print(
                f"batch {result.batch_id}: {result.num_target_rows_inserted} inserted, "
                f"{result.num_outdated_rows} older than a delete, {result.num_quarantined_rows} set aside"
            )
    warehouse = f"{here}/spark-warehouse"
    session.read.format("delta").load(f"{warehouse}/customers_of_the_database").select("id", "name", "notes").show()
    session.read.format("delta").load(f"{warehouse}/customers_rejected").select("offset", "reason", "value").show()
