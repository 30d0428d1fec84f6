"""Turns records in the wire format of Avro converters into JSON as Kafka Connect's JsonConverter writes it.

A key or a value in this format begins with a byte 0 and the id of its schema, and the rest is Avro. JSON never begins
with a byte 0. Apicurio's converter may put the id into a header instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.avro_limits import limit_avro
from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.debezium.avro_schemas import Translated
from stream_merge.debezium.cloud_events import avro_data, has_avro_data, is_event_schema, with_data
from stream_merge.debezium.decode_errors import DECODE_ERROR_COL
from stream_merge.debezium.envelope import is_envelope
from stream_merge.debezium.registry import SchemaRegistry
from stream_merge.debezium.spelling import let, text
from stream_merge.errors import ConfigError

_PARTS = ("key", "value")
_DATA = "data"
"""The part of a CloudEvent that may be in Avro by itself."""
_END = "x'f1a7b3c5d90e2846'"
"""Bytes that are put after the Avro, and must be read after it: else it is longer or shorter than its schema says."""
_MAX_IDS = 2000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@without_call_sites()
def from_registry(records: DataFrame, registry: SchemaRegistry) -> DataFrame:
    """Return records in Avro as JsonConverter would write them, with a schema part; reads the ids of their schemas.

    Pass the result to `changes`, `learn_columns` and the others in place of the records. It is evaluated once for each
    of them, so persist it. What is not in the wire format stays as it is, be it JSON, text, or nothing.

    A record that cannot be decoded stays in Avro, and the column `_decode_error` says why: `changes` makes it an error
    of the record. The reason may be that it is damaged, that the registry has no schema with its id, or that its schema
    is of another kind than Avro, refers to itself, or has a union of several types.

    Args:
        records: The rows of Spark's Kafka source, of one or of many topics; in a stream, those of a micro-batch.
        registry: Where the schemas are.

    Raises:
        ConfigError: The records are a stream or in another format, or Spark lacks its Avro package.
        SchemaRegistryError: The registry does not answer, or refuses to.
    """
    if records.isStreaming:
        raise ConfigError(["the schemas of a stream are not known before it runs; call from_registry in foreachBatch"])
    limit_avro(records.sparkSession)
    start = registry.id_size + 1
    has_headers = "headers" in records.columns
    names = [name for name in records.columns if name != DECODE_ERROR_COL]
    records = records.withColumns({part: F.expr(_sent_sql(part, start, has_headers=has_headers)) for part in _PARTS})
    is_avro = {f"{part}_is_avro": F.expr(_is_avro_sql(part, has_headers=has_headers)) for part in _PARTS}
    records = records.withColumns(is_avro)
    ids, has_events = _find_ids(records, _PARTS, start)
    schemas = _schemas_of(ids, registry)
    fields = {part: f"coalesce(CAST({part}_json AS BINARY), {part})" for part in _PARTS}
    whys = [_error_sql(part, start, schemas[part]) for part in reversed(_PARTS)]
    whys += [_unread_sql(part) for part in reversed(_PARTS) if has_headers]
    decoded = _decoded(records, names, start, schemas, {**fields, DECODE_ERROR_COL: f"coalesce({', '.join(whys)})"})
    if has_events or any(
        isinstance(each, Translated) and is_event_schema(each.connect) for each in schemas["value"].values()
    ):
        return _with_decoded_data(decoded, names, start, registry)
    return decoded


def _with_decoded_data(records: DataFrame, names: Sequence[str], start: int, registry: SchemaRegistry) -> DataFrame:
    """Return records in JSON with the data of CloudEvents in JSON, too; reads the ids of their schemas."""
    value = "CAST(value AS STRING)"
    records = records.withColumn(_DATA, F.expr(avro_data(value)))
    records = records.withColumn(f"{_DATA}_is_avro", F.expr(f"coalesce(startswith({_DATA}, x'00'), false)"))
    ids, _ = _find_ids(records, (_DATA,), start)
    schemas = _schemas_of(ids, registry)
    whole = (
        f"CASE WHEN {_DATA}_json IS NOT NULL THEN CAST({with_data(value, f'{_DATA}_json')} AS BINARY) ELSE value END"
    )
    why = f"coalesce({DECODE_ERROR_COL}, {_error_sql(_DATA, start, schemas[_DATA])})"
    return _decoded(records, names, start, schemas, {"value": whole, DECODE_ERROR_COL: why})


def _schemas_of(
    ids: Mapping[str, Sequence[bytes]], registry: SchemaRegistry
) -> dict[str, dict[bytes, Translated | str]]:
    """Return the schemas, or why there is none, by part and the beginning with its id."""
    found = {each: registry.schema(_id(each)) for each in sorted({each for some in ids.values() for each in some})}
    return {part: {each: found[each] for each in some} for part, some in ids.items()}


def _decoded(
    records: DataFrame,
    names: Sequence[str],
    start: int,
    schemas: Mapping[str, Mapping[bytes, Translated | str]],
    fields: Mapping[str, str],
) -> DataFrame:
    """Decode parts of the records.

    Args:
        records: The records, with each part as sent, and whether it is in Avro.
        names: The columns to return, besides that of the errors.
        start: Where the Avro begins, after the id.
        schemas: The schemas by part.
        fields: SQL for columns that are made of the others, of the parts, and of their JSON.

    Raises:
        ConfigError: Spark lacks its Avro package.
    """
    # Apart from the rest, so that each is decoded once.
    decoders = {f"{part}_json": F.expr(_decoded_sql(part, start, some)) for part, some in schemas.items()}
    try:
        decoded = records.withColumns(decoders)
    except AnalysisException as error:
        if "AVRO" not in str(error):
            raise
        package = f"org.apache.spark:spark-avro_2.13:{records.sparkSession.version}"
        raise ConfigError([f"Spark lacks its Avro package; add {package} to spark.jars.packages"]) from None
    struct = f"named_struct({', '.join(f'{text(name)}, {sql}' for name, sql in fields.items())})"
    others = [name for name in names if name not in fields]
    # Spark moves conditions on columns below the projection that computes them, and would compute them twice; below
    # this one it moves none.
    return decoded.select(*others, F.inline(F.array(F.expr(struct)))).select(*names, DECODE_ERROR_COL)


def _sent_sql(part: str, start: int, *, has_headers: bool) -> str:
    """Return SQL for a key or value in the wire format; Apicurio's converter may put the id into a header instead."""
    sent = f"CAST({part} AS BINARY)"
    if not has_headers:
        return sent
    number = _header(part, "contentId")
    in_front = f"concat(x'00', substring({number}, {10 - start}), {sent})"
    return f"CASE WHEN octet_length({number}) = 8 THEN {in_front} ELSE {sent} END"


