"""Tells whether a batch is small before it is evaluated, by what its source says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark.sql import DataFrame

from stream_merge.bridge.jvm import JVM_ERRORS, items, java_class
from stream_merge.bridge.sessions import RunningQuery

_SMALL_BYTES = 8 * 1024 * 1024
_SMALL_OFFSETS = 20_000
_UNDIVIDED_BYTES = 4 * 1024 * 1024
"""Spark divides no smaller file, unless it is told to: to open one counts as much as to read so many bytes."""

_TELLING = ("LogicalRDD", "LogicalRelation", "LocalRelation", "InMemoryRelation")
"""The leaves that tell their size, or that they do not know it. Others may plan a scan to find out, or fail."""

Offsets: TypeAlias = "Mapping[tuple[int, str, str], int]"
"""Offsets by source, topic and partition."""


def is_known_to_be_small(frame: DataFrame, query: RunningQuery | None) -> bool:
    """Return whether a batch certainly has few rows: its source tells the size of its files, or counts its records.

    Args:
        frame: The batch.
        query: The running query, if it is a streaming query's batch.
    """
    try:
        leaves = list(items(frame._jdf.queryExecution().analyzed().collectLeaves()))
        is_telling = all(str(leaf.getClass().getSimpleName()) in _TELLING for leaf in leaves)
        # A source that does not know says 8 EiB.
        if is_telling and sum(int(leaf.stats().sizeInBytes()) for leaf in leaves) <= _SMALL_BYTES:
            return True
        # The batch is not among the committed ones before it has ended.
        begins, ends = (
            _offsets(query.execution, name) if query is not None else None
            for name in ("committedOffsets", "availableOffsets")
        )
    except JVM_ERRORS:  # no estimate
        return False
    number = None if ends is None else num_between(begins or {}, ends)
    return number is not None and number <= _SMALL_OFFSETS


def is_small_and_one_task(frame: DataFrame, query: RunningQuery | None) -> bool:
    """Return whether a small batch is computed by one task, so that as one partition it needs no shuffle later.

    Spark does not know it of a micro-batch, nor of a file before its scan is planned.

    Args:
        frame: The batch.
        query: The running query, if it is a streaming query's batch.
    """
    return is_known_to_be_small(frame, query) and is_computed_in_one_task(frame)


def is_computed_in_one_task(frame: DataFrame) -> bool:
    """Return whether one task computes a batch, whatever its size."""
    try:
        plan = frame._jdf.queryExecution().analyzed()
        leaves = list(items(plan.collectLeaves()))
        patterns = java_class(frame.sparkSession._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
        distributes = (patterns.REPARTITION_OPERATION(), patterns.REBALANCE_PARTITIONS())
        if len(leaves) != 1 or any(plan.containsPattern(pattern) for pattern in distributes):
            return False
        (leaf,) = leaves
        if str(leaf.getClass().getSimpleName()) == "LogicalRDD":
            return int(leaf.rdd().getNumPartitions()) == 1
        return _is_undivided_file(leaf)
    except JVM_ERRORS:  # not told
        return False


def _is_undivided_file(leaf: Any) -> bool:
    if str(leaf.getClass().getSimpleName()) != "LogicalRelation":
        return False
    relation = leaf.relation()
    if str(relation.getClass().getSimpleName()) != "HadoopFsRelation":
        return False
    files = relation.location()
    is_listed = str(files.getClass().getSimpleName()) == "InMemoryFileIndex"
    return is_listed and len(files.inputFiles()) == 1 and int(files.sizeInBytes()) <= _UNDIVIDED_BYTES


def num_between(begins: Offsets, ends: Offsets) -> int | None:
    """Return how many records there are between offsets; None if a partition has begun anew, which hides some."""
    if not begins.keys() <= ends.keys():
        return None
    numbers = [end - begins.get(partition, 0) for partition, end in ends.items()]
    return None if any(number < 0 for number in numbers) else sum(numbers)


def _offsets(execution: Any, name: str) -> Offsets | None:
    """Return the offsets of a query; None if a source has others than Kafka's, which count its records."""
    found: dict[tuple[int, str, str], int] = {}
    for entry in items(getattr(execution, name)().toSeq()):
        topics = json.loads(str(entry._2().json()))
        if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
            return None
        for topic, partitions in topics.items():
            source = int(entry._1().hashCode())
            found |= {(source, topic, partition): int(value) for partition, value in partitions.items()}
    return found
