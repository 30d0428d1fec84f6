"""Quotes names and parses expressions in Spark's SQL."""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from stream_merge.clauses import Expression


def quote(*parts: str) -> str:
    """Return a name as SQL, each part in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def sql_type(kind: DataType) -> str:
    """Return a type as SQL that means the same in every session: TIMESTAMP is what `spark.sql.timestampType` says."""
    # A field of this name has a colon after it.
    return re.sub(r"(?<!\w)timestamp(?![\w:])", "timestamp_ltz", kind.simpleString())


def column_of(expression: Expression) -> Column:
    """Return an expression as a Column."""
    return F.expr(expression) if isinstance(expression, str) else expression
