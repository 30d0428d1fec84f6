"""Bounds what Avro allocates for a value before it has read it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import java_class

AVRO_LIMITS: Mapping[str, str] = {
    "org.apache.avro.limits.string.maxLength": str(128 * 1024 * 1024),
    "org.apache.avro.limits.bytes.maxLength": str(128 * 1024 * 1024),
    "org.apache.avro.limits.collectionItems.maxLength": str(16 * 1024 * 1024),
}
"""Properties of Java: Avro allocates as much as a length in the data says, up to 2 GB, before it finds that the data is
shorter. A damaged record could end the process for lack of memory."""


def limit_avro(spark: SparkSession) -> None:
    """Set the limits for the driver's process, unless the user has, or Avro was used before."""
    system = java_class(spark._jvm, "java.lang.System")
    for name, value in AVRO_LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, value)
