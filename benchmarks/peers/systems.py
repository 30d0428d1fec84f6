"""The systems: how each creates its table, merges a batch and is read. Each is configured as its own docs advise.

A table is named by a path, whose last two folders are `tables.db` and the table's name: catalogs of Iceberg and Paimon
whose warehouse is the folder above find the same table by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.data import COLUMN_NAMES, WORKLOAD, Batch
from benchmarks.peers.interpreters import SPARK_3_5, SPARK_4_0, SPARK_4_2, Interpreter
from benchmarks.workloads import NOT_OLDER, UPSERT_DELETE, append_batch, create_table, make_sink
from benchmarks.workloads import delta_merge as delta_merge_batch

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_OF_SPARK_3_5 = "io.delta:delta-spark_2.12:3.3.2"
DELTA_OF_SPARK_4_0 = "io.delta:delta-spark_2.13:4.0.1"
WAREHOUSE = "{warehouse}"
"""In a setting: the folder of the tables' databases."""

Merge = Callable[[Batch], object]

ROW_BYTES = 150
"""A row of the table in Parquet, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system.

    Attributes:
        title: Its name and way of merging, for the table of results.
        interpreter: The Spark that it needs.
        maintenance: What ran beside the merges while they were measured, and what did not.
        create: Writes rows to a new table.
        merger: Returns what merges a batch into a table.
        read: Returns a table's rows.
        distribution: The Python package whose version is that of the system, if it is not the JAR that counts.
        package: Maven's coordinate of its JAR.
        session: Settings of its Spark.
    """

    title: str
    maintenance: str
    create: Callable[[DataFrame, Path], None]
    merger: Callable[[Path], Merge]
    read: Callable[[SparkSession, Path], DataFrame]
    interpreter: Interpreter = SPARK_4_2
    distribution: str = "delta-spark"
    package: str | None = None
    session: Mapping[str, str] = field(default_factory=dict)


def _create_with_vectors(rows: DataFrame, path: Path) -> None:
    create_table(rows, path, has_deletion_vectors=True)


def _create_without_vectors(rows: DataFrame, path: Path) -> None:
    create_table(rows, path, has_deletion_vectors=False)


def _read_delta(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(path))


def _merging_rows(merge: Callable[[DataFrame], object]) -> Merge:
    return lambda batch: merge(batch.rows())


def _append(path: Path) -> Merge:
    return _merging_rows(append_batch(path))


def _stream_merge(path: Path) -> Merge:
    return _merging_rows(make_sink(path, WORKLOAD).merge)


def _delta_merge(path: Path) -> Merge:
    return _merging_rows(delta_merge_batch(path, WORKLOAD))


