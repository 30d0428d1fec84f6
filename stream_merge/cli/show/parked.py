"""Tells which tables of a pipeline are at rest, since when, why, and how they are taken up again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from stream_merge.cli.file.pipeline import Pipeline
from stream_merge.cli.query.failures import MAX_LENGTH
from stream_merge.cli.query.tables import find_table
from stream_merge.cli.show.formats import duration, plural, utc
from stream_merge.errors import StreamMergeError
from stream_merge.metrics import ParkedTable
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HOW_TO_TAKE_UP = (
    "To take up a table at rest, mend what its reason says. It is tried again by itself: with the first micro-batch of "
    "each start, and at least every half hour with a micro-batch. It then gets all that waits, in order."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """The tables at rest.

    Attributes:
        tables: The tables in the order of their names.
        problem: Why they are not known; None if they are.
    """

    tables: tuple[ParkedTable, ...] = ()
    problem: str | None = None

    def of(self, key: str) -> AtRest:
        """Return those with this target, in any spelling (`table_key`)."""
        return replace(self, tables=tuple(table for table in self.tables if table_key(table.target) == key))


def read_at_rest(spark: SparkSession, parking: str | None) -> AtRest:
    """Return the tables for which a parking table has records; none without a parking table."""
    if parking is None:
        return AtRest()
    from stream_merge.routing.parking_table import ParkingTable
    from stream_merge.routing.tables_at_rest import at_rest

    try:
        found = [at_rest(parked).shown() for parked in ParkingTable(spark, parking).read()]
    except StreamMergeError as error:
        return AtRest(problem=f"{parking} can't be read, so tables at rest are not known: {error}")
    return AtRest(tables=in_order(found))


def of_pipeline(tables: Sequence[ParkedTable], pipeline: Pipeline) -> tuple[ParkedTable, ...]:
    """Return the tables that a pipeline merges into: others may park their records in the same table."""

    def takes(table: ParkedTable) -> bool:
        found = [find_table(pipeline, source) for source in table.sources]
        return table_key(table.target) in {table_key(one.target) for one in found if one is not None}

    return tuple(filter(takes, tables))


def in_order(tables: Sequence[ParkedTable]) -> tuple[ParkedTable, ...]:
    """Return tables in the order of their names."""
    return tuple(sorted(tables, key=lambda table: table.target))


def lines_of(tables: Sequence[ParkedTable], mask: Callable[[str], str]) -> tuple[str, ...]:
    """Return a line for each table at rest."""
    return tuple(
        f"{mask(table.target)}: at rest, {plural(table.num_rows, 'record')} parked since {utc(table.since)}: "
        f"{short_reason(table, mask)}"
        for table in in_order(tables)
    )


def waiting(table: ParkedTable) -> str:
    """Return since when a table is at rest, and how much waits for it."""
    return f"at rest since {utc(table.since)}; {plural(table.num_rows, 'record')} wait" + "s" * (table.num_rows == 1)


def next_attempt(table: ParkedTable, now: datetime) -> str:
    """Return when a running pipeline tries a table again."""
    if table.next_attempt is None or table.next_attempt <= now:
        return "with the next micro-batch"
    return f"in {duration((table.next_attempt - now).total_seconds())}"


def reason(table: ParkedTable) -> str:
    """Return why a table is at rest, in a line of any length."""
    return " ".join(table.error.split())


def short_reason(table: ParkedTable, mask: Callable[[str], str]) -> str:
    """Return the same without secrets, and without most of a plan of Spark.

    It is masked before it is cut, since half a secret would not be found.
    """
    masked = mask(reason(table))
    return masked if len(masked) <= MAX_LENGTH else f"{masked[: MAX_LENGTH - 1]}…"
