"""Rows that get another key: the values that the change does not send are those of the row under its old key.

To a log such a change is two: a delete of the old key, the departure, and an upsert of the new one, the arrival. They may
come in different batches, in either order. A departure therefore hands the values of its row on: as a change of the new
key that gives values but no row (`IS_FILL`), and where the arrival is not there yet also with the departure's tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stream_merge.bridge.statement import RESERVED_PREFIX
from stream_merge.clauses import Expression
from stream_merge.config import SinkConfig
from stream_merge.partial_updates import (
    COLUMN_SEQUENCES,
    IS_DELETE,
    IS_FILL,
    NEWEST_DELETE,
    UNSET,
    PartialUpdates,
    folded_changes,
    merged_register,
    order_of,
    register_sequence,
)
from stream_merge.statement import column_of, quote

OLD_KEY = RESERVED_PREFIX + "old_key"
NEW_KEY = RESERVED_PREFIX + "new_key"
_ORDER = RESERVED_PREFIX + "move_order"
_OF = RESERVED_PREFIX + "of_{}"
_MAX_HOPS = 32
"""How often a row may change its key within one batch; later changes of its key then lack values, and are counted."""


def with_moves(changes: DataFrame, config: SinkConfig) -> DataFrame:
    """Add `OLD_KEY` and `NEW_KEY`: structs k0, k1, ... of the keys; NULL in changes that leave a row's key as it is."""
    types = {field.name.lower(): field.dataType for field in changes.schema}

    def key(expression: Expression | None) -> Column:
        struct = StructType()
        for number, name in enumerate(config.keys):
            struct.add(f"k{number}", types[name.lower()])
        if expression is None:
            return F.lit(None).cast(struct)
        value = column_of(expression)
        fields = [value.getField(name).cast(types[name.lower()]).alias(f"k{i}") for i, name in enumerate(config.keys)]
        return F.when(value.isNotNull(), F.struct(*fields))

    return changes.alias(config.source_alias).select(
        "*", key(config.old_key).alias(OLD_KEY), key(config.new_key).alias(NEW_KEY)
    )


def followed_moves(
    changes: DataFrame,
    config: SinkConfig,
    partial: PartialUpdates,
    *,
    read_target: Callable[[DataFrame], DataFrame],
    left: DataFrame | None,
    keep: Callable[[DataFrame], DataFrame | None],
) -> DataFrame:
    """Return the batch with the values that key changes hand on.

    Args:
        changes: The persisted batch with `UNSET`, `IS_DELETE`, `IS_FILL`, `OLD_KEY` and `NEW_KEY`.
        config: The sink, its sequence in columns.
        partial: What changes may set.
        read_target: Gives the target's rows of the keys in a frame, which has the columns k0, k1, ...
        left: The tombstones of earlier batches that hold values; None if there are none.
        keep: Writes tombstones that hold values, and gives them as they are then read; None if there are none.
    """
    order = order_of(config.sequence_columns, partial)
    key = F.struct(*[F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(config.keys)])
    lacks = F.coalesce(F.size(UNSET) > 0, F.lit(False))
    departures = changes.where(F.col(IS_DELETE) & F.col(NEW_KEY).isNotNull())
    arrivals = changes.where(~F.col(IS_DELETE) & F.col(OLD_KEY).isNotNull()).select(
        F.col(OLD_KEY).alias("arrived_from"), key.alias("arrived_at"), order.alias("arrived"), lacks.alias("lacks")
    )
    facts = departures.select(F.lit(1).alias("departs"), F.lit(0).alias("lacks")).unionAll(
        arrivals.select(F.lit(0), F.col("lacks").cast("int"))
    )
    num_departures, num_lacking = facts.agg(F.sum("departs"), F.sum("lacks")).collect()[0]
    if not num_departures and not num_lacking:
        return changes

    # What needs no value gets none: most rows take all their values along.
    is_pair = (F.col("arrived_from") == key) & (F.col("arrived_at") == F.col(NEW_KEY)) & ~(F.col("arrived") < order)
    needy = departures.join(arrivals.where(~F.col("lacks")), is_pair, "left_anti").dropDuplicates(
        [*config.keys, NEW_KEY, *config.sequence_columns]
    )
    handover = _Handover(changes, config, partial, order, read_target)
    handed: list[DataFrame] = []
    if left is not None and num_lacking:
        from_key = F.struct(*[F.col(f"k{i}") for i in range(len(config.keys))]).cast(changes.schema[OLD_KEY].dataType)
        to_key = F.col("moved.to").cast(changes.schema[OLD_KEY].dataType)
        is_awaited = (F.col("arrived_from") == from_key) & (F.col("arrived_at") == to_key)
        is_awaited = is_awaited & ~(F.col("arrived") < F.col("sequence")) & F.col("lacks")
        handed.append(left.join(arrivals, is_awaited, "left_semi"))
    states = None
    for _ in range(_hops(needy, key, order)):
        # Kept at once: a plan that computes one state from the other would grow with each key of a row.
        states = keep(handover.states(needy, [*handed, *([states] if states is not None else [])]))
    if states is not None:
        handed.append(states)
    passed = reduce(DataFrame.unionByName, handed) if handed and left is not None else None
    for _ in range(_MAX_HOPS):
        if passed is None or left is None:
            break
        # Rows that have left their new key, too, before the values came: these go after them.
        passed = keep(handover.passed_on(passed, left))
        handed += [passed] if passed is not None else []
    return reduce(DataFrame.unionByName, [changes, *(handover.fills(frame) for frame in handed)])


