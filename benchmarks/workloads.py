"""What the benchmarks merge: the tables, the batches, and the same merge as each system says it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge import MergeResult, MergeSink, merge_sink

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

UPDATES, DELETES = 0.45, 0.05
"""Shares of a batch; the rest are inserts."""

RECENT = 0.05
"""Share of the keys, the newest, that a batch of the workload with recent keys changes."""

FILE_ROWS = 125_000

COLUMNS = {
    "version": ("BIGINT", "version"),
    "status": (
        "STRING",
        "element_at(array('new', 'paid', 'shipped', 'returned'), CAST(pmod(id + version, 4) AS INT) + 1)",
    ),
    "quantity": ("INT", "CAST(pmod(hash(id, version), 1000) AS INT)"),
    "amount": ("DECIMAL(12, 2)", "CAST(pmod(xxhash64(id, version), 100000000) / 100 AS DECIMAL(12, 2))"),
    "price": ("DOUBLE", "pmod(xxhash64(version, id), 1000000) / 7"),
    "is_active": ("BOOLEAN", "pmod(id + version, 3) = 0"),
    "changed_at": ("TIMESTAMP", "timestamp_seconds(1700000000 + id + version)"),
    "name": ("STRING", "concat('customer ', hex(xxhash64(id)))"),
    "note": ("STRING", "md5(concat_ws('/', id, version))"),
}
"""The nine columns beside `key`: type, and SQL over a row's `id` and `version`."""

