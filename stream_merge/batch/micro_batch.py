"""Runs one micro-batch from beginning to end: open, prepare, locate, stage, commit, report."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stream_merge import steps
from stream_merge.batch.attempt import Attempt, Kept, Opened, what_can_be_kept
from stream_merge.batch.caches import SinkCaches
from stream_merge.batch.column_checks import check_columns, tell_left_out
from stream_merge.batch.commit import BatchCommit
from stream_merge.batch.preparation import Preparation
from stream_merge.batch.staging import Staging
from stream_merge.batch.target import prepare_target, prepared
from stream_merge.bridge import sessions
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.merged_batches import MergedBatches
from stream_merge.bridge.self_read import SelfRead, find_self_read
from stream_merge.bridge.statement import ResolvedMerge, overwrite_operation
from stream_merge.bridge.table import Table, create_table, future_table, open_table, table_exists
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Action, Clause, When, find_clause_faults
from stream_merge.config import NO_QUARANTINE_IN_COMPLETE, SinkConfig
from stream_merge.errors import ClauseError, CommitConflictError, ConfigError, TargetNotFoundError
from stream_merge.merge.job import Staged
from stream_merge.merge.overwrite import stage_overwrite
from stream_merge.merge.statement import effective_clauses
from stream_merge.metrics import COUNTERS, MergeResult, PhaseTimer, delta_name
from stream_merge.partial_updates.registers import has_column_sequences, reset_clause
from stream_merge.plan import MergePlan, Strategy, choose_strategy
from stream_merge.sql import quote
from stream_merge.table.exactly_once import BatchIdentity, called_once
from stream_merge.table.features import check_supported, has_deletion_vectors
from stream_merge.table.log_stores import check_log_store
from stream_merge.tombstones.manifest import TombstoneManifest
from stream_merge.tombstones.store import TombstoneStore, load_store

logger = logging.getLogger("stream_merge")


def checked_clauses(config: SinkConfig) -> tuple[Clause, ...]:
    """Return the clauses that the sink carries out.

    Raises:
        ClauseError: There are none, or they are no MERGE; all faults are in one error.
    """
    clauses = effective_clauses(config)
    if not clauses:
        raise ClauseError("the merge has no clause", condition="DELTA_MERGE_MISSING_WHEN")
    faults = find_clause_faults(config.clauses)
    if faults:
        raise ClauseError("; ".join(faults))
    return clauses


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """A batch on its way into the table.

    Attributes:
        config: The sink.
        state: The sink's caches.
        frame: The batch, as a frame of the session that executes the merge.
        query: The running query, or None.
        identity: Under which ids the batch is recorded; None outside a stream.
        is_complete: Whether the batch is the whole result.
        commit: Commits what is staged.
        preparation: What becomes of the batch before it is merged.
        staging: Writes the files of an attempt.
    """

    config: SinkConfig
    state: SinkCaches
    frame: DataFrame
    query: sessions.RunningQuery | None
    identity: BatchIdentity | None
    is_complete: bool
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    commit: BatchCommit = field(init=False)
    preparation: Preparation = field(init=False)
    staging: Staging = field(init=False)

    def __post_init__(self) -> None:
        self.preparation = Preparation(config=self.config, received=self.frame, identity=self.identity, name=self.name)
        self.staging = Staging(
            config=self.config,
            state=self.state,
            preparation=self.preparation,
            name=self.name,
            is_recorded=self.identity is not None,
            timer=self.timer,
        )
        self.commit = BatchCommit(
            config=self.config,
            state=self.state,
            name=self.name,
            query=self.query,
            identity=self.identity,
            timer=self.timer,
        )

    @property
    def spark(self) -> SparkSession:
        """The session that executes the merge."""
        return self.frame.sparkSession

    @property
    def name(self) -> str:
        """How messages name the batch."""
        return self.config.target if self.identity is None else f"{self.config.target}: batch {self.identity.batch_id}"

    def run(self) -> MergeResult:
        """Merge the batch, or skip it when the table holds it.

        Raises:
            StreamMergeError: Nothing of the batch is in the table.
        """
        steps.reached("before_open")
        clauses = () if self.is_complete else checked_clauses(self.config)
        with self.timer.phase("open"):
            check_columns(self.frame, self.config)
            table, is_created = self._table()
            transaction = table.begin()
            table_id = str(transaction.metadata["id"])
            is_applied = self.identity is not None and self.identity.is_applied(transaction, self._last(table_id))
        steps.reached("after_open")
        run_id = self.query.run_id if self.query is not None else None
        with called_once(self.config.target, table_id, self.identity, run_id):
            if is_applied:
                self._keep(table_id)
                return self._skip("the table holds this batch already")
            return self._run(clauses, table, transaction, is_created=is_created)

    def _last(self, table_id: str) -> int | None:
        """Return the last micro-batch that the table has got under the same application id, as far as that is known.

        That this batch is not the next one after it is no sign of a loss: a function around the sink may leave micro-batches out,
        and a router leaves them out for tables that have no rows in them.
        """
        app_id, of_table, batch_id = self.state.committed or ("", "", 0)
        if self.identity is not None and (app_id, of_table) == (self.identity.app_id, table_id):
            return batch_id
        kept = self._kept(table_id)
        return kept.last() if kept is not None else None

    def _kept(self, table_id: str) -> MergedBatches | None:
        """Return what the checkpoint keeps of the table: only where nothing but the user's word keeps other writers away."""
        if self.identity is None or self.query is None or not self.config.single_writer:
            return None
        return MergedBatches.of(self.spark, self.query.checkpoint, self.identity.app_id, table_id)

    def _keep(self, table_id: str) -> None:
        """Remember that the table has the batch, here and in the checkpoint."""
        if self.identity is None:
            return
        self.state.committed = (self.identity.app_id, table_id, self.identity.batch_id)
        kept = self._kept(table_id)
        if kept is None:
            return
        try:
            kept.keep(self.identity.batch_id)
        except JVM_ERRORS:
            # The batch is in the table: that its note is missing must not make it look like a failure.
            logger.warning("%s: committed, but the checkpoint could not take a note of it", self.name, exc_info=True)

    def _run(
        self, clauses: tuple[Clause, ...], table: Table, transaction: Transaction, *, is_created: bool
    ) -> MergeResult:
        """Merge the batch, which the table does not hold."""
        check_supported(self.config.target, transaction.metadata, transaction.protocol, transaction.schema)
        plan = self._plan(clauses, transaction)
        self_read = find_self_read(table, self.frame, self.query)
        self._check_self_read(self_read, transaction)
        if self.is_complete:
            if self.config.checks_rows:
                raise ConfigError([NO_QUARANTINE_IN_COMPLETE])
            return self._overwrite(plan, table, transaction, self_read)
        with self.timer.phase("open"):
            is_empty = is_created and transaction.version == 0
            names = [field["name"] for field in transaction.schema["fields"]]
            had_registers = has_column_sequences(transaction) and not is_empty
            tell_left_out(self.spark, self.config, clauses, self.frame.columns, names, self.state.left_out)
            transaction = prepare_target(self.config, self.frame, table, transaction)
            self.preparation.arrange(transaction)
            opened = Opened(transaction=transaction, had_registers=had_registers)
            store = self._load_store(table, opened)
        return self._merge(plan, table, opened, store, self_read)

    def _table(self) -> tuple[Table, bool]:
        """Return the target and whether it was created just now; never in the place of one that this process has written."""
        config, is_created = self.config, False
        if config.create_if_missing and not table_exists(self.spark, config.target):
            if self.identity is not None and self.identity.app_id == self.state.app_id:
                raise TargetNotFoundError(
                    f"{self.name}: the table has earlier micro-batches of this query, and is gone. It is not created anew, since "
                    "their rows would be missing: restore it, or begin with an empty table and a new checkpoint."
                )
            future = future_table(self.spark, config.target)
            if future is not None:
                self._check_log_store(future)
            like, properties = self._written(), config.table_properties
            if not self.is_complete:
                like, properties = prepared(config, self.frame, like)
            create_table(
                self.spark,
                config.target,
                like,
                partition_by=config.partition_by,
                cluster_by=config.cluster_by,
                properties=properties,
            )
            is_created = True
            steps.reached("created")
        table = open_table(self.spark, config.target)
        self._check_log_store(table)
        return table, is_created

    def _check_log_store(self, table: Table) -> None:
        """Refuse a table whose commits other writers may overwrite; each is looked at once."""
        if self.config.single_writer or table.root in self.state.checked_log_stores:
            return
        check_log_store(table.name, table.scheme, table.log_store, single_writer=False)
        self.state.checked_log_stores.add(table.root)

    def _written(self) -> DataFrame:
        """Return the batch with the columns that are written."""
        return self.frame.select(*[quote(name) for name in self.config.written_columns(self.frame.columns)])

    def _plan(self, clauses: tuple[Clause, ...], transaction: Transaction) -> MergePlan:
        return choose_strategy(
            clauses,
            is_complete_mode=self.is_complete,
            has_deletion_vectors=has_deletion_vectors(transaction.properties, transaction.protocol),
            requested=None if self.config.strategy is None else Strategy(self.config.strategy),
        )

    def _check_self_read(self, self_read: SelfRead, transaction: Transaction) -> None:
        """Refuse a batch whose plan read the target before another writer's commit."""
        if self_read.version is not None and self_read.version < transaction.version:
            raise CommitConflictError(
                self.name,
                1,
                f"the query read version {self_read.version} of its own target, which is at {transaction.version}",
            )

    def _skip(self, reason: str) -> MergeResult:
        # A stateful query fails when the state that its batch would write is never written: Spark 4.2 checks it.
        self.frame.write.format("noop").mode("overwrite").save()
        return self.commit.result(None, reason, None, {}, skipped=True)

    def _merge(
        self,
        plan: MergePlan,
        table: Table,
        opened: Opened,
        store: TombstoneStore | None,
        self_read: SelfRead,
    ) -> MergeResult:
        """Stage and commit the batch, again on a newer version after each conflict, until it is in the table."""
        written: Any = None
        with ExitStack() as stack:
            attempt = self._first_attempt(plan, opened, store, stack)
            steps.reached("after_persist")
            while True:
                staged, remembered = self.staging.stage(attempt, self_read, written)
                operation = attempt.resolved.operation(
                    [delta_name(name) for name in COUNTERS], self.config.user_metadata
                )
                counts = self._counts(staged, attempt.source.num_rows)
                version, is_settled = self.commit.attempt(
                    self.spark, table, attempt.transaction, staged, operation, counts, self_read
                )
                if is_settled:
                    break
                again = self._next_attempt(attempt, table, stack)
                if again is None:
                    version = None
                    break
                attempt, kept = again
                written = staged.reusable if kept.written else None
        return self._committed(
            attempt.plan,
            version,
            counts,
            attempt.resolved,
            staged.locator,
            str(attempt.transaction.metadata["id"]),
            remembers=(attempt.store, remembered) if attempt.store and remembered else None,
        )

    def _first_attempt(
        self, plan: MergePlan, opened: Opened, store: TombstoneStore | None, stack: ExitStack
    ) -> Attempt:
        """Prepare the batch for the version that was opened first; its rows are kept until the stack is closed."""
        preparation, transaction = self.preparation, opened.transaction
        clauses = checked_clauses(preparation.ordered)
        with self.timer.phase("source"), sessions.job_description(self.spark, f"{self.name}: read the source"):
            batch = stack.enter_context(
                preparation.accepted(transaction, store, lambda frame: self._analyse(clauses, transaction, frame))
            )
            resolved = self._resolve(clauses, transaction, store)
            rows = stack.enter_context(self._evaluated(batch, resolved, transaction, store))
            source = stack.enter_context(preparation.measured(rows, resolved, transaction, store))
        return Attempt(
            opened=opened,
            clauses=clauses,
            plan=plan,
            store=store,
            batch=batch,
            resolved=resolved,
            rows=rows,
            source=source,
        )

    def _next_attempt(self, earlier: Attempt, table: Table, stack: ExitStack) -> tuple[Attempt, Kept] | None:
        """Prepare the batch for a newer version after a conflict, with all of the earlier attempt that holds.

        Returns:
            The attempt and what it keeps; None if another process has committed the batch by now.
        """
        preparation, before = self.preparation, earlier.transaction
        clauses, batch, folded = earlier.clauses, earlier.batch, preparation.partial
        with self.timer.phase("open"):
            opened = self._begin_again(table, earlier)
            if opened is None:
                return None
            transaction = opened.transaction
            is_rearranged = preparation.depends_on_columns and before.schema != transaction.schema
            if is_rearranged:
                # Another sink may have added its columns, which this one has to keep as well.
                preparation.arrange(transaction)
                clauses = checked_clauses(preparation.ordered)
            store = self._load_store(table, opened)
            if is_rearranged:
                batch = stack.enter_context(preparation.arranged(transaction, store))
            preparation.narrow(store)
            resolved = self._resolve(clauses, transaction, store)
        is_same_table = (before.metadata, before.protocol) == (transaction.metadata, transaction.protocol)
        is_refolded = preparation.is_paired or is_rearranged or preparation.partial != folded
        has_moved_rows = earlier.store is not None and earlier.store.has_moved
        has_same_deletes = store is None or earlier.store is None
        if store is not None and earlier.store is not None and not is_refolded and not has_moved_rows:
            has_same_deletes = store.take_over(earlier.store)
        kept = what_can_be_kept(
            is_same_table=is_same_table,
            is_rearranged=is_rearranged,
            is_refolded=is_refolded,
            has_moved_rows=has_moved_rows,
            has_same_deletes=has_same_deletes,
        )
        plan, source, rows = earlier.plan, earlier.source, earlier.rows
        if not is_same_table:
            check_supported(self.config.target, transaction.metadata, transaction.protocol, transaction.schema)
            plan = self._plan(clauses, transaction)
            source = replace(source, is_independent=False)
        if not kept.evaluated:
            rows = stack.enter_context(self._evaluated(batch, resolved, transaction, store))
        if not kept.measured:
            source = stack.enter_context(preparation.measured(rows, resolved, transaction, store))
        attempt = Attempt(
            opened=opened,
            clauses=clauses,
            plan=plan,
            store=store,
            batch=batch,
            resolved=resolved,
            rows=rows,
            source=source,
        )
        return attempt, kept

    def _begin_again(self, table: Table, earlier: Attempt) -> Opened | None:
        """Open the table for another attempt, with all that the sink needs to keep order; None if it has the batch by now."""
        before, transaction = earlier.transaction, table.begin()
        if self.commit.is_applied(transaction):
            return None
        if (before.schema, before.protocol) == (transaction.schema, transaction.protocol):
            return Opened(transaction=transaction, had_registers=earlier.opened.had_registers)
        # A RESTORE takes away what the sink has added since, its columns and maybe the table feature.
        had_registers = has_column_sequences(transaction)
        anew = prepare_target(self.config, self.frame, table, transaction)
        if anew is not transaction and self.commit.is_applied(anew):
            return None
        return Opened(transaction=anew, had_registers=had_registers)

    def _resolve(
        self, clauses: tuple[Clause, ...], transaction: Transaction, store: TombstoneStore | None
    ) -> ResolvedMerge:
        """Return the resolved statement; after a TRUNCATE it deletes the rows that are older."""
        truncates, partial = self.preparation.truncates, self.preparation.partial
        truncated = store.truncate(truncates) if store and truncates is not None else None
        if store is None or truncated is None:
            return self._analyse(clauses, transaction)
        # Delta resolves the clauses; what is older stands in no statement, since it is another for each TRUNCATE.
        added = [Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.DELETE, condition="true")]
        if partial is not None:
            added.append(Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.UPDATE))
        resolved = self._analyse((*clauses, *added), transaction)
        tombstones = store.tombstones
        kept, new = resolved.clauses[: -len(added)], list(resolved.clauses[-len(added) :])
        new[0] = replace(new[0], condition=tombstones.is_older(resolved, truncated))
        if partial is not None:
            moment = tombstones.column_of(truncated)
            new[1] = reset_clause(new[1], resolved, self.preparation.ordered, partial, moment)
        return resolved.with_clauses((*kept, *new))

    def _load_store(self, table: Table, opened: Opened) -> TombstoneStore | None:
        return load_store(
            self.config,
            self.preparation.ordered,
            table,
            opened.transaction,
            had_registers=opened.had_registers,
            reach=self.state.reach,
        )

    def _analyse(
        self, clauses: tuple[Clause, ...], transaction: Transaction, frame: DataFrame | None = None
    ) -> ResolvedMerge:
        preparation = self.preparation
        batch = preparation.frame if frame is None else frame
        return self.state.resolve(batch, transaction, preparation.ordered, clauses, preparation.partial)

    def _evaluated(
        self, batch: DataFrame, resolved: ResolvedMerge, transaction: Transaction, store: TombstoneStore | None
    ) -> AbstractContextManager[DataFrame]:
        return self.preparation.evaluated(
            batch, resolved, transaction, store, lambda: self.staging.active_files(transaction)
        )

    def _overwrite(self, plan: MergePlan, table: Table, transaction: Transaction, self_read: SelfRead) -> MergeResult:
        query_id = self.query.query_id if self.query else ""
        batch_id = self.identity.batch_id if self.identity else 0
        names = [delta_name(name) for name in COUNTERS]
        with materialized(self._written()) as batch:
            while True:
                with self.timer.phase("stage"), sessions.job_description(self.spark, f"{self.name}: overwrite"):
                    if self_read.is_read:
                        transaction.read_whole_table()
                    staged = stage_overwrite(transaction, batch, overwrite_schema=self.config.overwrite_schema)
                operation = overwrite_operation(self.spark, query_id, batch_id, names, self.config.user_metadata)
                counts = self._counts(staged, staged.counts["num_source_rows"])
                version, is_settled = self.commit.attempt(
                    self.spark, table, transaction, staged, operation, counts, self_read
                )
                if is_settled:
                    break
                transaction = table.begin()
                if self.commit.is_applied(transaction):
                    version = None
                    break
        return self._committed(plan, version, counts, None, None, str(transaction.metadata["id"]))

    def _counts(self, staged: Staged, num_source_rows: int) -> dict[str, int]:
        num_quarantined = self.preparation.num_quarantined_rows
        return self.commit.counts(staged, num_source_rows=num_source_rows, num_quarantined_rows=num_quarantined)

    def _committed(
        self,
        plan: MergePlan,
        version: int | None,
        counts: dict[str, int],
        resolved: ResolvedMerge | None,
        locator: str | None,
        table_id: str,
        *,
        remembers: tuple[TombstoneStore, TombstoneManifest] | None = None,
    ) -> MergeResult:
        """Clean up, and tell Spark and the log what happened."""
        if self.identity is not None:
            self.state.app_id = self.identity.app_id
            self._keep(table_id)
            if version is None:
                return self.commit.result(None, "another process committed this batch", None, {}, skipped=True)
        try:
            if resolved is not None:
                resolved.refresh_cached_readers()
            if remembers is not None and version is not None:
                store, remembered = remembers
                self.state.cleaned_ms = store.after_commit(remembered, self.state.cleaned_ms)
            if self.query is not None:
                self.state.operation_metrics(self.spark).show(self.query, f"MergeSink [{self.config.target}]")
        except JVM_ERRORS:
            # A fault here must not make a landed commit look like a failure.
            logger.warning("%s: committed, but what follows a commit failed", self.name, exc_info=True)
        return self.commit.result(plan, plan.reason, version, counts, locator=locator)
