"""Keep a Delta table in step with a folder of changes; run it twice to see the stream go on where it stopped.

.venv/bin/python examples/upsert.py
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from stream_merge import MergeResult, merge_sink
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package

CHANGES = [
    {"id": 1, "name": "Ada", "op": "c", "updated_at": "2026-01-01T08:00:00Z"},
    {"id": 2, "name": "Grace", "op": "c", "updated_at": "2026-01-01T08:00:00Z"},
    {"id": 1, "name": "Ada L.", "op": "u", "updated_at": "2026-01-01T09:00:00Z"},
    {"id": 2, "name": "Grace", "op": "d", "updated_at": "2026-01-01T09:30:00Z"},
    {"id": 3, "name": "Barbara", "op": "c", "updated_at": "2026-01-01T10:00:00Z"},
]


def run(spark: SparkSession, root: Path) -> list[MergeResult]:
    """Merge all changes that are new since the last run, and return what each micro-batch did."""
    results: list[MergeResult] = []
    sink = merge_sink(
        f"{root}/spark-warehouse/customers",
        keys=["id"],
        sequence_by="updated_at",
        delete_when="op = 'd'",
        create_if_missing=True,
        on_result=results.append,
    )
    changes = spark.readStream.schema("id BIGINT, name STRING, op STRING, updated_at TIMESTAMP").json(
        f"{root}/spark-warehouse/customer_changes"
    )
    query = (
        changes.writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{root}/checkpoints/customers")
        .trigger(availableNow=True)  # leave it out for a stream that does not end
        .start()
    )
    query.awaitTermination()
    return results


def write_changes(root: Path, changes: list[dict[str, object]]) -> None:
    """Put one more file of changes where the stream looks for them."""
    folder = root / "spark-warehouse" / "customer_changes"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(change) + "\n" for change in changes)
    (folder / f"{uuid.uuid4()}.json").write_text(lines)


if __name__ == "__main__":
    if fault := find_java_fault():
        sys.exit(fault)
    session = (
        SparkSession.builder.appName("upsert")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    here = Path.cwd()
    write_changes(here, CHANGES)
    for result in run(session, here):
        print(
            f"batch {result.batch_id} made version {result.version} ({result.strategy}): "
            f"{result.num_target_rows_inserted} inserted, {result.num_target_rows_updated} updated, "
            f"{result.num_target_rows_deleted} deleted"
        )
    session.read.format("delta").load(f"{here}/spark-warehouse/customers").orderBy("id").show()
