"""Refuses names in a catalog that forgets them: Spark's own, in memory, when no metastore is configured."""

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
    """Yield the tables that the next start would not find: most are paths whose `./` was forgotten.

    The first run would make a folder `spark-warehouse/name`, and every other run, and `status`, would fail on it.
    """
    for number, table in enumerate(loaded.pipeline.tables):
        for option, name in (("target", table.target), ("quarantine", table.quarantine)):
            if name is not None and is_forgotten(spark, name):
                yield loaded.fault(
                    ("tables", number, option),
                    f"{name} is the name of a table in a catalog, and Spark's own forgets its tables when the command ends; write "
                    f'./{name} for a folder, or configure a metastore ("spark.sql.catalogImplementation" = "hive") in [spark.conf]',
                )


def is_forgotten(spark: SparkSession, name: str) -> bool:
    """Tell whether a table of this name is known to this session only."""
    if is_path(name) or spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        return False
    first, dot, _ = name.partition(".")
    if dot and first != _SPARKS_OWN and spark.conf.get(f"spark.sql.catalog.{first}", None) is not None:
        return False
    return first == _SPARKS_OWN or spark.catalog.currentCatalog() == _SPARKS_OWN
