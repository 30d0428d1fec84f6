"""Measures the time of the newest change in each micro-batch, without a job of its own.

Spark evaluates named metrics (`DataFrame.observe`) while it reads the stream, and reports them in the query's progress:
it costs an aggregate over passing rows, and no job. Each table whose source has a known name has its own metric. Tables
found by a pattern share the newest change of the whole micro-batch, since their names are not known in advance.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.cli.file.pipeline import PATTERN_PREFIX, KafkaSource, Pipeline
from stream_merge.cli.query.change_feed import is_feed
from stream_merge.cli.query.tables import is_single, route_column

NEWEST_METRIC = "stream_merge_newest"
"""Name of the observed metrics: the newest time among a micro-batch's rows, in milliseconds since the epoch."""
ALL_ROWS = "all"
"""The metric of all rows; a table's own is its target with the prefix `TABLE_PREFIX`."""
TABLE_PREFIX = "table:"


def observe_newest(stream: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return the stream with metrics of the newest change, by time of the record, or of the feed's commit.

    A folder of files has no such time; its stream is returned unchanged.
    """
    time = _time_column(pipeline)
    if time is None:
        return stream
    millis = F.unix_millis(F.col(time))
    metrics = [F.max(millis).alias(ALL_ROWS)]
    if not is_single(pipeline):
        name = route_column(pipeline, stream)
        metrics += [
            F.max(F.when(name.isin(*sources), millis)).alias(f"{TABLE_PREFIX}{target}")
            for target, sources in _sources_by_target(pipeline).items()
        ]
    return stream.observe(NEWEST_METRIC, *metrics)


def _time_column(pipeline: Pipeline) -> str | None:
    if isinstance(pipeline.source, KafkaSource):
        return "timestamp"
    if is_feed(pipeline.source):
        return "_commit_timestamp"
    return None


def _sources_by_target(pipeline: Pipeline) -> dict[str, list[str]]:
    sources: dict[str, list[str]] = {}
    has_pattern: set[str] = set()
    for table in pipeline.tables:
        if table.source is None or table.source.startswith(PATTERN_PREFIX):
            has_pattern.add(table.target)
        else:
            sources.setdefault(table.target, []).append(table.source)
    return {target: names for target, names in sources.items() if target not in has_pattern}
