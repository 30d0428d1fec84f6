"""A frame that is evaluated once: its rows are kept, and are never computed a second time.

Rows that Spark caches are computed again when an executor dies or a task runs twice. A source that is not deterministic then gives
other rows, and any source may give them in another order after a shuffle, so that numbers which name rows name others. What one job
has found about the rows would be wrong for the next. Here the cached blocks are all that is left of the rows (Spark's local
checkpoint): a job that misses one fails, and the merge begins again from its source. Delta's MERGE treats its source alike ("source
materialization").
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.bridge.jvm import items, java_class
from stream_merge.bridge.sessions import persisted
from stream_merge.errors import SourceLostError

logger = logging.getLogger("stream_merge")

_MAX_EVALUATIONS = 3


@contextmanager
def materialized(frame: DataFrame) -> Iterator[DataFrame]:
    """Evaluate a frame, and give its rows for the block.

    Raises:
        SourceLostError: Rows that the block needs are lost with an executor, or each evaluation left some of them twice.
    """
    for _ in range(_MAX_EVALUATIONS):
        with persisted(frame) as rows:
            blocks = _seal(rows)
            if _are_unique(rows, blocks):
                yield rows
                return
        logger.warning("two tasks have computed the same rows of a micro-batch, which is evaluated again")
    raise SourceLostError(f"{_MAX_EVALUATIONS} evaluations of the micro-batch left more than one version of some rows")


def _seal(rows: DataFrame) -> Any:
    """Compute all rows, and cut what led to them off. Return the handle of the RDD of cached blocks.

    It takes a job of its own: whatever was computed twice until its end has not been seen by anybody.
    """
    plan: Any = rows._jdf.queryExecution().analyzed()
    blocks = plan.cacheBuilder().cachedColumnBuffers()
    blocks.localCheckpoint()
    blocks.count()
    return blocks


def _are_unique(rows: DataFrame, blocks: Any) -> bool:
    """Return whether there is one copy of each block.

    Two tasks that ran for one partition, by speculation or after a failed fetch, each leave one on their executor, and a reader
    takes the nearer one.
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
