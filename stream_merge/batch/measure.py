"""Measures the evaluated rows of a micro-batch in one pass, and drops those that a remembered delete outdates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge.batch.reduce import Reduction
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.merge_condition import KeyPair
from stream_merge.bridge.sessions import immediate_session, plan, summaries
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.column_names import (
    DELETED,
    IS_CARRIED_OVER,
    IS_DELETE,
    IS_OUTDATED,
    IS_TIED,
    IS_UNRESOLVED,
    NEWEST_DELETE,
    NUM_SUPERSEDED,
    SOURCE_ID,
)
from stream_merge.config import SinkConfig
from stream_merge.errors import NullKeyError
from stream_merge.merge.independence import independence_of
from stream_merge.merge.locate.probes import collected, collected_probes, collected_table, has_probes, is_near
from stream_merge.merge.source import Source, bound_of, deletes, null_key_condition
from stream_merge.partial_updates.fold import since_deletes
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.partial_updates.whole_rows import MAX_INCOMPLETE, needs_old_row
from stream_merge.sql import quote
from stream_merge.table.files import LAST_MICROS, comparable, is_prunable
from stream_merge.tombstones.files import highest_of
from stream_merge.tombstones.manifest import TombstoneFile
from stream_merge.tombstones.store import TombstoneStore

_COLLECTED = ("probes", "tombstones")

_HORIZON, _HIGHEST = "stream_merge: the horizon", "stream_merge: highest tombstones"
"""Stand in the plan for what the table remembers when a batch is measured."""

MAX_PARTITION_VALUES = 1000
"""Up to this many values of a partition column are compared one by one; beyond it only their range is."""

FIRST_PLAIN_MICROS = -2_208_988_800_000_000
"""The beginning of 1900, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PlannedMeasure:
    """What `measured` is going to compute.

    Attributes:
        measure: The aggregates.
        frame: They over all rows of the batch, planned; None if some rows may have to go first.
    """

    measure: _Measure
    frame: DataFrame | None


def plan_measure(reduction: Reduction, rows: DataFrame) -> PlannedMeasure:
    """Plan what `measured` will compute over rows, which may still be being evaluated."""
    config, resolved, store = reduction.changes.bound.config, reduction.measured_for, reduction.store
    # The key index will probably be asked again, and not about what it cannot answer.
    asks_index = (
        reduction.batch.caches.index.is_in_use
        and has_probes(resolved)
        and independence_of(resolved, keeps_order=config.keeps_order) is not None
    )
    measure = _Measure(
        config=config,
        resolved=resolved,
        partition_columns=reduction.transaction.partition_columns,
        store=store,
        batch_name=reduction.batch.name,
        probes_by=(config.sequence_columns if config.keeps_order else ()) if asks_index else None,
    )
    may_drop_rows = store is not None and (store.state.truncated is not None or store.reach.likely(store.files))
    return PlannedMeasure(measure, None if may_drop_rows else plan(measure.planned(rows)))


@contextmanager
def measured(rows: DataFrame, reduction: Reduction, planned: PlannedMeasure) -> Iterator[Source]:
    """Drop the rows that are older than a remembered delete of their key, and measure the others.

    Args:
        rows: The evaluated rows.
        reduction: The batch that they come from.
        planned: What `plan_measure` returned for both.

    Raises:
        NullKeyError: Keys are null and `null_keys` is error.
    """
    store, partial, measure = reduction.store, reduction.changes.partial, planned.measure
    columns = [quote(name) for name in rows.columns]
    rows, num_truncated = _untruncated(rows, store, partial)
    with ExitStack() as stack:

        def look_up(files: Collection[TombstoneFile]) -> tuple[DataFrame, DataFrame] | None:
            found = store.deleted(files, rows, only_older=partial is None) if store is not None and files else None
            if found is None:
                return None
            deleted = stack.enter_context(persisted(found))
            return deleted, deleted.agg(F.count(F.lit(1)), F.count(F.when(F.col(IS_OUTDATED), 1)))

        likely = [] if store is None else store.reach.likely(store.files)
        found, (num_deleted, num_outdated) = look_up(likely), (0, 0)
        if found is None:
            facts = measure.take(rows) if planned.frame is None else measure.collect(planned.frame)
        else:
            # Mostly no delete is found, and what is measured at the same time holds.
            (num_deleted, num_outdated), row = summaries(found[1], measure.frame(rows))
            facts = row.asDict()
        if store is not None:
            reached = []
            if store.files and facts["rows"]:
                reached = [file for file, is_reached in zip(store.files, facts["reached"], strict=True) if is_reached]
            store.reach.note(store.files, reached)
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


