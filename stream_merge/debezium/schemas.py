"""Columns from the schema part that Kafka Connect's JsonConverter puts into messages (schemas.enable=true)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.debezium.fields import SEMANTICS, Field
from stream_merge.debezium.spelling import IS_TOMBSTONE
from stream_merge.errors import ConfigError

_PLAIN: dict[str, T.DataType] = {
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "boolean": T.BooleanType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
_SEMANTIC: dict[str, T.DataType] = {
    "Date": T.DateType(),
    "IsoDate": T.DateType(),
    "Timestamp": T.TimestampNTZType(),
    "MicroTimestamp": T.TimestampNTZType(),
    "NanoTimestamp": T.TimestampNTZType(),
    "IsoTimestamp": T.TimestampNTZType(),
    "ZonedTimestamp": T.TimestampType(),
    # Delta tables have no type for a time of day.
    "Time": T.StringType(),
    "MicroTime": T.StringType(),
    "NanoTime": T.StringType(),
    # Its digits after the point are as many as the value has.
    "VariableScaleDecimal": T.StringType(),
    "Bits": T.StringType(),
}
_WIDENING = ("int8", "int16", "int32", "int64")
_MAX_PRECISION = 38
_UNLIMITED = 2**31 - 1
NOTHING_TOLD = "no record has a value, so that none tells the columns; give them, or what learn_columns told before"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How some of the records spell the values: as they do whose schema part has one of these MD5 sums."""

    schemas: tuple[str, ...]
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class LearntColumns:
    """What the schema parts of the records say.

    Attributes:
        fields: The columns, with types that hold the values of all records.
        keys: The names of the key columns.
        spellings: The same columns as records of different schemas spell them, the newest last: `numeric(8, 2)` that became
            `numeric(12, 4)` has another scale, `timestamp(3)` that became `timestamp(6)` another unit.
    """

    fields: Mapping[str, Field]
    keys: tuple[str, ...]
    spellings: tuple[Spelling, ...]


def schema_sum() -> str:
    """Return SQL for the MD5 sum of a record's schema part, NULL where it has none."""
    return "md5(get_json_object(CAST(value AS STRING), '$.schema'))"


def table_schema(records: DataFrame, *, meta_prefix: str = "__") -> T.StructType:
    """Return the schema of a table for the records' columns, from their schema part; it reads the records.

    Columns of all schemas in the records are there, in the order in which they came up, with the wider type of a column that was
    widened. Key columns are NOT NULL, all others may be NULL: a delete has no values.

    Args:
        records: Records of one table, as Kafka has them.
        meta_prefix: Prefix of the fields that the flattening adds.

    Raises:
        ConfigError: The records have no schema part, or are of several tables.
    """
    learnt = learn_columns(records, meta_prefix=meta_prefix)
    if learnt is None:
        raise ConfigError([NOTHING_TOLD])
    return T.StructType(
        [T.StructField(name, field.data_type, name not in learnt.keys) for name, field in learnt.fields.items()]
    )


def learn_columns(
    records: DataFrame, known: LearntColumns | None = None, *, meta_prefix: str = "__"
) -> LearntColumns | None:
    """Return columns and keys from the records' schema part, for `changes(columns=)`; it reads the records.

    In a stream, give what the batch before told: a batch may have nothing but records without a value, which follow deletes, or a
    TRUNCATE, which has no key.

    Args:
        records: Records of one table, as Kafka has them.
        known: What was learnt before.
        meta_prefix: Prefix of the fields that the flattening adds.

    Returns:
        What the records tell, and where they do not, what is known; None where nothing is, and no record has a value to decode.

    Raises:
        ConfigError: Records have values, but no schema part, or are of several tables.
    """
    if records.isStreaming:
        raise ConfigError(
            ["columns can't be learnt from a stream before it runs; give them, or call this in foreachBatch"]
        )
    age = F.min("timestamp" if "timestamp" in records.columns else "offset").alias("age")
    rows = (
        records.select(
            "topic",
            *[name for name in ("timestamp", "offset") if name in records.columns],
            F.get_json_object(F.col("key").cast("string"), "$.schema").alias("key_schema"),
            F.get_json_object(F.col("value").cast("string"), "$.schema").alias("value_schema"),
            F.expr(schema_sum()).alias("sum"),
        )
        .where("value_schema IS NOT NULL")
        .groupBy("topic", "key_schema", "value_schema", "sum")
        .agg(age)
        .orderBy("age")
        .collect()
    )
    topics = sorted({row["topic"] for row in rows})
    if not topics:
        if records.where(f"NOT {IS_TOMBSTONE}").isEmpty():
            return known
        raise ConfigError(["no record has a schema part (schemas.enable=true); give the columns"])
    if len(topics) > 1:
        raise ConfigError([f"the records are of several topics ({', '.join(topics)}); select one"])

    fields: dict[str, Field] = {}
    keys: list[str] = []
    sent: dict[str, dict[str, Field]] = {}
    for row in rows:
        own = sent[row["sum"]] = {}
        for member in _row_members(json.loads(row["value_schema"]), meta_prefix):
            name, field = member["field"], _field(member)
            fields[name] = _wider(name, fields[name], field) if name in fields else field
            own[name] = field
        for member in json.loads(row["key_schema"]).get("fields", ()) if row["key_schema"] else ():
            keys += [] if member["field"] in keys else [member["field"]]
    if not any(row["key_schema"] for row in rows) and known is not None:
        keys = list(known.keys)
    spellings = _spellings(fields, sent)
    return LearntColumns(spellings[-1].fields, tuple(key for key in keys if key in fields), spellings)


