"""Checks that a pipeline's source exists and can be read as the file says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import open_table
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.faults import Fault
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.file.pipeline import DeltaSource, FilesSource, KafkaSource
from stream_merge.cli.query.sources import (
    CORRUPT_RECORD,
    check_brokers,
    keeps_corrupt_records,
    own_corrupt_record,
    read_some,
)
from stream_merge.cli.query.spark_messages import condition, kafka_error, short_message
from stream_merge.debezium.fields import resolve_columns
from stream_merge.errors import ConfigError, StreamMergeError
from stream_merge.table.features import has_change_feed

NUM_ROWS = 100
"""The number of rows of a source that are sampled."""

_NO_SUCH_TOPIC = "-"
_ASSIGNED = re.compile(r"(?i:assigned)\w*:?\s*(?:\w*Set)?\(([^()]*)\)")
_KAFKA_FAULTS = (
    (("UnknownTopicOrPartitionException", "InvalidTopicException"), "topics", "Kafka refuses a topic: {message}"),
    (
        ("SaslAuthenticationException", "SslAuthenticationException", "AuthenticationException"),
        "options",
        "Kafka refuses the login: {message}",
    ),
    (
        ("TopicAuthorizationException", "GroupAuthorizationException", "ClusterAuthorizationException"),
        "options",
        "the login may not read this: {message}",
    ),
    (
        ("TimeoutException", "DisconnectException"),
        "bootstrap_servers",
        "the connection is accepted, but no Kafka broker answers: correct the port or kafka.security.protocol, or make "
        "the addresses that the broker advertises reachable from here",
    ),
    (("ConfigException", "KafkaException"), "options", "Kafka's client refuses the options: {message}"),
)
"""Kafka's names of errors, the option at fault, and a sentence."""
_PARTITION = re.compile(r"\s*(.+)-\d+\s*")


