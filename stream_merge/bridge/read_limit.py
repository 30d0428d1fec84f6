"""Sets how many records the next micro-batches of a running query may read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stream_merge.bridge.jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger: logging.Logger = logging.getLogger("stream_merge")


def limit_rows(spark: SparkSession, query: StreamingQuery, max_rows: int) -> bool:
    """Limit the rows that each source of a running query reads for a micro-batch, from the next one that is planned.

    The option of a source, such as `maxOffsetsPerTrigger`, is read when the query starts. Spark keeps what it said in a
    variable of the query, and reads that for each micro-batch.

    Args:
        spark: The session.
        query: The query, all of whose sources were started with a limit of rows.
        max_rows: The limit.

    Returns:
        Whether it was set; the variable is not part of Spark's API.
    """
    jvm: Any = spark._jvm
    try:
        execution = query._jsq.streamingQuery()
        limit = java_class(jvm, "org.apache.spark.sql.connector.read.streaming.ReadLimit").maxRows(max_rows)
        limits = execution.uniqueSources()
        sources = limits.keys().toIndexedSeq()
        for place in range(int(sources.size())):
            limits = limits.updated(sources.apply(place), limit)
        getattr(execution, "uniqueSources_$eq")(limits)
    except Exception as error:
        logger.debug("the limit of a micro-batch cannot be changed", exc_info=error)
        return False
    return True
