"""Commits a micro-batch, finds out what became of a failed commit, and reports the result."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from stream_merge import steps
from stream_merge.batch.caches import SinkCaches
from stream_merge.bridge import sessions
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.bridge.self_read import SelfRead
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import SinkConfig
from stream_merge.errors import CommitConflictError
from stream_merge.merge.job import Staged
from stream_merge.metrics import MergeResult, PhaseTimer, as_in_history, delta_name
from stream_merge.plan import MergePlan
from stream_merge.table.exactly_once import BatchIdentity, back_off, settle

logger = logging.getLogger("stream_merge")


@dataclass(slots=True, kw_only=True)
class BatchCommit:
    """Commits what a micro-batch staged, as often as it takes.

    Attributes:
        config: The sink.
        state: The sink's caches.
        name: How messages name the batch.
        query: The running query, or None.
        identity: Under which ids the batch is recorded; None outside a stream.
        timer: Takes the times of the phases.
        conflicts: Delta's names of the conflicts so far.
        attempts: How often it was tried.
    """

    config: SinkConfig
    state: SinkCaches
    name: str
    query: sessions.RunningQuery | None
    identity: BatchIdentity | None
    timer: PhaseTimer
    conflicts: list[str] = field(default_factory=list)
    attempts: int = 0

    def counts(self, staged: Staged, *, num_source_rows: int, num_quarantined_rows: int) -> dict[str, int]:
        """Return the metrics, completed with those that need the whole commit or the clock."""
        counts = staged.counts
        changes = staged.changes
        counts.setdefault("num_source_rows", num_source_rows)
        # The one that these are committed by is another.
        counts["num_commit_attempts"] = self.attempts + 1
        counts["num_quarantined_rows"] = num_quarantined_rows
        counts["num_added_files"] = counts.get("num_target_files_added", 0) + len(changes.adds)
        counts["num_removed_files"] = counts.pop("num_overwritten_files", 0) + len(changes.removes)
        kinds = ("copied", "inserted", "updated")
        counts["num_output_rows"] = sum(counts.get(f"num_target_rows_{kind}", 0) for kind in kinds)
        counts["scan_time_ms"] = self.timer.ms("locate")
        counts["rewrite_time_ms"] = self.timer.ms("stage")
        counts["materialize_source_time_ms"] = self.timer.ms("source")
        counts["execution_time_ms"] = self.timer.elapsed_ms()
        return counts

    def attempt(
        self,
        spark: SparkSession,
        table: Table,
        transaction: Transaction,
        staged: Staged,
        operation: Any,
        counts: dict[str, int],
        self_read: SelfRead,
    ) -> tuple[int | None, bool]:
        """Commit, and return the version and whether the batch is settled; not settled means: try again.

        Raises:
            CommitConflictError: Other writers came first too often, or once where the batch was computed from the target.
            CommitStateUnknownError: The commit failed, and the log cannot be read to see whether it landed.
            StreamMergeError: It failed.
        """
        metrics = self.state.operation_metrics(spark)
        values = {delta_name(name): value for name, value in counts.items()}
        metrics.set({**values, "operationNumSourceRows": counts["num_source_rows"]})
        self.attempts += 1
        steps.reached("before_commit")
        with self.timer.phase("commit"), sessions.job_description(spark, f"{self.name}: commit"):
            try:
                version = transaction.commit(
                    self.identity.set_transactions() if self.identity else {},
                    staged.changes,
                    operation,
                    metrics.by_name,
                    is_empty_allowed=self.identity is not None,
                )
            except JVM_ERRORS as error:
                outcome = settle(table, transaction, self.identity, error)
                if outcome.version is None and not outcome.is_applied_elsewhere:
                    if outcome.conflict is None:
                        raise translate(error) from error
                    self.conflicts.append(outcome.conflict)
                    if self_read.is_static:
                        # The batch was computed from the version that is no longer the newest.
                        reason = f"{outcome.conflict}; the batch reads its own target"
                        raise CommitConflictError(self.name, self.attempts, reason) from error
                    if self.attempts > self.config.max_commit_retries:
                        raise CommitConflictError(self.name, self.attempts, outcome.conflict) from error
                    logger.info("%s: %s, attempt %d", self.name, outcome.conflict, self.attempts)
                    back_off(self.attempts)
                    return None, False
                logger.warning("%s: the commit raised an error but is in the table: %s", self.name, error)
                version = outcome.version
        steps.reached("after_commit")
        return version, True

    def is_applied(self, transaction: Transaction) -> bool:
        """Return whether another process has committed the batch since an attempt failed.

        It may have done so after `settle` looked, while this one waited. That commit is part of the version which the next attempt
        reads, so no conflict would tell of it. Asking also lets the transaction conflict with a commit that records the batch.
        """
        return self.identity is not None and self.identity.is_applied(transaction)

    def result(
        self,
        plan: MergePlan | None,
        reason: str,
        version: int | None,
        counts: dict[str, int],
        *,
        skipped: bool = False,
        locator: str | None = None,
    ) -> MergeResult:
        """Return the result, which is logged."""
        result = MergeResult(
            target=self.config.target,
            query_id=self.query.query_id if self.query else None,
            batch_id=self.identity.batch_id if self.identity else None,
            version=version,
            strategy=plan.strategy.value if plan else None,
            reason=reason,
            skipped=skipped,
            locator=locator,
            conflicts=tuple(self.conflicts),
            phase_ms=self.timer.phases(),
            **{**as_in_history(counts), "num_commit_attempts": self.attempts},
        )
        logger.info("%s", result.line(self.name))
        return result
