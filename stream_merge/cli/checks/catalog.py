"""Refuses table names in Spark's in-memory catalog, which forgets its tables when the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stream_merge.cli.file.faults import Fault
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.query.sources import is_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARKS_OWN = "spark_catalog"


def find_catalog_faults(spark: SparkSession, loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield the tables that the next start would not find: most are paths without their `./`.

    The first run would create a folder `spark-warehouse/name`; every other run, and `status`, would fail on it.
    """
    for number, table in enumerate(loaded.pipeline.tables):
        for option, name in (("target", table.target), ("quarantine", table.quarantine)):
            if name is not None and is_forgotten(spark, name):
                yield loaded.fault(
                    ("tables", number, option),
                    f"{name} is the name of a table in a catalog, and Spark's own catalog forgets its tables when the "
                    f"command ends; write ./{name} for a folder, or configure a metastore "
                    '("spark.sql.catalogImplementation" = "hive") in [spark.conf]',
                )


def is_forgotten(spark: SparkSession, name: str) -> bool:
    """Return whether only this session knows a table with this name."""
    if is_path(name) or spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        return False
    first, dot, _ = name.partition(".")
    if dot and first != _SPARKS_OWN and spark.conf.get(f"spark.sql.catalog.{first}", None) is not None:
        return False
    return first == _SPARKS_OWN or spark.catalog.currentCatalog() == _SPARKS_OWN
