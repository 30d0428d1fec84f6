"""Remembers the last micro-batch that a table got, to notice a commit that another writer overwrote."""

from __future__ import annotations

import logging

from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.merged_batches import MergedBatches
from stream_merge.bridge.transaction import Transaction

logger: logging.Logger = logging.getLogger("stream_merge")


def last_applied(batch: MicroBatch, transaction: Transaction) -> int | None:
    """Return the last micro-batch that the table has got under the same application id, as far as that is known.

    A gap between that batch and this one is no sign of a loss: a function around the sink may skip micro-batches, and a
    router skips them for tables that have no rows in them.
    """
    app_id, of_table, batch_id = batch.caches.committed or ("", "", 0)
    if batch.identity is not None and (app_id, of_table) == (batch.identity.app_id, transaction.table_id):
        return batch_id
    noted = _notes_in_checkpoint(batch, transaction)
    return noted.last() if noted is not None else None


def remember_applied(batch: MicroBatch, transaction: Transaction) -> None:
    """Remember that the table has the batch, in this process and in the checkpoint."""
    if batch.identity is None:
        return
    batch.caches.committed = (batch.identity.app_id, transaction.table_id, batch.identity.batch_id)
    notes = _notes_in_checkpoint(batch, transaction)
    if notes is None:
        return
    try:
        notes.keep(batch.identity.batch_id)
    except JVM_ERRORS:
        # The batch is in the table: that its note is missing must not make it look like a failure.
        logger.warning("%s: committed, but the checkpoint could not take a note of it", batch.name, exc_info=True)


def _notes_in_checkpoint(batch: MicroBatch, transaction: Transaction) -> MergedBatches | None:
    """Return the checkpoint's notes, which are kept only where nothing but the user's word keeps other writers away."""
    if batch.identity is None or batch.query is None or not batch.config.single_writer:
        return None
    app_id, table_id, root = batch.identity.app_id, transaction.table_id, transaction.table.root
    return MergedBatches.of(batch.spark, batch.query.checkpoint, app_id, table_id, root)
