"""Folds the changes of a key in a micro-batch into one, in which each column has its newest value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from stream_merge.bridge.statement import Once
from stream_merge.column_names import (
    COLUMN_SEQUENCES,
    DELETED,
    IS_CARRIED_OVER,
    IS_DELETE,
    IS_TIED,
    IS_UNRESOLVED,
    NEWEST_DELETE,
    NUM_SUPERSEDED,
    OLD_KEY,
    RESERVED_PREFIX,
    UNSET,
)
from stream_merge.config import SinkConfig
from stream_merge.merge.key_and_sequence import columns_of
from stream_merge.merge.source import is_delete
from stream_merge.order.sequence import contents_hash, effect_hash, is_tied
from stream_merge.partial_updates.key_changes import is_arrival
from stream_merge.partial_updates.last_writer_wins import Origin, Register, is_reset, write_of, write_order
from stream_merge.partial_updates.registers import PartialUpdates, column_sequences, order_of
from stream_merge.sql import column_of, quote

_ORDER = RESERVED_PREFIX + "order"
_ARRIVAL = RESERVED_PREFIX + "arrival"
_EFFECT = RESERVED_PREFIX + "effect"
_RANK = RESERVED_PREFIX + "rank"


def unset_columns(config: SinkConfig, columns: Sequence[str]) -> Column:
    """Return the names of the columns that a change leaves alone: an array in lower case, NULL or empty for none."""
    unset: list[Column] = []
    if config.unchanged_columns is not None:
        names = column_of(config.unchanged_columns)
        unset.append(F.coalesce(F.transform(names, F.lower), F.array().cast("array<string>")))
    ignored = config.ignores_nulls_of(columns)
    if ignored:
        nulls = F.array(*[F.when(F.col(quote(name)).isNull(), F.lit(name.lower())) for name in ignored])
        unset.append(F.array_compact(nulls))
    return F.concat(*unset) if unset else F.lit(None).cast("array<string>")


def described_changes(batch: DataFrame, config: SinkConfig, partial: PartialUpdates, once: Once) -> DataFrame:
    """Add the columns that say which columns a change sets.

    These are `UNSET` and, for a sink with a sequence, `IS_DELETE` and `IS_CARRIED_OVER`, otherwise `IS_UNRESOLVED`.
    """
    unset = once("unset columns", lambda: unset_columns(config, partial.columns).alias(UNSET))
    changes = batch.alias(config.source_alias).select("*", unset)
    if partial.sequence is None:
        unsent = F.array(*[F.lit(name.lower()) for name in partial.unsent]).cast("array<string>")
        return changes.withColumn(IS_UNRESOLVED, F.coalesce(F.arrays_overlap(UNSET, unsent), F.lit(False)))
    described = changes.alias(config.source_alias).select("*", is_delete(config).alias(IS_DELETE))
    return described.withColumn(IS_CARRIED_OVER, F.lit(False))


def sets(name: str) -> Column:
    """Return whether a change writes this column. A delete writes none, other changes those that are not in `UNSET`."""
    return ~F.col(IS_DELETE) & ~F.coalesce(F.array_contains(UNSET, name.lower()), F.lit(False))


def place_in_order(changes: DataFrame, sequence: Column) -> Column:
    """Return the `write_order` of the batch's changes.

    Args:
        changes: The batch with `IS_CARRIED_OVER`.
        sequence: The sequence of a change.
    """
    origin = F.when(F.col(IS_CARRIED_OVER), Origin.HANDED_ON.value).otherwise(Origin.IN_BATCH.value)
    return write_order(sequence, origin, contents_hash(changes, without=[COLUMN_SEQUENCES]))


def folded_changes(
    changes: DataFrame, config: SinkConfig, written: Collection[str], partial: PartialUpdates, once: Once
) -> DataFrame:
    """Return the newest change of each key. Each column has the newest value that a change of the batch set.

    Args:
        changes: The batch with `COLUMN_SEQUENCES`, `UNSET`, `IS_DELETE` and `IS_CARRIED_OVER`.
        config: The sink, its sequence in columns.
        written: The columns of the batch that are written, in lower case.
        partial: What changes may set.
        once: Keeps the expressions for other batches of the same columns.

    Returns:
        The batch's columns, `IS_TIED` and `NUM_SUPERSEDED` as `newest_changes` gives them, and `own_columns`.
    """
    fold = once(f"fold of {changes.columns}", lambda: _fold(changes, config, written, partial))
    ranked = changes.select("*", *fold.ordered).select("*", *fold.ranked)
    return ranked.where(F.col(_RANK) == 1).select(*fold.folded)


@dataclass(frozen=True, slots=True)
class _Fold:
    """The columns of three successive SELECTs. The first two add columns to the batch, the last makes the result."""

    ordered: Sequence[Column]
    ranked: Sequence[Column]
    folded: Sequence[Column]


def _fold(changes: DataFrame, config: SinkConfig, written: Collection[str], partial: PartialUpdates) -> _Fold:
    place = place_in_order(changes, order_of(config.sequence_columns, partial))
    effect = effect_hash(changes, {*written, UNSET} - {COLUMN_SEQUENCES}, F.col(IS_DELETE))
    writes = {name: f"{RESERVED_PREFIX}set_{number}" for number, name in enumerate(partial.columns)}
    return _Fold(
        ordered=[place.alias(_ORDER), effect.alias(_EFFECT)],
        ranked=_ranked(config, partial, writes, has_moves=OLD_KEY in changes.columns),
        folded=_folded(changes.columns, partial, writes),
    )


def _ranked(config: SinkConfig, partial: PartialUpdates, writes: Mapping[str, str], *, has_moves: bool) -> list[Column]:
    """Return the columns that compare the changes of a key.

    Args:
        config: The sink.
        partial: What changes may set.
        writes: The name of the column for the newest write, by the name of the column that it writes.
        has_moves: Whether the changes say what keys their rows had.
    """
    assert partial.sequence is not None
    sequence, is_real = F.col(_ORDER)["sequence"], ~F.col(IS_CARRIED_OVER)
    of_key = Window.partitionBy(*columns_of(config.keys))
    newest_first = of_key.orderBy(F.col(_ORDER).desc())
    # Over the whole key, so that Spark computes it once for the key, not once for each of its changes.
    all_newest_first = newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)

    def newest_write(name: str) -> Column:
        write = F.when(sets(name), write_of(F.col(quote(name)), sequence, is_real.alias("is_real")))
        # The window is in `write_order`, so that the first write is the greatest.
        return F.first(write, ignorenulls=True).over(all_newest_first)

    arrival = F.lit(None).cast(partial.sequence)
    if has_moves:
        arrival = F.max(F.when(is_arrival(config.keys), sequence)).over(of_key)
    return [
        F.max(F.when(F.col(IS_DELETE), sequence)).over(of_key).alias(NEWEST_DELETE),
        arrival.alias(_ARRIVAL),
        (is_real & is_tied(sequence, F.col(_EFFECT), is_real, of_key)).alias(IS_TIED),
        (F.count(F.when(is_real, 1)).over(of_key) - F.when(is_real, 1).otherwise(0)).alias(NUM_SUPERSEDED),
        F.row_number().over(newest_first).alias(_RANK),
        *[newest_write(name).alias(write) for name, write in writes.items()],
    ]


def _folded(columns: Sequence[str], partial: PartialUpdates, writes: Mapping[str, str]) -> list[Column]:
    """Return the newest change of a key, with the registers that the key's row has since it was made or came."""
    assert partial.sequence is not None
    registers = {}
    for name, write in writes.items():
        newest = Register.of(F.col(write))
        is_gone = F.col(IS_DELETE) | is_reset(newest.sequence, F.col(NEWEST_DELETE), comes_later=False)
        is_other_rows = is_reset(newest.sequence, F.col(_ARRIVAL), comes_later=False)
        is_gone |= F.col(write)["is_real"] & is_other_rows
        registers[name] = newest.without(is_gone)
    sequences = {name: register.sequence.cast(partial.sequence) for name, register in registers.items()}
    never = dict.fromkeys(partial.unwritten, F.lit(None).cast(partial.sequence))
    is_unresolved = F.lit(False)
    for name in partial.unsent:
        is_unresolved = is_unresolved | sequences[name].isNull()

    def folded(name: str) -> Column:
        if name == COLUMN_SEQUENCES:
            return column_sequences({**sequences, **never}, F.col(_ORDER)["sequence"], partial)
        if name not in registers:
            return F.col(quote(name))
        # A delete keeps its own columns, by which `delete_when` recognizes it.
        return F.when(F.col(IS_DELETE), F.col(quote(name))).otherwise(registers[name].value)

    return [
        *[folded(name).alias(name) for name in columns[: columns.index(UNSET)]],
        *columns_of([IS_TIED, NUM_SUPERSEDED, IS_DELETE, IS_CARRIED_OVER, NEWEST_DELETE]),
        (is_unresolved & ~F.col(IS_DELETE) & ~F.col(IS_CARRIED_OVER)).alias(IS_UNRESOLVED),
    ]


def since_deletes(rows: DataFrame, partial: PartialUpdates) -> DataFrame:
    """Reset the registers of folded changes that are older than the remembered delete in `DELETED`, which may be NULL.

    The changes themselves are newer, and come later than the delete.
    """
    kept = F.col(COLUMN_SEQUENCES)

    def is_older(sequence: Column) -> Column:
        return is_reset(sequence, F.col(DELETED), comes_later=False)

    registers = {name: Register(F.col(quote(name)), kept[name.lower()]) for name in partial.columns}
    left = {name: register.without(is_older(register.sequence)).value for name, register in registers.items()}
    null = F.lit(None).cast(partial.sequences_type.valueType)
    sequences = F.transform_values(kept, lambda _, sequence: F.when(is_older(sequence), null).otherwise(sequence))
    is_unresolved = F.col(IS_UNRESOLVED)
    for name in partial.unsent:
        is_unresolved = is_unresolved | is_older(registers[name].sequence)
    replaced = {**left, COLUMN_SEQUENCES: sequences, IS_UNRESOLVED: is_unresolved}
    return rows.select(*[replaced.get(name, F.col(quote(name))).alias(name) for name in rows.columns])
