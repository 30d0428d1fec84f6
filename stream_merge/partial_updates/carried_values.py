"""Computes the registers that a row has when it leaves its key, and the changes that give them to the new key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stream_merge.bridge.statement import Once
from stream_merge.column_names import COLUMN_SEQUENCES, IS_CARRIED_OVER, IS_DELETE, OLD_KEY, UNSET
from stream_merge.config import SinkConfig
from stream_merge.merge.key_and_sequence import columns_of, key_names, key_struct, sequence_names
from stream_merge.partial_updates.fold import place_in_order, sets
from stream_merge.partial_updates.key_changes import Moves, is_arrival, joined_in_place, key_of_tombstone
from stream_merge.partial_updates.last_writer_wins import Origin, Register, is_reset, write_of, write_order
from stream_merge.partial_updates.registers import PartialUpdates, order_of, register_sequence
from stream_merge.sql import quote


class CarriedValues:
    """The registers of rows at their departure, and the changes that hand them on."""

    def __init__(self, moves: Moves, config: SinkConfig, partial: PartialUpdates, once: Once) -> None:
        """Prepare what rows carry to their new keys in a batch.

        Args:
            moves: The moves of the batch.
            config: The sink, its sequence in columns.
            partial: What changes may set.
            once: Keeps the expressions for other batches.
        """
        self._once = once
        self._moves = moves
        self._changes = moves.changes
        self._keys = config.keys
        self._sequence = config.sequence_columns
        self._partial = partial
        assert partial.sequence is not None  # Without one, the configuration has no keys that change.
        self._sequence_type = partial.sequence
        key_type = moves.departures.schema["from"].dataType
        assert isinstance(key_type, StructType)
        # A tombstone's key may be NULL as far as its type tells.
        self._key_type = key_type.toNullable()
        self._key, self._order = once(
            "key and order of moves",
            lambda: (key_struct(columns_of(config.keys)), order_of(config.sequence_columns, partial)),
        )
        self._writes = [f"write_{i}" for i in range(len(partial.columns))]

    def states(self, known: DataFrame, handed: Sequence[DataFrame]) -> DataFrame:
        """Return the tombstones of the departures, with the values that their rows had.

        Args:
            known: The result of `known`.
            handed: The tombstones that hand values on to these rows before they leave.
        """
        changes = reduce(DataFrame.unionByName, [self._changes, *map(self.fills, handed)])
        # A departure has a tombstone even if nothing is known of its row.
        itself = self._moves.departures.select(*self._once("nothing known", self._nothing_known))
        histories = self._histories(self._changed(changes).unionByName(known).unionByName(itself))
        folded = histories.groupBy("from", "to", "at").agg(*self._once("newest writes", self._newest_writes))
        return folded.select(*self._once("left registers", self._left))

    def _nothing_known(self) -> list[Column]:
        nothing = ("order", "contents", "reset", "deleted", "arrived", *self._writes)
        return [F.col("from").alias("key"), *[F.lit(None).alias(name) for name in nothing]]

    def _newest_writes(self) -> list[Column]:
        resets = [F.max(name).alias(name) for name in ("reset", "deleted", "arrived")]
        return [*resets, *[_newest(write).alias(write) for write in self._writes]]

    def _left(self) -> list[Column]:
        """Return the columns of a departure's tombstone, from the newest writes of its key."""
        names = self._partial.columns
        left = {name: _since_reset(F.col(write)) for name, write in zip(names, self._writes, strict=True)}
        values = [register.value.alias(name) for name, register in left.items()]
        unset = [F.when(register.sequence.isNull(), F.lit(name.lower())) for name, register in left.items()]
        return [
            F.col("from.*"),
            F.col("at").alias("sequence"),
            _moved(F.col("to"), F.struct(*values), F.array_compact(F.array(*unset)), F.col("reset")),
        ]

    def _histories(self, records: DataFrame) -> DataFrame:
        """Return the records of each departure's key that come before the departure."""
        key, is_before = self._once("before a departure", self._before)
        records = records.withColumn("key", key)
        if self._moves.is_small:
            return records.coalesce(1).join(joined_in_place(self._moves.departures), is_before)
        return records.join(self._moves.broadcast_departures, is_before)

    def _before(self) -> tuple[Column, Column]:
        is_before = (F.col("key") == F.col("from")) & (F.col("order").isNull() | (F.col("order") < F.col("at")))
        return F.col("key").cast(self._key_type), is_before

    def _changed(self, changes: DataFrame) -> DataFrame:
        """Return a record of each change: the writes of its columns, NULL for those it leaves alone, or its delete."""
        return changes.select(*self._once("records of changes", lambda: self._records(changes)))

    def _records(self, changes: DataFrame) -> list[Column]:
        place = place_in_order(changes, self._order)
        # What was handed on is older than the arrival that it belongs to.
        more = [place["origin"].alias("origin"), F.when(~F.col(IS_CARRIED_OVER), self._order).alias("row_at")]
        writes = [
            F.when(sets(name), write_of(F.col(quote(name)), self._order, *more)).alias(write)
            for name, write in zip(self._partial.columns, self._writes, strict=True)
        ]
        return [
            self._key.alias("key"),
            self._order.alias("order"),
            place["contents"].alias("contents"),
            # A row comes to a free key. What the key had before belonged to another row.
            F.when(F.col(IS_DELETE) | F.col(IS_CARRIED_OVER), self._order).alias("reset"),
            F.when(F.col(IS_DELETE), self._order).alias("deleted"),
            F.when(is_arrival(self._keys), self._order).alias("arrived"),
            *writes,
        ]

    def known(self, target: DataFrame, dead: DataFrame | None) -> DataFrame:
        """Return records, as `_changed` does, of the table's rows under the departures' keys, and of their deletes.

        Args:
            target: The rows.
            dead: The tombstones of earlier batches; None if there are none.
        """
        rows = self._known_rows(target)
        if dead is None:
            return rows
        deletes = dead.select(*self._once("records of deletes", self._deletes))
        left = self._moves.broadcast_departures
        deletes = deletes.join(left, F.col("key") == F.col("from"), "left_semi")
        if self._moves.is_small:
            deletes = deletes.repartition(1)
        return rows.unionByName(deletes, allowMissingColumns=True)

    def _deletes(self) -> list[Column]:
        order = F.col("sequence").cast(self._sequence_type)
        return [self._key_of_tombstone().alias("key"), order.alias("order"), order.alias("reset")]

    def _known_rows(self, target: DataFrame) -> DataFrame:
        return target.select(*self._once(f"records of rows {target.columns}", lambda: self._registers(target.columns)))

    def _registers(self, columns: Sequence[str]) -> list[Column]:
        there = {name.lower() for name in columns}
        more = [F.lit(Origin.IN_TARGET.value).alias("origin"), self._order.alias("row_at")]
        writes = []
        for name, write in zip(self._partial.columns, self._writes, strict=True):
            sequence = self._order
            if COLUMN_SEQUENCES in there:
                sequence = register_sequence(F.col(COLUMN_SEQUENCES), name, self._order)
            value = F.col(quote(name)) if name.lower() in there else F.lit(None)
            typed = value.cast(self._changes.schema[name].dataType)
            writes.append(F.when(sequence.isNotNull(), write_of(typed, sequence, *more)).alias(write))
        return [
            self._key.alias("key"),
            self._order.alias("order"),
            F.lit(0).cast("long").alias("contents"),
            F.lit(None).alias("reset"),
            F.lit(None).alias("deleted"),
            F.lit(None).alias("arrived"),
            *writes,
        ]

    def _key_of_tombstone(self) -> Column:
        return key_of_tombstone(len(self._keys), self._key_type)

    def awaited(self, left: DataFrame) -> DataFrame:
        """Return the tombstones of earlier batches whose values an arrival of this batch lacks."""
        lacks, columns, is_awaited = self._once("awaited", self._awaited)
        return left.join(self._changes.where(lacks).select(*columns), is_awaited, "left_semi")

    def _awaited(self) -> tuple[Column, list[Column], Column]:
        lacks = ~F.col(IS_DELETE) & F.col(OLD_KEY).isNotNull() & F.coalesce(F.size(UNSET) > 0, F.lit(False))
        columns = [F.col(OLD_KEY).alias("arrived_from"), self._key.alias("arrived_at"), self._order.alias("arrived")]
        is_awaited = (F.col("arrived_from") == self._key_of_tombstone()) & (
            F.col("arrived_at") == F.col("moved.to").cast(self._key_type)
        )
        return lacks, columns, is_awaited & ~(F.col("arrived") < F.col("sequence"))

    def passed_on(self, handed: DataFrame, left: DataFrame) -> DataFrame:
        """Return tombstones that pass values on after rows that have left their new key meanwhile.

        Args:
            handed: The tombstones that hand the values on to that key.
            left: The tombstones of the departures from that key.
        """
        earlier = handed.select(F.col("moved").alias("given"), F.col("sequence").alias("given_at"))
        is_of_key = F.col("given.to").cast(self._key_type) == self._key_of_tombstone()
        # A delete of the key between the two ended the life of the row that the values came to.
        since = F.col("moved.since") if "since" in _names_in(left, "moved") else F.lit(None)
        since = since.cast(self._sequence_type)
        is_gone = is_reset(F.col("given_at").cast(self._sequence_type), since, comes_later=False)
        is_next = is_of_key & (F.col("given_at") < F.col("sequence")) & ~is_gone
        # The row takes only values that it lacked when it left. All others it had newer ones of.
        names = F.array(*[F.lit(name.lower()) for name in self._partial.columns])
        unset = F.array_union("given.unset", F.array_except(names, F.col("moved.unset")))
        joined = left.where(F.size("moved.unset") > 0).join(earlier, is_next).withColumn("still_unset", unset)
        return joined.where(F.size("still_unset") < len(self._partial.columns)).select(
            *key_names(len(self._keys)),
            "sequence",
            _moved(F.col("moved.to"), F.col("given.row"), F.col("still_unset"), since),
        )

    def given(self, handed: Sequence[DataFrame], target: Sequence[DataFrame]) -> DataFrame:
        """Return the changes that give values to rows which have come to their new keys, in this batch or before.

        Until a row has come, its new key may belong to another row, whose own departure is yet to be read.

        Args:
            handed: The tombstones that hold the values.
            target: The rows of the target that have the new keys.
        """
        is_row, columns, is_there = self._once("rows that are there", self._there)
        there = self._changes.where(is_row).select(*columns)
        for rows in target:
            there = there.unionByName(rows.select(*columns))
        fills = reduce(DataFrame.unionByName, map(self.fills, handed))
        if self._moves.is_small:
            fills, there = fills.coalesce(1), joined_in_place(there.coalesce(1))
        return fills.join(there, is_there, "left_semi")

    def _there(self) -> tuple[Column, list[Column], Column]:
        key = self._key.cast(self._key_type)
        is_there = (key == F.col("there")) & ~(F.col("there_at") < self._order)
        return ~F.col(IS_DELETE), [key.alias("there"), self._order.alias("there_at")], is_there

    def fills(self, handed: DataFrame) -> DataFrame:
        """Return the changes that give the values of tombstones to the new keys."""
        names = _names_in(handed, "moved", "row")
        return handed.select(*self._once(f"fills of {names}", lambda: self._fills(names)))

    def _fills(self, names: Sequence[str]) -> list[Column]:
        to, sequence = F.col("moved.to"), F.col("sequence")
        known = {name.lower(): name for name in names}
        row = {
            name.lower(): F.col("moved.row")[known[name.lower()]]
            for name in self._partial.columns
            if name.lower() in known
        }
        unknown = [F.lit(name.lower()) for name in self._partial.columns if name.lower() not in known]
        values = {
            **row,
            **{name.lower(): to[field] for name, field in _with_fields(self._keys, key_names)},
            **{name.lower(): sequence[field] for name, field in _with_fields(self._sequence, sequence_names)},
            UNSET: F.concat("moved.unset", F.array(*unknown).cast("array<string>")),
            IS_DELETE: F.lit(False),
            IS_CARRIED_OVER: F.lit(True),
        }
        null = F.lit(None)
        return [
            values.get(field.name.lower(), null).cast(field.dataType).alias(field.name)
            for field in self._changes.schema
        ]


