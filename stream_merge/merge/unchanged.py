"""Finds updates that would not change their row.

A row is unchanged if no reader could tell the new row from the old one. This is stricter than SQL's equality: -0.0
differs from 0.0, and equal strings of a collation may differ in their bytes. NULL equals NULL, and NaN equals NaN.
Values that cannot be compared count as changed: an unnecessary write does no harm, a lost change does.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from stream_merge.merge.canonical import EXACT
from stream_merge.merge.job import MergeJob
from stream_merge.sql import all_of
from stream_merge.table.char_columns import CHAR_VARCHAR

_COMPARABLE = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)
"""Types without parts whose values have a canonical form."""


def unchanged_rows(job: MergeJob) -> dict[int, Column] | None:
    """Return for each UPDATE clause, by number, whether it would not change the row; None without `skip_unchanged`."""
    if not job.skip_unchanged:
        return None
    return job.resolved.once("unchanged", lambda: _unchanged_rows(job))


def _unchanged_rows(job: MergeJob) -> dict[int, Column]:
    resolved = job.resolved
    unchanged = {}
    for number, clause in enumerate(resolved.clauses):
        if clause.clause.is_update:
            unchanged[number] = all_of(
                [
                    is_same(clause.values[i], resolved.old_values[i], resolved.types[i])
                    for i in resolved.assigned(clause)
                ]
            )
    return unchanged


def is_same(new: Column, old: Column, column: StructField) -> Column:
    """Return whether two values of a column are identical."""
    # Without the casts, the NULL of a column that the merge adds has no type.
    new, old = new.cast(column.dataType), old.cast(column.dataType)
    declared = str((column.metadata or {}).get(CHAR_VARCHAR, ""))
    if declared.startswith("char("):
        new, old = (_padded(value, int(declared[5:-1])) for value in (new, old))
    if not _is_comparable(column.dataType):
        return F.lit(False)
    return EXACT.of(new, column.dataType).eqNullSafe(EXACT.of(old, column.dataType))


def _padded(value: Column, length: int) -> Column:
    """Return a CHAR as readers see it, however it is stored. The write refuses values that are too long."""
    return F.when(F.length(value) < length, F.rpad(value, length, " ")).otherwise(value)


def _is_comparable(kind: DataType) -> bool:
    return all(isinstance(leaf, _COMPARABLE) for leaf in _leaves(kind))


def _leaves(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, StructType):
        for f in kind.fields:
            yield from _leaves(f.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(kind.keyType)
        yield from _leaves(kind.valueType)
    else:
        yield kind
