"""Gives structs the fields of others, by name: Spark casts and compares them by position, MERGE sets them by name."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stream_merge.widening import lacks_fields


def has_same_fields(given: DataType, kept: DataType) -> bool:
    """Return whether two types have the same structs, but for the order and the types of their fields."""
    match given, kept:
        case StructType(), StructType():
            places = {field.name.lower(): field.dataType for field in kept.fields}
            names = [field.name.lower() for field in given.fields]
            return (
                {*names} == places.keys()
                and len(names) == len(kept.fields)
                and all(has_same_fields(field.dataType, places[field.name.lower()]) for field in given.fields)
            )
        case ArrayType(), ArrayType():
            return has_same_fields(given.elementType, kept.elementType)
        case MapType(), MapType():
            return has_same_fields(given.keyType, kept.keyType) and has_same_fields(given.valueType, kept.valueType)
        case ((StructType() | ArrayType() | MapType()), _):
            return False
        case _:
            return not isinstance(kept, StructType | ArrayType | MapType)


def has_other_order(given: DataType, kept: DataType) -> bool:
    """Return whether a type has structs with the fields of another type's, but in another order."""
    match given, kept:
        case StructType(), StructType():
            places = {field.name.lower(): field for field in kept.fields}
            names = [field.name.lower() for field in given.fields]
            if {*names} != places.keys() or len(names) != len(kept.fields):
                return False
            return names != [*places] or any(
                has_other_order(field.dataType, places[field.name.lower()].dataType) for field in given.fields
            )
        case ArrayType(), ArrayType():
            return has_other_order(given.elementType, kept.elementType)
        case MapType(), MapType():
            return has_other_order(given.keyType, kept.keyType) or has_other_order(given.valueType, kept.valueType)
        case _:
            return False


def in_order_of(value: Column, given: DataType, kept: DataType) -> Column:
    """Return a value with the fields of its structs in the order of another type, whatever their depth.

    Structs with other fields stay as they are.

    Args:
        value: The value.
        given: Its type.
        kept: The other type.
    """
    if not has_other_order(given, kept):
        return value
    if isinstance(given, StructType) and isinstance(kept, StructType):
        fields = {field.name.lower(): field for field in given.fields}
        own = [fields[field.name.lower()] for field in kept.fields]
        parts = [
            in_order_of(value.getField(mine.name), mine.dataType, theirs.dataType).alias(mine.name)
            for mine, theirs in zip(own, kept.fields, strict=True)
        ]
        return F.when(value.isNotNull(), F.struct(*parts))
    return _inside(value, given, kept, in_order_of)


def with_fields_of(value: Column, given: DataType, kept: DataType) -> Column:
    """Return a value whose structs have the fields of another type, NULL where they lack them, and then their own.

    Args:
        value: The value.
        given: Its type.
        kept: The other type.
    """
    if not lacks_fields(given, kept):
        return value
    if isinstance(given, StructType) and isinstance(kept, StructType):
        fields = {field.name.lower(): field for field in given.fields}
        parts = []
        for theirs in kept.fields:
            mine = fields.pop(theirs.name.lower(), None)
            if mine is None:
                parts.append(F.lit(None).cast(theirs.dataType).alias(theirs.name))
            else:
                part = with_fields_of(value.getField(mine.name), mine.dataType, theirs.dataType)
                parts.append(part.alias(mine.name))
        parts += [value.getField(mine.name).alias(mine.name) for mine in fields.values()]
        return F.when(value.isNotNull(), F.struct(*parts))
    return _inside(value, given, kept, with_fields_of)


def _inside(
    value: Column, given: DataType, kept: DataType, change: Callable[[Column, DataType, DataType], Column]
) -> Column:
    """Return an array or a map whose elements, keys and values are changed."""
    match given, kept:
        case ArrayType(), ArrayType():
            return F.transform(value, lambda item: change(item, given.elementType, kept.elementType))
        case MapType(), MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda entry: F.struct(
                    change(entry["key"], given.keyType, kept.keyType).alias("key"),
                    change(entry["value"], given.valueType, kept.valueType).alias("value"),
                ),
            )
            return F.map_from_entries(entries)
        case _:
            return value
