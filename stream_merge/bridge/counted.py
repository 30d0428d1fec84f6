"""Evaluates a frame once, and counts some of its rows in the same job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.jvm import optional, scala_object
from stream_merge.bridge.kept_plans import KeptPlan, kept_plan
from stream_merge.bridge.materialized import kept_relation, materialized_while, num_materialized
from stream_merge.bridge.sessions import plan, planned_at_once
from stream_merge.bridge.statement import Once

T = TypeVar("T")

_OBSERVATION = "stream_merge"


@contextmanager
def materialized_and_counted(
    frame: DataFrame, counts: Sequence[Column], alias: str, call: Callable[[DataFrame], T], once: Once
) -> Iterator[tuple[DataFrame, Mapping[str, Any], T]]:
    """Evaluate a frame as `materialized_while` does, and yield the rows, what was counted, and what `call` returned.

    Args:
        frame: The frame.
        counts: Aggregates that give numbers or arrays of texts.
        alias: The name by which they may refer to the frame.
        call: See `materialized_while`.
        once: Keeps the plan for frames with the same columns and the same counts.

    Returns:
        Among what was counted is `rows`, the number of all rows.

    Raises:
        SourceLostError: As `materialized` does.
    """
    counts = [*counts, F.count(F.lit(1)).alias("rows")]
    num_calls = 0

    def counted(rows: DataFrame) -> DataFrame:
        return plan(planned_at_once(rows.alias(alias).agg(*counts)))

    def calling(rows: DataFrame) -> tuple[DataFrame | None, T]:
        nonlocal num_calls
        num_calls += 1
        return counted(rows) if observed is None else None, call(rows)

    def observe() -> KeptPlan | None:
        try:
            return kept_plan(frame, lambda rows: rows.alias(alias).observe(_OBSERVATION, *counts))
        except (AnalysisException, ValueError):
            # What is not deterministic is not observed, and a subquery reads something else.
            return None

    kept = once(f"observed {frame._jdf.schema().json()}", observe)
    observed = None if kept is None else kept.on(frame)
    with materialized_while(frame if observed is None else observed, calling) as (rows, (planned, result)):
        # Tasks of an evaluation that was discarded were observed, too.
        found = None if observed is None or num_calls > 1 else _observation(rows)
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
