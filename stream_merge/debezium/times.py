"""Decodes dates, times and timestamps: integers in several units, or text.

PostgreSQL's infinities become the first and the last value of Spark's type. These are outside PostgreSQL's own range,
so they sort correctly and equal no other value.
"""

from __future__ import annotations

from collections.abc import Callable

from stream_merge.debezium.spelling import let

UNITS = {
    "Timestamp": "ms",
    "MicroTimestamp": "us",
    "NanoTimestamp": "ns",
    "Time": "ms",
    "MicroTime": "us",
    "NanoTime": "ns",
}
"""Units of the semantic types that are integers; Kafka Connect's own types with these names are in milliseconds too."""

_INFINITE = {
    "ms": ("9223372036825200, 9223372036825200000", "-9223372036832400, -9223372036832400000"),
    "us": ("9223372036825200000", "-9223372036832400000"),
}
"""Values of java.sql's infinity, 9223372036825200000 in microseconds, by unit; all other values are instants."""

_LAST_DAY = "2147483647"
_FIRST_DAY = "(-2147483647 - 1)"
_LAST_MICROS = "9223372036854775807L"
_FIRST_MICROS = "(-9223372036854775807L - 1L)"
_ZONE = "'T.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$'"
_INTEGER = "'^-?[0-9]+$'"

# Infinity as java.time.LocalDate, and as java.sql's dates and timestamps, whose minus infinity may lose its era (before
# Christ).
_IS_LAST = "({0} = 'infinity' OR {0} RLIKE '^[+](5877611-06-21|292278994-08-1)')".format
_IS_FIRST = "({0} = '-infinity' OR {0} RLIKE '^(-5877611-06-2|-292275055-05-1|[+]292269055-12-0)')".format

# Recognizes almost all text without regular expressions: 2026-01-01T00:00:00.000000Z
_IS_PLAIN = "(substring({0}, 5, 1) = '-' AND substring({0}, 11, 1) = 'T' AND endswith({0}, 'Z'))".format


def timestamp(raw: str, unit: str | None, *, default_unit: str) -> str:
    """Return SQL for the value as TIMESTAMP; text without a zone is in UTC."""
    micros = f"timestamp_micros({_micros(raw, unit or default_unit)})"
    if unit:
        return micros
    return (
        f"CASE WHEN {_IS_PLAIN(raw)} THEN try_cast({raw} AS TIMESTAMP_LTZ) "
        f"WHEN {raw} RLIKE {_INTEGER} THEN {micros} ELSE {_timestamp_of_text(raw)} END"
    )


def timestamp_ntz(raw: str, unit: str | None, *, default_unit: str) -> str:
    """Return SQL for the value as TIMESTAMP_NTZ; for text with a zone, the time in UTC."""
    micros = _ntz(_micros(raw, unit or default_unit))
    if unit:
        return micros
    zoned = _ntz(f"unix_micros({_timestamp_of_text(raw)})")
    text = (
        f"CASE WHEN {raw} RLIKE {_ZONE} OR {raw} LIKE '%infinity' THEN {zoned} "
        f"ELSE try_cast({raw} AS TIMESTAMP_NTZ) END"
    )
    return f"CASE WHEN {raw} RLIKE {_INTEGER} THEN {micros} ELSE {text} END"


def micros_of_date(raw: str) -> str:
    """Return SQL for midnight of a date, days since 1970 or ISO text, in microseconds; NULL on overflow."""
    days = 106751991
    return let(
        date(raw),
        lambda value: (
            f"CASE unix_date({value}) WHEN {_LAST_DAY} THEN {_LAST_MICROS} WHEN {_FIRST_DAY} THEN {_FIRST_MICROS} "
            f"ELSE IF(unix_date({value}) BETWEEN -{days} AND {days}, unix_date({value}) * 86400000000L, NULL) END"
        ),
    )


def ntz_of_micros(micros: str) -> str:
    """Return SQL for an instant in microseconds as TIMESTAMP_NTZ."""
    return _ntz(micros)


def timestamp_text(raw: str, unit: str) -> str:
    """Return SQL for an integer's instant as ISO 8601 without a zone."""
    # Not via microseconds, whose first and last values are instants as well.
    return _point_in_time(
        raw,
        unit,
        last="'infinity'",
        first="'-infinity'",
        finite=lambda micros: f"replace(CAST({_ntz(micros)} AS STRING), ' ', 'T')",
    )


def date(raw: str) -> str:
    """Return SQL for days since 1970, or ISO text, as DATE."""
    return (
        f"CASE WHEN {raw} RLIKE {_INTEGER} THEN {let(f'try_cast({raw} AS BIGINT)', _date_of_days)} "
        f"WHEN {_IS_LAST(raw)} THEN {_infinite_date(raw, _LAST_DAY)} "
        f"WHEN {_IS_FIRST(raw)} THEN {_infinite_date(raw, _FIRST_DAY)} "
        # What has a time of day is no date, unless it is midnight.
        f"WHEN contains({raw}, ':') AND try_cast({raw} AS TIMESTAMP_NTZ) <> try_cast({raw} AS DATE) THEN NULL "
        f"ELSE try_cast(trim(TRAILING 'Z' FROM {raw}) AS DATE) END"
    )


