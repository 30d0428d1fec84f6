"""Learns columns from the schema part that Kafka Connect's JsonConverter puts into messages (schemas.enable=true)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.debezium.cloud_events import from_cloud_events
from stream_merge.debezium.connect_types import field_of
from stream_merge.debezium.decode_errors import decodable, first_decode_error
from stream_merge.debezium.envelope import DELETED, is_envelope
from stream_merge.debezium.fields import PLAIN, Field
from stream_merge.debezium.keys import KEY_PARTS, NO_KEYS_TOLD, ToldKeys, key_members, told_keys, with_key_parts
from stream_merge.debezium.spelling import IS_TOMBSTONE
from stream_merge.errors import ConfigError
from stream_merge.widening import wider

NOTHING_TOLD = "no record has a value, so the columns are unknown; give them, or an earlier result of learn_columns"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How records whose schema part has one of these sums encode the values."""

    schemas: tuple[int, ...]
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class SentSchema:
    """The schema part of some records.

    Attributes:
        sum: The value of `schema_sum` for these records.
        age: When the first of the records arrived: timestamp and offset.
        fields: Their columns.
        defaults: For columns with a default, the value as a message would send it.
        marks_deletes: Whether a message with this schema can mark a delete.
    """

    sum: int
    age: tuple[float, int]
    fields: Mapping[str, Field]
    defaults: Mapping[str, str]
    marks_deletes: bool


@dataclass(frozen=True, slots=True)
class LearntColumns:
    """The columns in the schema parts of the records.

    Attributes:
        fields: The columns, with types that hold the values of all records.
        keys: The names of the key columns, none for a table without a key; None if no record tells them.
        spellings: The same columns as records of different schemas encode them, the newest last: `numeric(8, 2)` that
            became `numeric(12, 4)` has another scale, `timestamp(3)` that became `timestamp(6)` another unit.
        sent: All learnt schemas, the oldest first.
        topic: The topic of the records.
        num_unmarked_deletes: Number of records without a value if nothing else marks deletes: with flattened events
            that have no `__deleted`.
        key_fault: Why the records do not tell the keys, if something is wrong with them.
    """

    fields: Mapping[str, Field]
    keys: tuple[str, ...] | None
    spellings: tuple[Spelling, ...]
    sent: tuple[SentSchema, ...] = ()
    topic: str = ""
    num_unmarked_deletes: int = 0
    key_fault: str | None = None

    @property
    def told_keys(self) -> ToldKeys:
        """What the records tell of the keys."""
        return ToldKeys(self.keys, self.key_fault)

    def for_keys(self, keys: Sequence[str]) -> LearntColumns:
        """Return the columns for other keys, without those that only the records' keys have and these do not."""
        names = (keys,) if isinstance(keys, str) else keys
        left_out = {name for name, field in self.fields.items() if field.is_in_key_only} - {*names}
        if not left_out:
            return self

        def kept(fields: Mapping[str, Field]) -> dict[str, Field]:
            return {name: field for name, field in fields.items() if name not in left_out}

        spellings = tuple(replace(spelling, fields=kept(spelling.fields)) for spelling in self.spellings)
        return replace(self, fields=kept(self.fields), spellings=spellings)


def schema_sum() -> str:
    """Return SQL for a number that identifies a record's schema part; NULL if it has none."""
    value = "CAST(value AS STRING)"
    # JsonConverter writes the schema first. Its text ends where the payload begins, since quotes inside text are
    # escaped, so it is found without parsing, which would take longer than everything else.
    begins_so = f"""startswith({value}, '{{"schema":{{')"""
    before_payload = f"""substring_index({value}, ',"payload":', 1)"""
    anywhere = f"get_json_object({value}, '$.schema')"
    return (
        f"CASE WHEN {begins_so} THEN xxhash64({before_payload}) "
        f"""WHEN contains({value}, '"schema"') AND {anywhere} LIKE '{{%' THEN xxhash64({anywhere}) END"""
    )


