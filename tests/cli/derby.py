"""A database in the memory of Spark's own JVM: Derby, which Spark has among its jars."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.cli.compare.database import Access


@dataclass(frozen=True, slots=True)
class Derby:
    """A database of one test."""

    spark: SparkSession
    url: str

    @property
    def access(self) -> Access:
        return Access(url=self.url)

    def execute(self, *statements: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        """Run statements, the last one once for each of some rows, whose values are its parameters."""
        connection = self.spark._jvm.java.sql.DriverManager.getConnection(self.url)
        try:
            for statement in statements:
                prepared = connection.prepareStatement(statement)
                for row in [()] if rows is None or statement is not statements[-1] else rows:
                    for number, value in enumerate(row, 1):
                        prepared.setObject(number, value)
                    prepared.execute()
                prepared.close()
        finally:
            connection.close()


@contextmanager
def derby(spark: SparkSession, log: Path, *, attributes: str = "") -> Iterator[Derby]:
    """Create a database; drop it at the end.

    Args:
        spark: The session.
        log: The file in which Derby keeps its log.
        attributes: Attributes of its address when it is created, such as `;territory=de;collation=TERRITORY_BASED`.
    """
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(log))
    url = f"jdbc:derby:memory:{uuid.uuid4().hex}"
    jvm.java.sql.DriverManager.getConnection(f"{url};create=true{attributes}").close()
    try:
        yield Derby(spark, url)
    finally:
        # Derby says by an error that it is gone.
        with pytest.raises(JVM_ERRORS, match="dropped"):
            jvm.java.sql.DriverManager.getConnection(f"{url};drop=true")
