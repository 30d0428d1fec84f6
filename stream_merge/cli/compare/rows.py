"""Finds rows that differ, and reads their keys again until both sides agree or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from stream_merge.bridge.materialized import materialized
from stream_merge.cli.compare.checksums import VALUES
from stream_merge.cli.compare.sides import KEY, Sides

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_KEYS = 5000
"""Keys that are read again one by one; if more differ, their buckets are read again, once."""
SECONDS_BETWEEN = 5.0

_SOURCE, _TARGET, _EQUAL = "source", "target", "num_equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key whose rows differ.

    Attributes:
        key: The texts of its values.
        source: The database's rows of it, each the texts of the compared columns.
        target: Those of the Delta table.
    """

    key: tuple[str | None, ...]
    source: tuple[tuple[str | None, ...], ...]
    target: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How the rows of some buckets or keys differ.

    Attributes:
        num_keys: How many keys differ.
        num_missing: Rows of the database that the Delta table lacks.
        num_extra: Rows of the Delta table that the database lacks.
        num_differing: Keys that both have, with other values or another number of rows.
        num_equal: Rows of the database that are equal.
        columns: How often each column differs among rows of one key, by its number.
        samples: Some of them, in the order of their keys.
    """

    num_keys: int = 0
    num_missing: int = 0
    num_extra: int = 0
    num_differing: int = 0
    num_equal: int = 0
    columns: tuple[tuple[int, int], ...] = ()
    samples: tuple[Difference, ...] = ()


def lasting_differences(
    sides: Sides,
    buckets: Sequence[int],
    *,
    seconds: float,
    num_samples: int,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[Differences, int]:
    """Return the differences that last, and how many keys differed at first and then agreed.

    Args:
        sides: Both sides.
        buckets: The buckets to compare.
        seconds: For how long keys that differ are read again; 0 for never.
        num_samples: How many differences to return.
        wait: Waits for some seconds.
    """
    if not buckets:
        return Differences(), 0
    frame = _compared(sides.source(buckets), sides.merged(buckets))
    with materialized(frame) as first:
        found = _summed_up(first, sides, num_samples)
        if not found.num_keys or seconds <= 0:
            return found, 0
        return _settled(sides, buckets, first, found, seconds, num_samples, wait)


def _settled(
    sides: Sides,
    buckets: Sequence[int],
    first: DataFrame,
    found: Differences,
    seconds: float,
    num_samples: int,
    wait: Callable[[float], None],
) -> tuple[Differences, int]:
    """Read keys that differ again, and those of them that still do, until there are none or the time is over."""
    num_first, num_equal, left = found.num_keys, found.num_equal, seconds
    asked = first.where(f"{_EQUAL} IS NULL").select(KEY)
    few = [list(row[KEY]) for row in asked.collect()] if found.num_keys <= MAX_KEYS else None
    if few is not None and not sides.can_read_by(few):
        # They are not needed here, and text that is no UTF-8 would come back as another.
        few = None
    while left > 0 and found.num_keys:
        # What takes a read of the whole table is done once.
        is_cheap = few is not None
        pause = min(SECONDS_BETWEEN, left) if is_cheap else left
        wait(pause)
        left -= pause
        if few is not None:
            asked = sides.spark.createDataFrame([(key,) for key in few], f"{KEY} ARRAY<STRING>")
        # The database's rows are read, and only then the newest version of the Delta table is looked up.
        with (
            materialized(_only(sides.source(buckets, few), asked)) as source,
            materialized(_compared(source, _only(sides.merged(buckets, few), asked))) as compared,
        ):
            found = _summed_up(compared, sides, num_samples)
            num_equal += found.num_equal
            if few is not None:
                few = [list(row[KEY]) for row in compared.where(f"{_EQUAL} IS NULL").select(KEY).collect()]
    return replace(found, num_equal=num_equal), num_first - found.num_keys


def _only(rows: DataFrame, asked: DataFrame) -> DataFrame:
    return rows.join(asked, on=KEY, how="left_semi")


def _compared(source: DataFrame, target: DataFrame) -> DataFrame:
    """Return the keys that differ with the rows of both sides, and the numbers of equal rows without them."""
    both = source.select(KEY, VALUES, F.lit(True).alias("is_source")).unionByName(
        target.select(KEY, VALUES, F.lit(False).alias("is_source"))
    )
    grouped = both.groupBy(KEY).agg(
        F.array_sort(F.expr(f"collect_list(CASE WHEN is_source THEN {VALUES} END)")).alias(_SOURCE),
        F.array_sort(F.expr(f"collect_list(CASE WHEN NOT is_source THEN {VALUES} END)")).alias(_TARGET),
    )
    is_equal = f"{_SOURCE} <=> {_TARGET}"
    return grouped.select(
        F.expr(f"CASE WHEN {is_equal} THEN size({_SOURCE}) END").alias(_EQUAL),
        *[F.expr(f"CASE WHEN NOT ({is_equal}) THEN {name} END").alias(name) for name in (KEY, _SOURCE, _TARGET)],
    )


def _summed_up(compared: DataFrame, sides: Sides, num_samples: int) -> Differences:
    source, target = f"size({_SOURCE})", f"size({_TARGET})"
    differs = f"{_EQUAL} IS NULL"
    if sides.columns.has_key:
        missing, extra = f"IF({target} = 0, {source}, 0)", f"IF({source} = 0, {target}, 0)"
        both = f"{differs} AND {source} > 0 AND {target} > 0"
        equal = _EQUAL
    else:
        # Rows that are alike are told apart by nothing but their number.
        missing, extra = f"greatest({source} - {target}, 0)", f"greatest({target} - {source}, 0)"
        both = "false"
        equal = f"coalesce({_EQUAL}, least({source}, {target}))"
    [counted] = compared.agg(
        F.expr(f"count_if({differs})").alias("keys"),
        F.expr(f"coalesce(sum({equal}), 0)").alias("equal"),
        F.expr(f"coalesce(sum(CASE WHEN {differs} THEN {missing} END), 0)").alias("missing"),
        F.expr(f"coalesce(sum(CASE WHEN {differs} THEN {extra} END), 0)").alias("extra"),
        F.expr(f"count_if({both})").alias("differing"),
    ).collect()
    return Differences(
        num_keys=counted["keys"],
        num_missing=counted["missing"],
        num_extra=counted["extra"],
        num_differing=counted["differing"],
        num_equal=counted["equal"],
        columns=_columns(compared.where(both), len(sides.columns.compared)) if counted["differing"] else (),
        samples=_samples(compared.where(differs), num_samples) if counted["keys"] else (),
    )


def _columns(both: DataFrame, num_columns: int) -> tuple[tuple[int, int], ...]:
    single = both.where(f"size({_SOURCE}) = 1 AND size({_TARGET}) = 1")
    counts = [
        F.expr(f"count_if(NOT ({_SOURCE}[0][{number}] <=> {_TARGET}[0][{number}]))").alias(f"n{number}")
        for number in range(num_columns)
    ]
    [row] = single.agg(*counts).collect()
    found = [(number, row[f"n{number}"]) for number in range(num_columns) if row[f"n{number}"]]
    return tuple(sorted(found, key=lambda pair: -pair[1]))


def _samples(differing: DataFrame, num_samples: int) -> tuple[Difference, ...]:
    if not num_samples:
        return ()
    return tuple(
        Difference(
            key=tuple(row[KEY]),
            source=tuple(tuple(values) for values in row[_SOURCE]),
            target=tuple(tuple(values) for values in row[_TARGET]),
        )
        for row in differing.orderBy(KEY).limit(num_samples).collect()
    )
