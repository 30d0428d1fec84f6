"""Builds the id of a row without a key from its sequence and a hash of its contents."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.row_json import EXACT_TIMES

AS_JSON = {**EXACT_TIMES, "timeZone": "UTC", "ignoreNullFields": "true"}
"""Omits NULL, so that a column that is added to the table does not change the contents of its rows."""

_PLAIN_NUMBER = "0." + "#" * 38
"""Formats a number with as many digits as it has."""


def comparable(value: Column, data_type: T.DataType) -> Column:
    """Return a value in a form that is the same for equal values, also when their types differ in width.

    A map becomes a sorted list of texts, since its entries may be in any order. An integer or a decimal becomes its
    digits, since the scale decides on trailing zeros.
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
    """Return whether equal values of a type may be represented differently."""
    if isinstance(data_type, T.ArrayType):
        return _has_forms(data_type.elementType)
    if isinstance(data_type, T.StructType):
        return any(_has_forms(field.dataType) for field in data_type.fields)
    return isinstance(data_type, (T.MapType, T.IntegralType, T.DecimalType))


def ordered_text(value: Column, data_type: T.DataType) -> Column:
    """Return a text that is unique to a sequence, and sorts like it if the sequence consists of numbers and times.

    It must be short, since files are skipped by it and Delta keeps only 32 characters of a bound.
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
    """Return the hexadecimal digits, preceded by their number."""
    digits = F.hex(number.cast("bigint"))
    counted = F.concat(F.hex(F.length(digits) - 1), digits)
    return F.when(number.isNull(), F.lit(" ")).when(number < 0, F.concat(F.lit("-"), digits)).otherwise(counted)