def _delta_rs(path: Path) -> Merge:
    """Merge by delta-rs, which reads the batch as Arrow. One object serves all batches, as in a long-lived process."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    table = DeltaTable(str(path))

    def merge(batch: Batch) -> None:
        # delta-rs's docs, "Merging a table".
        (
            table.merge(
                pq.read_table(batch.path),
                predicate="target.key = source.key",
                source_alias="source",
                target_alias="target",
            )
            .when_matched_delete(f"{UPSERT_DELETE} AND {NOT_OLDER}")
            .when_matched_update_all(NOT_OLDER, except_cols=["op"])
            .when_not_matched_insert_all("source.op <> 'd'", except_cols=["op"])
            .execute()
        )

    return merge


def _name(catalog: str, path: Path) -> str:
    return f"{catalog}.`{path.parent.name.removesuffix('.db')}`.`{path.name}`"


# Iceberg's docs, "Configuration": a merge rewrites files unless its mode is merge-on-read. Format version 3 has
# deletion vectors. "Maintenance": tables with frequent commits should delete old metadata files after a commit.
ICEBERG_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
}
# Iceberg's docs, "Spark Configuration": a catalog of its own, in a folder.
ICEBERG_SESSION = {
    "spark.sql.extensions": f"{DELTA_EXTENSION},org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.iceberg": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.iceberg.type": "hadoop",
    "spark.sql.catalog.iceberg.warehouse": WAREHOUSE,
}


def _create_iceberg(rows: DataFrame, path: Path) -> None:
    writer = rows.writeTo(f"iceberg.`{path.parent.name}`.`{path.name}`").using("iceberg")
    for name, value in ICEBERG_PROPERTIES.items():
        writer = writer.tableProperty(name, value)
    writer.create()


def _iceberg(path: Path) -> Merge:
    # Iceberg's docs, "Spark Writes".
    statement = f"""
        MERGE INTO iceberg.`{path.parent.name}`.`{path.name}` AS target USING batch AS source
        ON target.key = source.key
        WHEN MATCHED AND {UPSERT_DELETE} AND {NOT_OLDER} THEN DELETE
        WHEN MATCHED AND {NOT_OLDER} THEN UPDATE SET *
        WHEN NOT MATCHED AND NOT ({UPSERT_DELETE}) THEN INSERT *"""

    def merge(batch: Batch) -> None:
        batch.rows().createOrReplaceTempView("batch")
        batch.spark.sql(statement)

    return merge


def _read_iceberg(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.table(f"iceberg.`{path.parent.name}`.`{path.name}`")


ROW_KIND = "row_kind"
# Paimon's docs, "Sequence and Rowkind": the order of changes and their kind come from columns. "Table Mode": Merge On
# Write, with deletion vectors, is recommended for general primary key tables.
PAIMON_PROPERTIES = {
    "primary-key": "key",
    "sequence.field": "version",
    "rowkind.field": ROW_KIND,
    "deletion-vectors.enabled": "true",
}
# Paimon's docs, "Quick Start" with Spark.
PAIMON_SESSION = {
    "spark.sql.extensions": f"{DELTA_EXTENSION},org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
    "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
    "spark.sql.catalog.paimon.warehouse": WAREHOUSE,
}


def _paimon_buckets(num_rows: int) -> int:
    """Return the number of buckets. Paimon's docs, "Data Distribution": 200 MB to 1 GB each; but one for each core."""
    return max(os.cpu_count() or 1, num_rows * ROW_BYTES // 500_000_000)


def _paimon_creator(**properties: str) -> Callable[[DataFrame, Path], None]:
    def create(rows: DataFrame, path: Path) -> None:
        name = _name("paimon", path)
        columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in rows.schema)
        of_table = {**PAIMON_PROPERTIES, **properties, "bucket": str(_paimon_buckets(rows.count()))}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in of_table.items())
        rows.sparkSession.sql(f"CREATE DATABASE IF NOT EXISTS paimon.`{path.parent.name.removesuffix('.db')}`")
        rows.sparkSession.sql(f"CREATE TABLE {name} ({columns}, {ROW_KIND} STRING) TBLPROPERTIES ({listed})")
        rows.createOrReplaceTempView("loaded")
        rows.sparkSession.sql(f"INSERT INTO {name} SELECT *, '+I' FROM loaded")

    return create


def _paimon(path: Path) -> Merge:
    kind = "CASE op WHEN 'd' THEN '-D' WHEN 'u' THEN '+U' ELSE '+I' END"
    # Paimon's docs, "SQL Write": INSERT INTO applies records and changes.
    statement = f"INSERT INTO {_name('paimon', path)} SELECT {', '.join(COLUMN_NAMES)}, {kind} FROM batch"

    def merge(batch: Batch) -> None:
        batch.rows().createOrReplaceTempView("batch")
        batch.spark.sql(statement)

    return merge


