"""What the tests of single tables share: the merge most of them need, and ways to look at a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable, IdentityGenerator

from stream_merge import MergeSink, merge_sink
from stream_merge.tombstones.manifest import DOMAIN, TombstoneManifest
from tests.spark.delta_log import actions_of, latest_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def upsert(path: str, key: str = "id", **options: Any) -> MergeSink:
    """Return the sink that updates all rows that match and inserts the rest."""
    sink = merge_sink(path, on=f"target.`{key}` = source.`{key}`", **options)
    return sink.when_matched_update_all().when_not_matched_insert_all()


def create_computed(
    spark: SparkSession,
    path: str,
    columns: Mapping[str, str | tuple[str, str | IdentityGenerator]],
    *,
    partition_by: Sequence[str] = (),
    deletion_vectors: bool,
) -> str:
    """Create a table of which some columns are computed: their type, then the expression or the identity.

    By Delta's builder, since CREATE TABLE takes such columns of tables by path only from Delta 4.1 on.
    """
    builder = DeltaTable.create(spark).location(path).partitionedBy(*partition_by)
    for name, column in columns.items():
        kind, computed = (column, None) if isinstance(column, str) else column
        builder = builder.addColumn(name, kind, generatedAlwaysAs=computed)
    builder.property("delta.enableDeletionVectors", str(deletion_vectors).lower()).execute()
    return path


def kept_frames(spark: SparkSession) -> list[str]:
    """Return the names of what Spark keeps in memory, but for the snapshots of tables that Delta keeps."""
    rdds = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(spark.sparkContext._jsc.sc().getPersistentRDDs())
    return [str(rdd.name()) for rdd in rdds.values() if not str(rdd.name()).startswith("Delta Table State")]


def files_below(path: str) -> list[str]:
    """Return every file of a table's directory, log included."""
    return sorted(str(file.relative_to(path)) for file in Path(path).rglob("*") if file.is_file())


def change_rows(spark: SparkSession, path: str, version: int) -> list[tuple[Any, ...]]:
    """Return the change rows of one commit, the type of the change first, sorted by their text."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(path)
    rows = feed.drop("_commit_version", "_commit_timestamp").select("_change_type", *feed.columns[:-3]).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def recorded_state(path: str) -> TombstoneManifest:
    """Return what the newest commit that says so remembers of deletes."""
    for version in range(latest_version(path), -1, -1):
        for metadata in actions_of(path, version, "domainMetadata"):
            if metadata["domain"] == DOMAIN:
                return TombstoneManifest.from_json(metadata["configuration"])
    raise AssertionError(f"{path} remembers nothing")


def place_of(sequence: Any) -> tuple[Any, ...]:
    """Return a sort key for a sequence that came from Spark: struct by field, NULL first."""
    if sequence is None:
        return (0,)
    if isinstance(sequence, dict):
        return (1, *[place_of(part) for part in sequence.values()])
    return (1, sequence)
