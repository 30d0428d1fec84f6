"""Finds tables that are not there although the checkpoint has read their records before.

Spark goes on behind those records, so a table that was removed, or whose `target` was changed, would begin in the
middle, and nothing would tell that what came before is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import table_exists
from stream_merge.cli.query.tables import find_table, is_single
from stream_merge.errors import StreamMergeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.cli.file.pipeline import Pipeline
    from stream_merge.cli.query.topics import ReadTopics

logger: logging.Logger = logging.getLogger("stream_merge.cli")

_MAX_NAMED = 20


def read_before(pipeline: Pipeline, batch_id: int, topics: ReadTopics | None) -> list[str]:
    """Return the sources whose records earlier micro-batches have read, as far as that is known.

    Args:
        pipeline: The pipeline.
        batch_id: The first micro-batch of this run.
        topics: The topics of the checkpoint; None for a source other than Kafka.
    """
    if topics is not None and pipeline.pipeline.route_by is None:
        return topics.read_before(batch_id)
    return [""] if batch_id > 0 and is_single(pipeline) else []


def removed_tables(spark: SparkSession, pipeline: Pipeline, sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield sources that were read before, and their tables, which are not there and would be created.

    Tables at rest may never have been there: what is parked is still to be merged.
    """
    at_rest: set[str] | None = None
    looked_at: set[str] = set()
    for source in sources:
        found = find_table(pipeline, source)
        if found is None or not found.settings.create_if_missing or found.target in looked_at:
            continue
        looked_at.add(found.target)
        if _is_there(spark, found.target):
            continue
        if at_rest is None:
            at_rest = _targets_at_rest(spark, pipeline)
        if found.target not in at_rest:
            yield source, found.target


def warn_of_removed_tables(spark: SparkSession, pipeline: Pipeline, sources: Iterable[str]) -> None:
    """Warn of tables that begin in the middle, in one line each."""
    for number, (source, target) in enumerate(removed_tables(spark, pipeline, sources)):
        if number == _MAX_NAMED:
            logger.warning("and further tables that are not there")
            return
        logger.warning(
            "%s is not there, but this checkpoint has read records%s before: the table was removed, or target was "
            "changed. It will lack what came before. To have that, too, put the table back, or let the source send it "
            "again (a new snapshot), or start with a new checkpoint, which reads everything again",
            target,
            f" of {source}" if source else "",
        )


def _is_there(spark: SparkSession, target: str) -> bool:
    try:
        return table_exists(spark, target)
    except StreamMergeError:
        return True  # What is wrong with it shows when it is merged.
    except JVM_ERRORS:
        return True


def _targets_at_rest(spark: SparkSession, pipeline: Pipeline) -> set[str]:
    from stream_merge.routing.parking_table import ParkingTable

    if pipeline.pipeline.parking is None:
        return set()
    try:
        return {parked.owner.target for parked in ParkingTable(spark, pipeline.pipeline.parking).read()}
    except StreamMergeError:
        return set()
