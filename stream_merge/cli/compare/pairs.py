"""Finds which table of the database each table of a pipeline follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stream_merge.cli.compare.database import TableName
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import PATTERN_PREFIX, Pipeline
from stream_merge.cli.query.seen_sources import seen_sources
from stream_merge.cli.query.tables import FoundTable, find_table, is_single
from stream_merge.cli.query.topics import named_topics
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A Delta table and the database's table that it follows.

    Attributes:
        target: Path or name of the Delta table.
        source: The database's table.
        keys: The key that was given; None if nothing tells.
        renamed: Columns of the Delta table by the name that they have in the database.
        left_out: Columns that the pipeline does not write.
        written: The columns that it writes besides the key; all by default.
    """

    target: str
    source: TableName
    keys: tuple[str, ...] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


def pairs_of(
    spark: SparkSession, pipeline: Pipeline, only: Iterable[str] = (), table: TableName | None = None
) -> list[Pair]:
    """Return the tables of a pipeline.

    Args:
        spark: The session, to read which topics the pipeline's checkpoint remembers.
        pipeline: The pipeline.
        only: Paths or names of the Delta tables to compare; all by default.
        table: The database's table, where topics do not tell it.

    Raises:
        PipelineError: There is no such table, or the table of the database is not known.
    """
    found = _sources_by_target(spark, pipeline)
    asked = [table_key(name) for name in only]
    unknown = [name for name in only if table_key(name) not in found]
    if unknown:
        known = ", ".join(each.target for each, _ in found.values())
        raise PipelineError(
            f"The pipeline has no table {', '.join(unknown)}; it has {known or 'none yet'}.", ExitCode.USAGE
        )
    chosen = [pair for key, pair in found.items() if not asked or key in asked]
    if not chosen:
        raise PipelineError(
            "The pipeline has no table yet: its sources are not known before it has read them.",
            ExitCode.CANNOT_START,
        )
    if table is not None and len(chosen) > 1:
        raise PipelineError(
            "--table is the database's table of one Delta table: name that with --only.", ExitCode.USAGE
        )
    return [_pair(pipeline, found, names, table) for found, names in chosen]


def source_of(topic: str) -> TableName | None:
    """Return the table of a topic of Debezium's, `prefix.schema.table`; None if the topic is called otherwise."""
    parts = topic.split(".")
    return TableName(schema=parts[-2], name=parts[-1]) if len(parts) > 2 and all(parts) else None


def _sources_by_target(spark: SparkSession, pipeline: Pipeline) -> dict[str, tuple[FoundTable, list[str]]]:
    """Return the tables and the names of their sources, by the targets' keys, in the order of the file."""
    found: dict[str, tuple[FoundTable, list[str]]] = {}

    def add(table: FoundTable, names: Iterable[str]) -> None:
        entry = found.setdefault(table_key(table.target), (table, []))
        entry[1].extend(name for name in names if name not in entry[1])

    sources = _sources(spark, pipeline)
    if is_single(pipeline):
        settings = pipeline.tables[0]
        add(FoundTable(number=0, settings=settings, target=settings.target, quarantine=None), sources)
        return found
    for number, settings in enumerate(pipeline.tables):
        name = settings.source or ""
        if not name.startswith(PATTERN_PREFIX):
            add(FoundTable(number=number, settings=settings, target=settings.target, quarantine=None), [name])
    for source in sources:
        table = find_table(pipeline, source)
        if table is not None:
            add(table, [source])
    return found


def _sources(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    return [*dict.fromkeys([*named_topics(pipeline), *seen_sources(spark, pipeline)])]


def _pair(pipeline: Pipeline, found: FoundTable, names: list[str], table: TableName | None) -> Pair:
    settings = found.settings
    if table is None and len(names) > 1:
        raise PipelineError(
            f"{found.target} takes the rows of several sources, {', '.join(names)}: no single table of the database "
            "is its equal. Leave it out: name the others with --only.",
            ExitCode.USAGE,
        )
    told = None if not names or pipeline.decode.format != "debezium" else source_of(names[0])
    source = table or told
    if source is None:
        raise PipelineError(
            f"{found.target}: no topic tells its table in the database, as Debezium's do, prefix.schema.table. "
            f"Name it: --only {found.target} --table schema.name",
            ExitCode.USAGE,
        )
    return Pair(
        target=found.target,
        source=source,
        keys=None if settings.keys is None else tuple(settings.keys),
        renamed=settings.rename,
        left_out=tuple(settings.except_columns),
        written=tuple(settings.write_columns),
    )
