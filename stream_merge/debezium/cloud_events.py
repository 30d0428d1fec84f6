"""Turns CloudEvents of Debezium's CloudEventsConverter into the envelopes that they were made of.

An event has the row before and after the change in `data`, with or without Kafka Connect's schema part, and everything
else of the envelope in attributes: `op` in `iodebeziumop`, the fields of `source` in `iodebezium` and their names
without underscores, those of `transaction` likewise after `iodebeziumtx`. This is undone before anything else looks at
the records, so that the rest of the decoding knows envelopes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.debezium.envelope import POSITION_FIELDS
from stream_merge.debezium.spelling import JSON_SPACE, are_several_objects, let, rarely, text

PREFIX = "iodebezium"
"""Begins the names of the attributes that Debezium adds to an event."""
OP = f"{PREFIX}op"
TOTAL_ORDER = f"{PREFIX}txtotalorder"

SPEC = "specversion"
AVRO_DATA = "application/avro"
"""The type of `data` that is in Avro."""

_CORRUPT = "_corrupt"
_STRUCT = '{"type":"struct","fields":['
# What tells the schema part of an envelope from that of a row; nobody reads more of these two fields.
_ENVELOPE_FIELDS = (
    '{"type":"struct","fields":[],"optional":false,"field":"source"},{"type":"string","optional":false,"field":"op"},'
)


def attribute(field: str) -> str:
    """Return the attribute that holds a field of `source`."""
    return PREFIX + "".join(character for character in field if character.isascii() and character.isalnum())


def from_cloud_events(records: DataFrame) -> DataFrame:
    """Return the records with envelopes in place of CloudEvents; all others, and damaged events, stay as they are."""
    value = "CAST(value AS STRING)"
    envelope = rarely(f"{_may_be_event(value)} AND contains({value}, '\"{OP}\"')", _envelope_sql(value))
    is_text = isinstance(records.schema["value"].dataType, T.StringType)
    kind = "STRING" if is_text else "BINARY"
    return records.withColumn("value", F.expr(f"coalesce(CAST({envelope} AS {kind}), value)"))


def has_avro_data(value: str) -> str:
    """Return SQL for whether a value is a CloudEvent in JSON whose data is in Avro."""
    names = f"""contains({value}, '"datacontenttype":"{AVRO_DATA}"')"""
    return f"coalesce({_may_be_event(value)} AND {names} AND get_json_object({value}, '$.{OP}') IS NOT NULL, false)"


def avro_data(value: str) -> str:
    """Return SQL for the Avro in such a value; NULL for any other."""
    return rarely(has_avro_data(value), f"try_to_binary(get_json_object({value}, '$.data'), 'base64')")


def with_data(value: str, data: str) -> str:
    """Return SQL for such a value with JSON in place of the Avro."""
    sent = f"""concat(',"data":"', get_json_object({value}, '$.data'), '"')"""
    return f"""replace({value}, {sent}, concat(',"data":', {data}))"""


def is_event_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema part is that of a CloudEvent whose data is in Avro, like the event itself."""
    types = {member["field"]: member["type"] for member in schema.get("fields", ())}
    is_named = OP in types or str(schema.get("name", "")).endswith(".CloudEvents.Envelope")
    return is_named and SPEC in types and types.get("data") == "bytes"


def is_left_event(value: str) -> str:
    """Return SQL for whether a value is a CloudEvent that `from_cloud_events` could not turn into an envelope."""
    names = " AND ".join(f"get_json_object({value}, '$.{name}') IS NOT NULL" for name in (SPEC, "type", "source"))
    is_whole = f"json_object_keys({value}) IS NOT NULL AND NOT {are_several_objects(value)}"
    return f"coalesce({_may_be_event(value)} AND contains({value}, '\"{SPEC}\"') AND {names} AND {is_whole}, false)"


def left_event_fault(value: str) -> str:
    """Return SQL for why it could not."""
    is_avro = f"get_json_object({value}, '$.datacontenttype') = '{AVRO_DATA}'"
    has_op = f"get_json_object({value}, '$.{OP}') IS NOT NULL"
    return (
        f"CASE WHEN NOT ({has_op}) THEN {text(_NO_OP)} WHEN {is_avro} THEN {text(_IN_AVRO)} ELSE {text(_NO_IMAGES)} END"
    )


