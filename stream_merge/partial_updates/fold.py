"""Folds the changes of a key in a micro-batch to one, each column with its newest value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    RESERVED_PREFIX,
    UNSET,
)
from stream_merge.config import SinkConfig
from stream_merge.order.sequence import contents_hash, effect_hash, is_tied
from stream_merge.partial_updates.registers import PartialUpdates, column_sequences, order_of
from stream_merge.sql import column_of, quote


def with_unset(batch: DataFrame, config: SinkConfig, columns: Sequence[str]) -> DataFrame:
    """Add `UNSET`: the columns that each change leaves alone.

    Args:
        batch: The batch.
        config: The sink.
        columns: The columns that changes may set.
    """
    return batch.alias(config.source_alias).select("*", unset_columns(config, columns).alias(UNSET))


def unset_columns(config: SinkConfig, columns: Sequence[str]) -> Column:
    """Return which of the columns a change leaves alone: an array of their names in lower case, NULL or empty for none."""
    unset: list[Column] = []
    if config.unchanged_columns is not None:
        names = column_of(config.unchanged_columns)
        unset.append(F.coalesce(F.transform(names, F.lower), F.array().cast("array<string>")))
    ignored = config.ignores_nulls_of(columns)
    if ignored:
        nulls = F.array(*[F.when(F.col(quote(name)).isNull(), F.lit(name.lower())) for name in ignored])
        unset.append(F.array_compact(nulls))
    return F.concat(*unset) if unset else F.lit(None).cast("array<string>")


def with_deletes(batch: DataFrame, config: SinkConfig) -> DataFrame:
    """Add `IS_DELETE`."""
    is_delete = F.lit(False) if config.delete_when is None else column_of(config.delete_when)
    return batch.alias(config.source_alias).select("*", F.coalesce(is_delete, F.lit(False)).alias(IS_DELETE))


def described_changes(batch: DataFrame, config: SinkConfig, partial: PartialUpdates) -> DataFrame:
    """Return the batch with `UNSET`, and what else tells which columns a change sets.

    That is `IS_DELETE` and `IS_CARRIED_OVER` for a sink with a sequence, else `IS_UNRESOLVED`.
    """
    changes = with_unset(batch, config, partial.columns)
    if partial.sequence is None:
        unsent = F.array(*[F.lit(name.lower()) for name in partial.unsent]).cast("array<string>")
        return changes.withColumn(IS_UNRESOLVED, F.coalesce(F.arrays_overlap(UNSET, unsent), F.lit(False)))
    return with_deletes(changes, config).withColumn(IS_CARRIED_OVER, F.lit(False))


def folded_changes(
    changes: DataFrame, config: SinkConfig, written: Collection[str], partial: PartialUpdates, once: Once
) -> DataFrame:
    """Return one row for each key: its newest change, each column with the newest value that a change of the batch set.

    Args:
        changes: The batch with `COLUMN_SEQUENCES`, `UNSET`, `IS_DELETE` and `IS_CARRIED_OVER`.
        config: The sink, its sequence in columns.
        written: The columns of the batch that are written, in lower case.
        partial: What changes may set.
        once: Keeps the expressions for other batches of the same columns.

    Returns:
        The batch's columns and `own_columns`, with `IS_TIED` and `NUM_SUPERSEDED` before them as `newest_changes` gives them.
    """
    fold = once(f"fold of {changes.columns}", lambda: _fold(changes, config, written, partial))
    ranked = changes.select("*", *fold.ordered).select("*", *fold.ranked)
    return ranked.where(F.col(_RANK) == 1).select(*fold.folded)


@dataclass(frozen=True, slots=True)
class _Fold:
    """The columns of the three steps in which changes are folded: the first two add them, the last is the result."""

    ordered: Sequence[Column]
    ranked: Sequence[Column]
    folded: Sequence[Column]


_RANK = RESERVED_PREFIX + "rank"


def _fold(changes: DataFrame, config: SinkConfig, written: Collection[str], partial: PartialUpdates) -> _Fold:
    assert partial.sequence is not None
    own = tuple(RESERVED_PREFIX + name for name in ("order", "contents", "effect"))
    contents = contents_hash(changes, without=[COLUMN_SEQUENCES])
    effect = effect_hash(changes, {*written, UNSET} - {COLUMN_SEQUENCES}, F.col(IS_DELETE))
    ordered = order_of(config.sequence_columns, partial).alias(own[0]), contents.alias(own[1]), effect.alias(own[2])
    of_key = Window.partitionBy(*[quote(key) for key in config.keys])
    newest_first = of_key.orderBy(F.col(own[0]).desc(), IS_CARRIED_OVER, F.col(own[1]).desc())
    # Over the whole key, so that Spark computes it once for the key, not once for each of its changes.
    all_newest_first = newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_real = ~F.col(IS_CARRIED_OVER)

    def newest_set(name: str) -> Column:
        is_set = ~F.col(IS_DELETE) & ~F.coalesce(F.array_contains(UNSET, name.lower()), F.lit(False))
        value = F.struct(F.col(quote(name)).alias("value"), F.col(own[0]).alias("sequence"))
        return F.first(F.when(is_set, value), ignorenulls=True).over(all_newest_first)

    places = {name: f"{RESERVED_PREFIX}set_{number}" for number, name in enumerate(partial.columns)}
    ranked = [
        F.max(F.when(F.col(IS_DELETE), F.col(own[0]))).over(of_key).alias(NEWEST_DELETE),
        (is_real & is_tied(F.col(own[0]), F.col(own[2]), is_real, of_key)).alias(IS_TIED),
        (F.count(F.when(is_real, 1)).over(of_key) - F.when(is_real, 1).otherwise(0)).alias(NUM_SUPERSEDED),
        F.row_number().over(newest_first).alias(_RANK),
        *[newest_set(name).alias(place) for name, place in places.items()],
    ]

    is_since_delete = {
        name: ~F.col(IS_DELETE) & ~F.coalesce(F.col(place)["sequence"] < F.col(NEWEST_DELETE), F.lit(False))
        for name, place in places.items()
    }
    own_sequences = {
        name: F.when(is_since_delete[name], F.col(place)["sequence"]).cast(partial.sequence)
        for name, place in places.items()
    }
    # A delete keeps what it says of itself, by which it is known as one.
    values = {
        name: F.when(F.col(IS_DELETE), F.col(quote(name))).when(is_since_delete[name], F.col(place)["value"])
        for name, place in places.items()
    }
    never = dict.fromkeys(partial.unwritten, F.lit(None).cast(partial.sequence))
    is_unresolved = F.lit(False)
    for name in partial.unsent:
        is_unresolved = is_unresolved | own_sequences[name].isNull()
    columns = changes.columns
    folded = [
        column_sequences({**own_sequences, **never}, F.col(own[0]), partial).alias(name)
        if name == COLUMN_SEQUENCES
        else (values[name].alias(name) if name in values else F.col(quote(name)))
        for name in columns[: columns.index(UNSET)]
    ]
    folded += [F.col(name) for name in (IS_TIED, NUM_SUPERSEDED, IS_DELETE, IS_CARRIED_OVER, NEWEST_DELETE)]
    folded.append((is_unresolved & ~F.col(IS_DELETE) & is_real).alias(IS_UNRESOLVED))
    return _Fold(ordered, ranked, folded)


def since_deletes(rows: DataFrame, partial: PartialUpdates) -> DataFrame:
    """Take the values away that are older than the delete in `DELETED`; the rows themselves are newer, if there is one."""
    sequences = F.col(COLUMN_SEQUENCES)

    def is_older(sequence: Column) -> Column:
        return F.coalesce(sequence < F.col(DELETED), F.lit(False))

    values = {
        name: F.when(~is_older(sequences[name.lower()]), F.col(quote(name))).alias(name) for name in partial.columns
    }
    null = F.lit(None).cast(partial.sequences_type.valueType)
    newer = F.transform_values(sequences, lambda _, value: F.when(is_older(value), null).otherwise(value))
    is_unresolved = F.col(IS_UNRESOLVED)
    for name in partial.unsent:
        is_unresolved = is_unresolved | is_older(sequences[name.lower()])
    replaced = {
        **values,
        COLUMN_SEQUENCES: newer.alias(COLUMN_SEQUENCES),
        IS_UNRESOLVED: is_unresolved.alias(IS_UNRESOLVED),
    }
    return rows.select(*[replaced.get(name, F.col(quote(name))) for name in rows.columns])
