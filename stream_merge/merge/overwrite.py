"""Implements overwrite, for output mode Complete: replaces all files with the batch."""

from __future__ import annotations

from pyspark.sql import DataFrame

from stream_merge.bridge.transaction import Transaction, file_actions
from stream_merge.merge.job import Staged, count_partitions, count_removed
from stream_merge.steps import reached
from stream_merge.table.files import DataFile


def stage_overwrite(transaction: Transaction, batch: DataFrame, *, overwrite_schema: bool) -> Staged:
    """Write the batch and remove all files with Delta's own command, which enforces the table's schema.

    Args:
        transaction: The open transaction.
        batch: The whole result of the query.
        overwrite_schema: Whether the batch's schema replaces the table's.

    Raises:
        SchemaMismatchError: The batch does not fit the table and may not replace its schema.
    """
    reached("writing")
    new_files = transaction.overwrite(batch, overwrite_schema=overwrite_schema)
    actions = file_actions(transaction.jvm, new_files)
    adds = [DataFile(action["add"]) for action in actions if "add" in action]
    removes = [DataFile(action["remove"]) for action in actions if "remove" in action]
    rows = [file.num_physical_rows for file in adds]
    num_rows = batch.count() if None in rows else sum(n for n in rows if n is not None)
    staged = Staged(
        counts={
            "num_source_rows": num_rows,
            "num_target_rows_inserted": num_rows,
            "num_target_files_added": len(adds),
            "num_target_bytes_added": sum(file.size for file in adds),
            "num_target_partitions_added_to": count_partitions(adds),
            "num_overwritten_files": len(removes),
            **count_removed(removes),
        }
    )
    staged.changes.new_files.append(new_files)
    return staged
