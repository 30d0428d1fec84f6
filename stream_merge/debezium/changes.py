"""Turns Kafka records into changes; each step is one projection, so that its results are computed once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.bridge.kept_plans import KeptPlans
from stream_merge.debezium.cloud_events import SPEC, from_cloud_events, is_left_event
from stream_merge.debezium.decode_errors import DECODE_ERROR_COL, has_decode_errors
from stream_merge.debezium.envelope import (
    CORRUPT,
    Message,
    ParsedJson,
    can_detect_flattened,
    flattened_names,
    header,
    parse_envelope,
    parse_json,
)
from stream_merge.debezium.fields import Columns, Field, resolve_columns
from stream_merge.debezium.header_keys import PARSE_OPTIONS, mark_digits
from stream_merge.debezium.keys import ROUTED_FROM, learn_keys
from stream_merge.debezium.rows import decode_values, select_changes
from stream_merge.debezium.schemas import NOTHING_TOLD, LearntColumns, Spelling, learn_columns, schema_sum
from stream_merge.debezium.settings import CHANGE_COL, Settings
from stream_merge.debezium.spelling import IS_TOMBSTONE, JSON_SPACE, are_several_objects
from stream_merge.debezium.unavailable import DEFAULT_PLACEHOLDER
from stream_merge.debezium.values import Handling
from stream_merge.errors import ConfigError

logger: logging.Logger = logging.getLogger("stream_merge")

OLD_KEY_HEADER = "__debezium.oldkey"
NEW_KEY_HEADER = "__debezium.newkey"

_OF_ROUTER = ": ByLogicalTableRouter adds it to the records' keys, so give it as a STRING among the columns"

_plans = KeptPlans(max_columns=1000)
"""How the records of each table are decoded: a pipeline decodes those of all its tables in every micro-batch."""


@without_call_sites()
def changes(
    records: DataFrame,
    columns: Columns | LearntColumns | None = None,
    keys: Sequence[str] | None = None,
    *,
    format: Literal["envelope", "flattened"] | None = None,
    placeholder: str = DEFAULT_PLACEHOLDER,
    meta_prefix: str = "__",
    keep_tombstones: bool = False,
    keep_messages: bool = False,
    keep_raw: bool = False,
    before: bool | None = None,
    order: Literal["source", "offset"] | None = None,
    snapshot_first: bool | None = None,
    decimals: Literal["precise", "string", "double"] = "precise",
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64",
    timestamp_unit: Literal["ms", "us", "ns"] = "us",
) -> DataFrame:
    """Return the changes in the records of one table, as Debezium writes them to Kafka in JSON, also as CloudEvents.

    A change has the typed data columns, and a struct `_change`:

    - `op`: Debezium's: r (snapshot), c, u, d, t (truncate), m (logical message).
    - `sequence`: a struct of BIGINT that orders the changes of one key; see `docs/debezium.md`.
    - `unavailable`: names of the columns whose values did not change and were not sent; they are NULL in the row.
    - `key_only`: whether only the key columns are valid (deletes).
    - `old_key`, `new_key`: if a primary key changed: in the create the row's previous key, in the delete its new one.
    - `before`: the row before the change, on request.
    - `topic`, `partition`, `offset`, `timestamp`: those of the record.
    - `error`: why the record cannot be decoded, or NULL. Columns that can be decoded are still filled.
    - `raw`: the text of the record's value, base64 if it is not UTF-8; only if there is an error, or always with
      `keep_raw`.

    Args:
        records: The rows of Spark's Kafka source, with `headers` (`includeHeaders=true`). Without headers, changes of
            primary keys go unnoticed. Persist the changes before you read them twice; otherwise Spark parses
            them again.
        columns: The columns of the table: DDL, a schema, or a type or `Field` for each name. None learns them from the
            schema part of the records, which reads the records; in a stream, pass the result of `learn_columns`.
        keys: The key columns, taken from the record's key. An empty list means a table without a key; None learns them
            from the records' keys, which reads the records: see `learn_keys`. If no record tells them, `_change` has no
            key either, and a sink with `learn=learn_options` goes by what its table remembers.
        format: Whether the messages are envelopes or flattened by ExtractNewRecordState; detected record by record by
            default. Given "flattened", such messages are decoded faster, since they are not parsed as envelopes first.
        placeholder: The connector's `unavailable.value.placeholder`.
        meta_prefix: Prefix of the fields and headers that the flattening adds.
        keep_tombstones: Whether records without a value are deletes, as with the default of ExtractNewRecordState
            (`delete.tombstone.handling.mode=tombstone`). By default they are dropped, since after envelopes they only
            follow deletes for Kafka's log compaction.
        keep_messages: Whether to keep logical messages (op m), which change no row.
        keep_raw: Whether every change has the text of its record in `_change.raw`, so that the quarantine has it also
            for rows that are decoded but fail a cast or an expectation. The text is carried through the whole merge.
        before: Whether `_change` has the row before the change; by default for tables without a key.
        order: What orders the changes of a key: "source", the source's log, or "offset", the records' offsets, which
            are correct as long as nothing is delivered again. The default is the log, or the offsets with
            `keep_tombstones`, since tombstones have no position in the log.
        snapshot_first: Whether rows of a snapshot rank before all changes. After an initial snapshot of PostgreSQL they
            must: it may carry a higher position than a change that it does not contain. False lets a later snapshot
            repair rows. By default they rank first, except for MySQL and MariaDB, whose snapshots know their position
            in the log.
        decimals: The connector's `decimal.handling.mode`, for columns without a semantic type.
        binary: The connector's `binary.handling.mode`, for columns without a semantic type; "base64" also stands for
            "bytes".
        timestamp_unit: Unit of timestamps that are integers and have no semantic type.

    Raises:
        ConfigError: The columns, the keys and the records contradict each other, or the keys cannot be learnt.
    """
    _check_records(records)
    spellings: Sequence[Spelling] = ()
    if columns is None:
        columns = learn_columns(records, meta_prefix=meta_prefix)
        if columns is None:
            raise ConfigError([NOTHING_TOLD])
    if isinstance(columns, LearntColumns):
        columns = columns if keys is None else columns.for_keys(keys)
        fields, spellings = columns.fields, columns.spellings
        keys = columns.told_keys.checked() if keys is None else keys
        if columns.num_unmarked_deletes and not keep_tombstones:
            logger.warning(
                "%d records of %s have no value and are dropped: with flattened events that have no __deleted, they "
                "are the deletes; set keep_tombstones=True to keep them",
                columns.num_unmarked_deletes,
                columns.topic,
            )
    else:
        fields = resolve_columns(columns)
        if ROUTED_FROM in fields:
            fields[ROUTED_FROM] = replace(fields[ROUTED_FROM], is_in_key_only=True)
        keys = learn_keys(records) if keys is None else keys
    settings = Settings(
        fields=fields,
        keys=_check_keys(fields, () if keys is None else keys),
        is_untold=keys is None,
        layout=format,
        placeholder=placeholder,
        meta_prefix=meta_prefix,
        keep_tombstones=keep_tombstones,
        keep_messages=keep_messages,
        keep_raw=keep_raw,
        # Without keys it would say that the table has none.
        before=keys is not None and (not keys if before is None else before),
        order=order or ("offset" if keep_tombstones else "source"),
        snapshot_first=snapshot_first,
        may_have_decode_errors=has_decode_errors(records),
        handling=Handling(decimals=decimals, binary=binary, timestamp_unit=timestamp_unit),
    )
    _check_options(settings)
    return _plans.apply(repr((settings, spellings)), records, lambda rows: _decode(rows, settings, spellings))


def _decode(records: DataFrame, settings: Settings, spellings: Sequence[Spelling]) -> DataFrame:
    records = from_cloud_events(_with_changes(records, settings))
    return _decode_each(records, settings, spellings) if spellings else _decode_records(records, settings)


def _check_records(records: DataFrame) -> None:
    missing = [name for name in ("key", "value", "topic", "partition", "offset") if name not in records.columns]
    if missing:
        raise ConfigError(
            [f"records have no column {name!r}; pass the rows of Spark's Kafka source" for name in missing]
        )


def _check_keys(fields: Mapping[str, Field], keys: Sequence[str]) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    faults = [
        f"key {name!r} is not among the columns {', '.join(fields)}" + (_OF_ROUTER if name == ROUTED_FROM else "")
        for name in names
        if name not in fields
    ]
    if any(name.lower() == CHANGE_COL for name in fields):
        faults.append(f"a column is called {CHANGE_COL!r}, the name of the struct that describes a change; rename it")
    if faults:
        raise ConfigError(faults)
    return names


def _check_options(settings: Settings) -> None:
    options = {
        "format": (settings.layout, (None, "envelope", "flattened")),
        "order": (settings.order, ("source", "offset")),
        "decimals": (settings.handling.decimals, ("precise", "string", "double")),
        "binary": (settings.handling.binary, ("base64", "base64-url-safe", "hex")),
        "timestamp_unit": (settings.handling.timestamp_unit, ("ms", "us", "ns")),
    }
    faults = [
        f"{name} is {given!r}; it can be {', '.join(map(repr, allowed))}"
        for name, (given, allowed) in options.items()
        if given not in allowed
    ]
    if settings.keep_tombstones and not settings.keys and not settings.is_untold:
        faults.append("keep_tombstones needs keys, since a tombstone has only a key")
    if faults:
        raise ConfigError(faults)


def _decode_each(records: DataFrame, settings: Settings, spellings: Sequence[Spelling]) -> DataFrame:
    """Decode the records of each schema by its spelling of the values.

    Records without a schema are tombstones, or malformed. For an unknown schema, the scale of a decimal is unknown too.
    """
    *older, newest = spellings
    settings = replace(settings, schemas=tuple(schema for spelling in spellings for schema in spelling.schemas))
    if not older:
        return _decode_records(records, replace(settings, fields=newest.fields))
    sums = [", ".join(f"{schema}L" for schema in spelling.schemas) for spelling in older]
    place = " ".join(f"WHEN {schema_sum()} IN ({of_one}) THEN {number}" for number, of_one in enumerate(sums))
    parts = [
        _decode_records(
            records.where(f"CASE {place} ELSE {len(older)} END = {number}"), replace(settings, fields=spelling.fields)
        )
        for number, spelling in enumerate((*older, newest))
    ]
    return reduce(DataFrame.unionAll, parts)


def _decode_records(records: DataFrame, settings: Settings) -> DataFrame:
    message = _message(settings, has_headers="headers" in records.columns)
    frame = _parse(_select_texts(records, settings), message, settings)
    frame = frame.withColumns(
        {
            "op": F.expr(f"CASE WHEN is_tombstone THEN 'd' ELSE {message.op_sql()} END"),
            **{name: F.expr(sql) for name, sql in message.position_sql().items()},
        }
    )
    images = ("after", "before") if settings.before else ("after",)
    frame = frame.withColumns({name: F.expr(message.image_sql(name)) for name in images})
    return select_changes(decode_values(frame, settings), settings)


def _parse(frame: DataFrame, message: Message, settings: Settings) -> DataFrame:
    """Add the parts of the message that `Message` reads, the keys, and whether they are malformed.

    What is no envelope is parsed once more as a flattened event: to parse every message as both would take longer.
    """
    key_names = settings.keys or ("",)
    keys = {
        "key": parse_json(F.col("key"), key_names),
        **{name: parse_json(F.col(name), key_names, PARSE_OPTIONS) for name in ("old_key", "new_key")},
    }
    parsed = {f"parsed_{name}": key.struct for name, key in keys.items()}
    if message.has_envelope:
        parsed["envelope"] = parse_envelope(F.col("value"), settings.sent_names, with_before=settings.before)
    are_bad = [_is_malformed(f"{name}_text", f"parsed_{name}", or_null=False) for name in keys]
    parts = {
        **{name: F.expr(_key_sql(key, f"parsed_{name}")) for name, key in keys.items()},
        "is_key_malformed": F.expr(" OR ".join(are_bad)),
        "meta_headers": F.expr(message.meta_headers_sql()),
        **{name: F.expr(sql) for name, sql in message.sent_sql().items()},
    }
    is_malformed = _is_malformed("value", "envelope")
    flattened = message.flattened
    if flattened is None:
        return frame.withColumns(parsed).withColumns({**parts, "is_malformed": F.expr(is_malformed)})
    parts["flattened"] = F.when(F.expr(message.may_be_flattened), flattened.struct)
    if message.has_envelope:
        parts["is_envelope_malformed"] = F.expr(is_malformed)
    body = {
        "body": F.expr(f"CASE WHEN flattened IS NOT NULL THEN {flattened.body('flattened')} END"),
        "is_malformed": F.expr(message.by_layout("is_envelope_malformed", _is_malformed("value", "flattened"))),
    }
    return frame.withColumns(parsed).withColumns(parts).withColumns(body)


def _message(settings: Settings, *, has_headers: bool) -> Message:
    may_be_flattened = settings.layout == "flattened" or (
        settings.layout is None and can_detect_flattened(settings.sent_names)
    )
    names = flattened_names(settings.sent_names, settings.meta_prefix)
    return Message(
        columns=settings.sent_names,
        layout=settings.layout,
        meta_prefix=settings.meta_prefix,
        has_headers=has_headers,
        with_before=settings.before,
        flattened=parse_json(F.col("value"), names) if may_be_flattened else None,
    )


def _with_changes(records: DataFrame, settings: Settings) -> DataFrame:
    """Return the records without those that change nothing.

    Conditions on the records as they were sent: Spark would move one on anything parsed before the parsing, and parse
    twice.
    """
    conditions = [] if settings.keep_tombstones else [f"NOT {IS_TOMBSTONE}"]
    if not settings.keep_messages and settings.layout != "flattened":
        value = "CAST(value AS STRING)"
        op, prefix = (
            f"coalesce(get_json_object({value}, '$.{path}'), get_json_object({value}, '$.payload.{path}'))"
            for path in ("op", "message.prefix")
        )
        # A flattened row may have a column `op` and others of these names, but no object `message` with a prefix.
        conditions.append(
            f"""NOT coalesce(contains({value}, '"m"') AND {value} RLIKE '"op" *: *"m"'
            AND {op} = 'm' AND {prefix} IS NOT NULL, false)"""
        )
    return records.where(" AND ".join(conditions)) if conditions else records


def _select_texts(records: DataFrame, settings: Settings) -> DataFrame:
    """Return key and value as text."""
    has_headers = "headers" in records.columns
    timestamp = F.col("timestamp") if "timestamp" in records.columns else F.lit(None).cast("timestamp_ltz")
    is_no_text = "NOT is_valid_utf8(CAST(value AS STRING))"
    if settings.may_have_decode_errors:
        # What begins with a byte 0 is in Avro still, even if all its bytes happen to be letters.
        is_no_text = f"({is_no_text} OR coalesce(startswith(value, x'00'), false))"
    is_binary = isinstance(records.schema["value"].dataType, T.BinaryType)
    keys = [(name, settings.fields[name]) for name in settings.keys]
    headers = {
        name: F.expr(
            mark_digits(header("headers", header_name), keys, settings.handling)
            if has_headers
            else "CAST(NULL AS STRING)"
        )
        for name, header_name in (("old_key", OLD_KEY_HEADER), ("new_key", NEW_KEY_HEADER))
    }
    return records.select(
        "topic",
        "partition",
        "offset",
        timestamp.alias("timestamp"),
        *([F.col("headers")] if has_headers else []),
        F.expr("CAST(value AS STRING)").alias("value"),
        *[
            text.alias(alias)
            for name, text in {"key": F.expr("CAST(key AS STRING)"), **headers}.items()
            for alias in (name, f"{name}_text")
        ],
        F.expr(IS_TOMBSTONE).alias("is_tombstone"),
        F.expr(is_no_text if is_binary else "false").alias("is_no_text"),
        *([F.col(DECODE_ERROR_COL).alias("decode_error")] if settings.may_have_decode_errors else []),
        F.expr(_is_unlearnt(settings.schemas)).alias("is_unlearnt"),
        F.expr(_is_envelope_after_all(settings)).alias("is_envelope_after_all"),
        F.expr(_is_event_after_all(settings)).alias("is_event_after_all"),
    )


def _is_envelope_after_all(settings: Settings) -> str:
    """Return SQL for whether a message is an envelope though it is said to be flattened: all columns would be NULL."""
    if settings.layout != "flattened" or not {"op", "source"}.isdisjoint(settings.sent_names):
        return "false"
    value = "CAST(value AS STRING)"
    op, source = (
        f"coalesce(get_json_object({value}, '$.{name}'), get_json_object({value}, '$.payload.{name}'))"
        for name in ("op", "source")
    )
    # Looked for only where the names are in the text.
    names = f"""contains({value}, '"op"') AND contains({value}, '"source"')"""
    return f"coalesce({names} AND {op} IS NOT NULL AND {source} LIKE '{{%', false)"


def _is_event_after_all(settings: Settings) -> str:
    """Return SQL for whether a message is an unreadable CloudEvent though it is said to be flattened."""
    if settings.layout != "flattened" or SPEC in settings.sent_names:
        return "false"
    return is_left_event("CAST(value AS STRING)")


def _is_unlearnt(schemas: Sequence[int] | None) -> str:
    if schemas is None:
        return "false"
    return f"coalesce({schema_sum()} NOT IN ({', '.join(f'{schema}L' for schema in schemas)}), false)"


def _key_sql(parsed: ParsedJson, name: str) -> str:
    return f"CASE WHEN {name} IS NOT NULL AND {name}.{CORRUPT} IS NULL THEN {parsed.body(name)} END"


def _is_malformed(json: str, parsed: str, *, or_null: bool = True) -> str:
    # Spark reads the first JSON value and ignores the rest.
    is_object = f"(endswith({json}, '}}') OR endswith(trim(TRAILING {JSON_SPACE} FROM {json}), '}}'))"
    bad = f"{parsed} IS NULL OR {parsed}.{CORRUPT} IS NOT NULL OR NOT {is_object}"
    if or_null:
        bad += f" OR {are_several_objects(json)}"
    return f"coalesce({bad}, true)" if or_null else f"coalesce({json} IS NOT NULL AND ({bad}), false)"