def _untruncated(
    rows: DataFrame, store: TombstoneStore | None, partial: PartialUpdates | None
) -> tuple[DataFrame, int]:
    """Drop the rows that are older than a TRUNCATE which the table remembers; return the others, and how many went."""
    if store is None or store.state.truncated is None:
        return rows, 0
    columns = [quote(name) for name in rows.columns]
    truncated = store.tombstones.column_of(store.state.truncated)
    is_older = store.tombstones.sequence_column() < truncated
    num_truncated = rows.where(is_older).count()
    rows = rows.where(~is_older)
    if partial is not None:
        if store.is_truncated:
            rows = rows.withColumn(NEWEST_DELETE, F.greatest(NEWEST_DELETE, truncated))
        rows = since_deletes(rows.withColumn(DELETED, truncated), partial).select(*columns)
    return rows, num_truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """The aggregates over a batch that a merge needs, computed in one pass; see `measured`.

    Attributes:
        probes_by: The columns that hold the sequence, if probes of the key index are wanted; None if they are not.
    """

    config: SinkConfig
    resolved: ResolvedMerge
    partition_columns: Sequence[str]
    store: TombstoneStore | None
    batch_name: str
    probes_by: Sequence[str] | None

    @property
    def independence(self) -> tuple[Column, Column] | None:
        """Whether a row's output depends on a match, and whether it has any; None if all rows may depend."""
        return independence_of(self.resolved, keeps_order=self.config.keeps_order)

    @property
    def _pairs(self) -> list[KeyPair]:
        return [pair for pair in self.resolved.key_pairs if is_prunable(pair.type_name)]

    def frame(
        self, rows: DataFrame, probes_by: Sequence[str] | None = None, spark: SparkSession | None = None
    ) -> DataFrame:
        """Return the aggregates over rows, as a frame of one row.

        Args:
            rows: The rows.
            probes_by: As the attribute.
            spark: The session of the frame; None for that of the merge.
        """
        resolved, store, columns = self.resolved, self.store, rows.columns
        texts = {}
        if store is not None and store.state.horizon is not None:
            texts[_HORIZON] = store.state.horizon
        if store is not None and store.files:
            texts[_HIGHEST] = highest_of(store.files)

        def aggregated(source: DataFrame) -> DataFrame:
            aggregates = self._lasting(columns)
            if store is not None and _HORIZON in texts:
                is_undecidable = store.tombstones.is_undecidable(_HORIZON)
                aggregates.append(F.count(F.when(is_undecidable, 1)).alias("undecidable"))
            if store is not None and _HIGHEST in texts:
                lowest = store.tombstones.lowest(columns)
                aggregates.append(store.tombstones.are_reached(_HIGHEST, lowest).alias("reached"))
            if probes_by is not None:
                aggregates += [*collected_probes(resolved, probes_by, source), *self._tombstones(columns)]
            return source.agg(*aggregates)

        name = f"measure of {columns} with {sorted(texts)}, probes by {probes_by}"
        return resolved.over_source(name, aggregated, rows, spark=spark, texts=texts)

    def _lasting(self, columns: Sequence[str]) -> list[Column]:
        """Return the aggregates over rows with these columns that are the same for every batch."""
        config, store = self.config, self.store
        aggregates = _aggregates(config, self._pairs, self.partition_columns, self.independence)
        if IS_UNRESOLVED in columns:
            aggregates.append(F.count(F.when(F.col(IS_UNRESOLVED), 1)).alias("unresolved"))
        if IS_CARRIED_OVER in columns:
            incomplete = F.collect_list(F.when(needs_old_row() & is_near(), F.col(SOURCE_ID)))
            aggregates.append(F.slice(incomplete, 1, MAX_INCOMPLETE + 1).alias("incomplete"))
            aggregates.append(F.count_if(needs_old_row()).alias("num_incomplete"))
        if config.sequence_by:
            is_delete = deletes(self.resolved, columns) if config.keeps_order else F.lit(False)
            aggregates += [
                F.coalesce(F.sum(NUM_SUPERSEDED), F.lit(0)).alias("superseded"),
                F.count(F.when(F.col(IS_TIED), 1)).alias("tied"),
                F.count(F.when(is_delete, 1)).alias("deletes"),
            ]
            if config.follows_columns:
                # A row of single columns may have been deleted and inserted again.
                is_upsert = ~is_delete
                if IS_DELETE in columns:
                    is_upsert = ~F.col(IS_DELETE) & ~F.col(IS_CARRIED_OVER)
                aggregates.append(F.count(F.when(is_upsert, 1)).alias("upserts"))
            if store is not None:
                aggregates.append(store.tombstones.highest_delete(is_delete, columns).alias("highest_delete"))
        return aggregates

    def planned(self, rows: DataFrame) -> DataFrame:
        """Return the aggregates over rows, and the probes if they are wanted, as `collect` takes them."""
        return self.frame(rows, self.probes_by, immediate_session(rows.sparkSession))

    def _tombstones(self, columns: Sequence[str]) -> list[Column]:
        """Return the tombstones of the rows that are deletes, as one aggregate; nothing if the sink keeps none."""
        if self.store is None:
            return []
        is_delete = deletes(self.resolved, columns)
        return [collected(is_delete, self.store.tombstones.columns(columns)).alias("tombstones")]

    def collect(self, planned: DataFrame) -> dict[str, Any]:
        """Compute what `planned` returned."""
        if self.probes_by is None:
            return planned.collect()[0].asDict()
        table = planned.toArrow()
        facts = {name: table[name][0] for name in table.column_names}
        return {name: value if name in _COLLECTED else value.as_py() for name, value in facts.items()}

    def take(self, rows: DataFrame) -> dict[str, Any]:
        """Compute the aggregates over rows, and collect the probes."""
        return self.collect(self.planned(rows))

    def source(self, rows: DataFrame, facts: Mapping[str, Any], num_outdated: int) -> Source:
        """Return the source that these rows and their aggregates make.

        Raises:
            NullKeyError: Keys are null and `null_keys` is error.
        """
        known = dict(facts)
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
        incomplete = frozenset(known.get("incomplete") or ())
        return Source(
            rows=rows,
            num_rows=known["rows"],
            bounds=bounds,
            is_independent=self.independence is not None
            and known["dependent"] == 0
            and len(incomplete) == known.get("num_incomplete", 0) <= MAX_INCOMPLETE,
            num_independent_rows=known.get("written", 0),
            num_deletes=known.get("deletes", 0),
            num_upserts=known.get("upserts", 0),
            highest_delete=known.get("highest_delete"),
            num_unresolved=known.get("unresolved", 0),
            incomplete=incomplete,
            counts=counts,
            probes=collected_table(known["probes"], known["num_probes"]) if "probes" in known else None,
            tombstones=collected_table(known["tombstones"], known["deletes"]) if "tombstones" in known else None,
        )


