"""Key and sequence of a row as structs.

Batch, target and tombstones may name the columns differently. As structs they have the same fields everywhere: k0, k1,
... of a key, s0, s1, ... of a sequence. Tombstones and the target's own columns keep them under these names. Spark
compares structs field by field, the first that differs decides, and NULL comes before any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from stream_merge.sql import quote


def key_names(number: int) -> list[str]:
    """Return the names of a key's fields."""
    return [f"k{i}" for i in range(number)]


def key_fields(values: Iterable[Column]) -> list[Column]:
    """Return the values of the key columns under the names of a key's fields."""
    return [value.alias(f"k{i}") for i, value in enumerate(values)]


def key_struct(values: Iterable[Column]) -> Column:
    """Return the key with these values."""
    return F.struct(*key_fields(values))


def key_type(types: Iterable[DataType]) -> StructType:
    """Return the type of a key from the types of its columns."""
    return StructType([StructField(f"k{i}", kind) for i, kind in enumerate(types)])


def sequence_names(number: int) -> list[str]:
    """Return the names of a sequence's fields."""
    return [f"s{i}" for i in range(number)]


def sequence_struct(values: Iterable[Column]) -> Column:
    """Return the sequence with these values."""
    return F.struct(*[value.alias(f"s{i}") for i, value in enumerate(values)])


def sequence_type(types: Iterable[DataType]) -> StructType:
    """Return the type of a sequence from the types of its columns."""
    return StructType([StructField(f"s{i}", kind) for i, kind in enumerate(types)])


def sequence_type_in(schema: StructType, columns: Sequence[str]) -> StructType:
    """Return the type of the sequence that these columns of a schema hold."""
    types = {field.name.lower(): field.dataType for field in schema.fields}
    return sequence_type(types[name.lower()] for name in columns)


def columns_of(names: Sequence[str]) -> list[Column]:
    """Return the columns with these names."""
    return [F.col(quote(name)) for name in names]
