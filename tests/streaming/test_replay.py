"""Micro-batches that arrive again are skipped; batch ids that went backwards are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from stream_merge import MergeResult, merge_sink
from tests.conftest import CreateTable
from tests.spark.delta_log import latest_version
from tests.streaming.streams import (
    ChangeFiles,
    count,
    counting_sink,
    forget_commit,
    query_id,
    recorded_batches,
    recorded_ids,
    replace_folder,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.mark.core
def test_every_batch_of_a_run_replayed(
    spark: SparkSession,
    create_table: CreateTable,
    changes: ChangeFiles,
    checkpoint: Path,
    strategy: str,
    deletion_vectors: bool,
    request: pytest.FixtureRequest,
):
    # Past the log's first checkpoint, in the long tier past the second.
    num_batches = (22 if request.config.getoption("--long") else 12) if deletion_vectors else 3
    target = create_table("id INT, n INT", deletion_vectors=deletion_vectors)
    first_version = latest_version(target)
    results: list[MergeResult] = []
    sink = counting_sink(target, on_result=results.append)
    batches = [[(number % 3, number), (100 + number, 1)] for number in range(num_batches)]

    for batch_id, batch in enumerate(batches):
        changes.add(batch)
        run(changes.stream(spark), sink, checkpoint)
        after_merge = (latest_version(target), recorded_ids(target), rows(spark, target))
        forget_commit(checkpoint, batch_id)
        run(changes.stream(spark), sink, checkpoint)

        assert (latest_version(target), recorded_ids(target), rows(spark, target)) == after_merge
        merged, replayed = results[-2:]
        assert (merged.batch_id, merged.skipped, merged.strategy) == (batch_id, False, strategy)
        assert (merged.version, merged.num_source_rows) == (first_version + batch_id + 1, 2)
        assert (replayed.batch_id, replayed.skipped, replayed.version) == (batch_id, True, None)
        assert (replayed.num_source_rows, replayed.num_output_rows, replayed.num_added_files) == (0, 0, 0)
        assert (checkpoint / "commits" / str(batch_id)).exists()

    assert len(results) == 2 * num_batches
    assert rows(spark, target) == count(*batches)
    assert recorded_batches(target) == [(query_id(checkpoint), number) for number in range(num_batches)]


def test_the_replay_after_another_writers_commits(
    spark: SparkSession, create_table: CreateTable, append_rows, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n INT")
    changes.add([(1, 1)], [(1, 10)])
    run(changes.stream(spark), counting_sink(target), checkpoint)
    append_rows(target, "id INT, n INT", [(2, 5)])
    spark.sql(f"OPTIMIZE delta.`{target}`")
    version = latest_version(target)

    forget_commit(checkpoint, 1)
    changes.add([(2, 1)])
    run(changes.stream(spark), counting_sink(target), checkpoint)

    assert rows(spark, target) == [(1, 11), (2, 6)]
    assert latest_version(target) == version + 1
    assert recorded_ids(target) == [0, 1, 2]


def test_the_replay_is_known_after_the_logs_checkpoint(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n INT", properties={"delta.checkpointInterval": "2"})
    changes.add([(1, 1)], [(1, 10)], [(1, 100)])
    run(changes.stream(spark), counting_sink(target), checkpoint)
    assert list(Path(target, "_delta_log").glob("*.checkpoint*.parquet"))

    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    forget_commit(checkpoint, 2)
    run(changes.stream(spark), counting_sink(target), checkpoint)
    assert rows(spark, target) == [(1, 111)]
    assert recorded_ids(target) == [0, 1, 2]


@pytest.mark.core
def test_the_replay_of_a_stateful_query(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    """Spark 4.2 fails a stateful micro-batch whose rows were not read to their end
    (STATE_STORE_COMMIT_VALIDATION_FAILED)."""
    target = create_table("id INT, total BIGINT")
    results: list[MergeResult] = []
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("int")
    def passed_through(n):
        evaluated.add(1)
        return n

    def run_totals() -> None:
        noted = changes.stream(spark).select("id", passed_through.asNondeterministic()("n").alias("n"))
        totals = noted.groupBy("id").agg(F.sum("n").alias("total"))
        run(totals, merge_sink(target, keys="id", on_result=results.append), checkpoint)

    changes.add([(1, 1), (2, 2)], [(1, 10), (3, 3)])
    run_totals()
    assert rows(spark, target) == [(1, 11), (2, 2), (3, 3)]
    assert evaluated.value == 4, "each source row once"
    version = latest_version(target)

    forget_commit(checkpoint, 1)
    run_totals()
    assert rows(spark, target) == [(1, 11), (2, 2), (3, 3)]
    assert latest_version(target) == version
    assert [result.skipped for result in results] == [False, False, True]
    assert evaluated.value == 6, "the skipped micro-batch is read once, for its state"

    changes.add([(1, 100)])
    run_totals()
    assert rows(spark, target) == [(1, 111), (2, 2), (3, 3)]


@pytest.mark.always
@pytest.mark.core
def test_a_lost_checkpoint_under_a_fixed_app_id_is_refused(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n INT")
    batches = [[(1, 1)], [(1, 10)], [(1, 100)]]
    changes.add(*batches)
    sink = counting_sink(target, app_id="orders")
    run(changes.stream(spark), sink, checkpoint)
    version = latest_version(target)

    replace_folder(checkpoint, None)
    changes.add([(2, 1)])
    error = run_to_failure(changes.stream(spark), sink, checkpoint)

    assert f"BatchIdRegressionError: {target}: batch 0: Batch 0 of application 'orders'" in error
    assert "holds batch 2" in error
    assert latest_version(target) == version
    assert rows(spark, target) == count(*batches)

    # The way out that the message names: everything again, under another id.
    spark.sql(f"DELETE FROM delta.`{target}`")
    run(changes.stream(spark), counting_sink(target, app_id="orders 2"), checkpoint)
    assert rows(spark, target) == count(*batches, [(2, 1)])
    assert recorded_batches(target) == [
        *(("orders", batch_id) for batch_id in range(3)),
        *(("orders 2", batch_id) for batch_id in range(4)),
    ]


@pytest.mark.core
def test_a_new_checkpoint_that_starts_with_the_recorded_batch_id_is_refused(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    """The same batch id is a replay only if it is the same query's; here its rows were never merged."""
    target = create_table("id INT, n INT")
    sink = counting_sink(target, app_id="orders")
    changes.add([(1, 1)])
    run(changes.stream(spark), sink, checkpoint)
    assert recorded_batches(target) == [("orders", 0)]
    version = latest_version(target)

    (changes.folder / "0000.json").unlink()
    changes.add([(2, 2)])
    replace_folder(checkpoint, None)
    error = run_to_failure(changes.stream(spark), sink, checkpoint)

    assert f"BatchIdRegressionError: {target}: batch 0: Batch 0 of application 'orders'" in error
    assert latest_version(target) == version
    assert rows(spark, target) == [(1, 1)]


