"""Implements `stream-merge explain`: says how a source's rows would be merged into each table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

from stream_merge.batch.learning import completed
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import KafkaSource, Pipeline, Source
from stream_merge.cli.query.failures import describe
from stream_merge.cli.query.registry import record_decoder
from stream_merge.cli.query.sources import read_some
from stream_merge.cli.query.tables import Decoders, find_table, is_single, route_column, sink_of
from stream_merge.errors import TargetNotFoundError
from stream_merge.sink import MergeSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def explain(spark: SparkSession, pipeline: Pipeline, table: str | None, num_rows: int) -> Iterator[str]:
    """Yield the plan of the merge into each table, one text a table.

    Args:
        spark: The session.
        pipeline: The pipeline.
        table: Target or source of one table, as the file or a message names it; all tables by default.
        num_rows: How many rows of the source, or of each of its topics, to sample.

    Raises:
        PipelineError: The source cannot be read, there is no such table, or the merge is not possible.
    """
    try:
        rows = _sample(spark, pipeline, num_rows)
        names = _sources_in(rows, pipeline)
    except Exception as error:
        failure = describe(error)
        raise PipelineError(failure.sentence, ExitCode.CANNOT_START) from error
    if table is not None and not (
        any(table in (each.target, each.source) for each in pipeline.tables)
        or any(_is_asked(table, pipeline, name) for name in names)
    ):
        found = [each.target for each in (find_table(pipeline, name) for name in names) if each is not None]
        targets = ", ".join(dict.fromkeys([*(each.target for each in pipeline.tables), *found]))
        raise PipelineError(f"The file has no table {table}; it has {targets}.", ExitCode.USAGE)
    return _explained(rows, pipeline, table, names)


def _is_asked(table: str, pipeline: Pipeline, name: str) -> bool:
    """Whether a table is the one that takes the rows of a source with this name."""
    found = find_table(pipeline, name)
    return found is not None and table in (name, found.target, found.settings.target, found.settings.source)


def _sample(spark: SparkSession, pipeline: Pipeline, num_rows: int) -> DataFrame:
    """Return a fixed sample of the source; each read of the source itself could return other rows."""
    from pyspark.sql import DataFrame

    source = pipeline.source
    parts: list[Source] = [source]
    if isinstance(source, KafkaSource) and source.topics:
        # One read of all topics would return rows of the first one only.
        parts = [source.model_copy(update={"topics": [topic]}) for topic in source.topics]
    rows = reduce(DataFrame.union, [read_some(spark, part, num_rows) for part in parts])
    sample = spark.createDataFrame(rows.collect(), rows.schema)
    decode = record_decoder(pipeline)
    return sample if decode is None else decode(sample)


def _sources_in(rows: DataFrame, pipeline: Pipeline) -> list[str]:
    if is_single(pipeline):
        return [pipeline.source.format]
    names = rows.select(route_column(pipeline, rows).alias("name")).distinct().collect()
    return sorted(row["name"] for row in names if row["name"] is not None)


def _explained(rows: DataFrame, pipeline: Pipeline, table: str | None, names: list[str]) -> Iterator[str]:
    decoders = Decoders(pipeline)
    seen: set[int] = set()
    for name in names:
        found = find_table(pipeline, name)
        if found is None:
            yield f"{name}: no table takes its rows."
            continue
        seen.add(found.number)
        if table is not None and not _is_asked(table, pipeline, name):
            continue
        own = rows if is_single(pipeline) else rows.where(route_column(pipeline, rows) == name)
        try:
            yield _explain_table(sink_of(pipeline, found), decoders, name, own)
        except Exception as error:
            raise PipelineError(f"{found.target}: {describe(error).sentence}", ExitCode.FAILED) from error
    for number, settings in enumerate(pipeline.tables):
        if number not in seen and (table is None or table in (settings.target, settings.source)):
            yield f"{settings.target}: no row of the sample is from {settings.source}; --rows reads more."


def _explain_table(sink: MergeSink, decoders: Decoders, name: str, rows: DataFrame) -> str:
    changes = decoders.decoder_of(name)(rows)
    if changes is None:
        return f"{sink.config.target}: no record of the sample is about a row; --rows reads more."
    try:
        return sink.explain(changes)
    except TargetNotFoundError:
        if not sink.config.create_if_missing:
            raise
        left_out = set(completed(sink.config, changes).except_columns)
        columns = ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in changes.schema if field.name not in left_out
        )
        return f"{sink.config.target}: the table does not exist; the first micro-batch creates it with {columns}."
