"""Accepts the rows of a micro-batch that can be merged; the others are set aside or fail the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from stream_merge.batch.bind import Bound, bind, in_order_of_target
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.schema_changes import with_schema_changes, without_schema_changes
from stream_merge.bridge.counted import materialized_and_counted
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.source_size import is_small_and_one_task
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Clause
from stream_merge.merge.source import MAX_UNSHUFFLED_ROWS
from stream_merge.partial_updates.special_changes import special_changes, without_truncates
from stream_merge.quarantine.table import Quarantine

T = TypeVar("T")


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

    def is_reduced_as(self, other: Accepted) -> bool:
        """Return whether the plan that reduces other rows reduces these as well."""
        return self._reduced_by == other._reduced_by

    @property
    def _reduced_by(self) -> tuple[object, ...]:
        unset = None if self.unset is None else frozenset(self.unset)
        is_few = self.num_rows is not None and self.num_rows <= MAX_UNSHUFFLED_ROWS
        return self.truncates is None, self.has_moves, unset, self.num_lacking == 0, is_few


@contextmanager
def accepted(
    batch: MicroBatch,
    bound: Bound,
    transaction: Transaction,
    clauses: tuple[Clause, ...],
    plan_ahead: Callable[[Accepted], T],
) -> Iterator[tuple[Accepted, T | None]]:
    """Give the rows of a batch that can be merged for the block, and set the others aside.

    Args:
        batch: The batch.
        bound: Sink and batch, bound to the version that is read.
        transaction: That version.
        clauses: The clauses that the sink carries out.
        plan_ahead: Plans what is to be done with the rows while they are evaluated, as if they were like those of the
            last batch; see `materialized_while`.

    Returns:
        The rows; and what was planned, None if it is not for rows like these.

    Raises:
        QuarantineLimitError: More rows than the sink allows cannot be merged; nothing was written.
    """
    with ExitStack() as stack:
        rows, num_quarantined_rows = batch.frame, 0
        counts: Mapping[str, Any] = {}
        ahead: tuple[Accepted, T] | None = None

        def as_before(rows: DataFrame) -> tuple[Accepted, T] | None:
            if batch.caches.counts is None or bound.is_keyless:
                return None
            # To look into rows with another key takes jobs.
            likely = replace(_with_counts(Accepted(rows=rows), batch.caches.counts), has_moves=False)
            return likely, plan_ahead(likely)

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
            judged = quarantine.accepted(
                changed,
                frame,
                resolved,
                special,
                lambda kept: as_before(without_schema_changes(kept, rows.columns, changes)),
                is_one_task=is_one_task,
            )
            kept, num_quarantined_rows, counts, ahead = stack.enter_context(judged)
            rows = without_schema_changes(kept, rows.columns, changes)
        else:
            once = batch.caches.expressions(batch.frame, transaction)
            special = once("special changes", lambda: special_changes(bound.config, bound.partial))
        if special and not counts:
            if is_small_and_one_task(batch.frame, batch.query):
                rows = rows.coalesce(1)
            counted = materialized_and_counted(rows, special, bound.config.source_alias, as_before)
            rows, counts, ahead = stack.enter_context(counted)
        if bound.is_keyless and rows is batch.frame:
            # After a conflict rows are paired anew.
            rows = stack.enter_context(materialized(rows))
        batch.caches.counts = counts or None
        found = _with_counts(Accepted(rows=rows, num_quarantined_rows=num_quarantined_rows), counts)
        if counts.get("truncates"):
            truncates, rows = without_truncates(rows, bound.config)
            found = replace(found, rows=rows, truncates=truncates)
        yield found, ahead[1] if ahead is not None and found.is_reduced_as(ahead[0]) else None


def _with_counts(accepted: Accepted, counts: Mapping[str, Any]) -> Accepted:
    return replace(
        accepted,
        has_moves=bool(counts.get("moves")),
        unset=counts.get("unset"),
        num_lacking=counts.get("lacking"),
        num_rows=counts.get("rows"),
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
