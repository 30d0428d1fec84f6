"""Stages an attempt: writes its files and its tombstones, which no reader sees before the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.batch.attempt import Attempt
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.schema_changes import written_names
from stream_merge.bridge import sessions
from stream_merge.bridge.self_read import SelfRead
from stream_merge.bridge.transaction import Transaction
from stream_merge.merge.job import MergeJob, Staged, count_skipping
from stream_merge.merge.source import deletes
from stream_merge.merge.strategies import run_engine
from stream_merge.metrics import COUNTERS, delta_name
from stream_merge.plan import Strategy
from stream_merge.table.features import has_change_feed
from stream_merge.table.files import DataFile
from stream_merge.tombstones.manifest import DOMAIN, TombstoneManifest
from stream_merge.tombstones.store import TombstoneStore, noted_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """An attempt whose files are written.

    Attributes:
        attempt: The attempt.
        staged: What the commit will hold.
        operation: Delta's operation, for the table's history.
        remembered: What the table will remember after the commit, if the sink keeps tombstones.
    """

    attempt: Attempt
    staged: Staged
    operation: Any
    remembered: TombstoneManifest | None

    @property
    def transaction(self) -> Transaction:
        """Delta's transaction on the version that is read."""
        return self.attempt.transaction

    @property
    def num_source_rows(self) -> int:
        """The number of rows that are merged."""
        return self.attempt.source.num_rows

    @property
    def num_quarantined_rows(self) -> int:
        """The number of rows that were set aside."""
        return self.attempt.accepted.num_quarantined_rows


def stage(batch: MicroBatch, attempt: Attempt, self_read: SelfRead, written: Any = None) -> StagedAttempt:
    """Write the files of an attempt, which no reader sees, and its tombstones beside them.

    Args:
        batch: The batch.
        attempt: The attempt.
        self_read: How the batch reads its own target.
        written: File actions of an earlier attempt that do not depend on the target, or None.
    """
    resolved, caches = attempt.resolved, batch.caches
    with batch.timer.phase("open"):
        job = _job(batch, attempt, self_read, written)
    with _tombstones_written(batch, attempt):
        is_nothing = attempt.source.num_rows == 0 and not resolved.needs_all_files
        staged = Staged() if is_nothing else run_engine(attempt.plan.strategy, job)
    staged.counts |= count_skipping(job.files.all(), job.candidates)
    staged.counts |= attempt.source.counts
    caches.had_newer_rows = bool(staged.counts.get("num_stale_rows"))
    caches.writes_ahead = staged.reusable is not None
    remembered = None
    if attempt.store is not None:
        remembered = _stage_tombstones(batch, attempt, attempt.store, staged)
    elif not is_nothing:
        _note_columns(attempt, staged)
    operation = resolved.operation([delta_name(name) for name in COUNTERS], batch.config.user_metadata)
    return StagedAttempt(attempt=attempt, staged=staged, operation=operation, remembered=remembered)


def _job(batch: MicroBatch, attempt: Attempt, self_read: SelfRead, written: Any) -> MergeJob:
    """Find the files in which a row can match, and tell Delta's transaction what is read."""
    config, caches = batch.config, batch.caches
    resolved, transaction, source = attempt.resolved, attempt.transaction, attempt.source
    is_whole = attempt.plan.strategy is Strategy.MERGE_ON_READ and attempt.reduction.whole_rows is not None
    files = caches.active_files(transaction)
    resolved.evolve_schema(transaction)
    candidates = files.all() if resolved.needs_all_files else _candidates(batch, attempt)
    if self_read.is_read:
        transaction.read_whole_table()
    limits = {} if resolved.needs_all_files else source.partition_values(transaction.partition_columns)
    transaction.track_read([file.add for file in candidates], limits)
    return MergeJob(
        resolved=attempt.reduction.measured_for if is_whole else resolved,
        by_column=resolved if is_whole else None,
        transaction=transaction,
        source=source,
        files=files,
        candidates=candidates,
        vectors=caches.vectors,
        index=caches.index,
        locator=config.locator,
        check_cardinality=config.check_cardinality,
        skip_unchanged=config.skip_unchanged,
        order_by=attempt.reduction.changes.bound.config.sequence_columns if config.keeps_order else (),
        expects_newer_rows=caches.had_newer_rows,
        has_change_feed=has_change_feed(transaction.properties),
        batch=batch.name,
        timer=batch.timer,
        written=written,
        ahead=attempt.ahead,
    )


def _candidates(batch: MicroBatch, attempt: Attempt) -> list[DataFile]:
    if attempt.source.num_rows == 0:
        return []
    transaction, predicates = attempt.transaction, attempt.resolved.target_predicates
    paths = transaction.skip_files(predicates) if predicates is not None else None
    return batch.caches.files.may_match(attempt.source.key_ranges(transaction.schema), paths)


@contextmanager
def _tombstones_written(batch: MicroBatch, attempt: Attempt) -> Iterator[None]:
    """Write the batch's tombstones, if it has any, beside what the block does."""
    resolved, source = attempt.resolved, attempt.source
    with ExitStack() as stack:
        if attempt.store is not None:

            def deleted() -> DataFrame:
                return resolved.source(source.rows).where(deletes(resolved, source.rows.columns))

            stack.enter_context(
                attempt.store.remembering(
                    deleted, source.num_deletes, source.highest_delete, batch.name, source.tombstones
                )
            )
        yield
        with batch.timer.phase("stage"):
            stack.close()


def _note_columns(attempt: Attempt, staged: Staged) -> None:
    """Tell the sinks that keep tombstones which columns this one, which keeps none, makes older than their rows."""
    bound, transaction = attempt.reduction.changes.bound, attempt.transaction
    if bound.partial is None or not bound.config.sequence_by:
        return
    noted = noted_columns(transaction.table, transaction, bound.partial)
    if noted is not None:
        staged.changes.domain_metadata[DOMAIN] = noted.to_json()


def _stage_tombstones(batch: MicroBatch, attempt: Attempt, store: TombstoneStore, staged: Staged) -> TombstoneManifest:
    """Stage what the table remembers. A merge outside a stream that changes nothing commits nothing."""
    with batch.timer.phase("stage"), sessions.job_description(batch.spark, f"{batch.name}: remember deletes"):
        remembered, counts = store.next_state(
            attempt.source.num_deletes, attempt.transaction.version, partial=attempt.reduction.changes.partial
        )
    # A batch that has only deletes may have columns of the table that the source does not have.
    if batch.config.follows_columns and attempt.source.num_upserts:
        bound = attempt.reduction.changes.bound
        columns = {*remembered.columns, *written_names(bound.config, bound.frame.columns)}
        remembered = replace(remembered, columns=tuple(sorted(columns)))
    staged.counts |= counts
    has_files = bool(staged.counts.get("num_target_files_added") or staged.changes.removes)
    is_new = store.is_truncated or remembered.files != store.state.files
    if batch.identity is not None or has_files or is_new:
        staged.changes.domain_metadata[DOMAIN] = remembered.to_json()
    return remembered
