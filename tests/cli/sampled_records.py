"""Records as `init --from kafka` samples them, written by hand or from a captured log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

from stream_merge.cli.query.messages import SampledRecord
from tests.debezium import records
from tests.debezium.captures import CAPTURES

ROW = {"id": 1, "name": "a"}
ID = {"field": "id", "type": "int64"}
ID_KEY = records.with_schema([ID], {"id": 1})


def record(key: Any, value: Any, topic: str = "shop.public.t", **headers: Any) -> SampledRecord:
    key, value, *_, pairs = records.record(key, value, **headers)
    return SampledRecord(topic=topic, key=key, value=value, headers=tuple(pairs or ()))


def envelope(op: str = "c", after: Any = ROW, before: Any = None, **source: Any) -> dict[str, Any]:
    return records.envelope(op, after, before, **source)


def described(fields: list[Mapping[str, Any]], **message: Any) -> dict[str, Any]:
    """Return an envelope with a schema part."""
    image = {"type": "struct", "fields": fields}
    parts = [{**image, "field": "before"}, {**image, "field": "after"}]
    parts += [{"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"}]
    return records.with_schema(parts, envelope(**message))


def captured(name: str) -> dict[str, list[SampledRecord]]:
    """Return the records of a captured log, by topic."""
    by_topic: dict[str, list[SampledRecord]] = {}
    with gzip.open(CAPTURES / name / "events.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        for event in map(json.loads, lines):
            topic, key, value = (event[part] for part in ("topic", "key", "value"))
            headers = tuple((each, text and text.encode()) for each, text in event["headers"] or ())
            one = SampledRecord(topic=topic, key=key and key.encode(), value=value and value.encode(), headers=headers)
            by_topic.setdefault(topic, []).append(one)
    return by_topic
