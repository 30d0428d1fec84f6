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
        former: The folder that earlier versions used. A table and a copy of its folder have one in common.
    """

    spark: SparkSession
    folder: Any
    former: Any

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, app_id: str, table_id: str, root: str) -> MergedBatches:
        """Return the record of a table, by its id and its folder, for merges under this application id."""
        path = java_class(spark._jvm, "org.apache.hadoop.fs.Path")

        def folder(*parts: str) -> Any:
            key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
            return path(path(checkpoint, FOLDER), key)

        return cls(spark, folder(app_id, table_id, root), folder(app_id, table_id))

    def last(self) -> int | None:
        """Return the last micro-batch that the table got, or None."""
        return max(self._numbers(self.folder) or self._numbers(self.former), default=None)

    def keep(self, batch_id: int) -> None:
        """Record that the table got a micro-batch."""
        path = java_class(self.spark._jvm, "org.apache.hadoop.fs.Path")
        numbers = self._numbers(self.folder)
        system = self._system()
        system.create(path(self.folder, str(batch_id)), True).close()
        for number in numbers:
            if number != batch_id:
                system.delete(path(self.folder, str(number)), False)
        if not numbers:
            system.delete(self.former, True)

    def _numbers(self, folder: Any) -> list[int]:
        system = self._system()
        if not system.exists(folder):
            return []
        names = [str(status.getPath().getName()) for status in system.listStatus(folder)]
        return [int(name) for name in names if name.isdecimal()]

    def _system(self) -> Any:
        return self.folder.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
