"""Detects topics that were deleted and recreated: their offsets refer to other records.

Spark notices only while the new topic is shorter than what it has read of the old one. After that it would continue in
the middle of the new topic and miss everything before. So a file in the checkpoint keeps the ids that Kafka gave the
topics; it is written before the first micro-batch of a topic is merged, and compared before each micro-batch. If Kafka
does not return ids, nothing is compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from stream_merge.cli.errors import PipelineError, StopNow
from stream_merge.cli.file.pipeline import KafkaSource, Pipeline
from stream_merge.cli.query.sources import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: logging.Logger = logging.getLogger("stream_merge.cli")

FILE = "kafka-topics.json"
"""The file in the checkpoint's folder."""

_CLIENT = "kafka."

ReadIds: TypeAlias = Callable[[Collection[str]], Mapping[str, str]]


class ReadTopics:
    """The topics that the query of a checkpoint has read.

    Args:
        spark: The session.
        checkpoint: The folder of the checkpoint.
        read_ids: Reads the ids of topics from Kafka.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, read_ids: ReadIds) -> None:
        self._spark = spark
        self._folder = checkpoint.rstrip("/")
        self._read_ids = read_ids
        self._known = self._read(FILE) or {}

    def made_anew(self, topics: Collection[str]) -> list[str]:
        """Return which of these topics, or of all known topics if none are given, were recreated."""
        known = self._known.keys() & set(topics) if topics else self._known.keys()
        return self._find_made_anew(self._read_ids(sorted(known)))

    def check_batch(self, batch_id: int) -> None:
        """Refuse a micro-batch of a recreated topic, and record topics that are new in this batch.

        Raises:
            PipelineError: A topic was recreated.
        """
        found = self._read_ids(sorted(self._read(f"offsets/{batch_id}") or {}))
        refuse(self._find_made_anew(found))
        if not found.keys() <= self._known.keys():
            self._known |= found
            self._write()

    def read_before(self, batch_id: int) -> list[str]:
        """Return the topics of which micro-batches before this one had records, as far as the checkpoint tells."""
        ends = self._read(f"offsets/{batch_id - 1}") if batch_id > 0 else None
        # Where Spark's source began: not at 0 with "latest", or if Kafka had dropped records.
        starts = self._read("sources/0/0")
        if ends is None or starts is None:
            return []
        return sorted(
            topic
            for topic, partitions in ends.items()
            if any(end > starts.get(topic, {}).get(partition, 0) for partition, end in partitions.items())
        )

    def _find_made_anew(self, found: Mapping[str, str]) -> list[str]:
        return [topic for topic, topic_id in found.items() if self._known.get(topic, topic_id) != topic_id]

    def _read(self, name: str) -> dict[str, Any] | None:
        return read_json(self._spark, f"{self._folder}/{name}")

    def _write(self) -> None:
        from stream_merge.bridge.small_files import write_text

        try:
            write_text(self._spark, f"{self._folder}/{FILE}", json.dumps(self._known, sort_keys=True) + "\n")
        except Exception as error:
            logger.debug("the ids of topics cannot be kept in %s", self._folder, exc_info=error)


def is_routed_by_topic(pipeline: Pipeline) -> bool:
    """Whether the names of the rows' sources are those of Kafka's topics."""
    return isinstance(pipeline.source, KafkaSource) and pipeline.pipeline.route_by in (None, "topic")


def named_topics(pipeline: Pipeline) -> Sequence[str]:
    """Return the sources that the file names as topics to read."""
    source = pipeline.source
    return source.topics if isinstance(source, KafkaSource) and is_routed_by_topic(pipeline) else ()


def seen_topics(spark: SparkSession, checkpoint: str) -> list[str]:
    """Return the topics that the query of a checkpoint has read, as far as its folder says."""
    return sorted(read_json(spark, f"{checkpoint.rstrip('/')}/{FILE}") or {})


def read_json(spark: SparkSession, path: str) -> dict[str, Any] | None:
    """Return the JSON object in the last line of a file; None if there is none, or it cannot be read."""
    from stream_merge.bridge.small_files import read_text

    try:
        text = read_text(spark, path)
        found = json.loads(text.strip().splitlines()[-1]) if text else None
    except Exception as error:
        logger.debug("%s cannot be read", path, exc_info=error)
        return None
    return found if isinstance(found, dict) else None


def refuse(made_anew: Sequence[str]) -> None:
    """Refuse to continue with recreated topics.

    Raises:
        PipelineError: There are some.
    """
    if made_anew:
        raise PipelineError(
            f"The topic {', '.join(made_anew)} was deleted and recreated since this checkpoint read it, so its offsets "
            "refer to other records; nothing of it is skipped or merged. Use a new checkpoint folder, and let the "
            "source send a new snapshot if records of the old topic were not read."
        )


@contextmanager
def watched_topics(spark: SparkSession, pipeline: Pipeline) -> Iterator[ReadTopics | None]:
    """Yield the topics of a pipeline's checkpoint for the block; None for a source other than Kafka."""
    if not isinstance(pipeline.source, KafkaSource):
        yield None
        return
    from stream_merge.bridge.kafka_topics import TopicIds

    ids = TopicIds(spark, client_options(pipeline.source))
    try:
        yield ReadTopics(spark, pipeline.pipeline.checkpoint, ids.read)
    except StopNow:
        # The process ends at once and does not wait for the JVM, which may be busy with the interrupted call.
        raise
    except BaseException:
        ids.close()
        raise
    ids.close()


def client_options(source: KafkaSource) -> dict[str, str]:
    """Return the configuration of Kafka's client from the options of Spark's source."""
    options = {**source.options, **kafka_options(source)}
    return {name[len(_CLIENT) :]: value for name, value in options.items() if name.lower().startswith(_CLIENT)}
