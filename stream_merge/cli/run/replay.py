"""Implements `stream-merge quarantine replay`: reads the records of quarantined rows again and merges them.

A row in the quarantine has lost what the sink needs, such as the record's key and headers, so the record itself is read
again from the source, by its topic, partition and offset. Only tables with a sequence are replayed: it keeps a row that
was set aside weeks ago from replacing a newer one, and it makes a replay that is repeated after a crash change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from stream_merge.batch.learning import completed
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.table import sql_name, table_exists
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import FilesSource, KafkaSource, Pipeline
from stream_merge.cli.query.failures import describe
from stream_merge.cli.query.registry import record_decoder
from stream_merge.cli.query.seen_sources import seen_sources
from stream_merge.cli.query.sources import OffsetRange, read_files, read_offsets
from stream_merge.cli.query.tables import (
    Decoders,
    FoundTable,
    find_table,
    is_single,
    known_tables,
    route_column,
    rows_of_target,
    sink_of,
)
from stream_merge.cli.query.topics import refuse, watched_topics
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.sink import MergeSink
from stream_merge.sql import quote
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from stream_merge import MergeResult
    from stream_merge.config import SinkConfig

logger: logging.Logger = logging.getLogger("stream_merge.cli")

_PLACE_TYPES = {"topic": "string", "partition": "int", "offset": "bigint"}
PLACE = tuple(_PLACE_TYPES)
"""What identifies a record."""

_IS_PLACED = " AND ".join(f"{quote(name)} IS NOT NULL" for name in PLACE)
_WIDEST_GAP = 10_000
"""Records between two wanted ones that are read and dropped rather than read around."""
_MAX_RANGES = 20
"""Ranges of a partition: each is a read of its own."""
_REPLAYED = RESERVED_PREFIX + "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to replay.

    Attributes:
        table: Path or name of one target; None for all.
        reason: A text that the reason of a row must contain; None for all rows.
        is_dry: Whether only to read.
        is_stopped: Whether the user says that the pipeline is stopped.
    """

    table: str | None = None
    reason: str | None = None
    is_dry: bool = False
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What was replayed into a table.

    Attributes:
        target: Path or name of the table.
        quarantine: Path or name of its quarantine.
        num_rows: The rows in the quarantine that were asked for.
        num_unplaced: Those of them that do not tell topic, partition and offset of their record.
        num_records: The records of the others.
        num_missing: Those of them that the source does not have any more.
        num_elsewhere: Those that do not lead to the table any more, or are about no row.
        results: The result of each merge: one for each name under which rows are routed to the table.
        is_dry: Whether nothing was merged.
    """

    target: str
    quarantine: str
    num_rows: int
    num_unplaced: int = 0
    num_records: int = 0
    num_missing: int = 0
    num_elsewhere: int = 0
    results: Sequence[MergeResult] = ()
    is_dry: bool = False

    def __str__(self) -> str:
        if not self.num_rows:
            return f"{self.target}: no such rows in {self.quarantine}."
        counts = {
            "inserted": sum(result.num_target_rows_inserted for result in self.results),
            "updated": sum(result.num_target_rows_updated for result in self.results),
            "deleted": sum(result.num_target_rows_deleted for result in self.results),
            "set aside again": sum(result.num_quarantined_rows for result in self.results),
        }
        num_read = self.num_records - self.num_missing
        done = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        parts = [
            f"{self.target}: {self.num_rows:,} rows in {self.quarantine}",
            f"{num_read:,} records can be read again"
            if self.is_dry
            else f"{num_read:,} records were read again: {done}",
        ]
        if self.num_missing:
            parts.append(f"the source has {self.num_missing:,} records no more, and their rows stay")
        if self.num_elsewhere:
            parts.append(f"{self.num_elsewhere:,} of them do not lead to this table any more, and their rows stay")
        if self.num_unplaced:
            parts.append(f"{self.num_unplaced:,} rows do not tell topic, partition and offset, and stay")
        return "; ".join(parts) + "."


def replay(spark: SparkSession, pipeline: Pipeline, request: Request) -> Iterator[Replayed]:
    """Replay the quarantined rows of a pipeline's tables, and yield what was done, table by table.

    The records are merged first, and then their rows are removed from the quarantine. After a crash in between, the
    next replay merges them again, which changes nothing, and removes them.

    Args:
        spark: The session.
        pipeline: The pipeline; it may be running.
        request: What to replay.

    Raises:
        PipelineError: There is no such table, the source cannot be read by topic, partition and offset, a table has no
            sequence, or a merge failed.
    """
    tables = _tables(spark, pipeline, request)
    with watched_topics(spark, pipeline) as topics:
        if topics is not None:
            refuse(topics.made_anew(()))
    for table in tables:
        yield _replayed(spark, pipeline, table, request)


def _tables(spark: SparkSession, pipeline: Pipeline, request: Request) -> list[FoundTable]:
    source = pipeline.source
    if not isinstance(source, (KafkaSource, FilesSource)):
        raise PipelineError(
            f'source.format = "{source.format}" has no records with topic, partition and offset, so quarantined rows '
            "cannot be read again; run a backfill instead.",
            ExitCode.USAGE,
        )
    known = known_tables(pipeline, seen_sources(spark, pipeline))
    asked = [each for each in known if request.table is None or table_key(each.target) == table_key(request.table)]
    if not asked:
        targets = ", ".join(each.target for each in known)
        raise PipelineError(f"The file has no table {request.table}; it has {targets}.", ExitCode.USAGE)
    tables = [each for each in asked if each.quarantine is not None]
    if not tables:
        raise PipelineError(f"{', '.join(each.target for each in asked)}: has no quarantine.", ExitCode.USAGE)
    for each in tables:
        if each.settings.single_writer and not request.is_stopped:
            raise PipelineError(
                f"{each.target}: single_writer says that no other process writes to it. Stop the pipeline, and say so "
                "with --stopped.",
                ExitCode.USAGE,
            )
    return tables


def _replayed(spark: SparkSession, pipeline: Pipeline, table: FoundTable, request: Request) -> Replayed:
    try:
        return _replay_table(spark, pipeline, table, request)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(f"{table.target}: {describe(error).sentence}", ExitCode.FAILED) from error


def _replay_table(spark: SparkSession, pipeline: Pipeline, table: FoundTable, request: Request) -> Replayed:
    assert table.quarantine is not None
    told = Replayed(target=table.target, quarantine=table.quarantine, num_rows=0, is_dry=request.is_dry)
    if not table_exists(spark, table.quarantine):
        return told
    of_table = rows_of_target(spark.read.table(sql_name(spark, table.quarantine)), table.target)
    is_asked = F.lit(True) if request.reason is None else F.contains("reason", F.lit(request.reason))
    # Kept, since the replay itself may add rows.
    with materialized(of_table.select(*PLACE, "target", "quarantined_at", is_asked.alias("is_asked"))) as rows:
        asked = rows.where("is_asked")
        places = asked.where(_IS_PLACED).select(*PLACE).distinct()
        told = replace(
            told,
            num_rows=asked.count(),
            num_unplaced=asked.where(f"NOT ({_IS_PLACED})").count(),
            num_records=places.count(),
        )
        if not told.num_records:
            return told
        with materialized(_records(spark, pipeline, places)) as records:
            num_found = _places_of(records).count()
            told = replace(told, num_missing=told.num_records - num_found)
            if request.is_dry or not num_found:
                return told
            merged = list(_merge(pipeline, table, records))
            # Only their places: decoders add columns.
            done = reduce(DataFrame.union, [_places_of(own) for own, _ in merged], _places_of(records.limit(0)))
            told = replace(told, num_elsewhere=num_found - done.count(), results=tuple(result for _, result in merged))
            # All rows of a record, even if only one of them has the reason that was asked for.
            _remove(spark, table, rows.join(done, [*PLACE], "left_semi"))
    return told


def _places_of(records: DataFrame) -> DataFrame:
    return records.select(*[F.col(name).cast(kind) for name, kind in _PLACE_TYPES.items()]).distinct()


def _records(spark: SparkSession, pipeline: Pipeline, places: DataFrame) -> DataFrame:
    """Return the records at these places, as far as the source still has them.

    Raises:
        PipelineError: The source's rows do not tell their places.
    """
    source = pipeline.source
    if isinstance(source, KafkaSource):
        records = read_offsets(spark, source, find_ranges(places))
    else:
        assert isinstance(source, FilesSource)
        records = read_files(spark, source)
    missing = {*PLACE} - {*records.columns}
    if missing:
        raise PipelineError(
            f"The source has no column {', '.join(sorted(missing))}, so quarantined rows cannot be read again; run a "
            "backfill instead.",
            ExitCode.USAGE,
        )
    return records.join(places, [*PLACE], "left_semi")


def find_ranges(places: DataFrame) -> list[OffsetRange]:
    """Return ranges of offsets that contain all places and not much else.

    Args:
        places: Rows with topic, partition and offset.
    """
    part = Window.partitionBy("topic", "partition")
    gap = F.col("offset") - F.lag("offset").over(part.orderBy("offset"))
    gaps = places.select(*PLACE, gap.alias("gap"))
    # Of many wide gaps only the widest are read around.
    rank = F.row_number().over(part.orderBy(F.desc_nulls_last("gap"), "offset"))
    is_start: Column = (F.col("gap") > _WIDEST_GAP) & (F.col("rank") < _MAX_RANGES)
    number = F.count(F.when(is_start, 1)).over(part.orderBy("offset"))
    numbered = gaps.withColumn("rank", rank).withColumn("number", number)
    ranges = numbered.groupBy("topic", "partition", "number").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    return [
        OffsetRange(topic=row["topic"], partition=row["partition"], first=row["first"], last=row["last"])
        for row in ranges.orderBy("topic", "partition", "number").collect()
    ]


def _merge(pipeline: Pipeline, table: FoundTable, records: DataFrame) -> Iterator[tuple[DataFrame, MergeResult]]:
    """Merge what leads to a table, and yield the records of each merge with its result."""
    decode = record_decoder(pipeline)
    decoders = Decoders(pipeline)
    for name, found, own in _routed(pipeline, table, records if decode is None else decode(records)):
        rows = decoders.decoder_of(name)(own)
        if rows is not None:
            # The share of a micro-batch says nothing about rows that were all set aside before.
            config = replace(sink_of(pipeline, found).config, max_quarantined_share=1.0, maintenance=False)
            _check_order(config, rows)
            yield own, MergeSink(config).merge(rows)


def _routed(pipeline: Pipeline, table: FoundTable, records: DataFrame) -> Iterator[tuple[str, FoundTable, DataFrame]]:
    """Yield each name that leads to the table, with the section that takes it, and its records."""
    if is_single(pipeline):
        yield pipeline.source.format, table, records
        return
    by = route_column(pipeline, records)
    for row in records.select(by.alias("name")).distinct().orderBy("name").collect():
        found = find_table(pipeline, row["name"]) if row["name"] is not None else None
        if found is not None and table_key(found.target) == table_key(table.target):
            yield row["name"], found, records.where(by == row["name"])


def _check_order(config: SinkConfig, rows: DataFrame) -> None:
    if not completed(config, rows).sequence_by:
        raise PipelineError(
            f"{config.target} has no sequence_by, so a row that was set aside could replace a newer one; merge "
            "the rows that you want by hand.",
            ExitCode.USAGE,
        )


def _remove(spark: SparkSession, table: FoundTable, done: DataFrame) -> None:
    """Remove rows from the quarantine; what was set aside since they were read stays."""
    assert table.quarantine is not None
    columns = [*PLACE, "target", "quarantined_at"]
    done.select(*columns).distinct().createOrReplaceTempView(_REPLAYED)
    same = " AND ".join(f"q.{quote(name)} = r.{quote(name)}" for name in columns)
    try:
        spark.sql(
            f"MERGE INTO {sql_name(spark, table.quarantine)} AS q USING {_REPLAYED} AS r ON {same} "
            "WHEN MATCHED THEN DELETE"
        )
    finally:
        spark.catalog.dropTempView(_REPLAYED)
