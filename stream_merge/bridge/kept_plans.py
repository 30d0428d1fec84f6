"""Keeps resolved plans from batch to batch, over rows that change.

With each operation on a DataFrame, Spark analyses all of its plan anew: a dozen of them take a quarter of a second,
which for a small micro-batch is a quarter of its time. A plan that is the same for every batch is analysed once, over
no rows; then only its leaf is replaced.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from stream_merge.bridge.jvm import items, java_class, java_list, scala_object, seq
from stream_merge.bridge.sessions import moved, session_id, settings_fingerprint


def frame_plan(frame: DataFrame) -> Any:
    """Return the analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def with_ids_of(jvm: Any, empty: Any, plan: Any) -> Any:
    """Return a plan with the attribute ids of an empty relation of the same schema.

    A union takes its columns from its first child, here the empty relation, which the optimizer then drops. This takes
    one call; a projection would need several for each column.
    """
    return java_class(jvm, "org.apache.spark.sql.catalyst.plans.logical.Union")(seq(jvm, [empty, plan]), False, False)


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan that Spark has resolved over empty leaves."""

    _leaves: Sequence[Any]
    _plan: Any

    def on(
        self, rows: DataFrame, spark: SparkSession | None = None, texts: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return the plan's frame over rows, which must have the schema of those that it was made for.

        Args:
            rows: The rows.
            spark: The session of the frame; None for that of the rows.
            texts: What to put in the place of texts in the plan; see `with_texts`.
        """
        spark = rows.sparkSession if spark is None else spark
        jvm: Any = spark._jvm
        put = java_class(jvm, "java.util.HashMap")()
        for leaf in self._leaves:
            put.put(leaf, with_ids_of(jvm, leaf, frame_plan(rows)))
        # A Scala map is a partial function. From the bottom up, the union that is put in is not looked at again.
        by_leaf = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap(put)
        dataset = java_class(jvm, "org.apache.spark.sql.classic.Dataset")
        plan = with_texts(jvm, self._plan, texts or {}).transformUp(by_leaf)
        return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def with_texts(jvm: Any, plan: Any, texts: Mapping[str, str]) -> Any:
    """Return a plan with other texts in the place of some of its literals, which differ from batch to batch.

    Args:
        jvm: The JVM.
        plan: The plan.
        texts: The new texts by the old ones, which must be texts that nothing else in a plan is.
    """
    if not texts:
        return plan
    literal = scala_object(jvm, "org.apache.spark.sql.catalyst.expressions.Literal")
    put = java_class(jvm, "java.util.HashMap")()
    for old, new in texts.items():
        put.put(literal.apply(old), literal.apply(new))
    return plan.transformAllExpressions(java_class(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap(put))


def kept_plan(rows: DataFrame, build: Callable[[DataFrame], DataFrame]) -> KeptPlan:
    """Return the plan of what `build` makes of rows with such columns.

    Args:
        rows: Rows with the columns.
        build: Gets a frame without rows, and must return one that is computed from it alone.

    Raises:
        ValueError: The frame is also computed from something else.
    """
    spark = rows.sparkSession
    empty = spark._jsparkSession.createDataFrame(java_list(spark._jvm), rows._jdf.schema())
    leaf, plan = empty.queryExecution().analyzed(), frame_plan(build(DataFrame(empty, spark)))
    # Spark gives the columns other ids where the rows are used a second time.
    leaves = list(items(plan.collectLeaves()))
    if not all(other.sameResult(leaf) for other in leaves) or not plan.subqueriesAll().isEmpty():
        raise ValueError("a plan can be kept only if it reads nothing but its rows")
    return KeptPlan(leaves, plan)


_Key: TypeAlias = "tuple[str, int, str, str]"
"""Session, its settings, the rows' schema, and the name."""


@dataclass(slots=True)
class KeptPlans:
    """The plans that were used last.

    Attributes:
        max_columns: How many columns their results may have together. A plan takes memory by what it computes: to
            decode ten columns, 2.3 MB.
    """

    max_columns: int
    _made: OrderedDict[_Key, KeptPlan | None] = field(default_factory=OrderedDict)
    _num_columns: dict[_Key, int] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def apply(
        self,
        name: str,
        rows: DataFrame,
        build: Callable[[DataFrame], DataFrame],
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """Return `build(rows)`, from a plan that is kept if this name was asked for before.

        Args:
            name: Tells one plan from another, over rows of the same session, settings and schema.
            rows: The rows.
            build: See `kept_plan`; its expressions must not depend on when they are analysed.
            spark: The session of the frame; None for that of the rows.
        """
        if rows.isStreaming or not hasattr(rows, "_jdf"):
            # A query keeps its plan, and Spark unites no stream with an empty batch. Spark Connect has no JVM.
            return build(rows)
        made_in = rows.sparkSession
        key = (session_id(made_in), settings_fingerprint(made_in), str(rows._jdf.schema().json()), name)
        with self._lock:
            is_known, plan = key in self._made, self._made.get(key)
        if is_known:
            plan = plan or kept_plan(rows, build)
            made = plan.on(rows, spark)
        else:
            # Whoever asks once needs no plan that can be kept.
            made = build(rows) if spark is None else moved(build(rows), spark)
        with self._lock:
            self._made[key] = plan
            self._made.move_to_end(key)
            if key not in self._num_columns:
                self._num_columns[key] = len(made.columns)
            while sum(self._num_columns.values()) > self.max_columns and len(self._made) > 1:
                oldest, _ = self._made.popitem(last=False)
                del self._num_columns[oldest]
        return made
