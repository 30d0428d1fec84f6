"""Decodes a value's JSON text, as Spark extracts it, into its type in the lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import types as T

from stream_merge.debezium import times
from stream_merge.debezium.decimals import decimal, decimal_text
from stream_merge.debezium.fields import BYTES, Field
from stream_merge.debezium.spelling import lambda_name, let, text
from stream_merge.sql import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """The connector's settings that a message without a schema does not tell.

    Attributes:
        decimals: `decimal.handling.mode`: "precise", "string" or "double".
        binary: `binary.handling.mode`: "base64" (also for "bytes", which is base64 in JSON), "base64-url-safe" or
            "hex".
        timestamp_unit: Unit of integers that are timestamps: "ms", "us" or "ns".
    """

    decimals: str = "precise"
    binary: str = "base64"
    timestamp_unit: str = "us"


def decode(raw: str, field: Field, handling: Handling) -> str:
    """Return SQL for a value in the field's type; NULL if the text is NULL or does not fit the type.

    Args:
        raw: SQL for the text of a string, or for the JSON of any other value. It is repeated, so it should be a name.
        field: The column.
        handling: The connector's settings.
    """
    data_type = field.data_type
    decoder = _DECODERS.get(type(data_type))
    if decoder is None:
        return f"try_cast({raw} AS {data_type.simpleString()})"
    return decoder(raw, field, handling)


def is_text(field: Field, handling: Handling) -> bool:
    """Return whether decoding returns the text itself, which always fits."""
    return decode("x", field, handling) == "x"


def _integer(raw: str, field: Field, handling: Handling) -> str:
    sql_type = field.data_type.simpleString()
    if field.kind in ("Decimal", "VariableScaleDecimal"):
        return f"try_cast({decimal_text(raw, field, decimals=handling.decimals)} AS {sql_type})"
    if field.kind == "Bits":
        return f"try_cast({_bits_number(raw)} AS {sql_type})"
    return f"try_cast({raw} AS {sql_type})"


_SAFE_DIGITS = 38
"""A whole number of so many digits has a place in each floating type."""


def _floating(raw: str, field: Field, handling: Handling) -> str:
    number = f"trim(BOTH '\"' FROM {raw})"  # JSON's bare NaN comes in quotes
    if handling.decimals == "string":
        number = (
            f"CASE {raw} WHEN 'POSITIVE_INFINITY' THEN 'Infinity' WHEN 'NEGATIVE_INFINITY' THEN '-Infinity' "
            f"ELSE {number} END"
        )
    if field.kind in ("Decimal", "VariableScaleDecimal"):
        number = decimal_text(raw, field, decimals=handling.decimals)
    value = f"try_cast({number} AS {field.data_type.simpleString()})"
    # A number that is too large would become infinity. Only few have so long a text, or an exponent.
    is_large = f"(length({number}) > {_SAFE_DIGITS} OR contains(upper({number}), 'E'))"
    is_infinite = f"{value} IN (double('infinity'), double('-infinity')) AND NOT contains(upper({number}), 'INF')"
    return f"CASE WHEN {is_large} AND {is_infinite} THEN NULL ELSE {value} END"


def _decimal(raw: str, field: Field, handling: Handling) -> str:
    data_type = field.data_type
    if not isinstance(data_type, T.DecimalType):
        raise TypeError(data_type)
    return decimal(raw, field, data_type, decimals=handling.decimals)


def _boolean(raw: str, field: Field, handling: Handling) -> str:  # noqa: ARG001 - as all decoders
    if field.kind == "Bits":
        return f"CASE {_bits_number(raw)} WHEN '0' THEN false WHEN '1' THEN true END"
    return f"try_cast({raw} AS BOOLEAN)"


def _binary(raw: str, field: Field, handling: Handling) -> str:
    # What Kafka Connect knows as bytes is base64 in JSON in every mode; the modes make text of it.
    mode = "base64" if field.kind in (BYTES, "Bits") else handling.binary
    if mode == "hex":
        return f"try_to_binary({raw}, 'hex')"
    if mode == "base64-url-safe":
        return f"try_to_binary(translate({raw}, '-_', '+/'), 'base64')"
    return f"try_to_binary({raw}, 'base64')"


def _string(raw: str, field: Field, handling: Handling) -> str:
    match field.kind:
        case "Decimal" | "VariableScaleDecimal":
            return decimal_text(raw, field, decimals=handling.decimals)
        case "Bits":
            return _bits_text(raw, field.length)
        case "Enum":
            # From MySQL's log, but not its snapshot: a comma inside a value is escaped with a backslash.
            return f"replace({raw}, {text(chr(92) + ',')}, ',')"
        case "Date":
            return times.date_text(raw)
        case "Time" | "MicroTime" | "NanoTime" as kind:
            return times.time_text(raw, times.UNITS[kind])
        case "Timestamp" | "MicroTimestamp" | "NanoTimestamp" as kind:
            return times.timestamp_text(raw, times.UNITS[kind])
        case _:
            return raw


def _date(raw: str, field: Field, handling: Handling) -> str:  # noqa: ARG001
    if field.kind in ("Timestamp", "MicroTimestamp", "NanoTimestamp"):
        return f"CAST({times.timestamp_ntz(raw, times.UNITS[field.kind], default_unit='us')} AS DATE)"
    return times.date(raw)


def _timestamp(raw: str, field: Field, handling: Handling) -> str:
    if field.kind == "Date":
        return f"timestamp_micros({times.micros_of_date(raw)})"
    return times.timestamp(raw, times.UNITS.get(field.kind or ""), default_unit=handling.timestamp_unit)


def _timestamp_ntz(raw: str, field: Field, handling: Handling) -> str:
    if field.kind == "Date":
        return times.ntz_of_micros(times.micros_of_date(raw))
    return times.timestamp_ntz(raw, times.UNITS.get(field.kind or ""), default_unit=handling.timestamp_unit)


def _variant(raw: str, field: Field, handling: Handling) -> str:  # noqa: ARG001
    return f"try_parse_json({raw})"


def _array(raw: str, field: Field, handling: Handling) -> str:
    data_type = field.data_type
    if not isinstance(data_type, T.ArrayType):
        raise TypeError(data_type)
    elements = f"from_json({raw}, 'ARRAY<STRING>')"
    item = field.item(data_type.elementType)
    if is_text(item, handling):
        return elements
    element, decoded = lambda_name(), lambda_name()
    both = f"transform({elements}, {element} -> {_pair(element, item, handling)})"
    return let(both, lambda pairs: f"CASE WHEN NOT exists({pairs}, {_misfit(decoded)}) THEN {pairs}.value END")


def _map(raw: str, field: Field, handling: Handling) -> str:
    data_type = field.data_type
    if not isinstance(data_type, T.MapType):
        raise TypeError(data_type)
    entries = f"from_json({raw}, 'MAP<STRING, STRING>')"
    item = field.item(data_type.valueType)
    if is_text(item, handling):
        return entries
    key, value, decoded = lambda_name(), lambda_name(), lambda_name()
    both = f"transform_values({entries}, ({key}, {value}) -> {_pair(value, item, handling)})"
    kept, pair = lambda_name(), lambda_name()
    return let(
        both,
        lambda pairs: (
            f"CASE WHEN NOT exists(map_values({pairs}), {_misfit(decoded)}) "
            f"THEN transform_values({pairs}, ({kept}, {pair}) -> {pair}.value) END"
        ),
    )


def _struct(raw: str, field: Field, handling: Handling) -> str:
    data_type = field.data_type
    if not isinstance(data_type, T.StructType):
        raise TypeError(data_type)
    schema = ", ".join(f"{quote(name)} STRING" for name in data_type.fieldNames())
    positions = ", ".join(f"f{position}: STRING" for position in range(len(data_type)))
    # Debezium's only structs are points and geometries, whose bytes are base64 in every mode.
    handling = replace(handling, binary="base64")
    parsed = f"CAST(from_json({raw}, {text(schema)}) AS STRUCT<{positions}>)"
    members = [(member.name, field.member(member.name, member.dataType)) for member in data_type.fields]

    def decoded(struct: str) -> str:
        # By position, since names may differ only in case.
        pairs = ", ".join(
            f"'f{position}', {_pair(f'{struct}.f{position}', member, handling)}"
            for position, (_, member) in enumerate(members)
        )
        return let(f"named_struct({pairs})", kept)

    def kept(struct: str) -> str:
        misfits = " OR ".join(f"({struct}.f{p}.is_value AND {struct}.f{p}.value IS NULL)" for p in range(len(members)))
        values = ", ".join(f"{text(name)}, {struct}.f{p}.value" for p, (name, _) in enumerate(members))
        return f"CASE WHEN NOT ({misfits}) THEN named_struct({values}) END"

    return f"CASE WHEN {raw} LIKE '{{%' THEN {let(parsed, decoded)} END"


def _pair(raw: str, item: Field, handling: Handling) -> str:
    return f"named_struct('is_value', {raw} IS NOT NULL, 'value', {decode(raw, item, handling)})"


def _misfit(name: str) -> str:
    return f"{name} -> {name}.is_value AND {name}.value IS NULL"


def _bits_hex(raw: str) -> str:
    """Return SQL for a bit string's number in hexadecimal; the least significant byte comes first."""
    pair = lambda_name()
    digits = f"hex(try_to_binary({raw}, 'base64'))"
    return let(
        digits,
        lambda name: (
            f"CASE WHEN {name} = '' THEN '0' ELSE array_join(reverse(transform("
            f"sequence(0, length({name}) DIV 2 - 1), {pair} -> substring({name}, 2 * {pair} + 1, 2))), '') END"
        ),
    )