def _names_in(frame: DataFrame, *path: str) -> list[str]:
    """Return the names of the fields of a struct in a frame, which is found by the names of the structs around it."""
    kind: Any = frame.schema
    for name in path:
        kind = kind[name].dataType
    return list(kind.names)


def _newest(name: str) -> Column:
    """Return an aggregate: the newest of the writes in a column."""
    write = F.col(name)
    place = write_order(write["sequence"], write["origin"], F.col("contents"))
    return F.max_by(write, F.when(write.isNotNull(), place))


def _since_reset(write: Column) -> Register:
    """Return the register of the newest write, after the resets in `reset`, `deleted` and `arrived`."""
    register = Register.of(write)
    is_gone = is_reset(register.sequence, F.col("reset"), comes_later=False)
    # Deletes of the batch come later than values of the target. All other resets come with a write, or before it.
    is_of_target = F.coalesce(write["origin"] == Origin.IN_TARGET.value, F.lit(False))
    is_gone |= is_of_target & is_reset(register.sequence, F.col("deleted"), comes_later=True)
    # The row of the write was another one if it was older than the arrival, be its end yet to come.
    is_gone |= is_reset(write["row_at"], F.col("arrived"), comes_later=False)
    return register.without(is_gone)


def _moved(to: Column, row: Column, unset: Column, since: Column) -> Column:
    """Return the values that a departure hands on.

    Args:
        to: The key that the row gets.
        row: Its values.
        unset: The names of those that it lacked.
        since: The sequence of the newest delete of its old key.
    """
    return F.struct(to.alias("to"), row.alias("row"), unset.alias("unset"), since.alias("since")).alias("moved")


def _with_fields(names: Sequence[str], field_names: Callable[[int], list[str]]) -> Iterator[tuple[str, str]]:
    """Give the columns of a key or a sequence, each with the name of its field."""
    return zip(names, field_names(len(names)), strict=True)
