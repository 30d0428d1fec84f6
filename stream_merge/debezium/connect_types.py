"""Translates the types of Kafka Connect's schemas into fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from stream_merge.debezium.fields import BYTES, SEMANTICS, Field
from stream_merge.errors import ConfigError
from stream_merge.widening import MAX_PRECISION

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
    # Delta has no type for a time of day.
    "Time": T.StringType(),
    "MicroTime": T.StringType(),
    "NanoTime": T.StringType(),
    # Each value has its own number of digits after the point.
    "VariableScaleDecimal": T.StringType(),
    "Bits": T.StringType(),
}
_UNLIMITED = 2**31 - 1


def field_of(schema: Mapping[str, Any]) -> Field:
    """Return the field that a schema of Kafka Connect describes."""
    kind = schema.get("name", "").rpartition(".")[2]
    semantic = schema["name"] if kind in SEMANTICS else None
    parameters = schema.get("parameters") or {}
    if kind == "Decimal" and schema["type"] == "bytes":
        return _decimal(semantic, parameters)
    if kind in _SEMANTIC:
        # `bit varying` without a length reports 2147483647.
        length = int(parameters.get("length", _UNLIMITED)) if kind == "Bits" else _UNLIMITED
        return Field(_SEMANTIC[kind], semantic, length=length if length < _UNLIMITED else None)
    match schema["type"]:
        case "array":
            element = field_of(schema["items"])
            return Field(T.ArrayType(element.data_type), element=element)
        case "map" if schema["keys"]["type"] != "string":
            # JsonConverter writes a list of pairs then, which no type of Spark's has: pgvector's sparsevec, say.
            return Field(T.StringType())
        case "map":
            element = field_of(schema["values"])
            return Field(T.MapType(T.StringType(), element.data_type), element=element)
        case "struct":
            fields = {member["field"]: field_of(member) for member in schema["fields"]}
            members = [T.StructField(name, field.data_type) for name, field in fields.items()]
            return Field(T.StructType(members), semantic, fields=fields)
        case plain if plain in _PLAIN:
            return Field(_PLAIN[plain], semantic or (BYTES if plain == "bytes" else None))
        case unknown:
            raise ConfigError(
                [f"field {schema.get('field')!r} has Kafka Connect's unknown type {unknown!r}; give the columns"]
            )


def _decimal(semantic: str | None, parameters: Mapping[str, str]) -> Field:
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", MAX_PRECISION))
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        # No DECIMAL holds it; as text it loses nothing.
        return Field(T.StringType(), semantic, scale=scale)
    return Field(T.DecimalType(precision, scale), semantic, scale=scale)
