"""Expressions: their text, the names in them, and the aggregate that Delta alone has."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import Column, SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS, items, java_class, scala_object, translate
from stream_merge.clauses import Expression

# Analysis turns these into literals of the moment, so that a statement with one must be analysed for every batch.
_CURRENT = re.compile(r"current_|\bnow\b|curdate|localtimestamp|\brand|uuid|\bsession_user\b|\buser\b", re.IGNORECASE)


def expression_sql(spark: SparkSession, expression: Expression) -> str:
    """Return an expression as SQL text.

    Raises:
        ClauseError: The text is no SQL expression.
    """
    jvm: Any = spark._jvm
    if isinstance(expression, str):
        text = expression
    else:
        converter = scala_object(jvm, "org.apache.spark.sql.classic.ColumnNodeToExpressionConverter")
        text = str(converter.apply(expression._jc.node()).sql())  # type: ignore[operator]
    try:
        spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except JVM_ERRORS as error:
        raise translate(error) from error
    return text


def qualified_sql(spark: SparkSession, expression: Expression, alias: str) -> str:
    """Return an expression as SQL text, its column names qualified with an alias where they are not.

    Raises:
        ClauseError: The text is no SQL expression.
    """
    text = expression_sql(spark, expression)
    starts: list[int] = []

    def visit(node: Any, bound: frozenset[str]) -> None:
        kind = str(node.getClass().getSimpleName())
        if kind in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable"):
            # Inside a lambda function the parser takes every name for one of its arguments.
            first = str(node.nameParts().head()).lower()
            if first != alias.lower() and first not in bound:
                starts.append(int(node.origin().startIndex().get()))
            return
        if kind == "LambdaFunction":
            bound |= {str(argument.name()).lower() for argument in items(node.arguments())}
            visit(node.function(), bound)
            return
        for child in items(node.children()):
            visit(child, bound)

    visit(spark._jsparkSession.sessionState().sqlParser().parseExpression(text), frozenset())
    for start in sorted(starts, reverse=True):
        text = f"{text[:start]}`{alias}`.{text[start:]}"
    return text


def column_name_parts(spark: SparkSession, name: str) -> list[str]:
    """Split a column name as Spark does: at dots outside back quotes."""
    attribute = java_class(spark._jvm, "org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute")
    try:
        return [str(part) for part in items(attribute.parseAttributeName(name))]
    except JVM_ERRORS as error:
        raise translate(error) from error


def is_time_dependent(text: str) -> bool:
    """Whether analysis of the text may give something else in another moment."""
    return bool(_CURRENT.search(text))


def bitmap(spark: SparkSession, column: Column) -> Column:
    """Return the aggregate of row positions into Delta's bitmap: struct<cardinality, bitmap>; nulls are left out."""
    jvm: Any = spark._jvm
    from pyspark.sql.classic.column import Column as ClassicColumn

    utils = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    portable = java_class(jvm, "org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat").Portable()
    aggregator = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.aggregation.BitmapAggregator")(
        utils.expression(column._jc),
        portable,
    )
    return ClassicColumn(utils.column(aggregator.toAggregateExpression()))