def _spellings(fields: Mapping[str, Field], sent: Mapping[str, Mapping[str, Field]]) -> tuple[Spelling, ...]:
    """Return how the records of each schema spell the columns; schemas that spell them alike are one."""
    spellings: list[Spelling] = []
    for schema, own in sent.items():
        spelt = {name: replace(own.get(name, field), type=field.data_type) for name, field in fields.items()}
        alike = next((spelling for spelling in spellings if spelling.fields == spelt), None)
        if alike is not None:
            spellings.remove(alike)
        spellings.append(Spelling((*(alike.schemas if alike else ()), schema), spelt))
    return tuple(spellings)


def _row_members(schema: Mapping[str, Any], meta_prefix: str) -> Sequence[Mapping[str, Any]]:
    members: Sequence[Mapping[str, Any]] = schema.get("fields", ())
    names = {member["field"]: member for member in members}
    if {"op", "source", "after"} <= names.keys() and names["after"]["type"] == "struct":
        after: Sequence[Mapping[str, Any]] = names["after"]["fields"]
        return after
    return [member for name, member in names.items() if not name.startswith(meta_prefix)]


def _field(schema: Mapping[str, Any]) -> Field:
    """Return the field that a schema of Kafka Connect describes."""
    kind = schema.get("name", "").rpartition(".")[2]
    semantic = schema["name"] if kind in SEMANTICS else None
    parameters = schema.get("parameters") or {}
    if kind == "Decimal" and schema["type"] == "bytes":
        return _decimal(semantic, parameters)
    if kind in _SEMANTIC:
        # `bit varying` without a length has one of 2147483647.
        length = int(parameters.get("length", _UNLIMITED)) if kind == "Bits" else _UNLIMITED
        return Field(_SEMANTIC[kind], semantic, length=length if length < _UNLIMITED else None)
    match schema["type"]:
        case "array":
            element = _field(schema["items"])
            return Field(T.ArrayType(element.data_type), element=element)
        case "map":
            element = _field(schema["values"])
            return Field(T.MapType(T.StringType(), element.data_type), element=element)
        case "struct":
            fields = {member["field"]: _field(member) for member in schema["fields"]}
            members = [T.StructField(name, field.data_type) for name, field in fields.items()]
            return Field(T.StructType(members), semantic, fields=fields)
        case plain if plain in _PLAIN:
            return Field(_PLAIN[plain], semantic)
        case unknown:
            raise ConfigError(
                [f"field {schema.get('field')!r} has Kafka Connect's type {unknown!r}, which is not known"]
            )


def _decimal(semantic: str | None, parameters: Mapping[str, str]) -> Field:
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", _MAX_PRECISION))
    if precision > _MAX_PRECISION or not 0 <= scale <= precision:
        # No DECIMAL holds it; its text loses nothing.
        return Field(T.StringType(), semantic, scale=scale)
    return Field(T.DecimalType(precision, scale), semantic, scale=scale)


def _wider(name: str, old: Field, new: Field) -> Field:
    """Return the field that holds the values of both; the newer description wins in all else."""
    before, after = old.data_type, new.data_type
    if before == after:
        return new
    integers = [_PLAIN[plain] for plain in _WIDENING]
    if before in integers and after in integers:
        return replace(new, type=integers[max(integers.index(before), integers.index(after))])
    if isinstance(before, T.FloatType | T.DoubleType) and isinstance(after, T.FloatType | T.DoubleType):
        return replace(new, type=T.DoubleType())
    if isinstance(before, T.DecimalType) and isinstance(after, T.DecimalType):
        scale = max(before.scale, after.scale)
        precision = max(before.precision - before.scale, after.precision - after.scale) + scale
        if precision <= _MAX_PRECISION:
            return replace(new, type=T.DecimalType(precision, scale))
    raise ConfigError(
        [
            f"column {name!r} is {before.simpleString()} in some records and {after.simpleString()} in others; "
            "give the columns, or decode the records of each schema apart"
        ]
    )
