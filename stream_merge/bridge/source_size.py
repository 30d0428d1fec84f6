"""Tells whether a batch is small before it is evaluated, by what its source says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.bridge.jvm import items
from stream_merge.bridge.sessions import RunningQuery

_SMALL_BYTES = 8 * 1024 * 1024
_SMALL_OFFSETS = 20_000


def is_known_to_be_small(frame: DataFrame, query: RunningQuery | None) -> bool:
    """Return whether a batch certainly has few rows: its source tells the size of its files, or counts its records.

    Args:
        frame: The batch.
        query: The running query, if it is a streaming query's batch.
    """
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    # A source that does not know says 8 EiB.
    if sum(int(leaf.stats().sizeInBytes()) for leaf in items(leaves)) <= _SMALL_BYTES:
        return True
    return query is not None and (num_offsets := _num_offsets(query)) is not None and num_offsets <= _SMALL_OFFSETS


def _num_offsets(query: RunningQuery) -> int | None:
    """Return how many offsets the running batch spans; None if its sources do not count records, as Kafka does."""
    # The batch is not among the committed ones before it has ended.
    begins, ends = (_offsets(query.execution, name) for name in ("committedOffsets", "availableOffsets"))
    return None if ends is None else sum(ends.values()) - sum((begins or {}).values())


def _offsets(execution: Any, name: str) -> Mapping[tuple[int, str, str], int] | None:
    """Return offsets by source, topic and partition; None if a source has others than Kafka's."""
    found: dict[tuple[int, str, str], int] = {}
    for entry in items(getattr(execution, name)().toSeq()):
        topics = json.loads(str(entry._2().json()))
        if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
            return None
        for topic, partitions in topics.items():
            source = int(entry._1().hashCode())
            found |= {(source, topic, partition): int(value) for partition, value in partitions.items()}
    return found
