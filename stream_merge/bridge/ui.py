"""Sets Spark's operation metrics, for the commit and for a node above the query's plan in the UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import java_class, scala_map, seq
from stream_merge.bridge.sessions import RunningQuery


class OperationMetrics:
    """SQLMetrics that live as long as the sink; making them for each batch would cost a hundred calls."""

    def __init__(self, spark: SparkSession, names: Sequence[str]) -> None:
        """Make a metric for each name; names that end with `Ms` are times in milliseconds."""
        self._spark = spark
        self._text = ("", "")
        self._values = dict.fromkeys(names, 0)
        metrics = self._class("metric.SQLMetrics")
        context = spark.sparkContext._jsc.sc()
        self._handles: dict[str, Any] = {
            name: metrics.createTimingMetric(context, name, 0)
            if name.endswith("Ms")
            else metrics.createMetric(context, name)
            for name in names
        }
        self.by_name: Any = scala_map(spark._jvm, self._handles)
        self._infos = [
            self._class("metric.SQLMetricInfo")(name, handle.id(), handle.metricType())
            for name, handle in self._handles.items()
        ]

    def _class(self, name: str) -> Any:
        return java_class(self._spark._jvm, f"org.apache.spark.sql.execution.{name}")

    def set(self, values: Mapping[str, int]) -> None:
        """Set the metrics; those not named become 0."""
        for name, handle in self._handles.items():
            value = values.get(name, 0)
            if value != self._values[name]:
                handle.set(value)
                self._values[name] = value

    def show(self, query: RunningQuery, node: str) -> None:
        """Put a node with the metrics on top of the running batch's plan in the UI.

        Spark shows metrics only on plan nodes, and `foreachBatch` has no node for what the function does. The event
        with which adaptive execution replaces the shown plan can add one.
        """
        jvm: Any = self._spark._jvm
        context = self._spark.sparkContext._jsc.sc()
        execution_id = context.getLocalProperty("spark.sql.execution.id")
        if execution_id is None:
            return
        plan = query.execution.lastExecution().executedPlan()
        child = self._class("SparkPlanInfo").fromSparkPlan(plan)
        root = self._class("SparkPlanInfo")(node, node, seq(jvm, [child]), scala_map(jvm, {}), seq(jvm, self._infos))
        update = self._class("ui.SparkListenerSQLAdaptiveExecutionUpdate")
        number = java_class(jvm, "java.lang.Long").parseLong(execution_id)
        context.listenerBus().post(update(number, f"{node}\n{self._text_of(plan, query.run_id)}", root))
        self._class("metric.SQLMetrics").postDriverMetricUpdates(
            context, execution_id, seq(jvm, self._handles.values())
        )

    def _text_of(self, plan: Any, run_id: str) -> str:
        """Return the plan of the run's first batch as text; formatting each batch's plan would take too long."""
        if self._text[0] != run_id:
            self._text = (run_id, f"(as planned for the first batch of the run)\n{plan}")
        return self._text[1]
