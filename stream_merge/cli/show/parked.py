"""Reads which tables of a pipeline are at rest, from its parking table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream_merge.cli.query.failures import MAX_LENGTH
from stream_merge.cli.show.formats import plural, utc
from stream_merge.errors import StreamMergeError
from stream_merge.metrics import ParkedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parked_lines(spark: SparkSession, parking: str) -> tuple[str, ...]:
    """Return a line for each table for which a parking table has records, or why it cannot be read."""
    from stream_merge.routing.parking_table import ParkingTable
    from stream_merge.routing.tables_at_rest import at_rest

    try:
        found = [at_rest(parked).shown() for parked in ParkingTable(spark, parking).read()]
    except StreamMergeError as error:
        return (f"{parking} can't be read: {error}",)
    return lines_of(found)


def lines_of(tables: Sequence[ParkedTable]) -> tuple[str, ...]:
    """Return a line for each table at rest."""
    return tuple(
        f"{table.target}: at rest, {plural(table.num_rows, 'record')} parked since {utc(table.since)}: "
        f"{table.error[:MAX_LENGTH]}"
        for table in sorted(tables, key=lambda table: table.target)
    )
