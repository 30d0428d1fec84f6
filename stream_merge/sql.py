"""Quotes names and parses expressions in Spark's SQL."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from stream_merge.clauses import Expression


def quote(*parts: str) -> str:
    """Return a name as SQL, each part in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def column_of(expression: Expression) -> Column:
    """Return an expression as a Column."""
    return F.expr(expression) if isinstance(expression, str) else expression
