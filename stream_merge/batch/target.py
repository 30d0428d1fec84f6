"""Opens the target of a micro-batch, creates it, and gives it the columns and the feature that the sink needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StructType

from stream_merge.batch.alterations import prepare_columns
from stream_merge.batch.applied import last_applied
from stream_merge.batch.bind import bind, leaves_columns_out
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.bridge.creation import create_table
from stream_merge.bridge.extension import add_columns_and_feature
from stream_merge.bridge.table import Table, future_table, open_table, table_exists
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigurationChangedError, TargetNotFoundError, UnsupportedTableError
from stream_merge.merge.key_and_sequence import sequence_type_in
from stream_merge.order.sequence import stored_in, with_sequence
from stream_merge.sql import quote, sql_type
from stream_merge.steps import reached
from stream_merge.table.features import NTZ_FEATURE, writer_features
from stream_merge.table.log_stores import check_log_store
from stream_merge.tombstones.history import manifest_of
from stream_merge.tombstones.store import fresh_state

logger: logging.Logger = logging.getLogger("stream_merge")

FEATURE = "domainMetadata"
"""The table feature under which deletes are remembered."""
_NTZ = "timestamp_ntz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target as a micro-batch finds it.

    Attributes:
        table: The table.
        transaction: Delta's transaction on its newest version.
        is_empty: Whether the sink has just created it.
        is_applied: Whether it holds the batch.
    """

    table: Table
    transaction: Transaction
    is_empty: bool
    is_applied: bool

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return self.transaction.table_id


def open_target(batch: MicroBatch) -> Target:
    """Open the target of a batch, which is created where the sink may do that.

    Raises:
        BatchIdRegressionError: The table holds a later batch, or another one of this number.
        CommitLostError: The table does not hold the last batch that was committed.
        TargetNotFoundError: There is no such table.
        UnsupportedTableError: Other writers could overwrite the table's commits.
    """
    is_created = batch.config.create_if_missing and _create_if_missing(batch)
    table = open_table(batch.spark, batch.config.target)
    _check_log_store(batch, table)
    transaction = table.begin()
    return Target(
        table=table,
        transaction=transaction,
        is_empty=is_created and transaction.version == 0,
        is_applied=batch.identity is not None
        and batch.identity.is_applied(transaction, last_applied(batch, transaction)),
    )


def _create_if_missing(batch: MicroBatch) -> bool:
    """Create the target; never in the place of one that this process has written. Return whether it was created."""
    config, spark = batch.config, batch.spark
    if table_exists(spark, config.target):
        return False
    if batch.identity is not None and batch.caches.committed and batch.caches.committed[0] == batch.identity.app_id:
        raise TargetNotFoundError(
            f"{batch.name}: the table has earlier micro-batches of this query, and is gone. It is not created anew, "
            "since their rows would be missing: restore it, or begin with an empty table and a new checkpoint."
        )
    future = future_table(spark, config.target)
    if future is not None:
        _check_log_store(batch, future)
    like, properties = written(config, batch.frame), config.table_properties
    if not batch.is_complete:
        like, properties = _with_own_columns(config, batch.frame, like)
    create_table(
        spark,
        config.target,
        like,
        partition_by=config.partition_by,
        cluster_by=config.cluster_by,
        properties=properties,
    )
    reached("created")
    return True


def _check_log_store(batch: MicroBatch, table: Table) -> None:
    """Refuse a table whose commits other writers may overwrite; each table is looked at once."""
    checked = batch.caches.checked_log_stores
    if batch.config.single_writer or table.root in checked:
        return
    check_log_store(table.name, table.scheme, table.log_store, single_writer=False)
    checked.add(table.root)


def written(config: SinkConfig, frame: DataFrame) -> DataFrame:
    """Return a batch with the columns that the sink writes."""
    return frame.select(*[quote(name) for name in config.written_columns(frame.columns)])


def missing_columns(config: SinkConfig, batch: DataFrame, schema: StructType) -> dict[str, str]:
    """Return names and types of the columns that the target lacks and the sink needs to keep order.

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
        missing[SEQUENCE] = sql_type(added.dataType)
        schema.add(added)
    sets_columns = config.sets_columns or leaves_columns_out(config, batch, schema)
    if sets_columns and COLUMN_SEQUENCES not in schema.names:
        partial = bind(config, batch, schema, partition_columns=()).partial
        if partial is not None:
            missing[COLUMN_SEQUENCES] = sql_type(partial.sequences_type)
    return missing


def outgrown_sequences(config: SinkConfig, batch: DataFrame, schema: StructType) -> dict[str, str]:
    """Return path and new type of each part of `COLUMN_SEQUENCES` that is narrower than the table's widened sequence.

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
    return dict(_other_types(f"{COLUMN_SEQUENCES}.value", kept.valueType, sequence_type_in(schema, columns)))


