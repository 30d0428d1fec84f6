"""Rows that cannot be merged go to a Delta table of their own, with the reason, exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.table import path_of
from stream_merge.source import null_key_condition


def set_aside(
    batch: DataFrame, quarantine: str, keys: Sequence[str], *, app_id: str | None, batch_id: int | None
) -> DataFrame:
    """Append the rows with a null key to the quarantine table and return the others.

    The append carries the batch's id, so that Delta skips it when the batch is replayed. It is committed before the merge: a
    row is never in neither table.

    Args:
        batch: The persisted batch.
        quarantine: Path or name of the table; created when missing.
        keys: The key columns.
        app_id: Application id of the batch; None outside a stream.
        batch_id: The batch's number; None outside a stream.
    """
    is_unmergeable = null_key_condition(keys)
    rejected = batch.where(is_unmergeable)
    if not rejected.isEmpty():
        reason = F.lit(f"NULL in a key ({', '.join(keys)})")
        described = rejected.select(
            reason.alias("reason"),
            F.lit(batch_id).cast("long").alias("batch_id"),
            F.current_timestamp().alias("quarantined_at"),
            F.to_json(F.struct(*[F.col(f"`{name.replace('`', '``')}`") for name in batch.columns])).alias("row"),
        )
        writer = described.write.format("delta").mode("append")
        if app_id is not None and batch_id is not None:
            writer = writer.option("txnAppId", f"{app_id}/quarantine").option("txnVersion", batch_id)
        path = path_of(quarantine)
        if path is None:
            writer.saveAsTable(quarantine)
        else:
            writer.save(path)
    return batch.where(~is_unmergeable)
