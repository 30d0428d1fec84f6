"""Merges many small batches with and without maintenance: how the table looks afterwards, and what it cost.

`python -m benchmarks.maintenance` takes some minutes on 2 cores; `--batches 50` a quarter of that. The keys of a batch
are drawn at random from all keys, so that updates leave deleted rows in every file.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.meters import read_in_turn
from stream_merge import MergeResult, merge_sink
from stream_merge.cli.show.status import Files, measure_files
from stream_merge.packages import delta_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.buffer.pageSize": "2m",
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
WARM_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left and took; times in seconds."""

    files: Files
    times: Sequence[float]
    maintenance: float
    num_compactions: int
    read: float
    read_fresh: float


def main() -> None:
    """Run both, and print a table."""
    options = _options()
    spark = _session()
    print("| maintenance | total | median | p99 | its share | files | deleted rows | read : fresh copy |")
    print("|---|---|---|---|---|---|---|---|")
    load = os.getloadavg()[0]
    for name in options.runs:
        found = run(spark, options, has_maintenance=name == "on")
        times = sorted(found.times)
        share = f"{found.maintenance / sum(times):.1%} ({found.num_compactions}x)" if found.maintenance else "-"
        print(
            f"| {name} | {sum(times):.0f} s | {statistics.median(times):.2f} s | {times[int(0.99 * len(times))]:.2f} s "
            f"| {share} | {found.files.num_files} | {found.files.deleted_share:.0%} "
            f"| {found.read / found.read_fresh:.2f} ({found.read:.2f} s) |",
            flush=True,
        )
    print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    spark.stop()


def run(spark: SparkSession, options: argparse.Namespace, *, has_maintenance: bool) -> Outcome:
    """Merge the batches, check that every row is there, and measure.

    Raises:
        AssertionError: The table has other rows than it should.
    """
    root = tempfile.mkdtemp()
    path, fresh = f"{root}/table", f"{root}/fresh"
    try:
        rows(spark.range(options.keys).coalesce(1), 0).write.format("delta").option(
            "delta.enableDeletionVectors", "true"
        ).save(path)
        results: list[MergeResult] = []
        sink = merge_sink(path, keys="id", sequence_by="version", maintenance=has_maintenance, on_result=results.append)
        rng, num_keys, newest, times = random.Random(7), options.keys, {}, []
        for number in range(1, options.batches + 1):
            updated = rng.sample(range(num_keys), int(options.rows * options.updates))
            inserted = range(num_keys, num_keys + options.rows - len(updated))
            num_keys = inserted.stop
            newest |= dict.fromkeys([*updated, *inserted], number)
            batch = rows(spark.createDataFrame(pa.table({"id": [*updated, *inserted]})).coalesce(1), number)
            started = time.perf_counter()
            sink.merge(batch)
            times.append(time.perf_counter() - started)
        table = spark.read.format("delta").load(path)
        assert (table.count(), table.where("version > 0").count()) == (num_keys, len(newest))
        assert {row[0]: row[1] for row in table.where("version > 0").select("id", "version").collect()} == newest
        files = measure_files(_adds(spark, path))
        table.write.format("delta").save(fresh)
        reader = spark.read.format("delta")
        read, read_fresh = read_in_turn(lambda: reader.load(path), lambda: reader.load(fresh))
        measured = results[WARM_UP:]
        return Outcome(
            files=files,
            times=times[WARM_UP:],
            maintenance=sum(result.phase_ms.get("maintenance", 0) for result in measured) / 1000,
            num_compactions=sum(result.maintenance == "compacted" for result in measured),
            read=read,
            read_fresh=read_fresh,
        )
    finally:
        shutil.rmtree(root)


def rows(ids: DataFrame, version: int) -> DataFrame:
    """Return the rows of some ids."""
    text = F.concat_ws("/", "id", F.lit(version))
    return ids.select(
        "id",
        F.lit(version).cast("bigint").alias("version"),
        F.concat(F.lit("customer "), F.col("id")).alias("name"),
        (F.abs(F.hash(text)) / 7).alias("amount"),
        F.timestamp_seconds(F.lit(1_700_000_000) + F.col("id")).alias("changed_at"),
        F.md5(text).alias("note"),
    )


def _adds(spark: SparkSession, path: str) -> list[dict[str, object]]:
    from stream_merge.bridge.table import open_table

    return open_table(spark, path).begin().all_files()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rows", type=int, default=5_000, help="rows of a batch")
    parser.add_argument("--keys", type=int, default=200_000, help="rows of the table before the first batch")
    parser.add_argument("--updates", type=float, default=0.5, help="share of updates in a batch; the rest are inserts")
    parser.add_argument("--runs", nargs="+", choices=("off", "on"), default=["off", "on"])
    return parser.parse_args()


def _session() -> SparkSession:
    builder = SparkSession.builder.appName("maintenance")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.jars.packages", delta_package()).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main()
