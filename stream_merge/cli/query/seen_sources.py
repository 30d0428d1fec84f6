"""Remembers the sources that a pipeline has had rows of: only their names fill the placeholders of targets.

A file in the checkpoint's folder keeps them. Kafka's topics are known from another one, of all topics that were read.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stream_merge.cli.file.pipeline import Pipeline
from stream_merge.cli.query.topics import is_routed_by_topic, read_json, seen_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: logging.Logger = logging.getLogger("stream_merge.cli")

FILE = "seen-sources.json"
"""The file in the checkpoint's folder."""


@dataclass(slots=True)
class SeenSources:
    """The sources of one run.

    Attributes:
        checkpoint: The folder of the checkpoint.
    """

    checkpoint: str
    _names: set[str] = field(default_factory=set)
    _written: frozenset[str] = frozenset()
    _lock: Any = field(default_factory=threading.Lock)

    def add(self, source: str) -> None:
        """Take in a source; the tables of a micro-batch do so from several threads."""
        with self._lock:
            self._names.add(source)

    def write(self, spark: SparkSession) -> None:
        """Write down the sources that are new. If that fails, they are no worse than unknown."""
        from stream_merge.bridge.small_files import write_text

        with self._lock:
            if self._names == self._written:
                return
            self._names.update(_recorded(spark, self.checkpoint))
            names = frozenset(self._names)
        try:
            write_text(spark, _path(self.checkpoint), json.dumps({"sources": sorted(names)}) + "\n")
        except Exception as error:
            logger.debug("the names of sources cannot be kept in %s", self.checkpoint, exc_info=error)
        self._written = names


def seen_sources(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """Return the sources that a pipeline has had rows of, as far as the checkpoint's folder says."""
    checkpoint = pipeline.pipeline.checkpoint
    topics = seen_topics(spark, checkpoint) if is_routed_by_topic(pipeline) else ()
    return sorted({*_recorded(spark, checkpoint), *topics})


def _path(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/{FILE}"


def _recorded(spark: SparkSession, checkpoint: str) -> list[str]:
    return list((read_json(spark, _path(checkpoint)) or {}).get("sources") or [])
