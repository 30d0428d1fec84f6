"""Topics that were deleted and made anew under a pipeline: their offsets are those of other records.

Spark notices as long as the new topic is shorter than what it has read of the old one. Beyond that it would go on in the middle of
the new one, and everything before that would be missing. So the ids that Kafka gave the topics are kept in a file of the
checkpoint, written before the first micro-batch of a topic is merged, and compared before each micro-batch. Where Kafka does not
tell them, nothing is compared.
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

logger = logging.getLogger("stream_merge.cli")

FILE = "kafka-topics.json"
"""The file in the checkpoint's folder."""

_CLIENT = "kafka."

ReadIds: TypeAlias = Callable[[Collection[str]], Mapping[str, str]]


class ReadTopics:
    """The topics that the query of a checkpoint has read.

    Args:
        spark: The session.
        checkpoint: The folder of the checkpoint.
        read_ids: Asks Kafka for the ids of topics.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, read_ids: ReadIds) -> None:
        self._spark = spark
        self._folder = checkpoint.rstrip("/")
        self._read_ids = read_ids
        self._known = self._read(FILE) or {}

    def made_anew(self, topics: Collection[str]) -> list[str]:
        """Return those of the topics (of all that are known, where none are named) that Kafka has another one of now."""
        known = self._known.keys() & set(topics) if topics else self._known.keys()
        return self._find_made_anew(self._read_ids(sorted(known)))

    def check_batch(self, batch_id: int) -> None:
        """Refuse to merge a micro-batch of a topic that was made anew, and note the topics that it is the first one of.

        Raises:
            PipelineError: Some were.
        """
        found = self._read_ids(sorted(self._read(f"offsets/{batch_id}") or {}))
        refuse(self._find_made_anew(found))
        if not found.keys() <= self._known.keys():
            self._known |= found
            self._write()

    def _find_made_anew(self, found: Mapping[str, str]) -> list[str]:
        return [topic for topic, topic_id in found.items() if self._known.get(topic, topic_id) != topic_id]

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object that the last line of a file is; None where there is none, or not to be had."""
        from stream_merge.bridge.small_files import read_text

        try:
            text = read_text(self._spark, f"{self._folder}/{name}")
            found = json.loads(text.strip().splitlines()[-1]) if text else None
        except Exception as error:
            logger.debug("%s/%s cannot be read", self._folder, name, exc_info=error)
            return None
        return found if isinstance(found, dict) else None

    def _write(self) -> None:
        from stream_merge.bridge.small_files import write_text

        try:
            write_text(self._spark, f"{self._folder}/{FILE}", json.dumps(self._known, sort_keys=True) + "\n")
        except Exception as error:
            logger.debug("the ids of topics cannot be kept in %s", self._folder, exc_info=error)


def refuse(made_anew: Sequence[str]) -> None:
    """Refuse to go on with topics that were made anew.

    Raises:
        PipelineError: There are some.
    """
    if made_anew:
        raise PipelineError(
            f"The topic {', '.join(made_anew)} was deleted and made anew since this checkpoint read it, so that its offsets "
            "are those of other records: nothing of it is skipped or merged. Take a new checkpoint folder, and let the source "
            "send a new snapshot if records of the old topic were not read."
        )


@contextmanager
def watched_topics(spark: SparkSession, pipeline: Pipeline) -> Iterator[ReadTopics | None]:
    """Give the topics of a pipeline's checkpoint for the block; None for a source that is no Kafka."""
    if not isinstance(pipeline.source, KafkaSource):
        yield None
        return
    from stream_merge.bridge.kafka_topics import TopicIds

    ids = TopicIds(spark, client_options(pipeline.source))
    try:
        yield ReadTopics(spark, pipeline.pipeline.checkpoint, ids.read)
    except StopNow:
        # The process ends at once, and does not wait for the JVM, which may be busy with the call that the signal came into.
        raise
    except BaseException:
        ids.close()
        raise
    ids.close()


def client_options(source: KafkaSource) -> dict[str, str]:
    """Return the configuration of Kafka's client among the options of Spark's source."""
    options = {**source.options, **kafka_options(source)}
    return {name[len(_CLIENT) :]: value for name, value in options.items() if name.lower().startswith(_CLIENT)}
