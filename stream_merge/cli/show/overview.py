"""Reads the state of all tables of a pipeline; a table that cannot be read does not fail the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from stream_merge.cli.file.pipeline import Pipeline
from stream_merge.cli.query.seen_sources import seen_sources
from stream_merge.cli.query.tables import is_filled_by_name, known_tables
from stream_merge.cli.show.parked import AtRest, read_at_rest
from stream_merge.cli.show.quarantined import QuarantinedRows, read_quarantined
from stream_merge.cli.show.status import Status, StatusError, read_status
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTable:
    """A table to be read.

    Attributes:
        target: Path or name of the table.
        quarantine: Path or name of the table that its sink sets rows aside in.
    """

    target: str
    quarantine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table as it was found.

    Attributes:
        target: Path or name of the table.
        status: Its status; None if there is a problem.
        problem: Why there is no status.
        quarantined: Its rows in the quarantine table; None if it has none, or if nobody asked for them.
    """

    target: str
    status: Status | None = None
    problem: StatusError | None = None
    quarantined: QuarantinedRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The tables of a pipeline.

    Attributes:
        name: The pipeline's name, or the table's if it was asked for alone.
        now: When they were read.
        tables: The tables in the order of the file.
        unlisted: Targets with placeholders, whose sources are not known.
        at_rest: The tables at rest.
    """

    name: str
    now: datetime
    tables: tuple[TableState, ...]
    unlisted: tuple[str, ...] = ()
    at_rest: AtRest = field(default_factory=AtRest)


def asked_tables(spark: SparkSession, pipeline: Pipeline) -> tuple[list[AskedTable], tuple[str, ...]]:
    """Return the tables of a pipeline, and the targets whose placeholders only unknown sources would fill.

    Sources that match a pattern are those that the checkpoint's folder remembers.
    """
    patterns = [table for table in pipeline.tables if is_filled_by_name(table)]
    tables = known_tables(pipeline, seen_sources(spark, pipeline) if patterns else ())
    found = {id(table.settings) for table in tables}
    asked = [AskedTable(target=table.target, quarantine=table.quarantine) for table in tables]
    return asked, tuple(table.target for table in patterns if id(table) not in found)


def asked_table(tables: Iterable[AskedTable], name: str) -> AskedTable:
    """Return the table of a pipeline with this path or name, in any spelling; else one without a quarantine."""
    for table in tables:
        if table_key(table.target) == table_key(name):
            return table
    return AskedTable(target=name)


def read_table(spark: SparkSession, table: AskedTable, limit: int, *, with_quarantine: bool) -> TableState:
    """Read the state of a table.

    Args:
        spark: A classic session with Delta's extension.
        table: The table.
        limit: How many of the newest commits to read.
        with_quarantine: Whether to read its rows in the quarantine table as well.
    """
    quarantined = None
    if with_quarantine and table.quarantine is not None:
        quarantined = read_quarantined(spark, table.quarantine, table.target)
    try:
        return TableState(target=table.target, status=read_status(spark, table.target, limit), quarantined=quarantined)
    except StatusError as error:
        return TableState(target=table.target, problem=error, quarantined=quarantined)


def read_overview(spark: SparkSession, pipeline: Pipeline, limit: int, *, with_quarantine: bool = False) -> Overview:
    """Read the state of all tables of a pipeline; see `read_table`."""
    tables, unlisted = asked_tables(spark, pipeline)
    return Overview(
        name=pipeline.pipeline.name,
        tables=tuple(read_table(spark, table, limit, with_quarantine=with_quarantine) for table in tables),
        now=datetime.now(timezone.utc),
        unlisted=unlisted,
        at_rest=read_at_rest(spark, pipeline.pipeline.parking),
    )
