"""The micro-batch as the merge takes it: one row per key where an order is given, numbered, kept, evaluated once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, VariantType

from stream_merge.bridge.statement import RESERVED_PREFIX, SOURCE_ID, KeyPair, ResolvedMerge
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, NullKeyError, UnresolvedColumnError
from stream_merge.files import KeyRange, comparable, is_prunable, physical_name
from stream_merge.statement import quote

MAX_PARTITION_VALUES = 1000
"""Up to so many values of a partition column are compared one by one, beyond it only their range."""

MAX_TRACKED_VALUES = 100
"""Beyond so many values of a partition column, a change of another partition counts as a conflict, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A persisted micro-batch and what one pass over it told.

    Attributes:
        rows: The rows, with `SOURCE_ID` behind their columns.
        num_rows: How many.
        bounds: Smallest and largest value, number of nulls, and values where they are few, for each of the key pairs.
        is_independent: Whether what is written for a row is the same whether it matches or not.
        num_independent_rows: How many rows are written then.
    """

    rows: DataFrame
    num_rows: int
    bounds: Mapping[KeyPair, tuple[Any, Any, int, frozenset[Any] | None]]
    is_independent: bool
    num_independent_rows: int

    def key_ranges(self, schema: Mapping[str, Any]) -> list[KeyRange]:
        """Return what the batch can match, for skipping files of a table with this schema."""
        return [
            KeyRange(
                physical_path=physical_name(schema, pair.target),
                type_name=pair.type_name,
                low=comparable(low),
                high=comparable(high),
                has_null=pair.is_null_safe and num_nulls > 0,
                values=values,
            )
            for pair, (low, high, num_nulls, values) in self.bounds.items()
        ]

    def partition_values(self, partition_columns: Sequence[str]) -> dict[str, frozenset[Any]]:
        """Return the values of partition columns outside of which no row can match, where they are few."""
        names = {name.lower(): name for name in partition_columns}
        found = {}
        for pair, (_, _, num_nulls, values) in self.bounds.items():
            is_limited = values is not None and not (pair.is_null_safe and num_nulls)
            if is_limited and values and len(values) <= MAX_TRACKED_VALUES and pair.target.lower() in names:
                found[names[pair.target.lower()]] = values
        return found


def check_columns(batch: DataFrame, config: SinkConfig) -> None:
    """Raise when the batch lacks columns that the options name, or has names that are ours.

    Raises:
        ConfigError: A column has a reserved name.
        UnresolvedColumnError: keys or sequence_by name a column that the batch does not have.
    """
    reserved = [name for name in batch.columns if name.lower().startswith(RESERVED_PREFIX)]
    if reserved:
        raise ConfigError(
            [f"the column name {name} begins with {RESERVED_PREFIX}, which is reserved" for name in reserved]
        )
    present = {name.lower() for name in batch.columns}
    missing = [name for name in (*config.keys, *config.sequence_by) if name.lower() not in present]
    if missing:
        raise UnresolvedColumnError(f"the source has no column {', '.join(missing)}; it has {', '.join(batch.columns)}")


def newest_changes(batch: DataFrame, keys: Sequence[str], sequence_by: Sequence[str]) -> DataFrame:
    """Return the newest change of each key.

    A missing sequence is older than any. Changes of one key with one sequence are decided by their contents, so that a
    replay decides alike.
    """
    contents = [F.col(quote(f.name)) for f in batch.schema if not _is_unordered(f.dataType)]
    order = [F.col(quote(name)).desc_nulls_last() for name in sequence_by] + [F.xxhash64(*contents).desc()]
    rank = RESERVED_PREFIX + "rank"
    window = Window.partitionBy(*[quote(key) for key in keys]).orderBy(*order)
    ranked = batch.select("*", F.row_number().over(window).alias(rank))
    return ranked.where(F.col(rank) == 1).drop(rank)


def _is_unordered(data_type: Any) -> bool:
    # Spark hashes neither maps nor variants.
    if isinstance(data_type, (MapType, VariantType)):
        return True
    parts = [f.dataType for f in data_type.fields] if hasattr(data_type, "fields") else []
    element = getattr(data_type, "elementType", None)
    return any(_is_unordered(part) for part in [*parts, *([element] if element is not None else [])])


@contextmanager
def persisted(
    batch: DataFrame,
    config: SinkConfig,
    resolved: ResolvedMerge,
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
    batch_name: str,
) -> Iterator[Source]:
    """Evaluate the batch once and keep it for the block.

    Args:
        batch: The batch, already without the rows that go to quarantine.
        config: The sink.
        resolved: The statement.
        partition_columns: Partition columns of the target.
        independence: Whether a source row's new row depends on a match, and whether it has one; None if it always may.
        batch_name: How messages name the batch.

    Raises:
        NullKeyError: Keys are null and `null_keys` is error.
    """
    changes = newest_changes(batch, config.keys, config.sequence_by) if config.sequence_by else batch
    rows = changes.select("*", F.monotonically_increasing_id().alias(SOURCE_ID)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield _measured(rows, config, resolved, partition_columns, independence, batch_name)
    finally:
        rows.unpersist(blocking=True)


def _measured(
    rows: DataFrame,
    config: SinkConfig,
    resolved: ResolvedMerge,
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
    batch_name: str,
) -> Source:
    partitions = {name.lower() for name in partition_columns}
    pairs = [pair for pair in resolved.key_pairs if is_prunable(pair.type_name)]
    aggregates = [F.count(F.lit(1)).alias("rows")]
    is_null_key = null_key_condition(config.keys) if config.keys and config.null_keys == "error" else F.lit(False)
    aggregates.append(F.count(F.when(is_null_key, 1)).alias("null_keys"))
    for number, pair in enumerate(pairs):
        value = F.col(quote(pair.source))
        aggregates += [
            F.min(value).alias(f"low_{number}"),
            F.max(value).alias(f"high_{number}"),
            F.count(F.when(value.isNull(), 1)).alias(f"nulls_{number}"),
        ]
        if pair.target.lower() in partitions:
            aggregates.append(F.slice(F.collect_set(value), 1, MAX_PARTITION_VALUES + 1).alias(f"values_{number}"))
    if independence is not None:
        depends, is_written = independence
        aggregates += [F.count(F.when(depends, 1)).alias("dependent"), F.count(F.when(is_written, 1)).alias("written")]
    row = resolved.source(rows).agg(*aggregates).collect()[0]
    if row["null_keys"]:
        raise NullKeyError(batch_name, config.keys, row["null_keys"])
    bounds = {}
    for number, pair in enumerate(pairs):
        values = row.asDict().get(f"values_{number}")
        known = frozenset(values) if values is not None and len(values) <= MAX_PARTITION_VALUES else None
        bounds[pair] = (row[f"low_{number}"], row[f"high_{number}"], row[f"nulls_{number}"], known)
    return Source(
        rows=rows,
        num_rows=row["rows"],
        bounds=bounds,
        is_independent=independence is not None and row["dependent"] == 0,
        num_independent_rows=row["written"] if independence is not None else 0,
    )


def null_key_condition(keys: Sequence[str]) -> Column:
    """Return whether a row has a null in a key."""
    condition = F.lit(False)
    for key in keys:
        condition = condition | F.col(quote(key)).isNull()
    return condition
