"""Defines the pipeline file as pydantic models; their docstrings are the text of the reference.

Names and defaults are those of `merge_sink`, `merge_router`, `debezium.changes` and Spark's sources, where these exist.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

PATTERN_PREFIX = "re:"
"""Begins a table's `source` that is a pattern rather than a name."""


def _not_bool(value: Any) -> Any:
    """Refuse true and false, which pydantic takes for 1 and 0. It also takes text, which the environment fills in."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


Number: TypeAlias = Annotated[float, BeforeValidator(_not_bool)]
WholeNumber: TypeAlias = Annotated[int, BeforeValidator(_not_bool)]


class Section(BaseModel):
    """A section of the file; unknown names are faults, so that a misspelt option is not ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PipelineSettings(Section):
    """The query as a whole."""

    name: str = Field(default="pipeline", min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the query, in logs, metrics and Spark's UI."""
    checkpoint: str = Field(min_length=1)
    """Folder of the checkpoint, which records the query's position. It belongs to the targets; pipelines never share
    one."""
    trigger: str = Field(default="10 seconds", min_length=1)
    """Interval at which micro-batches start; with "0 seconds" the next one starts as soon as the last one has ended."""
    route_by: str | None = Field(default=None, min_length=1)
    """With several tables, the column or expression that names the source of a row; `topic` for Kafka by default."""
    max_parallel: WholeNumber = Field(default=4, ge=1)
    """How many tables are merged at a time."""
    unknown: Literal["error", "ignore"] = "error"
    """What to do with rows of a source that no table takes: "error" stops before anything is merged, "ignore" drops
    them with a warning."""
    parking: str | None = Field(default=None, min_length=1)
    """Path or name of a Delta table in which the records of a table that fails are parked until it can be merged again;
    the other tables go on. Without it, a table that fails ends the pipeline once the others have the micro-batch."""
    stop_timeout: WholeNumber = Field(default=600, ge=1)
    """Seconds that SIGTERM or Ctrl-C wait for the running micro-batch before they stop the query anyway. Tables that
    were merged by then are not merged again."""


class KafkaSource(Section):
    """Topics of Kafka, read with Spark's Kafka source."""

    format: Literal["kafka"]
    """Kind of source."""
    bootstrap_servers: str = Field(min_length=1)
    """Brokers, `host:port`, separated by commas."""
    topics: list[Annotated[str, Field(min_length=1)]] = []
    """Topics by name. Give either this or `topic_pattern`."""
    topic_pattern: str | None = None
    """Java pattern of topics; new topics that match are read from their beginning."""
    starting_offsets: str = "earliest"
    """Where a pipeline without a checkpoint starts: "earliest", "latest" or JSON, as in Spark's `startingOffsets`."""
    max_offsets_per_trigger: WholeNumber | None = Field(default=None, ge=1)
    """Largest number of records in one micro-batch. By default the command finds it, from 50,000 to 1,000,000, by how
    long micro-batches take."""
    options: dict[str, str] = {}
    """Further options of Spark's Kafka source, for example `"kafka.security.protocol" = "SASL_SSL"`. Unless
    `maxRecordsPerPartition` or `minPartitions` is among them, a task reads at most 10,000 records, so that all cores
    share a topic of one partition."""

    @model_validator(mode="after")
    def _has_topics(self) -> KafkaSource:
        if bool(self.topics) == bool(self.topic_pattern):
            raise ValueError("give either topics or topic_pattern")
        return self


class FilesSource(Section):
    """A folder to which files are added, read with Spark's file source."""

    format: Literal["files"]
    """Kind of source."""
    path: str = Field(min_length=1)
    """Folder; a pattern such as `./landing/*/` is allowed. A file must stay there until it is merged: one that is gone
    before is left out without an error. What is added to a file that was read is not read."""
    file_format: Literal["json", "csv", "parquet", "orc", "avro", "text"] = "json"
    """Format of the files."""
    schema_: str = Field(alias="schema", min_length=1)
    """Columns of the files as DDL, for example `id BIGINT, name STRING`. Those of a CSV file are in the order of the
    file."""
    max_files_per_trigger: WholeNumber | None = Field(default=None, ge=1)
    """Largest number of files in one micro-batch."""
    options: dict[str, str] = {}
    """Further options of Spark's file source. With `header = "true"`, a CSV file whose header has other columns than
    `schema`, or another order, stops the pipeline; `enforceSchema = "true"` takes its columns by their place instead,
    whatever they are called."""


class DeltaSource(Section):
    """The changes of a Delta table: its change data feed, or its appends."""

    format: Literal["delta"]
    """Kind of source."""
    table: str = Field(min_length=1)
    """Path or catalog name of the table."""
    change_feed: bool = True
    """Whether to read the table's change data feed (`_change_type`, `_commit_version`) or the appended rows."""
    starting_version: WholeNumber | Literal["latest"] | None = None
    """First version whose changes are read; by default the table's current rows are read, then its changes."""
    max_files_per_trigger: WholeNumber | None = Field(default=None, ge=1)
    """Largest number of files in one micro-batch."""
    options: dict[str, str] = {}
    """Further options of Delta's source."""


Source = Annotated[KafkaSource | FilesSource | DeltaSource, Field(discriminator="format")]


class DecodeSettings(Section):
    """How records become rows."""

    format: Literal["debezium", "json", "none"] = "none"
    """"debezium": Debezium's events in JSON, or with `[registry]` in Avro, also as CloudEvents, decoded with
    `stream_merge.debezium`, which brings order, deletes, TRUNCATE, key changes and unsent values. "json": the record's
    value is a JSON object of the table's columns; records without a value are left out, so a delete must be marked in
    the value (`delete_when`). "none": the source's own columns."""
    placeholder: str = "__debezium_unavailable_value"
    """Debezium's `unavailable.value.placeholder`."""
    layout: Literal["envelope", "flattened"] | None = None
    """Whether Debezium's messages are envelopes or flattened; detected record by record by default."""
    decimals: Literal["precise", "string", "double"] = "precise"
    """Debezium's `decimal.handling.mode`, for messages without a schema part."""
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64"
    """Debezium's `binary.handling.mode`, if the messages do not say that a column has bytes; "base64" also stands for
    "bytes"."""
    timestamp_unit: Literal["ms", "us", "ns"] = "us"
    """Unit of timestamps that are integers, for messages without a schema part."""
    keep_tombstones: bool = False
    """Whether records without a value are deletes. They are if ExtractNewRecordState flattens the events with its
    default `delete.tombstone.handling.mode=tombstone`. With envelopes, or with `rewrite`, they only repeat deletes."""


class RegistrySettings(Section):
    """The schema registry of records in Avro, for `format = "debezium"`: see [Avro](debezium.md#avro)."""

    url: str | list[Annotated[str, Field(min_length=1)]]
    """Its address, or several addresses of one registry. It must speak Confluent's protocol; for Apicurio Registry the
    address ends in `/apis/ccompat/v7`."""
    user: str | None = None
    """User, or API key, for HTTP's basic authentication."""
    password: str | None = None
    """Its password, or API secret."""
    token: str | None = None
    """A bearer token, in place of user and password."""
    ca_file: str | None = None
    """PEM file of the authorities that sign the registry's certificate; those of the system by default."""
    certificate_file: str | None = None
    """PEM file of a client certificate."""
    key_file: str | None = None
    """PEM file of its key, if `certificate_file` does not hold it."""
    key_password: str | None = None
    """The password of the key."""
    id_size: Literal[4, 8] = 4
    """Bytes of a schema's id in the records: 4, or 8 as Apicurio's converters before version 3 write it."""
    timeout: Number = Field(default=60.0, ge=1)
    """Seconds for which a request is repeated if the registry does not answer, or answers 429 or 5xx."""


class TableSettings(Section):
    """A target: the rows it takes, and how they are merged. The options are those of `merge_sink`."""

    source: str | None = None
    """Name of the rows' source: the topic, or the value of `route_by`. With the prefix `re:` it is a pattern for the
    whole name, whose named groups fill `{group}` in `target` and `quarantine`. A single table may omit it, and then
    takes all rows."""
    target: str = Field(min_length=1)
    """Path (anything with a `/`) of the Delta table, or its name in Spark's session catalog, if that keeps tables
    (Hive's)."""
    keys: list[Annotated[str, Field(min_length=1)]] | None = None
    """Columns that identify a row. "debezium" learns them from the records' keys, so that a pattern may take tables of
    any keys, and tables without one; an empty list says that the tables have no key."""
    columns: str | None = None
    """Columns to decode with "debezium" and "json", as DDL; by default the target's columns, or, with "debezium", those
    in the messages' schema part."""
    write_columns: list[str] = []
    """The columns to write besides the keys (`merge_sink(columns=)`)."""
    except_columns: list[str] = []
    """The columns not to write."""
    sequence_by: str | list[str] | None = None
    """Columns or expressions that order the changes of a key. "debezium" brings its own."""
    tie_break_by: str | list[str] | None = None
    """Columns or expressions that decide between changes with the same sequence."""
    delete_when: str | None = None
    """Condition under which a row is deleted. "debezium" brings its own."""
    ignore_null_updates: bool | list[str] = False
    """Whether NULL leaves the target's value unchanged; give a list to limit this to some columns."""
    null_keys: Literal["error", "match", "quarantine"] = "error"
    """What to do with rows that have NULL in a key."""
    create_if_missing: bool = True
    """Whether to create a missing table."""
    schema_changes: Literal["evolve", "lenient", "ignore", "error"] | None = None
    """What to do when the source's columns change: give the table new columns and wider types ("evolve"), put values
    that the type of their column cannot hold into a new column as well ("lenient"), leave the table's columns as they
    are ("ignore"), or stop ("error"). With "debezium" it is "evolve", unless `columns` are given; else "ignore"."""
    rename: dict[str, str] = {}
    """For columns that were renamed in the source, the column of the table in which each goes on, by its new name:
    `{ email_address = "email" }`. Only with "debezium" and columns from the messages' schema part; not for keys."""
    merge_schema: bool = False
    """Whether to add new columns of the rows to the table, and do nothing else; in the place of `schema_changes`."""
    partition_by: list[str] = []
    """Partition columns of a new table."""
    cluster_by: list[str] = []
    """Clustering columns of a new table."""
    table_properties: dict[str, str] = {"delta.enableDeletionVectors": "true"}
    """Table properties of a new table."""
    strategy: Literal["insert_only", "merge_on_read", "copy_on_write"] | None = None
    """How changes are written; by default the clauses and the table decide."""
    locator: Literal["scan", "index"] | None = None
    """How matching rows are found; chosen automatically by default."""
    tombstone_retention: str = "7 days"
    """How long deletes are remembered: a number and seconds, minutes, hours or days."""
    skip_unchanged: bool = False
    """Whether to skip updates that change nothing."""
    single_writer: bool = False
    """Whether no other process ever writes to the table; required on S3 with Delta's default LogStore."""
    maintenance: bool = True
    """Whether the pipeline keeps the table young: it compacts small files and files with many deleted rows, and runs
    VACUUM once a day with the table's own retention."""
    quarantine: str | None = None
    """Path or name of a Delta table for rows that cannot be decoded or merged; without it, such a row stops the
    query."""
    expect: dict[str, str] = {}
    """Conditions by name; upserts for which one is not true go to the quarantine. They do not apply to deletes, or to
    values that were not sent."""
    max_quarantined_share: Number = Field(default=1.0, ge=0, le=1)
    """Largest share of a micro-batch's rows that may go to the quarantine; above it the query stops."""
    max_commit_retries: WholeNumber = Field(default=10, ge=0)
    """How often to retry a commit after a conflict."""

    def schema_changes_of(self, decode: DecodeSettings) -> str | None:
        """Return what is done when the source's columns change; None if `merge_schema` says it."""
        if self.schema_changes is not None or "merge_schema" in self.model_fields_set:
            return self.schema_changes
        return "evolve" if decode.format == "debezium" and self.columns is None else None

    @field_validator("source")
    @classmethod
    def _pattern_compiles(cls, source: str | None) -> str | None:
        if source is not None and source.startswith(PATTERN_PREFIX):
            try:
                re.compile(source.removeprefix(PATTERN_PREFIX))
            except re.error as fault:
                raise ValueError(f"is not a valid pattern: {fault}") from None
        return source


class SparkSettings(Section):
    """The Spark that runs the pipeline."""

    master: str | None = None
    """Spark's master; `local[*]` unless Spark is told otherwise."""
    packages: list[str] = []
    """Additional Maven coordinates. Delta's and the source's are chosen to fit the installed Spark."""
    choose_packages: bool = True
    """Whether to add the packages of Delta and of the source. Set it to false if the cluster has them."""
    conf: dict[str, str | int | bool] = {}
    """Spark's configuration, for example `"spark.driver.memory" = "4g"`."""


class MetricsSettings(Section):
    """Metrics for a monitoring system."""

    prometheus_port: WholeNumber | None = Field(default=None, ge=0, le=65535)
    """Port of an HTTP endpoint: `/metrics` for Prometheus, and `/`, a page for a browser; none by default. 0 takes a
    free port, which is logged."""
    prometheus_address: str = "127.0.0.1"
    """Address that the endpoint listens on."""


class Pipeline(Section):
    """A whole pipeline file."""

    pipeline: PipelineSettings
    source: Source
    decode: DecodeSettings = DecodeSettings()
    registry: RegistrySettings | None = None
    tables: list[TableSettings] = Field(min_length=1)
    spark: SparkSettings = SparkSettings()
    metrics: MetricsSettings = MetricsSettings()
