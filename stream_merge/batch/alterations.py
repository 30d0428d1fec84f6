"""Alters a table before a batch where Delta cannot do it in the batch's commit; new columns and types come with that.

Each step leaves a table that is right for the rows it has, so that a process may be killed between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql.types import AtomicType, DataType

from stream_merge.batch.schema_changes import WIDENING, SchemaChanges, schema_changes_of
from stream_merge.bridge.extension import merges_widen_all_types
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import SinkConfig
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.features import properties_for_types
from stream_merge.widening import in_same_family, is_widened

logger: logging.Logger = logging.getLogger("stream_merge")


def prepare_columns(config: SinkConfig, batch: DataFrame, table: Table, transaction: Transaction) -> Transaction:
    """Give a table the properties that its new columns and types need, and wider keys; let columns be NULL.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        table: The table.
        transaction: Its newest version.

    Returns:
        The transaction, opened anew when something was changed.

    Raises:
        SchemaChangedError: The sink stops at changes, and there are some.
    """
    changes = schema_changes_of(config, batch, table, transaction)
    properties = _needed_properties(changes, transaction)
    if properties:
        logger.warning(
            "%s: setting %s for new columns and types; readers without these features cannot read the table any more",
            table.name,
            ", ".join(f"{name}={value}" for name, value in properties.items()),
        )
        table.set_properties(properties)
        reached("altered")
    widened = list(_widened_before(config, changes, table, transaction))
    for name in changes.nullable:
        logger.warning("%s: %s loses NOT NULL: the source has no values for it any more", table.name, name)
        table.drop_not_null(quote(name))
        reached("altered")
    for name, kind in widened:
        logger.info("%s: widening %s to %s", table.name, name, kind.simpleString().upper())
        table.widen_column(quote(name), kind.simpleString())
        reached("altered")
    return table.begin() if properties or changes.nullable or widened else transaction


def _widened_before(
    config: SinkConfig, changes: SchemaChanges, table: Table, transaction: Transaction
) -> Iterator[tuple[str, DataType]]:
    """Yield the columns that get a wider type before the batch, and the types.

    These are the columns whose values batch, table and remembered deletes compare, which have one type in a merge, and
    those that Delta's MERGE does not widen.
    """
    compared = {name.lower() for name in (*config.keys, *config.sequence_columns)}
    types = {field.name: field.dataType for field in transaction.struct_type.fields}
    for name, kind in changes.widened.items():
        is_first = config.before is not None or name.lower() in compared
        is_foreign = not (in_same_family(types[name], kind) or merges_widen_all_types(table))
        # ALTER TABLE widens a part of a nested type at a time, and adds no fields by the way.
        if isinstance(kind, AtomicType) and (is_first or is_foreign):
            yield name, kind


def _needed_properties(changes: SchemaChanges, transaction: Transaction) -> dict[str, str]:
    properties = {}
    types = {each.name: each.dataType for each in transaction.struct_type.fields}
    # A struct that only gets more fields needs no feature.
    is_needed = any(is_widened(types[name], kind) for name, kind in changes.widened.items())
    if is_needed and transaction.properties.get(WIDENING, "").lower() != "true":
        properties[WIDENING] = "true"
    kinds = [*(each.dataType for each in changes.added), *changes.widened.values()]
    return properties | properties_for_types(kinds, transaction.protocol)
