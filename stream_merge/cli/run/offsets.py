"""Counts records by the offsets that Spark reports of a micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Offsets: TypeAlias = "dict[str, dict[str, int]]"
"""Offsets by topic and partition."""


def records_behind(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many records a micro-batch left unread, by topic; empty if the source has no offsets.

    Args:
        progress: Spark's `StreamingQueryProgress` in its JSON form.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources") or ():
        end = _offsets(source.get("endOffset"))
        for topic, partitions in _offsets(source.get("latestOffset")).items():
            lag[topic] = lag.get(topic, 0) + _distance(end.get(topic, {}), partitions)
    return lag


def records_read(progress: Mapping[str, Any]) -> int | None:
    """Return how many records a micro-batch had; None if the source has no offsets, or does not say where it began.

    Spark's `numInputRows` counts records again that are read again.
    """
    total = None
    for source in progress.get("sources") or ():
        start = _offsets(source.get("startOffset"))
        for topic, partitions in _offsets(source.get("endOffset")).items():
            # A partition that is new to the query began at an offset that is not told.
            if not partitions.keys() <= start.get(topic, {}).keys():
                return None
            total = (total or 0) + _distance(start[topic], partitions)
    return total


def _distance(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def _offsets(value: object) -> Offsets:
    """Return Kafka's offsets by topic and partition; empty for other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        return {}
    try:
        return {
            topic: {partition: int(offset) for partition, offset in offsets.items()} for topic, offsets in value.items()
        }
    except (TypeError, ValueError):
        return {}
