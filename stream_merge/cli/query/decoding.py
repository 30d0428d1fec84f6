"""Decodes the records of a source into rows for its sink, as `[decode]` says."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import col

from stream_merge import debezium
from stream_merge.batch.schema_changes import can_hold, decoded_type
from stream_merge.bridge.table import open_table
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import DecodeSettings, TableSettings
from stream_merge.cli.query.change_feed import without_undone_deletes
from stream_merge.cli.query.sources import CORRUPT_RECORD
from stream_merge.debezium.cloud_events import first_left_event_fault, from_cloud_events
from stream_merge.debezium.decode_errors import decodable, first_decode_error
from stream_merge.debezium.fields import is_own, resolve_columns
from stream_merge.debezium.keys import learn_keys
from stream_merge.debezium.schemas import LearntColumns, asked_as, learn_columns
from stream_merge.debezium.spelling import IS_TOMBSTONE, NUL, is_one_value
from stream_merge.errors import ConfigError, TargetNotFoundError
from stream_merge.tombstones.history import remembered_keys

logger: logging.Logger = logging.getLogger("stream_merge.cli")

_RECORD_FIELDS: Mapping[str, str] = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP_LTZ",
}
_NESTED = (T.StructType, T.ArrayType, T.MapType)


@dataclass(slots=True)
class Decoder:
    """Turns the records of one source into rows; keeps what it learns about them from batch to batch.

    Attributes:
        decode: How records become rows.
        table: The table that takes the rows.
        target: Its path or name, without placeholders.
        source: The name of the source in messages.
        is_feed: Whether the records are the change data feed of a table.
    """

    decode: DecodeSettings
    table: TableSettings
    target: str
    source: str
    is_feed: bool = False
    _given: dict[str, debezium.Field] | None = None
    _has_schema: bool | None = None
    _learnt: LearntColumns | None = None
    _keys: tuple[str, ...] | None = None
    _may_lose_deletes: bool = True
    _misfits: set[tuple[str, T.DataType]] = field(default_factory=set)
    _of_target: tuple[T.StructType, dict[str, debezium.Field]] | None = None

    @property
    def _shown(self) -> str:
        """The source's name in messages: a single table takes all rows, whatever their source is called."""
        return "the source" if self.table.source is None else self.source

    @property
    def reads_records(self) -> bool:
        """Whether decoding inspects the records in advance, so that they should be evaluated once for both uses."""
        return self.decode.format == "debezium" and (self.table.columns is None or self.table.keys is None)

    def __call__(self, records: DataFrame) -> DataFrame | None:
        """Return the rows of the records; None if no record is about a row, and nobody tells the columns.

        Raises:
            PipelineError: The columns are not known.
            ConfigError: The records do not match the section `[decode]`, or tell no keys.
        """
        match self.decode.format:
            case "debezium":
                return self._changes(records)
            case "json":
                return self._objects(records)
            case "none" if self.is_feed and self.table.sequence_by is not None:
                return without_undone_deletes(records, self.table.keys or ())
            case "none":
                return records

    def _changes(self, records: DataFrame) -> DataFrame | None:
        columns = self._columns_of(records)
        if columns is None:
            return None
        return debezium.changes(
            records,
            columns=columns,
            keys=self._keys_of(records, columns),
            format=self.decode.layout,
            placeholder=self.decode.placeholder,
            keep_tombstones=self.decode.keep_tombstones,
            keep_raw=self.table.quarantine is not None,
            decimals=self.decode.decimals,
            binary=self.decode.binary,
            timestamp_unit=self.decode.timestamp_unit,
        )

    def _keys_of(self, records: DataFrame, columns: dict[str, debezium.Field] | LearntColumns) -> Sequence[str] | None:
        """Return the keys from the file, else from the records, else from the target; None if nobody tells them."""
        if self.table.keys is not None:
            return self.table.keys
        if isinstance(columns, LearntColumns):
            fields, keys = columns.fields, columns.told_keys.checked()
        else:
            fields, keys = columns, learn_keys(records, self._keys)
            self._keys = keys
        if keys is None and (keys := remembered_keys(records.sparkSession, self.target)) is not None:
            # The target may have another spelling. Without keys the changes would have another type than those of
            # other sources that go to the same table.
            spelt = {name.lower(): name for name in fields}
            return [spelt.get(key.lower(), key) for key in keys]
        return keys

    def _columns_of(self, records: DataFrame) -> dict[str, debezium.Field] | LearntColumns | None:
        """Return the columns from the file, else from the messages, else from the target.

        The messages take precedence over the target, whose types do not tell the unit of a source's times.

        Returns:
            The columns; None if nobody tells them, and no record is about a row.
        """
        if self.table.columns is not None:
            if self._given is None:
                self._given = resolve_columns(self.table.columns)
            return self._given
        present = target_schema(records.sparkSession, self.target)
        if not self._has_schema:
            # A connector may send schemas one day, and a message that cannot be read tells nothing.
            found = _has_schema_part(records)
            self._has_schema = self._has_schema if found is None else found
        learnt = self._learn(records) if self._has_schema else None
        if learnt is not None:
            return self._as_in_target(learnt, present)
        return self._undescribed(records, present)

    def _undescribed(self, records: DataFrame, present: T.StructType | None) -> dict[str, debezium.Field] | None:
        """Return the columns of the target, for records that do not describe theirs; None if none is about a row.

        Raises:
            PipelineError: There is no target, or the records must describe their columns.
        """
        if self._has_schema is False and self.table.rename:
            raise PipelineError(
                f"tables.rename of {self.target} needs messages with a schema part (schemas.enable=true), which tells "
                "which of the names a message has.",
                ExitCode.USAGE,
            )
        if self._has_schema is False:
            self._warn_of_lost_deletes(records)
        if present is None:
            if self._has_schema is None and (why := first_decode_error(records)) is not None:
                raise PipelineError(f"The columns of {self._shown} are not known: {why}.", ExitCode.FAILED)
            if self._has_schema is None and not self.decode.keep_tombstones:
                return None
            if (why := first_left_event_fault(decodable(records))) is not None:
                raise PipelineError(f"The columns of {self._shown} are not known: {why}.", ExitCode.USAGE)
            raise PipelineError(
                f"The columns of {self._shown} are not known: its messages are in Avro. Name the registry of their "
                "schemas in the section [registry]."
                if _is_in_avro(records)
                else f"The columns of {self._shown} are not known: its messages have no schema part "
                f"(schemas.enable=true), and the table {self.target} does not exist. Give columns for this table in "
                "the pipeline file.",
                ExitCode.USAGE,
            )
        if self._of_target is None or self._of_target[0] != present:
            self._of_target = (present, resolve_columns(present))
        return self._of_target[1]

    def _learn(self, records: DataFrame) -> LearntColumns | None:
        try:
            self._learnt = learn_columns(records, self._learnt, mixed_as_text=True, renamed=self.table.rename)
        except ConfigError:
            # No message of this batch describes its columns; use those of earlier batches.
            if _has_schema_part(records):
                raise
        return self._learnt

    def _warn_of_lost_deletes(self, records: DataFrame) -> None:
        """Warn once if records without a value are dropped and nothing else marks deletes.

        A schema part would tell; without one, this looks at each message until it finds one that can mark a delete.
        """
        if not self._may_lose_deletes or self.decode.keep_tombstones or self.decode.layout == "envelope":
            return
        value = "CAST(value AS STRING)"
        is_envelope = " AND ".join(f"get_json_object({value}, '$.{name}') IS NOT NULL" for name in ("op", "source"))
        marks = f"""contains({value}, '"__deleted"') OR ({is_envelope})"""
        found = (
            from_cloud_events(records)
            .selectExpr(
                f"count_if({IS_TOMBSTONE}) AS num_tombstones",
                f"count_if(NOT {IS_TOMBSTONE}) AS num_values",
                f"coalesce(bool_or({marks}), false) AS marks_deletes",
            )
            .head()
        )
        assert found is not None
        if found["num_tombstones"] and found["num_values"] and not found["marks_deletes"]:
            logger.warning(
                "%d records of %s have no value and were dropped. Its messages are flattened and have no __deleted, so "
                "these are the deletes: set keep_tombstones = true in [decode], with a new table if the messages have "
                "a position (add.fields).",
                found["num_tombstones"],
                self._shown,
            )
            self._may_lose_deletes = False
        elif found["marks_deletes"]:
            self._may_lose_deletes = False

    def _as_in_target(self, learnt: LearntColumns, present: T.StructType | None) -> LearntColumns:
        """Return the columns that the messages describe, with the types that they will have in the target."""
        if present is None:
            return learnt
        mode = self.table.schema_changes_of(self.decode)
        types = {
            f.name: decoded_type(f.dataType, learnt.fields[f.name].data_type, mode)
            for f in present.fields
            if f.name in learnt.fields and not isinstance(f.dataType, _NESTED)
        }

        if mode == "evolve":
            self._warn_of_misfits(learnt, types)

        def typed(fields: Mapping[str, debezium.Field]) -> dict[str, debezium.Field]:
            return {name: asked_as(each, types[name]) if name in types else each for name, each in fields.items()}

        spellings = tuple(replace(spelling, fields=typed(spelling.fields)) for spelling in learnt.spellings)
        return replace(learnt, fields=typed(learnt.fields), spellings=spellings)

    def _warn_of_misfits(self, learnt: LearntColumns, types: Mapping[str, T.DataType]) -> None:
        """Warn, once for each, of columns whose type in the target may not hold what the messages describe."""
        for name, kind in types.items():
            sent = learnt.fields[name].data_type
            if can_hold(kind, sent) or (name, sent) in self._misfits:
                continue
            self._misfits.add((name, sent))
            logger.warning(
                "%s: column %s is %s in the messages and %s in the table, in whose type it is read%s; a value that "
                'does not fit is an error. schema_changes = "lenient" gives such values a column of their own.',
                self.target,
                name,
                sent.simpleString().upper(),
                kind.simpleString().upper(),
                ", as base64" if isinstance(kind, T.BinaryType) else "",
            )

    def _objects(self, records: DataFrame) -> DataFrame:
        if "value" not in records.columns:
            raise PipelineError(
                'decode.format = "json" reads the column value, which the source does not have; for JSON files, '
                "leave the section [decode] out.",
                ExitCode.USAGE,
            )
        if self.decode.keep_tombstones:
            raise PipelineError('decode.keep_tombstones requires decode.format = "debezium".', ExitCode.USAGE)
        schema = self._schema_of_objects(records.sparkSession)
        own = T.StructField(CORRUPT_RECORD, T.StringType())
        parsed = F.from_json(
            "text",
            T.StructType([*schema.fields, own]),
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_RECORD},
        )
        origin = [
            (col(name) if name in records.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in _RECORD_FIELDS.items()
        ]
        frame = records.where("value IS NOT NULL").select(*origin, F.expr("CAST(value AS STRING)").alias("text"))
        frame = frame.withColumn("parsed", parsed)
        # In a column of its own, so that Spark parses only once. Spark reads the first JSON value and ignores the rest.
        is_one = f"(length(text) - length(replace(text, '}}', '')) = 1 OR {is_one_value('text')})"
        is_bad = (
            f"parsed IS NULL OR parsed.{CORRUPT_RECORD} IS NOT NULL OR NOT endswith(rtrim(text), '}}') OR NOT {is_one}"
        )
        error = f"CASE WHEN {is_bad} THEN concat('the value is not a JSON object of the columns: ', left(text, 80)) END"
        frame = frame.withColumn("error", F.expr(error))
        # The quarantine also stores it for rows that parse, but fail a cast or an expectation.
        is_kept = "true" if self.table.quarantine is not None else "error IS NOT NULL"
        as_text = "CASE WHEN is_valid_utf8(text) THEN text ELSE base64(CAST(text AS BINARY)) END"
        raw = F.expr(f"CASE WHEN {is_kept} THEN {as_text} END")
        change = F.struct(*_RECORD_FIELDS, "error", raw.alias("raw")).alias(debezium.CHANGE_COL)
        return frame.select(*[col("parsed").getField(f.name).alias(f.name) for f in schema.fields], change)

    def _schema_of_objects(self, spark: SparkSession) -> T.StructType:
        if self.table.columns is not None:
            fields = [T.StructField(name, each.data_type) for name, each in resolve_columns(self.table.columns).items()]
            return T.StructType(fields)
        present = target_schema(spark, self.target)
        if present is None:
            raise PipelineError(
                f"The columns of {self._shown} are not known: the table {self.target} does not exist. "
                "Give columns for this table in the pipeline file.",
                ExitCode.USAGE,
            )
        return present


def target_schema(spark: SparkSession, target: str) -> T.StructType | None:
    """Return the columns of a table without those that the sink added; None if the table does not exist."""
    try:
        schema = open_table(spark, target).begin().struct_type
    except TargetNotFoundError:
        return None
    return T.StructType([f for f in schema.fields if not is_own(f.name)])


def _is_in_avro(records: DataFrame) -> bool:
    """Return whether a value begins like Avro with the id of a schema, and no registry was asked for it."""
    return bool(decodable(records).where(f"startswith(CAST(value AS STRING), {NUL})").head(1))


def _has_schema_part(records: DataFrame) -> bool | None:
    """Return whether some messages describe their columns; None if no record has a value."""
    value = col("value").cast("string")
    # All of them, since some may be malformed, and a connector may begin to send schemas at any of them. JsonConverter
    # writes no spaces, but others do.
    is_told = value.rlike(r'"schema"\s*:\s*\{') & (F.get_json_object(value, "$.schema.type") == "struct")
    values = decodable(from_cloud_events(records)).where(value.isNotNull())
    found = values.agg(F.bool_or(F.coalesce(is_told, F.lit(False)))).head()
    return None if found is None or found[0] is None else bool(found[0])
