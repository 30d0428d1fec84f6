"""Many batches and some failures in one process leave nothing behind."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import MergeResult, merge_sink
from tests.conftest import SET_BY_DELTA, CreateTable
from tests.spark.delta_log import latest_version
from tests.spark.tables import kept_frames
from tests.streaming.streams import (
    SCHEMA,
    ChangeFiles,
    count,
    counting_sink,
    recorded_ids,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP = 10
NUM_BATCHES = 3 * WARM_UP
"""A batch takes a second; what each leaves behind shows after a dozen."""
NUM_BATCHES_LONG = int(os.environ.get("STREAM_MERGE_TEST_SOAK_BATCHES", "500"))
"""In the long tier."""
POOLED = (
    "Executor task ",  # grows to the number of cores and shrinks when idle
    "kill-executor-thread",  # Spark's own, once a heartbeat was late on a busy machine
    "ResultQueryStageExecution",  # a thread for each job of the last minute
    "QueryStageCreator",
    "ForkJoinPool",
    "Thread",  # py4j: one for each Python thread that ever called, reused
    "Cleaner",
    "process reaper",
    "delta-",
    "block-manager-",
    "broadcast-exchange",
    "subquery",
    "shuffle-",
    "map-output-",
    "files-client-",
    "rpc-",
    "dispatcher-",
    "state-store-",
    "refresh progress",
)
"""Thread pools of the JVM, Spark and Delta, whose size is their own affair."""

MAX_EXIT_S = 30.0
"""How long a thread that has done its work may take to end: that of a query lives on after `awaitTermination`."""


@dataclass(frozen=True)
class Footprint:
    """What a merge might leave behind."""

    persisted: list[str]
    is_cache_empty: bool
    views: list[str]
    conf: dict[str, str]
    local_properties: dict[str, str | None]
    python_threads: Counter[str]
    java_threads: Counter[str]


def names_without_numbers(names: Iterator[str]) -> Counter[str]:
    """Count threads by their names up to the first number."""
    return Counter(name.translate(str.maketrans("", "", "0123456789")).rstrip("-") for name in names)


def is_of_py4j(thread: threading.Thread) -> bool:
    """Tell whether the thread serves the calls of a query's JVM thread; it ends when that thread is collected."""
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(owner).__module__.startswith("py4j")


def footprint(spark: SparkSession) -> Footprint:
    """Return what is there now."""
    context = spark.sparkContext
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    return Footprint(
        persisted=kept_frames(spark),
        is_cache_empty=bool(spark._jsparkSession.sharedState().cacheManager().isEmpty()),
        views=sorted(view.viewName for view in spark.sql("SHOW VIEWS").collect() if view.isTemporary),
        conf={name: value for name, value in spark.conf.getAll.items() if name != SET_BY_DELTA},
        local_properties={
            name: context.getLocalProperty(name) for name in ("spark.job.description", "spark.sql.execution.id")
        },
        python_threads=names_without_numbers(thread.name for thread in threading.enumerate() if not is_of_py4j(thread)),
        java_threads=names_without_numbers(
            str(thread.getName()) for thread in threads if not str(thread.getName()).startswith(POOLED)
        ),
    )


def new_threads(now: Footprint, before: Footprint) -> tuple[Counter[str], Counter[str]]:
    """Return the threads of Python and of Java that have come; others may have ended."""
    return now.python_threads - before.python_threads, now.java_threads - before.java_threads


def assert_nothing_left(spark: SparkSession, before: Footprint, *, max_exit_s: float = MAX_EXIT_S) -> None:
    """Compare with what was there before, as soon as the threads that are about to end have ended."""
    deadline = time.monotonic() + max_exit_s
    now = footprint(spark)
    while any(new_threads(now, before)) and time.monotonic() < deadline:
        time.sleep(0.1)
        now = footprint(spark)
    assert now.persisted == []
    assert now.is_cache_empty
    assert (now.views, now.conf, now.local_properties) == (before.views, before.conf, before.local_properties)
    assert new_threads(now, before) == (Counter(), Counter())


