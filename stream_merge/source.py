"""The micro-batch as the merge takes it: one row per key where an order is given, numbered, kept, evaluated once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.sessions import persisted, summaries
from stream_merge.bridge.statement import SOURCE_ID, KeyPair, Once, ResolvedMerge
from stream_merge.config import SinkConfig
from stream_merge.errors import NullKeyError
from stream_merge.files import FIRST_MICROS, LAST_MICROS, KeyRange, comparable, is_prunable, physical_name
from stream_merge.folding import folded_changes, since_deletes, unset_columns
from stream_merge.partial_updates import (
    DELETED,
    IS_OUTDATED,
    IS_UNRESOLVED,
    NEWEST_DELETE,
    PartialUpdates,
)
from stream_merge.sequence import IS_TIED, NUM_SUPERSEDED, newest_changes
from stream_merge.statement import column_of, quote

if TYPE_CHECKING:
    from stream_merge.change_memory import ChangeMemory
    from stream_merge.tombstones import TombstoneFile

MAX_PARTITION_VALUES = 1000
"""Up to so many values of a partition column are compared one by one, beyond it only their range."""

MAX_UNSHUFFLED_ROWS = 20_000
"""Up to so many rows the newest changes are chosen in one task: a shuffle would be a job more, and take longer than the choice."""

MAX_TRACKED_VALUES = 100
"""Beyond so many values of a partition column, a change of another partition counts as a conflict, too."""


FIRST_PLAIN_MICROS = -2_208_988_800_000_000
"""The beginning of 1900, in microseconds since the epoch."""

SPECIAL = ("truncates", "moves", "unset")
"""The names of `special_changes`."""

Bounds: TypeAlias = "tuple[Any, Any, int, frozenset[Any] | None]"
"""Smallest and largest value, number of nulls, and the values where they are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A persisted micro-batch and what one pass over it told.

    Attributes:
        rows: The rows, with `SOURCE_ID` behind their columns.
        num_rows: How many.
        bounds: Smallest and largest value, number of nulls, and values where they are few, for each of the key pairs.
        is_independent: Whether what is written for a row is the same whether it matches or not.
        num_independent_rows: How many rows are written then.
        num_deletes: How many keys the batch deletes, for a sink with a sequence.
        highest_delete: The highest sequence of these deletes, as JSON.
        num_unresolved: How many rows lack the value of a column that their change did not send.
        counts: Metrics of the order of changes, by field name of `MergeResult`.
    """

    rows: DataFrame
    num_rows: int
    bounds: Mapping[KeyPair, Bounds]
    is_independent: bool
    num_independent_rows: int
    num_deletes: int = 0
    highest_delete: str | None = None
    num_unresolved: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def key_ranges(self, schema: Mapping[str, Any]) -> list[KeyRange]:
        """Return what the batch can match, for skipping files of a table with this schema."""
        return [key_range(pair, bounds, schema) for pair, bounds in self.bounds.items()]

    def partition_values(self, partition_columns: Sequence[str]) -> dict[str, frozenset[Any]]:
        """Return the values of partition columns outside of which no row can match, where they are few."""
        names = {name.lower(): name for name in partition_columns}
        found = {}
        for pair, (_, _, num_nulls, values) in self.bounds.items():
            is_limited = values is not None and not (pair.is_null_safe and num_nulls)
            if is_limited and values and len(values) <= MAX_TRACKED_VALUES and pair.target.lower() in names:
                found[names[pair.target.lower()]] = values
        return found


def bound_of(value: Column, type_name: str) -> Column:
    """Return the smallest or largest value of a batch as one that Python has: its years are 1 to 9999.

    Values beyond are taken for the last within. A file that has them has statistics beyond, too, which tell nothing: it is read.
    """
    if type_name == "date":
        nearest = F.greatest(F.least(value, F.expr("DATE'9999-12-31'")), F.expr("DATE'0001-01-01'"))
    elif type_name == "timestamp":
        # A datetime would go through the zone of this process, where the first and the last day may have no time.
        nearest = F.greatest(F.least(F.unix_micros(value), F.lit(LAST_MICROS)), F.lit(FIRST_MICROS))
    else:
        return value
    return F.when(value.isNotNull(), nearest)


def key_range(pair: KeyPair, bounds: Bounds, schema: Mapping[str, Any]) -> KeyRange:
    """Return what values between these bounds can match in a table with this schema."""
    low, high, num_nulls, values = bounds
    return KeyRange(
        physical_path=physical_name(schema, pair.target),
        type_name=pair.type_name,
        low=comparable(low, pair.type_name),
        high=comparable(high, pair.type_name),
        has_null=pair.is_null_safe and num_nulls > 0,
        values=values,
    )


def key_ranges_of(
    keys: Sequence[str], bounds: Sequence[tuple[Any, Any, int]], pairs: Sequence[KeyPair], schema: Mapping[str, Any]
) -> list[KeyRange]:
    """Return what some keys can match.

    Args:
        keys: The key columns.
        bounds: Smallest and largest value of each, and number of nulls.
        pairs: The equalities of the merge condition.
        schema: The table's schema.
    """
    of_key = dict(zip((key.lower() for key in keys), bounds, strict=True))
    return [
        key_range(pair, (*of_key[pair.source.lower()], None), schema)
        for pair in pairs
        if is_prunable(pair.type_name) and pair.source.lower() in of_key
    ]


def special_changes(config: SinkConfig, partial: PartialUpdates | None) -> list[Column]:
    """Return aggregates that count the changes of a batch which need steps of their own; empty if there can be none.

    `truncates`; `moves`, changes that give a row another key; `unset`, the names of the columns that a change leaves alone. To be
    taken over a frame with the source's alias.
    """
    counts = []
    if config.truncate_when is not None:
        counts.append(F.count(F.when(is_truncate(config), 1)).alias("truncates"))
    if config.old_key is not None and config.new_key is not None:
        keys = [column_of(config.old_key).isNotNull(), column_of(config.new_key).isNotNull()]
        counts.append(F.count(F.when(keys[0] | keys[1], 1)).alias("moves"))
    if partial is not None and not partial.is_always:
        unset = unset_columns(config, partial.columns)
        counts.append(F.array_distinct(F.flatten(F.collect_set(unset))).alias("unset"))
    return counts


def is_truncate(config: SinkConfig) -> Column:
    """Return whether a row of the source stands for a TRUNCATE."""
    return F.lit(False) if config.truncate_when is None else F.coalesce(column_of(config.truncate_when), F.lit(False))


def without_truncates(batch: DataFrame, config: SinkConfig) -> tuple[DataFrame, DataFrame]:
    """Return the rows that stand for a TRUNCATE, and the others."""
    named = batch.alias(config.source_alias)
    return named.where(is_truncate(config)), named.where(~is_truncate(config))


def own_columns(config: SinkConfig, partial: PartialUpdates | None) -> dict[str, str]:
    """Return name and type of the columns that `evaluated` adds to a batch."""
    of_order = {IS_TIED: "boolean", NUM_SUPERSEDED: "bigint"} if config.sequence_by else {}
    return {**of_order, **(partial.own_columns() if partial else {}), SOURCE_ID: "bigint"}


@contextmanager
def evaluated(
    batch: DataFrame,
    config: SinkConfig,
    partial: PartialUpdates | None,
    num_rows: int | None,
    written: Collection[str],
    once: Once,
) -> Iterator[DataFrame]:
    """Evaluate the batch once and keep it for the block: its newest changes where an order is given, numbered by `SOURCE_ID`.

    Args:
        batch: The batch; where changes set single columns, as `described_changes` returns it.
        config: The sink, its sequence in columns.
        partial: How changes set single columns, if they do.
        num_rows: How many rows the batch has, if its rows are kept and were counted.
        written: The columns of the batch that are written, in lower case.
        once: Keeps expressions for other batches.
    """
    if config.sequence_by and num_rows is not None and num_rows <= MAX_UNSHUFFLED_ROWS:
        batch = batch.coalesce(1)
    changes = batch
    if config.sequence_by and partial is not None:
        changes = folded_changes(batch, config, written, partial, once)
    elif config.sequence_by:
        changes = newest_changes(batch, config, written, once)
    with materialized(changes.select("*", F.monotonically_increasing_id().alias(SOURCE_ID))) as rows:
        yield rows


def written_columns(batch: DataFrame, config: SinkConfig, resolved: ResolvedMerge) -> set[str]:
    """Return the columns of the batch that the target takes, in lower case; all of them where clauses say what they take."""
    if config.clauses:
        return {name.lower() for name in batch.columns}
    return {name.lower() for name in config.columns or batch.columns} & {name.lower() for name in resolved.columns}


@contextmanager
def measured(
    rows: DataFrame,
    config: SinkConfig,
    resolved: ResolvedMerge,
    partition_columns: Sequence[str],
    independence: tuple[Column, Column] | None,
    memory: ChangeMemory | None,
    partial: PartialUpdates | None,
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
        partial: How changes set single columns, if they do.
        batch_name: How messages name the batch.

    Raises:
        NullKeyError: Keys are null and `null_keys` is error.
    """
    measure = _Measure(config, resolved, partition_columns, independence, memory, batch_name)
    columns = [quote(name) for name in rows.columns]
    rows, num_truncated = _untruncated(rows, memory, partial)
    with ExitStack() as stack:

        def look_up(files: Collection[TombstoneFile]) -> tuple[DataFrame, DataFrame] | None:
            found = memory.deleted(files, rows, only_older=partial is None) if memory is not None and files else None
            if found is None:
                return None
            deleted = stack.enter_context(persisted(found))
            return deleted, deleted.agg(F.count(F.lit(1)), F.count(F.when(F.col(IS_OUTDATED), 1)))

        likely = [] if memory is None else memory.reach.likely(memory.files)
        found, (num_deleted, num_outdated) = look_up(likely), (0, 0)
        if found is None:
            facts = measure.take(rows)
        else:
            # Mostly no delete is found, and what is measured at the same time holds.
            (num_deleted, num_outdated), facts = summaries(found[1], measure.frame(rows))
        if memory is not None:
            reached = []
            if memory.files and facts["rows"]:
                reached = [file for file, is_reached in zip(memory.files, facts["reached"], strict=True) if is_reached]
            memory.reach.note(memory.files, reached)
            if not set(reached) <= set(likely) and (found := look_up(reached)) is not None:
                ((num_deleted, num_outdated),) = summaries(found[1])
        if num_deleted and found is not None:
            deleted, _ = found
            if partial is not None:
                joined = rows.join(deleted, SOURCE_ID, "left").where(~F.coalesce(F.col(IS_OUTDATED), F.lit(False)))
                rows = since_deletes(joined, partial).select(*columns)
            else:
                rows = rows.join(deleted, SOURCE_ID, "left_anti").select(*columns)
            facts = measure.take(rows)
        yield measure.source(rows, facts, num_truncated + num_outdated)


