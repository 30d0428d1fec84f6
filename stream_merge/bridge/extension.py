"""Gives an existing table new columns and a table feature in one commit, for which Delta's SQL takes two.

Also tells what Delta's releases can do with its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream_merge.bridge.jvm import JVM_ERRORS, items, java_class, load_class, option, scala_map, seq, translate
from stream_merge.bridge.table import Table


def add_columns_and_feature(table: Table, types: Mapping[str, str], feature: str) -> None:
    """Add columns to the schema and a table feature to the protocol, in a separate commit.

    Args:
        table: The table.
        types: The SQL type of each column that is added.
        feature: The name of the feature.
    """
    jvm = table.jvm
    try:
        transaction = table.begin()
        handle: Any = transaction.handle
        metadata = handle.metadata()
        schema = metadata.schema()
        # Another sink may have added some meanwhile.
        added = [name for name in types if name not in transaction.struct_type.names]
        for name in added:
            schema = schema.add(name, types[name], True)
        # Delta takes the feature out of the properties again, and into the protocol.
        properties = metadata.configuration().updated(f"delta.feature.{feature}", "supported")
        changed = {"schemaString": schema.json(), "configuration": properties}
        names = [str(name) for name in items(metadata.productElementNames().toSeq())]
        values = [changed.get(name, metadata.productElement(number)) for number, name in enumerate(names)]
        handle.updateMetadata(metadata.copy(*values), False)
        handle.commit(seq(jvm, []), _operation(jvm, schema, added), scala_map(jvm, {}))
    except JVM_ERRORS as error:
        raise translate(error) from error


def merges_widen_all_types(table: Table) -> bool:
    """Return whether Delta's MERGE can widen every type that ALTER TABLE can, as from an integer to a DOUBLE."""
    settings = load_class(table.jvm, "org.apache.spark.sql.delta.sources.DeltaSQLConf$")
    return any(str(method.getName()) == "DELTA_ALLOW_AUTOMATIC_WIDENING" for method in settings.getMethods())


def _operation(jvm: Any, schema: Any, added: Sequence[str]) -> Any:
    """Return Delta's operation for the table's history, which tells of the columns."""
    operations = "org.apache.spark.sql.delta.DeltaOperations$"
    column = java_class(jvm, f"{operations}QualifiedColTypeWithPositionForLog")
    columns = [column(seq(jvm, [name]), schema.apply(name), option(jvm, None)) for name in added]
    return java_class(jvm, f"{operations}AddColumns")(seq(jvm, columns))