def date_text(raw: str) -> str:
    """Return SQL for days since 1970, or ISO text, as ISO text."""
    return let(
        date(raw),
        lambda value: (
            f"CASE unix_date({value}) WHEN {_LAST_DAY} THEN 'infinity' WHEN {_FIRST_DAY} THEN '-infinity' "
            f"ELSE CAST({value} AS STRING) END"
        ),
    )


def time_text(raw: str, unit: str) -> str:
    """Return SQL for a time since midnight as text; MySQL's may be negative and longer than a day."""

    def clock(micros: str) -> str:
        part = "lpad(CAST({} AS STRING), {}, '0')"
        absolute = f"abs({micros})"
        hours = f"CAST({absolute} DIV 3600000000 AS STRING)"
        # The smallest number has no absolute value.
        return (
            f"CASE WHEN {micros} > {_FIRST_MICROS} THEN "
            f"concat(IF({micros} < 0, '-', ''), lpad({hours}, greatest(length({hours}), 2), '0'), ':', "
            f"{part.format(f'{absolute} DIV 60000000 % 60', 2)}, ':', "
            f"{part.format(f'{absolute} DIV 1000000 % 60', 2)}, '.', "
            f"{part.format(f'{absolute} % 1000000', 6)}) END"
        )

    def of_number(value: str) -> str:
        return let(_scaled(value, unit), clock)

    return f"CASE WHEN {raw} RLIKE {_INTEGER} THEN {let(f'try_cast({raw} AS BIGINT)', of_number)} ELSE {raw} END"


def _date_of_days(days: str) -> str:
    # 2145042905 and -2440588 are PostgreSQL's last and first date. Beyond them, releases of Debezium have written
    # infinity as LocalDate 5877611-06-21 and -5877611-06-21 and, in a snapshot, as a java.sql.Date truncated to 32
    # bits.
    is_infinity = (
        f"{days} > 2145042905 AND {days} NOT BETWEEN 106748361126 AND 106748361130 "
        f"OR {days} = -2147472692 OR {days} BETWEEN -622191236 AND -622191232"
    )
    return (
        f"CASE WHEN {is_infinity} THEN {_infinite_date(days, _LAST_DAY)} "
        f"WHEN {days} NOT BETWEEN -2440588 AND 2145042905 THEN {_infinite_date(days, _FIRST_DAY)} "
        f"ELSE date_from_unix_date(CAST({days} AS INT)) END"
    )


def _infinite_date(of: str, day: str) -> str:
    # A constant would become a literal, which Spark cannot print with spark.sql.legacy.timeParserPolicy=LEGACY.
    return f"date_from_unix_date(IF({of} IS NULL, 0, {day}))"


def _ntz(micros: str) -> str:
    # timestamp_micros and a cast would use the session's zone.
    return f"(TIMESTAMP_NTZ'1970-01-01 00:00:00' + INTERVAL '0.000001' SECOND * {micros})"


def _micros(raw: str, unit: str) -> str:
    """Return SQL for an integer in microseconds, with infinity as the largest and smallest; NULL on overflow."""
    return _point_in_time(raw, unit, last=_LAST_MICROS, first=_FIRST_MICROS, finite=lambda micros: micros)


def _point_in_time(raw: str, unit: str, *, last: str, first: str, finite: Callable[[str], str]) -> str:
    """Return SQL for an integer's instant.

    Args:
        raw: SQL for the integer as text.
        unit: Its unit.
        last: SQL for infinity.
        first: SQL for minus infinity.
        finite: Returns SQL for any other instant, from its microseconds.
    """

    def of_number(value: str) -> str:
        point = finite(_scaled(value, unit))
        if unit not in _INFINITE:
            return point
        infinity, minus_infinity = _INFINITE[unit]
        return (
            f"CASE WHEN {value} IN ({infinity}) THEN {last} WHEN {value} IN ({minus_infinity}) THEN {first} "
            f"ELSE {point} END"
        )

    return let(f"try_cast({raw} AS BIGINT)", of_number)


def _scaled(value: str, unit: str) -> str:
    """Return SQL for a number in microseconds; NULL if it does not fit into a BIGINT.

    The first and the last BIGINT of nanoseconds stand for every instant beyond them, since Java's conversion in the
    connector saturates.
    """
    match unit:
        case "ms":
            return f"CASE WHEN {value} BETWEEN -9223372036854775 AND 9223372036854775 THEN {value} * 1000 END"
        case "ns":
            floor = f"{value} DIV 1000 - IF({value} % 1000 < 0, 1, 0)"
            return f"CASE WHEN {value} NOT IN ({_LAST_MICROS}, {_FIRST_MICROS}) THEN {floor} END"
        case _:
            return value


def _timestamp_of_text(raw: str) -> str:
    return (
        f"CASE WHEN {_IS_LAST(raw)} THEN timestamp_micros({_LAST_MICROS}) "
        f"WHEN {_IS_FIRST(raw)} THEN timestamp_micros({_FIRST_MICROS}) "
        # Spark would take the day on which it reads a time of day.
        f"WHEN {raw} RLIKE '^ *T?[0-9]{{1,2}}:' THEN NULL "
        f"WHEN {raw} RLIKE {_ZONE} THEN try_cast({raw} AS TIMESTAMP_LTZ) "
        f"ELSE try_cast(concat({raw}, 'Z') AS TIMESTAMP_LTZ) END"
    )
