"""Expressions that can fail on the data, evaluated so that a failure is a value and not the end of the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge.bridge.jvm import items, java_class
from stream_merge.bridge.statement import ResolvedClause, ResolvedMerge
from stream_merge.clauses import When


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceValue:
    """A value that the merge computes from a source row alone.

    Attributes:
        column: The target column that takes it; None for a part of a condition.
        type_name: Its type, as in SQL.
        value: The value, resolved.
        sources: The source columns it is made of.
        taken_when: When a source row's value is taken, in terms of the source; None when that depends on the target, or always.
        can_fail: Whether there is more to it than taking a column as it is.
    """

    column: str | None
    type_name: str
    value: Column
    sources: tuple[str, ...]
    taken_when: Column | None
    can_fail: bool


def attempted(spark: SparkSession, value: Column) -> Column:
    """Return the value of an expression, NULL where its evaluation raises an error."""
    jvm: Any = spark._jvm
    from pyspark.sql.classic.column import Column as ClassicColumn

    # Spark computes what several expressions have in common beforehand, outside of TryEval, unless it stands under a
    # condition. This one is always true, and the optimizer cannot tell.
    guarded: Any = F.when(F.spark_partition_id() >= 0, value)
    utils = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    try_eval = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    return ClassicColumn(utils.column(try_eval(utils.expression(guarded._jc))))


def fails(spark: SparkSession, value: Column) -> Column:
    """Return whether the evaluation of an expression raises an error, which NULL is not."""
    # A struct is never NULL, so NULL tells that its field could not be computed.
    return attempted(spark, F.struct(value.alias("value"))).isNull()


def source_values(resolved: ResolvedMerge) -> tuple[SourceValue, ...]:
    """Return what a merge computes from a source row alone: new values, conditions of clauses, sides of the merge condition.

    What is made of columns of both sides is not among them.
    """
    source_output = resolved._command.source().outputSet()
    return tuple(_described(resolved, source_output))


def columns_in(frame: DataFrame, expression: Column) -> frozenset[str]:
    """Return the names, in lower case, of the frame's columns that an expression refers to, by themselves or by their fields."""
    plan: Any = frame.select(expression)._jdf.queryExecution().analyzed()
    references = (items(part.references().toSeq()) for part in items(plan.expressions()))
    return frozenset(str(attribute.name()).lower() for attributes in references for attribute in attributes)


def _described(resolved: ResolvedMerge, source_output: Any) -> Iterator[SourceValue]:
    def described(
        expression: Any, column: str | None, taken_when: Column | None, value: Column | None = None
    ) -> Iterator[SourceValue]:
        references = expression.references()
        if references.isEmpty() or not references.subsetOf(source_output):
            return
        yield SourceValue(
            column=column,
            type_name=str(expression.dataType().sql()),
            value=resolved._column(expression) if value is None else value,
            sources=tuple(str(attribute.name()) for attribute in items(references.toSeq())),
            taken_when=taken_when,
            can_fail=str(expression.getClass().getSimpleName()) != "AttributeReference",
        )

    utils = java_class(resolved._jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    command = resolved._command
    for conjunct in items(command.splitConjunctivePredicates(command.condition())):
        # A join computes the sides of an equality for every row; other conditions may never come to be evaluated.
        is_equality = str(conjunct.getClass().getSimpleName()) in ("EqualTo", "EqualNullSafe")
        for part in (conjunct, *(items(conjunct.children()) if is_equality else ())):
            yield from described(part, None, None)
    for clause, taken_when in _taken(resolved.clauses):
        if clause.condition is not None:
            condition: Any = clause.condition
            yield from described(utils.expression(condition._jc), None, None)
        of_columns = zip(resolved.columns, clause.value_expressions, clause.values, strict=False)
        for column, expression, value in of_columns:
            yield from described(expression, column, taken_when, value)


def _taken(clauses: Sequence[ResolvedClause]) -> Iterator[tuple[ResolvedClause, Column | None]]:
    """Return for each clause over source rows when it may apply, as far as the source alone tells."""
    before: dict[When, list[Column]] = {}
    for clause in clauses:
        when = clause.clause.when
        if when is When.NOT_MATCHED_BY_SOURCE:
            continue
        parts = [~F.coalesce(condition, F.lit(False)) for condition in before.get(when, ())]
        if clause.condition is not None and clause.is_condition_source_only:
            before.setdefault(when, []).append(clause.condition)
            parts.append(F.coalesce(clause.condition, F.lit(False)))
        taken = None
        for part in parts:
            taken = part if taken is None else taken & part
        yield clause, taken
