"""Cleans up after a commit, and reports the result to Spark's UI, the log and the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from stream_merge.batch.applied import remember_applied
from stream_merge.batch.commit import Committed
from stream_merge.batch.maintain import maintained
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.staging import StagedAttempt
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.metrics import MergeResult, as_in_history
from stream_merge.plan import MergePlan
from stream_merge.table.exactly_once import Retries

logger: logging.Logger = logging.getLogger("stream_merge")

MIN_STALE_ROWS = 100
"""A few may be late."""
_STALE = "changes that are all older"


def report_merged(batch: MicroBatch, committed: Committed[StagedAttempt]) -> MergeResult:
    """Clean up after the commit of a merge, and report it."""
    attempt, remembered = committed.last.attempt, committed.last.remembered

    def clean_up() -> None:
        attempt.resolved.refresh_cached_readers()
        if attempt.store is not None and remembered is not None and committed.version is not None:
            batch.caches.cleaned_ms = attempt.store.after_commit(remembered, batch.caches.cleaned_ms)

    result = report(
        batch,
        committed,
        attempt.plan,
        locator=committed.last.staged.locator,
        clean_up=clean_up,
        maintain=lambda: maintained(batch, committed.last),
    )
    _warn_of_stale(batch, result)
    return result


def _warn_of_stale(batch: MicroBatch, result: MergeResult) -> None:
    """Warn once if no change of a row is newer than the row: its sequence may be of another kind than before."""
    left_out = result.num_stale_rows + result.num_outdated_rows
    is_any = result.num_target_rows_updated or result.num_target_rows_deleted
    if left_out < MIN_STALE_ROWS or is_any or _STALE in batch.caches.told:
        return
    batch.caches.told.add(_STALE)
    logger.warning(
        "%s: all %d changes of rows that the table has, or had, are older than these and were left out; unless they "
        "are older records that are merged again, their sequence_by is of another kind than before (offsets and lsn, "
        "say)",
        batch.name,
        left_out,
    )


def report(
    batch: MicroBatch,
    committed: Committed[Any],
    plan: MergePlan,
    *,
    locator: str | None = None,
    clean_up: Callable[[], None] = lambda: None,
    maintain: Callable[[], Mapping[str, Any]] = dict,
) -> MergeResult:
    """Clean up after a commit, and report it.

    Args:
        batch: The batch.
        committed: Its commit.
        plan: The strategy.
        locator: How matches were found.
        clean_up: What follows the commit. A failure of it is no failure of the batch.
        maintain: Does what is due for the table, and returns fields of the result.
    """
    remember_applied(batch, committed.last.transaction)
    if batch.identity is not None and committed.version is None:
        return report_skipped(batch, "another process committed this batch", committed.retries)
    try:
        clean_up()
        if batch.query is not None:
            batch.caches.operation_metrics(batch.spark).show(batch.query, f"MergeSink [{batch.config.target}]")
    except JVM_ERRORS:
        logger.warning("%s: committed, but what follows a commit failed", batch.name, exc_info=True)
    facts = maintain()
    return _told(
        batch,
        committed.retries,
        version=committed.version,
        strategy=plan.strategy.value,
        reason=plan.reason,
        locator=locator,
        **as_in_history(committed.counts),
        **facts,
    )


def report_skipped(batch: MicroBatch, reason: str, retries: Retries | None = None) -> MergeResult:
    """Report a batch that was not merged, since the table holds it."""
    return _told(batch, retries or Retries(name=batch.name, max_retries=0), reason=reason, skipped=True)


def _told(batch: MicroBatch, retries: Retries, **facts: Any) -> MergeResult:
    """Return the result, which is logged."""
    result = MergeResult(
        target=batch.config.target,
        query_id=batch.query.query_id if batch.query else None,
        batch_id=batch.identity.batch_id if batch.identity else None,
        conflicts=tuple(retries.conflicts),
        phase_ms=batch.timer.phases(),
        index_rows=len(batch.caches.index),
        index_disk_bytes=batch.caches.index.disk_bytes,
        **{**facts, "num_commit_attempts": retries.num_attempts},
    )
    logger.info("%s", result.line(batch.name))
    return result
