"""Creates Delta tables."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stream_merge.bridge.jvm import (
    JVM_ERRORS,
    conflict_name,
    translate,
)
from stream_merge.bridge.table import catalog_name, location, sql_name, table_exists

_UNFIT = re.compile(r"[ ,;{}()\n\t=]")

COLUMN_MAPPING = "delta.columnMapping.mode"

_BEGUN = ("DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION", "DELTA_TABLE_NOT_FOUND")
"""Delta's conditions for a table folder without a commit: another writer's first commit is on its way, or never
came."""


def create_table(
    spark: SparkSession,
    target: str,
    like: DataFrame,
    *,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    """Create the target with the columns of a frame, unless another writer has just done so.

    Names with characters that Parquet does not allow (`Order Id`) get column mapping, which is otherwise not used.

    A process that died, or a full disk, may have left a log folder without a commit. Delta then always reports that
    there both is and is not a table; only its DataFrame writer can begin the log. The columns are then nullable,
    whatever the frame says.
    """
    from delta.tables import DeltaTable

    builder = DeltaTable.createIfNotExists(spark).addColumns(like.schema)
    path = location(spark, target)
    builder = builder.tableName(catalog_name(spark, target)) if path is None else builder.location(path)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    mapping = {COLUMN_MAPPING: "name"} if needs_column_mapping(like.schema) else {}
    properties = {**mapping, **properties}
    for name, value in properties.items():
        builder = builder.property(name, value)
    try:
        builder.execute()
    except JVM_ERRORS as error:
        failure = translate(error)
        is_begun = failure.condition in _BEGUN
        if not is_begun and conflict_name(error) is None:
            raise failure from error
        if any(table_exists(spark, target) for _ in _looks()):
            return
        if not is_begun:
            raise failure from error
        writer = spark.createDataFrame([], like.schema).write.format("delta").options(**properties)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        if not _begin_log(spark, target, writer, cluster_by) and not table_exists(spark, target):
            raise failure from error


def needs_column_mapping(schema: StructType) -> bool:
    """Return whether a column has a name with characters that Parquet does not allow."""
    return any(_UNFIT.search(name) for name in _names_in(schema))


def _begin_log(spark: SparkSession, target: str, writer: DataFrameWriter, cluster_by: Sequence[str]) -> bool:
    """Write the first commit into an empty log folder; return False if that fails or another writer was first."""
    path = location(spark, target)
    try:
        writer.mode("error").saveAsTable(target) if path is None else writer.mode("error").save(path)
    except JVM_ERRORS:
        return False
    if cluster_by:
        # To the writer, the folder is an existing table, whose layout it does not change.
        spark.sql(f"ALTER TABLE {sql_name(spark, target)} CLUSTER BY ({', '.join(cluster_by)})")
    return True


def _names_in(data_type: DataType) -> Iterator[str]:
    """Iterate over the names of a type's fields, at any depth."""
    match data_type:
        case StructType():
            for each in data_type.fields:
                yield each.name
                yield from _names_in(each.dataType)
        case ArrayType():
            yield from _names_in(data_type.elementType)
        case MapType():
            yield from _names_in(data_type.keyType)
            yield from _names_in(data_type.valueType)
        case _:
            pass


def _looks() -> Iterator[None]:
    """Pause between looks for a table that another writer is about to finish, for about three seconds in all."""
    for number in range(7):
        time.sleep(0.025 * 2**number if number else 0)
        yield
