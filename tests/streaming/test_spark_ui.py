"""What Spark's UI and the log show of a micro-batch; the UI reads the same stores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_merge import MergeResult
from stream_merge.metrics import COUNTERS, delta_name
from tests.conftest import CreateTable
from tests.spark.jobs import items, job_descriptions, next_job_id
from tests.streaming.streams import SCHEMA, ChangeFiles, counting_sink, forget_commit, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.core


def merge_nodes(spark: SparkSession, target: str) -> list[dict[str, str]]:
    """Return the metrics, as the UI prints them, of every plan node that is named like the sink."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    found = []
    for execution in items(spark, store.executionsList()):
        values = {
            entry._1(): entry._2() for entry in items(spark, store.executionMetrics(execution.executionId()).toSeq())
        }
        for node in items(spark, store.planGraph(execution.executionId()).allNodes()):
            if "MergeSink" in node.name() and target in node.name():
                metrics = items(spark, node.metrics())
                found.append({metric.name(): values.get(metric.accumulatorId(), "") for metric in metrics})
    return found


def as_number(text: str) -> int:
    """Return the number that the UI prints."""
    return int(text.replace(",", ""))


def test_metrics_on_the_querys_node(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, strategy):
    target = create_table(SCHEMA, [(1, 1), (2, 2)], deletion_vectors=strategy == "merge_on_read")
    results: list[MergeResult] = []
    changes.add([(1, 10), (3, 3)], [(4, 4), (5, 5), (6, 6)])
    run(changes.stream(spark), counting_sink(target, on_result=results.append), checkpoint)

    nodes = merge_nodes(spark, target)
    assert len(nodes) == 2
    by_batch = sorted(nodes, key=lambda node: as_number(node["numSourceRows"]))
    assert [result.num_source_rows for result in results] == [2, 3]
    counters = [name for name in COUNTERS if name.startswith("num_") and "bytes" not in name]
    for result, node in zip(results, by_batch, strict=True):
        shown = {name: as_number(node[delta_name(name)] or "0") for name in counters}
        assert shown == {name: getattr(result, name) for name in counters}
        assert shown["num_added_files"] > 0


def test_jobs_say_what_they_are_for(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, strategy):
    target = create_table(SCHEMA, [(1, 1), (2, 2)], deletion_vectors=strategy == "merge_on_read")
    changes.add([(1, 10), (3, 3)])
    first = next_job_id(spark)
    run(changes.stream(spark), counting_sink(target), checkpoint)

    described = [text for text in job_descriptions(spark, first) if f"{target}: batch 0" in text]
    assert len(described) > 1, job_descriptions(spark, first)
    phases = {text.split("batch 0: ", 1)[1] for text in described}
    assert any("source" in phase for phase in phases)
    assert len(phases) > 1
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_one_line_for_each_batch(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, caplog):
    target = create_table(SCHEMA, [(1, 1)])
    results: list[MergeResult] = []
    sink = counting_sink(target, on_result=results.append)
    changes.add([(1, 10), (3, 3)], [(4, 4)])
    with caplog.at_level(logging.INFO, logger="stream_merge"):
        run(changes.stream(spark), sink, checkpoint)
        forget_commit(checkpoint, 1)
        run(changes.stream(spark), sink, checkpoint)

    lines = [record.getMessage() for record in caplog.records if record.name.startswith("stream_merge")]
    assert [record.levelname for record in caplog.records if record.name.startswith("stream_merge")] == ["INFO"] * 3
    assert len(lines) == len(results) == 3
    for line, result in zip(lines[:2], results, strict=False):
        for part in (target, f"batch {result.batch_id}", str(result.query_id), f"version {result.version}"):
            assert part in line
        assert str(result.strategy) in line
        assert result.reason in line
    assert "batch 1" in lines[2]
    assert "skipped" in lines[2]
