"""Chooses the newest change of each key, and decides which target columns hold a row's sequence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DataType, MapType, NullType, StringType, StructType, VariantType

from stream_merge.bridge.statement import Once
from stream_merge.clauses import Expression
from stream_merge.column_names import IS_TIED, NUM_SUPERSEDED, RESERVED_PREFIX, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import SchemaMismatchError
from stream_merge.merge.canonical import canonical_text
from stream_merge.merge.key_and_sequence import columns_of, sequence_struct
from stream_merge.merge.lossless_casts import exactly_typed
from stream_merge.merge.source import is_delete
from stream_merge.sql import column_of, quote


def stored_in(
    parts: Sequence[Expression], batch_columns: Collection[str], target_columns: Collection[str]
) -> tuple[str, ...]:
    """Return the names of the columns that hold the sequence, in the batch and in the target.

    These are the user's columns if all parts are columns that both have, else the one column `SEQUENCE`. A target that
    has `SEQUENCE` keeps using it.
    """
    in_batch, in_target = ({name.lower() for name in columns} for columns in (batch_columns, target_columns))
    if SEQUENCE in in_target:
        return (SEQUENCE,)
    names = [part for part in parts if isinstance(part, str) and part.lower() in in_batch & in_target]
    return tuple(names) if len(names) == len(parts) else (SEQUENCE,)


def with_sequence(
    batch: DataFrame, parts: Sequence[Expression], source_alias: str, target_type: DataType | None
) -> DataFrame:
    """Add the column `SEQUENCE`: a struct of the parts, which Spark compares field by field, NULL first.

    Args:
        batch: The batch.
        parts: Column names, SQL expressions or Columns, the most significant first.
        source_alias: The alias by which expressions may qualify the batch's columns.
        target_type: Type of the column in the target; None if the target lacks it.
    """
    names = {name.lower() for name in batch.columns}
    values = [
        F.col(quote(part)) if isinstance(part, str) and part.lower() in names else column_of(part) for part in parts
    ]
    named = batch.alias(source_alias)
    given = named.select(sequence_struct(values).alias(SEQUENCE)).schema[SEQUENCE].dataType
    assert isinstance(given, StructType)
    values = [valid_texts(value, own.dataType) for value, own in zip(values, given.fields, strict=True)]
    sequence = sequence_struct(values)
    if isinstance(target_type, StructType) and len(target_type) == len(values):
        sequence = sequence_struct(
            in_type_of_target(value, f"sequence_by ({part})", own.dataType, kept.dataType)
            for value, part, own, kept in zip(values, parts, given.fields, target_type.fields, strict=True)
        )
    if target_type is not None:
        sequence = sequence.cast(target_type)
    return named.select("*", sequence.alias(SEQUENCE))


def valid_texts(value: Column, data_type: DataType) -> Column:
    """Return a sequence or a part of it, an error where a text is not UTF-8.

    The bounds of remembered deletes are kept as JSON, which has no other texts.
    """
    if isinstance(data_type, StringType):
        return F.validate_utf8(value)
    if not has_texts(data_type):
        return value
    assert isinstance(data_type, StructType)
    fields = [valid_texts(value.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
    return F.when(value.isNotNull(), F.struct(*fields))


def has_texts(data_type: DataType) -> bool:
    """Return whether a type is STRING, or a struct with such a field."""
    if isinstance(data_type, StructType):
        return any(has_texts(field.dataType) for field in data_type.fields)
    return isinstance(data_type, StringType)


def in_type_of_target(value: Column, name: str, given: DataType, kept: DataType) -> Column:
    """Return a sequence in the target's type, in which changes, rows and deletes are all compared.

    Args:
        value: The sequence, or a part of it.
        name: Its name in messages.
        given: Its type in the batch.
        kept: Its type in the target.

    Raises:
        SchemaMismatchError: The target keeps text, whose order differs from that of the batch's type.
    """
    if given == kept or isinstance(given, NullType):
        return value
    if isinstance(kept, StringType) and not isinstance(given, StringType):
        raise SchemaMismatchError(
            f"{name} is {given.simpleString().upper()} in the batch and {kept.simpleString().upper()} in the target, "
            "whose order differs: as text, 9 comes after 10. Cast it to STRING in the source if its text sorts "
            "correctly, or give the target's column the source's type"
        )
    if not isinstance(given, AtomicType) or not isinstance(kept, AtomicType):
        return value
    return exactly_typed(value, name, given, kept)


def newest_changes(batch: DataFrame, config: SinkConfig, written: Collection[str], once: Once) -> DataFrame:
    """Return the newest change of each key, with two more columns: `IS_TIED` and `NUM_SUPERSEDED`.

    A NULL sequence is older than any value. Changes with the same key and sequence are ordered by their contents, so
    that a replay decides alike; the key is tied if they write different values. `NUM_SUPERSEDED` counts the key's other
    changes.

    Args:
        batch: The batch.
        config: The sink with its sequence as columns.
        written: The columns of the batch to write, in lower case.
        once: Keeps the expressions for other batches with the same columns.
    """
    rank = RESERVED_PREFIX + "rank"

    def ranks() -> list[Column]:
        of_key = Window.partitionBy(*[quote(key) for key in config.keys])
        newest_first = [F.col(quote(name)).desc_nulls_last() for name in config.sequence_columns]
        effect = effect_hash(batch, written, is_delete(config))
        order = sequence_struct(columns_of(config.sequence_columns))
        return [
            is_tied(order, effect, F.lit(True), of_key).alias(IS_TIED),
            (F.count(F.lit(1)).over(of_key) - 1).alias(NUM_SUPERSEDED),
            F.row_number().over(of_key.orderBy(*newest_first, contents_hash(batch).desc())).alias(rank),
        ]

    named = batch.alias(config.source_alias)
    ranked = named.select("*", *once(f"newest of {batch.columns}", ranks))
    return ranked.where(F.col(rank) == 1).drop(rank)


def effect_hash(batch: DataFrame, written: Collection[str], is_delete: Column) -> Column:
    """Return a hash of the values that a change writes.

    A record that is delivered again has the same hash: columns that are not written, such as the record's position, are
    left out.

    Args:
        batch: The changes.
        written: The columns to write, in lower case.
        is_delete: Whether a change deletes; the other columns then do not count.
    """
    others = [name for name in batch.columns if name.lower() not in written]
    return F.when(is_delete, F.lit(0).cast("bigint")).otherwise(contents_hash(batch, without=others))


def is_tied(order: Column, effect: Column, is_counted: Column, of_key: WindowSpec) -> Column:
    """Return whether the newest changes of a key differ, although their sequence is the same.

    Args:
        order: The sequence of a change.
        effect: What `effect_hash` returned for it.
        is_counted: Whether the row counts as a change.
        of_key: All changes of the key.
    """

    def newest(value: Column) -> Column:
        found = F.struct(order.alias("order"), value.alias("effect"))
        return F.max(F.when(is_counted, found)).over(of_key)["effect"]

    # The bitwise complement reverses the order, so this is the least.
    return F.coalesce(newest(effect) != F.bitwise_not(newest(F.bitwise_not(effect))), F.lit(False))


def contents_hash(batch: DataFrame, without: Sequence[str] = ()) -> Column:
    """Return a hash of all columns except those in `without`."""
    fields = [f for f in batch.schema if f.name not in without]
    hashable = [F.col(quote(f.name)) for f in fields if not _is_unhashable(f.dataType)]
    # Spark hashes neither maps nor variants.
    others = {f.name: (F.col(quote(f.name)), f.dataType) for f in fields if _is_unhashable(f.dataType)}
    return F.xxhash64(*hashable, *([canonical_text(others)] if others else []))


def _is_unhashable(data_type: DataType) -> bool:
    if isinstance(data_type, (MapType, VariantType)):
        return True
    parts = [f.dataType for f in data_type.fields] if hasattr(data_type, "fields") else []
    element = getattr(data_type, "elementType", None)
    return any(_is_unhashable(part) for part in [*parts, *([element] if element is not None else [])])
