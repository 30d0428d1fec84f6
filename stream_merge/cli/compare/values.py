"""Brings a database's values into the types of the Delta table, and the values of both sides into text.

A value of the database becomes the text that Debezium would send, and is then decoded by the code that decodes
Debezium's. What the column of the Delta table cannot hold gets a text that no value of the table has, so that it
differs. Two values are equal if and only if their texts are.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.cli.compare.kinds import Kind
from stream_merge.debezium import times
from stream_merge.debezium.decimals import plain_text
from stream_merge.debezium.fields import Field
from stream_merge.debezium.spelling import NUL, lambda_name, let
from stream_merge.debezium.values import Handling, decode
from stream_merge.merge.canonical import AS_JSON, TEXT

MISFIT = "\0"
"""Begins the text of a value that the Delta table's column cannot hold. Only the text of a STRING could begin so as
well, and a STRING holds everything."""

_HANDLING = Handling(decimals="string")
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NESTED = (T.ArrayType, T.MapType, T.StructType, T.VariantType)
_MOMENTS = (Kind.MOMENT, Kind.TIME)
_ARRAYS = (Kind.ARRAY, Kind.NUMBERS)
_CLOCK = "[ T][0-9:.]*[1-9]"
"""A time of day that is not midnight."""


def fault_of(kind: Kind | None, target: T.DataType) -> str | None:
    """Return why a column of the database cannot be compared with one of the Delta table; None if it can.

    Args:
        kind: What its values are.
        target: The type of the Delta table's column.
    """
    if kind is None:
        return "has no text that both sides share"
    if isinstance(target, T.StructType | T.MapType):
        return "cannot be read through JDBC in its parts"
    if (kind is Kind.BINARY) != isinstance(target, T.BinaryType):
        return "has bytes on one side alone"
    if (kind in _ARRAYS) != isinstance(target, T.ArrayType):
        return "has arrays on one side alone"
    if kind in _MOMENTS and isinstance(target, _INTEGRAL):
        return "has times on one side and numbers of an unknown unit on the other"
    if kind is Kind.DURATION and not isinstance(target, T.LongType):
        return "has intervals, which are compared as microseconds in a BIGINT alone"
    return None


def sent(name: str, read: T.DataType, kind: Kind) -> str:
    """Return SQL for a value that Spark has read through JDBC, as the text in which it would be sent.

    Args:
        name: SQL for the value.
        read: Spark's type of it.
        kind: What it is; bytes stay bytes.
    """
    match read:
        case T.BinaryType():
            return name
        case T.TimestampType() if kind is not Kind.TIME:
            return f"CAST({times.ntz_of_micros(f'unix_micros({name})')} AS STRING)"
        case T.ArrayType():
            return f"to_json({name})"
        case _ if kind is Kind.TIME:
            # Spark may have put the day 1970-01-01 before it.
            return f"regexp_replace(CAST({name} AS STRING), '^1970-01-01 ', '')"
        case _:
            return f"CAST({name} AS STRING)"


def decoded(name: str, kind: Kind, target: T.DataType) -> str:
    """Return SQL for a sent value in the Delta table's type; NULL if it does not fit.

    Args:
        name: SQL for the sent value.
        kind: What it is.
        target: The type.
    """
    if isinstance(target, T.BinaryType | T.StringType):
        return name
    field = Field(target)
    if kind is Kind.MOMENT:
        found = let(_with_sign_of_era(name), lambda moment: decode(moment, field, _HANDLING))
        # As a day it would lose its time.
        return f"CASE WHEN NOT {name} RLIKE '{_CLOCK}' THEN {found} END" if isinstance(target, T.DateType) else found
    if kind is Kind.NUMBER and isinstance(target, _INTEGRAL):
        return let(_plain_number(name), lambda number: decode(number, field, _HANDLING))
    found = decode(name, field, _HANDLING)
    if isinstance(target, T.FloatType | T.DoubleType):
        return let(found, lambda number: f"CASE WHEN NOT {_is_rounded(name, number)} THEN {number} END")
    return found


def _is_rounded(sent_name: str, number: str) -> str:
    """Return SQL for whether a FLOAT or DOUBLE lacks digits of a whole number, or is infinite for one that is not."""
    # As decimals, numbers have the digits of their shortest text alone.
    is_kept = f"try_cast({sent_name} AS BIGINT) <=> try_cast({number} AS BIGINT)"
    is_other = f"{sent_name} RLIKE '^-?[0-9]{{8,19}}$' AND NOT {is_kept}"
    return f"({is_other} OR {sent_name} RLIKE '[0-9]' AND abs({number}) = CAST('Infinity' AS DOUBLE))"


def comparable(name: str, kind: Kind, target: T.DataType) -> Column:
    """Return the text of a value of the Delta table's type: the same for values that are the same.

    Args:
        name: SQL for the value.
        kind: What the database's values of the column are: it decides which texts of a STRING say the same.
        target: The type.
    """
    match target:
        case T.StringType():
            return F.expr(_plain(f"CAST({name} AS STRING)", kind))
        case T.BinaryType():
            return F.expr(f"hex({name})")
        case T.ArrayType(elementType=T.StringType()) if kind is Kind.NUMBERS:
            element = lambda_name()
            return F.to_json(F.expr(f"transform({name}, {element} -> {_plain_number(element)})"))
        case T.TimestampType():
            return F.expr(f"CAST({times.ntz_of_micros(f'unix_micros({name})')} AS STRING) || 'Z'")
        case _ if isinstance(target, _NESTED):
            return F.to_json(TEXT.of(F.expr(name), target), AS_JSON)
        case _:
            return F.expr(f"CAST({name} AS STRING)")


def comparable_or_misfit(sent_name: str, name: str, kind: Kind, target: T.DataType) -> Column:
    """Return the text of a value of the database, which may not fit the Delta table's type; see `comparable`.

    Args:
        sent_name: SQL for the sent value.
        name: SQL for the decoded value.
        kind: What it is.
        target: The type.
    """
    text = comparable(name, kind, target)
    if isinstance(target, T.BinaryType | T.StringType):
        return text
    misfit = F.expr(f"CASE WHEN {sent_name} IS NOT NULL THEN {NUL} || {sent_name} END")
    return F.when(F.expr(f"{name} IS NOT NULL"), text).otherwise(misfit)


def _plain(text: str, kind: Kind) -> str:
    match kind:
        case Kind.NUMBER:
            return let(text, _plain_number)
        case Kind.MOMENT | Kind.TIME:
            return let(let(text, _with_sign_of_era), _plain_moment)
        case Kind.JSON:
            return let(text, _plain_json)
        case _:
            return text


def _plain_number(text: str) -> str:
    """Return SQL for a number without zeros that say nothing, and for NaN and the infinities as PostgreSQL has them."""
    unfolded = f"CASE WHEN {text} RLIKE '[0-9][eE]' THEN {plain_text(text)} ELSE {text} END"
    stripped = let(unfolded, lambda number: _without_zeros(number, f"{number} RLIKE '^-?[0-9]+[.][0-9]*$'"))
    named = (
        "'NAN', 'NaN', 'INFINITY', 'Infinity', '-INFINITY', '-Infinity', "
        "'POSITIVE_INFINITY', 'Infinity', 'NEGATIVE_INFINITY', '-Infinity'"
    )
    number = let(stripped, lambda plain: f"IF({plain} = '-0', '0', {plain})")
    return f"CASE WHEN {text} RLIKE '[0-9]' THEN {number} ELSE decode(upper({text}), {named}, {text}) END"


def _plain_moment(text: str) -> str:
    """Return SQL for a time with a space before the clock, without a zone that is UTC, and without zeros at the end."""
    spaced = f"regexp_replace({text}, '^([+-]?[0-9]+-[0-9]+-[0-9]+)T', '$1 ')"
    unzoned = f"regexp_replace({spaced}, '(Z|[+]00(:?00)?)$', '')"
    return let(unzoned, lambda moment: _without_zeros(moment, f"{moment} RLIKE ':[0-9]+[.][0-9]*$'"))


def _without_zeros(text: str, condition: str) -> str:
    return f"CASE WHEN {condition} THEN trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text})) ELSE {text} END"


def _plain_json(text: str) -> str:
    """Return SQL for JSON without spaces and with its names in order, unless that could make two numbers one."""
    parsed = f"to_json(try_parse_json({text}))"
    is_long = f"{text} RLIKE '[0-9.]{{16}}|[0-9][eE][+-]?[0-9]{{3}}'"
    return f"CASE WHEN {is_long} THEN {text} ELSE coalesce({parsed}, {text}) END"


def _with_sign_of_era(text: str) -> str:
    """Return SQL for a time whose year before Christ, as PostgreSQL writes it, has become one of ISO 8601."""
    year = f"CAST(regexp_extract({text}, '^[0-9]+', 0) AS INT)"
    rest = f"regexp_extract({text}, '^[0-9]+(.*) BC$', 1)"
    before = f"concat(IF({year} > 1, '-', ''), lpad(CAST({year} - 1 AS STRING), 4, '0'), {rest})"
    return f"CASE WHEN endswith({text}, ' BC') THEN {before} ELSE {text} END"
