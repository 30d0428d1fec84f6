"""Tells from sampled records what a topic is, and whether a pipeline can take it as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyspark.sql import Row

from stream_merge.cli.discover.columns import (
    SentColumn,
    described_columns,
    find_modes,
    name_fault,
    sent_columns,
)
from stream_merge.cli.discover.foreign import find_foreign
from stream_merge.cli.query.messages import META_PREFIX, Message, SampledRecord, Shape, message_of, parsed
from stream_merge.debezium.envelope import DELETED
from stream_merge.debezium.keys import NO_KEYS, POSITIONS, ROUTED_FROM, ToldKeys, key_members, told_keys
from stream_merge.debezium.schemas import row_members
from stream_merge.errors import ConfigError

_OF_DEBEZIUM = {Shape.ENVELOPE, Shape.FLATTENED}


class Family(Enum):
    """Topics that one pipeline can take: those that one section [decode] is right for."""

    DETECTED = "debezium"
    """Debezium's events that tell by themselves what they are."""
    FLATTENED = "flattened"
    """Rows that carry no mark, so that the file must say that they are flattened."""
    OBJECTS = "json"
    """Plain JSON objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found in a topic.

    Attributes:
        topic: Its name.
        num_records: Number of records looked at.
        family: What it can be taken with; None if that could not be told.
        summary: What its records are, in a few words.
        foreign: What it holds if that is no rows of a table.
        keys: The names of the key columns; none for a table without a key; None if they were not told.
        columns: The types of the columns by name, as the schema part tells them; None without one.
        sent: The columns as they were sent, if there is no schema part.
        modes: The connector's settings, by name, as far as the types tell them.
        faults: Why a pipeline cannot take it as it is, each a sentence without its end.
        notes: What could not be told, and what to know, likewise.
        has_unmarked_deletes: Whether records without a value are the only deletes.
        is_avro: Whether values are in Avro.
        has_wide_ids: Whether the ids of schemas have 8 bytes.
    """

    topic: str
    num_records: int
    family: Family | None = None
    summary: str = ""
    foreign: str | None = None
    keys: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    sent: Mapping[str, SentColumn] | None = None
    modes: Mapping[str, str] | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    has_unmarked_deletes: bool = False
    is_avro: bool = False
    has_wide_ids: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to look at."""
        return self.num_records == 0

    @property
    def is_taken(self) -> bool:
        """Whether a pipeline can take it."""
        return self.family is not None and not self.faults and self.foreign is None

    @property
    def needs_columns(self) -> bool:
        """Whether the file must give its columns."""
        return self.columns is None


def examine(topic: str, records: Sequence[SampledRecord]) -> Finding:
    """Return what the sampled records of a topic tell; a pure function.

    Args:
        topic: The topic.
        records: Its records, those of each partition in their order.
    """
    if not records:
        return Finding(topic=topic, num_records=0, summary="no records", faults=("it has no records to tell by",))
    foreign = find_foreign(records)
    if foreign is not None:
        return Finding(topic=topic, num_records=len(records), summary=foreign, foreign=foreign)
    return _Topic(topic, records).finding()


class _Topic:
    """The records of one topic that holds rows."""

    def __init__(self, topic: str, records: Sequence[SampledRecord]) -> None:
        self.topic = topic
        self.records = records
        self.messages = [message_of(record) for record in records]
        self.counts = Counter(message.shape for message in self.messages)
        self.num_tombstones = self.counts.pop(Shape.TOMBSTONE, 0)
        self.num_too_large = self.counts.pop(Shape.TOO_LARGE, 0)
        self.shapes = set(self.counts)
        self.rows = [message for message in self.messages if message.shape in self.shapes]
        self.schemas = _distinct([message.schema for message in self.rows if message.schema is not None])
        self.is_avro = Shape.AVRO in self.shapes or any(record.was_avro for record in records)

    def finding(self) -> Finding:
        """Return what they tell."""
        family, faults = self._family()
        notes: list[str] = []
        columns, sent, modes = None, None, None
        told = ToldKeys()
        if family is not None:
            faults, columns, sent, modes = self._columns(family, faults, notes)
            told = self._keys(family, columns, sent)
            if told.fault is not None:
                faults.append(told.fault)
            notes += self._notes(family, told)
        return Finding(
            topic=self.topic,
            num_records=len(self.records),
            family=family,
            summary=self._summary(),
            keys=told.names,
            columns=columns,
            sent=sent,
            modes=modes,
            faults=tuple(faults),
            notes=tuple(notes),
            has_unmarked_deletes=family is Family.FLATTENED and self.num_tombstones > 0,
            is_avro=self.is_avro,
            has_wide_ids=self._has_wide_ids(),
        )

    def _family(self) -> tuple[Family | None, list[str]]:
        """Return what the topic can be taken with, and why it cannot be taken."""
        if not self.shapes:
            kind = "that are too large to be looked at" if self.num_too_large else "without a value"
            return None, [f"it has only records {kind}, which do not tell its columns"]
        faults = [f"{self._share(shape)} {_UNUSABLE[shape]}" for shape in _UNUSABLE if shape in self.shapes]
        if Shape.AVRO in self.shapes:
            faults.append(self._avro_fault())
        if faults:
            return None, faults
        if self.shapes <= _OF_DEBEZIUM:
            if Shape.FLATTENED in self.shapes and self.num_tombstones and not self._marks_deletes():
                if Shape.ENVELOPE in self.shapes:
                    return None, [self._differing(), "and only some of them mark deletes"]
                return Family.FLATTENED, []
            return Family.DETECTED, []
        if self.shapes <= {Shape.DESCRIBED, Shape.FLATTENED}:
            return Family.FLATTENED, []
        if self.shapes == {Shape.OBJECT}:
            return Family.OBJECTS, []
        return None, [self._differing()]

    def _differing(self) -> str:
        shown = " and ".join(f"{number} are {shape.value}" for shape, number in self.counts.most_common())
        return f"its records differ: {shown}; let one pipeline take those of one kind, from a topic of their own"

    def _share(self, shape: Shape) -> str:
        return f"{self.counts[shape]} of {len(self.records)} records"

    def _avro_fault(self) -> str:
        why = next((record.decode_error for record in self.records if record.decode_error is not None), None)
        if why is not None:
            return f"{self._share(Shape.AVRO)} are in Avro, and {why}"
        return (
            f"{self._share(Shape.AVRO)} are in Avro, whose schemas a registry has; name it with --registry, and run "
            "init again"
        )

    def _has_wide_ids(self) -> bool:
        """Return whether the ids of schemas have 8 bytes: none of 4 bytes is 0."""
        sent = [record.value or b"" for record in self.records if record.value and record.value.startswith(b"\0")]
        return bool(sent) and all(value[1:5] == bytes(4) and len(value) > 8 for value in sent)

    def _marks_deletes(self) -> bool:
        return any(
            DELETED in (message.body or {}) or DELETED in record.header_names
            for message, record in zip(self.messages, self.records, strict=True)
        )

    def _columns(
        self, family: Family, faults: list[str], notes: list[str]
    ) -> tuple[list[str], dict[str, str] | None, dict[str, SentColumn] | None, dict[str, str] | None]:
        """Return the faults, the columns that the schema part tells, or those that were sent, and the modes."""
        if self.schemas and family is not Family.OBJECTS:
            try:
                members = row_members(self.schemas[-1], META_PREFIX)
                columns = described_columns(members)
            except (ConfigError, KeyError, TypeError, AttributeError, ValueError) as error:
                reason = error.faults[0] if isinstance(error, ConfigError) else "it is not one of Kafka Connect"
                return [*faults, f"its schema part cannot be read: {reason}"], None, None, None
            fault = name_fault(columns)
            if len(self.schemas) > 1:
                notes.append(f"its records have {len(self.schemas)} schemas, of which the newest is shown")
            if any(message.schema is None for message in self.rows):
                notes.append("some of its records have no schema part, and are read like the others")
            return [*faults, *([fault] if fault else [])], columns, None, find_modes(members)
        sent = sent_columns(image for message in self.rows for image in message.images)
        if not sent:
            return [*faults, "none of its records has a row, so its columns are not known"], None, None, None
        found = [name_fault(sent), *(f"its column {name} {each.fault}" for name, each in sent.items() if each.fault)]
        return [*faults, *filter(None, found)], None, sent, None

    def _keys(self, family: Family, described: dict[str, str] | None, sent: dict[str, SentColumn] | None) -> ToldKeys:
        """Return the keys as the pipeline would learn them, if they are columns; add those that only the key has."""
        parts = [key_row(*pair) for pair in zip(self.records, self.messages, strict=True)]
        told = told_keys(parts, None)
        if told.fault is not None:
            return told
        members = {} if family is Family.OBJECTS else key_members(parts)
        if described:
            others = [members[name] for name in told.names or () if name in members and name not in described]
            try:
                described |= described_columns(others)
            except ConfigError as error:
                return ToldKeys(fault=f"the schema part of its key cannot be read: {error.faults[0]}")
        elif sent and ROUTED_FROM in members:
            sent.setdefault(ROUTED_FROM, SentColumn(type="STRING"))
        columns: Mapping[str, Any] = described or sent or {}
        unknown = [name for name in told.names or () if name not in columns]
        if unknown and columns:
            return ToldKeys(fault=f"its key has {', '.join(unknown)}, which is no column of its rows; give it keys")
        if told.names is None:
            return ToldKeys(fault="its key could not be told, since none of its records is about a row")
        if family is not Family.DETECTED and not told.names:
            return ToldKeys(fault="its records have no key that names columns; give it keys")
        return told

    def _notes(self, family: Family, told: ToldKeys) -> Iterator[str]:
        num_keyless = sum(record.key is None for record in self.records)
        if told.names and 0 < num_keyless < len(self.records):
            yield f"{num_keyless} of its records have no key; an update without one is an error"
        if told.names == () and family is Family.DETECTED:
            yield (
                "it has no key, so its rows are told apart by their contents, which needs the old row in updates and "
                "deletes (REPLICA IDENTITY FULL)"
            )
            if self._lacks_old_rows():
                yield "some of its updates and deletes have no old row, and are errors"
        if family is Family.FLATTENED and not self.num_tombstones:
            yield "no record without a value was seen; if such records are its deletes, set keep_tombstones = true"
        if Shape.FLATTENED in self.shapes and family is Family.DETECTED and not self._marks_deletes():
            yield (
                "no delete was seen; if records without a value are its deletes, set keep_tombstones = true in a file "
                "of its own"
            )
        if self.num_too_large:
            yield f"{self.num_too_large} of its records are too large to be looked at"
        if len(self.shapes) > 1:
            shown = " and ".join(f"{number} {shape.value}" for shape, number in self.counts.most_common())
            yield f"its records differ, and each is told by itself: {shown}"
        if family is Family.OBJECTS and self.num_tombstones:
            yield f"{self.num_tombstones} of its records have no value; they are left out, and delete nothing"

    def _lacks_old_rows(self) -> bool:
        return any(
            message.shape is Shape.ENVELOPE
            and (message.body or {}).get("op") in ("u", "d")
            and not (message.body or {}).get("before")
            for message in self.rows
        )

    def _summary(self) -> str:
        shapes = " and ".join(shape.value for shape, _ in self.counts.most_common())
        parts = [shapes or Shape.TOMBSTONE.value]
        if any(message.is_event for message in self.rows):
            parts.append("as CloudEvents")
        if self.is_avro and Shape.AVRO not in self.shapes:
            parts.append("in Avro")
        elif self.schemas:
            parts.append("with a schema part")
        elif self.shapes & _OF_DEBEZIUM:
            parts.append("without a schema part")
        connectors = sorted(set(filter(None, map(_connector_of, self.rows))))
        if connectors:
            parts.append(f"of {' and '.join(connectors)}")
        return " ".join(parts)


_UNUSABLE = {
    Shape.UNREADABLE: "are no JSON objects",
    Shape.CLOUD_EVENT: "are CloudEvents that do not tell what was done to which row; let the converter send it "
    "(extension.attributes.enable=true, metadata.source=value)",
}


def key_row(record: SampledRecord, message: Message) -> Row:
    """Return what a record tells of the keys, with the columns that `debezium.keys.with_key_parts` adds.

    Args:
        record: The record.
        message: What its value is.
    """
    key_text = None if record.key is None else record.key.decode("utf-8", "replace")
    if key_text in NO_KEYS:
        key_text = None
    found = None if record.key is None or key_text is None else parsed(record.key)
    names = found if isinstance(found, dict) else {}
    schema = json.dumps(names["schema"], default=str) if isinstance(names.get("schema"), dict) else None
    return Row(
        topic=record.topic,
        key_text=key_text,
        key_schema=schema,
        key_names=None if schema is not None else tuple(names),
        is_odd_key=key_text is not None and schema is None and not names,
        row_kind=None if key_text is not None else _row_kind(message),
    )


def _row_kind(message: Message) -> str | None:
    """Return what a record without a key tells, as SQL in `debezium.keys` does."""
    body = message.body
    if message.shape is not Shape.ENVELOPE:
        return "flattened" if body else None
    assert body is not None
    if body["op"] in ("t", "m"):
        return None
    source = body["source"]
    is_placed = isinstance(source, dict) and any(source.get(name) is not None for name in POSITIONS)
    return "row" if is_placed else "unplaced"


def _connector_of(message: Message) -> str | None:
    body = message.body or {}
    source = body.get("source")
    found = (
        source.get("connector") if isinstance(source, dict) else body.get("__connector", body.get("__source_connector"))
    )
    return found if isinstance(found, str) else None


def _distinct(schemas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each schema once, in the order in which they were seen last."""
    found: dict[str, Mapping[str, Any]] = {}
    for schema in schemas:
        text = json.dumps(schema, sort_keys=True, default=str)
        found.pop(text, None)
        found[text] = schema
    return list(found.values())