def _other_types(path: str, kept: DataType, wanted: DataType) -> Iterator[tuple[str, str]]:
    if isinstance(kept, StructType) and isinstance(wanted, StructType):
        for one, other in zip(kept.fields, wanted.fields, strict=False):
            yield from _other_types(f"{path}.{one.name}", one.dataType, other.dataType)
    elif kept != wanted:
        yield path, sql_type(wanted)


def prepare_target(config: SinkConfig, batch: DataFrame, table: Table, transaction: Transaction) -> Transaction:
    """Alter the table as the batch's columns ask, and add what the sink needs to keep order, that in one commit.

    Returns:
        The transaction, opened anew when something was changed.

    Raises:
        SchemaChangedError: The sink stops when the source's columns change, and they have.
        UnsupportedTableError: The sequence was widened, and the table property that allows it was taken away since.
    """
    transaction = prepare_columns(config, batch, table, transaction)
    schema = transaction.struct_type
    outgrown = outgrown_sequences(config, batch, schema)
    if outgrown and transaction.properties.get("delta.enableTypeWidening", "false").lower() != "true":
        raise UnsupportedTableError(
            f"{table.name}: the sequence has a wider type than the sequences of single columns in {COLUMN_SEQUENCES}. "
            "Set the table property delta.enableTypeWidening, so that the sink can widen them"
        )
    missing = missing_columns(config, batch, schema)
    if SEQUENCE in missing:
        check_holder(config, table, transaction)
    transaction = _with_feature_of_types(table, transaction, missing)
    lacks_feature = config.keeps_tombstones and FEATURE not in writer_features(transaction.protocol)
    if lacks_feature:
        logger.info("%s: adding the table feature %s, in which deletes are remembered", table.name, FEATURE)
    if missing and lacks_feature:
        add_columns_and_feature(table, missing, FEATURE)
    elif missing:
        table.add_columns(missing)
    elif lacks_feature:
        table.enable_feature(FEATURE)
    if missing:
        reached("columns_added")
    if lacks_feature:
        reached("feature_added")
    for path, wider in outgrown.items():
        logger.info("%s: widening %s to %s, as the sequence was", table.name, path, wider)
        table.widen_column(path, wider)
    return table.begin() if missing or outgrown or lacks_feature else transaction


def _with_feature_of_types(table: Table, transaction: Transaction, types: Mapping[str, str]) -> Transaction:
    """Add the table feature that columns of the type TIMESTAMP_NTZ need; return the transaction on the newest version.

    Args:
        table: The table.
        transaction: Its newest version.
        types: The SQL types of the columns that it is going to get.
    """
    if not any(_NTZ in kind.lower() for kind in types.values()) or NTZ_FEATURE in writer_features(transaction.protocol):
        return transaction
    logger.warning("%s: adding the table feature %s, for the type of the sequence", table.name, NTZ_FEATURE)
    table.set_properties({f"delta.feature.{NTZ_FEATURE}": "supported"})
    reached("altered")
    return table.begin()


def check_holder(config: SinkConfig, table: Table, transaction: Transaction) -> None:
    """Refuse a table whose rows have lost their sequence: every late change would be newer than they are.

    Args:
        config: The sink as the user configured it.
        table: The table, which lacks the column `SEQUENCE`.
        transaction: Its newest version.

    Raises:
        ConfigurationChangedError: The column that held it has another name now, or is gone; or the sink has another
            sequence, whose parts the table does not have.
    """
    fresh = fresh_state(config, table.spark)
    state = manifest_of(table, transaction, fresh)
    if config.keeps_tombstones:
        state.check_options(table.name, fresh)
    holder = state.holder
    if holder and holder != (SEQUENCE,):
        raise ConfigurationChangedError(
            f"{table.name}: the rows had their sequence in {', '.join(holder)}, which the table or the source does not "
            "have any more, so older changes could not be told from newer ones. Give the column its name back, or, if "
            "the order of the changes so far does not count, call reset_state() of the sink once"
        )


def _with_own_columns(config: SinkConfig, batch: DataFrame, written: DataFrame) -> tuple[DataFrame, Mapping[str, str]]:
    """Return a frame with the columns of a new target, and its properties, so that it has what the sink needs.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        written: The batch with the columns that are written.
    """
    missing = missing_columns(config, batch, written.schema)
    added = [F.lit(None).cast(sql_type).alias(name) for name, sql_type in missing.items()]
    feature = {f"delta.feature.{FEATURE}": "supported"} if config.keeps_tombstones else {}
    return written.select("*", *added), {**config.table_properties, **feature}
