"""Implements `stream-merge validate`: checks the file, and with Spark the source, the tables and the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stream_merge import merge_sink
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.faults import Fault, in_order
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.file.pipeline import KafkaSource, TableSettings
from stream_merge.cli.file.positions import Location
from stream_merge.cli.query.registry import make_registry
from stream_merge.cli.query.sink_options import sink_options
from stream_merge.cli.query.sources import kafka_options
from stream_merge.cli.query.tables import build_sink, known_targets
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, SchemaRegistryError
from stream_merge.options import with_learnt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REGISTRY_SECONDS = 5.0
_OPTIONS = {**{name: name for name in TableSettings.model_fields}, "columns": "write_columns"}
"""Maps options of `merge_sink` to options of a table in the file."""


def validate(loaded: LoadedPipeline, spark: SparkSession | None) -> list[Fault]:
    """Return all faults of a loaded pipeline, in the order of its file.

    Args:
        loaded: The pipeline.
        spark: A session to check source, tables and checkpoint with; it reads up to 100 rows of each source and writes
            nothing. Without one, only the options are checked.
    """
    faults = list(_option_faults(loaded))
    if not faults:
        faults = list(_sink_faults(loaded))
    if spark is not None:
        from stream_merge.cli.checks.catalog import find_catalog_faults
        from stream_merge.cli.checks.checkpoint_checks import find_checkpoint_faults
        from stream_merge.cli.checks.source_checks import find_source_faults
        from stream_merge.cli.checks.table_checks import find_table_faults

        faults += find_catalog_faults(spark, loaded)
        source_faults = [*find_source_faults(spark, loaded), *_registry_faults(loaded)]
        faults += source_faults
        # A source that cannot be read has no rows to check the tables with.
        faults += find_table_faults(spark, loaded, reads_source=not source_faults)
        faults += find_checkpoint_faults(spark, loaded)
    return in_order(faults)


def _option_faults(loaded: LoadedPipeline) -> Iterator[Fault]:
    pipeline = loaded.pipeline
    if isinstance(pipeline.source, KafkaSource):
        try:
            kafka_options(pipeline.source)
        except PipelineError as error:
            yield loaded.fault(("source", "options"), _clause(str(error).removeprefix("source.options: ")))
    if pipeline.registry is not None:
        try:
            make_registry(pipeline.registry)
        except ConfigError as error:
            for fault in error.faults:
                option, _, sentence = fault.partition(" ")
                yield loaded.fault(("registry", option), sentence)
    for number in range(len(pipeline.tables)):
        yield from _merge_option_faults(loaded, number)
    if pipeline.metrics.prometheus_port is not None:
        yield from _label_faults(loaded)


def _registry_faults(loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield why the schema registry cannot be asked."""
    settings = loaded.pipeline.registry
    if settings is None:
        return
    try:
        # A user is waiting.
        make_registry(settings.model_copy(update={"timeout": min(settings.timeout, _REGISTRY_SECONDS)})).check()
    except SchemaRegistryError as error:
        yield loaded.fault(("registry", "url"), str(error))
    except ConfigError as error:
        yield loaded.fault(("registry",), str(error))


def _label_faults(loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield targets that metrics cannot tell apart from another one once secrets are masked."""
    shown: dict[str, int] = {}
    for target, number in known_targets(loaded.pipeline).items():
        label = loaded.secrets.mask(target)
        first = shown.setdefault(label, number)
        if first != number:
            yield loaded.fault(
                ("tables", number, "target"),
                f"is shown as {label}, as is that of tables[{first}], so their metrics would be mixed; make them "
                "differ in more than values of the environment",
            )


def _merge_option_faults(loaded: LoadedPipeline, number: int) -> Iterator[Fault]:
    table = loaded.pipeline.tables[number]
    try:
        sink = merge_sink(table.target, **sink_options(loaded.pipeline, number))
        if sink.config.learn is not None:
            _check_learnt(sink.config)
    except ConfigError as error:
        for fault in error.faults:
            yield loaded.fault(_location_of(number, table, fault), fault)
    except PipelineError as error:
        yield loaded.fault(("tables", number), _clause(str(error)))


def _check_learnt(config: SinkConfig) -> None:
    """Check the options of tables whose keys are not known before there are records.

    Raises:
        ConfigError: The options fit neither tables with keys nor tables without.
    """
    from stream_merge.debezium import KEYLESS_MERGE_OPTIONS, MERGE_OPTIONS

    try:
        with_learnt(config, KEYLESS_MERGE_OPTIONS)
    except ConfigError:
        with_learnt(config, {**MERGE_OPTIONS, "keys": ("the key",)})


def _sink_faults(loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield faults that show only when all tables are put together."""
    try:
        build_sink(loaded.pipeline, None)
    except PipelineError as error:
        yield loaded.fault(("tables",), _clause(str(error).removeprefix("tables: ")))


def _location_of(number: int, table: TableSettings, fault: str) -> Location:
    """Return the location of the first option that a fault of `merge_sink` names, preferring options that are set."""
    words = [_OPTIONS[word] for word in re.findall(r"\w+", fault) if word in _OPTIONS]
    given = [word for word in words if word in table.model_fields_set]
    return ("tables", number, *(given or words)[:1])


def _clause(sentence: str) -> str:
    return sentence.rstrip(".")
