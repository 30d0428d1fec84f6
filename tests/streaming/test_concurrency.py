"""Several writers at once on one table: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_merge import MergeResult, merge_sink
from stream_merge.bridge import extension
from tests.conftest import CreateTable
from tests.spark.delta_log import latest_version
from tests.streaming.streams import SCHEMA, ChangeFiles, count, counting_sink, recorded_batches, rows, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.always

ATTEMPTS = 100


def until_committed(action: Callable[[], object]) -> None:
    """Do it until it does not conflict with another writer."""
    for _ in range(ATTEMPTS):
        try:
            action()
        except Exception as error:
            if "DELTA_CONCURRENT" not in str(error) and "DELTA_METADATA_CHANGED" not in str(error):
                raise
        else:
            return
    raise AssertionError(f"conflicted {ATTEMPTS} times")


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("copy_on_write", "disjoint"),
        ("merge_on_read", "disjoint"),
        pytest.param("merge_on_read", "overlapping", marks=pytest.mark.core),
    ],
)
def test_two_streams_into_one_table(
    spark: SparkSession, create_table: CreateTable, tmp_path: Path, strategy, deletion_vectors: bool, keys: str
):
    target = create_table(SCHEMA, [(0, 0), (100, 0)], deletion_vectors=deletion_vectors)
    results: list[MergeResult] = []
    second_offset = 100 if keys == "disjoint" else 0
    batches = [
        [[(offset, 10**number), (offset + number, 1), (offset + 50 + number, 1)] for number in range(1, 4)]
        for offset in (0, second_offset)
    ]
    queries = []
    for name, own_batches in zip(("first", "second"), batches, strict=True):
        files = ChangeFiles(tmp_path / name)
        files.add(*own_batches)
        sink = counting_sink(target, on_result=results.append, max_commit_retries=50)
        queries.append(start(files.stream(spark), sink, tmp_path / f"{name}_checkpoint"))
    for query in queries:
        query.awaitTermination()

    assert rows(spark, target) == count([(0, 0), (100, 0)], *batches[0], *batches[1])
    assert sorted(recorded_batches(target)) == sorted(
        (query.id, batch_id) for query in queries for batch_id in range(3)
    )
    assert latest_version(target) == 1 + 6
    assert {result.strategy for result in results} == {strategy}
    assert all(result.num_commit_attempts == len(result.conflicts) + 1 for result in results)


@pytest.mark.any_strategy
def test_other_writers_beside_a_stream(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, strategy, deletion_vectors
):
    """The writers' rows: 1000 and up are appended while the stream runs, 2000 and up are deleted."""
    to_delete = [(key, 0) for key in range(2000, 2004)]
    target = create_table(SCHEMA, [(0, 0), *to_delete], deletion_vectors=deletion_vectors)
    batches = [[(0, 2**number), (number, 1), (100 + number // 2, 1)] for number in range(1, 9)]
    changes.add(*batches)
    results: list[MergeResult] = []
    table = f"delta.`{target}`"

    writers = {
        "append": [f"INSERT INTO {table} VALUES ({key}, 1)" for key in range(1000, 1004)],
        "delete": [f"DELETE FROM {table} WHERE id = {key}" for key, _ in to_delete],
        "optimize": [f"OPTIMIZE {table}"] * 3,
    }

    def write(statements: list[str]) -> None:
        for statement in statements:
            until_committed(lambda statement=statement: spark.sql(statement))

    query = start(
        changes.stream(spark), counting_sink(target, on_result=results.append, max_commit_retries=100), checkpoint
    )
    with ThreadPoolExecutor(len(writers)) as pool:
        for done in [pool.submit(write, statements) for statements in writers.values()]:
            done.result()
    query.awaitTermination()

    assert rows(spark, target) == count([(0, 0)], *batches, [(key, 1) for key in range(1000, 1004)])
    assert recorded_batches(target) == [(query.id, batch_id) for batch_id in range(len(batches))]
    assert [result.batch_id for result in results] == list(range(len(batches)))
    assert {result.strategy for result in results} == {strategy}
    assert all(result.num_commit_attempts == len(result.conflicts) + 1 for result in results)


def test_single_merges_from_many_threads(spark: SparkSession, create_table: CreateTable, create_source):
    target = create_table(SCHEMA, [(0, 0)], deletion_vectors=True)
    sink = counting_sink(target, max_commit_retries=100)
    sources = [[(0, 2**number), (number, 1)] for number in range(1, 7)]
    together = threading.Barrier(len(sources))

    def merge(source: list[tuple[int, int]]) -> MergeResult:
        frame = create_source(SCHEMA, source)
        together.wait()
        return sink.merge(frame)

    with ThreadPoolExecutor(len(sources)) as pool:
        results = list(pool.map(merge, sources))
    assert rows(spark, target) == count([(0, 0)], *sources)
    assert sorted(result.version for result in results) == list(range(2, 2 + len(sources)))


def test_one_stream_into_two_tables_from_threads(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    """One micro-batch fanned out by a thread pool: each table has the batch once, also when the batch is run again."""
    targets = [create_table(SCHEMA, path=str(tmp_path / name), deletion_vectors=True) for name in ("one", "two")]
    results: list[MergeResult] = []
    sinks = [counting_sink(target, on_result=results.append) for target in targets]
    fails = True

    def fan_out(batch_df, batch_id):
        nonlocal fails
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(sink, batch_df, batch_id) for sink in sinks]:
                done.result()
        if batch_id == 1 and fails:
            fails = False
            raise RuntimeError("after both merges")

    changes.add([(1, 1)], [(1, 10), (2, 2)], [(1, 100)])
    query = start(changes.stream(spark), fan_out, checkpoint)
    with pytest.raises(Exception, match="after both merges"):
        query.awaitTermination()
    query = start(changes.stream(spark), fan_out, checkpoint)
    query.awaitTermination()

    for target in targets:
        assert rows(spark, target) == [(1, 111), (2, 2)]
        assert recorded_batches(target) == [(query.id, batch_id) for batch_id in range(3)]
    assert [result.skipped for result in results] == [False] * 4 + [True] * 2 + [False] * 2


def test_the_same_sink_in_two_streams(spark: SparkSession, create_table: CreateTable, tmp_path: Path):
    """A sink is a value: two queries may share it, and each is recorded under its own id."""
    target = create_table(SCHEMA)
    sink = merge_sink(target, keys="id", max_commit_retries=50)
    queries = []
    for number in (1, 2):
        files = ChangeFiles(tmp_path / f"changes_{number}")
        files.add([(number, 1)], [(number, 2)], [(number, 3)])
        queries.append(start(files.stream(spark), sink, tmp_path / f"checkpoint_{number}"))
    for query in queries:
        query.awaitTermination()
    assert rows(spark, target) == [(1, 3), (2, 3)]
    assert sorted(recorded_batches(target)) == sorted(
        (query.id, batch_id) for query in queries for batch_id in range(3)
    )


@pytest.mark.core
def test_two_sinks_that_prepare_a_table_at_the_same_time(
    spark: SparkSession, create_table: CreateTable, create_source, monkeypatch: pytest.MonkeyPatch
):
    """Both add what they need to keep order: one comes second, and begins again."""
    target = create_table("id INT, a STRING, b STRING")
    together, operation = threading.Barrier(2, timeout=60), extension._operation
    calls: list[None] = []

    def wait(*given: object) -> object:
        calls.append(None)
        if len(calls) <= 2:
            together.wait()
        return operation(*given)

    monkeypatch.setattr(extension, "_operation", wait)

    def merge(column: str) -> None:
        sink = merge_sink(target, keys="id", columns=[column], sequence_by="seq", app_id=column)
        sink.merge(create_source(f"id INT, {column} STRING, seq INT", [(1, column, 1)]))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(merge, ("a", "b")))
    assert len(calls) >= 2
    assert rows(spark, target, "id", "a", "b") == [(1, "a", "b")]
