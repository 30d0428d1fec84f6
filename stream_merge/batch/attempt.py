"""One attempt to merge a micro-batch into one version of the table, and the parts of it that the next one reuses."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from stream_merge.batch.accept import Accepted
from stream_merge.batch.reduce import Reduction
from stream_merge.batch.write_ahead import WriteAhead
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Clause
from stream_merge.merge.source import Source
from stream_merge.plan import MergePlan
from stream_merge.tombstones.store import TombstoneStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The version of the table that an attempt reads.

    Attributes:
        transaction: Delta's transaction on it.
        had_registers: Whether the table had the column for the sequences of single columns before this batch.
    """

    transaction: Transaction
    had_registers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A micro-batch on its way into one version of the table.

    Attributes:
        had_registers: Whether the version had the column for the sequences of single columns before this batch.
        clauses: The clauses that are carried out.
        plan: The strategy.
        accepted: The rows of the batch that can be merged, as they arrived.
        reduction: The same, bound to the version, with the statement and what the version remembers.
        rows: The rows that are merged, evaluated once.
        source: The same, measured, without those that a remembered delete outdates.
        ahead: The new files, if their writing has begun; the next attempt has none.
    """

    had_registers: bool
    clauses: tuple[Clause, ...]
    plan: MergePlan
    accepted: Accepted
    reduction: Reduction
    rows: DataFrame
    source: Source
    ahead: WriteAhead | None = None

    @property
    def transaction(self) -> Transaction:
        """Delta's transaction on the version that is read."""
        return self.reduction.transaction

    @property
    def resolved(self) -> ResolvedMerge:
        """The statement."""
        return self.reduction.resolved

    @property
    def store(self) -> TombstoneStore | None:
        """What the version remembers, if the sink keeps tombstones."""
        return self.reduction.store


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The parts of an attempt that the next one reuses after a conflict.

    Attributes:
        evaluated: The evaluated rows.
        measured: The measured source.
        written: The new files that do not depend on the target.
    """

    evaluated: bool
    measured: bool
    written: bool


def what_can_be_kept(
    *, is_same_table: bool, is_rearranged: bool, is_refolded: bool, has_moved_rows: bool, has_same_deletes: bool
) -> Kept:
    """Return the parts of an attempt that hold for a newer version of the table.

    Args:
        is_same_table: Whether metadata and protocol are the same.
        is_rearranged: Whether the target's columns have changed and the sink depends on them.
        is_refolded: Whether the batch is reduced to other rows: it is rearranged, its changes set other single columns,
            or rows without a key are paired with rows of the target.
        has_moved_rows: Whether rows that got another key took values from the target.
        has_same_deletes: Whether the table remembers the same deletes, so that they outdate the same changes.
    """
    measured = has_same_deletes and not is_rearranged
    return Kept(
        evaluated=measured or not (is_refolded or has_moved_rows),
        measured=measured,
        written=measured and is_same_table and not is_refolded,
    )
