"""Finds rows that get another key and need values that they had under the old one.

A log has two changes for it: a delete of the old key, the departure, and an upsert of the new key, the arrival. They
may come in different batches, in either order. `key_change_values` hands the values on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.sessions import summaries
from stream_merge.bridge.statement import Once
from stream_merge.clauses import Expression
from stream_merge.column_names import IS_DELETE, NEW_KEY, OLD_KEY, UNSET
from stream_merge.config import SinkConfig
from stream_merge.merge.key_and_sequence import columns_of, key_names, key_struct, key_type
from stream_merge.merge.source import MAX_UNSHUFFLED_ROWS, bound_of
from stream_merge.partial_updates.registers import PartialUpdates, order_of
from stream_merge.sql import column_of
from stream_merge.table.files import is_prunable

_MAX_BROADCAST_MOVES = 100_000
"""If there are more, Spark decides how to join them with the batch, which is large as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The key changes of a batch whose values have to be handed on: their arrival lacks them, or is yet to come.

    Attributes:
        changes: The batch with `UNSET`, `IS_DELETE`, `IS_CARRIED_OVER`, `OLD_KEY` and `NEW_KEY`.
        departures: The persisted departures whose arrival lacks values or is not in the batch: the keys `from` and
            `to`, and the sequence `at`. Departures that the table remembers are left out.
        num_departures: How many.
        num_lacking: How many arrivals lack values.
        num_steps: How many pairs there are of a departure and a later departure of the same row from its new key.
        bounds: Smallest and largest value of each key column in `from` and `to`, and number of nulls. The values are
            None for types whose bounds are not compared.
        is_small: Whether the batch is so small that one task finishes it before others would have begun. Starting a job
            then takes longer than the job itself, so there should be few.
    """

    changes: DataFrame
    departures: DataFrame
    num_departures: int
    num_lacking: int
    num_steps: int
    bounds: Sequence[tuple[Any, Any, int]]
    is_small: bool

    @property
    def broadcast_departures(self) -> DataFrame:
        """The departures, to be broadcast in a join unless they are too many."""
        return self._broadcast(self.departures)

    @property
    def ends(self) -> DataFrame:
        """The keys that rows leave and the keys that they get, as `key`, to be broadcast in the same way."""
        left, gone_to = (self.departures.select(F.col(name).alias("key")) for name in ("from", "to"))
        return self._broadcast(left.unionByName(gone_to))

    def _broadcast(self, frame: DataFrame) -> DataFrame:
        return F.broadcast(frame) if self.num_departures <= _MAX_BROADCAST_MOVES else frame


def with_moves(changes: DataFrame, config: SinkConfig, once: Once) -> DataFrame:
    """Add `OLD_KEY` and `NEW_KEY`, the keys of a row before and after a change; NULL if the key stays as it is."""
    in_batch = {field.name.lower(): field.dataType for field in changes.schema}
    types = {name: in_batch[name.lower()] for name in config.keys}

    def key(expression: Expression | None) -> Column:
        if expression is None:
            return F.lit(None).cast(key_type(types.values()))
        value = column_of(expression)
        fields = (value.getField(name).cast(kind) for name, kind in types.items())
        return F.when(value.isNotNull(), key_struct(fields))

    keys = once("old and new key", lambda: [key(config.old_key).alias(OLD_KEY), key(config.new_key).alias(NEW_KEY)])
    return changes.alias(config.source_alias).select("*", *keys)


@contextmanager
def find_moves(
    changes: DataFrame,
    config: SinkConfig,
    partial: PartialUpdates,
    num_rows: int | None,
    *,
    moved: Callable[[], DataFrame | None],
    may_remember: Callable[[Column], Column],
    once: Once,
) -> Iterator[Moves | None]:
    """Give the key changes whose values have to be handed on; None if all rows take their values along, as most do.

    Args:
        changes: The batch with `UNSET`, `IS_DELETE`, `IS_CARRIED_OVER`, `OLD_KEY` and `NEW_KEY`.
        config: The sink, its sequence in columns.
        partial: What changes may set.
        num_rows: How many rows the batch has, if they are kept and were counted.
        moved: Gives the tombstones of earlier batches that hold values; None if there are none.
        may_remember: Returns whether there may be such a tombstone with a given sequence.
        once: Keeps the expressions for other batches.
    """
    is_small = num_rows is not None and num_rows <= MAX_UNSHUFFLED_ROWS
    if is_small:
        changes = changes.coalesce(1)
    num_keys = len(config.keys)
    with ExitStack() as stack:
        needy = stack.enter_context(persisted(_needy(changes, config, partial, once), at_once=is_small))
        found = _counted(needy, num_keys, may_remember, once, is_small=is_small)
        remembered = moved() if found["remembered"] else None
        if remembered is not None:
            new = _without_remembered(needy, remembered, num_keys)
            needy = stack.enter_context(persisted(new, at_once=is_small))
            found = _counted(needy, num_keys, may_remember, once, is_small=is_small)
        if not found["departures"] and not found["lacking"]:
            yield None
            return
        yield Moves(
            changes=changes,
            departures=_departures(needy, is_small=is_small),
            num_departures=found["departures"],
            num_lacking=found["lacking"],
            num_steps=found["steps"],
            bounds=[(found.get(f"low_{i}"), found.get(f"high_{i}"), found[f"nulls_{i}"]) for i in range(num_keys)],
            is_small=is_small,
        )


def _needy(changes: DataFrame, config: SinkConfig, partial: PartialUpdates, once: Once) -> DataFrame:
    """Return the departures whose arrival lacks values or is not in the batch, and the arrivals that lack values.

    The columns are `departs`, the keys `from` and `to`, and the sequence `at`.
    """
    is_move, columns, is_needy = once("needy", lambda: _needs(config, partial))
    moves = changes.where(is_move).select(*columns)
    return moves.withColumn("is_needy", is_needy).where("is_needy").select("departs", "from", "to", "at").distinct()


def is_arrival(keys: Sequence[str]) -> Column:
    """Return whether a change of a batch with `OLD_KEY` brings a row that had another key."""
    return ~F.col(IS_DELETE) & F.col(OLD_KEY).isNotNull() & ~F.col(OLD_KEY).eqNullSafe(key_struct(columns_of(keys)))


def _needs(config: SinkConfig, partial: PartialUpdates) -> tuple[Column, Sequence[Column], Column]:
    """Return which changes are moves, the columns of a move, and whether it needs values or hands them on."""
    key = key_struct(columns_of(config.keys))
    is_departure = F.col(IS_DELETE) & F.col(NEW_KEY).isNotNull()
    is_arrival = ~F.col(IS_DELETE) & F.col(OLD_KEY).isNotNull()
    columns = [
        is_departure.alias("departs"),
        F.when(is_departure, key).otherwise(F.col(OLD_KEY)).alias("from"),
        F.when(is_departure, F.col(NEW_KEY)).otherwise(key).alias("to"),
        order_of(config.sequence_columns, partial).alias("at"),
        F.coalesce(F.size(UNSET) > 0, F.lit(False)).alias("lacks"),
    ]
    # A row that takes all its values along needs none from its old key.
    newest_whole = F.max(F.when(~F.col("departs") & ~F.col("lacks"), F.col("at"))).over(
        Window.partitionBy("from", "to")
    )
    is_needy = F.when(F.col("departs"), ~F.coalesce(newest_whole >= F.col("at"), F.lit(False))).otherwise(
        F.col("lacks")
    )
    return is_departure | is_arrival, columns, is_needy


def _without_remembered(needy: DataFrame, remembered: DataFrame, num_keys: int) -> DataFrame:
    """Leave out departures that come again.

    The tombstones in `remembered` hold the values of their rows. The rows themselves are gone, so that no values would
    be found.
    """
    kind = needy.schema["from"].dataType
    again = remembered.select(
        key_of_tombstone(num_keys, kind).alias("left"),
        F.col("moved.to").cast(kind).alias("gone_to"),
        F.col("sequence").cast(needy.schema["at"].dataType).alias("left_at"),
    )
    is_again = (F.col("from") == F.col("left")) & (F.col("to") == F.col("gone_to"))
    is_again &= F.col("departs") & (F.col("at") == F.col("left_at"))
    return needy.join(again, is_again, "left_anti")


def _departures(needy: DataFrame, *, is_small: bool) -> DataFrame:
    departures = needy.where("departs").drop("departs")
    return departures.coalesce(1) if is_small else departures


def _counted(
    needy: DataFrame, num_keys: int, may_remember: Callable[[Column], Column], once: Once, *, is_small: bool
) -> dict[str, Any]:
    """Return the numbers and bounds of `Moves`, and how many departures the table may remember already."""
    kind = needy.schema["from"].dataType
    assert isinstance(kind, StructType)
    types = [field.dataType.simpleString() for field in kind]
    facts = once("facts of moves", lambda: _facts(types, num_keys))
    remembered = F.count_if(F.col("departs") & may_remember(F.col("at"))).alias("remembered")
    departures = _departures(needy, is_small=is_small)
    steps = next_steps(departures, departures, is_small=is_small).agg(F.count(F.lit(1)).alias("steps"))
    of_moves, of_steps = summaries(needy.agg(*facts, remembered), steps)
    return of_moves.asDict() | of_steps.asDict()


def _facts(types: Sequence[str], num_keys: int) -> list[Column]:
    """Return aggregates over moves: the numbers and bounds of `Moves`."""
    departs = F.col("departs")
    both = [(F.col("from")[name], F.col("to")[name]) for name in key_names(num_keys)]
    ends = [
        bound_of(aggregate(F.when(departs, of_both(*both[i]))), types[i], is_upper=name == "high").alias(f"{name}_{i}")
        for i in range(num_keys)
        if is_prunable(types[i])
        for name, aggregate, of_both in (("low", F.min, F.least), ("high", F.max, F.greatest))
    ]
    nulls = [
        F.count_if(departs & (one.isNull() | other.isNull())).alias(f"nulls_{i}") for i, (one, other) in enumerate(both)
    ]
    counts = [
        F.count_if(departs).alias("departures"),
        F.count_if(~departs).alias("lacking"),
    ]
    return [*counts, *nulls, *ends]


def next_steps(last: DataFrame, departures: DataFrame, *, is_small: bool) -> DataFrame:
    """Return the departures that follow the given ones: the same rows leave their new keys later."""
    onward = departures.select(*[F.col(name).alias(f"next_{name}") for name in departures.columns])
    is_onward = (F.col("to") == F.col("next_from")) & (F.col("at") < F.col("next_at"))
    steps = last.join(joined_in_place(onward) if is_small else onward, is_onward)
    return steps.select(*[F.col(f"next_{name}").alias(name) for name in last.columns])


def key_of_tombstone(num_keys: int, kind: DataType) -> Column:
    """Return the key of a tombstone, which stores its fields as columns, cast to the type of the batch's keys."""
    return key_struct(columns_of(key_names(num_keys))).cast(kind)


def joined_in_place(frame: DataFrame) -> DataFrame:
    """Hint that a join should not broadcast the frame. If both sides have one partition, Spark shuffles neither."""
    return frame.hint("shuffle_hash")
