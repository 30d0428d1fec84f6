"""Replaces the table's contents by a micro-batch that is the whole result of its query (output mode Complete)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.batch.commit import Committed, retried_commit
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.target import Target, written
from stream_merge.bridge import sessions
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.operations import overwrite_operation
from stream_merge.bridge.self_read import SelfRead
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import NO_QUARANTINE_IN_COMPLETE
from stream_merge.errors import ConfigError
from stream_merge.merge.job import Staged
from stream_merge.merge.overwrite import stage_overwrite
from stream_merge.metrics import COUNTERS, delta_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOverwrite:
    """An overwrite whose files are written.

    Attributes:
        transaction: Delta's transaction on the version that is read.
        staged: What the commit will hold.
        operation: Delta's operation, for the table's history.
    """

    transaction: Transaction
    staged: Staged
    operation: Any
    num_quarantined_rows: int = 0

    @property
    def num_source_rows(self) -> int:
        """The number of rows that are written."""
        return self.staged.counts["num_source_rows"]


def overwrite(batch: MicroBatch, target: Target, self_read: SelfRead) -> Committed[StagedOverwrite]:
    """Write a batch in the place of all rows, again on a newer version after each conflict, until it is in the table.

    Raises:
        ConfigError: The sink checks rows, which has no meaning for a whole result.
    """
    if batch.config.checks_rows:
        raise ConfigError([NO_QUARANTINE_IN_COMPLETE])
    with materialized(written(batch.config, batch.frame)) as rows:

        def again(_: StagedOverwrite) -> StagedOverwrite | None:
            transaction = target.table.begin()
            return None if batch.is_applied(transaction) else _stage(batch, transaction, rows, self_read)

        first = _stage(batch, target.transaction, rows, self_read)
        return retried_commit(batch, target.table, first, again, is_static=self_read.is_static)


def _stage(batch: MicroBatch, transaction: Transaction, rows: DataFrame, self_read: SelfRead) -> StagedOverwrite:
    with batch.timer.phase("stage"), sessions.job_description(batch.spark, f"{batch.name}: overwrite"):
        if self_read.is_read:
            transaction.read_whole_table()
        staged = stage_overwrite(transaction, rows, overwrite_schema=batch.config.overwrite_schema)
    operation = overwrite_operation(
        batch.spark,
        batch.query.query_id if batch.query else "",
        batch.identity.batch_id if batch.identity else 0,
        [delta_name(name) for name in COUNTERS],
        batch.config.user_metadata,
    )
    return StagedOverwrite(transaction=transaction, staged=staged, operation=operation)
