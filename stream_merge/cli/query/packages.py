"""Finds the Maven coordinates that a pipeline needs, for the installed Spark and Delta Lake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import FilesSource, KafkaSource, Source, SparkSettings
from stream_merge.packages import delta_package

SCALA = "2.13"


def find_packages(settings: SparkSettings, source: Source | None = None, *, has_registry: bool = False) -> list[str]:
    """Return the packages for Spark to fetch: Delta's, those of a source, and those of the file.

    A coordinate in the file replaces a chosen one of the same artifact, whatever its version.

    Raises:
        PipelineError: pyspark or delta-spark is not installed.
    """
    if not settings.choose_packages:
        return list(settings.packages)
    try:
        chosen = [delta_package(), *source_packages(source, version("pyspark"), has_registry=has_registry)]
    except PackageNotFoundError as error:
        raise PipelineError(
            f"The Python package {error.name} is not installed: pip install 'stream-merge[spark,cli]', or set "
            "choose_packages = false in [spark] if Spark has Delta Lake's packages already.",
            ExitCode.CANNOT_START,
        ) from None
    return merged(chosen, settings.packages)


def source_packages(source: Source | None, spark_version: str, *, has_registry: bool = False) -> list[str]:
    """Return the coordinates of what a source needs and Spark does not include: its connector, and Avro.

    Args:
        source: The source.
        spark_version: Version of Spark.
        has_registry: Whether its records are in Avro, with schemas in a registry.
    """
    names = ["sql-kafka-0-10"] if isinstance(source, KafkaSource) else []
    if has_registry or (isinstance(source, FilesSource) and source.file_format == "avro"):
        names.append("avro")
    return [f"org.apache.spark:spark-{name}_{SCALA}:{spark_version}" for name in names]


def merged(chosen: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return the coordinates of both, each artifact once; given ones replace chosen ones."""
    replaced = {_artifact(coordinate) for coordinate in given}
    return [*(each for each in chosen if _artifact(each) not in replaced), *dict.fromkeys(given)]


def _artifact(coordinate: str) -> str:
    """Return group and artifact, without the versions of Spark and Scala that Delta puts into the artifact's name."""
    group, _, rest = coordinate.partition(":")
    return f"{group}:{rest.partition(':')[0].partition('_')[0]}"
