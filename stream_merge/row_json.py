"""Writes a row as JSON text without losing any value."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from stream_merge.sql import quote

EXACT_TIMES = {
    # It ends with the offset of the zone.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options that keep microseconds in JSON; by default Spark truncates times to milliseconds."""

_OPTIONS = {"ignoreNullFields": "false", **EXACT_TIMES, "timeZone": "UTC"}


def row_as_json(fields: Sequence[StructField]) -> Column:
    """Return the columns of these fields as one JSON text.

    Times are in UTC with microseconds, binary values are base64, NaN and infinity are strings. Texts that are not UTF-8
    are `base64:` and their bytes. A map whose keys are not strings becomes a list of entries, `{"key": ..., "value":
    ...}`; the bytes of keys that are not UTF-8 are lost.
    """
    columns = [_writable(F.col(quote(field.name)), field.dataType).alias(field.name) for field in fields]
    return F.to_json(F.struct(*columns), _OPTIONS)


def _writable(value: Column, data_type: DataType) -> Column:
    """Return the value with what Spark would write in a way that cannot be read back in another form."""
    if not _is_rewritten(data_type):
        return value
    if isinstance(data_type, StringType):
        text = value.cast("string")
        return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("base64:"), F.base64(text.cast("binary"))))
    if isinstance(data_type, ArrayType):
        element = data_type.elementType
        return F.transform(value, lambda item: _writable(item, element))
    if isinstance(data_type, StructType):
        fields = [_writable(value.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    assert isinstance(data_type, MapType)
    key_type, value_type = data_type.keyType, data_type.valueType
    if isinstance(key_type, StringType):
        return F.transform_values(value, lambda _, item: _writable(item, value_type))
    return F.transform(
        F.map_entries(value),
        lambda entry: F.struct(
            _writable(entry.getField("key"), key_type).alias("key"),
            _writable(entry.getField("value"), value_type).alias("value"),
        ),
    )


def _is_rewritten(data_type: DataType) -> bool:
    if isinstance(data_type, MapType):
        return not isinstance(data_type.keyType, StringType) or _is_rewritten(data_type.valueType)
    if isinstance(data_type, ArrayType):
        return _is_rewritten(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_is_rewritten(field.dataType) for field in data_type.fields)
    return isinstance(data_type, StringType)
