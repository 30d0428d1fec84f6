"""Writes the checkpoint of a table's log beside a micro-batch, instead of after the commit of the one before.

Delta writes one after every tenth commit, and the commit waits for it: it takes as long as two or three micro-batches.
Here the next micro-batch of the same sink writes it while it merges. The log itself tells that a checkpoint is due, so
if the process ends before, the next one sees it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.bridge.transaction import Transaction

logger: logging.Logger = logging.getLogger("stream_merge")

DEFAULT_INTERVAL = 10
"""Delta's default. Tables that ask for more checkpoints get them with the commits."""


@contextmanager
def checkpointed_beside(batch: MicroBatch, transaction: Transaction) -> Iterator[None]:
    """Write a checkpoint of a version during the block, if one is due. If that fails, the block does not.

    Args:
        batch: The batch.
        transaction: The version that it reads.
    """
    caches = batch.caches
    caches.has_checkpoint_beside = _is_due(batch, transaction)
    if not caches.has_checkpoint_beside:
        yield
        return
    caches.checkpoint_tried, caches.owes_checkpoint = transaction.version, False
    task = BackgroundTask(batch.spark, f"{batch.name}: checkpoint of the log", transaction.write_checkpoint)
    task.start()
    try:
        yield
    finally:
        with batch.timer.phase("commit"):
            try:
                task.result()
            except Exception:
                logger.warning(
                    "%s: version %d got no checkpoint of the log; the next one is written in %d commits",
                    batch.name,
                    transaction.version,
                    interval_of(transaction),
                    exc_info=True,
                )


def is_left_to_next_batch(transaction: Transaction) -> bool:
    """Return whether a commit to the table writes no checkpoint, since the next batch does."""
    return interval_of(transaction) >= DEFAULT_INTERVAL


def note_commit(batch: MicroBatch, transaction: Transaction, version: int) -> None:
    """Take note of a commit of the batch, to which a checkpoint may belong.

    Args:
        batch: The batch.
        transaction: The version that it read.
        version: The version that it made.
    """
    if is_left_to_next_batch(transaction) and version % interval_of(transaction) == 0:
        batch.caches.owes_checkpoint = True


def interval_of(transaction: Transaction) -> int:
    """Return after how many commits the table's log gets a checkpoint."""
    return int(transaction.properties.get("delta.checkpointInterval", DEFAULT_INTERVAL))


def _is_due(batch: MicroBatch, transaction: Transaction) -> bool:
    interval, caches = interval_of(transaction), batch.caches
    # What has failed is not tried again in every batch. Another table in the same place begins with low versions.
    is_too_early = caches.checkpoint_tried <= transaction.version < caches.checkpoint_tried + interval
    if is_too_early or not is_left_to_next_batch(transaction):
        return False
    # Where others write to the table as well, whoever has made the tenth commit writes it: two at a time would not harm
    # the log, but fill theirs with warnings. It may have ended, as the process before this one has.
    is_own = caches.owes_checkpoint or caches.committed is None
    return transaction.num_commits_since_checkpoint >= (interval if is_own else interval * 3 // 2)