def _bits_number(raw: str) -> str:
    """Return SQL for the number as text; NULL if it has more than 64 bits, at which `conv` would end the query."""
    return let(
        f"trim(LEADING '0' FROM {_bits_hex(raw)})",
        lambda digits: f"CASE WHEN length({digits}) <= 16 THEN conv(concat('0', {digits}), 16, 10) END",
    )


def _bits_text(raw: str, length: int | None) -> str:
    digit = lambda_name()

    def bits(digits: str) -> str:
        nibbles = f"transform(split({digits}, ''), {digit} -> lpad(conv({digit}, 16, 2), 4, '0'))"
        joined = f"array_join({nibbles}, '')"
        if length is None:
            return joined
        # Trailing zero bytes are not sent.
        padded = f"right(concat(repeat('0', {length}), {joined}), {length})"
        return f"CASE WHEN length(trim(LEADING '0' FROM {joined})) <= {length} THEN {padded} END"

    return let(_bits_hex(raw), bits)


_DECODERS: dict[type[T.DataType], Callable[[str, Field, Handling], str]] = {
    T.ByteType: _integer,
    T.ShortType: _integer,
    T.IntegerType: _integer,
    T.LongType: _integer,
    T.FloatType: _floating,
    T.DoubleType: _floating,
    T.DecimalType: _decimal,
    T.BooleanType: _boolean,
    T.BinaryType: _binary,
    T.StringType: _string,
    T.DateType: _date,
    T.TimestampType: _timestamp,
    T.TimestampNTZType: _timestamp_ntz,
    T.VariantType: _variant,
    T.ArrayType: _array,
    T.MapType: _map,
    T.StructType: _struct,
}
