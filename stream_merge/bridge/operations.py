"""Describes commits for the table's history, as Delta's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import (
    java_class,
    option,
    scala_object,
    set_field,
)


def described_operation(jvm: Any, operation: Any, metric_names: Sequence[str], user_metadata: str | None) -> Any:
    """Return a DeltaOperation that reports the named metrics besides its own, and carries the user's metadata."""
    reported = operation.operationMetrics()
    for name in metric_names:
        reported = getattr(reported, "$plus")(name)
    set_field(operation, "operationMetrics", reported)
    if user_metadata is not None:
        set_field(operation, "userMetadata", option(jvm, user_metadata))
    return operation


def overwrite_operation(
    spark: SparkSession, query_id: str, batch_id: int, metric_names: Sequence[str], user_metadata: str | None
) -> Any:
    """Return Delta's operation for a batch in output mode Complete."""
    jvm: Any = spark._jvm
    complete = java_class(jvm, "org.apache.spark.sql.streaming.OutputMode").Complete()
    streaming_update = java_class(jvm, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
    operation = streaming_update(complete, query_id, batch_id, option(jvm, None))
    return described_operation(jvm, operation, metric_names, user_metadata)


def manual_operation(spark: SparkSession) -> Any:
    """Return Delta's operation for a commit without a statement."""
    return scala_object(spark._jvm, "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate")