def _untruncated(rows: DataFrame, memory: ChangeMemory | None, partial: PartialUpdates | None) -> tuple[DataFrame, int]:
    """Leave out what is older than a TRUNCATE that the table remembers; the second item is how many rows."""
    if memory is None or memory.state.truncated is None:
        return rows, 0
    columns = [quote(name) for name in rows.columns]
    truncated = memory.tombstones.column_of(memory.state.truncated)
    is_older = memory.tombstones.sequence_column() < truncated
    num_truncated = rows.where(is_older).count()
    rows = rows.where(~is_older)
    if partial is not None:
        if memory.is_truncated:
            rows = rows.withColumn(NEWEST_DELETE, F.greatest(NEWEST_DELETE, truncated))
        rows = since_deletes(rows.withColumn(DELETED, truncated), partial).select(*columns)
    return rows, num_truncated


@dataclass(frozen=True, slots=True)
class _Measure:
    """What a merge needs to know of a batch, in one pass; see `measured`."""

    config: SinkConfig
    resolved: ResolvedMerge
    partition_columns: Sequence[str]
    independence: tuple[Column, Column] | None
    memory: ChangeMemory | None
    batch_name: str

    @property
    def _pairs(self) -> list[KeyPair]:
        return [pair for pair in self.resolved.key_pairs if is_prunable(pair.type_name)]

    def frame(self, rows: DataFrame) -> DataFrame:
        """Return what is to be known of rows, a frame of one row."""
        resolved, memory, columns = self.resolved, self.memory, rows.columns
        aggregates = [*resolved.once(f"facts of {columns}", lambda: self._lasting(columns))]
        if memory is not None:
            is_undecidable = memory.tombstones.is_undecidable(memory.state)
            aggregates.append(F.count(F.when(is_undecidable, 1)).alias("undecidable"))
            if memory.files:
                lowest = resolved.once(f"lowest of {columns}", lambda: memory.tombstones.lowest(columns))
                aggregates.append(memory.tombstones.are_reached(memory.files, lowest).alias("reached"))
        return resolved.source(rows).agg(*aggregates)

    def _lasting(self, columns: Sequence[str]) -> list[Column]:
        """Return the aggregates over rows with these columns that are the same for every batch."""
        config, memory = self.config, self.memory
        aggregates = _aggregates(config, self._pairs, self.partition_columns, self.independence)
        if IS_UNRESOLVED in columns:
            aggregates.append(F.count(F.when(F.col(IS_UNRESOLVED), 1)).alias("unresolved"))
        if config.sequence_by:
            is_delete = deletes(self.resolved, columns) if config.keeps_order else F.lit(False)
            aggregates += [
                F.coalesce(F.sum(NUM_SUPERSEDED), F.lit(0)).alias("superseded"),
                F.count(F.when(F.col(IS_TIED), 1)).alias("tied"),
                F.count(F.when(is_delete, 1)).alias("deletes"),
            ]
            if memory is not None:
                aggregates.append(memory.tombstones.highest_delete(is_delete, columns).alias("highest_delete"))
        return aggregates

    def take(self, rows: DataFrame) -> Row:
        """Return what is to be known of rows."""
        return summaries(self.frame(rows))[0]

    def source(self, rows: DataFrame, facts: Row, num_outdated: int) -> Source:
        """Return the source of these rows, of which this is known.

        Raises:
            NullKeyError: Keys are null and `null_keys` is error.
        """
        known = facts.asDict()
        if known["null_keys"]:
            raise NullKeyError(self.batch_name, self.config.keys, known["null_keys"])
        bounds = {}
        for number, pair in enumerate(self._pairs):
            values = known.get(f"values_{number}")
            few = None
            if values is not None and len(values) <= MAX_PARTITION_VALUES and _are_plain(values, pair.type_name):
                few = frozenset(comparable(value, pair.type_name) for value in values)
            bounds[pair] = (known[f"low_{number}"], known[f"high_{number}"], known[f"nulls_{number}"], few)
        counts = {}
        if self.config.sequence_by:
            counts = {f"num_{name}": known.get(key, 0) for name, key in _COUNTS_OF_ORDER.items()}
            counts["num_outdated_rows"] = num_outdated
        return Source(
            rows=rows,
            num_rows=known["rows"],
            bounds=bounds,
            is_independent=self.independence is not None and known["dependent"] == 0,
            num_independent_rows=known.get("written", 0),
            num_deletes=known.get("deletes", 0),
            highest_delete=known.get("highest_delete"),
            num_unresolved=known.get("unresolved", 0),
            counts=counts,
        )


