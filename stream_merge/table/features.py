"""Lists the table features that the sink maintains; it refuses all others before it writes anything."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyspark
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType

from stream_merge.errors import UnsupportedTableError

NTZ_FEATURE = "timestampNtz"

FILE_METADATA = "_metadata"
"""The struct in which Spark gives the file of a row."""

GENERATED = "delta.generationExpression"
"""Metadata key of a generated column."""

MAINTAINED = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features, each with a test."""

_MAINTAINED_SINCE = {"variantType": (4, 2), "variantType-preview": (4, 2)}
"""Writer features since a version of Spark. Before 4.2, its reader of deletion vectors fails at a VARIANT."""

# Features that do nothing until a property or a column asks for them.
_HARMLESS_WHILE_UNUSED = {
    "identityColumns": None,
    "icebergCompatV1": "delta.enableIcebergCompatV1",
    "icebergCompatV2": "delta.enableIcebergCompatV2",
}
_IDENTITY_PREFIX = "delta.identity."


def check_supported(
    name: str, metadata: Mapping[str, Any], protocol: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    """Raise if the table has a feature that a merge by this library would not maintain.

    Raises:
        UnsupportedTableError: It has; the error names the feature and the way out.
    """
    properties = metadata.get("configuration") or {}
    identity = [
        f["name"] for f in schema["fields"] if any(k.startswith(_IDENTITY_PREFIX) for k in f.get("metadata", {}))
    ]
    if identity:
        raise UnsupportedTableError(
            f"{name} has identity columns ({', '.join(identity)}), whose values an update would change. "
            "Use keys from the source, or a table without GENERATED ... AS IDENTITY."
        )
    unknown = [
        feature
        for feature in writer_features(protocol)
        if not _is_maintained(feature) and not _is_unused(feature, properties)
    ]
    if unknown:
        raise UnsupportedTableError(
            f"{name} has the table feature(s) {', '.join(sorted(unknown))}, which this version does not maintain. "
            "Merge into a table without it, or drop the feature: ALTER TABLE ... DROP FEATURE ...."
        )


def _is_maintained(feature: str) -> bool:
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    return feature in MAINTAINED or version >= _MAINTAINED_SINCE.get(feature, (math.inf,))


def _is_unused(feature: str, properties: Mapping[str, str]) -> bool:
    if feature not in _HARMLESS_WHILE_UNUSED:
        return False
    switch = _HARMLESS_WHILE_UNUSED[feature]
    return switch is None or properties.get(switch) != "true"


def writer_features(protocol: Mapping[str, Any]) -> Collection[str]:
    """Return the table features that writers must support, as far as the protocol lists them."""
    return protocol.get("writerFeatures") or ()


def has_deletion_vectors(properties: Mapping[str, str], protocol: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the table may get new deletion vectors."""
    is_enabled = properties.get("delta.enableDeletionVectors", "false").lower() == "true"
    return is_enabled and "deletionVectors" in writer_features(protocol) and not hides_file_metadata(schema)


def hides_file_metadata(schema: Mapping[str, Any]) -> bool:
    """Whether a column has the name of the struct in which Spark gives a row's file.

    Delta's reader of deletion vectors asks for that struct by its name: as soon as the table has a vector, no row of it
    can be read.
    """
    return any(field["name"].lower() == FILE_METADATA for field in schema["fields"])


def check_new_columns(
    target: str, columns: Iterable[str], schema: Mapping[str, Any], protocol: Mapping[str, Any]
) -> None:
    """Refuse a column that would make the table's deletion vectors unreadable.

    Args:
        target: The table.
        columns: The names of its columns after a merge.
        schema: Its schema before.
        protocol: Its protocol.

    Raises:
        UnsupportedTableError: There is such a column, and the table may have deletion vectors.
    """
    is_new = FILE_METADATA in map(str.lower, columns) and not hides_file_metadata(schema)
    if is_new and "deletionVectors" in writer_features(protocol):
        raise UnsupportedTableError(
            f"{target} has deletion vectors, which no reader of Delta can read beside a column {FILE_METADATA}: give "
            "the column of the batch another name, or leave it out with except_columns"
        )


def has_change_feed(properties: Mapping[str, str]) -> bool:
    """Whether the table records its change data feed."""
    return properties.get("delta.enableChangeDataFeed", "false").lower() == "true"


def properties_for_types(kinds: Iterable[DataType], protocol: Mapping[str, Any]) -> dict[str, str]:
    """Return the table properties that add the features which columns of some types need, and a table does not have.

    Delta adds the others by itself.
    """
    if NTZ_FEATURE in writer_features(protocol) or not any(map(_has_ntz, kinds)):
        return {}
    return {f"delta.feature.{NTZ_FEATURE}": "supported"}


def _has_ntz(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_ntz(each.dataType) for each in kind.fields)
        case ArrayType():
            return _has_ntz(kind.elementType)
        case MapType():
            return _has_ntz(kind.keyType) or _has_ntz(kind.valueType)
        case _:
            return isinstance(kind, TimestampNTZType)
