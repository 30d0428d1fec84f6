"""Calls what Delta has for the maintenance of a table: its rewriting of files, its OPTIMIZE operation, its VACUUM."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import actions, java_class, option, scala_object, seq
from stream_merge.bridge.operations import described_operation
from stream_merge.bridge.sessions import active, vacuum_session
from stream_merge.bridge.table import Table, sql_name
from stream_merge.bridge.transaction import Transaction, file_actions, without_stats
from stream_merge.bridge.ui import OperationMetrics

OPTIMIZE_METRICS = (
    "numAddedFiles",
    "numAddedBytes",
    "numRemovedFiles",
    "numRemovedBytes",
    "numDeletionVectorsRemoved",
)
"""Delta's names of the metrics of an OPTIMIZE that are known here."""

_tracking = threading.Lock()
"""A transaction's set of files is not made for several threads."""


def rewrite(transaction: Transaction, files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the rows of files that are not deleted to one new file for each partition, as Delta's OPTIMIZE does.

    Rows keep their ids and their commit versions. No default, generated value or constraint changes a row. Several
    threads may do this in one transaction, as Delta's OPTIMIZE does.

    Args:
        transaction: The transaction, which from now on conflicts with whoever removes one of the files.
        files: AddFiles of the version that is read.

    Returns:
        The new AddFiles. The files exist, and no reader can see them.
    """
    jvm, handle = transaction.jvm, transaction.handle
    python_utils = java_class(jvm, "org.apache.spark.api.python.PythonUtils")
    adds = python_utils.toSeq(actions(jvm, "AddFile", files))
    with _tracking:
        handle.trackFilesRead(python_utils.toSeq(actions(jvm, "AddFile", without_stats(files))))
    rows = transaction.table.log.createDataFrame(transaction.snapshot, adds, False, option(jvm, "Optimize"))
    tracking = scala_object(jvm, "org.apache.spark.sql.delta.RowTracking")
    rows = tracking.preserveRowTrackingColumns(rows, transaction.snapshot)
    written = handle.writeFiles(rows.coalesce(1), option(jvm, None), True, seq(jvm))
    return [action["add"] for action in file_actions(jvm, written) if "add" in action]


def optimize_operation(spark: SparkSession, metric_names: Sequence[str]) -> Any:
    """Return Delta's operation of an OPTIMIZE, which reports the named metrics besides its own."""
    jvm: Any = spark._jvm
    none = option(jvm, None)
    optimize = java_class(jvm, "org.apache.spark.sql.delta.DeltaOperations$Optimize")
    return described_operation(jvm, optimize(seq(jvm), seq(jvm), False, none, False), metric_names, None)


def operation_metrics(spark: SparkSession, values: Mapping[str, int]) -> Any:
    """Return the handle of operation metrics with these values, for a commit."""
    metrics = OperationMetrics(spark, list(values))
    metrics.set(values)
    return metrics.by_name


def vacuum(table: Table) -> None:
    """Remove files that no version within the table's retention has, by Delta's VACUUM with its own safety check.

    Raises:
        Py4JJavaError: Delta refuses, or a file cannot be removed.
    """
    session = vacuum_session(table.spark)
    with active(session):
        session.sql(f"VACUUM {sql_name(session, table.name)}")
