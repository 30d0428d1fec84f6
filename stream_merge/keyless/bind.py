"""Gives the rows of a table without a key an id, which serves as their key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.clauses import Expression
from stream_merge.column_names import IS_REMOVED, ROW_ID, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, UnresolvedColumnError
from stream_merge.merge.source import is_delete
from stream_merge.order.sequence import with_sequence
from stream_merge.sql import column_of, quote


def with_row_ids(config: SinkConfig, batch: DataFrame, schema: T.StructType) -> tuple[SinkConfig, DataFrame]:
    """Return the sink with the key `ROW_ID`, and the batch with the columns for it, still without ids.

    Args:
        config: The sink, with `before`.
        batch: The batch as it arrived.
        schema: The target's schema.

    Raises:
        ConfigError: `before` is not a struct.
        UnresolvedColumnError: `before` lacks a column to write.
    """
    assert config.delete_when is not None
    sequence_type = schema[SEQUENCE].dataType if SEQUENCE in schema.names else None
    sequenced = with_sequence(batch, config.sequence_parts, config.source_alias, sequence_type)
    nothing = F.lit(None)
    prepared = sequenced.select("*", nothing.cast("string").alias(ROW_ID), nothing.cast("boolean").alias(IS_REMOVED))
    in_target = {name.lower() for name in schema.names}
    written = config.written_columns(batch.columns)
    kept = [name for name in written if config.merge_schema or name.lower() in in_target]
    _check_before(config, batch, kept)
    # The quarantine checks the batch as it arrived, where only the user's own condition tells removals.
    is_removed: Expression
    if isinstance(config.delete_when, str):
        is_removed = f"coalesce({IS_REMOVED}, (\n{config.delete_when}\n))"
    else:
        is_removed = F.coalesce(F.col(IS_REMOVED), config.delete_when)
    ordered = replace(
        config,
        keys=(ROW_ID,),
        before=None,
        sequence_by=(SEQUENCE,),
        tie_break_by=(),
        delete_when=is_removed,
        columns=(*kept, ROW_ID, SEQUENCE),
        except_columns=(),
    )
    return ordered, prepared


def type_before(config: SinkConfig, batch: DataFrame) -> T.StructType:
    """Return the type of the row before a change of the batch.

    Raises:
        ConfigError: It is not a struct.
    """
    image = batch.alias(config.source_alias).select(before_of(config, batch.columns).alias("before"))
    kind = image.schema["before"].dataType
    if not isinstance(kind, T.StructType):
        raise ConfigError([f"before is of type {kind.simpleString()}; it must be a struct of the table's columns"])
    return kind


def _check_before(config: SinkConfig, batch: DataFrame, written: Sequence[str]) -> None:
    kind = type_before(config, batch)
    present = {name.lower() for name in kind.names}
    missing = [name for name in written if name.lower() not in present]
    if missing:
        raise UnresolvedColumnError(
            f"before has no field {', '.join(missing)}; it has {', '.join(kind.names)}. "
            "Add the fields, or leave the columns out with except_columns"
        )


def before_of(config: SinkConfig, columns: Sequence[str]) -> Column:
    """Return the row before a change of the source."""
    assert config.before is not None
    if isinstance(config.before, str) and config.before.lower() in {name.lower() for name in columns}:
        return F.col(quote(config.before))
    return column_of(config.before)


def is_lost(config: SinkConfig, columns: Sequence[str]) -> Column:
    """Return whether a change of the source removes a row without identifying it."""
    return before_of(config, columns).isNull() & is_delete(config)
