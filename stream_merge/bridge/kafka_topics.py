"""Reads the ids of Kafka topics, which tell topics of one name apart, with the admin client in the JVM."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS, java_class, throwables

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
                self._admin = self._connect()
            names = java_class(self._jvm, "java.util.ArrayList")()
            for topic in topics:
                names.add(topic)
            answers = self._admin.describeTopics(names).topicNameValues()
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
            try:
                admin.close(java_class(self._jvm, "java.time.Duration").ZERO)
            except Exception as error:
                logger.debug("the admin client did not close", exc_info=error)

    def _connect(self) -> Any:
        properties = java_class(self._jvm, "java.util.Properties")()
        for name, value in self._options.items():
            properties.setProperty(name, value)
        return java_class(self._jvm, "org.apache.kafka.clients.admin.AdminClient").create(properties)

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
