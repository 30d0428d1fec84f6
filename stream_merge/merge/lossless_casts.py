"""Refuses casts that would change a value without an error, for example 1.2345 to 1.23 in a DECIMAL(8, 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from math import inf
from typing import TypeAlias

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.errors import LOSS
from stream_merge.merge.fields_by_name import in_order_of

Test: TypeAlias = Callable[[Column], Column]
"""Returns whether a value changes; NULL counts as false."""

_MAX_DIGITS = 38
_SHOWN = 80
_INFINITE = (inf, -inf)
_WHOLE_BITS: dict[type[T.DataType], int] = {T.FloatType: 24, T.DoubleType: 53}
_BITS: dict[type[T.DataType], int] = {T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}


def is_wanted(spark: SparkSession) -> bool:
    """Return whether values may not change in a cast: not if the session stores them as older releases of Spark did."""
    return str(spark.conf.get("spark.sql.storeAssignmentPolicy")).upper() == "ANSI"


def exact(value: Column, narrowed: Column, name: str, source: T.DataType, target: T.DataType) -> Column | None:
    """Return a cast value that raises an error where the cast changes it; None if it never does.

    Args:
        value: The value.
        narrowed: The value cast to the other type.
        name: Its column's name in messages.
        source: The type before the cast.
        target: The type after the cast.
    """
    is_changed = loss_test(source, target)
    if is_changed is None:
        return None
    told = f" is {source.simpleString().upper()}, which {target.simpleString().upper()} {LOSS}"
    message = F.concat(F.lit(f"{name}: "), F.left(value.cast("string"), F.lit(_SHOWN)), F.lit(told))
    return F.when(is_changed(value), F.raise_error(message)).otherwise(narrowed)


def exactly_typed(value: Column, name: str, source: T.DataType, target: T.DataType) -> Column:
    """Return a cast value that raises an error where the cast fails or changes it, also without ANSI mode.

    Args:
        value: The value.
        name: Its column's name in messages.
        source: The type before the cast.
        target: The type after the cast.
    """
    typed = value.try_cast(target)
    is_changed = typed.isNull()
    test = loss_test(source, target)
    if test is not None:
        is_changed |= F.coalesce(test(value), F.lit(False))
    if {type(source), type(target)} == {T.TimestampType, T.TimestampNTZType}:
        # When clocks are set back, two instants have the same local time.
        is_changed |= ~F.coalesce(typed.cast(source) == value, F.lit(False))
    told = f" is {source.simpleString().upper()}, which {target.simpleString().upper()} {LOSS}"
    message = F.concat(F.lit(f"{name}: "), F.left(value.cast("string"), F.lit(_SHOWN)), F.lit(told))
    return F.when(value.isNotNull(), F.when(is_changed, F.raise_error(message)).otherwise(typed))


def as_kept(value: Column, name: str, given: T.DataType, kept: T.DataType, *, is_exact: bool) -> Column:
    """Return a value in the type of the target's column, in which it meets the values that are there.

    Args:
        value: The value.
        name: Its name in messages.
        given: Its type; its structs have the fields of the other type's.
        kept: The type of the column.
        is_exact: Whether a value that the cast would change is an error.
    """
    value = in_order_of(value, given, kept)
    if not is_exact or given == kept or isinstance(given, T.NullType):
        return value.cast(kept)
    # When clocks are set back, two instants have the same local time; as the row's own values, they are taken.
    are_times = {type(given), type(kept)} == {T.TimestampType, T.TimestampNTZType}
    if isinstance(given, T.AtomicType) and isinstance(kept, T.AtomicType) and not are_times:
        return exactly_typed(value, name, given, kept)
    found = exact(value, value.cast(kept), name, given, kept)
    return value.cast(kept) if found is None else found


def with_exact_values(resolved: ResolvedMerge, source: T.StructType, written: Iterable[str]) -> ResolvedMerge:
    """Return the default clauses with an error for each value that the cast to its column's type would change.

    Args:
        resolved: The statement.
        source: The batch's schema.
        written: The columns of the batch to write.
    """
    names = {name.lower() for name in written}
    given = {field.name.lower(): field for field in source.fields if field.name.lower() in names}
    checks = {
        place: given[field.name.lower()]
        for place, field in enumerate(resolved.types)
        if field.name.lower() in given and _can_change(given[field.name.lower()].dataType, field.dataType)
    }
    if not checks:
        return resolved
    values = resolved.source_columns([field.name for field in checks.values()])

    def checked(place: int, narrowed: Column) -> Column:
        field = checks.get(place)
        if field is None:
            return narrowed
        target, value = resolved.types[place], values[field.name]
        if isinstance(target.dataType, T.StructType):
            # Delta 4.0 turns NULL into a struct whose members are NULL.
            narrowed = F.when(value.isNotNull(), narrowed)
        found = exact(value, narrowed, target.name, field.dataType, target.dataType)
        return narrowed if found is None else found

    clauses = [
        replace(clause, values=tuple(checked(place, value) for place, value in enumerate(clause.values)))
        for clause in resolved.clauses
    ]
    return resolved.with_clauses(clauses, is_analysed=True)


def _can_change(source: T.DataType, target: T.DataType) -> bool:
    return (isinstance(target, T.StructType) and source != target) or loss_test(source, target) is not None


def loss_test(source: T.DataType, target: T.DataType) -> Test | None:
    """Return a test of whether a cast changes a value; None if it never does, or raises its own error.

    FLOAT and DOUBLE are approximate: losing digits after the point is not a change, but losing digits of a whole
    number, or turning a finite value into infinity, is.
    """
    match source, target:
        case T.StructType(), T.StructType():
            return _struct_test(source, target)
        case T.ArrayType(), T.ArrayType():
            return _items_test(loss_test(source.elementType, target.elementType), lambda value: value)
        case T.MapType(), T.MapType():
            return _any_of(
                _items_test(loss_test(source.keyType, target.keyType), F.map_keys),
                _items_test(loss_test(source.valueType, target.valueType), F.map_values),
            )
        case T.StringType(), _:
            return _text_test(target)
        case ((T.TimestampType() | T.TimestampNTZType()), (T.DateType() | T.IntegralType() | T.DecimalType())):
            return lambda value: ~(value.try_cast(target).cast(source) == value)
        case T.NumericType(), T.BooleanType():
            return lambda value: ~value.isin(0, 1)
        case T.NumericType(), T.NumericType():
            return _number_test(source, target)
        case _:
            return None


def _any_of(*tests: Test | None) -> Test | None:
    present = [test for test in tests if test is not None]
    if not present:
        return None
    return lambda value: reduce(Column.__or__, [test(value) for test in present])


def _struct_test(source: T.StructType, target: T.StructType) -> Test | None:
    members = {field.name.lower(): field for field in source.fields}

    def of_member(field: T.StructField) -> Test | None:
        member = members.get(field.name.lower())
        test = None if member is None else loss_test(member.dataType, field.dataType)
        if member is None or test is None:
            return None
        name = member.name
        return lambda value: test(value.getField(name))

    return _any_of(*[of_member(field) for field in target.fields])


def _items_test(test: Test | None, items: Callable[[Column], Column]) -> Test | None:
    if test is None:
        return None
    return lambda value: F.exists(items(value), test)


def _number_test(source: T.NumericType, target: T.NumericType) -> Test | None:
    """Return the test of a number; overflow of integers and decimals raises an error by itself."""

    def comes_back_as_another(value: Column) -> Column:
        narrowed = value.try_cast(target)
        # Where the cast raises its own error, let it.
        return narrowed.isNotNull() & ~F.coalesce(narrowed.try_cast(source) == value, F.lit(False))

    match source, target:
        case T.DoubleType(), T.FloatType():
            return lambda value: value.try_cast(target).isin(*_INFINITE) & ~value.isin(*_INFINITE)
        case ((T.FloatType() | T.DoubleType()), T.DecimalType()):
            # NaN and infinity would become NULL.
            return lambda value: F.isnan(value) | value.isin(*_INFINITE) | comes_back_as_another(value)
        case ((T.FloatType() | T.DoubleType()), T.IntegralType()):
            return comes_back_as_another
        case T.DecimalType(), T.IntegralType() if source.scale > 0:
            return comes_back_as_another
        case T.DecimalType(), T.DecimalType() if source.scale > target.scale:
            return comes_back_as_another
        case T.DecimalType(), (T.FloatType() | T.DoubleType()) if source.scale == 0:
            return comes_back_as_another
        case T.IntegralType(), (T.FloatType() | T.DoubleType()) if _BITS[type(source)] > _WHOLE_BITS[type(target)]:
            return comes_back_as_another
        case _:
            return None


def _text_test(target: T.DataType) -> Test | None:
    match target:
        case T.DecimalType():
            return lambda value: _is_rounded_text(value, target)
        case T.DateType():
            # The time of day would be lost.
            return lambda value: value.try_cast("timestamp_ntz") != value.try_cast(target).cast("timestamp_ntz")
        case T.FloatType() | T.DoubleType():
            return lambda value: (
                (value.try_cast(target).isin(*_INFINITE) & ~F.lower(value).contains("inf"))
                | _is_rounded_whole_text(value, target)
            )
        case _:
            return None


def _is_rounded_whole_text(value: Column, target: T.FloatType | T.DoubleType) -> Column:
    # Not as decimals, in which numbers have the digits of their shortest text alone.
    is_another = value.try_cast("bigint") != value.try_cast(target).try_cast("bigint")
    return F.trim(value).rlike("^[+-]?[0-9]+$") & is_another


def _is_rounded_text(value: Column, target: T.DecimalType) -> Column:
    narrowed = value.try_cast(target)
    # The widest type also keeps all digits of a number with an exponent.
    wide = value.try_cast(T.DecimalType(_MAX_DIGITS, _MAX_DIGITS - target.precision + target.scale))
    fraction = F.length(F.regexp_extract(F.trim(value), "[.]([0-9]*?)0*$", 1))
    is_rounded = F.when(F.upper(value).contains("E"), wide != narrowed).otherwise(fraction > target.scale)
    return narrowed.isNotNull() & is_rounded
