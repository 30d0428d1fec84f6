"""The streaming query of the demo: records in, one `merge_sink` for each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from demo.replay import Replay
from demo.shop import OLD_KEY, RECORD_SCHEMA, UNAVAILABLE, CapturedTable, decode_changes
from demo.toast import carry_values, follow_key_moves
from stream_merge import MergeResult, MergeSink, merge_sink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def create_tables(spark: SparkSession, root: Path, tables: Iterable[CapturedTable]) -> None:
    """Create the Delta tables that are missing."""
    for table in tables:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{root / table.name}` ({table.schema}) USING delta "
            f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(table.has_deletion_vectors).lower()}')"
        )


def make_sinks(
    root: Path, tables: Iterable[CapturedTable], on_result: Callable[[MergeResult], None]
) -> list[tuple[CapturedTable, MergeSink]]:
    """Return the tables, each with its sink."""
    return [(table, _make_sink(root, table, on_result)) for table in tables]


def _make_sink(root: Path, table: CapturedTable, on_result: Callable[[MergeResult], None]) -> MergeSink:
    path, keys = str(root / table.name), list(table.keys)
    if not table.placeholders:
        # Keys, order and deletes are all it takes.
        return merge_sink(path, keys=keys, sequence_by="lsn", delete_when="op = 'd'", on_result=on_result)
    values = {name: f"source.{name}" for name in (*keys, *table.columns, "lsn")}
    for name, placeholder in table.placeholders.items():
        values[name] = f"CASE WHEN source.{name} = {placeholder} THEN target.{name} ELSE source.{name} END"
    return (
        merge_sink(path, keys=keys, sequence_by="lsn", on_result=on_result)
        .when_matched_delete(condition="source.op = 'd' AND source.lsn > target.lsn")
        .when_matched_update(set=values, condition="source.op <> 'd' AND source.lsn > target.lsn")
        .when_not_matched_insert(condition="source.op <> 'd'")
    )


def start_query(
    spark: SparkSession,
    replay: Replay,
    sinks: Sequence[tuple[CapturedTable, MergeSink]],
    *,
    checkpoint: Path,
    on_micro_batch: Callable[[int, Mapping[str, int]], None],
) -> StreamingQuery:
    """Start the query over all files of the replay, one file a micro-batch.

    Args:
        spark: The session.
        replay: The log.
        sinks: The tables, each with its sink.
        checkpoint: The query's checkpoint.
        on_micro_batch: Called after each micro-batch with its id and the number of changes of each table.
    """

    def merge_changes(records: DataFrame, batch_id: int) -> None:
        cached = [records.persist()]
        try:
            num_changes = {}
            summaries = _summarize(records)
            for table, sink in sinks:
                if table.name not in summaries:
                    continue
                summary = summaries[table.name]
                changes = decode_changes(records, table)
                target = records.sparkSession.read.format("delta").load(sink.config.target)
                if summary["has_truncate"]:
                    changes = replace_truncate_by_deletes(changes, target, table)
                if summary["has_unavailable"]:
                    changes = carry_values(changes, table)
                if summary["has_unavailable_in_move"]:
                    cached.append(changes.persist())
                    changes = follow_key_moves(changes, target, table)
                sink(changes.select(*table.keys, *table.columns, "lsn", "op"), batch_id)
                num_changes[table.name] = summary["num_changes"]
            on_micro_batch(batch_id, num_changes)
        finally:
            for frame in cached:
                frame.unpersist()

    records = spark.readStream.schema(RECORD_SCHEMA).option("maxFilesPerTrigger", 1).json(str(replay.directory))
    return (
        records.writeStream.foreachBatch(merge_changes)
        .queryName("stream_merge demo")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _summarize(records: DataFrame) -> dict[str, dict[str, int]]:
    """Return for each table that the micro-batch changes, by its name, what there is to be done for it."""
    has_unavailable = F.col("value").contains(UNAVAILABLE)
    rows = (
        records.where("value IS NOT NULL")
        .groupBy(F.substring_index("topic", ".", -1).alias("name"))
        .agg(
            F.count("*").alias("num_changes"),
            F.max(F.get_json_object("value", "$.op") == "t").alias("has_truncate"),
            F.max(has_unavailable).alias("has_unavailable"),
            F.max(has_unavailable & F.expr(OLD_KEY).isNotNull()).alias("has_unavailable_in_move"),
        )
        .collect()
    )
    return {row["name"]: row.asDict() for row in rows}


def replace_truncate_by_deletes(changes: DataFrame, target: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes with a delete for each row of the target in place of a TRUNCATE, which has no key."""
    truncate = changes.where("op = 't'").agg(F.max("lsn").alias("truncate_lsn"))
    survivors = changes.crossJoin(truncate).where("op <> 't' AND lsn > truncate_lsn").drop("truncate_lsn")
    deletes = target.select(*table.keys).crossJoin(truncate)
    deletes = deletes.withColumnRenamed("truncate_lsn", "lsn").withColumn("op", F.lit("d"))
    return survivors.unionByName(deletes, allowMissingColumns=True)
