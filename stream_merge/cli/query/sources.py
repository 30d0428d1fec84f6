"""Turns `[source]` into Spark's readers, and checks what it can before Spark runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.option_checks import ddl_names
from stream_merge.cli.file.pipeline import DeltaSource, FilesSource, KafkaSource, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORRUPT_RECORD = "_corrupt_record"
"""The column in which Spark's JSON and CSV readers keep a record that does not fit the schema."""

_CHECK_SECONDS = 5
_DIVISIONS = {"minpartitions", "maxrecordsperpartition"}
_RECORDS_A_TASK = 10_000
"""Some tenths of a second of decoding; a task costs about a hundredth."""
_LIMITS = {"maxoffsetspertrigger", "minoffsetspertrigger"}
_TOPICS = ("subscribe", "subscribePattern")
_FIXED = {"failondataloss": "true", "includeheaders": "true"}
_OF_SECTION = {
    "subscribe": "topics",
    "subscribepattern": "topic_pattern",
    "startingoffsets": "starting_offsets",
    "kafka.bootstrap.servers": "bootstrap_servers",
}
"""For options of Spark's source, in lower case, what says so in the section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The records of a partition from offset `first` to offset `last`, which is included."""

    topic: str
    partition: int
    first: int
    last: int


def read_stream(spark: SparkSession, source: Source, max_offsets: int | None = None) -> DataFrame:
    """Return the stream of a source.

    `failOnDataLoss` is always true, so that records that Kafka dropped before they were read are never skipped.

    Args:
        spark: The session.
        source: The source.
        max_offsets: Largest number of Kafka's records in one micro-batch, if the user has not said it.

    Raises:
        PipelineError: An option contradicts the pipeline's guarantees.
    """
    if isinstance(source, KafkaSource):
        return spark.readStream.format("kafka").options(**kafka_stream_options(source, max_offsets)).load()
    if isinstance(source, FilesSource):
        options = file_options(source)
        if source.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
        reader = spark.readStream.format(source.file_format).options(**options)
        return reader.schema(file_schema(source)).load(source.path)
    options = delta_options(source)
    if source.max_files_per_trigger is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
    if source.starting_version is not None:
        options["startingVersion"] = str(source.starting_version)
    delta = spark.readStream.format("delta").options(**options)
    return delta.load(source.table) if is_path(source.table) else delta.table(source.table)


def read_some(spark: SparkSession, source: Source, limit: int) -> DataFrame:
    """Return some rows of a source, with the columns of its stream, for inspection.

    Args:
        spark: The session.
        source: The source.
        limit: The largest number of rows.

    Raises:
        PipelineError: An option contradicts the pipeline's guarantees.
    """
    if isinstance(source, KafkaSource):
        # One attempt and an answer within seconds, since a user is waiting.
        patience = {
            "kafka.default.api.timeout.ms": "15000",
            "kafka.request.timeout.ms": "10000",
            "fetchOffset.numRetries": "1",
            "kafkaConsumer.pollTimeoutMs": "20000",
        }
        options = {**patience, **source.options, **kafka_options(source)}
        return spark.read.format("kafka").options(**options).load().limit(limit)
    if isinstance(source, FilesSource):
        return read_files(spark, source).limit(limit)
    return _some_of_delta(spark, source, limit)


def read_files(spark: SparkSession, source: FilesSource) -> DataFrame:
    """Return all rows of the files that are in the folder now."""
    reader = spark.read.format(source.file_format).options(**file_options(source))
    return reader.schema(file_schema(source)).load(source.path)


def read_offsets(spark: SparkSession, source: KafkaSource, ranges: Iterable[OffsetRange]) -> DataFrame:
    """Return the records of some ranges of offsets, as far as Kafka still has them.

    Args:
        spark: The session.
        source: The source; its own topics and starting offsets do not count.
        ranges: At least one. Those of one partition do not overlap.

    Raises:
        PipelineError: An option contradicts the pipeline's guarantees.
    """
    own = kafka_options(source)
    options = {name: value for name, value in {**source.options, **own}.items() if name not in _TOPICS}
    # One read takes one range of each partition.
    reads: list[dict[tuple[str, int], OffsetRange]] = []
    for each in ranges:
        part = (each.topic, each.partition)
        free = next((read for read in reads if part not in read), None)
        if free is None:
            reads.append(free := {})
        free[part] = each
    frames = []
    for read in reads:
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), each in read.items():
            assigned.setdefault(topic, []).append(partition)
            starts.setdefault(topic, {})[str(partition)] = each.first
            ends.setdefault(topic, {})[str(partition)] = each.last + 1
        limits = {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            # What is gone is told afterwards; it must not keep the others from being read.
            "failOnDataLoss": "false",
        }
        frames.append(spark.read.format("kafka").options(**{**options, **limits}).load())
    return reduce(lambda one, other: one.union(other), frames)


def _some_of_delta(spark: SparkSession, source: DeltaSource, limit: int) -> DataFrame:
    """Return rows of a Delta table; with the feed's columns if the stream has them for the initial rows."""
    reader = spark.read.format("delta").options(**source.options)
    rows = (reader.load(source.table) if is_path(source.table) else reader.table(source.table)).limit(limit)
    if not source.change_feed:
        return rows
    return rows.selectExpr(
        "*",
        "'insert' AS _change_type",
        "CAST(0 AS BIGINT) AS _commit_version",
        "current_timestamp() AS _commit_timestamp",
    )