def first_left_event_fault(records: DataFrame) -> str | None:
    """Return why one of the CloudEvents among the records cannot be read; None if all can. Reads the records."""
    value = "CAST(value AS STRING)"
    found = from_cloud_events(records).where(is_left_event(value))
    row = found.select(F.expr(left_event_fault(value))).head()
    return None if row is None else str(row[0])


_IN_AVRO = (
    "the data of the CloudEvent is in Avro with the id of a schema: decode it with from_registry, or [registry] in a "
    "pipeline file, or let the converter write JSON (data.serializer.type=json)"
)
_NO_OP = (
    "the CloudEvent does not tell what was done, and where in the source's log: let the converter send it "
    "(extension.attributes.enable=true)"
)
_NO_IMAGES = (
    "the data of the CloudEvent is no object with before and after: let the converter have whole envelopes "
    "(metadata.source=value, and no ExtractNewRecordState)"
)


def _may_be_event(value: str) -> str:
    # The converters write envelopes so, which then need not be searched.
    is_other = f"""startswith({value}, '{{"schema":') OR startswith({value}, '{{"before":')"""
    return f"startswith({value}, '{{') AND NOT ({is_other})"


def _envelope_sql(value: str) -> str:
    """Return SQL for the JSON of the envelope; NULL for what is no event, is damaged, or lacks a part."""
    attributes = [SPEC, OP, TOTAL_ORDER, *map(attribute, POSITION_FIELDS)]
    schema = ", ".join([*(f"{name} STRING" for name in attributes), "data MAP<STRING, STRING>", f"{_CORRUPT} STRING"])
    event = f"from_json({value}, '{schema}', map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}'))"
    # Spark reads the first JSON value and ignores the rest, and replaces what is not UTF-8.
    is_whole = f"is_valid_utf8({value}) AND endswith(trim(TRAILING {JSON_SPACE} FROM {value}), '}}')"
    is_whole += f" AND NOT {are_several_objects(value)}"

    def of_event(event: str) -> str:
        schema = f"{event}.data['schema']"
        is_described = f"map_contains_key({event}.data, 'payload') AND {schema} LIKE '{{%'"
        images = f"CASE WHEN {is_described} THEN from_json({event}.data['payload'], 'MAP<STRING, STRING>') "
        images += f"ELSE {event}.data END"
        begin = f"CASE WHEN {is_described} THEN {_schema_sql(schema)} ELSE '' END"
        end = f"CASE WHEN {is_described} THEN '}}' ELSE '' END"
        known = f"{event}.{_CORRUPT} IS NULL AND {event}.{SPEC} IS NOT NULL AND {event}.{OP} IS NOT NULL"

        def of_images(images: str) -> str:
            both = " AND ".join(f"map_contains_key({images}, '{name}')" for name in ("before", "after"))
            parts = ", ".join(
                f"""'{mark}"{name}":', coalesce({images}['{name}'], 'null')"""
                for mark, name in (("{", "before"), (",", "after"))
            )
            rest = f"concat(',', substring({_rest_sql(event)}, 2))"
            return f"CASE WHEN {both} THEN concat({begin}, {parts}, {rest}, {end}) END"

        return f"CASE WHEN {known} THEN {let(images, of_images)} END"

    return f"CASE WHEN {is_whole} THEN {let(event, of_event)} END"


def _schema_sql(schema: str) -> str:
    """Return SQL for the beginning of a message with the schema part of an envelope, up to its payload.

    Args:
        schema: SQL for the JSON of the schema of `data`.
    """
    fields = f"concat(substring(get_json_object({schema}, '$.fields'), 2), '}}')"
    # As Kafka Connect's converter writes it, it need not be parsed.
    fields = (
        f"CASE WHEN startswith({schema}, {text(_STRUCT)}) THEN substring({schema}, {len(_STRUCT) + 1}) "
        f"ELSE {fields} END"
    )
    begin = '{"schema":' + _STRUCT + _ENVELOPE_FIELDS
    return f"concat({text(begin)}, {fields}, {text(',' + json.dumps('payload') + ':')})"


def _rest_sql(event: str) -> str:
    """Return SQL for the JSON of an envelope without its images."""
    source = ", ".join(f"'{name}', {event}.{attribute(name)}" for name in POSITION_FIELDS)
    order = f"{event}.{TOTAL_ORDER}"
    transaction = f"CASE WHEN {order} IS NOT NULL THEN named_struct('total_order', {order}) END"
    return f"to_json(named_struct('source', named_struct({source}), 'transaction', {transaction}, 'op', {event}.{OP}))"
