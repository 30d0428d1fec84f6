"""Writes the sequence of a row without a key as text, which its id begins with."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.merge.canonical import AS_JSON


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
