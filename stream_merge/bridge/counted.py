"""Evaluates a frame once, and counts some of its rows in the same job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.jvm import optional, scala_object
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.materialized import kept_relation, materialized_while, num_materialized
from stream_merge.bridge.sessions import plan, planned_at_once

T = TypeVar("T")

_OBSERVATION = "stream_merge"


@contextmanager
def materialized_and_counted(
    frame: DataFrame, counts: Sequence[Column], alias: str, call: Callable[[DataFrame], T]
) -> Iterator[tuple[DataFrame, Mapping[str, Any], T]]:
    """Evaluate a frame as `materialized_while` does, and yield the rows, what was counted, and what `call` returned.

    Args:
        frame: The frame.
        counts: Aggregates that give numbers or arrays of texts.
        alias: The name by which they may refer to the frame.
        call: See `materialized_while`.

    Returns:
        Among what was counted is `rows`, the number of all rows.

    Raises:
        SourceLostError: As `materialized` does.
    """
    counts = [*counts, F.count(F.lit(1)).alias("rows")]

    def counted(rows: DataFrame) -> DataFrame:
        return plan(planned_at_once(rows.alias(alias).agg(*counts)))

    # Analysed for each batch: an expression of the user may have another value at another time.
    try:
        observed, is_observed = frame.alias(alias).observe(_OBSERVATION, *counts), True
    except AnalysisException:  # what is not deterministic is not observed
        observed, is_observed = frame, False

    def calling(rows: DataFrame) -> tuple[DataFrame | None, T]:
        return None if is_observed else counted(rows), call(rows)

    with materialized_while(partial(persisted, observed), calling) as (rows, (planned, result)):
        found = _observation(rows) if is_observed else None
        # A change that was not counted would be merged as another one: each row that is kept must have been observed.
        if found is None or found["rows"] != num_materialized(rows):
            found = (counted(rows) if planned is None else planned).collect()[0].asDict()
        yield rows, found, result


def _observation(rows: DataFrame) -> dict[str, Any] | None:
    """Return what was observed while rows were evaluated; None if nothing was."""
    executed = kept_relation(rows).cacheBuilder().cachedPlan()
    metrics = scala_object(rows.sparkSession._jvm, "org.apache.spark.sql.execution.CollectMetricsExec").collect(
        executed
    )
    found = optional(metrics.get(_OBSERVATION))
    return None if found is None else dict(json.loads(str(found.json())))
