"""Begins to write the new rows of a batch as soon as it is evaluated, beside the job that measures it.

What is measured then may show that other rows have to be written, or none: the files are deleted again. So this is done
only if the batch before has written what was foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.batch.reduce import Reduction
from stream_merge.bridge.materialized import num_materialized
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.bridge.transaction import Transaction
from stream_merge.merge.job import ROWS_PER_TASK, inserted_rows, num_new_files
from stream_merge.merge.merge_on_read import may_write_ahead
from stream_merge.plan import MergePlan, Strategy
from stream_merge.steps import reached


@dataclass(slots=True)
class WriteAhead:
    """New files that are being written by a thread of their own.

    Attributes:
        transaction: The transaction that writes them.
        task: Returns their actions.
    """

    transaction: Transaction
    task: BackgroundTask[Any]
    _is_taken: bool = field(default=False, init=False)

    def result(self) -> Any:
        """Wait for the files, and return their actions: from now on they are the caller's."""
        self._is_taken = True
        return self.task.result()

    def close(self) -> None:
        """Wait for the files, and delete them if nobody has taken them."""
        if self._is_taken:
            return
        try:
            files = self.task.result()
        except Exception:  # noqa: BLE001 - nothing was written, and whoever writes the rows meets the error again
            return
        self.transaction.delete_new_files(files)


def plan_ahead(reduction: Reduction, plan: MergePlan, rows: DataFrame) -> DataFrame | None:
    """Return the new rows of a batch, if they are probably those that are foreseen; else None.

    Args:
        reduction: The batch.
        plan: The strategy.
        rows: Its rows, which may still be being evaluated.
    """
    if plan.strategy is not Strategy.MERGE_ON_READ or not _is_foreseen(reduction):
        return None
    resolved = reduction.measured_for

    def new(source: DataFrame) -> DataFrame:
        # Few rows make one file, however many they are exactly.
        return inserted_rows(resolved, source).coalesce(1)

    return resolved.over_source("new rows ahead", new, rows)


@contextmanager
def written_ahead(reduction: Reduction, rows: DataFrame, new: DataFrame | None) -> Iterator[WriteAhead | None]:
    """Write the new rows of a batch during the block, if one file holds them.

    Args:
        reduction: The batch.
        rows: Its evaluated rows.
        new: What `plan_ahead` returned.

    Returns:
        The files; None if nothing is written. If nobody has taken them at the end of the block, they are deleted.
    """
    if new is None or not _is_one_file(reduction, rows):
        yield None
        return
    batch, transaction = reduction.batch, reduction.transaction
    reached("writing")
    ahead = WriteAhead(transaction, BackgroundTask(batch.spark, f"{batch.name}: write", lambda: transaction.write(new)))
    ahead.task.start()
    try:
        yield ahead
    finally:
        ahead.close()


def _is_foreseen(reduction: Reduction) -> bool:
    batch, config, store = reduction.batch, reduction.changes.bound.config, reduction.store
    # After a batch that met newer rows nothing is written ahead: it has written what depended on the target.
    if not batch.caches.writes_ahead or config.merge_schema:
        return False
    transaction, resolved = reduction.transaction, reduction.measured_for
    if not may_write_ahead(resolved, transaction, keeps_order=config.keeps_order, skip_unchanged=config.skip_unchanged):
        return False
    is_by_column = reduction.changes.partial is not None and reduction.whole_rows is None
    if is_by_column or reduction.changes.truncates is not None:
        return False
    return store is None or (store.state.truncated is None and not store.reach.likely(store.files))


def _is_one_file(reduction: Reduction, rows: DataFrame) -> bool:
    batch, num_rows = reduction.batch, num_materialized(rows)
    files = batch.caches.active_files(reduction.transaction)
    return num_rows is not None and 0 < num_rows < ROWS_PER_TASK and num_new_files(files, batch.spark, num_rows) == 1
