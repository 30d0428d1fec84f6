"""Gives a table the columns and the feature that a sink needs, and puts the batch in terms of its columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DataType, MapType, NullType, StringType, StructType

from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import UnsupportedTableError
from stream_merge.keyless.multiset import with_row_ids
from stream_merge.merge.lossless_casts import exactly_typed
from stream_merge.order.sequence import in_type_of_target, stored_in, with_sequence
from stream_merge.partial_updates.registers import PartialUpdates, find_partial_updates, sequence_struct
from stream_merge.sql import quote
from stream_merge.steps import reached

logger = logging.getLogger("stream_merge")

FEATURE = "domainMetadata"
"""The table feature for what is remembered of deletes."""


def missing_columns(config: SinkConfig, batch: DataFrame, schema: StructType) -> dict[str, str]:
    """Return name and type of the columns that the sink needs to keep order and the target lacks.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        schema: The target's.
    """
    if not config.keeps_order:
        return {}
    missing: dict[str, str] = {}
    schema = StructType([*schema.fields])
    if config.before is not None and ROW_ID not in schema.names:
        missing[ROW_ID] = "string"
    columns = (
        (SEQUENCE,) if config.before is not None else stored_in(config.sequence_parts, batch.columns, schema.names)
    )
    if columns == (SEQUENCE,) and SEQUENCE not in schema.names:
        added = with_sequence(batch, config.sequence_parts, config.source_alias, None).schema[SEQUENCE]
        missing[SEQUENCE] = added.dataType.simpleString()
        schema.add(added)
    if config.sets_columns and COLUMN_SEQUENCES not in schema.names:
        partial = ordered_batch(config, batch, schema)[2]
        if partial is not None:
            missing[COLUMN_SEQUENCES] = partial.sequences_type.simpleString()
    return missing


def outgrown_sequences(config: SinkConfig, batch: DataFrame, schema: StructType) -> dict[str, str]:
    """Return path and new type of what is too narrow in `COLUMN_SEQUENCES`, because the sequence of the table was widened.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        schema: The target's.
    """
    if not config.keeps_order or config.before is not None or COLUMN_SEQUENCES not in schema.names:
        return {}
    columns = stored_in(config.sequence_parts, batch.columns, schema.names)
    kept = schema[COLUMN_SEQUENCES].dataType
    if columns == (SEQUENCE,) and SEQUENCE not in schema.names:
        return {}
    assert isinstance(kept, MapType)
    return dict(_other_types(f"{COLUMN_SEQUENCES}.value", kept.valueType, sequence_struct(schema, columns)))


def _other_types(path: str, kept: DataType, wanted: DataType) -> Iterator[tuple[str, str]]:
    if isinstance(kept, StructType) and isinstance(wanted, StructType):
        for one, other in zip(kept.fields, wanted.fields, strict=False):
            yield from _other_types(f"{path}.{one.name}", one.dataType, other.dataType)
    elif kept != wanted:
        yield path, wanted.simpleString()


def prepare_target(config: SinkConfig, batch: DataFrame, table: Table, transaction: Transaction) -> Transaction:
    """Give a target what the sink needs to keep order, columns and table feature each in a commit before the first batch.

    Returns:
        The transaction, opened anew when something was changed.

    Raises:
        UnsupportedTableError: The sequence was widened, and the table property that allows it was taken away since.
    """
    schema = StructType.fromJson(transaction.schema)
    missing = missing_columns(config, batch, schema)
    if missing:
        table.add_columns(missing)
        reached("columns_added")
    outgrown = outgrown_sequences(config, batch, schema)
    if outgrown and transaction.properties.get("delta.enableTypeWidening", "false").lower() != "true":
        raise UnsupportedTableError(
            f"{table.name}: the sequence has a wider type than what is remembered of single columns, in {COLUMN_SEQUENCES}. "
            "Set the table property delta.enableTypeWidening, so that the sink can widen it"
        )
    for path, sql_type in outgrown.items():
        logger.info("%s: widening %s to %s, as the sequence was", table.name, path, sql_type)
        table.widen_column(path, sql_type)
    lacks_feature = config.keeps_tombstones and FEATURE not in (transaction.protocol.get("writerFeatures") or [])
    if lacks_feature:
        logger.info("%s: adding the table feature %s, in which deletes are remembered", table.name, FEATURE)
        table.enable_feature(FEATURE)
        reached("feature_added")
    return table.begin() if missing or outgrown or lacks_feature else transaction


def prepared(config: SinkConfig, batch: DataFrame, written: DataFrame) -> tuple[DataFrame, Mapping[str, str]]:
    """Return what a target is to be created like, and its properties, so that it has what the sink needs.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        written: The batch with the columns that are written.
    """
    missing = missing_columns(config, batch, written.schema)
    added = [F.lit(None).cast(sql_type).alias(name) for name, sql_type in missing.items()]
    feature = {f"delta.feature.{FEATURE}": "supported"} if config.keeps_tombstones else {}
    return written.select("*", *added), {**config.table_properties, **feature}


def ordered_batch(
    config: SinkConfig, batch: DataFrame, schema: StructType, *, is_typed: bool = True
) -> tuple[SinkConfig, DataFrame, PartialUpdates | None]:
    """Return the sink in terms of columns that batch and target have, the batch with these columns, and how changes set them.

    The columns are the ones that hold the sequence, and the ones that are written.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        schema: The target's.
        is_typed: Whether keys and sequence get the types that the target has, with an error where that changes them. A quarantine
            looks at the batch before.

    Raises:
        SchemaMismatchError: The sequence has another order in the target's type.
    """
    if config.before is not None:
        return *with_row_ids(config, batch, schema), None
    config, batch = _with_sequence(config, batch, schema)
    if is_typed and config.keeps_order:
        batch = _typed_as_in_target(config, batch, schema)
    if not config.sets_columns and (not config.keeps_order or COLUMN_SEQUENCES not in schema.names):
        return config, batch, None
    if config.columns or config.except_columns:
        in_target = {name.lower() for name in schema.names}
        written = config.written_columns(batch.columns)
        kept = [name for name in written if config.merge_schema or name.lower() in in_target]
        config = replace(config, columns=tuple(dict.fromkeys((*kept, *config.sequence_columns))), except_columns=())
    sequence = None
    if config.sequence_by:
        holder = schema if {*config.sequence_columns} <= {*schema.names} else batch.schema
        sequence = sequence_struct(holder, config.sequence_columns)
    partial = find_partial_updates(config, batch.schema.fields, schema.fields, sequence)
    if partial is not None and sequence is not None:
        batch = batch.withColumn(COLUMN_SEQUENCES, F.lit(None).cast(partial.sequences_type))
        if config.columns:
            config = replace(config, columns=(*config.columns, COLUMN_SEQUENCES))
    return config, batch, partial


def _typed_as_in_target(config: SinkConfig, batch: DataFrame, schema: StructType) -> DataFrame:
    """Return the batch with the types of the target's keys and sequence, so that all of a merge compares the same values.

    Keys that only the cast makes equal ('1' and '01' in an INT) are one key then, inside the batch and among the deletes.
    """
    in_target = {field.name.lower(): field.dataType for field in schema.fields}
    given = {field.name.lower(): field for field in batch.schema.fields}
    typed = {}
    for name in config.sequence_columns:
        field, kept = given.get(name.lower()), in_target.get(name.lower())
        if field is not None and kept is not None and field.name != SEQUENCE and field.dataType != kept:
            typed[field.name] = in_type_of_target(F.col(quote(field.name)), field.name, field.dataType, kept)
    for name in config.keys:
        field, kept = given.get(name.lower()), in_target.get(name.lower())
        if field is None or kept is None or field.dataType == kept or field.name in typed:
            continue
        # The text of a number is another one for each number.
        if _is_plain(field.dataType) and _is_plain(kept) and not isinstance(kept, StringType):
            typed[field.name] = exactly_typed(F.col(quote(field.name)), field.name, field.dataType, kept)
    if not typed:
        return batch
    return batch.select(*[typed[n].alias(n) if n in typed else F.col(quote(n)) for n in batch.columns])


def _is_plain(data_type: DataType) -> bool:
    return isinstance(data_type, AtomicType) and not isinstance(data_type, NullType)


def _with_sequence(config: SinkConfig, batch: DataFrame, schema: StructType) -> tuple[SinkConfig, DataFrame]:
    if not config.sequence_by:
        return config, batch
    # Clauses of the user's own compare with the target as they like; the order decides inside the batch alone.
    columns = stored_in(config.sequence_parts, batch.columns, schema.names if config.keeps_order else batch.columns)
    if columns == (SEQUENCE,):
        target_type = schema[SEQUENCE].dataType if SEQUENCE in schema.names else None
        batch = with_sequence(batch, config.sequence_parts, config.source_alias, target_type)
    return replace(config, sequence_by=columns, tie_break_by=()), batch
