"""Describes in words what a merge would do, without writing anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pyspark.sql import DataFrame

from stream_merge.batch.attempts import checked_plan
from stream_merge.batch.bind import bind
from stream_merge.batch.caches import SinkCaches
from stream_merge.batch.column_checks import check_columns
from stream_merge.batch.schema_changes import schema_changes_of
from stream_merge.batch.target import check_holder, missing_columns
from stream_merge.bridge import sessions
from stream_merge.bridge.table import Table, open_table
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.merge.merge_on_read import may_write_ahead
from stream_merge.merge.statement import checked_clauses
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.plan import Strategy
from stream_merge.table.files import is_prunable
from stream_merge.tombstones.store import written_state


def explain(config: SinkConfig, state: SinkCaches, batch: DataFrame) -> str:
    """Return the plan of a merge; no job runs over the batch, and nothing is written.

    Raises:
        StreamMergeError: The merge is not possible.
    """
    session = sessions.classic_session(batch)
    with state.lock, sessions.active(spark := state.execution_session(session)):
        frame = sessions.moved(batch, spark)
        check_columns(frame, config)
        is_complete = config.output_mode == "complete"
        clauses = () if is_complete else checked_clauses(config)
        table = open_table(spark, config.target)
        transaction = table.begin()
        plan = checked_plan(config, clauses, transaction, is_complete=is_complete)
        lines = [f"MergeSink[{config.target}] at version {transaction.version}", f"  strategy  {plan}"]
        if is_complete:
            return "\n".join(lines)
        config, frame, partial, order = _ordered(config, frame, table, transaction)
        lines += order
        resolved = state.resolve(frame, transaction, config, checked_clauses(config), partial)
        lines.append(f"  on        {resolved.condition_sql}")
        for clause in resolved.clauses:
            when = clause.clause.when.value.replace("_", " ")
            condition = f" and {clause.condition_sql}" if clause.condition_sql else ""
            lines.append(f"  when      {when}{condition}: {clause.clause.action.value.replace('_', ' ')}")
        if config.quarantine is not None:
            lines.append(f"  set aside rows that cannot be merged, in {config.quarantine}")
        pruning = [f"{pair.target} ({pair.type_name})" for pair in resolved.key_pairs if is_prunable(pair.type_name)]
        lines.append(
            f"  skipping  by the batch's range of {', '.join(pruning)}" if pruning else "  skipping  none by key"
        )
        if resolved.target_predicates is not None:
            lines.append(f"            by {resolved.target_predicates.mkString(', ')}")
        is_early = plan.strategy is Strategy.MERGE_ON_READ and may_write_ahead(
            resolved, transaction, keeps_order=config.keeps_order, skip_unchanged=config.skip_unchanged
        )
        if config.skip_unchanged:
            lines.append("  writing   no row that an update leaves as it is: its old values are read")
        if is_early:
            lines.append("  writing   new rows while the matches are looked up")
        return "\n".join(lines)


def _ordered(
    config: SinkConfig, frame: DataFrame, table: Table, transaction: Transaction
) -> tuple[SinkConfig, DataFrame, PartialUpdates | None, list[str]]:
    """Return the sink and the batch as bound to the target without the columns that it lacks, and lines about them."""
    schema = transaction.struct_type
    changes = schema_changes_of(config, frame, table, transaction)
    bound = bind(config, frame, schema, changes, partition_columns=transaction.partition_columns)
    ordered, sequenced, partial = bound.config, bound.frame, bound.partial
    added = missing_columns(config, frame, schema)
    _check_written(config, ordered, table, transaction, added)
    lines = []
    if config.before is not None:
        lines.append(f"  rows      without a key, by their contents, under ids in {ROW_ID}")
    if config.sequence_by:
        lines.append(f"  order     by {', '.join(ordered.sequence_columns)}")
        if SEQUENCE in added:
            lines[-1] += ", a column that the sink will add to the target"
        if config.keeps_tombstones:
            lines.append(f"            deletes are remembered for {config.tombstone_retention}")
    if partial is not None:
        lines.append("  columns   one by one: a change sets some and leaves the others as they are")
        if COLUMN_SEQUENCES in added:
            lines[-1] += f"; the sink will add {COLUMN_SEQUENCES} to the target"
    if not added:
        return ordered, sequenced, partial, lines
    written = tuple(name for name in ordered.columns if name not in added)
    sequence = () if SEQUENCE in added else ordered.sequence_by
    if ROW_ID in added:
        # No row has an id yet.
        ordered = replace(ordered, keys=(), on="false", before=config.before)
    return replace(ordered, columns=written, sequence_by=sequence), sequenced.drop(*added), None, lines


def _check_written(
    config: SinkConfig, ordered: SinkConfig, table: Table, transaction: Transaction, added: Collection[str]
) -> None:
    """Refuse a table that was written with other keys or another sequence, as the merge does.

    Args:
        config: The sink as the user configured it.
        ordered: The sink as `bind` returned it.
        table: The target.
        transaction: The version that is read.
        added: The columns that the sink will add to it.
    """
    if SEQUENCE in added:
        check_holder(config, table, transaction)
    elif config.keeps_tombstones:
        written_state(config, ordered, table, transaction, had_registers=False)
