"""Finds CHAR columns, and removes the blanks with which Spark pads a CHAR, at any depth of a column."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

CHAR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata key that holds the declared type of a column that is or contains a CHAR or VARCHAR, which are STRING in the
schema."""


def char_columns(schema: T.StructType) -> frozenset[str]:
    """Return the lower-case names of the columns that are a CHAR.

    Blanks at the end of a CHAR do not count. Files have them or not: a DataFrame is written as it is, an INSERT in SQL
    pads it, and so does whatever rewrites a file by Spark's plans, such as OPTIMIZE.
    """
    declared = {field.name.lower(): (field.metadata or {}).get(CHAR_VARCHAR) for field in schema.fields}
    return frozenset(name for name, text in declared.items() if text and _is_char(text))


def without_blanks(value: Column) -> Column:
    """Return a CHAR without the blanks at its end, as it is compared; blanks alone stay.

    The empty text would be NULL where the column partitions the table.
    """
    trimmed = F.rtrim(value)
    return F.when(trimmed == "", value).otherwise(trimmed)


def _is_char(declared: str) -> bool:
    return isinstance(T.DataType.fromDDL(declared), T.CharType)


def without_padding(value: Column, column: T.StructField) -> Column:
    """Return a column's value with the blanks at the end of each CHAR removed."""
    declared = column.metadata.get(CHAR_VARCHAR)
    return value if declared is None else _trimmed(value, T.DataType.fromDDL(declared))


def _trimmed(value: Column, declared: T.DataType) -> Column:
    if isinstance(declared, T.CharType):
        return F.rtrim(value)
    if not _contains_char(declared):
        return value
    if isinstance(declared, T.StructType):
        fields = [_trimmed(value.getField(f.name), f.dataType).alias(f.name) for f in declared.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(declared, T.ArrayType):
        return F.transform(value, lambda element: _trimmed(element, declared.elementType))
    assert isinstance(declared, T.MapType)
    trimmed = F.transform(
        F.map_entries(value),
        lambda entry: F.struct(
            _trimmed(entry["key"], declared.keyType).alias("key"),
            _trimmed(entry["value"], declared.valueType).alias("value"),
        ),
    )
    return F.map_from_entries(trimmed)


def _contains_char(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_contains_char(f.dataType) for f in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _contains_char(kind.elementType)
    if isinstance(kind, T.MapType):
        return _contains_char(kind.keyType) or _contains_char(kind.valueType)
    return isinstance(kind, T.CharType)
