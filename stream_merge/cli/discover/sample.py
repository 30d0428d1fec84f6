"""Reads a bounded sample of the records of a broker's topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.kafka_topics import open_topics
from stream_merge.cli.checks.source_checks import explain_kafka_error
from stream_merge.cli.discover.foreign import HIDDEN_PREFIX
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.query.messages import SampledRecord
from stream_merge.cli.query.registry import make_registry
from stream_merge.cli.query.sources import OffsetRange, read_offsets
from stream_merge.cli.query.topics import client_options
from stream_merge.errors import ConfigError, SchemaRegistryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stream_merge.cli.discover.connection import Connection

NUM_RECORDS = 100
"""The largest number of records of a topic that are read; each partition gives its newest ones."""
MAX_BYTES = 250_000
"""Larger values are not read."""

_MIN_RECORDS = 5
"""Of each partition, however many there are."""
_TOPICS_AT_A_TIME = 10
_PATIENCE = {
    "kafka.default.api.timeout.ms": "15000",
    "kafka.request.timeout.ms": "10000",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "20000",
}
"""A user is waiting: an answer comes within seconds, or an error."""


def sample_topics(
    spark: SparkSession, connection: Connection, pattern: str | None
) -> tuple[dict[str, list[SampledRecord]], list[str]]:
    """Return the newest records of each topic, and the names of all topics that the broker has.

    Args:
        spark: The session.
        connection: How to reach broker and registry.
        pattern: Which topics to read, for the whole name; without it all but hidden ones.

    Raises:
        PipelineError: The broker or the registry does not answer, or no topic matches.
    """
    source = connection.source
    patient = source.model_copy(update={"options": {**_PATIENCE, **source.options}})
    try:
        with open_topics(spark, client_options(patient)) as topics:
            names = topics.names()
            chosen = [name for name in names if is_chosen(name, pattern)]
            offsets = topics.offsets(chosen) if chosen else {}
        if not chosen:
            raise PipelineError(_no_topics(names, pattern), ExitCode.CANNOT_START)
        sampled: dict[str, list[SampledRecord]] = {name: [] for name in chosen}
        for some in _batches(chosen, _TOPICS_AT_A_TIME):
            ranges = sample_ranges({part: ends for part, ends in offsets.items() if part[0] in some})
            if ranges:
                for record in decoded_records(read_offsets(spark, patient, ranges), connection):
                    sampled[record.topic].append(record)
    except JVM_ERRORS as error:
        _, sentence = explain_kafka_error(error)
        raise PipelineError(f"{connection.source.bootstrap_servers}: {sentence}.", ExitCode.CANNOT_START) from error
    except SchemaRegistryError as error:
        raise PipelineError(f"{error}.", ExitCode.CANNOT_START) from error
    except ConfigError as error:
        raise PipelineError(f"--registry: {error}.", ExitCode.USAGE) from error
    return sampled, names


def is_chosen(name: str, pattern: str | None) -> bool:
    """Return whether a topic is to be looked at."""
    if pattern is None:
        return not name.startswith(HIDDEN_PREFIX)
    return re.fullmatch(pattern, name) is not None


def sample_ranges(offsets: Mapping[tuple[str, int], tuple[int, int]]) -> list[OffsetRange]:
    """Return the ranges of the newest records, for the first offset and the one after the last of each partition."""
    num_partitions: dict[str, int] = {}
    for topic, _ in offsets:
        num_partitions[topic] = num_partitions.get(topic, 0) + 1
    return [
        OffsetRange(
            topic=topic,
            partition=partition,
            first=max(first, end - max(_MIN_RECORDS, NUM_RECORDS // num_partitions[topic])),
            last=end - 1,
        )
        for (topic, partition), (first, end) in sorted(offsets.items())
        if end > first
    ]


def _batches(names: Sequence[str], size: int) -> Iterator[set[str]]:
    left = iter(names)
    while some := set(islice(left, size)):
        yield some


def _no_topics(names: Sequence[str], pattern: str | None) -> str:
    visible = [name for name in names if not name.startswith(HIDDEN_PREFIX)]
    if not visible:
        return "The broker has no topics, or the login may not see any: start the connector first."
    shown = ", ".join(visible[:10]) + (", ..." if len(visible) > 10 else "")
    return f"No topic matches {pattern} as a whole: correct --topics. The broker has {shown}."


def decoded_records(records: DataFrame, connection: Connection) -> Iterator[SampledRecord]:
    """Yield the records, decoded if they are in Avro and there is a registry."""
    size = "coalesce(octet_length(value), 0)"
    kept = records.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        f"CASE WHEN {size} <= {MAX_BYTES} THEN value END AS value",
        "headers",
        f"{size} > {MAX_BYTES} AS is_too_large",
    ).orderBy("topic", "partition", "offset")
    rows = kept.collect()
    if connection.registry is None:
        yield from (_record(row) for row in rows)
        return
    from stream_merge.debezium import from_registry
    from stream_merge.debezium.decode_errors import DECODE_ERROR_COL

    # Apart from their source, which decoding would read again.
    frame = records.sparkSession.createDataFrame(rows, kept.schema)
    decoded = from_registry(frame, make_registry(connection.registry)).orderBy("topic", "partition", "offset")
    for sent, row in zip(rows, decoded.collect(), strict=True):
        yield _record(row, was_avro=sent["value"] != row["value"], decode_error=row[DECODE_ERROR_COL])


def _record(row: Any, *, was_avro: bool = False, decode_error: str | None = None) -> SampledRecord:
    return SampledRecord(
        topic=row["topic"],
        key=None if row["key"] is None else bytes(row["key"]),
        value=None if row["value"] is None else bytes(row["value"]),
        headers=tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        is_too_large=row["is_too_large"],
        was_avro=was_avro,
        decode_error=decode_error,
    )
