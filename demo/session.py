"""The demo's Spark session: local, small, and silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from stream_merge.packages import delta_package

SETTINGS = {
    "spark.jars.packages": delta_package(),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # A few thousand rows need no more tasks than there are cores.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Nor is there time to win back what it costs to compile them, by Spark into Java or by the JVM with all its might.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The first compiler alone; by default it has too little room for the code of so many plans.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}


def start_session(*, workdir: Path, log: Path) -> SparkSession:
    """Start Spark with Delta Lake; what the JVM has to say goes to the file `log`."""
    builder = SparkSession.builder.master("local[2]").appName("stream_merge demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(workdir / "warehouse"))
    builder = builder.config("spark.local.dir", str(workdir / "spark"))
    with _stderr_to(log):
        return builder.getOrCreate()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let processes started in the block inherit a file as their standard error."""
    own_stderr = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own_stderr, 2)
        os.close(own_stderr)
