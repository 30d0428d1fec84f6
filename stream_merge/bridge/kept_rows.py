"""Keeps the rows of a frame for a block, as the merge's own: nothing else in the application drops or replaces them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from stream_merge.bridge.jvm import java_class, option, scala_object, seq
from stream_merge.bridge.kept_plans import KeptPlans
from stream_merge.bridge.sessions import caching_session, moved

_FLOATS = "floats"

_plans = KeptPlans(max_columns=2000)


@contextmanager
def persisted(
    frame: DataFrame, *, at_once: bool = False, in_one_task: bool = False, number: str | None = None
) -> Iterator[DataFrame]:
    """Keep a frame's rows for the block, and yield a frame of them whose plan ends there.

    It is not `DataFrame.persist`, whose rows belong to all of the application: `clearCache` in another query,
    `unpersist` of an equal frame, or a write to a table that the frame reads would drop them inside the block.

    Args:
        frame: The frame.
        at_once: Whether it has few rows, so that it should be planned without adaptive execution; see
            `planned_at_once`.
        in_one_task: The same, and one task should do what comes after a shuffle.
        number: A column to add that numbers the rows; None for none.
    """
    spark = frame.sparkSession
    columns = [*frame.columns, *([number] if number is not None else [])]
    # Spark keeps bounds of each column's values, by which it skips rows that a condition cannot match; but a FLOAT's or
    # DOUBLE's bounds leave NaN out. A struct has none.
    floats = [n for n, field in enumerate(frame.schema.fields) if isinstance(field.dataType, (FloatType, DoubleType))]

    def packed(rows: DataFrame) -> DataFrame:
        if number is not None:
            rows = rows.select("*", F.monotonically_increasing_id().alias(number))
        if not floats:
            return rows
        rows = rows.toDF(*map(_place, range(len(columns))))
        others = [_place(n) for n in range(len(columns)) if n not in floats]
        return rows.select(*others, F.struct(*map(_place, floats)).alias(_FLOATS))

    def unpacked(rows: DataFrame) -> DataFrame:
        values = [F.col(_FLOATS)[_place(n)] if n in floats else F.col(_place(n)) for n in range(len(columns))]
        return rows.select(*[value.alias(name) for value, name in zip(values, columns, strict=True)])

    caching = caching_session(spark, at_once=at_once, in_one_task=in_one_task)
    is_as_given = number is None and not floats
    planned = moved(frame, caching) if is_as_given else _plans.apply(f"packed {number}", frame, packed, caching)
    execution: Any = planned._jdf.queryExecution()
    level = java_class(spark._jvm, "org.apache.spark.storage.StorageLevel").MEMORY_AND_DISK_SER()
    relation = scala_object(spark._jvm, "org.apache.spark.sql.execution.columnar.InMemoryRelation")
    kept = relation.apply(level, execution, option(spark._jvm, None))
    try:
        dataset = java_class(spark._jvm, "org.apache.spark.sql.classic.Dataset")
        # Without the order of the rows: after an aggregate, Spark names columns there that the frame does not have.
        unordered = relation.apply(
            kept.output(), kept.cacheBuilder(), seq(spark._jvm, []), kept.statsOfPlanToCache()
        ).withOutput(execution.analyzed().output())
        rows = DataFrame(dataset.ofRows(spark._jsparkSession, unordered), spark)
        yield _plans.apply(f"unpacked {json.dumps(columns)}", rows, unpacked) if floats else rows
    finally:
        kept.cacheBuilder().clearCache(True)


def _place(number: int) -> str:
    return f"c{number}"
