"""Hands the values of a row's old key to its new key, where the change does not send them.

A departure hands on the values of its row in two ways: as a change of the new key that gives values but no row
(`IS_CARRIED_OVER`), and with its own tombstone, for an arrival that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from stream_merge.bridge.sessions import persisted
from stream_merge.column_names import COLUMN_SEQUENCES, IS_CARRIED_OVER, IS_DELETE, OLD_KEY, UNSET
from stream_merge.config import SinkConfig
from stream_merge.order.sequence import contents_hash
from stream_merge.partial_updates.key_changes import Moves, joined_in_place, next_steps, place_of
from stream_merge.partial_updates.registers import PartialUpdates, order_of, register_sequence
from stream_merge.sql import quote

_MAX_HOPS = 32
"""How often a row may change its key within one batch; later changes of its key then lack values, and are counted."""


class Keep(Protocol):
    """Writes tombstones that hold values, and returns them as they are then read; None if there are none."""

    def __call__(self, rows: DataFrame, *, at_once: bool) -> DataFrame | None:
        """Write these, which are few if `at_once`."""


@contextmanager
def followed_moves(
    moves: Moves,
    config: SinkConfig,
    partial: PartialUpdates,
    *,
    read_target: Callable[[DataFrame, Sequence[tuple[Any, Any, int]] | None], DataFrame],
    left: Callable[[], DataFrame | None],
    lacking: Callable[[], DataFrame | None],
    dead: Callable[[], DataFrame | None],
    keep: Keep,
) -> Iterator[DataFrame]:
    """Give the batch with the values that key changes hand on.

    Args:
        moves: What has to be handed on.
        config: The sink, its sequence in columns.
        partial: What changes may set.
        read_target: Gives the target's rows whose keys are among the structs `key` of a frame; the bounds, if given, are theirs.
        left: Gives the tombstones of earlier batches that hold values; None if there are none.
        lacking: Gives those of them that hold some of the row's values only.
        dead: Gives all tombstones of earlier batches; None if there are none.
        keep: Keeps what is handed on.
    """
    handover = _Handover(moves, config, partial)
    handed: list[DataFrame] = []
    there: list[DataFrame] = []
    remembered = left() if moves.num_lacking else None
    if remembered is not None:
        handed.append(handover.awaited(remembered))
    with ExitStack() as stack:

        def kept(frame: DataFrame) -> list[DataFrame]:
            rows = keep(frame, at_once=moves.is_small)
            return [] if rows is None else [rows]

        own: list[DataFrame] = []
        if moves.num_departures:
            target = read_target(moves.ends, moves.bounds)
            target = stack.enter_context(persisted(target, at_once=moves.is_small))
            there.append(target)
            known = handover.known(target, dead())
            hops = _hops(moves, stack)
            if hops > 1:
                known = stack.enter_context(persisted(known, at_once=moves.is_small))
            states: list[DataFrame] = []
            for _ in range(hops - 1):
                # Kept at once: a plan that computes one state from the other would grow with each key of a row.
                state = handover.states(known, [*handed, *states])
                states = [stack.enter_context(persisted(state, at_once=moves.is_small))]
            own = kept(handover.states(known, [*handed, *states]))
            handed += own
        incomplete = lacking()
        passed, followed = handed, [] if incomplete is None else [incomplete]
        for _ in range(_MAX_HOPS):
            if not passed or not followed:
                break
            # Rows that have left their new key, too, before the values came: these go after them.
            given = reduce(DataFrame.unionByName, passed)
            passed = kept(reduce(DataFrame.unionByName, [handover.passed_on(given, left) for left in followed]))
            handed += passed
            there += [read_target(rows.select(F.col("moved.to").alias("key")), None) for rows in passed]
            # Also after rows that leave in this batch the key to which the values have come now; all else these took along.
            followed = [*followed[:1], *own]
        yield moves.changes.unionByName(handover.given(handed, there)) if handed else moves.changes


def _hops(moves: Moves, stack: ExitStack) -> int:
    """Return how many departures of one row follow each other in the batch."""
    if not moves.num_steps:
        return 1
    last = next_steps(moves.departures, moves.departures, is_small=moves.is_small)
    for hops in range(2, _MAX_HOPS):
        last = stack.enter_context(persisted(last.distinct(), at_once=moves.is_small))
        last = next_steps(last, moves.departures, is_small=moves.is_small)
        if last.isEmpty():
            return hops
    return _MAX_HOPS


class _Handover:
    """The state of rows at their departure, and the changes that hand it on."""

    def __init__(self, moves: Moves, config: SinkConfig, partial: PartialUpdates) -> None:
        self._moves = moves
        self._changes = moves.changes
        self._keys = config.keys
        self._sequence = config.sequence_columns
        self._partial = partial
        assert partial.sequence is not None  # Without one, the configuration has no keys that change.
        self._sequence_type = partial.sequence
        self._key = F.struct(*[F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(config.keys)])
        self._order = order_of(config.sequence_columns, partial)

    def states(self, known: DataFrame, handed: Sequence[DataFrame]) -> DataFrame:
        """Return tombstones with the values of the departures' rows, to which others may have been handed before.

        The row's columns are registers: the newest value that the target has or a change set, since the newest delete.

        Args:
            known: What `known` returned.
            handed: The tombstones that hand values on to these rows.
        """
        changes = reduce(DataFrame.unionByName, [self._changes, *map(self.fills, handed)])
        departures = self._moves.departures
        key_type = departures.schema["from"].dataType
        entries = [f"entry_{i}" for i in range(len(self._partial.columns))]
        # A departure without a history has a state, too.
        itself = departures.select(
            F.col("from").alias("key"),
            *[F.lit(None).alias(name) for name in ("order", "reset", "rank", *entries)],
        )
        records = self._changed(changes).unionByName(known).unionByName(itself)
        records = records.withColumn("key", F.col("key").cast(key_type))
        is_before = (F.col("key") == F.col("from")) & (F.col("order").isNull() | (F.col("order") < F.col("at")))
        newest = [
            F.max_by(name, F.when(F.col(name).isNotNull(), F.struct(f"{name}.sequence", "rank"))) for name in entries
        ]
        if self._moves.is_small:
            histories = records.coalesce(1).join(joined_in_place(departures), is_before)
        else:
            histories = records.join(self._moves.broadcast_departures, is_before)
        folded = histories.groupBy("from", "to", "at").agg(
            F.max("reset").alias("reset"), *[entry.alias(name) for entry, name in zip(newest, entries, strict=True)]
        )
        values, unset = [], []
        for name, entry in zip(self._partial.columns, entries, strict=True):
            is_gone = F.col(entry).isNull() | F.coalesce(F.col(entry)["sequence"] < F.col("reset"), F.lit(False))
            values.append(F.when(~is_gone, F.col(entry)["value"]).alias(name))
            unset.append(F.when(is_gone, F.lit(name.lower())))
        return folded.select(
            "from.*",
            F.col("at").alias("sequence"),
            self._moved(F.col("to"), F.struct(*values), F.array_compact(F.array(*unset)), F.col("reset")),
        )

    def _changed(self, changes: DataFrame) -> DataFrame:
        """Return what each change sets: of each column an entry of value and sequence, NULL if it leaves the column alone."""
        entries = []
        for i, name in enumerate(self._partial.columns):
            leaves = F.col(IS_DELETE) | F.coalesce(F.array_contains(UNSET, name.lower()), F.lit(False))
            entry = F.struct(F.col(quote(name)).alias("value"), self._order.alias("sequence"))
            entries.append(F.when(~leaves, entry).alias(f"entry_{i}"))
        # Of one sequence, the row's own change goes before a value that was handed on, and a change before the target.
        contents = contents_hash(changes, without=[COLUMN_SEQUENCES])
        return changes.select(
            self._key.alias("key"),
            self._order.alias("order"),
            # A key that a row comes to was free: what was there before is of another row.
            F.when(F.col(IS_DELETE) | F.col(IS_CARRIED_OVER), self._order).alias("reset"),
            F.struct(F.when(F.col(IS_CARRIED_OVER), 1).otherwise(2).alias("kind"), contents.alias("contents")).alias(
                "rank"
            ),
            *entries,
        )

    def known(self, target: DataFrame, dead: DataFrame | None) -> DataFrame:
        """Return what the table has of the keys that rows leave, and knows of their deletes, in the form of `_changed`."""
        rows = self._known(target)
        if dead is None:
            return rows
        key_type, order = self._moves.departures.schema["from"].dataType, F.col("sequence").cast(self._sequence_type)
        deletes = dead.select(self._place(key_type).alias("key"), order.alias("order"), order.alias("reset"))
        left = self._moves.broadcast_departures
        deletes = deletes.join(left, F.col("key") == F.col("from"), "left_semi")
        if self._moves.is_small:
            deletes = deletes.repartition(1)
        return rows.unionByName(deletes, allowMissingColumns=True)

    def _place(self, key_type: DataType) -> Column:
        """Return the key of a tombstone."""
        return place_of(len(self._keys), key_type)

    def _known(self, target: DataFrame) -> DataFrame:
        there = {field.name.lower() for field in target.schema}
        entries = []
        for i, name in enumerate(self._partial.columns):
            sequence = self._order
            if COLUMN_SEQUENCES in there:
                sequence = register_sequence(F.col(COLUMN_SEQUENCES), name, self._order)
            value = F.col(quote(name)) if name.lower() in there else F.lit(None)
            entry = F.struct(value.cast(self._changes.schema[name].dataType).alias("value"), sequence.alias("sequence"))
            entries.append(F.when(sequence.isNotNull(), entry).alias(f"entry_{i}"))
        return target.select(
            self._key.alias("key"),
            self._order.alias("order"),
            F.lit(None).alias("reset"),
            F.struct(F.lit(0).alias("kind"), F.lit(0).cast("long").alias("contents")).alias("rank"),
            *entries,
        )

    def awaited(self, left: DataFrame) -> DataFrame:
        """Return those of earlier batches' tombstones whose values arrivals of this batch lack."""
        key_type = self._moves.departures.schema["from"].dataType
        arrivals = self._changes.where(
            ~F.col(IS_DELETE) & F.col(OLD_KEY).isNotNull() & F.coalesce(F.size(UNSET) > 0, F.lit(False))
        ).select(F.col(OLD_KEY).alias("arrived_from"), self._key.alias("arrived_at"), self._order.alias("arrived"))
        is_awaited = (F.col("arrived_from") == self._place(key_type)) & (
            F.col("arrived_at") == F.col("moved.to").cast(key_type)
        )
        return left.join(arrivals, is_awaited & ~(F.col("arrived") < F.col("sequence")), "left_semi")

    @staticmethod
    def _moved(to: Column, row: Column, unset: Column, since: Column) -> Column:
        """Return where a row went, its values, those that it lacked, and the newest delete of its key before."""
        return F.struct(to.alias("to"), row.alias("row"), unset.alias("unset"), since.alias("since")).alias("moved")

    def passed_on(self, handed: DataFrame, left: DataFrame) -> DataFrame:
        """Return what is handed to rows that have left their new key since, as tombstones of that key."""
        earlier = handed.select(F.col("moved").alias("given"), F.col("sequence").alias("given_at"))
        key_type = self._changes.schema[OLD_KEY].dataType
        is_next = (F.col("given.to").cast(key_type) == self._place(key_type)) & (F.col("given_at") < F.col("sequence"))
        # Not what came to a row that was deleted before the one that left.
        since = F.col("moved.since") if "since" in left.select("moved.*").columns else F.lit(None)
        since = since.cast(self._sequence_type)
        is_next &= F.coalesce(~(F.col("given_at").cast(self._sequence_type) < since), F.lit(True))
        # Only what the row lacked when it left: of all else it had newer values.
        names = F.array(*[F.lit(name.lower()) for name in self._partial.columns])
        unset = F.array_union("given.unset", F.array_except(names, F.col("moved.unset")))
        joined = left.where(F.size("moved.unset") > 0).join(earlier, is_next).withColumn("still_unset", unset)
        return joined.where(F.size("still_unset") < len(self._partial.columns)).select(
            *[f"k{i}" for i in range(len(self._keys))],
            "sequence",
            self._moved(F.col("moved.to"), F.col("given.row"), F.col("still_unset"), since),
        )

    def given(self, handed: Sequence[DataFrame], target: Sequence[DataFrame]) -> DataFrame:
        """Return the changes that give values to the rows that have come to their new keys, in this batch or before.

        Until then another row may have the key, whose own departure is yet to be read.

        Args:
            handed: The tombstones that hold the values.
            target: The rows of the target that have the new keys.
        """
        key = self._key.cast(self._changes.schema[OLD_KEY].dataType)
        there = self._changes.where(~F.col(IS_DELETE)).select(key.alias("there"), self._order.alias("there_at"))
        for rows in target:
            there = there.unionByName(rows.select(key.alias("there"), self._order.alias("there_at")))
        fills = reduce(DataFrame.unionByName, map(self.fills, handed))
        if self._moves.is_small:
            fills, there = fills.coalesce(1), joined_in_place(there.coalesce(1))
        is_there = (key == F.col("there")) & ~(F.col("there_at") < self._order)
        return fills.join(there, is_there, "left_semi")

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
            IS_CARRIED_OVER: F.lit(True),
        }
        null = F.lit(None)
        return handed.select(
            *[
                values.get(field.name.lower(), null).cast(field.dataType).alias(field.name)
                for field in self._changes.schema
            ]
        )
