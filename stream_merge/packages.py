"""Returns the packages that a Spark session needs: Delta Lake's Maven coordinate, and the LogStore jar for S3."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path


def delta_package(spark_version: str | None = None, delta_version: str | None = None) -> str:
    """Return the coordinate for `spark.jars.packages`, for example `io.delta:delta-spark_4.2_2.13:4.4.0`.

    Since Delta 4.1 there is one artifact for each minor version of Spark; before, there was one for all.

    Args:
        spark_version: Version of Spark; that of the installed pyspark by default.
        delta_version: Version of Delta Lake; that of the installed delta-spark by default.

    Raises:
        PackageNotFoundError: A version was left out, and the package is not installed.
    """
    spark = spark_version or version("pyspark")
    delta = delta_version or version("delta-spark")
    if _major_minor(delta) < (4, 1):
        return f"io.delta:delta-spark_2.13:{delta}"
    return "io.delta:delta-spark_{}.{}_2.13:{}".format(*_major_minor(spark), delta)


def log_store_jar() -> str:
    """Return the path of a jar for `spark.jars` that lets several drivers write to one table on S3.

    It provides the class `streammerge.ConditionalCreateLogStore` for `spark.delta.logStore.s3a.impl`. It needs Hadoop's
    S3 client 3.5 or newer, as in Spark 4.2, and a store that supports the header `If-None-Match`.
    """
    return str(Path(__file__).parent / "storage" / "log-store.jar")


def _major_minor(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)