def _hops(departures: DataFrame, key: Column, order: Column) -> int:
    """Return how many departures of one row follow each other in the batch."""
    steps = departures.select(key.alias("from"), F.col(NEW_KEY).alias("to"), order.alias("at"))
    last = steps
    for hops in range(_MAX_HOPS):
        if last.isEmpty():
            return hops
        onward = steps.select(*[F.col(name).alias(f"next_{name}") for name in steps.columns])
        is_onward = (
            (F.col("to") == F.col("next_from")) & ~(F.col("next_at") < F.col("at")) & (F.col("next_at") != F.col("at"))
        )
        last = last.join(onward, is_onward).select(
            F.col("next_from").alias("from"), F.col("next_to").alias("to"), F.col("next_at").alias("at")
        )
    return _MAX_HOPS


class _Handover:
    """The state of rows at their departure, and the changes that hand it on."""

    def __init__(
        self,
        changes: DataFrame,
        config: SinkConfig,
        partial: PartialUpdates,
        order: Column,
        read_target: Callable[[DataFrame], DataFrame],
    ) -> None:
        self._changes = changes
        self._keys = config.keys
        self._sequence = config.sequence_columns
        self._partial = partial
        self._order = order
        self._read_target = read_target

    def states(self, departures: DataFrame, handed: Sequence[DataFrame]) -> DataFrame:
        """Return tombstones with the values of the departures' rows, to which others may have been handed before."""
        of = {i: _OF.format(i) for i in range(len(self._keys))}
        moments = departures.select(
            *[F.col(quote(name)).alias(of[i]) for i, name in enumerate(self._keys)], self._order.alias(_ORDER)
        )
        is_same_key = F.lit(True)
        for i, name in enumerate(self._keys):
            is_same_key = is_same_key & (F.col(quote(name)) == F.col(of[i]))
        changes = reduce(DataFrame.unionByName, [self._changes, *map(self.fills, handed)])
        history = changes.join(moments, is_same_key & (self._order < F.col(_ORDER))).drop(*of.values())
        history = history.select(_ORDER, *[F.col(quote(name)) for name in changes.columns])
        folded = folded_changes(history, [*self._keys, _ORDER], self._sequence, self._partial)
        named = {name: f"new_{i}" for i, name in enumerate(self._partial.columns)}
        batch = folded.select(
            *[F.col(quote(name)).alias(f"batch_{i}") for i, name in enumerate(self._keys)],
            F.col(_ORDER).alias("batch_order"),
            order_of(self._sequence, self._partial).alias("new_sequence"),
            F.col(COLUMN_SEQUENCES).alias("new_sequences"),
            F.col(NEWEST_DELETE).alias("reset"),
            *[F.col(quote(name)).alias(alias) for name, alias in named.items()],
        )
        keys = departures.select(*[F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(self._keys)])
        target = self._read_target(keys.distinct())
        there = {field.name.lower() for field in target.schema}
        has_registers = COLUMN_SEQUENCES in there
        null = F.lit(None)
        old = target.select(
            *[F.col(quote(name)).alias(f"target_{i}") for i, name in enumerate(self._keys)],
            order_of(self._sequence, self._partial).alias("old_sequence"),
            (F.col(COLUMN_SEQUENCES) if has_registers else null.cast(self._partial.sequences_type)).alias(
                "old_sequences"
            ),
            *[
                (F.col(quote(name)) if name.lower() in there else null)
                .cast(self._changes.schema[name].dataType)
                .alias(f"old_{i}")
                for i, name in enumerate(self._partial.columns)
            ],
        )
        of_batch, of_target = F.col("batch_order") == self._order, F.col("old_sequence") < self._order
        for i, name in enumerate(self._keys):
            of_batch = of_batch & (F.col(f"batch_{i}") == F.col(quote(name)))
            of_target = of_target & (F.col(f"target_{i}") == F.col(quote(name)))
        joined = departures.join(batch, of_batch, "left").join(old, of_target, "left")
        values: dict[str, Column] = {}
        unset = []
        for i, name in enumerate(self._partial.columns):
            theirs = register_sequence(F.col("new_sequences"), name, F.col("new_sequence"))
            ours = register_sequence(F.col("old_sequences"), name, F.col("old_sequence"))
            value, sequence = merged_register(
                F.col(f"new_{i}"), F.col(f"old_{i}"), theirs, ours, F.col("reset"), is_fill=F.lit(False)
            )
            values[name] = value
            unset.append(F.when(sequence.isNull(), F.lit(name.lower())))
        row = F.struct(*[value.alias(name) for name, value in values.items()])
        return joined.select(
            *[F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(self._keys)],
            self._order.alias("sequence"),
            self._moved(F.col(NEW_KEY), row, F.array_compact(F.array(*unset))),
        )

    @staticmethod
    def _moved(to: Column, row: Column, unset: Column) -> Column:
        return F.struct(to.alias("to"), row.alias("row"), unset.alias("unset")).alias("moved")

    def passed_on(self, handed: DataFrame, left: DataFrame) -> DataFrame:
        """Return what is handed to rows that have left their new key since, as tombstones of that key."""
        earlier = handed.select(F.col("moved").alias("given"), F.col("sequence").alias("given_at"))
        key_type = self._changes.schema[OLD_KEY].dataType
        next_key = F.struct(*[F.col(f"k{i}") for i in range(len(self._keys))]).cast(key_type)
        is_next = (F.col("given.to").cast(key_type) == next_key) & (F.col("given_at") < F.col("sequence"))
        # Only what the row lacked when it left: of all else it had newer values.
        names = F.array(*[F.lit(name.lower()) for name in self._partial.columns])
        unset = F.array_union("given.unset", F.array_except(names, F.col("moved.unset")))
        joined = left.where(F.size("moved.unset") > 0).join(earlier, is_next).withColumn("still_unset", unset)
        return joined.where(F.size("still_unset") < len(self._partial.columns)).select(
            *[f"k{i}" for i in range(len(self._keys))],
            "sequence",
            self._moved(F.col("moved.to"), F.col("given.row"), F.col("still_unset")),
        )

    def fills(self, handed: DataFrame) -> DataFrame:
        """Return for tombstones that hold values the changes that give them to the new keys."""
        known = {name.lower(): name for name in handed.select("moved.row.*").columns}
        of_key = {name.lower(): F.col("moved.to")[f"k{i}"] for i, name in enumerate(self._keys)}
        of_sequence = {name.lower(): F.col("sequence")[f"s{i}"] for i, name in enumerate(self._sequence)}
        row = {
            name.lower(): F.col("moved.row")[known[name.lower()]]
            for name in self._partial.columns
            if name.lower() in known
        }
        unknown = [F.lit(name.lower()) for name in self._partial.columns if name.lower() not in known]
        values = {
            **row,
            **of_key,
            **of_sequence,
            UNSET: F.concat("moved.unset", F.array(*unknown).cast("array<string>")),
            IS_DELETE: F.lit(False),
            IS_FILL: F.lit(True),
        }
        null = F.lit(None)
        return handed.select(
            *[
                values.get(field.name.lower(), null).cast(field.dataType).alias(field.name)
                for field in self._changes.schema
            ]
        )