def _read_paimon(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.table(_name("paimon", path)).drop(ROW_KIND)


IS_DELETED = "_hoodie_is_deleted"
# Hudi's docs, "Indexes": the record index finds random keys of a large table. "Table & Query Types": merge-on-read for
# changes that come often. "Batch Writes": a true `_hoodie_is_deleted` deletes.
HUDI_OPTIONS = {
    "hoodie.table.name": "merged",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "key",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.table.ordering.fields": "version",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
}
# Hudi's docs, "Spark Quick Start", but for the session's catalog, which is Delta's: the yardstick needs it.
HUDI_SESSION = {
    "spark.sql.extensions": f"{DELTA_EXTENSION},org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
}


def _write_hudi(rows: DataFrame, path: Path, operation: str) -> None:
    writer = rows.write.format("hudi").options(**HUDI_OPTIONS).option("hoodie.datasource.write.operation", operation)
    writer.mode("append").save(str(path))


def _create_hudi(rows: DataFrame, path: Path) -> None:
    _write_hudi(rows.withColumn(IS_DELETED, F.lit(False)), path, "bulk_insert")


def _hudi(path: Path) -> Merge:
    def merge(batch: Batch) -> None:
        rows = batch.rows().withColumn(IS_DELETED, F.expr("op = 'd'")).drop("op")
        _write_hudi(rows, path, "upsert")

    return merge


def _read_hudi(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("hudi").load(str(path)).select(*COLUMN_NAMES)


NOTHING_BUT_CHECKPOINTS = "checkpoints of the log; no OPTIMIZE"

_PAIMON: dict[str, Any] = {
    "merger": _paimon,
    "read": _read_paimon,
    "interpreter": SPARK_3_5,
    "package": "org.apache.paimon:paimon-spark-3.5:0.9.0",
    "session": PAIMON_SESSION,
}

APPEND = System(
    title="append",
    maintenance=NOTHING_BUT_CHECKPOINTS,
    create=_create_with_vectors,
    merger=_append,
    read=_read_delta,
)
"""The yardstick, which runs in the process of each system."""

SYSTEMS = {
    "stream_merge": System(
        title="stream_merge",
        maintenance="checkpoints of the log, the index of keys; no compaction",
        create=_create_with_vectors,
        merger=_stream_merge,
        read=_read_delta,
        distribution="stream-merge",
    ),
    "delta_merge": System(
        title="Delta MERGE, deletion vectors",
        maintenance=NOTHING_BUT_CHECKPOINTS,
        create=_create_with_vectors,
        merger=_delta_merge,
        read=_read_delta,
    ),
    "delta_merge_rewrite": System(
        title="Delta MERGE, copy-on-write",
        maintenance=NOTHING_BUT_CHECKPOINTS,
        create=_create_without_vectors,
        merger=_delta_merge,
        read=_read_delta,
    ),
    "delta_rs": System(
        title="delta-rs, copy-on-write",
        maintenance=NOTHING_BUT_CHECKPOINTS,
        create=_create_without_vectors,
        merger=_delta_rs,
        read=_read_delta,
        distribution="deltalake",
    ),
    "iceberg": System(
        title="Iceberg MERGE, deletion vectors",
        maintenance="merging of manifests, old metadata files deleted; no rewrite of data files",
        create=_create_iceberg,
        merger=_iceberg,
        read=_read_iceberg,
        interpreter=SPARK_4_0,
        package="org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        session=ICEBERG_SESSION,
    ),
    "paimon": System(
        title="Paimon, merge-on-write",
        maintenance="compaction by the writer before each commit, which this mode needs",
        create=_paimon_creator(),
        **_PAIMON,
    ),
    "paimon_read": System(
        title="Paimon, merge-on-read",
        maintenance="compaction by the writer when there are enough sorted runs",
        create=_paimon_creator(**{"deletion-vectors.enabled": "false"}),
        **_PAIMON,
    ),
    "hudi": System(
        title="Hudi upsert, merge-on-read, record index",
        maintenance="cleaning, archiving, compaction of the metadata table; no compaction of the table, as in batch "
        "writes by default",
        create=_create_hudi,
        merger=_hudi,
        read=_read_hudi,
        interpreter=SPARK_3_5,
        package="org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",
        session=HUDI_SESSION,
    ),
}


def session_of(system: System, warehouse: Path) -> dict[str, str]:
    """Return the settings of a system's session that make its JARs and catalogs known."""
    delta = {SPARK_3_5.spark: DELTA_OF_SPARK_3_5, SPARK_4_0.spark: DELTA_OF_SPARK_4_0}.get(system.interpreter.spark)
    packages = [package for package in (delta, system.package) if package]
    of_system = {name: value.replace(WAREHOUSE, str(warehouse)) for name, value in system.session.items()}
    return of_system | ({"spark.jars.packages": ",".join(packages)} if packages else {})