def _are_plain(values: Collection[Any], type_name: str) -> bool:
    """Return whether values survive the way from Spark and back: before 1900 Java's calendar differs from Spark's."""
    return type_name != "timestamp" or all(FIRST_PLAIN_MICROS <= value <= LAST_MICROS for value in values)


_DATES_OF_PYTHON = ("DATE'0001-01-01'", "DATE'9999-12-31'")
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
    is_null_key = F.lit(False)
    if config.keys and config.null_keys == "error":
        is_null_key = null_key_condition(config.keys)
    aggregates.append(F.count(F.when(is_null_key, 1)).alias("null_keys"))
    for number, pair in enumerate(pairs):
        value = F.col(quote(pair.source))
        aggregates += [
            bound_of(F.min(value), pair.type_name, is_upper=False).alias(f"low_{number}"),
            bound_of(F.max(value), pair.type_name, is_upper=True).alias(f"high_{number}"),
            F.count(F.when(value.isNull(), 1)).alias(f"nulls_{number}"),
        ]
        if pair.target.lower() in partitions:
            # A datetime would be ambiguous in the hour in which clocks are put back.
            told = F.unix_micros(value) if pair.type_name == "timestamp" else value
            values = F.slice(F.collect_set(told), 1, MAX_PARTITION_VALUES + 1)
            if pair.type_name == "string":
                # The log has others of the values that are not in UTF-8.
                values = F.when(F.bool_and(F.is_valid_utf8(value)), values)
            elif pair.type_name == "date":
                # Python has no others.
                values = F.when(F.bool_and(value.between(*map(F.expr, _DATES_OF_PYTHON))), values)
            aggregates.append(values.alias(f"values_{number}"))
    if independence is not None:
        depends, is_written = independence
        aggregates += [F.count(F.when(depends, 1)).alias("dependent"), F.count(F.when(is_written, 1)).alias("written")]
    return aggregates
