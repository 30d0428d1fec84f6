"""Compares one Delta table with its table in the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream_merge.bridge.jdbc import database_message
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import sql_name, table_exists
from stream_merge.cli.compare.checksums import check, sum_up
from stream_merge.cli.compare.columns import PairedColumns, pair_columns
from stream_merge.cli.compare.database import Access, DatabaseTable, find_table, refused
from stream_merge.cli.compare.pairs import Pair
from stream_merge.cli.compare.rows import Differences, lasting_differences
from stream_merge.cli.compare.sides import Sides, divided
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.tombstones.history import remembered_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a Delta table and its table in the database differ.

    Attributes:
        pair: The tables.
        columns: Their columns.
        num_source: Rows of the database when it was first read.
        num_target: Rows of the Delta table when it was first read.
        num_equal: Rows that are equal.
        num_settled: Keys that differed at first, and agreed when they were read again.
        differences: The differences that lasted.
    """

    pair: Pair
    columns: PairedColumns
    num_source: int
    num_target: int
    num_equal: int
    num_settled: int
    differences: Differences

    @property
    def is_equal(self) -> bool:
        """Whether no difference lasted in the columns that were compared."""
        return not self.differences.num_keys

    @property
    def has_all_columns(self) -> bool:
        """Whether all columns of both sides were compared."""
        return not (self.columns.source_only or self.columns.target_only or self.columns.faults)


def compare(
    spark: SparkSession,
    access: Access,
    pair: Pair,
    *,
    seconds: float,
    num_samples: int,
    wait: Callable[[float], None] = time.sleep,
) -> Comparison:
    """Compare a Delta table with its table in the database.

    Args:
        spark: The session.
        access: How the database is reached.
        pair: The tables.
        seconds: For how long keys that differ are read again; 0 for never.
        num_samples: How many differences to return.
        wait: Waits for some seconds.

    Raises:
        PipelineError: A table cannot be read, or they have nothing to compare.
    """
    if not table_exists(spark, pair.target):
        raise PipelineError(f"There is no Delta table {pair.target}.", ExitCode.CANNOT_START)
    database = find_table(spark, access, pair.source)
    target = spark.read.table(sql_name(spark, pair.target)).schema
    columns = pair_columns(
        database.columns,
        target,
        _keys(spark, pair, database),
        renamed=pair.renamed,
        left_out=pair.left_out,
        written=pair.written,
    )
    try:
        sides = divided(Sides(spark=spark, database=database, target=pair.target, columns=columns))
        checked = check(sum_up(sides.source(), sides.merged()))
        differences, num_settled = lasting_differences(
            sides, checked.differing, seconds=seconds, num_samples=num_samples, wait=wait
        )
    except JVM_ERRORS as error:
        message = database_message(error)
        if message is None:
            raise
        raise refused(access, message) from error
    return Comparison(
        pair=pair,
        columns=columns,
        num_source=checked.num_source,
        num_target=checked.num_target,
        num_equal=checked.num_equal + differences.num_equal,
        num_settled=num_settled,
        differences=differences,
    )


def _keys(spark: SparkSession, pair: Pair, database: DatabaseTable) -> tuple[str, ...]:
    """Return the key's columns in the Delta table: as given, as the table remembers, as the database has them."""
    if pair.keys is not None:
        return pair.keys
    remembered = remembered_keys(spark, pair.target)
    if remembered is not None:
        return remembered
    return tuple(pair.renamed.get(name, name) for name in database.primary_key)