def test_a_restart_under_a_fixed_app_id_goes_on(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n INT")
    sink = counting_sink(target, app_id="orders")
    changes.add([(1, 1)])
    run(changes.stream(spark), sink, checkpoint)
    forget_commit(checkpoint, 0)
    changes.add([(1, 10)])
    run(changes.stream(spark), sink, checkpoint)
    assert rows(spark, target) == [(1, 11)]
    assert recorded_batches(target) == [("orders", 0), ("orders", 1)]


@pytest.mark.always
@pytest.mark.core
def test_an_older_copy_of_the_checkpoint_is_refused(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    target = create_table("id INT, n INT")
    sink = counting_sink(target)
    changes.add([(1, 1)], [(1, 10)])
    run(changes.stream(spark), sink, checkpoint)
    backup = tmp_path / "backup"
    shutil.copytree(checkpoint, backup)
    changes.add([(1, 100)], [(1, 1000)], [(1, 10_000)])
    run(changes.stream(spark), sink, checkpoint)
    version = latest_version(target)

    replace_folder(checkpoint, backup)
    error = run_to_failure(changes.stream(spark), sink, checkpoint)

    assert f"BatchIdRegressionError: {target}: batch 2: Batch 2 of application" in error
    assert "holds batch 4" in error
    assert latest_version(target) == version
    assert rows(spark, target) == [(1, 11_111)]


def test_a_copy_of_the_checkpoint_from_one_batch_ago_is_refused(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    """The query plans the recorded batch id anew, and now with a change more: skipping it would lose that."""
    target = create_table("id INT, n INT")
    sink = counting_sink(target)
    changes.add([(1, 1)])
    run(changes.stream(spark), sink, checkpoint)
    backup = tmp_path / "backup"
    shutil.copytree(checkpoint, backup)
    changes.add([(1, 10)])
    run(changes.stream(spark), sink, checkpoint)
    version = latest_version(target)

    replace_folder(checkpoint, backup)
    changes.add([(1, 100)])
    error = run_to_failure(changes.stream(spark).withColumn("n", F.col("n")), sink, checkpoint)

    assert f"BatchIdRegressionError: {target}: batch 1: Batch 1 of application" in error
    assert latest_version(target) == version
    assert rows(spark, target) == [(1, 11)]


def test_two_queries_into_one_table_are_skipped_each_by_its_own_batches(
    spark: SparkSession, create_table: CreateTable, tmp_path: Path
):
    target = create_table("id INT, n INT")
    first, second = ChangeFiles(tmp_path / "first"), ChangeFiles(tmp_path / "second")
    first.add([(1, 1)], [(1, 10)])
    second.add([(1, 100)])
    sink = counting_sink(target)
    run(first.stream(spark), sink, tmp_path / "first_checkpoint")
    run(second.stream(spark), sink, tmp_path / "second_checkpoint")
    forget_commit(tmp_path / "first_checkpoint", 1)
    forget_commit(tmp_path / "second_checkpoint", 0)
    run(first.stream(spark), sink, tmp_path / "first_checkpoint")
    run(second.stream(spark), sink, tmp_path / "second_checkpoint")

    assert rows(spark, target) == [(1, 111)]
    ids = query_id(tmp_path / "first_checkpoint"), query_id(tmp_path / "second_checkpoint")
    assert recorded_batches(target) == [(ids[0], 0), (ids[0], 1), (ids[1], 0)]
