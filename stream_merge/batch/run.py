"""Runs one micro-batch from beginning to end: open, prepare, locate, stage, commit, report."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from stream_merge.batch.applied import remember_applied
from stream_merge.batch.attempts import checked_plan, first_attempt, next_attempt
from stream_merge.batch.caches import AlteredMeanwhileError
from stream_merge.batch.column_checks import check_columns
from stream_merge.batch.commit import Committed, only_call, retried_commit
from stream_merge.batch.log_checkpoint import checkpointed_beside
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.overwrite import overwrite
from stream_merge.batch.report import report, report_merged, report_skipped
from stream_merge.batch.staging import StagedAttempt, stage
from stream_merge.batch.target import Target, open_target
from stream_merge.bridge.self_read import SelfRead, find_self_read
from stream_merge.clauses import Clause
from stream_merge.errors import CommitConflictError, SchemaMismatchError, UnresolvedColumnError
from stream_merge.merge.statement import checked_clauses
from stream_merge.metrics import MergeResult
from stream_merge.plan import MergePlan
from stream_merge.steps import reached

logger: logging.Logger = logging.getLogger("stream_merge")


def run(batch: MicroBatch, num_begun: int = 1) -> MergeResult:
    """Merge a micro-batch into its table, or skip it when the table holds it.

    Args:
        batch: The batch.
        num_begun: How often it was begun, this time included.

    Raises:
        StreamMergeError: Nothing of the batch is in the table.
    """
    reached("before_open")
    clauses = () if batch.is_complete else checked_clauses(batch.config)
    with batch.timer.phase("open"):
        check_columns(batch.frame, batch.config)
        target = open_target(batch)
    reached("after_open")
    try:
        with only_call(batch, target):
            return skip(batch, target) if target.is_applied else write(batch, target, clauses)
    except AlteredMeanwhileError as error:
        if num_begun > batch.config.max_commit_retries:
            raise
        logger.info("%s; the batch begins again", error)
    except (UnresolvedColumnError, SchemaMismatchError):
        # Delta resolves names in the newest version, and a RESTORE since the version was opened takes columns away.
        if {*target.transaction.struct_type.names} <= {*target.table.begin().struct_type.names}:
            raise
        logger.info("%s: the table has lost columns meanwhile; the batch begins again", batch.name)
    return run(batch, num_begun + 1)


def write(batch: MicroBatch, target: Target, clauses: tuple[Clause, ...]) -> MergeResult:
    """Merge a batch into its target, which does not hold it, or overwrite the target by it."""
    plan = checked_plan(batch.config, clauses, target.transaction, is_complete=batch.is_complete)
    self_read = find_self_read(target.table, batch.frame, batch.query)
    _check_self_read(batch, self_read, target.transaction.version)
    if batch.is_complete:
        with checkpointed_beside(batch, target.transaction):
            overwritten = overwrite(batch, target, self_read)
        return report(batch, overwritten, plan)
    with checkpointed_beside(batch, target.transaction):
        merged = merge(batch, target, clauses, plan, self_read)
    return report_merged(batch, merged)


def skip(batch: MicroBatch, target: Target) -> MergeResult:
    """Leave a batch out that the table holds already."""
    remember_applied(batch, target.transaction)
    # A stateful query fails when the state that its batch would write is never written: Spark 4.2 checks it.
    batch.frame.write.format("noop").mode("overwrite").save()
    return report_skipped(batch, "the table holds this batch already")


def merge(
    batch: MicroBatch, target: Target, clauses: tuple[Clause, ...], plan: MergePlan, self_read: SelfRead
) -> Committed[StagedAttempt]:
    """Stage and commit a batch, again on a newer version after each conflict, until it is in the table."""
    # What an attempt keeps serves the next ones, too.
    with ExitStack() as kept_rows:
        attempt = first_attempt(batch, target, clauses, plan, kept_rows)
        reached("after_persist")

        def again(earlier: StagedAttempt) -> StagedAttempt | None:
            found = next_attempt(batch, target.table, earlier.attempt, kept_rows)
            if found is None:
                return None
            attempt, kept = found
            return stage(batch, attempt, self_read, earlier.staged.reusable if kept.written else None)

        first = stage(batch, attempt, self_read)
        return retried_commit(batch, target.table, first, again, is_static=self_read.is_static)


def _check_self_read(batch: MicroBatch, self_read: SelfRead, version: int) -> None:
    """Refuse a batch whose plan read the target before another writer's commit."""
    if self_read.version is not None and self_read.version < version:
        reason = f"the query read version {self_read.version} of its own target, which is at {version}"
        raise CommitConflictError(batch.name, 1, reason)
