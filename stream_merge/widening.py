"""Finds the type that holds the values of two, as far as Delta can widen a column's type to it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as T

MAX_PRECISION = 38
_INTEGERS = (T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType())
_DIGITS = (3, 5, 10, 19)
"""Digits of the largest number of each of these types."""
_STORED_DIGITS = (10, 10, 10, 20)
"""Digits that a decimal must have before the point for Delta to widen each of these types to it."""


def wider(kept: T.DataType, sent: T.DataType) -> T.DataType | None:
    """Return the type that holds the values of both, to which Delta can widen the first.

    Args:
        kept: The type of a column.
        sent: The type of its new values.

    Returns:
        `kept` itself if it holds the values of `sent`; None if there is no such type.
    """
    if isinstance(sent, T.NullType) or kept.simpleString() == sent.simpleString():
        return kept
    if isinstance(kept, T.NullType):
        # A field inside a struct that had no type yet.
        return sent
    if isinstance(kept, T.StructType) and isinstance(sent, T.StructType):
        return _wider_struct(kept, sent)
    if isinstance(kept, T.ArrayType) and isinstance(sent, T.ArrayType):
        element = wider(kept.elementType, sent.elementType)
        return None if element is None else T.ArrayType(element, kept.containsNull)
    if isinstance(kept, T.MapType) and isinstance(sent, T.MapType):
        key, value = wider(kept.keyType, sent.keyType), wider(kept.valueType, sent.valueType)
        return None if key is None or value is None else T.MapType(key, value, kept.valueContainsNull)
    if isinstance(kept, T.DateType | T.TimestampNTZType) and isinstance(sent, T.DateType | T.TimestampNTZType):
        return T.TimestampNTZType()
    return _wider_number(kept, sent)


def in_same_family(kept: T.DataType, sent: T.DataType) -> bool:
    """Return whether each release of Delta that has type widening widens the first type in a MERGE.

    For `INT` to `DOUBLE` or to a decimal, older ones need an ALTER TABLE.
    """
    if isinstance(kept, T.StructType) and isinstance(sent, T.StructType):
        types = {field.name.lower(): field.dataType for field in sent.fields}
        return all(in_same_family(f.dataType, types.get(f.name.lower(), f.dataType)) for f in kept.fields)
    if isinstance(kept, T.ArrayType) and isinstance(sent, T.ArrayType):
        return in_same_family(kept.elementType, sent.elementType)
    if isinstance(kept, T.MapType) and isinstance(sent, T.MapType):
        return in_same_family(kept.keyType, sent.keyType) and in_same_family(kept.valueType, sent.valueType)
    return not (kept in _INTEGERS and isinstance(sent, T.DoubleType | T.DecimalType))


def _wider_struct(kept: T.StructType, sent: T.StructType) -> T.StructType | None:
    types = {field.name.lower(): field for field in sent.fields}
    fields = []
    for field in kept.fields:
        new = types.pop(field.name.lower(), field)
        kind = wider(field.dataType, new.dataType)
        if kind is None:
            return None
        fields.append(T.StructField(field.name, kind, field.nullable, field.metadata))
    return T.StructType([*fields, *types.values()])


def _wider_number(kept: T.DataType, sent: T.DataType) -> T.DataType | None:
    if kept in _INTEGERS and sent in _INTEGERS:
        return max(kept, sent, key=_INTEGERS.index)
    if isinstance(kept, T.DecimalType) or isinstance(sent, T.DecimalType):
        return _wider_decimal(kept, sent)
    floats = (T.FloatType(), T.DoubleType())
    if kept in floats and sent in floats:
        return kept if kept == sent else T.DoubleType()
    # A FLOAT holds 24 bits of an integer, a DOUBLE 53.
    if kept == T.FloatType() and sent in _INTEGERS[:2]:
        return kept
    both = {type(kept), type(sent)}
    if both & {T.FloatType, T.DoubleType} and (kept in _INTEGERS[:3] or sent in _INTEGERS[:3]):
        return T.DoubleType()
    return None


def _wider_decimal(kept: T.DataType, sent: T.DataType) -> T.DecimalType | None:
    ours, theirs = _whole_and_scale(kept, _STORED_DIGITS), _whole_and_scale(sent, _DIGITS)
    if ours is None or theirs is None:
        return None
    whole, scale = max(ours[0], theirs[0]), max(ours[1], theirs[1])
    return T.DecimalType(whole + scale, scale) if whole + scale <= MAX_PRECISION else None


def _whole_and_scale(kind: T.DataType, digits: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the digits before and after the point; None for a type that is no exact number."""
    if isinstance(kind, T.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return (digits[_INTEGERS.index(kind)], 0) if kind in _INTEGERS else None


def is_widened(kept: T.DataType, kind: T.DataType) -> bool:
    """Return whether a type that the table has changes, beside fields that are added or had no type yet."""
    return any(
        one.simpleString() != other.simpleString() and not isinstance(one, T.NullType)
        for one, other in _plain_types(kept, kind)
    )


def keeps_text(kept: T.DataType, kind: T.DataType) -> bool:
    """Return whether values of a type that the table has keep their text when the type is widened to another one.

    5 is 5.0 as a DOUBLE, and a day has a clock as a TIMESTAMP_NTZ.
    """
    exact = T.IntegralType | T.DecimalType
    return all(
        one.simpleString() == other.simpleString()
        or isinstance(one, T.NullType)
        or (isinstance(one, exact) and isinstance(other, exact))
        for one, other in _plain_types(kept, kind)
    )


def _plain_types(kept: T.DataType, kind: T.DataType) -> Iterator[tuple[T.DataType, T.DataType]]:
    """Yield the types inside a type, and those that they have in a wider one."""
    if isinstance(kept, T.StructType) and isinstance(kind, T.StructType):
        types = {each.name.lower(): each.dataType for each in kind.fields}
        for each in kept.fields:
            yield from _plain_types(each.dataType, types[each.name.lower()])
    elif isinstance(kept, T.ArrayType) and isinstance(kind, T.ArrayType):
        yield from _plain_types(kept.elementType, kind.elementType)
    elif isinstance(kept, T.MapType) and isinstance(kind, T.MapType):
        yield from _plain_types(kept.keyType, kind.keyType)
        yield from _plain_types(kept.valueType, kind.valueType)
    else:
        yield kept, kind


def lacks_fields(sent: T.DataType, kept: T.DataType) -> bool:
    """Return whether a struct of a type lacks fields that the same struct of another type has."""
    return any(True for _ in lacked_fields(sent, kept))


def lacked_fields(sent: T.DataType, kept: T.DataType) -> Iterator[T.StructField]:
    """Yield the fields that structs of a type lack, and the same structs of another type have."""
    if isinstance(sent, T.StructType) and isinstance(kept, T.StructType):
        types = {each.name.lower(): each.dataType for each in sent.fields}
        for each in kept.fields:
            if each.name.lower() not in types:
                yield each
            else:
                yield from lacked_fields(types[each.name.lower()], each.dataType)
    if isinstance(sent, T.ArrayType) and isinstance(kept, T.ArrayType):
        yield from lacked_fields(sent.elementType, kept.elementType)
    if isinstance(sent, T.MapType) and isinstance(kept, T.MapType):
        yield from lacked_fields(sent.keyType, kept.keyType)
        yield from lacked_fields(sent.valueType, kept.valueType)


def in_shape(sent: T.DataType, kind: T.DataType) -> T.DataType:
    """Return a type with the fields of `sent`, which has the types that these have in `kind`."""
    if isinstance(sent, T.StructType) and isinstance(kind, T.StructType):
        types = {each.name.lower(): each.dataType for each in kind.fields}
        fields = ((each, in_shape(each.dataType, types[each.name.lower()])) for each in sent.fields)
        return T.StructType([T.StructField(each.name, shaped, each.nullable) for each, shaped in fields])
    if isinstance(sent, T.ArrayType) and isinstance(kind, T.ArrayType):
        return T.ArrayType(in_shape(sent.elementType, kind.elementType), sent.containsNull)
    if isinstance(sent, T.MapType) and isinstance(kind, T.MapType):
        key, value = in_shape(sent.keyType, kind.keyType), in_shape(sent.valueType, kind.valueType)
        return T.MapType(key, value, sent.valueContainsNull)
    return kind
