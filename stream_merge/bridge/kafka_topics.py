"""Asks Kafka for its topics, their ids, and the offsets of their partitions, with the admin client in the JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS, java_class, java_list, throwables

logger: logging.Logger = logging.getLogger("stream_merge.kafka")

_SECONDS = 10
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The answer of brokers before 2.8."""


class TopicIds:
    """Reads topic ids from a Kafka; holds a thread and a connection in the JVM until it is closed.

    Args:
        spark: The session, whose Kafka connector brings the client.
        options: The client's configuration.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        self._options = options
        self._admin: Any = None
        self._is_given_up = False

    def read(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of the topics, as far as they can be read.

        Topics that do not exist, or that the login may not describe, have no id. After any other failure it asks no
        more, so that the caller does not wait a second time for an unreachable Kafka.
        """
        if self._is_given_up or not topics:
            return {}
        try:
            if self._admin is None:
                self._admin = _admin_client(self._jvm, self._options)
            answers = self._admin.describeTopics(java_list(self._jvm, topics)).topicNameValues()
            found = {topic: self._id_in(answers.get(topic)) for topic in topics}
        except Exception as error:
            logger.debug("the ids of topics cannot be read", exc_info=error)
            self._is_given_up = True
            return {}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id not in (None, _NO_ID)}

    def close(self) -> None:
        """Close the connection and end the thread."""
        admin, self._admin, self._is_given_up = self._admin, None, True
        if admin is not None:
            _close(self._jvm, admin)

    def _id_in(self, answer: Any) -> str | None:
        seconds = java_class(self._jvm, "java.util.concurrent.TimeUnit").SECONDS
        try:
            return str(answer.get(_SECONDS, seconds).topicId().toString())
        except JVM_ERRORS as error:
            names = [str(each.getClass().getSimpleName()) for each in throwables(error)]
            if "TimeoutException" in names:
                raise
            logger.debug("a topic has no id: %s", ", ".join(names))
            return None


class Topics:
    """The topics of a Kafka, for `open_topics`."""

    def __init__(self, jvm: Any, admin: Any) -> None:
        self._jvm = jvm
        self._admin = admin

    def names(self) -> list[str]:
        """Return the names of all topics that the login may see, without Kafka's own.

        Raises:
            Py4JJavaError: Kafka does not answer.
        """
        return sorted(map(str, self._wait(self._admin.listTopics().names())))

    def offsets(self, topics: Collection[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the one after the last of each partition, by topic and partition.

        Raises:
            Py4JJavaError: Kafka does not answer, a topic is gone, or the login may not read it.
        """
        described = self._wait(self._admin.describeTopics(java_list(self._jvm, topics)).allTopicNames())
        partition_class = java_class(self._jvm, "org.apache.kafka.common.TopicPartition")
        partitions = [
            partition_class(topic, int(info.partition()))
            for topic in topics
            for info in described.get(topic).partitions()
        ]
        spec = java_class(self._jvm, "org.apache.kafka.clients.admin.OffsetSpec")
        first, end = self._listed(partitions, spec.earliest), self._listed(partitions, spec.latest)
        return {
            (str(each.topic()), int(each.partition())): (first[place], end[place])
            for place, each in enumerate(partitions)
        }

    def _listed(self, partitions: list[Any], spec: Callable[[], Any]) -> list[int]:
        wanted = java_class(self._jvm, "java.util.HashMap")()
        for each in partitions:
            wanted.put(each, spec())
        found = self._wait(self._admin.listOffsets(wanted).all())
        return [int(found.get(each).offset()) for each in partitions]

    def _wait(self, future: Any) -> Any:
        return future.get(_SECONDS, java_class(self._jvm, "java.util.concurrent.TimeUnit").SECONDS)


@contextmanager
def open_topics(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Topics]:
    """Yield the topics of a Kafka for the block.

    Args:
        spark: The session, whose Kafka connector brings the client.
        options: The client's configuration.
    """
    jvm: Any = spark._jvm
    admin = _admin_client(jvm, options)
    try:
        yield Topics(jvm, admin)
    finally:
        _close(jvm, admin)


def _admin_client(jvm: Any, options: Mapping[str, str]) -> Any:
    properties = java_class(jvm, "java.util.Properties")()
    for name, value in options.items():
        properties.setProperty(name, value)
    return java_class(jvm, "org.apache.kafka.clients.admin.AdminClient").create(properties)


def _close(jvm: Any, admin: Any) -> None:
    try:
        admin.close(java_class(jvm, "java.time.Duration").ZERO)
    except Exception as error:
        logger.debug("the admin client did not close", exc_info=error)