def _is_avro_sql(part: str, *, has_headers: bool) -> str:
    """Return SQL for whether a key or value, as sent, is in the wire format."""
    # Avro itself may begin with a byte 0, too.
    is_else = f" AND {_header(part, 'globalId')} IS NULL" if has_headers else ""
    return f"coalesce(startswith({part}, x'00'), false){is_else}"


def _header(part: str, name: str) -> str:
    return f"get(filter(headers, header -> header.key = 'apicurio.{part}.{name}'), 0).value"


def _unread_sql(part: str) -> str:
    """Return SQL for why a key or value was not read: its header has another id than the registry's protocol."""
    why = text(
        f"the {part} cannot be decoded: its header has Apicurio's global id; let the converter write the id of the "
        "content (apicurio.registry.use-id=contentId)"
    )
    is_else = f"{part} IS NOT NULL AND NOT {part}_is_avro AND {_header(part, 'globalId')} IS NOT NULL"
    return f"CASE WHEN {is_else} THEN {why} END"


def _find_ids(records: DataFrame, parts: Sequence[str], start: int) -> tuple[dict[str, list[bytes]], bool]:
    """Return the beginnings of each part that are in Avro, each once, and whether CloudEvents in JSON have such data.

    Raises:
        ConfigError: There are so many that they are no ids.
    """
    prefix = "CASE WHEN {part}_is_avro AND octet_length({part}) >= {start} THEN substring({part}, 1, {start}) END"
    prefixes = {part: F.expr(prefix.format(part=part, start=start)) for part in parts}
    has_events = F.expr(f"coalesce(bool_or({has_avro_data('CAST(value AS STRING)')}), false)").alias("has_events")
    row = records.agg(*[F.collect_set(each).alias(part) for part, each in prefixes.items()], has_events).head()
    assert row is not None
    num_ids = sum(len(row[part]) for part in parts)
    if num_ids > _MAX_IDS:
        raise ConfigError(
            [
                f"the records name {num_ids} schemas, so they hardly begin with the id of one; if the ids are in "
                "headers, read these too (includeHeaders); only Confluent's and Apicurio's formats are decoded"
            ]
        )
    return {part: sorted(bytes(each) for each in row[part]) for part in parts}, row["has_events"]


