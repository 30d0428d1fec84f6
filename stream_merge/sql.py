"""Quotes names and parses expressions in Spark's SQL."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from stream_merge.clauses import Expression


def quote(*parts: str) -> str:
    """Return a name as SQL, each part in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def sql_type(kind: DataType) -> str:
    """Return a type as SQL that means the same in every session: TIMESTAMP is what `spark.sql.timestampType` says."""
    match kind:
        case StructType():
            # Not by its own text, which quotes no names.
            return f"struct<{', '.join(f'{quote(field.name)}: {sql_type(field.dataType)}' for field in kind.fields)}>"
        case ArrayType():
            return f"array<{sql_type(kind.elementType)}>"
        case MapType():
            return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
        case TimestampType():
            return "timestamp_ltz"
        case _:
            return kind.simpleString()


def column_of(expression: Expression) -> Column:
    """Return an expression as a Column."""
    return F.expr(expression) if isinstance(expression, str) else expression


def all_of(conditions: Sequence[Column]) -> Column:
    """Return whether all of some conditions hold; true if there are none.

    Halves are joined, not one condition after the other: of a thousand columns, the plan would be a thousand levels
    deep, and Spark walks through plans by recursion.
    """
    if not conditions:
        return F.lit(True)
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return all_of(conditions[:middle]) & all_of(conditions[middle:])
