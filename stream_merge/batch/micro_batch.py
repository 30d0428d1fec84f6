"""Runs one micro-batch from beginning to end: open, prepare, locate, stage, commit, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stream_merge import steps
from stream_merge.batch.caches import SinkCaches
from stream_merge.batch.column_checks import check_columns, tell_left_out
from stream_merge.batch.commit import BatchCommit
from stream_merge.batch.preparation import Preparation
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
from stream_merge.merge.job import MergeJob, Staged, count_skipping
from stream_merge.merge.overwrite import stage_overwrite
from stream_merge.merge.source import Source, deletes
from stream_merge.merge.statement import effective_clauses
from stream_merge.merge.strategies import run_engine
from stream_merge.metrics import COUNTERS, MergeResult, PhaseTimer, delta_name
from stream_merge.partial_updates.registers import has_column_sequences, reset_clause
from stream_merge.plan import MergePlan, Strategy, choose_strategy
from stream_merge.sql import quote
from stream_merge.table.exactly_once import BatchIdentity, called_once
from stream_merge.table.features import check_supported, has_change_feed, has_deletion_vectors
from stream_merge.table.files import DataFile, TableFiles
from stream_merge.table.log_stores import check_log_store
from stream_merge.tombstones.manifest import DOMAIN, TombstoneManifest
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
        is_created: Whether the target was made for the batch.
        had_registers: Whether the target had the column for the sequences of single columns when the batch came.
        store: The deletes that the table remembers.
        remembered: What it will remember after the commit.
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
    is_created: bool = False
    had_registers: bool = False
    store: TombstoneStore | None = None
    remembered: TombstoneManifest | None = None

    def __post_init__(self) -> None:
        self.preparation = Preparation(config=self.config, received=self.frame, identity=self.identity, name=self.name)
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
            table = self._table()
            transaction = table.begin()
            table_id = str(transaction.metadata["id"])
            is_applied = self.identity is not None and self.identity.is_applied(transaction, self._last(table_id))
        steps.reached("after_open")
        run_id = self.query.run_id if self.query is not None else None
        with called_once(self.config.target, table_id, self.identity, run_id):
            if is_applied:
                self._keep(table_id)
                return self._skip("the table holds this batch already")
            return self._run(clauses, table, transaction)

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

    def _run(self, clauses: tuple[Clause, ...], table: Table, transaction: Transaction) -> MergeResult:
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
            is_empty = self.is_created and transaction.version == 0
            names = [field["name"] for field in transaction.schema["fields"]]
            self.had_registers = has_column_sequences(transaction) and not is_empty
            tell_left_out(self.spark, self.config, clauses, self.frame.columns, names, self.state.left_out)
            transaction = prepare_target(self.config, self.frame, table, transaction)
            self.preparation.arrange(transaction)
            self.store = self._load_store(table, transaction)
        clauses = checked_clauses(self.preparation.ordered)
        return self._merge(plan, clauses, table, transaction, self_read)

    def _table(self) -> Table:
        """Return the target, made first if it may be; not in the place of one that this process has written for the query."""
        config = self.config
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
            self.is_created = True
            steps.reached("created")
        table = open_table(self.spark, config.target)
        self._check_log_store(table)
        return table

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
        clauses: tuple[Clause, ...],
        table: Table,
        transaction: Transaction,
        self_read: SelfRead,
    ) -> MergeResult:
        preparation = self.preparation
        with ExitStack() as stack:
            with self.timer.phase("source"), sessions.job_description(self.spark, f"{self.name}: read the source"):
                batch = stack.enter_context(
                    preparation.accepted(
                        transaction, self.store, lambda frame: self._analyse(clauses, transaction, frame)
                    )
                )
                resolved = self._resolve(clauses, transaction)
                rows = stack.enter_context(self._evaluated(batch, resolved, transaction))
                source = stack.enter_context(preparation.measured(rows, resolved, transaction, self.store))
            steps.reached("after_persist")
            written: Any = None
            while True:
                staged = self._stage(plan, resolved, transaction, source, self_read, written)
                operation = resolved.operation([delta_name(name) for name in COUNTERS], self.config.user_metadata)
                counts = self._counts(staged, source.num_rows)
                version, is_settled = self.commit.attempt(
                    self.spark, table, transaction, staged, operation, counts, self_read
                )
                if is_settled:
                    break
                before, earlier = transaction, self.store
                with self.timer.phase("open"):
                    opened = self._begin_again(table, before)
                    if opened is None:
                        version = None
                        break
                    transaction, folded = opened, preparation.partial
                    is_rearranged = preparation.depends_on_columns and before.schema != transaction.schema
                    if is_rearranged:
                        # Another sink may have added its columns, which this one has to keep as well.
                        preparation.arrange(transaction)
                        clauses = checked_clauses(preparation.ordered)
                    self.store = self._load_store(table, transaction)
                    if is_rearranged:
                        batch = stack.enter_context(preparation.arranged(transaction, self.store))
                    preparation.narrow(self.store)
                    resolved = self._resolve(clauses, transaction)
                is_same = (before.metadata, before.protocol) == (transaction.metadata, transaction.protocol)
                if not is_same:
                    check_supported(self.config.target, transaction.metadata, transaction.protocol, transaction.schema)
                    plan = self._plan(clauses, transaction)
                    source = replace(source, is_independent=False)
                is_refolded = preparation.is_paired or is_rearranged or preparation.partial != folded
                is_same = is_same and not is_refolded
                if is_rearranged or not self._takes_over(earlier, is_refolded=is_refolded):
                    # Another sink's deletes: they may make other changes outdated. Rows whose key changes may be others, a
                    # table of whole rows may have got others, and of equal rows without a key others may be left.
                    if is_refolded or (earlier is not None and earlier.has_moved):
                        rows = stack.enter_context(self._evaluated(batch, resolved, transaction))
                    source = stack.enter_context(preparation.measured(rows, resolved, transaction, self.store))
                    is_same = False
                written = staged.reusable if is_same else None
        return self._committed(plan, version, counts, resolved, staged.locator, str(transaction.metadata["id"]))

    def _begin_again(self, table: Table, before: Transaction) -> Transaction | None:
        """Open the table for another attempt, with all that the sink needs to keep order; None if it has the batch by now."""
        transaction = table.begin()
        if self.commit.is_applied(transaction):
            return None
        if (before.schema, before.protocol) == (transaction.schema, transaction.protocol):
            return transaction
        # A RESTORE takes away what the sink has added since, its columns and maybe the table feature.
        self.had_registers = has_column_sequences(transaction)
        anew = prepare_target(self.config, self.frame, table, transaction)
        return None if anew is not transaction and self.commit.is_applied(anew) else anew

    def _takes_over(self, earlier: TombstoneStore | None, *, is_refolded: bool) -> bool:
        """Return whether what was found with the deletes of the earlier version holds with those of this one."""
        if self.store is None or earlier is None:
            return True
        return not is_refolded and not earlier.has_moved and self.store.take_over(earlier)

    def _resolve(self, clauses: tuple[Clause, ...], transaction: Transaction) -> ResolvedMerge:
        """Return the resolved statement; after a TRUNCATE it deletes the rows that are older."""
        truncates, partial = self.preparation.truncates, self.preparation.partial
        truncated = self.store.truncate(truncates) if self.store and truncates is not None else None
        if truncated is None:
            return self._analyse(clauses, transaction)
        assert self.store is not None
        # Delta resolves the clauses; what is older stands in no statement, since it is another for each TRUNCATE.
        added = [Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.DELETE, condition="true")]
        if partial is not None:
            added.append(Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.UPDATE))
        resolved = self._analyse((*clauses, *added), transaction)
        tombstones = self.store.tombstones
        kept, new = resolved.clauses[: -len(added)], list(resolved.clauses[-len(added) :])
        new[0] = replace(new[0], condition=tombstones.is_older(resolved, truncated))
        if partial is not None:
            moment = tombstones.column_of(truncated)
            new[1] = reset_clause(new[1], resolved, self.preparation.ordered, partial, moment)
        return resolved.with_clauses((*kept, *new))

    def _load_store(self, table: Table, transaction: Transaction) -> TombstoneStore | None:
        return load_store(
            self.config,
            self.preparation.ordered,
            table,
            transaction,
            had_registers=self.had_registers,
            reach=self.state.reach,
        )

    def _analyse(
        self, clauses: tuple[Clause, ...], transaction: Transaction, frame: DataFrame | None = None
    ) -> ResolvedMerge:
        preparation = self.preparation
        batch = preparation.frame if frame is None else frame
        return self.state.resolve(batch, transaction, preparation.ordered, clauses, preparation.partial)

    def _evaluated(
        self, batch: DataFrame, resolved: ResolvedMerge, transaction: Transaction
    ) -> AbstractContextManager[DataFrame]:
        return self.preparation.evaluated(
            batch, resolved, transaction, self.store, lambda: self._active_files(transaction)
        )

    def _stage(
        self,
        plan: MergePlan,
        resolved: ResolvedMerge,
        transaction: Transaction,
        source: Source,
        self_read: SelfRead,
        written: Any,
    ) -> Staged:
        with self.timer.phase("open"):
            files = self._active_files(transaction)
            resolved.evolve_schema(transaction)
            needs_all = any(c.clause.when.value == "not_matched_by_source" for c in resolved.clauses)
            candidates = files.all() if needs_all else self._candidates(resolved, transaction, source)
            if self_read.is_read:
                transaction.read_whole_table()
            limits = {} if needs_all else source.partition_values(transaction.partition_columns)
            transaction.track_read([file.add for file in candidates], limits)
        with self._remembering(resolved, source):
            if source.num_rows == 0 and not needs_all:
                staged = Staged()
            else:
                staged = run_engine(
                    plan.strategy,
                    MergeJob(
                        resolved=resolved,
                        transaction=transaction,
                        source=source,
                        files=files,
                        candidates=candidates,
                        vectors=self.state.vectors,
                        index=self.state.index,
                        locator=self.config.locator,
                        check_cardinality=self.config.check_cardinality,
                        skip_unchanged=self.config.skip_unchanged,
                        order_by=self.preparation.ordered.sequence_columns if self.config.keeps_order else (),
                        expects_newer_rows=self.state.had_newer_rows,
                        has_change_feed=has_change_feed(transaction.properties),
                        batch=self.name,
                        timer=self.timer,
                        written=written,
                    ),
                )
        staged.counts |= count_skipping(files.all(), candidates)
        staged.counts |= source.counts
        self.state.had_newer_rows = bool(staged.counts.get("num_stale_rows"))
        if self.store is not None:
            self._remember(self.store, staged, transaction, source)
        return staged

    @contextmanager
    def _remembering(self, resolved: ResolvedMerge, source: Source) -> Iterator[None]:
        """Write the batch's tombstones, if it has any, beside what the block does."""
        with ExitStack() as stack:
            if self.store is not None:

                def deleted() -> DataFrame:
                    return resolved.source(source.rows).where(deletes(resolved, source.rows.columns))

                stack.enter_context(
                    self.store.remembering(deleted, source.num_deletes, source.highest_delete, self.name)
                )
            yield
            with self.timer.phase("stage"):
                stack.close()

    def _remember(self, store: TombstoneStore, staged: Staged, transaction: Transaction, source: Source) -> None:
        """Stage what the table remembers. A merge outside a stream that changes nothing commits nothing."""
        with self.timer.phase("stage"), sessions.job_description(self.spark, f"{self.name}: remember deletes"):
            self.remembered, counts = store.next_state(
                source.num_deletes, transaction.version, partial=self.preparation.partial
            )
        staged.counts |= counts
        changes = staged.changes
        has_files = bool(staged.counts.get("num_target_files_added") or changes.removes)
        is_new = store.is_truncated or self.remembered.files != store.state.files
        if self.identity or has_files or is_new:
            changes.domain_metadata[DOMAIN] = self.remembered.to_json()

    def _active_files(self, transaction: Transaction) -> TableFiles:
        self.state.files.advance(
            str(transaction.metadata["id"]),
            transaction.version,
            read_commit=transaction.table.read_commit,
            load=transaction.all_files,
        )
        return self.state.files

    def _candidates(self, resolved: ResolvedMerge, transaction: Transaction, source: Source) -> list[DataFile]:
        if source.num_rows == 0:
            return []
        predicates = resolved.target_predicates
        paths = transaction.skip_files(predicates) if predicates is not None else None
        return self.state.files.may_match(source.key_ranges(transaction.schema), paths)

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
            if self.store and self.remembered and version is not None:
                self.state.cleaned_ms = self.store.after_commit(self.remembered, self.state.cleaned_ms)
            if self.query is not None:
                self.state.operation_metrics(self.spark).show(self.query, f"MergeSink [{self.config.target}]")
        except JVM_ERRORS:
            # A fault here must not make a landed commit look like a failure.
            logger.warning("%s: committed, but what follows a commit failed", self.name, exc_info=True)
        return self.commit.result(plan, plan.reason, version, counts, locator=locator)