UPSERT_DELETE = "source.op = 'd'"
NOT_OLDER = "source.version >= target.version"
GENERAL_UPDATE = "source.version > target.version AND target.status <> 'returned'"
GENERAL_DELETE = "source.op = 'd' AND target.quantity < 900"
GENERAL_INSERT = "source.op <> 'd' AND source.quantity >= 20"
GENERAL_SET: dict[str, str | Column] = {
    "version": "source.version",
    "status": "source.status",
    "quantity": "(target.quantity + source.quantity) % 1000",
    "amount": "greatest(target.amount, source.amount)",
    "is_active": "target.is_active OR source.is_active",
    "changed_at": "source.changed_at",
    "note": "concat(left(target.note, 16), left(source.note, 16))",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A table and the changes to it.

    Attributes:
        title: What it is, for the table of results.
        has_string_keys: Whether keys are random strings, so that every file may hold any key; else a growing bigint.
        has_deletion_vectors: Whether the tables have deletion vectors.
        has_general_clauses: Whether conditions and values look at both sides; else all columns are taken over.
        has_sequence: Whether a change that is older than its row is left out.
        size_factor: Size of the table, in multiples of the number of rows that was asked for.
        columns: The columns beside the key, `version` among them.
    """

    title: str
    has_string_keys: bool
    has_deletion_vectors: bool
    has_general_clauses: bool = False
    has_sequence: bool = False
    size_factor: int = 1
    columns: tuple[str, ...] = tuple(COLUMNS)


WORKLOADS = {
    "random_vectors": Workload(
        title="random string keys, deletion vectors", has_string_keys=True, has_deletion_vectors=True
    ),
    "random_ordered": Workload(
        title="random string keys with a sequence, deletion vectors",
        has_string_keys=True,
        has_deletion_vectors=True,
        has_sequence=True,
    ),
    "narrow_ordered": Workload(
        title="random string keys with a sequence, three columns, deletion vectors",
        has_string_keys=True,
        has_deletion_vectors=True,
        has_sequence=True,
        columns=("version", "quantity"),
    ),
    "random_rewrite": Workload(
        title="random string keys, copy-on-write", has_string_keys=True, has_deletion_vectors=False
    ),
    "recent": Workload(title="recent keys, deletion vectors", has_string_keys=False, has_deletion_vectors=True),
    "recent_5x": Workload(
        title="recent keys, deletion vectors, 5 times the rows",
        has_string_keys=False,
        has_deletion_vectors=True,
        size_factor=5,
    ),
    "general_vectors": Workload(
        title="general clauses, deletion vectors",
        has_string_keys=True,
        has_deletion_vectors=True,
        has_general_clauses=True,
    ),
    "general_rewrite": Workload(
        title="general clauses, copy-on-write",
        has_string_keys=True,
        has_deletion_vectors=False,
        has_general_clauses=True,
    ),
}


@dataclass(slots=True)
class Changes:
    """Makes the batches of a workload; the same numbers give the same batches.

    Attributes:
        workload: The workload.
        num_rows: Size of the table.
        batch_rows: Size of a batch.
    """

    workload: Workload
    num_rows: int
    batch_rows: int
    _random: random.Random = field(default_factory=lambda: random.Random(20))
    _num_batches: int = 0

    def write_batch(self, spark: SparkSession, path: Path) -> None:
        """Write the next batch to one Parquet file: the table's columns and `op`, u, d or i; each key at most once."""
        self._num_batches += 1
        num_updates, num_deletes = round(self.batch_rows * UPDATES), round(self.batch_rows * DELETES)
        num_inserts = self.batch_rows - num_updates - num_deletes
        next_id = self.num_rows + (self._num_batches - 1) * num_inserts
        oldest = 0 if self.workload.has_string_keys else int(next_id * (1 - RECENT))
        changed = self._random.sample(range(oldest, next_id), num_updates + num_deletes)
        ids = [
            *((number, "u") for number in changed[:num_updates]),
            *((number, "d") for number in changed[num_updates:]),
            *((number, "i") for number in range(next_id, next_id + num_inserts)),
        ]
        self._random.shuffle(ids)
        rows = spark.createDataFrame(ids, "id BIGINT, op STRING").withColumn("version", F.lit(self._num_batches))
        _with_columns(rows, self.workload, "op").coalesce(1).write.parquet(str(path))


def _with_columns(rows: DataFrame, workload: Workload, *others: str) -> DataFrame:
    key = "md5(CAST(id AS STRING))" if workload.has_string_keys else "id"
    columns = [F.expr(COLUMNS[name][1]).cast(COLUMNS[name][0]).alias(name) for name in workload.columns]
    return rows.select(F.expr(key).alias("key"), *columns, *others)


def target_rows(spark: SparkSession, workload: Workload, num_rows: int) -> DataFrame:
    """Return the rows of the table before the first batch, a partition for each file."""
    rows = spark.range(0, num_rows, 1, max(1, num_rows // FILE_ROWS)).withColumn("version", F.lit(0))
    return _with_columns(rows, workload)


def fold(base: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the rows that the changes of all batches lead to: the newest change of each key, without deletes."""
    newest = changes.groupBy("key").agg(F.max_by(F.struct(*changes.columns), "version").alias("row"))
    kept = base.join(newest, "key", "left_anti").select(*base.columns)
    return kept.unionByName(newest.select("row.*").where("op <> 'd'").select(*base.columns))


def create_table(rows: DataFrame, path: Path, *, has_deletion_vectors: bool) -> None:
    """Create a Delta table of the rows in one commit."""
    writer = rows.write.format("delta")
    writer.option("delta.enableDeletionVectors", str(has_deletion_vectors).lower()).save(str(path))


def create_target(spark: SparkSession, path: Path, workload: Workload, num_rows: int) -> None:
    """Create the table in files of the same number of rows, all in one commit."""
    rows = target_rows(spark, workload, num_rows)
    create_table(rows, path, has_deletion_vectors=workload.has_deletion_vectors)


def copy_target(path: Path, copy: Path) -> None:
    """Copy a table, so that each system has its own."""
    shutil.copytree(path, copy)


def batch_schema(spark: SparkSession, path: Path) -> StructType:
    """Return the schema of a batch, so that reading it later infers nothing."""
    return spark.read.parquet(str(path)).schema


def append_batch(path: Path) -> Callable[[DataFrame], None]:
    """Return the yardstick: a plain append of a batch's rows."""

    def append(batch: DataFrame) -> None:
        batch.drop("op").write.format("delta").mode("append").save(str(path))

    return append


def delta_merge(path: Path, workload: Workload) -> Callable[[DataFrame], None]:
    """Return Delta's own MERGE of a batch, as one writes it in `foreachBatch`."""

    def merge(batch: DataFrame) -> None:
        target = DeltaTable.forPath(batch.sparkSession, str(path)).alias("target")
        builder = target.merge(batch.alias("source"), "target.key = source.key")
        if workload.has_general_clauses:
            builder = (
                builder.whenMatchedDelete(GENERAL_DELETE)
                .whenMatchedUpdate(GENERAL_UPDATE, GENERAL_SET)
                .whenNotMatchedInsertAll(GENERAL_INSERT)
            )
        else:
            builder = (
                builder.whenMatchedDelete(
                    f"{UPSERT_DELETE} AND {NOT_OLDER}" if workload.has_sequence else UPSERT_DELETE
                )
                .whenMatchedUpdateAll(NOT_OLDER if workload.has_sequence else None)
                .whenNotMatchedInsertAll(f"NOT ({UPSERT_DELETE})")
            )
        builder.execute()

    return merge


def make_sink(path: Path, workload: Workload, on_result: Callable[[MergeResult], None] | None = None) -> MergeSink:
    """Return the sink that does the same."""
    if not workload.has_general_clauses:
        sequence = "version" if workload.has_sequence else None
        return merge_sink(str(path), keys="key", sequence_by=sequence, delete_when=UPSERT_DELETE, on_result=on_result)
    return (
        merge_sink(str(path), on="target.key = source.key", on_result=on_result)
        .when_matched_delete(condition=GENERAL_DELETE)
        .when_matched_update(condition=GENERAL_UPDATE, set=GENERAL_SET)
        .when_not_matched_insert_all(condition=GENERAL_INSERT)
    )


def fingerprint(spark: SparkSession, path: Path, *columns: str) -> tuple[int, int]:
    """Return the number of rows and a sum over the hashes of the rows, or of some columns: equal for equal tables, in
    any order."""
    return fingerprint_of(spark.read.format("delta").load(str(path)).select(*columns or "*"))


def fingerprint_of(rows: DataFrame) -> tuple[int, int]:
    """Return the number of rows and a sum over their hashes."""
    row_hash = F.xxhash64(*rows.columns).cast("DECIMAL(38)")
    count, total = rows.agg(F.count("*"), F.sum(row_hash)).head() or (0, 0)
    return count, int(total)
