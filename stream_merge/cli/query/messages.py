"""Tells what a single record of Kafka is, by its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from stream_merge.debezium.cloud_events import AVRO_DATA, OP, SPEC, TOTAL_ORDER, attribute
from stream_merge.debezium.envelope import DELETED, POSITION_FIELDS

META_PREFIX = "__"
"""Begins the fields and headers that ExtractNewRecordState adds, unless `add.fields.prefix` says other."""


class Shape(Enum):
    """The shape of a record's value."""

    ENVELOPE = "envelopes of Debezium"
    FLATTENED = "events of Debezium flattened by ExtractNewRecordState"
    DESCRIBED = "rows with a schema part, and no mark of Debezium"
    OBJECT = "plain JSON objects"
    CLOUD_EVENT = "CloudEvents without a change"
    AVRO = "Avro with the id of a schema"
    UNREADABLE = "no JSON objects"
    TOO_LARGE = "larger than is read here"
    TOMBSTONE = "records without a value"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecord:
    """A record of Kafka.

    Attributes:
        topic: Its topic.
        key: Its key; JSON if it was decoded from Avro.
        value: Its value, likewise; None if there is none, or it was too large to be read.
        headers: Its headers.
        is_too_large: Whether it has a value that was too large.
        was_avro: Whether its value was in Avro.
        decode_error: Why it could not be decoded from Avro.
    """

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_too_large: bool = False
    was_avro: bool = False
    decode_error: str | None = None

    @property
    def header_names(self) -> frozenset[str]:
        """The names of its headers."""
        return frozenset(name for name, _ in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a record's value is.

    Attributes:
        shape: Its shape.
        schema: Its schema part; None if it has none.
        body: The JSON object, without the schema part around it; numbers with a point are `Decimal`.
        is_event: Whether it is a CloudEvent; then all else is of the envelope that it was made of.
    """

    shape: Shape
    schema: Mapping[str, Any] | None = None
    body: Mapping[str, Any] | None = None
    is_event: bool = False

    @property
    def images(self) -> list[Mapping[str, Any]]:
        """The rows in it, without what the flattening added."""
        body = self.body or {}
        if self.shape is Shape.ENVELOPE:
            return [image for name in ("after", "before") if isinstance(image := body.get(name), dict)]
        if self.shape is Shape.OBJECT:
            return [body]
        return [{name: value for name, value in body.items() if not is_meta(name)}]


def is_meta(name: str) -> bool:
    """Return whether the flattening has added a field."""
    return name.startswith(META_PREFIX)


def message_of(record: SampledRecord) -> Message:
    """Return what a record's value is."""
    if record.is_too_large:
        return Message(shape=Shape.TOO_LARGE)
    if record.decode_error is not None or _begins_like_avro(record):
        return Message(shape=Shape.AVRO)
    if record.value is None or record.value.strip() == b"null":
        return Message(shape=Shape.TOMBSTONE)
    found = parsed(record.value)
    if not isinstance(found, dict):
        return Message(shape=Shape.UNREADABLE)
    if isinstance(found.get(OP), str) and SPEC in found:
        return _message_of_event(found)
    schema, body = None, found
    if is_wrapped(found):
        schema, body = found["schema"], found["payload"]
        if not isinstance(body, dict):
            return Message(shape=Shape.UNREADABLE)
    return Message(shape=_shape_of(body, record, has_schema=schema is not None), schema=schema, body=body)


def _message_of_event(event: Mapping[str, Any]) -> Message:
    """Return what a CloudEvent is, as `debezium.cloud_events` does."""
    data, schema = event.get("data"), None
    if isinstance(data, str) and event.get("datacontenttype") == AVRO_DATA:
        return Message(shape=Shape.AVRO)
    if isinstance(data, dict) and is_wrapped(data):
        more = [{"field": "source", "type": "struct", "fields": []}, {"field": "op", "type": "string"}]
        schema, data = {**data["schema"], "fields": [*data["schema"].get("fields", ()), *more]}, data["payload"]
    if not isinstance(data, dict) or not {"before", "after"} <= data.keys():
        return Message(shape=Shape.CLOUD_EVENT, body=event)
    source = {name: event.get(attribute(name)) for name in ("connector", *POSITION_FIELDS)}
    order = {"total_order": event.get(TOTAL_ORDER)}
    body = {"before": data["before"], "after": data["after"], "op": event[OP], "source": source, "transaction": order}
    return Message(shape=Shape.ENVELOPE, schema=schema, body=body, is_event=True)


def key_names(record: SampledRecord) -> frozenset[str]:
    """Return the columns in a record's key; none if it is no JSON object."""
    found = None if record.key is None else parsed(record.key)
    if isinstance(found, dict) and is_wrapped(found):
        found = found["payload"]
    return frozenset(found) if isinstance(found, dict) else frozenset()


def is_wrapped(found: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has Kafka Connect's schema part."""
    schema = found.get("schema")
    return isinstance(schema, dict) and "type" in schema and "payload" in found


def parsed(value: bytes) -> Any:
    """Return what JSON stands for; None if it is no JSON in UTF-8. Numbers with a point are `Decimal`."""
    try:
        return json.loads(value.decode("utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError):
        return None


def _begins_like_avro(record: SampledRecord) -> bool:
    names = record.header_names
    is_named = not names.isdisjoint(("apicurio.value.contentId", "apicurio.value.globalId"))
    return record.value is not None and not record.was_avro and (record.value.startswith(b"\0") or is_named)


def _shape_of(body: Mapping[str, Any], record: SampledRecord, *, has_schema: bool) -> Shape:
    if body.get("op") is not None and body.get("source") is not None:
        return Shape.ENVELOPE
    if SPEC in body and "data" in body and "type" in body:
        return Shape.CLOUD_EVENT
    marks = {DELETED, f"{META_PREFIX}op"}
    if not marks.isdisjoint(body) or not marks.isdisjoint(record.header_names):
        return Shape.FLATTENED
    return Shape.DESCRIBED if has_schema else Shape.OBJECT
