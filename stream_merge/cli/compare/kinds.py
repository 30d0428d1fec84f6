"""Says of each column of a database what its values are, and how they are asked for.

Only what Spark's JDBC source would change is asked for in another way than by its name: a `numeric` without a scale,
which Spark rounds; times, which would pass through Java's old calendar and the zone of the process; arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from stream_merge.bridge.jdbc import JdbcColumn


class Kind(Enum):
    """What the values of a column are, as far as it matters for comparing them."""

    PLAIN = "plain"
    """Text that means nothing else, booleans, integers, floating-point numbers."""
    NUMBER = "number"
    """Decimals: 1.5 and 1.50 are one value."""
    MOMENT = "moment"
    """Dates and timestamps: the zeros at the end of a fraction do not count."""
    TIME = "time"
    """Times of day, likewise."""
    DURATION = "duration"
    """Intervals, as the microseconds that Debezium makes of them."""
    JSON = "json"
    """JSON: spaces and the order of names do not count."""
    ARRAY = "array"
    """Arrays, as JSON."""
    NUMBERS = "numbers"
    """Arrays of decimals, as JSON."""
    BINARY = "binary"


class KeyKind(Enum):
    """How the values of a key column are written in a condition for the database."""

    NUMBER = "number"
    DATE = "date"
    TEXT = "text"
    UUID = "uuid"
    """Read in one piece, since text that is no UUID must not be compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of the database's table.

    Attributes:
        name: Its name, exactly.
        type_name: The database's name of its type.
        sql: What is selected: its quoted name, or an expression over it.
        kind: What its values are; None if they cannot be compared.
        key_kind: How its values are written in a condition; None if they are not.
    """

    name: str
    type_name: str
    sql: str
    kind: Kind | None
    key_kind: KeyKind | None


class _Jdbc(IntEnum):
    """The types of java.sql.Types that are compared."""

    CHAR = 1
    NUMERIC = 2
    DECIMAL = 3
    INTEGER = 4
    SMALLINT = 5
    FLOAT = 6
    REAL = 7
    DOUBLE = 8
    VARCHAR = 12
    BOOLEAN = 16
    DATE = 91
    TIME = 92
    TIMESTAMP = 93
    ARRAY = 2003
    BLOB = 2004
    CLOB = 2005
    NCLOB = 2011
    TIME_WITH_TIMEZONE = 2013
    TIMESTAMP_WITH_TIMEZONE = 2014
    LONGVARCHAR = -1
    BINARY = -2
    VARBINARY = -3
    LONGVARBINARY = -4
    BIGINT = -5
    TINYINT = -6
    BIT = -7
    NVARCHAR = -9
    NCHAR = -15
    LONGNVARCHAR = -16


_CHAR_TYPES = (_Jdbc.CHAR, _Jdbc.VARCHAR, _Jdbc.LONGVARCHAR, _Jdbc.NCHAR, _Jdbc.NVARCHAR, _Jdbc.LONGNVARCHAR)
_INTEGER_TYPES = (_Jdbc.TINYINT, _Jdbc.SMALLINT, _Jdbc.INTEGER, _Jdbc.BIGINT)
_DECIMAL_TYPES = (_Jdbc.NUMERIC, _Jdbc.DECIMAL)
_TIME_TYPES = (_Jdbc.TIME, _Jdbc.TIME_WITH_TIMEZONE)
_MOMENT_TYPES = (_Jdbc.DATE, _Jdbc.TIMESTAMP, _Jdbc.TIMESTAMP_WITH_TIMEZONE)
_BINARY_TYPES = (_Jdbc.BINARY, _Jdbc.VARBINARY, _Jdbc.LONGVARBINARY, _Jdbc.BLOB)
_PLAIN_TYPES = (
    *_CHAR_TYPES,
    *_INTEGER_TYPES,
    *(_Jdbc.BOOLEAN, _Jdbc.BIT, _Jdbc.FLOAT, _Jdbc.REAL, _Jdbc.DOUBLE, _Jdbc.CLOB, _Jdbc.NCLOB),
)

_POSTGRES_TEXT = ("text", "varchar", "bpchar", "name")
_POSTGRES_INTEGERS = ("int2", "int4", "int8", "smallserial", "serial", "bigserial", "oid")
_POSTGRES_NATIVE = (*_POSTGRES_TEXT, *_POSTGRES_INTEGERS, "bool", "float4", "float8")
_POSTGRES_PARTS = ("hstore", "point", "line", "lseg", "box", "path", "polygon", "circle", "geometry", "geography")
"""Debezium sends these in parts, or in another text, so that they are not compared."""
_POSTGRES_ARRAYS = ("_bytea", "_interval", "_hstore", "_point", "_bit", "_varbit", "_money", "_timetz")
"""Arrays whose JSON is not what Debezium sends."""
_POSTGRES_TEXT_ARRAYS = ("_numeric", "_float4", "_float8", "_int8", "_json", "_jsonb")

POSTGRES_SESSION = "SET TIME ZONE 'UTC'"
"""Sets up a session, in which ranges of points in time, too, are written as Debezium does."""


def source_column(column: JdbcColumn, quote: str, product: str) -> SourceColumn:
    """Return how a column is read.

    Args:
        column: The column.
        quote: The character that quotes names.
        product: The database's product, in lower case.
    """
    name = quoted(column.name, quote)
    if product == "postgresql":
        kind, sql = _postgres(column, name)
        return SourceColumn(
            name=column.name, type_name=column.type_name, sql=sql, kind=kind, key_kind=_postgres_key(column)
        )
    return SourceColumn(
        name=column.name, type_name=column.type_name, sql=name, kind=_kind(column), key_kind=_key_kind(column)
    )


def quoted(name: str, quote: str) -> str:
    """Return a name as the database's SQL."""
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


