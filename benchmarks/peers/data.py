"""The batches that all systems get, and the rows that each of them must have at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from benchmarks.workloads import COLUMNS, WORKLOADS, Changes, batch_schema, fingerprint_of, fold, target_rows

WORKLOAD = WORKLOADS["random_ordered"]
COLUMN_NAMES = ("key", *COLUMNS)

PARQUET = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Settings of the session that writes batches: Arrow reads Spark's other format of timestamps as nanoseconds without a
time zone."""

Fingerprint = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of changes in a Parquet file: the table's columns and `op`, u, d or i."""

    spark: SparkSession
    path: Path
    schema: StructType

    def rows(self) -> DataFrame:
        """Return the changes."""
        return self.spark.read.schema(self.schema).parquet(str(self.path))


@dataclass(frozen=True, slots=True)
class Data:
    """A folder with the batches, the rows that they lead to, and the fingerprints of these rows."""

    folder: Path

    def write(self, spark: SparkSession, *, num_rows: int, batch_rows: int, num_batches: int) -> None:
        """Write everything. The fold is Spark's own: the newest change of each key, without deletes."""
        changes = Changes(WORKLOAD, num_rows, batch_rows)
        for number in range(num_batches):
            changes.write_batch(spark, self._batch(number))
        base = target_rows(spark, WORKLOAD, num_rows)
        changed = reduce(DataFrame.unionByName, [self.batch(spark, number).rows() for number in range(num_batches)])
        fold(base, changed).write.parquet(str(self.folder / "expected"))
        prints = {
            "merged": fingerprint_of(self.expected(spark)),
            "appended": fingerprint_of(base.unionByName(changed.drop("op")).select(*COLUMN_NAMES)),
        }
        (self.folder / "fingerprints.json").write_text(json.dumps(prints), encoding="utf-8")

    def batch(self, spark: SparkSession, number: int) -> Batch:
        """Return one batch."""
        return Batch(spark=spark, path=self._batch(number), schema=batch_schema(spark, self._batch(0)))

    def expected(self, spark: SparkSession) -> DataFrame:
        """Return the rows after all batches."""
        return spark.read.parquet(str(self.folder / "expected")).select(*COLUMN_NAMES)

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the fingerprint of the rows after all batches by `merged`, and after appending them by `appended`."""
        prints = json.loads((self.folder / "fingerprints.json").read_text(encoding="utf-8"))
        return {name: (count, total) for name, (count, total) in prints.items()}

    def _batch(self, number: int) -> Path:
        return self.folder / "batches" / f"{number:03d}"
