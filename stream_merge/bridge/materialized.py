"""Evaluates a frame once and keeps its rows; a lost row is an error and never computed again.

Spark recomputes cached rows when an executor dies or a task runs twice. A source that is not deterministic then returns
other rows, and after a shuffle any source may return them in another order, so that row numbers refer to other rows.
What one job has found about the rows would be wrong for the next. Here only the cached blocks remain of the rows
(Spark's local checkpoint): a job that misses one fails, and the merge begins again from its source. Delta's MERGE
treats its source in the same way ("source materialization").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from stream_merge.bridge.jvm import items, java_class, optional
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.errors import SourceLostError

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("stream_merge")

_MAX_EVALUATIONS = 3


@contextmanager
def materialized(frame: DataFrame) -> Iterator[DataFrame]:
    """Evaluate a frame, and yield a frame of its kept rows for the block.

    Raises:
        SourceLostError: Rows that the block needs are lost with an executor, or each evaluation left two versions of
            some rows.
    """
    with _evaluated(partial(persisted, frame), lambda rows: (_seal(rows), None)) as (rows, _):
        yield rows


@contextmanager
def materialized_while(
    persist: Callable[[], AbstractContextManager[DataFrame]],
    call: Callable[[DataFrame], T],
    planned: DataFrame | None = None,
) -> Iterator[tuple[DataFrame, T]]:
    """Evaluate a frame as `materialized` does, and call a function beside it; yield the rows and what it returned.

    Args:
        persist: `persisted` of the frame.
        call: Gets the frame of the rows, and may plan what is to be done with them; it must not run a job on them.
        planned: What `persist` gave before, of which nothing is evaluated yet; None to plan it now.

    Raises:
        SourceLostError: As `materialized` does.
    """

    def evaluate(rows: DataFrame) -> tuple[Any, T]:
        spark = rows.sparkSession
        description = spark.sparkContext.getLocalProperty("spark.job.description") or ""
        with BackgroundTask(spark, description, partial(_seal, rows)) as sealing:
            result = call(rows)
        return sealing.result(), result

    with _evaluated(persist, evaluate, planned) as evaluated:
        yield evaluated


@contextmanager
def _evaluated(
    persist: Callable[[], AbstractContextManager[DataFrame]],
    evaluate: Callable[[DataFrame], tuple[Any, T]],
    planned: DataFrame | None = None,
) -> Iterator[tuple[DataFrame, T]]:
    """Yield the rows and the second of what `evaluate` returns; the first is what `_seal` returns."""
    for _ in range(_MAX_EVALUATIONS):
        with persist() if planned is None else nullcontext(planned) as rows:
            blocks, result = evaluate(rows)
            if _are_unique(rows, blocks):
                yield rows, result
                return
        planned = None
        logger.warning("two tasks have computed the same rows of a micro-batch; it is evaluated again")
    raise SourceLostError(
        f"{_MAX_EVALUATIONS} evaluations of the micro-batch left more than one version of some rows. "
        "Nothing was committed. Restart the query; if this happens often, turn speculation off for it."
    )


def num_materialized(rows: DataFrame) -> int | None:
    """Return about how many rows were kept, more than there are if some were computed twice; None if not known."""
    count = optional(kept_relation(rows).computeStats().rowCount())
    return None if count is None else int(str(count))


def _seal(rows: DataFrame) -> Any:
    """Compute all rows and cut off their lineage. Return the handle of the RDD of cached blocks.

    It takes a job of its own: nobody has yet seen rows that were computed twice before it ends.
    """
    blocks = kept_relation(rows).cacheBuilder().cachedColumnBuffers()
    blocks.localCheckpoint()
    blocks.count()
    return blocks


def kept_relation(rows: DataFrame) -> Any:
    """Return the relation of kept rows, the only one in the plan but for empty ones before it (`with_ids_of`)."""
    return rows._jdf.queryExecution().analyzed().collectLeaves().last()


def _are_unique(rows: DataFrame, blocks: Any) -> bool:
    """Return whether there is one copy of each block.

    Two tasks that ran for one partition, by speculation or after a failed fetch, each leave a copy on their executor,
    and a reader takes the nearer one.
    """
    num_blocks = 0 if blocks.sparkContext().isLocal() else int(blocks.getNumPartitions())
    if not num_blocks:
        return True
    gateway: Any = rows.sparkSession.sparkContext._gateway
    jvm: Any = rows.sparkSession._jvm
    ids = gateway.new_array(java_class(jvm, "org.apache.spark.storage.BlockId"), num_blocks)
    block_id = java_class(jvm, "org.apache.spark.storage.RDDBlockId")
    for number in range(num_blocks):
        ids[number] = block_id(blocks.id(), number)
    master = java_class(jvm, "org.apache.spark.SparkEnv").get().blockManager().master()
    return all(int(locations.size()) <= 1 for locations in items(master.getLocations(ids)))
