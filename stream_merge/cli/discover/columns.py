"""Tells the columns of a topic: those of a schema part, or, without one, what was sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from stream_merge.debezium.connect_types import field_of
from stream_merge.debezium.unavailable import DEFAULT_PLACEHOLDER

_MAX_LONG = 2**63 - 1
_MAX_EXACT = 2**53
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}==|[A-Za-z0-9+/_-]{3}=|[A-Za-z0-9+/_-]{4})")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMES = {"ms": (631152000000, 4102444800000), "us": (631152000000000, 4102444800000000)}
"""1990 to 2100, by unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentColumn:
    """A column as messages without a schema part send it.

    Attributes:
        type: The type that holds what was sent without changing it.
        doubt: What it may stand for; None if nothing suggests anything.
        time_unit: "ms" or "us" if it may be a time in this unit.
        fault: Why no type holds it; None if one does.
    """

    type: str
    doubt: str | None = None
    time_unit: str | None = None
    fault: str | None = None


def sent_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, SentColumn]:
    """Return the columns of some rows, each with the type that holds all values as they were sent.

    Values of another type than their column's in the source are not interpreted: a date stays a number of days.
    """
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            found = values.setdefault(name, [])
            if value is not None and value != DEFAULT_PLACEHOLDER:
                found.append(value)
    return {name: _sent_column(found) for name, found in values.items()}


def described_columns(members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the types of the columns in a schema part, by name.

    Raises:
        ConfigError: It has a type that is not known.
    """
    return {member["field"]: _shown(field_of(member).data_type) for member in members}


def find_modes(members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the connector's settings as the types in a schema part tell them, by the name of the setting."""
    names = {str(member.get("name", "")) for member in members}
    kinds = {name.rpartition(".")[2] for name in names}
    modes = {}
    if kinds & {"Decimal", "VariableScaleDecimal"}:
        modes["decimal.handling.mode"] = "precise"
    if any(member["type"] == "bytes" and not member.get("name") for member in members):
        modes["binary.handling.mode"] = "bytes"
    if any(name.startswith("org.apache.kafka.connect.data.") and not name.endswith(".Decimal") for name in names):
        modes["time.precision.mode"] = "connect"
    elif kinds & {"IsoDate", "IsoTime", "IsoTimestamp"}:
        modes["time.precision.mode"] = "isostring"
    elif kinds & {"Timestamp", "Time"}:
        modes["time.precision.mode"] = "adaptive" if "Time" in kinds else "adaptive or adaptive_time_microseconds"
    elif kinds & {"NanoTimestamp", "NanoTime"}:
        modes["time.precision.mode"] = "adaptive or nanoseconds"
    elif kinds & {"MicroTimestamp", "MicroTime"}:
        modes["time.precision.mode"] = "adaptive, adaptive_time_microseconds or microseconds"
    return modes


def ddl_of(columns: Mapping[str, str]) -> str:
    """Return types by name as DDL."""
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())


def name_fault(names: Iterable[str]) -> str | None:
    """Return why a table cannot have columns of these names; None if it can."""
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip() or any(0xD800 <= ord(character) < 0xE000 for character in name):
            return f"a column has the name {name!r}, which no table can have; let the connector rename it"
        if "${" in name:
            return f"Spark takes {name} for a reference to a setting; let the connector rename the column"
        if name.lower() in seen:
            return (
                f"its columns {seen[name.lower()]} and {name} differ only in upper and lower case; let the connector "
                "leave one of them out (column.exclude.list)"
            )
        if name.lower() == "_change":
            return "a column is called _change, as the struct that describes a change; let the connector rename it"
        seen[name.lower()] = name
    return None


def _shown(data_type: T.DataType) -> str:
    return "STRUCT" if isinstance(data_type, T.StructType) else data_type.simpleString().upper()


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _sent_column(values: Sequence[Any]) -> SentColumn:
    if not values:
        return SentColumn(type="STRING", doubt="is NULL in all of them, so its type is not known")
    if all(isinstance(value, bool) for value in values):
        return SentColumn(type="BOOLEAN")
    if all(_is_integer(value) for value in values):
        return _integers(values)
    if all(_is_integer(value) or isinstance(value, Decimal | float) for value in values):
        return _numbers(values)
    if all(isinstance(value, str) for value in values):
        return _texts(values)
    if any(isinstance(value, dict | list) for value in values):
        return SentColumn(type="STRING", doubt="is an array or an object, and is taken as its JSON")
    return SentColumn(type="STRING", doubt="has values of several types, and is taken as text")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integers(values: Sequence[int]) -> SentColumn:
    if any(not -_MAX_LONG - 1 <= value <= _MAX_LONG for value in values):
        return SentColumn(type="STRING", doubt="has numbers beyond BIGINT, and is taken as text")
    for unit, (first, last) in _TIMES.items():
        if all(first <= value <= last for value in values):
            word = {"ms": "milliseconds", "us": "microseconds"}[unit]
            return SentColumn(type="BIGINT", doubt=f"may be a time in {word} since 1970", time_unit=unit)
    return SentColumn(type="BIGINT")


def _numbers(values: Sequence[Any]) -> SentColumn:
    for value in values:
        is_exact = abs(value) <= _MAX_EXACT if _is_integer(value) else _is_double(value)
        if not is_exact:
            return SentColumn(
                type="DOUBLE",
                fault="has numbers of more digits than are read from a number in JSON; let the connector send them as "
                "text (decimal.handling.mode=string)",
            )
    return SentColumn(type="DOUBLE")


def _is_double(value: Decimal | float) -> bool:
    number = float(value)
    # NaN and infinity are no numbers of JSON, but some write them.
    return isinstance(value, float) or Decimal(repr(number)) == value


def _texts(values: Sequence[str]) -> SentColumn:
    some = [value for value in values if value]
    # Words and numbers are base64 as well, but for the padding.
    if all(_BASE64.fullmatch(value) for value in some) and any(value.endswith("=") for value in some):
        return SentColumn(type="STRING", doubt="may be base64 of a decimal, of bytes or of bits")
    return SentColumn(type="STRING")
