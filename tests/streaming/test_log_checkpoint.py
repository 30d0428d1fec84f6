"""Checkpoints of the table's log: the batch after the one that made them due writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from stream_merge import merge_sink
from stream_merge.batch import maintain
from stream_merge.bridge.transaction import Transaction
from stream_merge.maintenance import account, policy
from tests.conftest import CreateTable
from tests.spark.delta_log import actions_of, latest_version
from tests.streaming.streams import SCHEMA, ChangeFiles, count, counting_sink, start

pytestmark = [pytest.mark.any_strategy, pytest.mark.always]


def checkpoints(path: str) -> list[int]:
    """Return the versions that have a checkpoint."""
    return sorted({int(file.name[:20]) for file in Path(path, "_delta_log").glob("*.checkpoint*.parquet")})


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize(("ends", "expected"), [([10, 11, 13], [[], [10], [10]]), ([11], [[10]])], ids=["runs", "run"])
def test_it_comes_with_the_next_batch_whichever_run_that_is(
    spark: SparkSession,
    tmp_path: Path,
    create_table: CreateTable,
    read_rows: Callable[[str], list[Row]],
    deletion_vectors: bool,
    ends: list[int],
    expected: list[list[int]],
):
    target = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    changes, batches = ChangeFiles(tmp_path / "changes"), [[(n % 3, n), (10 + n, 1)] for n in range(ends[-1])]
    found = []
    for end in ends:
        changes.add(*batches[latest_version(target) : end])
        start(changes.stream(spark), counting_sink(target), tmp_path / "checkpoint").awaitTermination()
        assert latest_version(target) == end
        found.append(checkpoints(target))
    assert found == expected
    # All that they stand for is in them.
    for version in range(10):
        Path(target, "_delta_log", f"{version:020d}.json").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert sorted(map(tuple, read_rows(target))) == count(*batches)
    changes.add([(0, 1)])
    start(changes.stream(spark), counting_sink(target), tmp_path / "checkpoint").awaitTermination()
    assert sorted(map(tuple, read_rows(target))) == count(*batches, [(0, 1)])


def test_that_of_another_writer_is_left_to_it_for_a_while(
    spark: SparkSession,
    tmp_path: Path,
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[[str], list[Row]],
    deletion_vectors: bool,
):
    target = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    changes = ChangeFiles(tmp_path / "changes")
    changes.add(*[[(n, n)] for n in range(12)])
    sink, other = counting_sink(target), merge_sink(target, keys="id")
    found = []

    def merge(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        if batch_id < 5:
            # The tenth commit is its last.
            other.merge(create_source(SCHEMA, [(100, batch_id)]))
        found.append((latest_version(target), checkpoints(target)))

    start(changes.stream(spark), merge, tmp_path / "checkpoint").awaitTermination()
    assert found[4:] == [*[(version, []) for version in range(10, 16)], (16, [15]), (17, [15])]
    assert sorted(map(tuple, read_rows(target))) == [*((n, n) for n in range(12)), (100, 4)]


def test_a_table_that_wants_more_has_them_at_once(
    create_table: CreateTable, create_source: Callable[..., DataFrame], deletion_vectors: bool
):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors, properties={"delta.checkpointInterval": "3"})
    sink = merge_sink(path, keys="id")
    found = []
    for n in range(4):
        sink.merge(create_source(SCHEMA, [(1, n)]))
        found.append(checkpoints(path))
    assert found == [[], [], [3], [3]]


def test_one_that_fails_fails_no_batch_and_is_tried_again_ten_commits_later(
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[[str], list[Row]],
    deletion_vectors: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id")
    tried = []

    def fail(transaction: Transaction) -> None:
        tried.append(transaction.version)
        raise OSError("no room")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stream_merge"):
        patch.setattr(Transaction, "write_checkpoint", fail)
        for n in range(1, 22):
            sink.merge(create_source(SCHEMA, [(n % 2, n)]))
    assert tried == [10, 20]
    told = [record.getMessage() for record in caplog.records if "no checkpoint" in record.getMessage()]
    assert ["version 10 " in told[0], "version 20 " in told[1], len(told)] == [True, True, 2]
    assert checkpoints(path) == []
    assert sorted(map(tuple, read_rows(path))) == [(0, 20), (1, 21)]


def test_no_batch_has_both_a_checkpoint_and_a_compaction(
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[[str], list[Row]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(account, "SHARE", 1000.0)
    monkeypatch.setattr(policy, "MIN_FILES", 2)
    monkeypatch.setattr(policy, "TIER_FACTOR", 1e9)
    monkeypatch.setattr(maintain, "WAIT_BATCHES", 0)
    path = create_table(SCHEMA, [(1, 0)], deletion_vectors=True)
    sink = merge_sink(path, keys="id", maintenance=True)
    steps = []
    for n in range(14):
        had = checkpoints(path)
        result = sink.merge(create_source(SCHEMA, [(1, n), (2 + n, n)]))
        steps.append((result.maintenance, checkpoints(path) != had))
    assert [is_compacted for is_compacted, has_checkpoint in steps if has_checkpoint] == [None, None]
    assert steps.count(("compacted", False)) >= 8
    # The state is computed once: no compaction makes a tenth commit, or comes between one and its checkpoint.
    assert checkpoints(path) == [10, 20]
    for version in (10, 20, 11, 21):
        assert actions_of(path, version, "commitInfo")[0]["operation"] == "MERGE"
    assert sorted(map(tuple, read_rows(path))) == [(1, 13), *((2 + n, n) for n in range(14))]
