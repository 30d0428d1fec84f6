"""Reads the change data feed of a Delta table as changes: their order, and which of them are deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream_merge.cli.file.pipeline import DeltaSource, Source
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
FEED_DELETE = "_change_type IN ('delete', 'update_preimage')"
"""The deletes of a feed. The preimage of an update is a delete of its key, which the postimage in the same commit
undoes, unless the update changed the key."""
FEED_ORDER = ("_commit_version", "IF(_change_type IN ('insert', 'update_postimage'), 1, 0)")
"""The order of a feed's changes."""

_IS_WRITTEN = f"{RESERVED_PREFIX}is_written"


def is_feed(source: Source) -> bool:
    """Return whether a source is the change data feed of a table."""
    return isinstance(source, DeltaSource) and source.change_feed


def without_undone_deletes(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a feed without deletes of keys that the same commit also writes.

    In the feed's own order these deletes come first, and do nothing. In another order a row before its update may be
    the newer one: the row would be deleted that the commit has left in the table. A micro-batch has whole commits.

    Args:
        rows: The rows.
        keys: The columns that identify a row.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_key = Window.partitionBy("_commit_version", *map(quote, keys))
    is_written = F.max(~F.expr(FEED_DELETE)).over(of_key)
    marked = rows.withColumn(_IS_WRITTEN, is_written)
    return marked.where(~(F.expr(FEED_DELETE) & F.col(_IS_WRITTEN))).drop(_IS_WRITTEN)
