"""Kafka records to changes: each step is one projection, so that what a step makes is computed once."""

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
from stream_merge.debezium.envelope import Message, ParsedJson, header, message_fields, parse_json
from stream_merge.debezium.fields import Columns, Field, resolve_columns
from stream_merge.debezium.header_keys import PARSE_OPTIONS, mark_digits
from stream_merge.debezium.rows import decode_values, select_changes
from stream_merge.debezium.schemas import NO_KEYS_TOLD, NOTHING_TOLD, LearntColumns, Spelling, learn_columns, schema_sum
from stream_merge.debezium.settings import CHANGE_COL, Settings
from stream_merge.debezium.spelling import IS_TOMBSTONE, JSON_SPACE
from stream_merge.debezium.unavailable import DEFAULT_PLACEHOLDER
from stream_merge.debezium.values import Handling
from stream_merge.errors import ConfigError

logger = logging.getLogger("stream_merge")

OLD_KEY_HEADER = "__debezium.oldkey"
NEW_KEY_HEADER = "__debezium.newkey"


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
    """Return the changes in records of one table, as Debezium writes them to Kafka in JSON.

    A change has the data columns, typed, and a struct `_change`:

    - `op`: Debezium's: r (snapshot), c, u, d, t (truncate), m (logical message).
    - `sequence`: a struct of BIGINT that orders the changes of one key; see `docs/debezium.md`.
    - `unavailable`: names of the columns whose value did not change and was not sent. They are NULL in the row.
    - `key_only`: whether only the key columns are to be believed (deletes).
    - `old_key`, `new_key`: where a primary key changed: in the create the key that the row had, in the delete the one it got.
    - `before`: the row as it was, if asked for.
    - `topic`, `partition`, `offset`, `timestamp`: the record's.
    - `error`: why the record can't be decoded, or NULL. Columns that can be are filled none the less.
    - `raw`: where there is an error, or with `keep_raw` always, the text of the record's value; base64 of it if it is not UTF-8.

    Args:
        records: What Spark's Kafka source gives, `headers` with `includeHeaders=true`. Without headers, changes of primary
            keys are not noticed. Persist the changes before they are filtered or read twice: Spark would parse again.
        columns: The columns of the table: DDL, a schema, or a type or `Field` for each name. None learns them from the schema
            part of the records, which reads the records; in a stream give what `learn_columns` returns.
        keys: The key columns, taken from the record's key. An empty list is a table without a key; None learns
            them with the columns.
        format: Whether the messages are envelopes or flattened by ExtractNewRecordState; detected record by record by default.
        placeholder: The connector's `unavailable.value.placeholder`.
        meta_prefix: Prefix of the fields and headers that the flattening adds.
        keep_tombstones: Whether records without a value are deletes, as with the default of ExtractNewRecordState
            (`delete.tombstone.handling.mode=tombstone`). By default they are left out, since after envelopes they follow
            deletes for Kafka's sake alone.
        keep_messages: Whether logical messages (op m), which change no row, are kept.
        keep_raw: Whether every change has the text of its record in `_change.raw`: a quarantine then has it of rows, too, that
            can be decoded and fail a cast or an expectation. It is carried through the whole merge.
        before: Whether `_change` has the row as it was; by default for tables without a key.
        order: What orders the changes of a key: the source's log, or the records' offsets, which are right as long as nothing
            is delivered again. By default the log; the offsets with `keep_tombstones`, since tombstones carry no place in the log.
        snapshot_first: Whether rows of a snapshot rank before all changes, as they must after an initial snapshot of PostgreSQL: it
            may carry a higher position than a change that it does not contain. False lets a later snapshot repair rows. By
            default they do, but for those of MySQL and MariaDB, which know their place in the log.
        decimals: The connector's `decimal.handling.mode`, for columns without a semantic type.
        binary: The connector's `binary.handling.mode`; "base64" is "bytes" too.
        timestamp_unit: Unit of timestamps that are integers and have no semantic type.

    Raises:
        ConfigError: The columns, the keys or the records do not go together.
    """
    _check_records(records)
    spellings: Sequence[Spelling] = ()
    if columns is None:
        columns = learn_columns(records, meta_prefix=meta_prefix)
        if columns is None:
            raise ConfigError([NOTHING_TOLD])
    if isinstance(columns, LearntColumns):
        fields, spellings = columns.fields, columns.spellings
        if keys is None and columns.keys is None:
            raise ConfigError([NO_KEYS_TOLD])
        keys = columns.keys if keys is None else keys
        if columns.num_unmarked_deletes and not keep_tombstones:
            logger.warning(
                "%d records of %s have no value, and are left out: beside flattened events without __deleted they are the deletes "
                "(keep_tombstones=True makes deletes of them)",
                columns.num_unmarked_deletes,
                columns.topic,
            )
    else:
        fields = resolve_columns(columns)
    settings = Settings(
        fields=fields,
        keys=_check_keys(fields, keys),
        layout=format,
        placeholder=placeholder,
        meta_prefix=meta_prefix,
        keep_tombstones=keep_tombstones,
        keep_messages=keep_messages,
        keep_raw=keep_raw,
        before=not keys if before is None else before,
        order=order or ("offset" if keep_tombstones else "source"),
        snapshot_first=snapshot_first,
        handling=Handling(decimals=decimals, binary=binary, timestamp_unit=timestamp_unit),
    )
    _check_options(settings)
    return _decode_each(records, settings, spellings) if spellings else _decode_records(records, settings)


