"""Counts the changes of a batch that take additional steps: TRUNCATEs, moved keys, unsent values."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.column_names import IS_TIED, NUM_SUPERSEDED, SOURCE_ID
from stream_merge.config import SinkConfig
from stream_merge.partial_updates.fold import unset_columns
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.sql import column_of

SPECIAL = ("truncates", "moves", "unset", "lacking")
"""The names of the aggregates in `special_changes`."""


def special_changes(config: SinkConfig, partial: PartialUpdates | None) -> list[Column]:
    """Return aggregates over the changes of a batch that take additional steps. The list is empty if there can be none.

    `truncates` counts TRUNCATEs, `moves` counts changes that give a row another key, and `unset` collects the names of
    the columns that a change leaves alone. `lacking` counts changes that leave columns alone and do not give a row
    another key, so that their row is probably in the table. The frame must have the source's alias.
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
        is_arrival = F.lit(False) if config.old_key is None else column_of(config.old_key).isNotNull()
        counts.append(F.count(F.when((F.size(unset) > 0) & ~is_arrival, 1)).alias("lacking"))
    return counts


def is_truncate(config: SinkConfig) -> Column:
    """Return whether a row of the source stands for a TRUNCATE: `truncate_when`, in which NULL counts as false."""
    return F.lit(False) if config.truncate_when is None else F.coalesce(column_of(config.truncate_when), F.lit(False))


def without_truncates(batch: DataFrame, config: SinkConfig) -> tuple[DataFrame, DataFrame]:
    """Return the rows that stand for a TRUNCATE, and the others."""
    named = batch.alias(config.source_alias)
    return named.where(is_truncate(config)), named.where(~is_truncate(config))


def own_columns(config: SinkConfig, partial: PartialUpdates | None) -> dict[str, str]:
    """Return name and type of the columns that evaluating a batch adds to it."""
    of_order = {IS_TIED: "boolean", NUM_SUPERSEDED: "bigint"} if config.sequence_by else {}
    return {**of_order, **(partial.own_columns() if partial else {}), SOURCE_ID: "bigint"}