def _id(prefix: bytes) -> int:
    return int.from_bytes(prefix[1:], "big")


def _decoded_sql(sent: str, start: int, schemas: Mapping[bytes, Translated | str]) -> str:
    """Return SQL for the JSON of a key or value in Avro; NULL if it cannot be decoded, or is not in Avro."""
    cases = [
        f"WHEN x'{prefix.hex()}' THEN {_json_sql(sent, start, schema)}"
        for prefix, schema in schemas.items()
        if isinstance(schema, Translated)
    ]
    return _case(f"CASE WHEN {sent}_is_avro THEN substring({sent}, 1, {start}) END", cases, "CAST(NULL AS STRING)")


def _json_sql(sent: str, start: int, schema: Translated) -> str:
    """Return SQL for the JSON of a key or value with a schema; NULL if it is not what the schema says."""
    fields = [
        {"name": "payload", "type": schema.plain},
        {"name": "end", "type": {"type": "fixed", "name": "End", "size": 8}},
    ]
    # Spark returns a struct of NULLs for what it cannot decode. A record around the schema's own type is written like
    # the type itself, and shows whether there is a value.
    whole = json.dumps({"type": "record", "name": "Whole", "fields": fields}, ensure_ascii=False)
    avro = f"from_avro(concat(substring({sent}, {start + 1}), {_END}), {text(whole)}, map('mode', 'PERMISSIVE'))"
    # The converter writes CloudEvents in JSON without a schema part.
    is_event = is_event_schema(schema.connect)
    message = json.dumps({"schema": _shortened(schema.connect)}, ensure_ascii=False, separators=(",", ":"))
    begin = "{" if is_event else message[:-1] + ","

    def written(read: str) -> str:
        named = f"CAST(named_struct('payload', {read}.payload) AS STRUCT<payload: {schema.sql}>)"
        named = f"{named}.payload" if is_event else named
        payload = f"to_json({named}, map('ignoreNullFields', 'false'))"
        return f"CASE WHEN {read}.end = {_END} THEN {let(payload, lambda found: _checked(found, begin, sent))} END"

    return let(avro, written)


def _shortened(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema part without the fields of `before`, `source` and `transaction`, which nobody reads.

    Every record has it, and in Avro none had, so that it decides how much memory a micro-batch takes.
    """
    if not is_envelope(schema):
        return schema
    fields = [
        {**member, "fields": []} if "fields" in member and member["field"] != "after" else member
        for member in schema["fields"]
    ]
    return {**schema, "fields": fields}


def _checked(payload: str, begin: str, sent: str) -> str:
    """Return SQL for the whole message; NULL if text in it was not UTF-8, which `to_json` replaces."""
    mark = text(_REPLACEMENT)

    def count(value: str) -> str:
        return f"(octet_length({value}) - octet_length(replace({value}, {mark}, '')))"

    is_replaced = f"contains({payload}, {mark}) AND {count(payload)} > {count(f'CAST({sent} AS STRING)')}"
    return f"CASE WHEN NOT ({is_replaced}) THEN concat({text(begin)}, substring({payload}, 2)) END"


def _error_sql(part: str, start: int, schemas: Mapping[bytes, Translated | str]) -> str:
    """Return SQL for why a key or value could not be decoded; NULL if it could."""
    whys = {
        prefix: schema
        if isinstance(schema, str)
        else f"it is not Avro of schema {_id(prefix)}, or has text that is not UTF-8"
        for prefix, schema in schemas.items()
    }
    cases = [f"WHEN x'{prefix.hex()}' THEN {text(why)}" for prefix, why in whys.items()]
    other = "'its schema was not read, since the records changed while they were'"
    other = f"IF(octet_length({part}) < {start}, 'it ends within the id of its schema', {other})"
    why = _case(f"substring({part}, 1, {start})", cases, other)
    failed = f"{part}_is_avro AND {part}_json IS NULL"
    return f"CASE WHEN {failed} THEN concat('the {part} cannot be decoded: ', {why}) END"


def _case(value: str, cases: Iterable[str], otherwise: str) -> str:
    found = " ".join(cases)
    return f"CASE {value} {found} ELSE {otherwise} END" if found else otherwise
