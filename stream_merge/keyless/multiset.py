"""Merges tables without a key as a multiset of rows: a change adds a row, removes an equal one, or both.

The merge itself needs keys, so each event of the log gets a row id: the text of its sequence, a sign for added or
removed, and a hash of the row's contents. The target keeps the id in the column `ROW_ID`. Rows that were removed, and
the removals themselves, matched or not, leave a tombstone, as deleted keys do. Rows and tombstones with the same
contents are therefore all known events of these contents, and they alone determine how many rows the table must have,
in whatever order they arrived:

Let S be the number of rows added minus rows removed, summed in sequence order. A removal that brings S to a new low
below 0 waits for a row that has not arrived. The table must have as many rows as S at the end exceeds its lowest value
(or 0, if S never falls below it).

Since the rows are equal, any of them will do. The sink keeps the newest: a removed row is then never needed again,
neither when older events arrive late nor after a TRUNCATE, which forgets everything older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.merge_condition import KeyPair
from stream_merge.bridge.sessions import summary
from stream_merge.column_names import IS_DELETE, IS_REMOVED, RESERVED_PREFIX, ROW_ID, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import MergeExecutionError
from stream_merge.keyless.bind import before_of
from stream_merge.keyless.row_id import ordered_text
from stream_merge.merge import lossless_casts
from stream_merge.merge.canonical import canonical_text
from stream_merge.merge.source import bound_of, is_delete, key_range
from stream_merge.sql import quote
from stream_merge.table.char_columns import CHAR_VARCHAR, without_padding
from stream_merge.table.empty_partition_values import can_be_empty, null_if_empty
from stream_merge.table.files import KeyRange, is_prunable

if TYPE_CHECKING:
    from stream_merge.tombstones.store import TombstoneStore

MAX_BROADCAST_CONTENTS = 500_000
"""With more distinct contents, Spark decides how to join them with rows and tombstones."""

_ADDS, _REMOVES = "+", "-"
_HASH_DIGITS = 32
_HASH = RESERVED_PREFIX + "contents"
_SIGN = RESERVED_PREFIX + "sign"
_IMAGE = RESERVED_PREFIX + "image"
_KIND = RESERVED_PREFIX + "kind"
_WEIGHT = RESERVED_PREFIX + "weight"
_IN_TABLE, _REMEMBERED, _NEW = 0, 1, 2


@contextmanager
def paired(
    batch: DataFrame,
    config: SinkConfig,
    ordered: SinkConfig,
    *,
    schema: T.StructType,
    partition_columns: Sequence[str],
    store: TombstoneStore,
    read_target: Callable[[Sequence[KeyRange]], DataFrame],
    batch_name: str,
) -> Iterator[DataFrame]:
    """Yield the batch as changes of rows with an id.

    Args:
        batch: The batch as `with_row_ids` returned it.
        config: The sink as the user configured it.
        ordered: The sink as `with_row_ids` returned it.
        schema: The target's schema.
        partition_columns: The columns that partition the target.
        store: The removed rows and the removals that the table remembers.
        read_target: Returns the rows of the target's files that may hold values in these ranges.
        batch_name: The batch's name in messages.

    Raises:
        MergeExecutionError: A change removes a row without identifying it.
    """
    contents = _Contents.of(batch, ordered, schema, partition_columns, store)
    with persisted(_events(batch, config, ordered, contents)) as events:
        facts = summary(events, F.count_if(F.col(_SIGN).isNull()), F.count_if(F.col(_SIGN) == _REMOVES))
        if facts[0]:
            raise MergeExecutionError(
                f"{batch_name}: {facts[0]} change(s) remove a row without identifying it: before is NULL. "
                "Nothing was committed. Make the source send the row before the change (REPLICA IDENTITY FULL in "
                "PostgreSQL), or set quarantine"
            )
        pairing = _Pairing(events, store, batch.columns)
        known = store.deletes()
        if not facts[1] and known is None:
            yield pairing.untouched(None)
            return
        with persisted(pairing.touched(known)) as touched:
            num_touched = touched.count()
            if not num_touched:
                yield pairing.untouched(None)
                return
            if num_touched <= MAX_BROADCAST_CONTENTS:
                touched = F.broadcast(touched)
            # After a TRUNCATE, contents without events in the batch are recomputed as well; any file may hold them.
            ranges = [] if store.is_truncated else contents.ranges(pairing.of(events, touched))
            rows = pairing.of(pairing.rows_of(read_target(ranges)), touched)
            yield pairing.changes(rows, known, touched).unionByName(pairing.untouched(touched))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The columns by which rows are compared, with their types in the target."""

    fields: tuple[T.StructField, ...]
    schema: T.StructType
    partition_columns: frozenset[str]
    is_exact: bool

    @staticmethod
    def of(
        batch: DataFrame,
        ordered: SinkConfig,
        schema: T.StructType,
        partition_columns: Sequence[str],
        store: TombstoneStore,
    ) -> _Contents:
        in_target = {field.name.lower(): field for field in schema.fields}
        in_batch = {field.name.lower(): field for field in batch.schema.fields}
        written = [name.lower() for name in ordered.columns if name not in (ROW_ID, SEQUENCE)]
        names = store.order_of_contents(written)
        fields = tuple(in_target.get(name, in_batch[name]) for name in names)
        return _Contents(
            fields=fields,
            schema=schema,
            partition_columns=frozenset(name.lower() for name in partition_columns),
            is_exact=lossless_casts.is_wanted(batch.sparkSession),
        )

    def image(self, is_before: Column, before: str, before_type: T.StructType) -> Column:
        """Return the values of a row before or after a change: a struct v0, v1, ..."""
        fields = {name.lower(): name for name in before_type.names}
        values = []
        for number, field in enumerate(self.fields):
            was = self._as_there(before, before_type[fields[field.name.lower()]], field.dataType)
            value = F.when(is_before, was).otherwise(F.col(quote(field.name)).cast(field.dataType))
            values.append(without_padding(value, field).alias(f"v{number}"))
        return F.struct(*values)

    def _as_there(self, before: str, given: T.StructField, kept: T.DataType) -> Column:
        """Return a value of the row before a change in the target's type: rounded, it could be that of another row."""
        name = f"{given.name} before the change"
        value = F.col(before).getField(given.name)
        return lossless_casts.as_kept(value, name, given.dataType, kept, is_exact=self.is_exact)

    def hash(self, image: str) -> Column:
        """Return the hash of an image.

        It is cryptographic, since anybody may choose the contents and the sink takes rows with equal hashes for equal.
        It hashes text, so that NULL has a representation and a value keeps its hash when its column is widened.
        """
        values = {
            field.name.lower(): (F.col(image).getField(f"v{number}"), field.dataType)
            for number, field in enumerate(self.fields)
        }
        return F.left(F.sha2(canonical_text(values), 256), F.lit(_HASH_DIGITS))

    def ranges(self, events: DataFrame) -> list[KeyRange]:
        """Return the ranges of values in which rows equal to the events' images lie."""
        prunable = {
            number: field
            for number, field in enumerate(self.fields)
            if is_prunable(field.dataType.simpleString())
            and CHAR_VARCHAR not in field.metadata
            and field in self.schema.fields
        }
        if not prunable:
            return []
        values = {number: F.col(_IMAGE).getField(f"v{number}") for number in prunable}
        # The files have it so. The ids keep what the source has sent.
        values |= {
            number: null_if_empty(values[number])
            for number, field in prunable.items()
            if field.name.lower() in self.partition_columns and can_be_empty(field.dataType)
        }
        aggregates = [
            bound_of(aggregate(value), prunable[number].dataType.simpleString(), is_upper=name == "high").alias(
                f"{name}_{number}"
            )
            for number, value in values.items()
            for name, aggregate in (("low", F.min), ("high", F.max))
        ]
        aggregates += [F.count_if(value.isNull()).alias(f"nulls_{number}") for number, value in values.items()]
        found = summary(events, *aggregates)
        json = self.schema.jsonValue()
        return [
            key_range(
                KeyPair(
                    target=field.name, source=field.name, type_name=field.dataType.simpleString(), is_null_safe=True
                ),
                (found[f"low_{number}"], found[f"high_{number}"], found[f"nulls_{number}"], None),
                json,
            )
            for number, field in prunable.items()
        ]