def test_a_thread_may_take_its_time_to_end_but_not_stay(spark: SparkSession):
    before = footprint(spark)
    stay = threading.Event()
    thread = threading.Thread(target=stay.wait, name="straggler")
    thread.start()
    try:
        with pytest.raises(AssertionError, match="straggler"):
            assert_nothing_left(spark, before, max_exit_s=0.3)
        threading.Timer(0.5, stay.set).start()
        assert_nothing_left(spark, before)
    finally:
        stay.set()
        thread.join()


def batches(number: int) -> list[list[tuple[int, int]]]:
    """Return batches of one row that mostly matches and one that never does."""
    return [[(batch_id % 7, 1), (1000 + batch_id, batch_id)] for batch_id in range(number)]


@pytest.mark.slow
def test_many_batches_leave_nothing_behind(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, request
):
    num_batches = NUM_BATCHES_LONG if request.config.getoption("--long") else NUM_BATCHES
    target = create_table(SCHEMA, deletion_vectors=True)
    results: list[MergeResult] = []
    sink = counting_sink(target, on_result=results.append)
    all_batches = batches(num_batches)
    changes.add(*all_batches[:WARM_UP])
    run(changes.stream(spark), sink, checkpoint)
    before = footprint(spark)

    changes.add(*all_batches[WARM_UP:])
    query = run(changes.stream(spark), sink, checkpoint)

    assert_nothing_left(spark, before)
    assert rows(spark, target) == count(*all_batches)
    assert recorded_ids(target) == list(range(num_batches))
    assert [result.version for result in results] == list(range(1, num_batches + 1))
    merge_ms = [result.execution_time_ms for result in results]
    batch_ms = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    print(
        f"\nmedian ms of a merge: batches {WARM_UP} to {2 * WARM_UP} "
        f"{statistics.median(merge_ms[WARM_UP : 2 * WARM_UP])}, last {WARM_UP} "
        f"{statistics.median(merge_ms[-WARM_UP:])}; of the whole last {WARM_UP} batches: "
        f"{statistics.median(batch_ms[-WARM_UP:])}"
    )


FAILURES: dict[str, tuple[list[tuple[int | None, int]], dict[str, Any]]] = {
    "ConstraintViolationError": ([(1, -100), (9, 9)], {}),
    "AmbiguousMatchError": ([(1, 1), (1, 2)], {}),
    "CommitConflictError": ([(1, 1)], {"max_commit_retries": 1}),
    "UnresolvedColumnError": ([(1, 1)], {"source_alias": "other"}),
    "NullKeyError": ([(None, 1)], {}),
}
"""The error, the batch that brings it about, and options of the sink."""
FAILURE_CASES = [
    pytest.param("copy_on_write", "ConstraintViolationError", marks=pytest.mark.core),
    pytest.param("copy_on_write", "AmbiguousMatchError"),
    *(
        pytest.param("merge_on_read", error, marks=[pytest.mark.core] if error == "AmbiguousMatchError" else [])
        for error in FAILURES
    ),
]


@pytest.mark.parametrize(("strategy", "error"), FAILURE_CASES)
def test_a_failed_batch_leaves_nothing_behind(
    spark: SparkSession,
    create_table: CreateTable,
    changes: ChangeFiles,
    checkpoint: Path,
    at_step,
    strategy: str,
    deletion_vectors: bool,
    error: str,
):
    target = create_table(
        SCHEMA, [(1, 1), (2, 2)], deletion_vectors=deletion_vectors, constraints={"positive": "n > 0"}
    )
    batch, options = FAILURES[error]
    sink = merge_sink(target, keys="id") if error == "NullKeyError" else counting_sink(target, **options)
    changes.add([(2, 20)])
    run(changes.stream(spark), merge_sink(target, keys="id", strategy=strategy), checkpoint)
    before, version = footprint(spark), latest_version(target)
    if error == "CommitConflictError":
        at_step("before_commit", lambda: spark.sql(f"INSERT INTO delta.`{target}` VALUES (7, 7)"), times=100)

    changes.add(batch)
    assert error in run_to_failure(changes.stream(spark), sink, checkpoint)

    assert_nothing_left(spark, before)
    others = [(7, 7)] * 2 if error == "CommitConflictError" else []
    assert rows(spark, target) == [(1, 1), (2, 20), *others]
    assert latest_version(target) == version + len(others)
    assert recorded_ids(target) == [0]