def _are_plain(values: Collection[Any], type_name: str) -> bool:
    """Whether the way from Spark and back gives the same values: before 1900 Java's calendar is another one than Spark's."""
    return type_name != "timestamp" or all(FIRST_PLAIN_MICROS <= value <= LAST_MICROS for value in values)


_COUNTS_OF_ORDER = {"superseded_rows": "superseded", "tied_keys": "tied", "undecidable_rows": "undecidable"}


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
            bound_of(F.min(value), pair.type_name).alias(f"low_{number}"),
            bound_of(F.max(value), pair.type_name).alias(f"high_{number}"),
            F.count(F.when(value.isNull(), 1)).alias(f"nulls_{number}"),
        ]
        if pair.target.lower() in partitions:
            # A datetime would be ambiguous in the hour in which clocks are put back.
            told = F.unix_micros(value) if pair.type_name == "timestamp" else value
            aggregates.append(F.slice(F.collect_set(told), 1, MAX_PARTITION_VALUES + 1).alias(f"values_{number}"))
    if independence is not None:
        depends, is_written = independence
        aggregates += [F.count(F.when(depends, 1)).alias("dependent"), F.count(F.when(is_written, 1)).alias("written")]
    return aggregates


def deletes(resolved: ResolvedMerge, columns: Collection[str] = ()) -> Column:
    """Return whether a source row of a sink with a sequence tells of a delete, to be remembered.

    Args:
        resolved: The merge.
        columns: The columns that the rows have.
    """
    if NEWEST_DELETE in columns:
        return F.col(NEWEST_DELETE).isNotNull()
    insert = next((c for c in resolved.clauses if c.clause.is_insert), None)
    return F.lit(False) if insert is None or insert.condition is None else ~insert.condition


def null_key_condition(keys: Sequence[str]) -> Column:
    """Return whether a row has a null in a key."""
    condition = F.lit(False)
    for key in keys:
        condition = condition | F.col(quote(key)).isNull()
    return condition
