"""Reads a few rows of each source of a pipeline, once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from stream_merge.cli.checks.source_checks import NUM_ROWS, find_topics
from stream_merge.cli.file.pipeline import KafkaSource, Pipeline
from stream_merge.cli.query.registry import record_decoder
from stream_merge.cli.query.sources import read_some
from stream_merge.cli.query.tables import is_single, route_by, route_column

_MAX_SOURCES = 1000


@dataclass(slots=True)
class Samples:
    """Samples of up to 100 rows of each source that a pipeline has now.

    Attributes:
        spark: The session.
        pipeline: The pipeline.
    """

    spark: SparkSession
    pipeline: Pipeline
    _decode: Callable[[DataFrame], DataFrame] | None = field(default=None, init=False, repr=False)
    _whole: DataFrame | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._decode = record_decoder(self.pipeline)

    def names(self) -> list[str]:
        """Return the names of the sources as far as they are known: topics, or the names in the first rows."""
        pipeline = self.pipeline
        if is_single(pipeline):
            # A running pipeline with one table gives its source this name.
            return [pipeline.source.format]
        if self._has_topics():
            source = pipeline.source
            assert isinstance(source, KafkaSource)
            return list(source.topics) or find_topics(self.spark, source) or []
        rows = (
            self._all()
            .select(route_column(pipeline, self._all()).alias("name"))
            .distinct()
            .where("name IS NOT NULL")
            .orderBy("name")
            .limit(_MAX_SOURCES)
        )
        return [row["name"] for row in rows.collect()]

    def rows_of(self, name: str) -> DataFrame:
        """Return rows of one source, as the stream would have them."""
        if is_single(self.pipeline):
            return self._all()
        source = self.pipeline.source
        if self._has_topics() and isinstance(source, KafkaSource):
            topic = source.model_copy(update={"topics": [name], "topic_pattern": None})
            return self._kept(read_some(self.spark, topic, NUM_ROWS))
        return self._all().where(route_column(self.pipeline, self._all()) == name)

    def _has_topics(self) -> bool:
        return (
            isinstance(self.pipeline.source, KafkaSource)
            and re.fullmatch("topic", route_by(self.pipeline), re.IGNORECASE) is not None
        )

    def _all(self) -> DataFrame:
        if self._whole is None:
            self._whole = self._kept(read_some(self.spark, self.pipeline.source, NUM_ROWS))
        return self._whole

    def _kept(self, frame: DataFrame) -> DataFrame:
        """Return the rows detached from their source, which every check would otherwise read again, and in JSON."""
        kept = self.spark.createDataFrame(frame.collect(), frame.schema)
        return kept if self._decode is None else self._decode(kept)
