"""Values of PostgreSQL as its own text has them, and as Spark has them after decoding, in one form to compare."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.debezium import Field

INFINITIES = {
    "+5881580-07-11": "infinity",
    "-5877641-06-23": "-infinity",
    "+294247-01-10 04:00:54.775807": "infinity",
    "-290308-12-21 19:59:05.224192": "-infinity",
}
INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"  # ISO 8601
)
TYPES = {
    "smallint": "SMALLINT",
    "integer": "INT",
    "bigint": "BIGINT",
    "oid": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "boolean": "BOOLEAN",
    "bytea": "BINARY",
    "date": "DATE",
    "money": "DECIMAL(19, 2)",
    "hstore": "MAP<STRING, STRING>",
    "point": "STRUCT<x: DOUBLE, y: DOUBLE, wkb: BINARY, srid: INT>",
    "timestamp with time zone": "TIMESTAMP",
}
TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


def field_of(declared: str, *, as_text: bool) -> Field:
    """Return what a message without a schema must be told of a column.

    Args:
        declared: PostgreSQL's type.
        as_text: Whether the connector writes decimals, times and intervals as text.
    """
    if declared.endswith("[]"):
        element = field_of(declared[:-2], as_text=as_text)
        return Field(f"ARRAY<{element.type}>", element=element)
    name, numbers = re.sub(r"\([\d,]+\)", "", declared), [int(number) for number in re.findall(r"\d+", declared)]
    is_short = bool(numbers) and numbers[0] <= 3
    match name:
        case "numeric" if not numbers:
            return Field("STRING", None if as_text else "VariableScaleDecimal")
        case "numeric":
            precision, scale = max(numbers), numbers[1]
            if precision > 38:
                return Field("STRING", None if as_text else "Decimal", scale=scale)
            return Field(f"DECIMAL({max(precision, scale)}, {scale})")
        case "bit" if numbers == [1]:
            return Field("BOOLEAN")
        case "bit":
            return Field("STRING", "Bits", length=numbers[0])
        case "timestamp without time zone":
            return Field("TIMESTAMP_NTZ", "Timestamp" if is_short and not as_text else None)
        case "time without time zone":
            return Field("STRING", None if as_text else "Time" if is_short else "MicroTime")
        case "interval":
            return Field("STRING" if as_text else "BIGINT")
        case _:
            return Field(TYPES.get(name, "STRING"))


def of_database(declared: str, value: Any, *, as_text: bool = False) -> Any:
    """Return a value of the database: its text, a list of texts or an object of them."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, list):
        return [of_database(declared[:-2], each, as_text=as_text) for each in value]
    match re.sub(r"\([\d,]+\)", "", declared):
        case "smallint" | "integer" | "bigint" | "oid":
            return int(value)
        case "boolean":
            return value == "true"
        case "bit" if declared == "bit(1)":
            return value == "1"
        case "point":
            return [float(part) for part in value[1:-1].split(",")]
        case "interval":
            years, months, days, hours, minutes, seconds = (
                Decimal(part or 0) for part in INTERVAL.fullmatch(value).groups()
            )
            parts = [int(years * 12 + months), int(days), int((hours * 3600 + minutes * 60 + seconds) * 1_000_000)]
            return parts if as_text else int((parts[0] * Decimal("30.4375") + days) * 86_400_000_000) + parts[2]
        case name:
            return _common(name, value)


def of_spark(declared: str, value: Any) -> Any:
    """Return a decoded value, after `with_times_as_text`."""
    if isinstance(value, list):
        return [of_spark(declared[:-2], each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if declared == "point" and value is not None:
        return [value["x"], value["y"]]
    if declared == "interval" and isinstance(value, str):
        return of_database("interval", value, as_text=True)
    return None if value is None else _common(re.sub(r"\([\d,]+\)", "", declared), value)


def rows_of_database(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], *, as_text: bool) -> list[str]:
    return sorted(
        json.dumps({name: of_database(columns[name], row[name], as_text=as_text) for name in columns}, sort_keys=True)
        for row in rows
    )


def rows_of_spark(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    return sorted(
        json.dumps({name: of_spark(columns[name], row[name]) for name in columns}, sort_keys=True) for row in rows
    )


def with_times_as_text(frame: DataFrame) -> DataFrame:
    """Return the frame without values that Python does not have."""

    def convert(column: Column, data_type: T.DataType) -> Column:
        match data_type:
            case T.DateType() | T.TimestampType() | T.TimestampNTZType():
                return column.cast("string")
            case T.ArrayType(elementType=element) if isinstance(element, TIMES):
                return F.transform(column, lambda each: each.cast("string"))
            case T.StructType(fields=fields) if any(isinstance(field.dataType, TIMES) for field in fields):
                members = [convert(column[field.name], field.dataType).alias(field.name) for field in fields]
                return F.when(column.isNotNull(), F.struct(*members))
        return column

    escaped = {field.name: f"`{field.name.replace('`', '``')}`" for field in frame.schema}
    return frame.select(
        *[convert(F.col(escaped[field.name]), field.dataType).alias(field.name) for field in frame.schema]
    )


def _common(name: str, value: Any) -> Any:
    match name:
        case "numeric" | "money":
            return _number(str(value))
        case "real" | "double precision":
            return repr(struct.unpack("f", struct.pack("f", float(value)))[0] if name == "real" else float(value))
        case "date" | "timestamp without time zone" | "timestamp with time zone":
            return _time(INFINITIES.get(value, value))
        case "time without time zone" | "time with time zone":
            return _time(value.removesuffix("Z"))
        case _:
            return value


def _number(text: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    whole, _, fraction = format(number, "f").partition(".")
    return f"{whole}.{fraction.rstrip('0')}" if number else "0."


def _time(text: str) -> str:
    """Return PostgreSQL's text: years before Christ as such, no zeros at the end of a fraction, no zone, which is
    UTC."""
    text = text.replace("+00", "")
    text = re.sub(r"([.]\d*?)0+(?=$| )", r"\1", text).rstrip(".").replace(". ", " ")
    found = re.match(r"([+-]?\d{4,})(-\d\d-.*)$", text)
    if not found or text.endswith(" BC"):
        return text
    year = int(found[1])
    return f"{year:04}{found[2]}" if year > 0 else f"{1 - year:04}{found[2]} BC"
