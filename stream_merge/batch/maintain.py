"""Maintains the table after a batch's commit, when its account has the time. Whatever fails here fails no batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stream_merge.batch.log_checkpoint import interval_of, is_left_to_next_batch
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.staging import StagedAttempt
from stream_merge.bridge import sessions
from stream_merge.bridge.jvm import conflict_name
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.key_index.index import KeyIndex
from stream_merge.maintenance.compaction import Compaction, compact
from stream_merge.maintenance.policy import Bin, bins, target_bytes_of, within
from stream_merge.maintenance.upkeep import VACUUM_LOOKED_MS, WAIT_BATCHES, Upkeep, account_from_log
from stream_merge.maintenance.vacuum import vacuum_if_due
from stream_merge.merge.locate.index_additions import active_paths, add_files, num_indexed_rows
from stream_merge.table.features import check_supported
from stream_merge.table.files import TableFiles, now_ms

logger: logging.Logger = logging.getLogger("stream_merge")

clock: Callable[[], float] = time.monotonic

MAX_PARALLEL = 4
"""So many files are written at a time at most, by one task each."""

_AUTO_COMPACT = ("delta.autoOptimize.autoCompact", "spark.databricks.delta.autoCompact.enabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexed:
    """What the key index needs to take in new files."""

    resolved: ResolvedMerge
    transaction: Transaction
    files: TableFiles
    index: KeyIndex
    order_by: Sequence[str]
    batch: str


def maintained(batch: MicroBatch, last: StagedAttempt) -> dict[str, Any]:
    """Compact the table and run VACUUM if that is due, and return fields of the batch's result.

    Args:
        batch: The batch, which is in the table.
        last: What was committed.
    """
    if not batch.config.maintenance:
        return {}
    upkeep, table = batch.caches.upkeep, last.transaction.table
    with batch.timer.phase("maintenance"):
        facts: dict[str, Any] = {"maintenance": None}
        try:
            upkeep = _upkeep(batch, last.transaction)
            if upkeep.is_due:
                facts |= _compacted(batch, last, upkeep)
            if now_ms() - upkeep.vacuum_looked_ms >= VACUUM_LOOKED_MS and _vacuumed(batch, table, upkeep):
                facts["maintenance"] = facts["maintenance"] or "vacuumed"
        except Exception as error:
            # The batch is in the table, whatever this is.
            conflict = conflict_name(error)
            facts["maintenance"] = "failed" if conflict is None else "conflict"
            if conflict is None:
                logger.warning("%s: committed, but the maintenance after it failed", batch.name, exc_info=True)
            else:
                logger.info("%s: a compaction was given up for another writer: %s", batch.name, conflict)
    return {
        **facts,
        "table_files": upkeep.num_files,
        "table_rows": upkeep.num_rows,
        "deleted_rows": upkeep.num_deleted_rows,
    }


def _upkeep(batch: MicroBatch, merged: Transaction) -> Upkeep:
    """Return what is known of the table, with the batch in its account."""
    upkeep = batch.caches.upkeep
    if upkeep.table_id != merged.table_id:
        account = account_from_log(merged.table.read_commit, merged.version)
        upkeep = batch.caches.upkeep = Upkeep(table_id=merged.table_id, account=account)
    upkeep.merged(batch.timer.elapsed_ms() / 1000)
    return upkeep


def _compacted(batch: MicroBatch, last: StagedAttempt, upkeep: Upkeep) -> dict[str, Any]:
    started, account = clock(), upkeep.account
    chosen: list[Bin] = []
    try:
        transaction = last.transaction.table.begin()
        if _meets_checkpoint(batch, transaction):
            return {}
        check_supported(batch.config.target, transaction.metadata, transaction.protocol, transaction.schema)
        files = batch.caches.active_files(transaction)
        upkeep.note_files(files.all())
        piece, num_parallel = min(account.piece_seconds, account.balance), _num_parallel(batch)
        found = bins(
            files.all(),
            target_bytes=target_bytes_of(transaction.properties),
            # Several are rewritten at a time.
            max_work_bytes=account.affordable_bytes(piece) / num_parallel,
            # Else Delta merges small files after each commit.
            merges_small=not transaction.is_on(*_AUTO_COMPACT),
        )
        chosen = within(found, account.cost, piece=piece, balance=account.balance)
        if not chosen:
            upkeep.num_waiting = WAIT_BATCHES
            return {}
        with sessions.job_description(batch.spark, f"{batch.name}: compact"):
            compaction = compact(transaction, chosen, clock, max_parallel=num_parallel)
            _follow(batch, last, compaction, upkeep)
    finally:
        account.maintained(clock() - started, sum(one.work_bytes for one in chosen))
    return {
        "maintenance": "compacted",
        "compacted_files": len(compaction.removed),
        "compacted_bytes": compaction.num_bytes,
        "purged_rows": compaction.num_dead_rows,
    }


def _num_parallel(batch: MicroBatch) -> int:
    return max(1, min(MAX_PARALLEL, batch.spark.sparkContext.defaultParallelism))


def _meets_checkpoint(batch: MicroBatch, transaction: Transaction) -> bool:
    """Whether the batch has written a checkpoint of the log or computed the state for it, or a compaction would do so.

    Each takes as long as a batch or two: with a compaction beside it, a batch would take longer than readers of its
    figures expect, and between the two a compaction would let the state be computed twice. A later batch can compact as
    well. In a table with many checkpoints there would be no time left for compactions.
    """
    version, interval = transaction.version, interval_of(transaction)
    computes_state = version > 0 and version % interval in (0, interval - 1)
    return batch.caches.has_checkpoint_beside or (is_left_to_next_batch(transaction) and computes_state)


def _follow(batch: MicroBatch, last: StagedAttempt, compaction: Compaction, upkeep: Upkeep) -> None:
    """Bring what the sink keeps from batch to batch to the version of a compaction.

    The keys of the new files are read now, as those of any new file, and not by the next batch: it would wait for them,
    or scan the table if they are many.
    """
    caches, attempt = batch.caches, last.attempt
    transaction = last.transaction.table.begin()
    files = caches.active_files(transaction)
    upkeep.note_files(files.all())
    if not any(caches.index.has(file.path) for file in compaction.removed):
        return
    new = {file.path for file in compaction.added}
    config = attempt.reduction.changes.bound.config
    indexed = _Indexed(
        resolved=attempt.resolved,
        transaction=transaction,
        files=files,
        index=caches.index,
        order_by=config.sequence_columns if batch.config.keeps_order else (),
        batch=batch.name,
    )
    added = [file for file in files.all() if file.path in new]
    caches.index.make_room(num_indexed_rows(added), active_paths(indexed))
    if caches.index.has_room(num_indexed_rows(added)):
        add_files(indexed, added)


def _vacuumed(batch: MicroBatch, table: Table, upkeep: Upkeep) -> bool:
    started = clock()
    upkeep.vacuum_looked_ms = now_ms()
    try:
        with sessions.job_description(batch.spark, f"{batch.name}: VACUUM"):
            return vacuum_if_due(table, upkeep.vacuum_looked_ms)
    finally:
        upkeep.account.maintained(clock() - started)
