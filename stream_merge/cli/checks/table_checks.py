"""Checks with a few rows, without writing, that a source can be merged into its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from stream_merge import merge_sink
from stream_merge.batch.learning import completed
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import present_or_future_table
from stream_merge.cli.checks.catalog import is_forgotten
from stream_merge.cli.checks.folders import find_folder_fault, local_path
from stream_merge.cli.checks.samples import Samples
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.faults import Fault
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.file.pipeline import TableSettings
from stream_merge.cli.query.decoding import Decoder, target_schema
from stream_merge.cli.query.messages import SampledRecord, is_meta, key_names, message_of
from stream_merge.cli.query.sink_options import sink_options
from stream_merge.cli.query.sources import is_path
from stream_merge.cli.query.spark_messages import short_message
from stream_merge.cli.query.tables import FoundTable, find_table, matching_tables
from stream_merge.debezium.decode_errors import decodable
from stream_merge.debezium.fields import resolve_columns
from stream_merge.debezium.settings import tells_keys
from stream_merge.errors import ConfigError, ConfigurationChangedError, StreamMergeError, UnresolvedColumnError
from stream_merge.sql import quote
from stream_merge.table.log_stores import find_log_store_fault
from stream_merge.tombstones.history import remembered_keys
from stream_merge.tombstones.manifest import check_keys

MAX_SOURCES = 20
"""The number of sources of a pattern that are checked."""

_PART_OF_A_NAME = re.compile(r"[\w-]+")
_EXPRESSIONS = ("sequence_by", "tie_break_by", "delete_when", "expect")
_POSITION = "_change.topic || ', partition ' || _change.partition || ', offset ' || _change.offset"
_COLUMNS = ("write_columns", "except_columns", "ignore_null_updates")


def find_table_faults(spark: SparkSession, loaded: LoadedPipeline, *, reads_source: bool) -> Iterator[Fault]:
    """Yield why the rows cannot be merged.

    Args:
        spark: The session.
        loaded: The pipeline.
        reads_source: Whether the source can be read; otherwise only checks without rows run.
    """
    pipeline = loaded.pipeline
    samples = Samples(spark, pipeline)
    try:
        found = [(name, find_table(pipeline, name)) for name in (samples.names() if reads_source else ())]
    except JVM_ERRORS as error:
        yield loaded.fault(
            ("pipeline", "route_by"), f"is not a column or expression of the source: {short_message(error)}"
        )
        found = []
    for name, table in found:
        if table is None and pipeline.pipeline.unknown == "error":
            yield loaded.fault(
                ("tables",),
                f'no table takes the rows of {name}; add a [[tables]], or set unknown = "ignore" to drop them',
            )
        yield from _ambiguous(loaded, name, table)
    for number, settings in enumerate(pipeline.tables):
        tables = [(name, table) for name, table in found if table is not None and table.number == number]
        ddl_faults = list(_ddl_faults(loaded, number, settings))
        yield from ddl_faults
        for name, table in tables[:MAX_SOURCES]:
            check = _TableCheck(spark, loaded, table, name)
            target_faults = list(check.target_faults())
            yield from target_faults
            if not ddl_faults and not target_faults:
                yield from check.row_faults(samples)
        if not tables and "{" not in settings.target:
            table = FoundTable(number=number, settings=settings, target=settings.target, quarantine=settings.quarantine)
            check = _TableCheck(spark, loaded, table, settings.source or "")
            target_faults = list(check.target_faults())
            yield from target_faults or check.key_faults()


def _ambiguous(loaded: LoadedPipeline, name: str, found: FoundTable | None) -> Iterator[Fault]:
    """Yield the fault of a source that two patterns match, which `run` refuses, too."""
    if found is None or found.settings.source in (None, name):
        return
    others = [table for table in matching_tables(loaded.pipeline, name) if table.number != found.number]
    if others:
        yield loaded.fault(
            ("tables", others[0].number, "source"),
            f"{name} matches {others[0].settings.source} and {found.settings.source}; narrow a pattern, or give "
            f'{name} a [[tables]] of its own with source = "{name}"',
        )


def _ddl_faults(loaded: LoadedPipeline, number: int, table: TableSettings) -> Iterator[Fault]:
    if table.columns is None:
        return
    try:
        names = resolve_columns(table.columns)
    except JVM_ERRORS as error:
        yield loaded.fault(("tables", number, "columns"), f"is not DDL: {short_message(error)}")
        return
    except ConfigError as error:
        yield from (loaded.fault(("tables", number, "columns"), fault) for fault in error.faults)
        return
    for place, key in enumerate(table.keys or ()):
        if key not in names:
            yield loaded.fault(
                ("tables", number, "keys", place), f"columns has no column {key}; it has {', '.join(names)}"
            )


@dataclass(frozen=True, slots=True)
class _TableCheck:
    """Checks the rows of one source against the table that takes them."""

    spark: SparkSession
    loaded: LoadedPipeline
    table: FoundTable
    source: str

    def target_faults(self) -> Iterator[Fault]:
        """Yield why the target is not a table to merge into and cannot be created."""
        target = self.table.target
        for value in self._placeholder_values():
            if not _PART_OF_A_NAME.fullmatch(value):
                yield self._fault(
                    "source",
                    f'"{value}" of {self.source} cannot be part of target; '
                    "the pattern must match letters, digits, _ and - only; to take this source, too, give it a "
                    f'[[tables]] of its own with source = "{self.source}"',
                )
        path = local_path(target) if is_path(target) else None
        fault = find_folder_fault(path) if path is not None else None
        if fault is not None:
            yield self._fault("target", fault)
            return
        yield from self._log_store_faults()
        if target_schema(self.spark, target) is not None:
            return
        elif not self.table.settings.create_if_missing:
            yield self._fault("target", f"there is no Delta table {target}; create it, or set create_if_missing = true")
        elif path is not None and path.is_dir() and any(path.iterdir()):
            yield self._fault(
                "target", f"the folder {path} has files and is not a Delta table; give an empty or a new folder"
            )
        elif path is None and (fault := self._catalog_fault(target)) is not None:
            yield self._fault("target", fault)

    def _log_store_faults(self) -> Iterator[Fault]:
        """Yield the tables whose commits other writers could overwrite."""
        for option in ("target", "quarantine"):
            name = getattr(self.table, option)
            table = present_or_future_table(self.spark, name) if name is not None else None
            if table is not None:
                is_single = self.table.settings.single_writer
                fault = find_log_store_fault(table.scheme, table.log_store, single_writer=is_single)
                if fault is not None:
                    yield self._fault(option, fault.replace("single_writer=True", "single_writer = true"))

    def key_faults(self) -> Iterator[Fault]:
        """Yield why the table that is there cannot have these keys, whatever rows come."""
        keys, present = self.table.settings.keys, target_schema(self.spark, self.table.target)
        if keys is None or present is None:
            return
        names = {name.lower() for name in present.names}
        for place, key in enumerate(keys):
            if key.lower() not in names:
                yield self._fault("keys", f"the table has no column {key}; it has {', '.join(present.names)}", place)
        remembered = self._remembered_keys()
        try:
            sink = merge_sink(self.table.target, **sink_options(self.loaded.pipeline, self.table.number))
            if remembered is not None and sink.config.keeps_tombstones:
                check_keys(self.table.target, remembered, keys)
        except ConfigurationChangedError as error:
            yield self._fault("keys", str(error).splitlines()[0])
        except (ConfigError, PipelineError):  # options that fit nothing are told without Spark
            return

    def row_faults(self, samples: Samples) -> Iterator[Fault]:
        """Yield why rows of the source cannot be decoded or merged."""
        settings = self.table.settings
        try:
            records = samples.rows_of(self.source)
            if self._tells_no_columns(records):
                return
            rows = Decoder(self.loaded.pipeline.decode, settings, self.table.target, self.source)(records)
            if rows is None or self._tells_no_keys(rows):
                return
            faults = [*self._column_faults(rows), *self._expression_faults(rows), *self._unsent_faults(records)]
            yield from faults
            if not faults:
                yield from self._value_faults(rows)
                yield from self._merge_faults(rows)
        except PipelineError as error:
            yield self._fault("columns", str(error).rstrip("."))
        except ConfigError as error:
            for fault in error.faults:
                yield self._fault("keys" if fault.startswith("key") else "columns", fault)
        except StreamMergeError as error:
            yield self._fault("target", str(error).splitlines()[0])
        except JVM_ERRORS as error:
            yield self._fault("columns", f"the rows of {self.source} cannot be read: {short_message(error)}")

    def _tells_no_columns(self, records: DataFrame) -> bool:
        """Return whether the columns are unknown before the source has its first record, which is not a fault."""
        if self.loaded.pipeline.decode.format == "none" or self.table.settings.columns is not None:
            return False
        has_value = "value" in records.columns and not records.where("value IS NOT NULL").isEmpty()
        return not has_value and target_schema(self.spark, self.table.target) is None

    def _tells_no_keys(self, rows: DataFrame) -> bool:
        """Return whether the keys are unknown before the source has its first record about a row: no fault either."""
        if self.table.settings.keys is not None or self.loaded.pipeline.decode.format != "debezium":
            return False
        return not tells_keys(rows) and self._remembered_keys() is None

    def _placeholder_values(self) -> list[str]:
        source = self.table.settings.source or ""
        match = re.fullmatch(source.removeprefix("re:"), self.source) if source.startswith("re:") else None
        groups = match.groupdict() if match is not None else {}
        texts = f"{self.table.settings.target} {self.table.settings.quarantine or ''}"
        return [str(value) for name, value in groups.items() if f"{{{name}}}" in texts]

    def _catalog_fault(self, target: str) -> str | None:
        """Return why a missing table cannot be created under a catalog name, or None if it can."""
        schema = target.rpartition(".")[0]
        if is_path(target) or is_forgotten(self.spark, target):
            return None
        if schema and not self.spark.catalog.databaseExists(schema):
            return f"there is no schema {schema} in the catalog; create it: CREATE SCHEMA {schema}"
        return f"{target} is not a Delta table; name another one" if self.spark.catalog.tableExists(target) else None

    def _column_faults(self, rows: DataFrame) -> Iterator[Fault]:
        present = {name.lower() for name in rows.columns}
        own = [name for name in rows.columns if name != "_change"]
        settings = self.table.settings
        for place, key in enumerate(settings.keys or ()):
            if key.lower() not in present:
                yield self._fault("keys", f"the rows have no column {key}; they have {', '.join(own)}", place)
        options = (*_COLUMNS, *(("partition_by", "cluster_by") if self._is_created() else ()))
        for option in options:
            names = getattr(settings, option)
            for place, name in enumerate(names if isinstance(names, list) else ()):
                if name.lower() not in present:
                    yield self._fault(option, f"the rows have no column {name}; they have {', '.join(own)}", place)

    def _unsent_faults(self, records: DataFrame) -> Iterator[Fault]:
        """Yield the columns that are given but in no message: their values would all be NULL."""
        columns = self.table.settings.columns
        if self.loaded.pipeline.decode.format != "debezium" or columns is None:
            return
        binary = decodable(records).selectExpr("CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value")
        sampled = [SampledRecord(topic=self.source, key=row["key"], value=row["value"]) for row in binary.collect()]
        sent = {name for each in sampled for image in message_of(each).images for name in image}
        in_keys = {name for each in sampled for name in key_names(each)}
        for name in resolve_columns(columns) if sent else ():
            if name not in sent | in_keys and not is_meta(name):
                yield self._fault(
                    "columns",
                    f"no message among the first {len(sampled)} has a column {name}; they have "
                    f"{', '.join(sorted(sent))}{self._of_source()}",
                )

    def _is_created(self) -> bool:
        return target_schema(self.spark, self.table.target) is None

    def _expression_faults(self, rows: DataFrame) -> Iterator[Fault]:
        empty = rows.limit(0).alias("source")
        for option in _EXPRESSIONS:
            given = getattr(self.table.settings, option) or ()
            if isinstance(given, dict):
                places: list[tuple[tuple[str | int, ...], str]] = [((name,), text) for name, text in given.items()]
            elif isinstance(given, str):
                places = [((), given)]
            else:
                places = [((place,), text) for place, text in enumerate(given)]
            for place, text in places:
                is_condition = option in ("delete_when", "expect")
                try:
                    (empty.where(text) if is_condition else empty.selectExpr(text)).schema  # noqa: B018 - analyses
                except JVM_ERRORS as error:
                    yield self._fault(option, f"{text} is not valid here: {short_message(error)}", *place)

    def _value_faults(self, rows: DataFrame) -> Iterator[Fault]:
        """Yield what is wrong with all of the first rows, or with some of them if that would stop the query."""
        settings = self.table.settings
        keys, error = self._brought(rows)
        is_record = self.loaded.pipeline.decode.format != "none"
        found = rows.selectExpr(
            f"{error or 'NULL'} AS error",
            f"{_POSITION if is_record else 'NULL'} AS position",
            *(f"{quote(key)} IS NULL AS key_{place}" for place, key in enumerate(keys)),
        ).collect()
        bad = [row for row in found if row["error"] is not None]
        if bad and (settings.quarantine is None or len(bad) == len(found)):
            position = f" ({bad[0]['position']})" if is_record else ""
            remedy = "; set quarantine to keep such rows" if settings.quarantine is None else ""
            share = _counted(found) if len(bad) == len(found) else f"{len(bad)} of {_counted(found)}"
            yield self._fault(None, f"{share} cannot be decoded: {bad[0]['error']}{position}{remedy}")
        good = [row for row in found if row["error"] is None]
        for place, key in enumerate(keys):
            if good and settings.null_keys != "match" and all(row[f"key_{place}"] for row in good):
                places = (place,) if settings.keys else ()
                yield self._fault("keys", f"{key} is NULL in {_counted(good)}{self._of_source()}", *places)

    def _merge_faults(self, rows: DataFrame) -> Iterator[Fault]:
        options = {**sink_options(self.loaded.pipeline, self.table.number), "quarantine": self.table.quarantine}
        if "learn" in options:
            try:
                # Only the rows show whether the options fit: it depends on the keys.
                completed(merge_sink(self.table.target, **options).config, rows)
            except ConfigError as error:
                yield from (self._fault(None, fault) for fault in error.faults)
                return
        if self._is_created():
            return
        sink = merge_sink(self.table.target, **options)
        try:
            sink.explain(rows.limit(0))
        except UnresolvedColumnError as error:
            yield self._fault(None, str(error).splitlines()[0])
        except ConfigurationChangedError as error:
            yield self._fault(error.option or "target", str(error).splitlines()[0])
        except StreamMergeError as error:
            yield self._fault("target", str(error).splitlines()[0])

    def _of_source(self) -> str:
        return "" if self.table.settings.source is None else f" of {self.source}"

    def _brought(self, rows: DataFrame) -> tuple[Sequence[str], str | None]:
        """Return the keys of the rows, and what says why one of them could not be decoded."""
        options = sink_options(self.loaded.pipeline, self.table.number)
        if "learn" in options:
            options = options["learn"](rows, self._remembered_keys)
        return options.get("keys") or (), options.get("error_column")

    def _remembered_keys(self) -> tuple[str, ...] | None:
        return remembered_keys(self.spark, self.table.target)

    def _fault(self, option: str | None, message: str, *place: str | int) -> Fault:
        location = ("tables", self.table.number, *([option] if option is not None else []), *place)
        return self.loaded.fault(location, message)


def _counted(rows: Sequence[object]) -> str:
    return "the only row" if len(rows) == 1 else f"the first {len(rows)} rows"
