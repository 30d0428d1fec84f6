"""Prepares a micro-batch for the first version of the table, and again for a newer one after each conflict."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame

from stream_merge.batch.accept import Accepted, accepted
from stream_merge.batch.attempt import Attempt, Kept, Opened, what_can_be_kept
from stream_merge.batch.bind import Bound, bind
from stream_merge.batch.caches import AlteredMeanwhileError
from stream_merge.batch.column_checks import tell_left_out, tell_unordered
from stream_merge.batch.measure import PlannedMeasure, measured, plan_measure
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.reduce import Changes, PlannedReduction, Reduction, changes_of, planned_reduction
from stream_merge.batch.schema_changes import schema_changes_of, tell_schema_changes
from stream_merge.batch.target import Target, prepare_target
from stream_merge.batch.write_ahead import plan_ahead, written_ahead
from stream_merge.bridge import sessions
from stream_merge.bridge.jvm import conflict_name
from stream_merge.bridge.materialized import materialized_while
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Action, Clause, When
from stream_merge.config import SinkConfig
from stream_merge.errors import StreamMergeError, UnsupportedTableError
from stream_merge.merge.statement import checked_clauses
from stream_merge.partial_updates.registers import has_column_sequences, reset_clause
from stream_merge.plan import MergePlan, Strategy, choose_strategy
from stream_merge.table.features import FILE_METADATA, check_supported, has_deletion_vectors, hides_file_metadata
from stream_merge.tombstones.store import TombstoneStore, load_store


def checked_plan(
    config: SinkConfig, clauses: tuple[Clause, ...], transaction: Transaction, *, is_complete: bool = False
) -> MergePlan:
    """Check that the sink can write a version of the table, and choose how.

    Args:
        config: The sink.
        clauses: The clauses that it carries out.
        transaction: The version.
        is_complete: Whether a batch is the query's whole result.

    Raises:
        UnsupportedTableError: The table has a feature that is not maintained, or the requested strategy does not fit.
    """
    check_supported(config.target, transaction.metadata, transaction.protocol, transaction.schema)
    if config.requested_strategy is Strategy.MERGE_ON_READ and hides_file_metadata(transaction.schema):
        raise UnsupportedTableError(
            f"{config.target} has a column {FILE_METADATA}, so that no reader of Delta can read its deletion vectors: "
            "rename the column, or leave strategy out, and files are rewritten"
        )
    return choose_strategy(
        clauses,
        is_complete_mode=is_complete,
        has_deletion_vectors=has_deletion_vectors(transaction.properties, transaction.protocol, transaction.schema),
        requested=config.requested_strategy,
    )


def first_attempt(
    batch: MicroBatch, target: Target, clauses: tuple[Clause, ...], plan: MergePlan, kept_rows: ExitStack
) -> Attempt:
    """Prepare a batch for the version that was opened first.

    Args:
        batch: The batch.
        target: The target, which gets what the sink needs to keep order.
        clauses: The clauses that the sink carries out.
        plan: The strategy.
        kept_rows: Until it is closed, what was evaluated is kept.
    """
    with batch.timer.phase("open"):
        had_registers = has_column_sequences(target.transaction) and not target.is_empty
        names = target.transaction.struct_type.names
        tell_left_out(batch.spark, batch.config, clauses, batch.frame.columns, names, batch.caches.left_out)
        tell_unordered(batch.config, target.transaction, batch.caches.told)
        try:
            transaction = prepare_target(batch.config, batch.frame, target.table, target.transaction)
        except StreamMergeError as error:
            conflict = conflict_name(error)
            if conflict is None:
                raise
            # Another sink, say, that begins at the same time, and needs the same.
            raise AlteredMeanwhileError(batch.config.target, 1, conflict) from error
        bound = _bound(batch, target.table, transaction)
        tell_schema_changes(batch.name, bound.changes, batch.config.schema_changes, batch.caches.told)
        opened = Opened(transaction=transaction, had_registers=had_registers)
        store = _load_store(batch, bound.config, target.table, opened)
        bound = _with_keys_of(store, bound)
    clauses = checked_clauses(bound.config)
    with batch.timer.phase("source"), sessions.job_description(batch.spark, f"{batch.name}: read the source"):

        def planned(rows: Accepted) -> PlannedReduction:
            changes = kept_rows.enter_context(changes_of(batch, rows, bound, transaction, store))
            resolved = _resolve(batch, changes, clauses, transaction, store)
            reduction = Reduction(batch=batch, changes=changes, resolved=resolved, transaction=transaction, store=store)
            return kept_rows.enter_context(planned_reduction(reduction))

        found, reducing = kept_rows.enter_context(accepted(batch, bound, transaction, clauses, planned))
        reducing = planned(found) if reducing is None else reducing
        reduction = reducing.reduction

        def next_plans(rows: DataFrame) -> tuple[PlannedMeasure, DataFrame | None]:
            return plan_measure(reduction, rows), plan_ahead(reduction, plan, rows)

        rows, (measure, new) = kept_rows.enter_context(materialized_while(reducing.persist, next_plans, reducing.rows))
        ahead = kept_rows.enter_context(written_ahead(reduction, rows, new))
        source = kept_rows.enter_context(measured(rows, reduction, measure))
    return Attempt(
        had_registers=had_registers,
        clauses=clauses,
        plan=plan,
        accepted=found,
        reduction=reduction,
        rows=rows,
        source=source,
        # What is left of the rows may not be what is being written.
        ahead=ahead if source.rows is rows else None,
    )


def next_attempt(
    batch: MicroBatch, table: Table, earlier: Attempt, kept_rows: ExitStack
) -> tuple[Attempt, Kept] | None:
    """Prepare a batch for a newer version after a conflict, with all of the earlier attempt that holds.

    Args:
        batch: The batch.
        table: The target.
        earlier: The attempt that met the conflict.
        kept_rows: Until it is closed, what was evaluated is kept.

    Returns:
        The attempt and what it keeps; None if another process has committed the batch by now.
    """
    with batch.timer.phase("open"):
        opened = _open_again(batch, table, earlier)
        if opened is None:
            return None
        clauses, changes, store, is_rearranged = _changes_again(batch, table, earlier, opened, kept_rows)
        resolved = _resolve(batch, changes, clauses, opened.transaction, store)
    before, transaction = earlier.transaction, opened.transaction
    is_same_table = (before.metadata, before.protocol) == (transaction.metadata, transaction.protocol)
    is_refolded = changes.bound.is_keyless or is_rearranged or changes.partial != earlier.reduction.changes.partial
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
    plan, rows, source = earlier.plan, earlier.rows, earlier.source
    if not is_same_table:
        plan = checked_plan(batch.config, clauses, transaction)
        source = replace(source, is_independent=False, probes=None, tombstones=None)
    reduction = Reduction(batch=batch, changes=changes, resolved=resolved, transaction=transaction, store=store)
    if not kept.evaluated:
        reducing = kept_rows.enter_context(planned_reduction(reduction))
        next_plan = partial(plan_measure, reduction)
        rows, planned = kept_rows.enter_context(materialized_while(reducing.persist, next_plan, reducing.rows))
        source = kept_rows.enter_context(measured(rows, reduction, planned))
    elif not kept.measured:
        source = kept_rows.enter_context(measured(rows, reduction, plan_measure(reduction, rows)))
    attempt = replace(
        earlier,
        had_registers=opened.had_registers,
        clauses=clauses,
        plan=plan,
        reduction=reduction,
        rows=rows,
        source=source,
        ahead=None,
    )
    return attempt, kept


def _open_again(batch: MicroBatch, table: Table, earlier: Attempt) -> Opened | None:
    """Open the table for another attempt, with all that the sink needs to keep order; None if it has the batch by now.

    Another process may have committed the batch after the failed commit was looked into, while this one waited. That
    commit is part of the version which this attempt reads, so no conflict would tell of it.
    """
    before, transaction = earlier.transaction, table.begin()
    if batch.is_applied(transaction):
        return None
    if (before.schema, before.protocol) == (transaction.schema, transaction.protocol):
        return Opened(transaction=transaction, had_registers=earlier.had_registers)
    # A RESTORE takes away what the sink has added since, its columns and maybe the table feature.
    had_registers = has_column_sequences(transaction)
    anew = prepare_target(batch.config, batch.frame, table, transaction)
    if anew is not transaction and batch.is_applied(anew):
        return None
    return Opened(transaction=anew, had_registers=had_registers)


def _changes_again(
    batch: MicroBatch, table: Table, earlier: Attempt, opened: Opened, kept_rows: ExitStack
) -> tuple[tuple[Clause, ...], Changes, TombstoneStore | None, bool]:
    """Return clauses, changes, what the newer version remembers, and whether the changes are bound anew."""
    changes, transaction = earlier.reduction.changes, opened.transaction
    config = batch.config
    depends_on_columns = config.keeps_order or changes.bound.is_keyless or config.schema_changes is not None
    if not depends_on_columns or earlier.transaction.schema == transaction.schema:
        store = _load_store(batch, changes.bound.config, table, opened)
        # The first sink of a table decides on the order of its keys, and another one may have been faster.
        if _with_keys_of(store, changes.bound) is changes.bound:
            return earlier.clauses, changes.narrowed(store), store, False
    # Another sink may have added its columns, which this one has to keep as well.
    bound = _bound(batch, table, transaction)
    store = _load_store(batch, bound.config, table, opened)
    bound = _with_keys_of(store, bound)
    changes = kept_rows.enter_context(changes_of(batch, earlier.accepted, bound, transaction, store))
    return checked_clauses(bound.config), changes, store, True


def _bound(batch: MicroBatch, table: Table, transaction: Transaction) -> Bound:
    """Return sink and batch, bound to a version of the table."""
    changes = schema_changes_of(batch.config, batch.frame, table, transaction)
    once = batch.caches.expressions(batch.frame, transaction)
    return bind(
        batch.config,
        batch.frame,
        transaction.struct_type,
        changes,
        partition_columns=transaction.partition_columns,
        once=once,
    )


def _load_store(batch: MicroBatch, bound: SinkConfig, table: Table, opened: Opened) -> TombstoneStore | None:
    return load_store(
        batch.config,
        bound,
        table,
        opened.transaction,
        had_registers=opened.had_registers,
        reach=batch.caches.reach,
        schemas=batch.caches.moved_schemas,
    )


def _with_keys_of(store: TombstoneStore | None, bound: Bound) -> Bound:
    """Return sink and batch with the keys in the order of those in the tombstones."""
    keys = bound.config.keys if store is None else tuple(store.tombstones.keys)
    return bound if keys == bound.config.keys else replace(bound, config=replace(bound.config, keys=keys))


def _resolve(
    batch: MicroBatch,
    changes: Changes,
    clauses: tuple[Clause, ...],
    transaction: Transaction,
    store: TombstoneStore | None,
) -> ResolvedMerge:
    """Return the statement as Delta resolves it; after a TRUNCATE it deletes the rows that are older."""
    config, partial = changes.bound.config, changes.partial

    def resolve(clauses: tuple[Clause, ...]) -> ResolvedMerge:
        return batch.caches.resolve(changes.bound.frame, transaction, config, clauses, partial)

    truncated = store.truncate(changes.truncates) if store and changes.truncates is not None else None
    if store is None or truncated is None:
        return resolve(clauses)
    # Delta resolves the clauses; what is older stands in no statement, since it is another for each TRUNCATE.
    added = [Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.DELETE, condition="true")]
    if partial is not None:
        added.append(Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.UPDATE))
    resolved = resolve((*clauses, *added))
    tombstones = store.tombstones
    kept, new = resolved.clauses[: -len(added)], list(resolved.clauses[-len(added) :])
    new[0] = replace(new[0], condition=tombstones.is_older(resolved, truncated))
    if partial is not None:
        new[1] = reset_clause(new[1], resolved, config, partial, tombstones.column_of(truncated))
    return resolved.with_clauses((*kept, *new))
