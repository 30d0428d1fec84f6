"""Bounds what Avro allocates for a value before it has read it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import java_class
from stream_merge.packages import AVRO_LIMITS


def limit_avro(spark: SparkSession) -> None:
    """Set the limits for the driver's process, unless the user has, or Avro was used before."""
    system = java_class(spark._jvm, "java.lang.System")
    for name, value in AVRO_LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, value)
