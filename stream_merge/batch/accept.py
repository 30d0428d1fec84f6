"""Accepts the rows of a micro-batch that can be merged; the others are set aside or fail the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.batch.bind import Bound, bind, in_order_of_target
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.schema_changes import with_schema_changes, without_schema_changes
from stream_merge.bridge.materialized import materialized, materialized_while
from stream_merge.bridge.sessions import plan, planned_at_once
from stream_merge.bridge.source_size import is_small_and_one_task
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Clause
from stream_merge.partial_updates.special_changes import special_changes, without_truncates
from stream_merge.quarantine.table import Quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The rows of a batch that can be merged, as they arrived.

    Attributes:
        rows: The rows; `MicroBatch.frame` itself where nothing had to be looked at.
        truncates: The rows that stand for a TRUNCATE; None if there are none.
        has_moves: Whether rows get another key and have values that must follow them.
        unset: The columns that a change of the batch leaves alone; None if that was not looked for.
        num_lacking: The number of changes that leave columns alone and give no row another key; None as well.
        num_rows: The number of rows, with those that were set aside; None where they were not counted.
        num_quarantined_rows: The number of rows that were set aside.
    """

    rows: DataFrame
    truncates: DataFrame | None = None
    has_moves: bool = False
    unset: Sequence[str] | None = None
    num_lacking: int | None = None
    num_rows: int | None = None
    num_quarantined_rows: int = 0


@contextmanager
def accepted(
    batch: MicroBatch, bound: Bound, transaction: Transaction, clauses: tuple[Clause, ...]
) -> Iterator[Accepted]:
    """Give the rows of a batch that can be merged for the block, and set the others aside.

    Args:
        batch: The batch.
        bound: Sink and batch, bound to the version that is read.
        transaction: That version.
        clauses: The clauses that the sink carries out.

    Raises:
        QuarantineLimitError: More rows than the sink allows cannot be merged; nothing was written.
    """
    with ExitStack() as stack:
        rows, num_quarantined_rows = batch.frame, 0
        counts: Mapping[str, Any] = {}
        if bound.config.checks_rows:
            # As it came: what has another type in the target is judged before it gets that.
            schema, changes = transaction.struct_type, bound.changes
            rows = in_order_of_target(batch.config, bound.config, rows, schema)
            once = batch.caches.expressions(batch.frame, transaction)
            partitions = transaction.partition_columns
            frame = bind(
                batch.config, rows, schema, changes, partition_columns=partitions, once=once, is_typed=False
            ).frame
            resolved = batch.caches.resolve(frame, transaction, bound.config, clauses, bound.partial).analysed
            special = resolved.once("special changes", lambda: special_changes(bound.config, bound.partial))
            _, changed = with_schema_changes(batch.config, rows, changes, schema)
            is_one_task = is_small_and_one_task(batch.frame, batch.query)
            quarantine = _quarantine(batch, bound, transaction)
            judged = quarantine.accepted(changed, frame, resolved, special, is_one_task=is_one_task)
            kept, num_quarantined_rows, counts = stack.enter_context(judged)
            rows = without_schema_changes(kept, rows.columns, changes)
        else:
            once = batch.caches.expressions(batch.frame, transaction)
            special = once("special changes", lambda: special_changes(bound.config, bound.partial))
        if special and not counts:
            if is_small_and_one_task(batch.frame, batch.query):
                rows = rows.coalesce(1)
            evaluated = materialized_while(rows, partial(_counts, bound=bound, special=special))
            rows, planned = stack.enter_context(evaluated)
            counts = planned.collect()[0].asDict()
        if bound.is_keyless and rows is batch.frame:
            # After a conflict rows are paired anew.
            rows = stack.enter_context(materialized(rows))
        truncates = None
        if counts.get("truncates"):
            truncates, rows = without_truncates(rows, bound.config)
        yield Accepted(
            rows=rows,
            truncates=truncates,
            has_moves=bool(counts.get("moves")),
            unset=counts.get("unset"),
            num_lacking=counts.get("lacking"),
            num_rows=counts.get("rows"),
            num_quarantined_rows=num_quarantined_rows,
        )


def _quarantine(batch: MicroBatch, bound: Bound, transaction: Transaction) -> Quarantine:
    return Quarantine(
        config=batch.config,
        ordered=bound.config,
        partial=bound.partial,
        identity=batch.identity,
        name=batch.name,
        transaction=transaction,
    )


def _counts(rows: DataFrame, bound: Bound, special: Sequence[Column]) -> DataFrame:
    """Return the numbers of special changes and of all rows, planned while the rows are still being evaluated."""
    named = rows.alias(bound.config.source_alias)
    return plan(planned_at_once(named.agg(*special, F.count(F.lit(1)).alias("rows"))))
