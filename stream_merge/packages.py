"""What a Spark session needs: Delta Lake's Maven coordinate, the LogStore jar for S3, and Java's limits for Avro."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

AVRO_LIMITS: Mapping[str, str] = {
    "org.apache.avro.limits.string.maxLength": str(128 * 1024 * 1024),
    "org.apache.avro.limits.bytes.maxLength": str(128 * 1024 * 1024),
    "org.apache.avro.limits.collectionItems.maxLength": str(16 * 1024 * 1024),
}
"""Properties of Java: Avro allocates as much as a length in the data says, up to 2 GB, before it finds that the data is
shorter. A damaged record could end the process for lack of memory."""


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
