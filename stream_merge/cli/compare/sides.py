"""Reads the rows of both sides in the form in which they are compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.table import sql_name
from stream_merge.cli.compare.checksums import BUCKET, VALUES, bucket_of, num_buckets_for, ranges_of
from stream_merge.cli.compare.columns import PairedColumns
from stream_merge.cli.compare.database import DatabaseTable
from stream_merge.cli.compare.kinds import KeyKind
from stream_merge.cli.compare.ranges import (
    KeyRanges,
    conditions_on_keys,
    num_ranges_for,
    reading_ranges,
    shared_ranges,
)
from stream_merge.cli.compare.values import comparable, comparable_or_misfit, decoded, sent
from stream_merge.debezium.spelling import text as sql_text
from stream_merge.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "k"
"""The column with the texts of a row's key."""

_SAMPLED_KEYS = 1000
_ACCURACY = 10_000
_KEY_TYPES = {
    KeyKind.NUMBER: (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType),
    KeyKind.DATE: (T.DateType,),
    KeyKind.TEXT: (T.StringType,),
    KeyKind.UUID: (T.StringType,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both sides of a comparison; each frame has the columns `BUCKET`, `KEY` and `VALUES`.

    Attributes:
        spark: The session.
        database: The database's table.
        target: Path or name of the Delta table.
        columns: The columns.
        ranges: The ranges of the key.
        buckets_a_range: How many buckets each range has.
    """

    spark: SparkSession
    database: DatabaseTable
    target: str
    columns: PairedColumns
    ranges: KeyRanges = field(default_factory=KeyRanges)
    buckets_a_range: int = 1

    def source(self, buckets: Sequence[int] | None = None, keys: Sequence[Sequence[str]] | None = None) -> DataFrame:
        """Return the rows of the database, which are read when the frame is.

        Args:
            buckets: The buckets to read; all by default.
            keys: Keys that suffice; rows of other keys may be among them.
        """
        numbers = None if buckets is None else ranges_of(buckets, self.buckets_a_range)
        conditions = self._conditions_on(keys) or self.ranges.conditions(numbers)
        compared = self.columns.compared
        read = self.database.read(self.spark, [column.source for column in compared], conditions)
        taken = read.select(
            *[
                F.expr(sent(f"c{number}", read.schema[number].dataType, column.kind)).alias(f"s{number}")
                for number, column in enumerate(compared)
            ]
        )
        fitted = taken.select(
            "*",
            *[
                F.expr(decoded(f"s{number}", column.kind, column.data_type)).alias(f"t{number}")
                for number, column in enumerate(compared)
            ],
        )
        texts = [
            comparable_or_misfit(f"s{number}", f"t{number}", column.kind, column.data_type)
            for number, column in enumerate(compared)
        ]
        return self._in_buckets(fitted.withColumn(VALUES, F.array(*texts)), buckets)

    def merged(self, buckets: Sequence[int] | None = None, keys: Sequence[Sequence[str]] | None = None) -> DataFrame:
        """Return the rows of the newest version of the Delta table; see `source`."""
        compared = self.columns.compared
        names = [F.col(quote(column.name)).alias(f"t{number}") for number, column in enumerate(compared)]
        rows = self.spark.read.table(sql_name(self.spark, self.target)).select(*names)
        if buckets is not None and self.ranges.values:
            numbers = ranges_of(buckets, self.buckets_a_range)
            rows = rows.where(self.ranges.condition_of_spark("t0", self._key_type, numbers))
        if keys is not None and self._conditions_on(keys) is not None:
            rows = rows.where(" AND ".join(self._among(number, keys) for number in range(self.columns.num_keys)))
        texts = [comparable(f"t{number}", column.kind, column.data_type) for number, column in enumerate(compared)]
        return self._in_buckets(rows.withColumn(VALUES, F.array(*texts)), buckets)

    def can_read_by(self, keys: Sequence[Sequence[str]]) -> bool:
        """Return whether the rows of some keys can be read without those of others."""
        return self._conditions_on(keys) is not None

    def _in_buckets(self, rows: DataFrame, buckets: Collection[int] | None) -> DataFrame:
        key_type = self.columns.keys[0].data_type.simpleString()
        number = self.ranges.number_of("t0", key_type)
        keyed = rows.withColumn(KEY, F.slice(VALUES, 1, self.columns.num_keys))
        found = keyed.select(bucket_of(KEY, number, self.buckets_a_range), KEY, VALUES)
        return found if buckets is None else found.where(F.col(BUCKET).isin(list(buckets)))

    def _conditions_on(self, keys: Sequence[Sequence[str]] | None) -> list[str] | None:
        if keys is None or not self.columns.has_key:
            return None
        numbers = range(self.columns.num_keys)
        kinds = [key_kind(self.columns, number) for number in numbers]
        return conditions_on_keys([self.database.key_column(number) for number in numbers], kinds, keys)

    def _among(self, number: int, keys: Sequence[Sequence[str]]) -> str:
        sql_type = self.columns.keys[number].data_type.simpleString()
        values = dict.fromkeys(key[number] for key in keys)
        return f"t{number} IN ({', '.join(f'CAST({sql_text(value)} AS {sql_type})' for value in values)})"

    @property
    def _key_type(self) -> str:
        return self.columns.keys[0].data_type.simpleString()


def key_kind(columns: PairedColumns, number: int) -> KeyKind | None:
    """Return how the values of a column of the key are written in conditions, as both sides' types allow."""
    column = columns.keys[number]
    kind = column.source.key_kind
    return kind if kind is not None and isinstance(column.data_type, _KEY_TYPES[kind]) else None


def divided(sides: Sides) -> Sides:
    """Return both sides with ranges and buckets that fit the Delta table's keys; counts its rows."""
    rows = sides.spark.read.table(sql_name(sides.spark, sides.target))
    num_rows = rows.count()
    ranges = _ranges(sides, rows, num_ranges_for(num_rows))
    buckets = -(-num_buckets_for(num_rows) // ranges.num_shared)
    return Sides(
        spark=sides.spark,
        database=sides.database,
        target=sides.target,
        columns=sides.columns,
        ranges=ranges,
        buckets_a_range=buckets,
    )


def _ranges(sides: Sides, rows: DataFrame, num_ranges: int) -> KeyRanges:
    columns = sides.columns
    if num_ranges < 2 or not columns.has_key or columns.num_keys != 1:
        return KeyRanges()
    kind = key_kind(columns, 0)
    key = F.col(quote(columns.keys[0].name))
    match kind:
        case KeyKind.NUMBER | KeyKind.DATE:
            shares = [number / num_ranges for number in range(1, num_ranges)]
            found = rows.agg(F.percentile_approx(key, shares, _ACCURACY).cast("array<string>").alias("q")).collect()
            return shared_ranges(sides.database.key_column(0), kind, list(dict.fromkeys(found[0]["q"] or ())))
        case KeyKind.TEXT:
            drawn = rows.select(key.cast("string").alias("key")).orderBy(F.xxhash64("key")).limit(_SAMPLED_KEYS)
            keys = [row["key"] for row in drawn.collect() if row["key"] is not None]
            ordered = sides.database.in_order(sides.spark, columns.keys[0].source, keys)
            return reading_ranges(sides.database.key_column(0), ordered, num_ranges)
        case _:
            return KeyRanges()
