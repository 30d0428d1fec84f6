"""Records the last micro-batch of each table in the query's checkpoint, where other writers cannot overwrite it.

The number is the name of an empty file, so it cannot be half written; the new file is written before the old one is
deleted.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import java_class

FOLDER = "stream_merge"
"""In the checkpoint's folder; it has a folder for each table."""


@dataclass(frozen=True, slots=True)
class MergedBatches:
    """The record of one table.

    Attributes:
        spark: The session.
        folder: The folder of the record.
    """

    spark: SparkSession
    folder: Any

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, app_id: str, table_id: str) -> MergedBatches:
        """Return the record of a table, by its id, for merges under this application id."""
        key = hashlib.sha256(f"{app_id}\n{table_id}".encode()).hexdigest()[:32]
        path = java_class(spark._jvm, "org.apache.hadoop.fs.Path")
        return cls(spark, path(path(checkpoint, FOLDER), key))

    def last(self) -> int | None:
        """Return the last micro-batch that the table got, or None."""
        return max(self._numbers(), default=None)

    def keep(self, batch_id: int) -> None:
        """Record that the table got a micro-batch."""
        path = java_class(self.spark._jvm, "org.apache.hadoop.fs.Path")
        older = [number for number in self._numbers() if number != batch_id]
        system = self._system()
        system.create(path(self.folder, str(batch_id)), True).close()
        for number in older:
            system.delete(path(self.folder, str(number)), False)

    def _numbers(self) -> list[int]:
        system = self._system()
        if not system.exists(self.folder):
            return []
        names = [str(status.getPath().getName()) for status in system.listStatus(self.folder)]
        return [int(name) for name in names if name.isdecimal()]

    def _system(self) -> Any:
        return self.folder.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
