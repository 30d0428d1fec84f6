"""Keep the totals of a stream in a Delta table: output mode Complete, where each micro-batch is the whole result.

    .venv/bin/python examples/complete_mode.py

The sink sees the query's output mode by itself and replaces the table's contents in one commit.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stream_merge import MergeResult, merge_sink
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package

SALES = [
    {"region": "north", "amount": 10},
    {"region": "south", "amount": 25},
    {"region": "north", "amount": 5},
]


def run(spark: SparkSession, root: Path) -> list[MergeResult]:
    """Bring the totals up to date with all sales that are new since the last run."""
    results: list[MergeResult] = []
    sink = merge_sink(
        f"{root}/spark-warehouse/totals", keys=["region"], create_if_missing=True, on_result=results.append
    )
    sales = spark.readStream.schema("region STRING, amount BIGINT").json(f"{root}/spark-warehouse/sales")
    totals = sales.groupBy("region").agg(F.sum("amount").alias("total"))
    query = (
        totals.writeStream.outputMode("complete")
        .foreachBatch(sink)
        .option("checkpointLocation", f"{root}/checkpoints/totals")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return results


def write_sales(root: Path, sales: list[dict[str, object]]) -> None:
    """Put one more file of sales where the stream looks for them."""
    folder = root / "spark-warehouse" / "sales"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(sale) + "\n" for sale in sales)
    (folder / f"{uuid.uuid4()}.json").write_text(lines)


if __name__ == "__main__":
    if fault := find_java_fault():
        sys.exit(fault)
    session = (
        SparkSession.builder.appName("complete_mode")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    here = Path.cwd()
    write_sales(here, SALES)
    for result in run(session, here):
        print(f"batch {result.batch_id} made version {result.version}: {result.num_output_rows} regions")
    session.read.format("delta").load(f"{here}/spark-warehouse/totals").orderBy("region").show()
