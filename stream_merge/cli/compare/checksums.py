"""Sums up the rows of both sides in buckets of keys, so that only buckets that differ are compared row by row.

The checksum of a bucket is the number of its rows and the sum of 160 bits of their SHA-256. So a row that is there
twice counts twice, and different rows do not have equal sums by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_A_BUCKET = 4096
MAX_BUCKETS = 16_384

BUCKET = "bucket"
"""The column with the number of a row's bucket."""
VALUES = "v"
"""The column with a row's values as text, those of the key first."""

_WORDS = 4
_DIGITS = 10
"""Hexadecimal digits of a word: the sum of eight million words fits into a BIGINT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSum:
    """A bucket.

    Attributes:
        bucket: Its number.
        source: Number of rows and sums of the database's side.
        target: Those of the Delta table.
    """

    bucket: int
    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the checksums tell.

    Attributes:
        num_source: Rows of the database.
        num_target: Rows of the Delta table.
        num_equal: Rows in buckets that are equal.
        differing: The numbers of the other buckets.
    """

    num_source: int
    num_target: int
    num_equal: int
    differing: tuple[int, ...]


def num_buckets_for(num_rows: int) -> int:
    """Return into how many buckets a table of so many rows is divided."""
    return max(1, min(MAX_BUCKETS, num_rows // ROWS_A_BUCKET))


def sum_up(source: DataFrame, target: DataFrame) -> list[BucketSum]:
    """Return the sums of all buckets; reads both sides, each once.

    Args:
        source: The database's rows, with the columns `BUCKET` and `VALUES`.
        target: Those of the Delta table.
    """
    both = _words(source, is_source=True).unionByName(_words(target, is_source=False))
    parts = ["1", *[f"w{number}" for number in range(_WORDS)]]
    sums = [
        F.sum(F.expr(f"CASE WHEN {side} THEN {part} ELSE 0 END")).cast("bigint").alias(f"{name}{number}")
        for name, side in (("s", "is_source"), ("t", "NOT is_source"))
        for number, part in enumerate(parts)
    ]
    rows = both.groupBy(BUCKET).agg(*sums).collect()
    numbers = range(len(parts))
    return [
        BucketSum(
            bucket=row[BUCKET],
            source=tuple(row[f"s{number}"] for number in numbers),
            target=tuple(row[f"t{number}"] for number in numbers),
        )
        for row in rows
    ]


def check(sums: Iterable[BucketSum]) -> Checked:
    """Return which buckets differ, and how many rows there are."""
    listed = list(sums)
    return Checked(
        num_source=sum(each.source[0] for each in listed),
        num_target=sum(each.target[0] for each in listed),
        num_equal=sum(each.source[0] for each in listed if each.source == each.target),
        differing=tuple(sorted(each.bucket for each in listed if each.source != each.target)),
    )


def _words(rows: DataFrame, *, is_source: bool) -> DataFrame:
    hashed = rows.select(BUCKET, F.sha2(row_text(VALUES), 256).alias("h"))
    words = [_word("h", number).alias(f"w{number}") for number in range(_WORDS)]
    return hashed.select(BUCKET, F.lit(is_source).alias("is_source"), *words)


def _word(digits: str, number: int) -> Column:
    return F.expr(f"CAST(conv(substring({digits}, {1 + _DIGITS * number}, {_DIGITS}), 16, 10) AS BIGINT)")


def row_text(values: str) -> Column:
    """Return the values of a row as one text; each with its length, so that no other row has the same text."""
    return F.expr(f"array_join(transform({values}, x -> coalesce(octet_length(x) || ':' || x, 'N')), ',')")


def ranges_of(buckets: Sequence[int], buckets_a_range: int) -> set[int]:
    """Return the numbers of the key ranges in which buckets are; see `bucket_of`."""
    return {bucket // buckets_a_range - 1 for bucket in buckets}


def bucket_of(key: str, range_number: str, buckets_a_range: int) -> Column:
    """Return the number of a row's bucket.

    Args:
        key: SQL for the texts of the key.
        range_number: SQL for the number of the key's range, from -1.
        buckets_a_range: How many buckets a range has.
    """
    return F.expr(
        f"CAST(({range_number} + 1) * {buckets_a_range} + pmod(xxhash64({key}), {buckets_a_range}) AS INT)"
    ).alias(BUCKET)