def _events(batch: DataFrame, config: SinkConfig, ordered: SinkConfig, contents: _Contents) -> DataFrame:
    """Return the rows that the changes add and remove: the batch's columns with the id, `_SIGN`, `_HASH` and `_IMAGE`.

    Columns that are not written become NULL, so that an event that is delivered again is identical.
    """
    before = RESERVED_PREFIX + "before"
    described = batch.alias(config.source_alias).select(
        "*", before_of(config, batch.columns).alias(before), is_delete(config).alias(IS_DELETE)
    )
    before_type = described.schema[before].dataType
    assert isinstance(before_type, T.StructType)
    removes = F.when(F.col(before).isNotNull(), F.lit(_REMOVES))
    adds = F.when(~F.col(IS_DELETE), F.lit(_ADDS))
    events = described.select("*", F.explode_outer(F.array_compact(F.array(removes, adds))).alias(_SIGN))
    events = events.withColumn(_IMAGE, contents.image(F.col(_SIGN) == _REMOVES, before, before_type))
    events = events.withColumn(_HASH, contents.hash(_IMAGE))
    row_id = F.concat(ordered_text(F.col(SEQUENCE), batch.schema[SEQUENCE].dataType), F.col(_SIGN), F.col(_HASH))
    written = {name.lower() for name in ordered.columns}
    columns = []
    for field in batch.schema.fields:
        value = F.col(quote(field.name)) if field.name.lower() in written else F.lit(None).cast(field.dataType)
        own = {ROW_ID: row_id, IS_REMOVED: F.col(_SIGN) == _REMOVES}
        columns.append(own.get(field.name, value).alias(field.name))
    return events.select(*columns, _SIGN, _HASH, _IMAGE)


