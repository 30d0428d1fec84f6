"""Builds the id of a row without a key from its sequence and a hash of its contents."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.row_json import EXACT_TIMES

AS_JSON = {**EXACT_TIMES, "timeZone": "UTC", "ignoreNullFields": "true"}
"""NULL is left out, so that a column that is added to the table leaves the contents of its rows as they are."""

_PLAIN_NUMBER = "0." + "#" * 38
"""A number with the digits that it has, and no more."""


def comparable(value: Column, data_type: T.DataType) -> Column:
    """Return a value in a form that equal ones have in common, of whatever width their types are.

    A sorted list of texts stands in the place of a map, of which the entries may have any order; a text of its digits in that of
    an integer or a decimal, whose zeros at the end come of the scale.
    """
    if isinstance(data_type, T.IntegralType):
        return value.cast("string")
    if isinstance(data_type, T.DecimalType):
        return F.call_function("format_number", value, F.lit(_PLAIN_NUMBER))
    if isinstance(data_type, T.ArrayType):
        element = data_type.elementType
        return F.transform(value, lambda item: comparable(item, element)) if _has_forms(element) else value
    if isinstance(data_type, T.StructType) and _has_forms(data_type):
        fields = [comparable(value.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(data_type, T.MapType):
        key_type, value_type = data_type.keyType, data_type.valueType

        def text(entry: Column) -> Column:
            key, item = comparable(entry["key"], key_type), comparable(entry["value"], value_type)
            return F.to_json(F.struct(key.alias("key"), item.alias("value")), AS_JSON)

        return F.array_sort(F.transform(F.map_entries(value), text))
    return value


def _has_forms(data_type: T.DataType) -> bool:
    """Return whether equal values of a type may have several forms."""
    if isinstance(data_type, T.ArrayType):
        return _has_forms(data_type.elementType)
    if isinstance(data_type, T.StructType):
        return any(_has_forms(field.dataType) for field in data_type.fields)
    return isinstance(data_type, (T.MapType, T.IntegralType, T.DecimalType))


def ordered_text(value: Column, data_type: T.DataType) -> Column:
    """Return a text of a sequence that no other sequence has, in the same order if it consists of numbers and times.

    Files are then skipped by it: it must be short, since Delta keeps no more than 32 characters of a bound.
    """
    if isinstance(data_type, T.StructType):
        return F.concat(*[ordered_text(value.getField(f.name), f.dataType) for f in data_type.fields])
    if isinstance(data_type, T.DateType):
        return _number_text(F.unix_date(value))
    if isinstance(data_type, T.TimestampType):
        return _number_text(F.unix_micros(value))
    if isinstance(data_type, (T.IntegralType, T.BooleanType)):
        return _number_text(value.cast("bigint"))
    text = value.cast("string") if isinstance(data_type, T.AtomicType) else F.to_json(F.struct(value), AS_JSON)
    if isinstance(data_type, T.BinaryType):
        text = F.hex(value)
    return F.coalesce(F.concat(_number_text(F.length(text)), text), F.lit(" "))


def _number_text(number: Column) -> Column:
    """Return the hexadecimal digits, their number before them."""
    digits = F.hex(number.cast("bigint"))
    counted = F.concat(F.hex(F.length(digits) - 1), digits)
    return F.when(number.isNull(), F.lit(" ")).when(number < 0, F.concat(F.lit("-"), digits)).otherwise(counted)
