"""Says of each column of MySQL and MariaDB what its values are, and how they are asked for.

All but floating-point numbers and bytes are asked for as text, since what the drivers make of some types depends on
their settings (`tinyInt1isBit`, `yearIsDateType`, `zeroDateTimeBehavior`) and on the zone of the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stream_merge.cli.compare.kinds import KeyKind, Kind, SourceColumn, quoted

PRODUCTS = ("mysql", "mariadb")

SESSION = "SET time_zone = '+00:00', sql_mode = concat(@@sql_mode, ',ANSI_QUOTES')"
"""Sets up a session, in which a `timestamp` is written as Debezium does. Spark quotes the names of columns by double
quotes if the address begins with `jdbc:mariadb`."""

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_MOMENTS = ("date", "datetime", "timestamp")
_KINDS = {
    **dict.fromkeys(("float", "double", "bit", "year", "enum", "set", "uuid", "inet4", "inet6"), Kind.PLAIN),
    **dict.fromkeys((*_INTEGERS, *_TEXTS), Kind.PLAIN),
    "decimal": Kind.NUMBER,
    **dict.fromkeys(_MOMENTS, Kind.MOMENT),
    "time": Kind.TIME,
    "json": Kind.JSON,
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), Kind.BINARY),
}
"""What values are, by the names of types as `SHOW COLUMNS` tells them; others are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredColumn:
    """A column as `SHOW COLUMNS` tells it.

    Attributes:
        name: Its name, exactly.
        declared: Its type, such as `int(10) unsigned`.
        is_nullable: Whether it may be NULL.
    """

    name: str
    declared: str
    is_nullable: bool


def source_column(column: DeclaredColumn, quote: str) -> SourceColumn:
    """Return how a column is read.

    Args:
        column: The column.
        quote: The character that quotes names.
    """
    type_name, name = _type_of(column), quoted(column.name, quote)
    kind = _KINDS.get(type_name)
    return SourceColumn(
        name=column.name,
        type_name=column.declared,
        sql=name if kind in (None, Kind.BINARY) else _sql(column, type_name, name),
        kind=kind,
        key_kind=_key_kind(type_name),
    )


def _sql(column: DeclaredColumn, type_name: str, name: str) -> str:
    match type_name:
        case "float":
            # Its own text has six digits.
            return f"({name} + 0e0)"
        case "double":
            return name
        case "bit":
            return _bits(column, name)
        case _ if type_name in _MOMENTS and column.is_nullable:
            # Debezium sends NULL for a time without month or day.
            return f"CASE WHEN MONTH({name}) > 0 AND DAYOFMONTH({name}) > 0 THEN {_text(name)} END"
        case _:
            # Without the zeros of ZEROFILL.
            return _text(f"{name} + 0" if "zerofill" in column.declared else name)


def _key_kind(type_name: str) -> KeyKind | None:
    if type_name in (*_INTEGERS, "decimal"):
        return KeyKind.NUMBER
    if type_name == "date":
        return KeyKind.DATE
    if type_name == "uuid":
        return KeyKind.UUID
    # An ENUM and a SET are put into order by the numbers of their members, and compared by their text.
    return KeyKind.TEXT if type_name in _TEXTS else None


def _type_of(column: DeclaredColumn) -> str:
    match = re.match(r"\w+", column.declared)
    return "" if match is None else match[0].lower()


def _text(value: str) -> str:
    return f"CAST({value} AS CHAR)"


def _bits(column: DeclaredColumn, name: str) -> str:
    """Return SQL for bits: Debezium sends one as a boolean, and several are digits in the Delta table."""
    length = re.search(r"\(([0-9]+)\)", column.declared)
    if length is None or length[1] == "1":
        return f"CASE {name} + 0 WHEN 1 THEN 'true' WHEN 0 THEN 'false' END"
    return f"LPAD(BIN({name} + 0), {length[1]}, '0')"
