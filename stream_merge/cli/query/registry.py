"""Turns `[registry]` into the registry that decodes Avro."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import Pipeline, RegistrySettings
from stream_merge.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stream_merge.debezium import SchemaRegistry


def make_registry(settings: RegistrySettings) -> SchemaRegistry:
    """Return the registry of a section.

    Raises:
        ConfigError: Its options contradict each other.
    """
    from stream_merge.debezium import SchemaRegistry

    return SchemaRegistry(**settings.model_dump())


def record_decoder(pipeline: Pipeline) -> Callable[[DataFrame], DataFrame] | None:
    """Return the function that turns records in Avro into records in JSON; None if the file names no registry.

    It keeps the schemas, so it should be made once.

    Raises:
        PipelineError: The options of the registry contradict each other.
    """
    if pipeline.registry is None:
        return None
    try:
        registry = make_registry(pipeline.registry)
    except ConfigError as error:
        raise PipelineError(f"registry: {error}.", ExitCode.USAGE) from None

    def decode(records: DataFrame) -> DataFrame:
        from stream_merge.debezium import from_registry

        return from_registry(records, registry)

    return decode
