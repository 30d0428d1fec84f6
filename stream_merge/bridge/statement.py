"""Lets Delta analyse a MERGE statement without running it, and binds frames to its resolved expressions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from stream_merge.bridge.jvm import (
    JVM_ERRORS,
    actions,
    items,
    java_class,
    java_list,
    option,
    optional,
    scala_object,
    seq,
    to_python,
    translate,
)
from stream_merge.bridge.kept_plans import KeptPlan, frame_plan, with_ids_of, with_texts
from stream_merge.bridge.merge_condition import KeyPair, equated_columns, has_equality
from stream_merge.bridge.operations import described_operation
from stream_merge.bridge.transaction import Transaction, without_stats
from stream_merge.clauses import Clause, When
from stream_merge.column_names import FILE, ROW

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedClause:
    """A clause as Delta resolved it.

    Attributes:
        clause: The user's clause.
        condition: The resolved condition, or None.
        values: For UPDATE and INSERT, the new value of each column of the final schema, in order.
        is_condition_source_only: Whether the condition uses no target column.
        are_values_source_only: Whether no value uses a target column.
    """

    clause: Clause
    condition: Column | None
    values: tuple[Column, ...]
    is_condition_source_only: bool
    are_values_source_only: bool
    value_expressions: tuple[Any, ...]
    condition_sql: str | None

    def has_same_values(self, other: ResolvedClause) -> bool:
        """Whether both clauses give every column the same value."""
        pairs = zip(self.value_expressions, other.value_expressions, strict=True)
        return all(one.semanticEquals(two) for one, two in pairs)


class Once(Protocol):
    """Returns what `make` returns, which it calls at most once for a name."""

    def __call__(self, name: str, make: Callable[[], T], /) -> T:
        """Return what was made under the name, or make it."""


class ResolvedMerge:
    """A MERGE as Delta resolved it for one schema of source and target; it serves any number of batches."""

    def __init__(self, spark: SparkSession, command: Any, template: DataFrame, clauses: Sequence[Clause]) -> None:
        self._spark = spark
        self._command = command
        self._template = template
        self.condition: Column = self._column(command.condition())
        self.clauses: tuple[ResolvedClause, ...] = tuple(self._resolved_clauses(clauses))
        self.analysed: ResolvedMerge = self
        self.whole_rows: ResolvedMerge | None = None
        self._operation: Any = None
        self._made: dict[str, Any] = {}

    def with_clauses(self, clauses: Sequence[ResolvedClause], *, is_analysed: bool = False) -> ResolvedMerge:
        """Return the same merge with other conditions and values.

        `whole_rows` may be set to the same merge for rows that set all columns, if this one sets single columns.
        `analysed` stays the original merge, whose values are those that arrive; with `is_analysed` it is the new one.
        """
        other = copy(self)
        other.clauses, other._made = tuple(clauses), {}
        if is_analysed:
            other.analysed = other
        return other

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Call `make` once for a name and return its result: each part of a Column takes several calls into the JVM."""
        if name not in self._made:
            self._made[name] = make()
        return cast("T", self._made[name])

    def clauses_when(self, when: When) -> list[tuple[int, ResolvedClause]]:
        """Return the clauses of one kind with their numbers."""
        return [(number, c) for number, c in enumerate(self.clauses) if c.clause.when is when]

    @property
    def needs_all_files(self) -> bool:
        """Whether rows of the target that match nothing may change, so that every file is read."""
        return any(c.clause.when is When.NOT_MATCHED_BY_SOURCE for c in self.clauses)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column as ClassicColumn

        return ClassicColumn(java_class(self._jvm, "org.apache.spark.sql.classic.ExpressionUtils").column(expression))

    def _resolved_clauses(self, clauses: Sequence[Clause]) -> Iterable[ResolvedClause]:
        command = self._command
        resolved = {
            When.MATCHED: items(command.matchedClauses()),
            When.NOT_MATCHED: items(command.notMatchedClauses()),
            When.NOT_MATCHED_BY_SOURCE: items(command.notMatchedBySourceClauses()),
        }
        source_output = command.source().outputSet()
        ordered = [clause for when in When for clause in clauses if clause.when is when]
        for clause in ordered:
            handle = next(resolved[clause.when])
            condition = optional(handle.condition())
            expressions = () if clause.is_delete else tuple(action.expr() for action in items(handle.resolvedActions()))
            if clause.when is When.MATCHED:
                expressions = tuple(map(self._as_in_source, expressions))
            yield ResolvedClause(
                clause=clause,
                condition=None if condition is None else self._column(condition),
                values=tuple(self._column(expression) for expression in expressions),
                is_condition_source_only=condition is None or condition.references().subsetOf(source_output),
                are_values_source_only=all(e.references().subsetOf(source_output) for e in expressions),
                value_expressions=expressions,
                condition_sql=None if condition is None else str(condition.sql()),
            )

    def _as_in_source(self, expression: Any) -> Any:
        """Return the source's column for a key of the target, identical in matching rows; else the expression."""
        if str(expression.getClass().getSimpleName()) != "AttributeReference":
            return expression
        return next((source for target, source in self._same_columns if expression.semanticEquals(target)), expression)

    @cached_property
    def _same_columns(self) -> tuple[tuple[Any, Any], ...]:
        """The target and source columns that the merge condition equates, of types whose equal values are identical."""
        return tuple(sides for sides, pair in self._equated if pair.is_exact)

    @cached_property
    def condition_sql(self) -> str:
        """The merge condition as SQL."""
        return str(self._command.condition().sql())

    @cached_property
    def final_schema(self) -> Any:
        """Handle of the table's schema after the merge."""
        return optional(self._command.migratedSchema()) or self._command.target().schema()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the final schema's columns."""
        return tuple(self.final_schema.fieldNames())

    @cached_property
    def old_values(self) -> tuple[Column, ...]:
        """The unchanged value of each column of the final schema, for copied rows and preimages."""
        return tuple(self._column(e) for e in items(self._command.postEvolutionTargetExpressions(True)))

    def source_columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Return some columns of the source, as the resolved expressions refer to them."""
        found = {str(attribute.name()): attribute for attribute in items(self._command.source().output())}
        return {name: self._column(found[name]) for name in names}

    @cached_property
    def types(self) -> tuple[StructField, ...]:
        """The final schema's columns, with their types."""
        return tuple(StructType.fromJson(json.loads(self.final_schema.json())).fields)

    def assigned(self, clause: ResolvedClause) -> list[int]:
        """Return the positions of the columns to which a clause may give a new value."""
        named = items(self._command.postEvolutionTargetExpressions(True))
        old = [e.child() if str(e.getClass().getSimpleName()) == "Alias" else e for e in named]
        pairs = zip(clause.value_expressions, old, strict=True)
        return [position for position, (new, unchanged) in enumerate(pairs) if not new.semanticEquals(unchanged)]

    @cached_property
    def target_predicates(self) -> Any:
        """Scala Seq of the predicates that every matching target row must fulfil; None if there are none."""
        predicates = self._command.getTargetOnlyPredicates(self._spark._jsparkSession)
        kept = [p for p in items(predicates) if str(p.sql()).lower() != "true"]
        return seq(self._jvm, kept) if kept else None

    @cached_property
    def key_pairs(self) -> tuple[KeyPair, ...]:
        """The equalities of plain columns of one type among the conjuncts of the merge condition."""
        return tuple(pair for _, pair in self._equated)

    @cached_property
    def _equated(self) -> tuple[tuple[tuple[Any, Any], KeyPair], ...]:
        """The key pairs, each with its two columns as Delta resolved them, the target's first."""
        return equated_columns(self._command)

    def inserts_as_given(self, others: Sequence[str]) -> bool:
        """Whether each INSERT takes keys from the source's columns that they are compared with, unchanged.

        Args:
            others: Columns of which the same is asked: that they are taken from the source's columns of the same name.
        """
        return self.once(f"inserts as given {others}", lambda: self._inserts_as_given(others))

    def _inserts_as_given(self, others: Sequence[str]) -> bool:
        places = {name.lower(): place for place, name in enumerate(self.columns)}
        sources = {str(attribute.name()).lower(): attribute for attribute in items(self._command.source().output())}
        expected = [(pair.target, source) for (_, source), pair in self._equated]
        expected += [(name, sources[name.lower()]) for name in others if name.lower() in sources]
        return len(expected) == len(self._equated) + len(others) and all(
            clause.value_expressions[places[name.lower()]].semanticEquals(source)
            for clause in self.clauses
            if clause.clause.is_insert
            for name, source in expected
        )

    @cached_property
    def num_conjuncts(self) -> int:
        """Number of conjuncts of the merge condition."""
        return int(self._command.splitConjunctivePredicates(self._command.condition()).size())

    @cached_property
    def has_equality(self) -> bool:
        """Whether a conjunct equates an expression of the target with one of the source, so that rows can be hashed."""
        return has_equality(self._command)

    @cached_property
    def condition_target_columns(self) -> tuple[str, ...]:
        """The target columns that the merge condition names."""
        references = self._command.condition().references().toSeq()
        target_output = self._command.target().outputSet()
        return tuple(str(a.name()) for a in items(references) if a.references().subsetOf(target_output))

    def source(self, frame: DataFrame) -> DataFrame:
        """Return the batch with the attribute ids that the resolved expressions refer to.

        Args:
            frame: The batch: the analysed columns, then the sink's own.
        """
        return self._frame(with_ids_of(self._jvm, frame_plan(self._template), frame_plan(frame)))

    def over_source(
        self,
        name: str,
        build: Callable[[DataFrame], DataFrame],
        frame: DataFrame,
        *,
        spark: SparkSession | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """Return `build(source(frame))`, from a plan that is kept if this name was asked for before.

        Args:
            name: Tells one plan from another.
            build: Makes a frame of the batch alone, as `source` returns it.
            frame: The batch.
            spark: The session of the result; None for that of the merge.
            texts: What to put in the place of texts that `build` uses, since they differ from batch to batch; see
                `with_texts`.
        """
        spark, kept_name = spark or self._spark, f"plan of {name}"
        if kept_name not in self._made:
            self._made[kept_name] = None
            plan = with_texts(self._jvm, frame_plan(build(self.source(frame))), texts or {})
            return self._frame(plan, spark)
        if self._made[kept_name] is None:
            self._made[kept_name] = KeptPlan([frame_plan(self._template)], frame_plan(build(self._template)))
        return cast("KeptPlan", self._made[kept_name]).on(frame, spark, texts)

    def target(self, transaction: Transaction, files: Sequence[dict[str, Any]], *, with_rows: bool) -> DataFrame:
        """Return the rows of some files, with `FILE` and `ROW` after the table's columns.

        On a table with row tracking, its two columns come before these.

        Args:
            transaction: The transaction that reads.
            files: AddFiles as in the log.
            with_rows: Whether `ROW` is the position in the file, which requires deletion vectors. Otherwise it is a
                number that distinguishes the rows within one run of a job.
        """
        jvm = self._jvm
        handles = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toSeq(
            actions(jvm, "AddFile", without_stats(files))
        )
        plan = self._command.buildTargetPlanWithFiles(
            self._spark._jsparkSession, transaction.handle, handles, seq(jvm, [])
        )
        rows = self._frame(plan)
        if transaction.row_tracking_columns is not None:
            tracking = scala_object(jvm, "org.apache.spark.sql.delta.RowTracking")
            rows = DataFrame(tracking.preserveRowTrackingColumns(rows._jdf, transaction.snapshot), self._spark)
        position = (
            rows.metadataColumn("_metadata").getField("row_index") if with_rows else F.monotonically_increasing_id()
        )
        path = rows.metadataColumn("_metadata").getField("file_path")
        return rows.select("*", path.alias(FILE), position.alias(ROW))

    def _frame(self, plan: Any, spark: SparkSession | None = None) -> DataFrame:
        dataset, spark = java_class(self._jvm, "org.apache.spark.sql.classic.Dataset"), spark or self._spark
        return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)

    @property
    def target_definition(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata and protocol of the version against which Delta has resolved the statement."""
        index = self._command.targetFileIndex()
        metadata, protocol = (to_python(self._jvm, action.wrap()) for action in (index.metadata(), index.protocol()))
        return metadata["metaData"], protocol["protocol"]

    def evolve_schema(self, transaction: Transaction) -> None:
        """Make the final schema part of the transaction if the statement may evolve the schema."""
        if not self._command.canMergeSchema():
            return
        metadata = transaction.handle.metadata()
        self._command.updateMetadata(
            self._spark._jsparkSession,
            transaction.handle,
            self.final_schema,
            metadata.partitionColumns(),
            metadata.configuration(),
            False,
            False,
        )

    @cached_property
    def _predicates(self) -> tuple[Any, Any, Any]:
        jvm = self._jvm
        merge_predicate = java_class(jvm, "org.apache.spark.sql.delta.DeltaOperations$MergePredicate")

        def described(handles: Any) -> Any:
            predicates = []
            for handle in items(handles):
                condition = optional(handle.condition())
                text = option(jvm, None if condition is None else condition.sql())
                predicates.append(merge_predicate(text, str(handle.clauseType()).lower()))
            return seq(jvm, predicates)

        command = self._command
        return (
            described(command.matchedClauses()),
            described(command.notMatchedClauses()),
            described(command.notMatchedBySourceClauses()),
        )

    def operation(self, metric_names: Sequence[str], user_metadata: str | None) -> Any:
        """Return Delta's MERGE operation for the commit, which reports all the named metrics in DESCRIBE HISTORY.

        It is made once: a sink's statement, metrics and user metadata do not change.
        """
        if self._operation is not None:
            return self._operation
        jvm = self._jvm
        none = option(jvm, None)
        merge = java_class(jvm, "org.apache.spark.sql.delta.DeltaOperations$Merge")
        operation = merge(option(jvm, self._command.condition()), none, none, none, *self._predicates)
        self._operation = described_operation(jvm, operation, metric_names, user_metadata)
        return self._operation

    def refresh_cached_readers(self) -> None:
        """Let frames that the user has cached over the target see the commit, as Delta's MERGE does."""
        session = self._spark._jsparkSession
        session.sharedState().cacheManager().recacheByPlan(session, self._command.target())


def analyse(
    spark: SparkSession,
    statement: str,
    source_alias: str,
    batch: DataFrame,
    clauses: Sequence[Clause],
    *,
    own_columns: Mapping[str, str],
    settings: Mapping[str, str],
) -> ResolvedMerge:
    """Let Delta resolve a MERGE statement against an empty source with the batch's schema.

    Args:
        spark: The session to analyse and execute in.
        statement: The statement; its source relation is a placeholder.
        source_alias: The alias of the source in it.
        batch: The batch, without the sink's own columns.
        clauses: The clauses from which the statement was made.
        own_columns: Types of the columns that the sink adds to the batch afterwards; SOURCE_ID is the last.
        settings: Settings of the session to do this with, besides those of `spark`.

    Raises:
        StreamMergeError: Delta refuses the statement; the class tells why.
    """
    jvm: Any = spark._jvm
    if settings:
        spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        for name, value in settings.items():
            spark.conf.set(name, value)
    session = spark._jsparkSession
    empty = session.createDataFrame(java_list(jvm), batch._jdf.schema())
    try:
        parsed = session.sessionState().sqlParser().parsePlan(statement)
        source = empty.alias(source_alias).queryExecution().analyzed()
        bound = parsed.withNewChildren(seq(jvm, [parsed.targetTable(), source]))
        skip = java_class(jvm, "org.apache.spark.sql.execution.CommandExecutionMode").SKIP()
        command = session.sessionState().executePlan(bound, skip).analyzed()
        own = [F.lit(None).cast(kind).alias(name) for name, kind in own_columns.items()]
        template = DataFrame(empty, spark).select("*", *own)
        return ResolvedMerge(spark, command, template, clauses)
    except JVM_ERRORS as error:
        raise translate(error) from error
