"""The empty text and the empty BINARY in partition columns: Delta writes and reads them as NULL.

So it does with the name that Hive gives the partition of NULL, which is called empty here, too.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

_KINDS = (StringType, BinaryType)
_OF_NULL = b"__HIVE_DEFAULT_PARTITION__"


def empty_as_null(
    names: Collection[str], partition_columns: Collection[str], batch: StructType, target: StructType
) -> frozenset[str]:
    """Return the lower-case names of those columns of a batch whose empty values the target would have as NULL."""
    wanted = {name.lower() for name in names} & {name.lower() for name in partition_columns}
    return frozenset(wanted & _can_be_empty(batch) & _can_be_empty(target))


def null_if_empty(value: Column) -> Column:
    """Return the value as the target would have it."""
    content = value.cast("binary")
    return F.when((F.octet_length(content) > 0) & (content != F.lit(_OF_NULL)), value)


def can_be_empty(kind: DataType) -> bool:
    """Return whether a type has an empty value."""
    return isinstance(kind, _KINDS)


def _can_be_empty(schema: StructType) -> set[str]:
    return {field.name.lower() for field in schema.fields if can_be_empty(field.dataType)}
