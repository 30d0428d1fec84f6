"""The streaming query of the demo: records in, one `merge_sink` for each table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from demo.replay import Replay
from demo.shop import OLD_KEY, RECORD_SCHEMA, TABLES, UNAVAILABLE, CapturedTable, decode_changes
from stream_merge import MergeResult, MergeSink, merge_sink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

KEY_MOVES = 2
"""How often a row may change its key within one micro-batch: two rows swap their keys by way of a third."""


def create_tables(spark: SparkSession, root: Path) -> None:
    """Create the Delta tables that are missing."""
    for table in TABLES:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{root / table.name}` ({table.schema}) USING delta "
            f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(table.has_deletion_vectors).lower()}')"
        )


def make_sinks(root: Path, on_result: Callable[[MergeResult], None]) -> dict[str, MergeSink]:
    """Return the sink of each table."""
    return {table.name: _make_sink(root, table, on_result) for table in TABLES}


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
    sinks: Mapping[str, MergeSink],
    *,
    checkpoint: Path,
    on_micro_batch: Callable[[int, Mapping[str, int]], None],
) -> StreamingQuery:
    """Start the query over all files of the replay, one file a micro-batch.

    Args:
        spark: The session.
        replay: The log.
        sinks: The sink of each table.
        checkpoint: The query's checkpoint.
        on_micro_batch: Called after each micro-batch with its id and the number of changes of each table.
    """

    def merge_changes(records: DataFrame, batch_id: int) -> None:
        records.persist()
        try:
            num_changes = {}
            for table, summary in _summarize(records):
                changes = decode_changes(records, table)
                target = records.sparkSession.read.format("delta").load(sinks[table.name].config.target)
                if summary["has_truncate"]:
                    changes = replace_truncate_by_deletes(changes, target, table)
                if summary["has_unavailable"]:
                    changes = carry_values(changes, table)
                if summary["has_unavailable_in_move"]:
                    changes = follow_key_moves(changes, target, table)
                sinks[table.name](changes, batch_id)
                num_changes[table.name] = summary["num_changes"]
            on_micro_batch(batch_id, num_changes)
        finally:
            records.unpersist()

    records = spark.readStream.schema(RECORD_SCHEMA).option("maxFilesPerTrigger", 1).json(str(replay.directory))
    return (
        records.writeStream.foreachBatch(merge_changes)
        .queryName("stream_merge demo")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _summarize(records: DataFrame) -> list[tuple[CapturedTable, dict[str, int]]]:
    """Return for each table that the micro-batch changes what there is to be done for it."""
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
    summaries = {row["name"]: row.asDict() for row in rows}
    return [(table, summaries[table.name]) for table in TABLES if table.name in summaries]


def replace_truncate_by_deletes(changes: DataFrame, target: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes with a delete for each row of the target in place of a TRUNCATE, which has no key."""
    truncate = changes.where("op = 't'").agg(F.max("lsn").alias("truncate_lsn"))
    survivors = changes.crossJoin(truncate).where("op <> 't' AND lsn > truncate_lsn").drop("truncate_lsn")
    deletes = target.select(*table.keys).crossJoin(truncate)
    deletes = deletes.withColumnRenamed("truncate_lsn", "lsn").withColumn("op", F.lit("d"))
    return survivors.unionByName(deletes, allowMissingColumns=True)


def carry_values(changes: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes with values in place of placeholders where an earlier change of the row in this micro-batch has them.

    A delete is given the row's values too. A create begins the row anew; `life` counts them.
    """
    of_key = Window.partitionBy(*table.keys).orderBy("lsn")
    of_row = Window.partitionBy(*table.keys, "life").orderBy("lsn")
    carried = {}
    for name, placeholder in table.placeholders.items():
        # A known value is wrapped, so that a NULL that was sent differs from a value that was not.
        known = F.expr(f"IF({name} <=> {placeholder}, NULL, struct({name} AS value))")
        last = F.last(known, ignorenulls=True).over(of_row)
        carried[name] = F.when(last.isNull(), F.expr(placeholder)).otherwise(last["value"])
    return changes.withColumn("life", F.count_if(F.col("op") == "c").over(of_key)).withColumns(carried)


def follow_key_moves(changes: DataFrame, target: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes with the values of rows that got another key, which are under the old one.

    To Debezium a move is a delete and a create of one lsn. Moves of rows with large values are few, so the driver follows
    them, through several where a row moves twice. Where the old row is gone from the table, the move was delivered again:
    the placeholder stays, and the row there is newer, or its delete is delivered again as well.
    """
    names = list(table.placeholders)
    key = F.struct(*table.keys)
    is_unknown = {name: F.expr(f"{name} <=> {placeholder}") for name, placeholder in table.placeholders.items()}
    is_incomplete = reduce(Column.__or__, is_unknown.values())
    creates = changes.where(F.col("old_key").isNotNull() & is_incomplete).select(key.alias("key"), "old_key", "lsn")
    flags = [is_unknown[name].alias(f"no_{name}") for name in names]
    departures = changes.where("op = 'd'").select(key.alias("old_key"), "lsn", "life", *names, *flags)
    moves = creates.join(departures, ["old_key", "lsn"]).dropDuplicates(["key", "lsn"]).sort("lsn").collect()

    old_keys = changes.sparkSession.createDataFrame(
        [move.old_key for move in moves], target.select(*table.keys).schema
    )
    old_rows = target.join(F.broadcast(old_keys.distinct()), list(table.keys)).select(key.alias("key"), "lsn", *names)
    in_target = {row.key: row for row in old_rows.collect()}
    moved: dict[Row, dict[str, Any]] = {}
    for move in moves:
        old_row = in_target.get(move.old_key)
        # A row that came by a move itself has its values there; an older one of its key in the table is another row.
        earlier = moved.get(move.old_key, {}) if move.life else {}
        if not move.life and old_row is not None and old_row.lsn < move.lsn:
            earlier = old_row.asDict()
        moved[move.key] = {name: earlier.get(name, move[name]) if move[f"no_{name}"] else move[name] for name in names}
        moved[move.key]["moved_lsn"] = move.lsn

    moved_columns = target.select(*table.keys, *(F.col(name).alias(f"moved_{name}") for name in names), "lsn").schema
    rows = changes.sparkSession.createDataFrame(
        [(*moved_key, *values.values()) for moved_key, values in moved.items()], moved_columns
    )
    joined = changes.join(F.broadcast(rows), [*table.keys, "lsn"], how="left")
    return carry_values(_fill(joined, table, source="moved"), table)


def _fill(changes: DataFrame, table: CapturedTable, *, source: str) -> DataFrame:
    return changes