class _Pairing:
    """The events of a batch, with the rows and tombstones of the table that have equal contents."""

    def __init__(self, events: DataFrame, store: TombstoneStore, columns: Sequence[str]) -> None:
        self._store = store
        self._columns = [quote(name) for name in columns]
        self._is_old = F.lit(False)
        if store.state.truncated is not None:
            tombstones = store.tombstones
            self._is_old = tombstones.sequence_column() < tombstones.column_of(store.state.truncated)
        # Events older than a TRUNCATE take no part. They stay in the batch, which skips and counts them.
        self._old = events.where(self._is_old)
        self._events = events.where(~self._is_old)

    def of(self, frame: DataFrame, touched: DataFrame) -> DataFrame:
        """Return the part of a frame with the touched contents."""
        return frame.join(touched, _HASH, "left_semi")

    def touched(self, known: DataFrame | None) -> DataFrame:
        """Return the contents to recompute: those that the batch removes, and those that tombstones have as well.

        Rows of all other contents are simply added.
        """
        contents = [self._events.where(F.col(_SIGN) == _REMOVES).select(_HASH)]
        if known is not None:
            remembered = self._remembered(known).select(_HASH).distinct()
            # A TRUNCATE may have taken the rows that removals had matched.
            contents.append(remembered if self._store.is_truncated else self.of(self._events.select(_HASH), remembered))
        return reduce(DataFrame.union, contents).distinct()

    def rows_of(self, target: DataFrame) -> DataFrame:
        """Return the target's rows that have an id."""
        rows = target.select(ROW_ID, SEQUENCE).where(F.col(ROW_ID).isNotNull() & ~self._is_old)
        return _of_ids(rows).withColumns({_KIND: F.lit(_IN_TABLE), _WEIGHT: F.lit(1)})

    def _remembered(self, known: DataFrame) -> DataFrame:
        """Return the remembered events; those about to be forgotten have weight 0.

        When the events of some contents change, all of them are remembered anew, so that they are forgotten together.
        """
        events = known.select(F.col("k0").alias(ROW_ID), F.col("sequence.s0").alias(SEQUENCE), "deleted_ms")
        events = _of_ids(events.where(~self._is_old))
        weight = F.when(F.col("deleted_ms") < self._store.cutoff_ms(), 0).otherwise(_weight())
        return events.withColumns({_KIND: F.lit(_REMEMBERED), _WEIGHT: weight}).drop("deleted_ms")

    def untouched(self, touched: DataFrame | None) -> DataFrame:
        """Return the events that need no pairing: added rows, and events older than a TRUNCATE."""
        rows = self._events if touched is None else self._events.join(touched, _HASH, "left_anti")
        return rows.select(*self._columns).unionByName(self._old.select(*self._columns))

    def changes(self, rows: DataFrame, known: DataFrame | None, touched: DataFrame) -> DataFrame:
        """Return what becomes of the rows, the remembered events and the batch's events.

        Args:
            rows: The target's rows with the touched contents.
            known: The table's tombstones.
            touched: The contents to recompute.
        """
        members = [rows]
        if known is not None:
            members.append(self.of(self._remembered(known), touched))
        new = self.of(self._events, touched).drop(_IMAGE)
        members.append(new.withColumns({_KIND: F.lit(_NEW), _WEIGHT: _weight()}))
        everything = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), members)
        return self._decided(everything).select(*self._columns)

    def _decided(self, members: DataFrame) -> DataFrame:
        copy, level, wanted, rank, is_changed = (
            RESERVED_PREFIX + name for name in ("copy", "level", "wanted", "rank", "is_changed")
        )
        same = Window.partitionBy(ROW_ID).orderBy(_KIND, F.abs(_WEIGHT).desc())
        members = members.withColumn(copy, F.row_number().over(same)).where(F.col(copy) == 1)
        equal = Window.partitionBy(_HASH)
        # An update removes before it adds, so that it does not remove its own row.
        order = equal.orderBy(SEQUENCE, F.col(_SIGN).desc(), ROW_ID).rowsBetween(Window.unboundedPreceding, 0)
        newest = equal.orderBy(F.col(SEQUENCE).desc(), F.col(ROW_ID).desc()).rowsBetween(Window.unboundedPreceding, 0)
        is_row = (F.col(_SIGN) == _ADDS) & (F.col(_KIND) != _REMEMBERED)
        members = members.withColumn(level, F.sum(_WEIGHT).over(order))
        members = members.withColumns(
            {
                wanted: F.sum(_WEIGHT).over(equal) - F.least(F.lit(0), F.min(level).over(equal)),
                rank: F.sum(is_row.cast("int")).over(newest),
            }
        )
        members = members.withColumn(IS_REMOVED, ~(is_row & (F.col(rank) <= F.col(wanted))))
        changes = (F.col(_KIND) == _NEW) | ((F.col(_KIND) == _IN_TABLE) & F.col(IS_REMOVED))
        members = members.withColumn(is_changed, F.max(changes).over(equal))
        is_again = (F.col(_KIND) == _REMEMBERED) & F.col(is_changed) & (F.col(_WEIGHT) != 0)
        return members.where(changes | is_again)


def _of_ids(frame: DataFrame) -> DataFrame:
    """Add the contents' hash and the sign, which are parts of the id."""
    sign = F.substring(ROW_ID, -_HASH_DIGITS - 1, 1)
    return frame.withColumns({_HASH: F.right(F.col(ROW_ID), F.lit(_HASH_DIGITS)), _SIGN: sign})


def _weight() -> Column:
    return F.when(F.col(_SIGN) == _ADDS, 1).otherwise(-1)