def find_source_faults(spark: SparkSession, loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield why the source cannot be read."""
    source = loaded.pipeline.source
    if isinstance(source, KafkaSource):
        yield from _kafka_faults(spark, loaded, source)
    elif isinstance(source, FilesSource):
        yield from _files_faults(spark, loaded, source)
    else:
        yield from _delta_faults(spark, loaded, source)


def find_topics(spark: SparkSession, source: KafkaSource) -> list[str] | None:
    """Return the topics that a pattern matches now; None if Spark does not say.

    Spark's source refuses offsets for a topic that cannot exist, and its error names the partitions that it found.
    """
    options = {**source.options, "startingOffsets": f'{{"{_NO_SUCH_TOPIC}": {{"0": 0}}}}'}
    try:
        read_some(spark, source.model_copy(update={"options": options}), 1).head(1)
    except JVM_ERRORS as error:
        found = _ASSIGNED.search(str(error))
        if found is None:
            return None
        partitions = [_PARTITION.fullmatch(part) for part in found[1].split(",")]
        return sorted({partition[1] for partition in partitions if partition is not None})
    return None


def find_missing_topics(spark: SparkSession, source: KafkaSource) -> list[str]:
    """Return the source's topics that Kafka does not have; Kafka's client does not name them."""
    return [topic for topic in source.topics if is_missing_topic(_read_error(spark, source, topic))]


def _kafka_faults(spark: SparkSession, loaded: LoadedPipeline, source: KafkaSource) -> Iterator[Fault]:
    try:
        check_brokers(source)
    except PipelineError as error:
        yield loaded.fault(("source", "bootstrap_servers"), str(error).rstrip("."))
        return
    try:
        is_empty = not read_some(spark, source, 1).head(1)
    except JVM_ERRORS as error:
        if is_missing_topic(error) and source.topics:
            yield from _missing_topics(spark, loaded, source)
        else:
            yield _kafka_fault(loaded, error)
        return
    if is_empty and source.topic_pattern is not None and find_topics(spark, source) == []:
        yield loaded.fault(("source", "topic_pattern"), f"no topic matches {source.topic_pattern}")


def _missing_topics(spark: SparkSession, loaded: LoadedPipeline, source: KafkaSource) -> Iterator[Fault]:
    """Yield a fault for each missing topic."""
    for place, topic in enumerate(source.topics):
        error = _read_error(spark, source, topic)
        if is_missing_topic(error):
            yield loaded.fault(
                ("source", "topics", place),
                f"Kafka has no topic {topic} at {source.bootstrap_servers}; create it, or correct its name",
            )
        elif error is not None:
            yield _kafka_fault(loaded, error)


def _read_error(spark: SparkSession, source: KafkaSource, topic: str) -> BaseException | None:
    try:
        read_some(spark, source.model_copy(update={"topics": [topic]}), 1).head(1)
    except JVM_ERRORS as error:
        return error
    return None


def is_missing_topic(error: BaseException | None) -> bool:
    """Return whether a read failed because Kafka has no such topic."""
    found = kafka_error(error) if error is not None else None
    return found is not None and found[0] == "UnknownTopicOrPartitionException"


def _kafka_fault(loaded: LoadedPipeline, error: BaseException) -> Fault:
    option, sentence = explain_kafka_error(error)
    return loaded.fault(("source", option) if option else ("source",), sentence)


def explain_kafka_error(error: BaseException) -> tuple[str, str]:
    """Return the option of `[source]` at fault, or `""`, and a sentence without its end, for an error of Kafka."""
    name, message = kafka_error(error) or ("", "")
    for names, option, sentence in _KAFKA_FAULTS:
        if name in names:
            return option, sentence.format(message=message)
    return "", f"Kafka cannot be read: {short_message(error)}"


def _files_faults(spark: SparkSession, loaded: LoadedPipeline, source: FilesSource) -> Iterator[Fault]:
    try:
        names = [name for name in resolve_columns(source.schema_) if name.lower() != CORRUPT_RECORD]
    except ConfigError as error:
        yield loaded.fault(("source", "schema"), error.faults[0])
        return
    except JVM_ERRORS as error:
        yield loaded.fault(("source", "schema"), f"is not DDL: {short_message(error)}")
        return
    try:
        frame = read_some(spark, source, NUM_ROWS)
    except JVM_ERRORS as error:
        if condition(error).startswith("PATH_NOT_FOUND"):
            yield loaded.fault(("source", "path"), f"{source.path} does not exist; create it, or correct path")
        else:
            yield loaded.fault(("source",), f"the files cannot be read: {short_message(error)}")
        return
    try:
        rows = frame.collect()
    except JVM_ERRORS as error:
        yield loaded.fault(("source", "schema"), f"the files cannot be read with it: {short_message(error)}")
        return
    if keeps_corrupt_records(source):
        yield from _corrupt_records(loaded, rows, own_corrupt_record(source) or CORRUPT_RECORD)
    if rows and all(row[name] is None for row in rows for name in names):
        yield loaded.fault(
            ("source", "schema"), f"none of its columns has a value in {_counted(rows)} of {source.path}"
        )


def _corrupt_records(loaded: LoadedPipeline, rows: Sequence[Any], column: str) -> Iterator[Fault]:
    corrupt = [row[column] for row in rows if row[column] is not None]
    if corrupt and any(table.quarantine is None for table in loaded.pipeline.tables):
        share = "the only record does" if len(rows) == 1 else f"{len(corrupt)} of the first {len(rows)} records do"
        yield loaded.fault(
            ("source", "schema"),
            f"{share} not fit it, for example {corrupt[0][:80]}; correct it, or give a quarantine for such records",
        )


def _delta_faults(spark: SparkSession, loaded: LoadedPipeline, source: DeltaSource) -> Iterator[Fault]:
    try:
        transaction = open_table(spark, source.table).begin()
    except StreamMergeError:
        yield loaded.fault(("source", "table"), f"there is no Delta table {source.table}")
        return
    if source.change_feed and not has_change_feed(transaction.properties):
        yield loaded.fault(
            ("source", "change_feed"),
            f"the table {source.table} has no change data feed; set its property delta.enableChangeDataFeed = true, or "
            "change_feed = false for a table that only grows",
        )
        return
    if isinstance(source.starting_version, int) and source.starting_version > transaction.version + 1:
        yield loaded.fault(
            ("source", "starting_version"), f"the table {source.table} is at version {transaction.version} only"
        )
    try:
        read_some(spark, source, 1).collect()
    except JVM_ERRORS as error:
        yield loaded.fault(("source",), f"the table {source.table} cannot be read: {short_message(error)}")


def _counted(rows: Sequence[object]) -> str:
    return "the only record" if len(rows) == 1 else f"the first {len(rows)} records"
