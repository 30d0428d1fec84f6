"""The caches that a sink keeps from batch to batch. Without them the next batch only takes longer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame, SparkSession

from stream_merge.bridge import sessions
from stream_merge.bridge.execution_session import ExecutionSessions
from stream_merge.bridge.expressions import column_name_parts, expression_sql, is_stable, qualified_sql
from stream_merge.bridge.sessions import settings_fingerprint
from stream_merge.bridge.statement import Once, ResolvedMerge, analyse
from stream_merge.bridge.table import sql_name
from stream_merge.bridge.transaction import Transaction
from stream_merge.bridge.ui import OperationMetrics
from stream_merge.clauses import Clause
from stream_merge.config import SinkConfig
from stream_merge.errors import CommitConflictError
from stream_merge.key_index.index import KeyIndex
from stream_merge.maintenance.upkeep import Upkeep
from stream_merge.merge import lossless_casts
from stream_merge.merge.statement import merge_sql
from stream_merge.metrics import COUNTERS, delta_name
from stream_merge.partial_updates.registers import PartialUpdates, partial_clauses
from stream_merge.partial_updates.special_changes import own_columns
from stream_merge.partial_updates.whole_rows import whole_row_clauses
from stream_merge.sql import quote
from stream_merge.table.char_columns import CHAR_VARCHAR, char_columns
from stream_merge.table.deletion_vectors import VectorCache
from stream_merge.table.features import GENERATED, check_new_columns
from stream_merge.table.files import TableFiles
from stream_merge.tombstones.moved_schemas import MovedSchemas
from stream_merge.tombstones.reach import Reach

T = TypeVar("T")

MAX_RESOLVED = 8

_WRAPPING = "spark.databricks.delta.updateAndMergeCastingFollowsAnsiEnabledFlag"
"""If set, and without ANSI mode, a number that its column cannot hold becomes another one, without an error."""


class AlteredMeanwhileError(CommitConflictError):
    """Another writer altered the table after its version was opened; the batch begins again on the newest one."""


@dataclass(slots=True)
class SinkCaches:
    """The caches of one sink in one process.

    Attributes:
        lock: Whoever uses them holds it: a sink may serve several threads, one batch after the other.
        committed: Application id, Delta's id of the table and number of the last micro-batch that the table has got.
        had_newer_rows: Whether rows of the target were newer than their changes in the last batch.
        writes_ahead: Whether what the last batch wrote did not depend on the target, so that this one's probably does
            not either.
        left_out: The sets of columns that the target lacks and that were looked at already.
        told: What was logged of columns that have changed.
        reach: Which remembered deletes changes could be older than in the last batch.
        moved_schemas: The schemas of the files that hold values of rows which got another key.
        checked_log_stores: The folders of the tables whose log store keeps the commits of several writers apart.
        upkeep: What maintenance knows of the table.
        checkpoint_tried: The version of which a checkpoint of the log was last begun beside a batch.
        has_checkpoint_beside: Whether that was beside the last batch.
        owes_checkpoint: Whether a commit of this sink has left one to its next batch.
        counts: The numbers of rows and special changes in the last batch, if they were counted.
        cleaned_ms: When what killed attempts left behind was looked for last, in milliseconds since the epoch.
    """

    lock: Any = field(default_factory=RLock)
    committed: tuple[str, str, int] | None = None
    had_newer_rows: bool = False
    writes_ahead: bool = False
    left_out: set[frozenset[str]] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    reach: Reach = field(default_factory=Reach)
    moved_schemas: MovedSchemas = field(default_factory=MovedSchemas)
    checked_log_stores: set[str] = field(default_factory=set)
    checkpoint_tried: int = 0
    has_checkpoint_beside: bool = False
    owes_checkpoint: bool = False
    counts: Mapping[str, Any] | None = None
    cleaned_ms: int = 0
    upkeep: Upkeep = field(default_factory=Upkeep)
    files: TableFiles = field(default_factory=TableFiles)
    vectors: VectorCache = field(default_factory=VectorCache)
    index: KeyIndex = field(default_factory=KeyIndex)
    _expressions: OrderedDict[tuple[Any, ...], dict[str, Any]] = field(default_factory=OrderedDict)
    _resolved: OrderedDict[tuple[Any, ...], ResolvedMerge] = field(default_factory=OrderedDict)
    _sessions: ExecutionSessions = field(default_factory=ExecutionSessions)
    _metrics: tuple[str, OperationMetrics] | None = None

    def for_other_options(self) -> SinkCaches:
        """Return new caches for the same target, which are used under the same lock."""
        return SinkCaches(
            lock=self.lock,
            committed=self.committed,
            checked_log_stores=self.checked_log_stores,
            checkpoint_tried=self.checkpoint_tried,
            owes_checkpoint=self.owes_checkpoint,
            cleaned_ms=self.cleaned_ms,
            upkeep=self.upkeep,
            _sessions=self._sessions,
        )

    def execution_session(self, spark: SparkSession) -> SparkSession:
        """Return the session to execute in for frames of this session."""
        return self._sessions.session_for(spark)

    def operation_metrics(self, spark: SparkSession) -> OperationMetrics:
        """Return the metrics of this sink, made once for each Spark application."""
        application = spark.sparkContext.applicationId
        if self._metrics is None or self._metrics[0] != application:
            # What Delta's operation computes its own numSourceRows from.
            names = [*(delta_name(name) for name in COUNTERS), "operationNumSourceRows"]
            self._metrics = (application, OperationMetrics(spark, names))
        return self._metrics[1]

    def active_files(self, transaction: Transaction) -> TableFiles:
        """Return the active files of the version that is read; from commit to commit they are brought up to date."""
        self.files.advance(
            (transaction.table.root, transaction.table_id),
            transaction.version,
            committed_ms=transaction.committed_ms,
            read_commit=transaction.table.read_commit,
            load=transaction.all_files,
        )
        return self.files

    def expressions(self, batch: DataFrame, transaction: Transaction) -> Once:
        """Return what keeps expressions and plans for batches and tables with the same columns: see `Once`."""
        key = (
            sessions.session_id(batch.sparkSession),
            settings_fingerprint(batch.sparkSession),
            batch.schema.json(),
            transaction.table.root,
            str(transaction.metadata),
            str(transaction.protocol),
        )
        made = self._expressions.setdefault(key, {})
        self._expressions.move_to_end(key)
        while len(self._expressions) > MAX_RESOLVED:
            self._expressions.popitem(last=False)

        def once(name: str, make: Callable[[], T]) -> T:
            if name not in made:
                made[name] = make()
            return cast("T", made[name])

        return once

    def resolve(
        self,
        batch: DataFrame,
        transaction: Transaction,
        config: SinkConfig,
        clauses: tuple[Clause, ...],
        partial: PartialUpdates | None = None,
    ) -> ResolvedMerge:
        """Return the statement as Delta resolves it; from the cache while clauses, schemas and settings stay the same.

        Raises:
            AlteredMeanwhileError: Delta has resolved it against a newer version, which has other columns or settings.
            StreamMergeError: Delta refuses the statement.
        """
        spark = batch.sparkSession
        key = (
            sessions.session_id(spark),
            settings_fingerprint(spark),
            batch.schema.json(),
            transaction.table.root,
            str(transaction.metadata),
            str(transaction.protocol),
            len(clauses),
            partial and partial.columns,
        )
        if key in self._resolved:
            self._resolved.move_to_end(key)
            return self._resolved[key]
        columns = [f["name"] for f in transaction.schema["fields"] if GENERATED not in f.get("metadata", {})]
        statement = merge_sql(
            config,
            clauses,
            target=sql_name(spark, config.target),
            padded=char_columns(transaction.struct_type),
            untouched_column=quote(columns[0]) if columns else "",
            to_sql=lambda expression: expression_sql(spark, expression),
            to_source_sql=lambda expression: qualified_sql(spark, expression, config.source_alias),
            to_name=lambda name: quote(*column_name_parts(spark, name)),
        )
        resolved = analyse(
            spark,
            statement,
            config.source_alias,
            batch,
            clauses,
            own_columns=own_columns(config, partial),
            settings=_settings(spark, config, transaction),
        )
        if resolved.target_definition != (transaction.metadata, transaction.protocol):
            # It would name other columns, and be kept for this version, to which a RESTORE may lead back.
            raise AlteredMeanwhileError(config.target, 1, "the table was altered while the merge was being planned")
        check_new_columns(config.target, resolved.columns, transaction.schema, transaction.protocol)
        if config.keeps_values and lossless_casts.is_wanted(spark):
            resolved = lossless_casts.with_exact_values(resolved, batch.schema, config.written_columns(batch.columns))
        if partial is not None:
            of_rows = resolved
            resolved = of_rows.with_clauses(partial_clauses(of_rows, config, partial))
            if partial.sequence is not None and not partial.is_always:
                resolved.whole_rows = of_rows.with_clauses(whole_row_clauses(of_rows.clauses))
        in_target = [field["name"] for field in transaction.schema["fields"]]
        sides = (config.source_alias, batch.columns), (config.target_alias, in_target)
        if is_stable(spark, statement, *sides, transaction.schema):
            self._resolved[key] = resolved
            while len(self._resolved) > MAX_RESOLVED:
                self._resolved.popitem(last=False)
        return resolved


def _settings(spark: SparkSession, config: SinkConfig, transaction: Transaction) -> dict[str, str]:
    """Return settings of the session in which Delta resolves the statement."""
    settings = {}
    if config.keeps_values and lossless_casts.is_wanted(spark) and spark.conf.get(_WRAPPING, "false") == "true":
        settings[_WRAPPING] = "false"
    if config.merge_schema:
        # In Delta 4.0, only the session's setting can say it.
        settings["spark.databricks.delta.schema.autoMerge.enabled"] = "true"
        if config.alters_columns:
            # By default types are not widened from one kind of number to another.
            settings["spark.databricks.delta.typeWidening.allowAutomaticWidening"] = "ALWAYS"
    if CHAR_VARCHAR in transaction.metadata["schemaString"]:
        # Spark pads CHAR columns on read, by a projection that gives them other ids than the resolved expressions refer
        # to. Delta pads them on write, which is enough.
        settings["spark.sql.readSideCharPadding"] = "false"
    return settings
