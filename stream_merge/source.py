"""The micro-batch as the merge takes it: one row per key where an order is given, numbered, kept, evaluated once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.statement import RESERVED_PREFIX, SOURCE_ID, KeyPair, ResolvedMerge
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, NullKeyError, UnresolvedColumnError
from stream_merge.files import KeyRange, comparable, is_prunable, physical_name
from stream_merge.sequence import IS_TIED, NUM_SUPERSEDED, newest_changes
from stream_merge.statement import quote

if TYPE_CHECKING:
    from stream_merge.change_memory import ChangeMemory

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
        num_deletes: How many rows are deletes, for a sink with a sequence.
        counts: Metrics of the order of changes, by field name of `MergeResult`.
    """

    rows: DataFrame
    num_rows: int
    bounds: Mapping[KeyPair, tuple[Any, Any, int, frozenset[Any] | None]]
    is_independent: bool
    num_independent_rows: int
    num_deletes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

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
        UnresolvedColumnError: keys name a column that the batch does not have.
    """
    reserved = [name for name in batch.columns if name.lower().startswith(RESERVED_PREFIX)]
    if reserved:
        raise ConfigError(
            [f"the column name {name} begins with {RESERVED_PREFIX}, which is reserved" for name in reserved]
        )
    present = {name.lower() for name in batch.columns}
    missing = [name for name in config.keys if name.lower() not in present]
    if missing:
        raise UnresolvedColumnError(f"the source has no column {', '.join(missing)}; it has {', '.join(batch.columns)}")


def own_columns(config: SinkConfig) -> dict[str, str]:
    """Return name and type of the columns that `evaluated` adds to a batch."""
    of_order = {IS_TIED: "boolean", NUM_SUPERSEDED: "bigint"} if config.sequence_by else {}
    return {**of_order, SOURCE_ID: "bigint"}


@contextmanager
def evaluated(batch: DataFrame, config: SinkConfig) -> Iterator[DataFrame]:
    """Evaluate the batch once and keep it for the block: its newest changes where an order is given, numbered by `SOURCE_ID`."""
    changes = newest_changes(batch, config.keys, config.sequence_columns) if config.sequence_by else batch
    rows = changes.select("*", F.monotonically_increasing_id().alias(SOURCE_ID)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist(blocking=True)


@contextmanager
def measured(
    rows: DataFrame,
    config: SinkConfig,
    resolved: ResolvedMerge,
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
    memory: ChangeMemory | None,
    batch_name: str,
) -> Iterator[Source]:
    """Leave out what is older than a remembered delete, and find out what the merge needs to know of the batch.

    Args:
        rows: The evaluated batch.
        config: The sink.
        resolved: The statement.
        partition_columns: Partition columns of the target.
        independence: Whether a source row's new row depends on a match, and whether it has one; None if it always may.
        memory: The remembered deletes, if the sink keeps any.
        batch_name: How messages name the batch.

    Raises:
        NullKeyError: Keys are null and `null_keys` is error.
    """
    if memory is None or not memory.state.files:
        yield _measured(rows, config, resolved, partition_columns, independence, memory, 0, batch_name)
        return
    outdated = memory.tombstones.outdated(memory.state.files, rows).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        num_outdated = outdated.count()
        if num_outdated:
            rows = rows.join(outdated, SOURCE_ID, "left_anti").select(*[quote(c) for c in rows.columns])
        yield _measured(rows, config, resolved, partition_columns, independence, memory, num_outdated, batch_name)
    finally:
        outdated.unpersist(blocking=True)


def _measured(
    rows: DataFrame,
    config: SinkConfig,
    resolved: ResolvedMerge,
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
    memory: ChangeMemory | None,
    num_outdated: int,
    batch_name: str,
) -> Source:
    pairs = [pair for pair in resolved.key_pairs if is_prunable(pair.type_name)]
    aggregates = [*resolved.once("aggregates", lambda: _aggregates(config, pairs, partition_columns, independence))]
    if config.sequence_by:
        is_undecidable = F.lit(False) if memory is None else memory.tombstones.is_undecidable(memory.state)
        aggregates += [
            F.coalesce(F.sum(NUM_SUPERSEDED), F.lit(0)).alias("superseded"),
            F.count(F.when(F.col(IS_TIED), 1)).alias("tied"),
            F.count(F.when(is_undecidable, 1)).alias("undecidable"),
            F.count(F.when(deletes(resolved) if config.keeps_order else F.lit(False), 1)).alias("deletes"),
        ]
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
        num_deletes=row["deletes"] if config.sequence_by else 0,
        counts={
            "num_superseded_rows": row["superseded"],
            "num_tied_keys": row["tied"],
            "num_undecidable_rows": row["undecidable"],
            "num_outdated_rows": num_outdated,
        }
        if config.sequence_by
        else {},
    )


def _aggregates(
    config: SinkConfig,
    pairs: Sequence[KeyPair],
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
) -> list[Column]:
    """Return the aggregates over a batch that depend on sink and statement alone."""
    partitions = {name.lower() for name in partition_columns}
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
    return aggregates


def deletes(resolved: ResolvedMerge) -> Column:
    """Return whether the default clauses of a sink with a sequence delete by a source row, rather than upsert it."""
    insert = next((c for c in resolved.clauses if c.clause.is_insert), None)
    return F.lit(False) if insert is None or insert.condition is None else ~insert.condition


def null_key_condition(keys: Sequence[str]) -> Column:
    """Return whether a row has a null in a key."""
    condition = F.lit(False)
    for key in keys:
        condition = condition | F.col(quote(key)).isNull()
    return condition