def _kind(column: JdbcColumn) -> Kind | None:
    if column.type_name.lower() in ("json", "jsonb"):
        return Kind.JSON
    for types, kind in (
        (_DECIMAL_TYPES, Kind.NUMBER),
        (_MOMENT_TYPES, Kind.MOMENT),
        (_TIME_TYPES, Kind.TIME),
        (_BINARY_TYPES, Kind.BINARY),
        ((_Jdbc.ARRAY,), Kind.ARRAY),
        (_PLAIN_TYPES, Kind.PLAIN),
    ):
        if column.jdbc_type in types:
            return kind
    return None


def _key_kind(column: JdbcColumn) -> KeyKind | None:
    if column.jdbc_type in (*_INTEGER_TYPES, *_DECIMAL_TYPES):
        return KeyKind.NUMBER
    if column.jdbc_type == _Jdbc.DATE:
        return KeyKind.DATE
    return KeyKind.TEXT if column.jdbc_type in _CHAR_TYPES else None


def _postgres_key(column: JdbcColumn) -> KeyKind | None:
    match column.type_name:
        case "uuid":
            return KeyKind.UUID
        case "date":
            return KeyKind.DATE
        case "numeric":
            return KeyKind.NUMBER
        case integer if integer in _POSTGRES_INTEGERS:
            return KeyKind.NUMBER
        case text if text in _POSTGRES_TEXT:
            return KeyKind.TEXT
        case _:
            return None


def _postgres(column: JdbcColumn, name: str) -> tuple[Kind | None, str]:
    type_name = column.type_name
    if type_name in _POSTGRES_NATIVE:
        return Kind.PLAIN, name
    if type_name in _POSTGRES_READERS:
        kind, read = _POSTGRES_READERS[type_name]
        return kind, read(name)
    if type_name in _POSTGRES_PARTS or type_name in _POSTGRES_ARRAYS:
        return None, name
    if type_name.startswith("_") or column.jdbc_type == _Jdbc.ARRAY:
        # As JSON, numbers would lose digits in Spark's hands, and JSON its own text.
        elements = f"CAST({name} AS text[])" if type_name in _POSTGRES_TEXT_ARRAYS else name
        kind = Kind.NUMBERS if type_name == "_numeric" else Kind.ARRAY
        return kind, f"CAST(array_to_json({elements}) AS text)"
    # As its output function writes it: a cast of `inet` to text would add the length of the net.
    return Kind.PLAIN, f"CASE WHEN {name} IS NOT NULL THEN concat({name}) END"


def _as_text(name: str) -> str:
    return f"CAST({name} AS text)"


def _in_utc(name: str) -> str:
    return f"CAST({name} AT TIME ZONE 'UTC' AS text)"


def _as_micros(name: str) -> str:
    """Return SQL for an interval in microseconds, with months of 30.4375 days, as Debezium's default has it."""
    parts = (
        f"(extract(year FROM {name}) * 12 + extract(month FROM {name}))::numeric * 2629800000000",
        f"extract(day FROM {name})::numeric * 86400000000",
        f"extract(hour FROM {name})::numeric * 3600000000",
        f"extract(minute FROM {name})::numeric * 60000000",
        f"extract(microseconds FROM {name})::numeric",
    )
    return f"CAST(CAST({' + '.join(parts)} AS bigint) AS text)"


_POSTGRES_READERS: dict[str, tuple[Kind, Callable[[str], str]]] = {
    "numeric": (Kind.NUMBER, _as_text),
    "money": (Kind.NUMBER, lambda name: f"CAST(CAST({name} AS numeric) AS text)"),
    "date": (Kind.MOMENT, _as_text),
    "timestamp": (Kind.MOMENT, _as_text),
    "timestamptz": (Kind.MOMENT, _in_utc),
    "time": (Kind.TIME, _as_text),
    "timetz": (Kind.TIME, _in_utc),
    "interval": (Kind.DURATION, _as_micros),
    "json": (Kind.JSON, _as_text),
    "jsonb": (Kind.JSON, _as_text),
    "bytea": (Kind.BINARY, lambda name: name),
}
