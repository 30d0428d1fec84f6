"""Turns `[[tables]]` into one sink or a router, preceded by the decoding."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from stream_merge import MergeResult, MergeRouter, MergeSink, merge_router, merge_sink
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import PATTERN_PREFIX, KafkaSource, Pipeline, TableSettings
from stream_merge.cli.query.change_feed import is_feed
from stream_merge.cli.query.registry import record_decoder
from stream_merge.cli.query.seen_sources import SeenSources
from stream_merge.cli.query.sink_options import sink_options
from stream_merge.cli.query.topics import named_topics
from stream_merge.errors import ConfigError
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from stream_merge.cli.query.decoding import Decoder

logger: logging.Logger = logging.getLogger("stream_merge.cli")

OnResult: TypeAlias = Callable[[MergeResult], None]


def rows_of_target(quarantined: DataFrame, target: str) -> DataFrame:
    """Return the rows of a quarantine table that a target's sink has set aside, however the target was spelled."""
    from pyspark.sql import functions as F

    spellings = [row["target"] for row in quarantined.select("target").distinct().collect()]
    return quarantined.where(F.col("target").isin([each for each in spellings if table_key(each) == table_key(target)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """The table that takes the rows of a source.

    Attributes:
        number: Its position among the tables of the file, from 0.
        settings: Its section.
        target: Its path or name, with placeholders filled.
        quarantine: Path or name of its quarantine, likewise.
    """

    number: int
    settings: TableSettings
    target: str
    quarantine: str | None


def build_sink(pipeline: Pipeline, on_result: OnResult | None) -> Callable[[DataFrame, int], None]:
    """Return the function that `foreachBatch` calls with the micro-batches of the pipeline's source.

    Args:
        pipeline: The pipeline.
        on_result: Called with the result of each table and micro-batch, after its commit; with several tables, from
            several threads.

    Raises:
        PipelineError: The tables cannot be merged as described.
    """
    decode = record_decoder(pipeline)
    merge = _merge_of(pipeline, on_result)
    return merge if decode is None else DecodingSink(decode, merge)


def router_of(merge: Callable[[DataFrame, int], None]) -> MergeRouter | None:
    """Return the router that a function of `build_sink` calls; None if there is one table."""
    while isinstance(merge, (DecodingSink, RememberingSink)):
        merge = merge.merge
    return merge if isinstance(merge, MergeRouter) else None


@dataclass(frozen=True, slots=True)
class DecodingSink:
    """Decodes a micro-batch as a whole, so that the schemas of all topics are looked up in one job, and merges it."""

    decode: Callable[[DataFrame], DataFrame]
    merge: Callable[[DataFrame, int], None]

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch; `foreachBatch` calls this."""
        from stream_merge.bridge.materialized import materialized

        # The records are read for the ids of their schemas, and then decoded.
        with materialized(batch_df) as records:
            self.merge(self.decode(records), batch_id)


@dataclass(frozen=True, slots=True)
class RememberingSink:
    """Merges a micro-batch, and remembers whose rows it had."""

    merge: Callable[[DataFrame, int], None]
    sources: SeenSources

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch; `foreachBatch` calls this."""
        try:
            self.merge(batch_df, batch_id)
        finally:
            self.sources.write(batch_df.sparkSession)


def _merge_of(pipeline: Pipeline, on_result: OnResult | None) -> Callable[[DataFrame, int], None]:
    if is_single(pipeline):
        return _single_sink(pipeline, Decoders(pipeline), on_result)
    sources = SeenSources(pipeline.pipeline.checkpoint)
    router = _router(pipeline, Decoders(pipeline, on_source=sources.add), on_result)
    return RememberingSink(router, sources) if any(map(is_filled_by_name, pipeline.tables)) else router


def _router(pipeline: Pipeline, decoders: Decoders, on_result: OnResult | None) -> MergeRouter:
    try:
        return merge_router(
            make_sinks(pipeline, on_result),
            by=route_by(pipeline),
            prepare=decoders.prepare,
            max_parallel=pipeline.pipeline.max_parallel,
            unknown=pipeline.pipeline.unknown,
            parking=pipeline.pipeline.parking,
        )
    except ConfigError as error:
        raise PipelineError(f"tables: {error}.", ExitCode.USAGE) from None


def _single_sink(
    pipeline: Pipeline, decoders: Decoders, on_result: OnResult | None
) -> Callable[[DataFrame, int], None]:
    sink = make_sink(pipeline, 0, on_result)

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        from stream_merge.bridge.materialized import materialized

        decoder = decoders.decoder_of(pipeline.source.format)
        with materialized(batch_df) if decoder.reads_records else nullcontext(batch_df) as records:
            rows = decoder(records)
            if rows is not None:
                sink(rows, batch_id)

    return merge


def is_single(pipeline: Pipeline) -> bool:
    """Return whether one table takes all rows, whatever their source is called."""
    return len(pipeline.tables) == 1 and pipeline.tables[0].source is None


def route_by(pipeline: Pipeline) -> str:
    """Return the column or expression that names the source of a row.

    Raises:
        PipelineError: It is not given, and the source has no default.
    """
    if pipeline.pipeline.route_by is not None:
        return pipeline.pipeline.route_by
    if isinstance(pipeline.source, KafkaSource):
        return "topic"
    raise PipelineError(
        f'pipeline.route_by is missing: tables with a source need it if source.format is "{pipeline.source.format}".',
        ExitCode.USAGE,
    )


def route_column(pipeline: Pipeline, frame: DataFrame) -> Column:
    """Return the name of each row's source, as the router computes it.

    Raises:
        PipelineError: It is not given, and the source has no default.
    """
    from pyspark.sql import functions as F

    by = route_by(pipeline)
    return (frame[by] if by in frame.columns else F.expr(by)).cast("string")


def find_table(pipeline: Pipeline, source: str) -> FoundTable | None:
    """Return the table that takes the rows of a source: the one that names it, else the one whose pattern matches."""
    if is_single(pipeline):
        settings = pipeline.tables[0]
        return FoundTable(number=0, settings=settings, target=settings.target, quarantine=settings.quarantine)
    for number, settings in enumerate(pipeline.tables):
        if settings.source == source:
            return FoundTable(number=number, settings=settings, target=settings.target, quarantine=settings.quarantine)
    return next(matching_tables(pipeline, source), None)


def matching_tables(pipeline: Pipeline, source: str) -> Iterator[FoundTable]:
    """Yield the tables whose patterns match a source; `run` refuses a source that has several and is not named."""
    for number, settings in enumerate(pipeline.tables):
        name = settings.source or ""
        match = re.fullmatch(name.removeprefix(PATTERN_PREFIX), source) if name.startswith(PATTERN_PREFIX) else None
        if match is not None:
            groups = match.groupdict()
            yield FoundTable(
                number=number,
                settings=settings,
                target=settings.target.format_map(groups) if groups else settings.target,
                quarantine=settings.quarantine.format_map(groups)
                if groups and settings.quarantine is not None
                else settings.quarantine,
            )


def known_targets(pipeline: Pipeline) -> dict[str, int]:
    """Return the targets known before any rows arrive; topic names will determine the others.

    Returns:
        The number of the section by target; the first section if several share a target.
    """
    return {table.target: table.number for table in known_tables(pipeline)}


def known_tables(pipeline: Pipeline, seen_sources: Iterable[str] = ()) -> list[FoundTable]:
    """Return the tables known without any rows: one for each target, under the first spelling of its path or name.

    Args:
        pipeline: The pipeline.
        seen_sources: Sources besides the topics that the file names; they may fill the placeholders of a target.
    """
    found = [find_table(pipeline, name) for name in (*named_topics(pipeline), *seen_sources)]
    tables = [
        FoundTable(number=number, settings=table, target=table.target, quarantine=table.quarantine)
        for number, table in enumerate(pipeline.tables)
        if not is_filled_by_name(table)
    ]
    tables += [table for table in found if table and is_filled_by_name(table.settings)]
    known: dict[str, FoundTable] = {}
    for table in tables:
        # The sink uses the first spelling of a path.
        known.setdefault(table_key(table.target), table)
    return list(known.values())


def is_filled_by_name(table: TableSettings) -> bool:
    """Return whether the name of the rows' source fills placeholders of the target."""
    source = table.source or ""
    return source.startswith(PATTERN_PREFIX) and bool(re.compile(source.removeprefix(PATTERN_PREFIX)).groupindex)


@dataclass(slots=True)
class Decoders:
    """The decoders of all sources, each made when its first rows arrive.

    Attributes:
        pipeline: The pipeline.
        on_source: Called with the name of each source that has rows.
    """

    pipeline: Pipeline
    on_source: Callable[[str], None] | None = None
    _made: dict[str, Decoder] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock)

    def prepare(self, source: str, records: DataFrame) -> DataFrame | None:
        """Return the rows of a source's records, if any; the router calls this in the thread of the table."""
        return self.decoder_of(source)(records)

    def decoder_of(self, source: str) -> Decoder:
        """Return the decoder of a source.

        Raises:
            PipelineError: No table takes its rows.
        """
        from stream_merge.cli.query.decoding import Decoder

        with self._lock:
            if source not in self._made:
                found = find_table(self.pipeline, source)
                if found is None:
                    raise PipelineError(f"No table takes the rows of {source}; add a [[tables]].", ExitCode.USAGE)
                self._warn_of_mixed_tables(source, found.target)
                self._made[source] = Decoder(
                    self.pipeline.decode, found.settings, found.target, source, is_feed(self.pipeline.source)
                )
                if self.on_source is not None:
                    self.on_source(source)
            return self._made[source]

    def _warn_of_mixed_tables(self, source: str, target: str) -> None:
        """Warn if two tables of a database go to one: the rows of one take the place of those of the other."""
        others = [name for name, made in self._made.items() if table_key(made.target) == table_key(target)]
        if others and self.pipeline.decode.format == "debezium":
            logger.warning(
                "%s and %s go to the same table, %s, where rows with the same key replace each other. If they are "
                "different tables, give each a target of its own: a pattern may also name their schema, as in "
                'source = "re:.*\\.(?P<schema>.*)\\.(?P<table>.*)" and target = "./lake/{schema}/{table}".',
                others[0],
                source,
                target,
            )


def make_sinks(pipeline: Pipeline, on_result: OnResult | None) -> dict[Any, MergeSink]:
    """Return the sinks by name or pattern of their source; sources with equal target and options share one.

    Raises:
        PipelineError: A table has no source, two have the same one, or a table's options contradict each other.
    """
    sinks: dict[Any, MergeSink] = {}
    shared: dict[str, MergeSink] = {}
    for number, settings in enumerate(pipeline.tables):
        if settings.source is None:
            raise PipelineError(
                f"tables[{number}].source is missing: with several tables, each must name its source.",
                ExitCode.USAGE,
            )
        is_pattern = settings.source.startswith(PATTERN_PREFIX)
        key = re.compile(settings.source.removeprefix(PATTERN_PREFIX)) if is_pattern else settings.source
        if key in sinks:
            raise PipelineError(
                f"tables[{number}].source: {settings.source} appears twice; remove one.", ExitCode.USAGE
            )
        same = settings.model_copy(
            update={"source": None, "columns": None, "target": table_key(settings.target)}
        ).model_dump_json()
        if same not in shared:
            shared[same] = make_sink(pipeline, number, on_result)
        sinks[key] = shared[same]
    return sinks


def make_sink(pipeline: Pipeline, number: int, on_result: OnResult | None) -> MergeSink:
    """Return the sink of one table of the file.

    Raises:
        PipelineError: Its options contradict each other.
    """
    settings = pipeline.tables[number]
    try:
        return merge_sink(settings.target, **sink_options(pipeline, number), on_result=on_result)
    except (ConfigError, ValueError) as error:
        raise PipelineError(f"tables[{number}] ({settings.target}): {error}.", ExitCode.USAGE) from None


def sink_of(pipeline: Pipeline, found: FoundTable) -> MergeSink:
    """Return the sink of one table, with placeholders filled.

    Raises:
        PipelineError: Its options contradict each other.
    """
    sink = make_sink(pipeline, found.number, None)
    return MergeSink(replace(sink.config, target=found.target, quarantine=found.quarantine))