def _check_records(records: DataFrame) -> None:
    missing = [name for name in ("key", "value", "topic", "partition", "offset") if name not in records.columns]
    if missing:
        raise ConfigError([f"records have no column {name!r}; Spark's Kafka source gives it" for name in missing])


def _check_keys(fields: Mapping[str, Field], keys: Sequence[str] | None) -> tuple[str, ...]:
    if keys is None:
        raise ConfigError(["keys are not given; keys=[] says that the table has none"])
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    faults = [f"key {name!r} is not among the columns {', '.join(fields)}" for name in names if name not in fields]
    if any(name.lower() == CHANGE_COL for name in fields):
        faults.append(f"a column is called {CHANGE_COL!r}, which is the name of the struct that describes a change")
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
    if settings.keep_tombstones and not settings.keys:
        faults.append("keep_tombstones needs keys: a tombstone has nothing else")
    if faults:
        raise ConfigError(faults)


def _decode_each(records: DataFrame, settings: Settings, spellings: Sequence[Spelling]) -> DataFrame:
    """Decode the records of each schema as they spell the values.

    Those without a schema are tombstones, or bad. Of a schema that was not learnt nobody knows the scale of a decimal.
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
    has_headers = "headers" in records.columns
    value_fields = message_fields(
        settings.names, settings.layout, with_before=settings.before, meta_prefix=settings.meta_prefix
    )
    value = parse_json(F.col("value"), value_fields)
    message = Message(
        parsed=value,
        columns=settings.names,
        layout=settings.layout,
        meta_prefix=settings.meta_prefix,
        has_headers=has_headers,
    )
    key_fields: dict[str, T.DataType] = dict.fromkeys(settings.keys or ("",), T.StringType())
    keys = {
        "key": parse_json(F.col("key"), key_fields),
        **{name: parse_json(F.col(name), key_fields, PARSE_OPTIONS) for name in ("old_key", "new_key")},
    }

    frame = _select_texts(records, settings)
    frame = frame.withColumns(
        {"parsed": value.struct, **{f"parsed_{name}": parsed.struct for name, parsed in keys.items()}}
    )
    frame = frame.withColumns(
        {
            "body": F.expr(value.body("parsed")),
            **{name: F.expr(_key_sql(parsed, f"parsed_{name}")) for name, parsed in keys.items()},
            "is_malformed": F.expr(_is_malformed("value", "parsed")),
            "is_key_malformed": F.expr(
                " OR ".join(_is_malformed(f"{name}_text", f"parsed_{name}", or_null=False) for name in keys)
            ),
        }
    )
    frame = frame.withColumn("meta_headers", F.expr(message.meta_headers_sql()))
    frame = frame.withColumn("layout", F.expr(message.layout_sql()))
    frame = frame.withColumns(
        {
            "op": F.expr(f"CASE WHEN is_tombstone THEN 'd' ELSE {message.op_sql()} END"),
            "position": F.expr(message.position_sql()),
            "after": F.expr(message.image_sql("after")),
            **({"before": F.expr(message.image_sql("before"))} if settings.before else {}),
        }
    )
    return select_changes(decode_values(frame, settings), settings)


def _select_texts(records: DataFrame, settings: Settings) -> DataFrame:
    """Return key and value as text; leave out the records that change nothing."""
    has_headers = "headers" in records.columns
    timestamp = F.col("timestamp") if "timestamp" in records.columns else F.lit(None).cast("timestamp")
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
    texts = records.select(
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
        F.expr("NOT is_valid_utf8(CAST(value AS STRING))" if is_binary else "false").alias("is_no_text"),
        F.expr(_is_unlearnt(settings.schemas)).alias("is_unlearnt"),
    )
    conditions = [] if settings.keep_tombstones else ["NOT is_tombstone"]
    if not settings.keep_messages and settings.layout != "flattened":
        # On the text, since Spark would move a condition on the parsed message to before the parsing, and parse twice.
        # A flattened row may have a column `op`, and others of these names; it has no object `message` with a prefix.
        conditions.append(
            """NOT coalesce(contains(value, '"m"') AND value RLIKE '"op" *: *"m"'
            AND coalesce(get_json_object(value, '$.op'), get_json_object(value, '$.payload.op')) = 'm'
            AND coalesce(get_json_object(value, '$.message.prefix'), get_json_object(value, '$.payload.message.prefix'))
                IS NOT NULL, false)"""
        )
    return texts.where(" AND ".join(conditions)) if conditions else texts


def _is_unlearnt(schemas: Sequence[int] | None) -> str:
    if schemas is None:
        return "false"
    return f"coalesce({schema_sum()} NOT IN ({', '.join(f'{schema}L' for schema in schemas)}), false)"


def _key_sql(parsed: ParsedJson, name: str) -> str:
    return f"CASE WHEN {name} IS NOT NULL AND {name}.corrupt IS NULL THEN {parsed.body(name)} END"


def _is_malformed(json: str, parsed: str, *, or_null: bool = True) -> str:
    # Spark reads the first JSON and ignores what follows it.
    is_object = f"(endswith({json}, '}}') OR endswith(trim(TRAILING {JSON_SPACE} FROM {json}), '}}'))"
    bad = f"{parsed} IS NULL OR {parsed}.corrupt IS NOT NULL OR NOT {is_object}"
    return f"coalesce({bad}, true)" if or_null else f"coalesce({json} IS NOT NULL AND ({bad}), false)"
