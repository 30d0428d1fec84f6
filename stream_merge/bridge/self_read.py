"""Finds out whether a batch was computed from the table that it is merged into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame

from stream_merge.bridge.jvm import items
from stream_merge.bridge.sessions import RunningQuery
from stream_merge.bridge.table import Table

_RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_DELTA_FILES = "org.apache.spark.sql.delta.files.TahoeFileIndex"
_STREAM_FILES = "org.apache.spark.sql.delta.files.TahoeBatchFileIndex"
_PREPARED_FILES = "org.apache.spark.sql.delta.stats.PreparedDeltaFileIndex"


@dataclass(frozen=True, slots=True)
class SelfRead:
    """How a batch reads its own target.

    Attributes:
        is_read: Whether it reads the target.
        is_static: Whether it reads the target as a table, so that a newer version would give other rows. (As a stream's
            source, the batch's offsets determine the rows.)
        version: The version that the running query's plan reads; None if it is not fixed yet.
    """

    is_read: bool = False
    is_static: bool = False
    version: int | None = None


def find_self_read(table: Table, frame: DataFrame, query: RunningQuery | None) -> SelfRead:
    """Look for the target among the leaves of the batch's plan.

    In `foreachBatch` the frame is an opaque RDD, and the plan is the running query's.
    """
    jvm_frame = frame._jdf.queryExecution()
    executions = [jvm_frame] if query is None else [jvm_frame, query.execution.lastExecution()]
    found = [index for execution in executions for index in _delta_files(table, execution.analyzed())]
    if not found:
        return SelfRead()
    gateway = table.spark.sparkContext._gateway
    static = [index for index in found if not is_instance_of(gateway, index, _STREAM_FILES)]
    if not static or query is None:
        return SelfRead(is_read=True, is_static=bool(static))
    planned = _delta_files(table, query.execution.lastExecution().optimizedPlan())
    versions = [int(i.preparedScan().version()) for i in planned if is_instance_of(gateway, i, _PREPARED_FILES)]
    return SelfRead(is_read=True, is_static=True, version=min(versions, default=None))


def _delta_files(table: Table, plan: Any) -> Iterator[Any]:
    gateway = table.spark.sparkContext._gateway
    for leaf in items(plan.collectLeaves()):
        if not is_instance_of(gateway, leaf, _RELATION):
            continue
        relation = leaf.relation()
        if not is_instance_of(gateway, relation, _FILE_RELATION):
            continue
        location = relation.location()
        if is_instance_of(gateway, location, _DELTA_FILES) and table.is_same_as(location.deltaLog()):
            yield location
