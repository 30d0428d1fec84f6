"""Writes a `Column` as SQL text that means the same to the parser.

Spark's own text of an expression is for people to read: it has no time zone, and writes neither lambda functions nor
Python functions in SQL.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, SparkSession

from stream_merge.bridge.jvm import items, java_class, optional, scala_object, seq
from stream_merge.errors import ClauseError

_CATALYST = "org.apache.spark.sql.catalyst"


def column_sql(spark: SparkSession, column: Column) -> str:
    """Return a column's expression as SQL text.

    Raises:
        ClauseError: The expression has no such text: a Python function that is not registered in the session, or
            `withField` and `dropFields`.
    """
    converter = scala_object(spark._jvm, "org.apache.spark.sql.classic.ColumnNodeToExpressionConverter")
    return str(_rewritten(spark, converter.apply(column._jc.node())).sql())  # type: ignore[operator]


def _rewritten(spark: SparkSession, node: Any) -> Any:
    """Return an expression whose text is SQL in place of one whose text is not; the same object if it may stay."""
    kind = str(node.getClass().getSimpleName())
    if kind == "Literal":
        return _literal(spark, node)
    if kind == "LambdaFunction":
        names = [str(argument.sql()) for argument in items(node.arguments())]
        # SQL has no brackets around a single name.
        arguments = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return _with_text(spark, f"{arguments} -> {_rewritten(spark, node.function()).sql()}")
    if kind == "UpdateFields":
        raise ClauseError("withField and dropFields cannot be written in SQL; build the struct with F.struct instead")
    if kind == "PythonUDF" and not _is_registered(spark, str(node.name())):
        raise ClauseError(
            f"the Python function {node.name()} has no name in SQL; register it with spark.udf.register, and use the "
            "function that this returns"
        )
    children = list(items(node.children()))
    rewritten = [_rewritten(spark, child) for child in children]
    if all(one is other for one, other in zip(children, rewritten, strict=True)):
        return node
    return node.withNewChildren(seq(spark._jvm, rewritten))


def _literal(spark: SparkSession, literal: Any) -> Any:
    text, kind = str(literal.sql()), str(literal.dataType().typeName())
    if kind == "string" and "${" in text:
        # The parser would put a setting in its place. It joins strings that follow each other.
        return _with_text(spark, text.replace("${", "$' '{"))
    if kind == "timestamp" and literal.value() is not None:
        # A time of day says which moment it is, unless clocks are put back. Where it does, it stays: files are found by
        # literals.
        parsed = spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
        if not parsed.equals(literal):
            return _with_text(spark, f"timestamp_micros({literal.value()})")
    return literal


def _is_registered(spark: SparkSession, name: str) -> bool:
    info = optional(spark._jsparkSession.sessionState().catalog().lookupBuiltinOrTempFunction(name))
    return info is not None and str(info.getSource()) == "python_udf"


def _with_text(spark: SparkSession, text: str) -> Any:
    no_type = scala_object(spark._jvm, "org.apache.spark.sql.types.NullType")
    return java_class(spark._jvm, f"{_CATALYST}.expressions.PrettyAttribute")(text, no_type)
