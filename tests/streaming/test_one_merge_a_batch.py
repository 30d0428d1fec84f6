"""The table records one merge for each micro-batch and application id: a second one is refused, and a forgotten one,
too."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import inheritable_thread_target

from stream_merge import merge_sink
from tests.spark.delta_log import latest_version
from tests.streaming.streams import ChangeFiles, count, counting_sink, forget_commit, rows, run, run_to_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.always,
    pytest.mark.any_strategy,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

BATCHES = [[(1, 1), (2, 2)], [(1, 10)]]


@pytest.fixture
def target(create_table, deletion_vectors) -> str:
    return create_table("id INT, n INT", deletion_vectors=deletion_vectors)


@pytest.mark.core
@pytest.mark.parametrize("is_same", [True, False])
def test_a_second_merge_of_a_batch_into_a_table_is_refused(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str, is_same: bool
):
    changes.add(*BATCHES)
    first = counting_sink(target)
    second = first if is_same else merge_sink(target, keys="id")

    def merge_both(frame, batch_id):
        first(frame, batch_id)
        second(frame, batch_id)

    error = run_to_failure(changes.stream(spark), merge_both, checkpoint)
    assert "batch 0 is merged a second time by the same query" in error
    assert "an app_id of its own" in error
    assert rows(spark, target) == count(BATCHES[0])


@pytest.mark.core
def test_two_sinks_with_ids_of_their_own_both_merge_each_batch_once(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str
):
    changes.add(*BATCHES)
    sinks = [counting_sink(target, app_id=app_id) for app_id in ("one", "two")]

    def merge_both(frame, batch_id):
        for sink in sinks:
            sink(frame, batch_id)

    run(changes.stream(spark), merge_both, checkpoint)
    twice = count(*BATCHES, *BATCHES)
    assert rows(spark, target) == twice
    version = latest_version(target)
    forget_commit(checkpoint, 1)
    run(changes.stream(spark), merge_both, checkpoint)
    assert (rows(spark, target), latest_version(target)) == (twice, version)


def test_a_call_that_failed_may_be_made_again(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str, at_step
):
    changes.add(*BATCHES)
    sink = counting_sink(target)

    def fail() -> None:
        raise OSError("the disk is full")

    def merge_again(frame, batch_id):
        try:
            sink(frame, batch_id)
        except OSError:
            sink(frame, batch_id)

    at_step("writing", fail)
    run(changes.stream(spark), merge_again, checkpoint)
    assert rows(spark, target) == count(*BATCHES)


@pytest.mark.core
def test_a_replay_that_the_table_may_have_forgotten_is_refused(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str
):
    changes.add(*BATCHES)
    run(changes.stream(spark), counting_sink(target), checkpoint)
    forget_commit(checkpoint, 1)
    retention = "'delta.setTransactionRetentionDuration' = 'interval 1 second'"
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ({retention})")
    time.sleep(2)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    error = run_to_failure(changes.stream(spark), counting_sink(target), checkpoint)
    assert "delta.setTransactionRetentionDuration" in error
    assert rows(spark, target) == count(*BATCHES)


@pytest.mark.core
def test_two_calls_at_the_same_time_are_refused(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str
):
    """As one calls them to merge side by side without a router: the second may begin before the first ends."""
    changes.add(*BATCHES)
    sinks = [counting_sink(target), counting_sink(target)]

    def merge_both(frame, batch_id):
        with ThreadPoolExecutor(2) as threads:
            calls = [
                threads.submit(inheritable_thread_target(frame.sparkSession)(lambda s=sink: s(frame, batch_id)))
                for sink in sinks
            ]
        for call in calls:
            call.result()

    error = run_to_failure(changes.stream(spark), merge_both, checkpoint)
    assert "batch 0 is merged a second time by the same query" in error
    assert rows(spark, target) == count(BATCHES[0])