def kafka_options(source: KafkaSource) -> dict[str, str]:
    """Return the options of Spark's Kafka source that stream and batch share.

    Raises:
        PipelineError: An option contradicts the pipeline's guarantees.
    """
    for name, value in source.options.items():
        fixed = _FIXED.get(name.lower())
        if fixed is not None and value.lower() != fixed:
            raise PipelineError(
                f"source.options: {name} is always {fixed} in a pipeline, so that no record and no change of a key is "
                "lost; leave the option out.",
                ExitCode.USAGE,
            )
        if name.lower() in _OF_SECTION:
            raise PipelineError(
                f"source.options: {name} is {_OF_SECTION[name.lower()]} in the section [source], which counts; leave "
                "the option out.",
                ExitCode.USAGE,
            )
    topics = (
        {"subscribePattern": source.topic_pattern} if source.topic_pattern else {"subscribe": ",".join(source.topics)}
    )
    return {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        **topics,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }


def limits_batches(source: KafkaSource) -> bool:
    """Return whether the user has said how many records a micro-batch may have."""
    return source.max_offsets_per_trigger is not None or bool({name.lower() for name in source.options} & _LIMITS)


def kafka_stream_options(source: KafkaSource, max_offsets: int | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka source for the stream.

    Spark reads each partition of Kafka in one task. Debezium's topics mostly have one partition, so one core would
    decode the whole table, while the others wait; so what one task reads is limited, unless the user's options say how
    to divide it.

    Args:
        source: The source.
        max_offsets: Largest number of records in one micro-batch, if the user has not said it (`limits_batches`).

    Raises:
        PipelineError: An option contradicts the pipeline's guarantees.
    """
    options = {**source.options, **kafka_options(source), "startingOffsets": source.starting_offsets}
    limit = max_offsets if source.max_offsets_per_trigger is None else source.max_offsets_per_trigger
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    if not {name.lower() for name in options} & _DIVISIONS:
        options["maxRecordsPerPartition"] = str(_RECORDS_A_TASK)
    return options


def delta_options(source: DeltaSource) -> dict[str, str]:
    """Return the options of Delta's source, except those for its start."""
    return {**source.options, **({"readChangeFeed": "true"} if source.change_feed else {})}


def keeps_corrupt_records(source: Source) -> bool:
    """Return whether rows of the source have `CORRUPT_RECORD`, which keeps records that do not fit the schema."""
    options: Mapping[str, str] = {name.lower(): value for name, value in source.options.items()}
    return (
        isinstance(source, FilesSource)
        and source.file_format in ("json", "csv")
        and options.get("mode", "permissive").lower() == "permissive"
        and options.get("columnnameofcorruptrecord", CORRUPT_RECORD) == CORRUPT_RECORD
    )


def own_corrupt_record(source: FilesSource) -> str | None:
    """Return how the schema of the files spells `CORRUPT_RECORD`; None if it has no such column."""
    return next((name for name in ddl_names(source.schema_) if name.lower() == CORRUPT_RECORD), None)


def file_schema(source: FilesSource) -> str:
    """Return the columns of the files as DDL, including the one for records that do not fit."""
    if keeps_corrupt_records(source) and own_corrupt_record(source) is None:
        return f"{source.schema_.rstrip().rstrip(',')}, {CORRUPT_RECORD} STRING"
    return source.schema_


def file_options(source: FilesSource) -> dict[str, str]:
    """Return the options of Spark's file source that stream and batch share."""
    given = {name.lower(): value.lower() for name, value in source.options.items()}
    options = dict(source.options)
    if source.file_format == "csv" and given.get("header") == "true" and "enforceschema" not in given:
        # By default Spark skips the header and reads by place: values would go to other columns without a word.
        options["enforceSchema"] = "false"
    own = own_corrupt_record(source)
    if own is not None and keeps_corrupt_records(source):
        # Spark takes the name of this column, unlike those of others, as it is spelt.
        options["columnNameOfCorruptRecord"] = own
    return options


def is_path(table: str) -> bool:
    """Return whether a table is named by its path."""
    return "/" in table


def check_brokers(source: Source, *, given_as: str = "bootstrap_servers in [source]") -> None:
    """Check within seconds, without Spark, that some broker of a Kafka source can be reached.

    Spark would try for minutes, and then report what its client says.

    Args:
        source: The source.
        given_as: Where the user has given the brokers.

    Raises:
        PipelineError: No address of `bootstrap_servers` accepts a connection.
    """
    if not isinstance(source, KafkaSource):
        return
    failures = []
    for server in filter(None, (part.strip() for part in source.bootstrap_servers.split(","))):
        failure = _find_connection_failure(server)
        if failure is None:
            return
        failures.append(f"{server} ({failure})")
    raise PipelineError(
        f"No Kafka broker answers at {', '.join(failures) or source.bootstrap_servers}: start it, or correct "
        f"{given_as}.",
        ExitCode.CANNOT_START,
    )


def _find_connection_failure(server: str) -> str | None:
    # "PLAINTEXT://host:port" and "[::1]:9092" are allowed by Kafka's client.
    host, separator, port = server.rpartition("://")[2].rpartition(":")
    if not separator or not port.isdigit():
        return "not written as host:port"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CHECK_SECONDS):
            return None
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return f"no answer within {_CHECK_SECONDS} seconds"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
