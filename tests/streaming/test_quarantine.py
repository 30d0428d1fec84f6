"""Rows that are set aside are in the quarantine table once, whatever dies in between; limits, reports and wrong
options."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F

from stream_merge import MergeResult, merge_sink
from stream_merge.errors import QuarantineLimitError, UnresolvedColumnError
from stream_merge.quarantine.table import Quarantine
from tests.conftest import CreateTable
from tests.spark.delta_log import actions_of, latest_version, operation_metrics
from tests.streaming.streams import (
    SCHEMA,
    ChangeFiles,
    forget_commit,
    recorded_ids,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

NOT_NEGATIVE = {"not negative": "n >= 0"}


def bad_rows(spark: SparkSession, path: str) -> list[tuple[int, int]]:
    """Return batch id and n of everything in quarantine."""
    found = spark.read.format("delta").load(path).select("batch_id", "row").collect()
    return sorted((batch_id, json.loads(row)["n"]) for batch_id, row in found)


@pytest.mark.core
@pytest.mark.parametrize("named", [False, True], ids=["path", "name"])
def test_two_sinks_of_a_query_share_a_table(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, tmp_path, at_step, named
):
    """Each has its rows there once, also when the query dies between the commits of the two and is started again."""
    table = "rejected_rows" if named else str(tmp_path / "rejected")
    targets = [create_table(SCHEMA, path=str(tmp_path / name)) for name in ("one", "two")]
    sinks = [merge_sink(target, keys="id", quarantine=table, expect=NOT_NEGATIVE) for target in targets]

    def merge(batch: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(batch, batch_id)

    def die() -> None:
        raise RuntimeError("died")

    changes.add([(1, 1), (2, -2), (2, -2)], [(3, 3), (4, -4)])
    try:
        for after in (0, 0, 1, 2):
            at_step("quarantined", die, after=after)
            assert "died" in run_to_failure(changes.stream(spark), merge, checkpoint)
        at_step("never", die)
        run(changes.stream(spark), merge, checkpoint)
        forget_commit(checkpoint, 1)
        run(changes.stream(spark), merge, checkpoint)

        for target in targets:
            assert rows(spark, target) == [(1, 1), (3, 3)]
            found = spark.table(table) if named else spark.read.format("delta").load(table)
            own = found.where(F.col("target") == target).select("batch_id", "row").collect()
            assert sorted((b, json.loads(row)["n"]) for b, row in own) == [(0, -2), (0, -2), (1, -4)]
    finally:
        if named:
            spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_a_replay_that_rejects_other_rows(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected, at_step
):
    """The batch's id is in the quarantine's log already, and Delta would skip what the replay appends."""
    target = create_table(SCHEMA)
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
    changes.add([(1, 1), (2, -2), (3, 300), (4, 400)])

    def die() -> None:
        raise RuntimeError("died")

    at_step("quarantined", die)
    assert "died" in run_to_failure(changes.stream(spark), sink, checkpoint)
    assert (rows(spark, target), bad_rows(spark, rejected)) == ([], [(0, -2)])

    stricter = merge_sink(target, keys="id", quarantine=rejected, expect={**NOT_NEGATIVE, "small": "n < 100"})
    for _ in range(2):
        at_step("quarantined", die)
        assert "died" in run_to_failure(changes.stream(spark), stricter, checkpoint)
        assert bad_rows(spark, rejected) == [(0, -2), (0, 300), (0, 400)]
    at_step("never", die)
    run(changes.stream(spark), stricter, checkpoint)
    assert rows(spark, target) == [(1, 1)]
    assert bad_rows(spark, rejected) == [(0, -2), (0, 300), (0, 400)]


def test_a_replay_that_rejects_what_another_sink_of_the_query_has_rejected(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, tmp_path, rejected, at_step
):
    """The quarantine has the row, but not as one of this target."""
    targets = [create_table(SCHEMA, path=str(tmp_path / name)) for name in ("one", "two")]
    strict = {**NOT_NEGATIVE, "small": "n < 100"}
    changes.add([(1, 1), (2, -2), (3, 300)])

    def die() -> None:
        raise RuntimeError("died")

    for of_second in (NOT_NEGATIVE, strict):
        sinks = [
            merge_sink(target, keys="id", quarantine=rejected, expect=expect)
            for target, expect in zip(targets, (strict, of_second), strict=True)
        ]

        def merge(batch: DataFrame, batch_id: int, sinks=sinks) -> None:
            for sink in sinks:
                sink(batch, batch_id)

        at_step("quarantined", die, after=1 if of_second is NOT_NEGATIVE else 0)
        assert "died" in run_to_failure(changes.stream(spark), merge, checkpoint)
    found = spark.read.format("delta").load(rejected).select("target", "row").collect()
    assert sorted((target, json.loads(row)["n"]) for target, row in found) == [
        (target, n) for target in targets for n in (-2, 300)
    ]


def test_a_replay_with_another_spelling_of_the_target(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected, at_step
):
    target = create_table(SCHEMA)
    changes.add([(1, 1), (2, -2), (2, -2)])

    def die() -> None:
        raise RuntimeError("died")

    for spelling in (target, f"{target}/", f"delta.`{target}`"):
        at_step("quarantined", die)
        sink = merge_sink(spelling, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
        assert "died" in run_to_failure(changes.stream(spark), sink, checkpoint)
        assert bad_rows(spark, rejected) == [(0, -2), (0, -2)]


def test_a_new_checkpoint_and_target_under_a_fixed_app_id(
    spark, create_table: CreateTable, changes: ChangeFiles, tmp_path, rejected
):
    """The table remembers later batches of this application, of another target: nothing may be taken for a replay."""
    changes.add([(1, -1)], [(2, -2)])
    options = {"keys": "id", "quarantine": rejected, "expect": NOT_NEGATIVE, "app_id": "orders"}
    for attempt in ("first", "second"):
        target = create_table(SCHEMA, path=str(tmp_path / attempt))
        run(changes.stream(spark), merge_sink(target, **options), tmp_path / f"{attempt} checkpoint")
    found = spark.read.format("delta").load(rejected).groupBy("target").count().collect()
    assert sorted(map(tuple, found)) == [(str(tmp_path / "first"), 2), (str(tmp_path / "second"), 2)]


def test_a_commit_to_the_quarantine_whose_answer_is_lost(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected, monkeypatch, caplog
):
    target = create_table(SCHEMA)
    append = Quarantine._append

    def lose_answer(self: Quarantine, described: DataFrame) -> None:
        append(self, described)
        raise PySparkException("connection reset")

    monkeypatch.setattr(Quarantine, "_append", lose_answer)
    changes.add([(1, 1), (2, -2)])
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE, max_commit_retries=0)
    with caplog.at_level(logging.WARNING, "stream_merge"):
        run(changes.stream(spark), sink, checkpoint)
    assert f"raised an error but landed in the quarantine {rejected}: connection reset" in caplog.text
    assert (rows(spark, target), bad_rows(spark, rejected)) == ([(1, 1)], [(0, -2)])


def test_a_commit_to_the_quarantine_that_fails_stops_the_batch(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected
):
    target = create_table(SCHEMA)
    spark.sql(f"CREATE TABLE delta.`{rejected}` (reason STRING, batch_id STRUCT<x: INT>) USING delta")
    changes.add([(1, 1), (2, -2)])
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
    version = latest_version(target)
    assert "DELTA_FAILED_TO_MERGE_FIELDS" in run_to_failure(changes.stream(spark), sink, checkpoint)
    assert (rows(spark, target), latest_version(target)) == ([], version)


def test_a_quarantine_table_of_an_older_version(spark, create_table: CreateTable, create_source, rejected):
    older = "reason STRING, batch_id BIGINT NOT NULL, quarantined_at TIMESTAMP, row STRING, mine INT"
    spark.sql(f"CREATE TABLE delta.`{rejected}` ({older}) USING delta")
    spark.sql(f"INSERT INTO delta.`{rejected}` VALUES ('NULL in a key (id)', 7, TIMESTAMP'2026-01-01', '{{}}', 5)")
    target = create_table(SCHEMA)
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
    sink.merge(create_source(SCHEMA, [(1, -1)]))
    sink.merge(create_source(SCHEMA, [(1, -2)]))
    found = spark.read.format("delta").load(rejected)
    assert sorted(map(tuple, found.select("reason", "batch_id", "mine", "target").collect()), key=repr) == [
        ("NULL in a key (id)", 7, 5, None),
        ("expectation not negative failed", None, None, target),
        ("expectation not negative failed", None, None, target),
    ]
    assert [len(actions_of(rejected, version, "metaData")) for version in (2, 3, 4)] == [1, 1, 0]


@pytest.mark.core
def test_above_the_limit_nothing_is_written(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected
):
    target = create_table(SCHEMA)
    version = latest_version(target)
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE, max_quarantined_share=0.5)
    changes.add([(1, 1), (2, -2)], [(3, -3), (4, -4), (5, 5)])
    for _ in range(2):
        error = run_to_failure(changes.stream(spark), sink, checkpoint)
        assert "QuarantineLimitError" in error
        assert "batch 1: 2 of 3 rows cannot be merged, a share above max_quarantined_share=0.5" in error
        assert "expectation not negative failed 2" in error
        assert rows(spark, target) == [(1, 1)]
        assert recorded_ids(target) == [0]
        assert bad_rows(spark, rejected) == [(0, -2)], "a half is not above a half"
    assert latest_version(target) == version + 1

    higher = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE, max_quarantined_share=0.7)
    run(changes.stream(spark), higher, checkpoint)
    assert rows(spark, target) == [(1, 1), (5, 5)]
    assert bad_rows(spark, rejected) == [(0, -2), (1, -4), (1, -3)]


def test_what_the_limits_error_says(create_table: CreateTable, create_source, rejected):
    sink = merge_sink(
        create_table(SCHEMA),
        keys="id",
        null_keys="quarantine",
        quarantine=rejected,
        expect=NOT_NEGATIVE,
        max_quarantined_share=0,
    )
    assert sink.merge(create_source(SCHEMA, [(1, 1)])).num_quarantined_rows == 0
    assert sink.merge(create_source(SCHEMA, [])).num_quarantined_rows == 0
    with pytest.raises(QuarantineLimitError) as raised:
        sink.merge(create_source(SCHEMA, [(1, 1), (2, -2), (None, -3)]))
    error = raised.value
    assert (error.count, error.num_rows, error.retriable) == (2, 3, False)
    assert error.reasons == {"expectation not negative failed": 2, "NULL in a key": 1}
    assert error.example == "expectation not negative failed"
    assert not Path(rejected).exists()


def test_what_is_reported(spark, create_table: CreateTable, create_source, rejected, caplog):
    target = create_table(SCHEMA)
    results: list[MergeResult] = []
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE, on_result=results.append)
    with caplog.at_level(logging.INFO, "stream_merge"):
        sink.merge(create_source(SCHEMA, [(1, 1), (2, -2), (3, -3)]))
    warning, line = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage() == (
        f"{target}: 2 of 3 rows cannot be merged and go to {rejected}: expectation not negative failed 2; "
        "for example: expectation not negative failed"
    )
    assert "1 inserted, 0 updated, 0 deleted, 2 quarantined;" in line.getMessage()
    assert results[0].num_quarantined_rows == 2
    assert operation_metrics(target, latest_version(target))["numQuarantinedRows"] == 2
    assert f"set aside rows that cannot be merged, in {rejected}" in sink.explain(create_source(SCHEMA, []))


def test_a_batch_of_which_every_row_is_set_aside_is_done(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected
):
    target = create_table(SCHEMA, [(1, 1)])
    changes.add([(1, -1), (2, -2)])
    run(changes.stream(spark), merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE), checkpoint)
    assert rows(spark, target) == [(1, 1)]
    assert recorded_ids(target) == [0]
    assert bad_rows(spark, rejected) == [(0, -2), (0, -1)]


def test_a_batch_with_quarantine_is_evaluated_once(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected
):
    target = create_table("id INT, n BIGINT")
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("int")
    def passed_through(n):
        evaluated.add(1)
        return n

    noted = changes.stream(spark).select("id", passed_through.asNondeterministic()("n").alias("n"))
    totals = noted.groupBy("id").agg(F.sum("n").alias("n"))
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
    changes.add([(1, 1), (2, -2)], [(1, 10), (2, 3)])
    run(totals, sink, checkpoint)
    assert rows(spark, target) == [(1, 11), (2, 1)]
    assert bad_rows(spark, rejected) == [(0, -2)]
    assert evaluated.value == 4


def test_complete_mode_is_refused(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint, rejected):
    target = create_table("id INT, n BIGINT", [(1, 1)])
    changes.add([(1, -1)])
    totals = changes.stream(spark).groupBy("id").agg(F.sum("n").alias("n"))
    sink = merge_sink(target, keys="id", quarantine=rejected, expect=NOT_NEGATIVE)
    error = run_to_failure(totals, sink, checkpoint, output_mode="complete")
    assert "do not work in output mode complete" in error
    assert rows(spark, target) == [(1, 1)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"expect": {"there": "nowhere > 0"}}, UnresolvedColumnError, "nowhere"),
        ({"error_column": "_change.error"}, UnresolvedColumnError, "_change"),
        ({"expect": {"boolean": "n"}}, Exception, "BOOLEAN"),
    ],
)
def test_wrong_options_fail_before_anything_is_written(create_table, create_source, rejected, options, error, message):
    target = create_table(SCHEMA)
    version = latest_version(target)
    with pytest.raises(error, match=message):
        merge_sink(target, keys="id", quarantine=rejected, **options).merge(create_source(SCHEMA, [(1, 1)]))
    assert latest_version(target) == version
    assert not Path(rejected).exists()


@pytest.mark.parametrize("options", [{"error_column": "error"}, {"expect": NOT_NEGATIVE}], ids=["error", "expectation"])
def test_without_a_quarantine_such_a_row_stops_the_batch(create_table: CreateTable, create_source, read_rows, options):
    target = create_table("id INT, n INT", [(1, 1)])
    batch = create_source("id INT, n INT, error STRING", [(1, 5, None), (2, -1, "bad record")])
    with pytest.raises(QuarantineLimitError, match=r"1 of 2 rows .* set quarantine to a table"):
        merge_sink(target, keys="id", **options).merge(batch)
    assert read_rows(target) == [Row(id=1, n=1)]