def table_schema(records: DataFrame, *, meta_prefix: str = "__") -> T.StructType:
    """Return a table schema for the records' columns, from their schema part; reads the records.

    It has the columns of all schemas in the records, in the order in which they appeared, with the wider type if a
    column was widened. Key columns are NOT NULL; all others are nullable, since a delete has no values.

    Args:
        records: Records of one table, as in Kafka.
        meta_prefix: Prefix of the fields that the flattening adds.

    Raises:
        ConfigError: The records have no schema part, or belong to several tables.
    """
    learnt = learn_columns(records, meta_prefix=meta_prefix)
    if learnt is None:
        raise ConfigError([NOTHING_TOLD])
    keys = learnt.told_keys.checked()
    if keys is None:
        raise ConfigError([NO_KEYS_TOLD])
    return T.StructType(
        [T.StructField(name, field.data_type, name not in keys) for name, field in learnt.fields.items()]
    )


def learn_columns(
    records: DataFrame,
    known: LearntColumns | None = None,
    *,
    meta_prefix: str = "__",
    mixed_as_text: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> LearntColumns | None:
    """Return columns and keys from the records' schema part, for `changes(columns=)`; reads the records.

    In a stream, call it for each batch and pass the result for the previous batch: a batch may have only records
    without a value, which follow deletes, or a TRUNCATE, which has no key; and it may have records from before a column
    was added.

    Args:
        records: Records of one table, as in Kafka.
        known: The result for the previous batch.
        meta_prefix: Prefix of the fields that the flattening adds.
        mixed_as_text: Whether a column is a STRING whose records have types that no other one holds (`INT` that became
            `text`); otherwise they are an error.
        renamed: For names of columns in the records the names under which they are learnt. So a column that was renamed
            in the source stays one column: `{"new_name": "old_name"}`. Not for keys.

    Returns:
        The columns from the records, else `known`; None if neither exists and no record has a value to decode.

    Raises:
        ConfigError: Records have values but no schema part, or belong to several tables; or no type holds the values of
            a column.
    """
    if records.isStreaming:
        raise ConfigError(
            ["columns cannot be learnt from a stream before it runs; give them, or call this in foreachBatch"]
        )
    rows = _read_schemas(from_cloud_events(records))
    described = [row for row in rows if row["sum"] is not None]
    num_tombstones = sum(row["times"] for row in rows if row["is_tombstone"])
    topics = sorted({row["topic"] for row in described})
    if not topics:
        if not all(row["is_tombstone"] for row in rows):
            raise ConfigError(["no record has a schema part (schemas.enable=true); give the columns"])
        return _known_columns(records, rows, known, num_tombstones)
    if len(topics) > 1:
        raise ConfigError([f"the records belong to several topics ({', '.join(topics)}); select one"])

    new: dict[int, SentSchema] = {}
    for row in described:
        new.setdefault(row["sum"], _sent_schema(row, meta_prefix, renamed or {}))
    sent = _by_age([*(known.sent if known else ()), *new.values()])
    # Skip schemas older than all records here: columns may have been dropped, and others added with their names.
    oldest = next(position for position, schema in enumerate(sent) if schema.sum in new)
    try:
        spellings = _spellings(sent[oldest:], mixed_as_text=mixed_as_text)
    except ConfigError:
        if all(schema.sum in new for schema in sent[oldest:]):
            raise
        spellings = _spellings([schema for schema in sent if schema.sum in new], mixed_as_text=mixed_as_text)
    keys = told_keys(rows, None if known is None else known.keys)
    spellings = _with_fields_of_key(spellings, keys.names or (), rows, known)
    fields = spellings[-1].fields
    for key in keys.names or ():
        if renamed is not None and key in {*renamed, *renamed.values()}:
            raise ConfigError([f"the key {key!r} cannot be renamed; leave it out, or write to a new table"])
    return LearntColumns(
        fields=fields,
        keys=keys.names,
        spellings=spellings,
        sent=tuple(sent),
        topic=topics[0],
        num_unmarked_deletes=_num_unmarked_deletes(num_tombstones, sent),
        key_fault=keys.fault,
    )


def _with_fields_of_key(
    spellings: Sequence[Spelling], keys: Sequence[str], rows: Sequence[Row], known: LearntColumns | None
) -> tuple[Spelling, ...]:
    """Return spellings that have the key columns, too, which are in the records' keys and not in their rows."""
    # A name that differs in case alone is a mistake, and no other column.
    there = {name.lower() for name in spellings[-1].fields}
    lacking = [name for name in keys if name.lower() not in there]
    if not lacking:
        return tuple(spellings)
    members, earlier = key_members(rows), {} if known is None else known.fields
    found = {
        name: replace(field_of(members[name]), is_in_key_only=True) if name in members else earlier[name]
        for name in lacking
        if name in members or name in earlier
    }
    return tuple(replace(spelling, fields={**spelling.fields, **found}) for spelling in spellings)


def _known_columns(
    records: DataFrame, rows: Sequence[Row], known: LearntColumns | None, num_tombstones: int
) -> LearntColumns | None:
    """Return what was learnt before, for records that have no value; None if nothing was.

    Raises:
        ConfigError: Nothing was, and there are values that could not be decoded.
    """
    if known is None:
        why = first_decode_error(records)
        if why is not None:
            raise ConfigError([f"no record tells the columns: {why}"])
        return None
    keys = told_keys(rows, known.keys)
    num_unmarked = _num_unmarked_deletes(num_tombstones, known.sent)
    return replace(known, keys=keys.names, key_fault=keys.fault, num_unmarked_deletes=num_unmarked)


def _read_schemas(records: DataFrame) -> list[Row]:
    """Return what tells columns and keys, the oldest first, with the numbers of records, those of none included."""

    def age(name: str, kind: str) -> Column:
        value = F.col(name) if name in records.columns else F.lit(None)
        return F.coalesce(value.cast(kind), F.lit(0).cast(kind)).alias(name)

    texts = decodable(records).select(
        "topic",
        "key",
        "value",
        # Records that a broker has got together may have the same timestamp.
        F.struct(age("timestamp", "double"), age("offset", "bigint")).alias("age"),
        F.expr(schema_sum()).alias("text_sum"),
        F.expr(IS_TOMBSTONE).alias("is_tombstone"),
    )
    value_schema = "CASE WHEN text_sum IS NOT NULL THEN get_json_object(CAST(value AS STRING), '$.schema') END"
    texts = with_key_parts(texts).withColumn("value_schema", F.expr(value_schema))
    # No row has the schema of a text or a number.
    is_of_row = "get_json_object(value_schema, '$.type') = 'struct'"
    texts = texts.withColumn("value_schema", F.expr(f"CASE WHEN {is_of_row} THEN value_schema END"))
    return (
        texts.select(
            "topic",
            "age",
            "key_text",
            *KEY_PARTS,
            "value_schema",
            # Malformed JSON has no schema, even if it begins like one.
            F.expr("CASE WHEN value_schema IS NOT NULL THEN text_sum END").alias("sum"),
            "is_tombstone",
        )
        .groupBy("topic", *KEY_PARTS, "sum", "is_tombstone")
        .agg(
            F.min("age").alias("age"),
            F.count(F.lit(1)).alias("times"),
            F.first("value_schema").alias("value_schema"),
            F.first("key_text").alias("key_text"),
        )
        .orderBy("age")
        .collect()
    )


def _sent_schema(row: Row, meta_prefix: str, renamed: Mapping[str, str]) -> SentSchema:
    schema = json.loads(row["value_schema"])
    members = row_members(schema, meta_prefix)
    names = {member["field"]: renamed.get(member["field"], member["field"]) for member in members}
    if len({*names.values()}) < len(names):
        both = [f"{sent!r} and {name!r}" for sent, name in names.items() if sent != name and name in names]
        raise ConfigError([f"the records have the columns {', '.join(both)}, and one was to be the other renamed"])
    defaults = {names[member["field"]]: member["default"] for member in members if _is_constant_default(member)}
    parts = {member["field"] for member in schema.get("fields", ())}
    return SentSchema(
        sum=row["sum"],
        age=tuple(row["age"]),
        fields={
            name: replace(field_of(member), sent_as=sent if sent != name else None)
            for member in members
            for sent, name in ((member["field"], names[member["field"]]),)
        },
        defaults={
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            for name, value in defaults.items()
        },
        marks_deletes=DELETED in parts or is_envelope(schema),
    )


def _is_constant_default(member: Mapping[str, Any]) -> bool:
    """Return whether a column has a default that existing rows got when it was added.

    For a function such as now() the connector cannot tell the value; it writes the beginning of 1970, or a UUID of
    zeros.
    """
    value = member.get("default")
    kind = member.get("name", "").rpartition(".")[2]
    if value is None or (kind == "Uuid" and set(str(value)) <= set("0-")):
        return False
    is_point_in_time = kind == "Date" or kind.endswith(("Timestamp", "IsoDate"))
    return not (is_point_in_time and (value == 0 or str(value).startswith("1970-01-01")))


def _by_age(schemas: Iterable[SentSchema]) -> list[SentSchema]:
    """Return each schema once, with the age of its oldest record."""
    found: dict[int, SentSchema] = {}
    for schema in schemas:
        age = min(schema.age, found[schema.sum].age) if schema.sum in found else schema.age
        found[schema.sum] = replace(schema, age=age)
    return sorted(found.values(), key=lambda schema: schema.age)


def _num_unmarked_deletes(num_tombstones: int, sent: Sequence[SentSchema]) -> int:
    return 0 if any(schema.marks_deletes for schema in sent) else num_tombstones


def asked_as(field: Field, data_type: T.DataType) -> Field:
    """Return a field that a schema part describes, for values that are asked for in another type."""
    # To a DECIMAL, a number without a semantic type could be the base64 of one.
    is_plain = field.semantic is None and isinstance(field.data_type, T.NumericType | T.StringType)
    semantic = PLAIN if is_plain and isinstance(data_type, T.DecimalType) else field.semantic
    return replace(field, type=data_type, semantic=semantic)


def _spellings(schemas: Sequence[SentSchema], *, mixed_as_text: bool) -> tuple[Spelling, ...]:
    """Return how the records of each schema encode the columns; schemas with the same encoding are merged.

    Raises:
        ConfigError: Columns with the same name have values that no single type holds.
    """
    fields: dict[str, Field] = {}
    for schema in schemas:
        for name, field in schema.fields.items():
            before = fields.get(name, field)
            fields[name] = _wider(name, before, field, mixed_as_text=mixed_as_text)
    spellings: list[Spelling] = []
    for position, schema in enumerate(schemas):
        spelt = {}
        for name, field in fields.items():
            own = schema.fields.get(name)
            if own is None:
                own = replace(field, default_as_sent=_default_when_added(name, schemas[position:]))
            spelt[name] = asked_as(own, field.data_type)
        alike = next((spelling for spelling in spellings if spelling.fields == spelt), None)
        if alike is not None:
            spellings.remove(alike)
        spellings.append(Spelling((*(alike.schemas if alike else ()), schema.sum), spelt))
    return tuple(spellings)


def _default_when_added(name: str, schemas: Sequence[SentSchema]) -> str | None:
    """Return the default with which a column was added after the first of the schemas; None if it was not."""
    for before, after in pairwise(schemas):
        if name in after.fields:
            # If another column disappeared at the same time, this may be that column renamed, with its own values.
            return after.defaults.get(name) if before.fields.keys() <= after.fields.keys() else None
    return None


def row_members(schema: Mapping[str, Any], meta_prefix: str) -> Sequence[Mapping[str, Any]]:
    """Return the columns in a schema part, without what the flattening added, as Kafka Connect describes them."""
    members: Sequence[Mapping[str, Any]] = schema.get("fields", ())
    if is_envelope(schema):
        after: Sequence[Mapping[str, Any]] = next(member["fields"] for member in members if member["field"] == "after")
        return after
    return [member for member in members if member["field"] != DELETED and not member["field"].startswith(meta_prefix)]


def _wider(name: str, old: Field, new: Field, *, mixed_as_text: bool) -> Field:
    """Return a field that holds the values of both; everything else comes from the newer description."""
    before, after = old.data_type, new.data_type
    if before == after:
        return new
    kind = wider(before, after)
    if kind is None and mixed_as_text:
        kind = T.StringType()
    if kind is None:
        raise ConfigError(
            [
                f"column {name!r} is {before.simpleString()} in some records and {after.simpleString()} in others; "
                "give the columns, or decode the records of each schema separately"
            ]
        )
    return replace(new, type=kind)
