"""What the tests of single tables share: the merge most of them need, and ways to look at a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge import MergeSink, merge_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def upsert(path: str, key: str = "id", **options: Any) -> MergeSink:
    """Return the sink that updates all rows that match and inserts the rest."""
    sink = merge_sink(path, on=f"target.`{key}` = source.`{key}`", **options)
    return sink.when_matched_update_all().when_not_matched_insert_all()


def files_below(path: str) -> list[str]:
    """Return every file of a table's directory, log included."""
    return sorted(str(file.relative_to(path)) for file in Path(path).rglob("*") if file.is_file())


def change_rows(spark: SparkSession, path: str, version: int) -> list[tuple[Any, ...]]:
    """Return the change rows of one commit, the type of the change first, sorted by their text."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(path)
    rows = feed.drop("_commit_version", "_commit_timestamp").select("_change_type", *feed.columns[:-3]).collect()
    return sorted((tuple(row) for row in rows), key=repr)
