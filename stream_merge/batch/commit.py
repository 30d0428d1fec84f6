"""Commits a micro-batch, again after each conflict, and finds out what became of a commit that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stream_merge.batch.log_checkpoint import is_left_to_next_batch, note_commit
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.target import Target
from stream_merge.bridge import sessions
from stream_merge.bridge.table import Table, open_table
from stream_merge.bridge.transaction import Transaction
from stream_merge.merge.job import Staged
from stream_merge.metrics import delta_name
from stream_merge.steps import reached
from stream_merge.table.calls import Call
from stream_merge.table.exactly_once import Outcome, Retries, settle, until_settled


class Committable(Protocol):
    """What is staged for a commit."""

    @property
    def transaction(self) -> Transaction:
        """Delta's transaction on the version that was read."""

    @property
    def staged(self) -> Staged:
        """What the commit will hold."""

    @property
    def operation(self) -> Any:
        """Delta's operation, for the table's history."""

    @property
    def num_source_rows(self) -> int:
        """The number of rows that are merged."""

    @property
    def num_quarantined_rows(self) -> int:
        """The number of rows that were set aside."""


C = TypeVar("C", bound=Committable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Generic[C]):
    """A batch that is in the table.

    Attributes:
        last: What was staged for the last attempt.
        version: The version of its commit; None where another process committed the batch.
        counts: The metrics.
        retries: How often it was tried, and which conflicts there were.
    """

    last: C
    version: int | None
    counts: dict[str, int]
    retries: Retries


def retried_commit(
    batch: MicroBatch, table: Table, first: C, again: Callable[[C], C | None], *, is_static: bool
) -> Committed[C]:
    """Commit a batch, and after a conflict what is staged then, until the batch is in the table.

    Args:
        batch: The batch.
        table: The target.
        first: What is staged for the first attempt.
        again: Stages another attempt after a conflict; gives None if another process has committed the batch by now.
        is_static: Whether the batch was computed from the version that it read, so that no other attempt may follow.

    Raises:
        CommitConflictError: Other writers came first too often, or once where the batch was computed from the target.
        CommitStateUnknownError: The commit failed, and the log cannot be read to see whether it landed.
        MergedTwiceError: Another call of the same query has committed rows of this batch meanwhile.
        StreamMergeError: It failed.
    """
    counts: dict[str, int] = {}
    retries = Retries(
        name=batch.name,
        max_retries=batch.config.max_commit_retries,
        is_static=is_static,
        timer=batch.timer,
    )

    def commit(attempt: C) -> int | None:
        nonlocal counts
        counts = _counted(batch, attempt, retries.num_attempts)
        metrics = batch.caches.operation_metrics(batch.spark)
        values = {delta_name(name): value for name, value in counts.items()}
        metrics.set({**values, "operationNumSourceRows": counts["num_source_rows"]})
        if is_left_to_next_batch(attempt.transaction):
            attempt.transaction.without_checkpoint()
        reached("before_commit")
        with batch.timer.phase("commit"), sessions.job_description(batch.spark, f"{batch.name}: commit"):
            version = attempt.transaction.commit(
                batch.identity.set_transactions() if batch.identity else {},
                attempt.staged.changes,
                attempt.operation,
                metrics.by_name,
                is_empty_allowed=batch.identity is not None,
            )
        reached("after_commit")
        return version

    def settled(attempt: C, error: BaseException) -> Outcome:
        with batch.timer.phase("commit"):
            outcome = settle(table, attempt.transaction, batch.identity, error)
        if outcome.is_settled:
            reached("after_commit")
        return outcome

    last, version = until_settled(first, commit=commit, settle=settled, again=again, retries=retries)
    if version is None and (call := _call(batch, table, last.transaction.table_id)) is not None:
        call.check_own()
    if version is not None:
        note_commit(batch, last.transaction, version)
    return Committed(last=last, version=version, counts=counts, retries=retries)


@contextmanager
def only_call(batch: MicroBatch, target: Target) -> Iterator[None]:
    """Refuse a second call for the target in the micro-batch, for the block.

    Raises:
        MergedTwiceError: There is one already.
    """
    call = _call(batch, target.table, target.table_id)
    if call is None:
        yield
        return

    def has_same_log(folder: str) -> bool:
        version = target.transaction.version
        try:
            own = target.table.read_commit(version)
        except FileNotFoundError:
            # Nothing tells them apart: better refused than skipped.
            return True
        try:
            return open_table(batch.spark, folder).read_commit(version) == own
        except FileNotFoundError:
            return False

    with call.only(is_applied=target.is_applied, has_same_log=has_same_log):
        yield


def _call(batch: MicroBatch, table: Table, table_id: str) -> Call | None:
    """Return the call that merges a batch into a table; None if no query is known to run it."""
    if batch.identity is None or batch.query is None:
        return None
    return Call(
        target=batch.config.target,
        folder=table.path(),
        table_id=table_id,
        identity=batch.identity,
        run_id=batch.query.run_id,
    )


def _counted(batch: MicroBatch, attempt: Committable, num_attempts: int) -> dict[str, int]:
    """Return the metrics, completed with those that need the whole commit or the clock."""
    counts, changes, timer = attempt.staged.counts, attempt.staged.changes, batch.timer
    counts.setdefault("num_source_rows", attempt.num_source_rows)
    counts["num_commit_attempts"] = num_attempts
    counts["num_quarantined_rows"] = attempt.num_quarantined_rows
    counts["num_added_files"] = counts.get("num_target_files_added", 0) + len(changes.adds)
    counts["num_removed_files"] = counts.pop("num_overwritten_files", 0) + len(changes.removes)
    kinds = ("copied", "inserted", "updated")
    counts["num_output_rows"] = sum(counts.get(f"num_target_rows_{kind}", 0) for kind in kinds)
    counts["scan_time_ms"] = timer.ms("locate")
    counts["rewrite_time_ms"] = timer.ms("stage")
    counts["materialize_source_time_ms"] = timer.ms("source")
    counts["execution_time_ms"] = timer.elapsed_ms()
    return counts
