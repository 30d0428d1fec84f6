"""Evaluates expressions that can fail on the data, so that a failure is a value and does not end the job."""

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
        value: The resolved value.
        sources: The source columns that it uses.
        taken_when: Condition on the source under which the value is taken; None if it is always taken, or if the target
            decides.
        can_fail: Whether it is more than a plain column.
    """

    column: str | None
    type_name: str
    value: Column
    sources: tuple[str, ...]
    taken_when: Column | None
    can_fail: bool


def attempted(spark: SparkSession, value: Column) -> Column:
    """Return the value of an expression, or NULL if its evaluation raises an error."""
    jvm: Any = spark._jvm
    from pyspark.sql.classic.column import Column as ClassicColumn

    # Spark evaluates common subexpressions in advance, outside of TryEval, unless they are under a condition. This
    # condition is always true, but the optimizer cannot tell.
    guarded: Any = F.when(F.spark_partition_id() >= 0, value)
    utils = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    try_eval = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    return ClassicColumn(utils.column(try_eval(utils.expression(guarded._jc))))


def fails(spark: SparkSession, value: Column) -> Column:
    """Return whether the evaluation of an expression raises an error; NULL is not an error."""
    # A struct is never NULL, so NULL means that its field could not be computed.
    return attempted(spark, F.struct(value.alias("value"))).isNull()


def source_values(resolved: ResolvedMerge) -> tuple[SourceValue, ...]:
    """Return what a merge computes from a source row alone: new values and parts of its conditions.

    Values that use columns of both sides are not included.
    """
    source_output = resolved._command.source().outputSet()
    return tuple(_described(resolved, source_output))


def columns_in(frame: DataFrame, expression: Column) -> frozenset[str]:
    """Return the lower-case names of the frame's columns that an expression refers to, directly or by their fields."""
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
        # A join computes the sides of an equality for every row; other conditions may never be evaluated.
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
    """Yield each clause over source rows with the condition under which it may apply, as far as the source tells."""
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
