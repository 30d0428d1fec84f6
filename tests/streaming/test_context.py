"""What the sink takes from the running query: output mode, query id, and whether it reads its own target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from stream_merge import MergeResult, merge_sink
from tests.conftest import CreateTable
from tests.spark.delta_log import actions_of, latest_version
from tests.streaming.streams import (
    SCHEMA,
    ChangeFiles,
    count,
    counting_sink,
    forget_commit,
    query_id,
    recorded_batches,
    recorded_ids,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def totals(changes: DataFrame) -> DataFrame:
    """Return the running sum of n for each id."""
    return changes.groupBy("id").agg(F.sum("n").alias("n"))


@pytest.mark.core
@pytest.mark.parametrize("output_mode", ["append", "update"])
def test_append_and_update_merge(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, output_mode):
    target = create_table(SCHEMA, [(1, 1), (9, 9)], deletion_vectors=True)
    results: list[MergeResult] = []
    changes.add([(1, 10), (2, 2)], [(2, 20)])
    run(changes.stream(spark), counting_sink(target, on_result=results.append), checkpoint, output_mode=output_mode)
    assert rows(spark, target) == [(1, 11), (2, 22), (9, 9)]
    assert [result.strategy for result in results] == ["merge_on_read"] * 2
    assert {result.query_id for result in results} == {query_id(checkpoint)}
    assert recorded_batches(target) == [(query_id(checkpoint), 0), (query_id(checkpoint), 1)]


@pytest.mark.core
def test_update_mode_of_an_aggregation_sends_changed_rows_only(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n BIGINT", [(9, 9)])
    results: list[MergeResult] = []
    changes.add([(1, 1), (2, 2)], [(1, 10)])
    run(totals(changes.stream(spark)), merge_sink(target, keys="id", on_result=results.append), checkpoint)
    assert rows(spark, target) == [(1, 11), (2, 2), (9, 9)]
    assert [result.num_source_rows for result in results] == [2, 1]


@pytest.mark.always
@pytest.mark.core
def test_complete_mode_overwrites_the_table(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table("id INT, n BIGINT", [(9, 9)])
    results: list[MergeResult] = []
    changes.add([(1, 1), (2, 2)], [(1, 10)])
    sink = merge_sink(target, keys="id", on_result=results.append)
    run(totals(changes.stream(spark)), sink, checkpoint, output_mode="complete")
    assert rows(spark, target) == [(1, 11), (2, 2)]
    assert [result.strategy for result in results] == ["overwrite"] * 2
    assert [result.num_output_rows for result in results] == [2, 2]
    assert recorded_ids(target) == [0, 1]

    # A smaller result leaves nothing of a larger one behind, and a replay is skipped here too.
    forget_commit(checkpoint, 1)
    run(totals(changes.stream(spark)), sink, checkpoint, output_mode="complete")
    assert results[-1].skipped
    assert recorded_ids(target) == [0, 1]
    run(totals(changes.stream(spark)).where("id = 2"), sink, checkpoint.with_name("other"), output_mode="complete")
    assert rows(spark, target) == [(2, 2)]


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("output_mode", ["complete", "update"])
def test_an_aggregate_of_texts(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, output_mode):
    """Spark sorts for it, and names a column in the order of its result that the result does not have."""
    target = create_table("id INT, name STRING", [(9, "i")])
    changes.add([(1, 1), (2, 2), (1, 10)])
    names = changes.stream(spark).groupBy("id").agg(F.max(F.concat(F.lit("n"), "n")).alias("name"))
    options = {} if output_mode == "complete" else {"truncate_when": "name = 'none'", "sequence_by": "name"}
    run(names, merge_sink(target, keys="id", **options), checkpoint, output_mode=output_mode)
    assert rows(spark, target) == [(1, "n10"), (2, "n2"), *([] if output_mode == "complete" else [(9, "i")])]


@pytest.mark.core
def test_only_complete_mode_may_replace_the_schema(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table("id INT, n BIGINT", [(9, 9)])
    changes.add([(1, 1), (2, 2)])
    renamed = totals(changes.stream(spark)).select("id", F.col("n").alias("total"), F.lit("eu").alias("region"))

    before = latest_version(target)
    error = run_to_failure(renamed, merge_sink(target, keys="id"), checkpoint, output_mode="complete")
    assert "SchemaMismatchError" in error
    assert (latest_version(target), rows(spark, target)) == (before, [(9, 9)])

    sink = merge_sink(target, keys="id", overwrite_schema=True)
    run(renamed, sink, checkpoint, output_mode="complete")
    assert spark.read.format("delta").load(target).columns == ["id", "total", "region"]
    assert rows(spark, target) == [(1, 1, "eu"), (2, 2, "eu")]

    version = latest_version(target)
    merged = changes.stream(spark).select("id", F.col("n").cast("string").alias("other"))
    run_to_failure(merged, sink, checkpoint.with_name("update"))
    assert spark.read.format("delta").load(target).columns == ["id", "total", "region"]
    assert latest_version(target) == version


def test_the_output_mode_can_be_given(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table(SCHEMA, [(9, 9)])
    changes.add([(1, 1)], [(2, 2)])
    run(changes.stream(spark), merge_sink(target, keys="id", output_mode="complete"), checkpoint)
    assert rows(spark, target) == [(2, 2)]


@pytest.mark.core
def test_an_empty_batch_is_recorded(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table(SCHEMA, [(9, 9)], deletion_vectors=True)
    results: list[MergeResult] = []
    changes.add([(1, 1)], [(-1, 0)], [(2, 2)])
    positive = changes.stream(spark).where("id > 0")
    run(positive, counting_sink(target, on_result=results.append), checkpoint)
    assert rows(spark, target) == [(1, 1), (2, 2), (9, 9)]
    assert recorded_ids(target) == [0, 1, 2]
    assert [result.num_source_rows for result in results] == [1, 0, 1]
    assert [result.skipped for result in results] == [False, False, False]
    empty = results[1]
    assert (empty.num_added_files, empty.num_removed_files) == (0, 0)
    assert actions_of(target, empty.version, "add") == []


def test_rows_without_a_match_are_dealt_with_in_an_empty_batch(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    target = create_table(SCHEMA, [(9, 9)])
    sink = merge_sink(target, on="target.id = source.id").when_not_matched_by_source_delete()
    changes.add([(-1, 0)])
    run(changes.stream(spark).where("id > 0"), sink, checkpoint)
    assert rows(spark, target) == []
    assert recorded_ids(target) == [0]


@pytest.mark.core
def test_a_join_with_the_target(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    """Each batch adds to what the target held before it, read by the query itself."""
    target = create_table(SCHEMA, [(1, 1)])
    changes.add([(1, 10), (2, 2)], [(1, 100), (2, 20)])
    current = spark.read.format("delta").load(target).select("id", F.col("n").alias("old"))
    summed = (
        changes.stream(spark)
        .join(current, "id", "left")
        .select("id", (F.col("n") + F.coalesce("old", F.lit(0))).alias("n"))
    )
    run(summed, merge_sink(target, keys="id"), checkpoint)
    assert rows(spark, target) == [(1, 111), (2, 22)]


@pytest.mark.core
@pytest.mark.parametrize("step", ["before_open", "before_commit"])
def test_a_change_of_the_target_that_the_batch_was_computed_from(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, at_step, step: str
):
    """The rows of the batch no longer fit the table, so they are computed again, in this run or the next."""
    target = create_table(SCHEMA, [(1, 1)])
    changes.add([(1, 10)], [(1, 100)])
    current = spark.read.format("delta").load(target).select("id", F.col("n").alias("old"))
    summed = changes.stream(spark).join(current, "id").select("id", (F.col("n") + F.col("old")).alias("n"))
    at_step(step, lambda: spark.sql(f"UPDATE delta.`{target}` SET n = n + 1000"), after=1)
    sink = merge_sink(target, keys="id")
    error = run_to_failure(summed, sink, checkpoint)
    assert "CommitConflictError" in error
    assert rows(spark, target) == [(1, 1011)]

    run(summed, sink, checkpoint)
    assert rows(spark, target) == [(1, 1111)]
    assert recorded_ids(target) == [0, 1]


@pytest.mark.core
def test_the_target_as_the_streams_source(spark, create_table: CreateTable, checkpoint: Path, at_step, append_rows):
    """Rows with an odd id are followed by the next even one; a row that is appended beside the merge gets its turn."""
    target = create_table(SCHEMA, [(1, 1), (3, 3)])
    results: list[MergeResult] = []
    new_rows = spark.readStream.format("delta").option("skipChangeCommits", "true").load(target)
    followers = new_rows.where("id % 2 = 1").select((F.col("id") + 1).alias("id"), "n")
    sink = merge_sink(target, on="target.id = source.id", on_result=results.append)
    sink = sink.when_matched_update(set={"n": "target.n + source.n"}).when_not_matched_insert()

    at_step("before_commit", lambda: append_rows(target, SCHEMA, [(5, 5), (2, 20)]))
    run(followers, sink, checkpoint)
    run(followers, sink, checkpoint)
    assert rows(spark, target) == [(1, 1), (2, 21), (3, 3), (4, 3), (5, 5), (6, 5)]
    assert results[0].num_commit_attempts == 2
    assert len(results[0].conflicts) == 1


@pytest.mark.core
def test_the_batch_is_evaluated_once(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, strategy
):
    target = create_table(SCHEMA, [(1, 1), (2, 2)], deletion_vectors=strategy == "merge_on_read")
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("int")
    def passed_through(n):
        evaluated.add(1)
        return n

    noted = changes.stream(spark).select("id", passed_through.asNondeterministic()("n").alias("n"))
    sink = (
        merge_sink(target, on="target.id = source.id")
        .when_matched_delete(condition="source.n = 0")
        .when_matched_update(set={"n": "target.n + source.n"})
        .when_not_matched_insert(condition="source.n > 0")
        .when_not_matched_by_source_update(set={"n": "target.n - 1"}, condition="target.id = 2")
    )
    changes.add([(1, 10), (3, 3)], [(1, 0), (4, 4)])
    run(noted, sink, checkpoint)
    assert rows(spark, target) == [(2, 0), (3, 3), (4, 4)]
    assert evaluated.value == 4


@pytest.mark.always
@pytest.mark.parametrize("form", ["by clause", "by key", "by sequence", "copy on write", "quarantine"])
def test_a_batch_with_random_keys_is_consistent(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path, form: str
):
    """Whether a row matches is drawn each time the batch is evaluated: evaluated twice, rows would be missing or
    doubled."""
    numbers = range(100)
    target = create_table(SCHEMA, [(number, -1) for number in numbers], deletion_vectors=form != "copy on write")
    results: list[MergeResult] = []
    changes.add([(number, number) for number in numbers])
    drawn = F.when(F.rand() < 0.5, F.col("id")).when(F.rand() < 0.5, F.col("id") + 1000)
    if form != "quarantine":
        drawn = F.coalesce(drawn, F.col("id") + 2000)
    random = changes.stream(spark).select(drawn.alias("id"), "n")
    options = {
        "by sequence": {"sequence_by": "n"},
        "quarantine": {"quarantine": f"{tmp_path}/quarantine", "null_keys": "quarantine"},
    }.get(form, {})
    sink = merge_sink(target, keys="id", on_result=results.append, **options)
    if form == "by clause":
        sink = sink.when_matched_update(set={"n": "source.n + target.n + 1"}).when_not_matched_insert()
    run(random, sink, checkpoint)

    [result] = results
    merged = [(key, n) for key, n in rows(spark, target) if n >= 0]
    set_aside = []
    if form == "quarantine":
        quarantined = spark.read.format("delta").load(f"{tmp_path}/quarantine").collect()
        set_aside = [json.loads(entry["row"])["n"] for entry in quarantined]
        assert set_aside
    assert sorted([n for _, n in merged] + set_aside) == list(numbers)
    assert [key % 1000 for key, _ in merged] == [n for _, n in merged]
    assert result.num_target_rows_updated == sum(key < 1000 for key, _ in merged)
    assert result.num_target_rows_inserted == sum(key >= 1000 for key, _ in merged)


def test_a_stateful_batch_is_evaluated_once(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table("id INT, n BIGINT, drawn DOUBLE")
    results: list[MergeResult] = []
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("bigint")
    def passed_through(n):
        evaluated.add(1)
        return n

    changes.add([(1, 1), (2, 2)], [(1, 10), (3, 3), (1, 100)])
    noted = totals(changes.stream(spark)).select(
        "id", passed_through.asNondeterministic()("n").alias("n"), F.rand().alias("drawn")
    )
    run(noted, merge_sink(target, keys="id", on_result=results.append), checkpoint)
    assert [row[:2] for row in rows(spark, target)] == [(1, 111), (2, 2), (3, 3)]
    assert evaluated.value == 4, "two groups in each batch"
    assert [result.num_source_rows for result in results] == [2, 2]


@pytest.mark.core
def test_a_query_of_another_session(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table("id INT, n BIGINT", [(9, 9)])
    other = spark.newSession()
    other.conf.set("spark.sql.shuffle.partitions", "1")
    results: list[MergeResult] = []
    changes.add([(1, 1)], [(1, 10)])
    sink = merge_sink(target, keys="id", on_result=results.append)
    run(totals(changes.stream(other)), sink, checkpoint, output_mode="complete")
    assert rows(spark, target) == [(1, 11)]
    assert [result.strategy for result in results] == ["overwrite"] * 2
    assert recorded_batches(target) == [(query_id(checkpoint), 0), (query_id(checkpoint), 1)]


def test_one_sink_for_queries_of_two_sessions(spark, create_table: CreateTable, tmp_path: Path):
    target = create_table(SCHEMA)
    sink = counting_sink(target)
    batches = {"first": [[(1, 1)], [(1, 10)]], "second": [[(1, 100)], [(2, 2)]]}
    for (name, own_batches), session in zip(batches.items(), (spark, spark.newSession()), strict=True):
        files = ChangeFiles(tmp_path / name)
        files.add(*own_batches)
        run(files.stream(session), sink, tmp_path / f"{name}_checkpoint")
    assert rows(spark, target) == count(*batches["first"], *batches["second"])


@pytest.mark.core
def test_the_settings_of_the_query_hold(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    """Case sensitivity, time zone and ANSI mode are the query's at its start, whatever the session's are later."""
    target = create_table("id INT, at TIMESTAMP, number INT")
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    other.conf.set("spark.sql.ansi.enabled", "false")
    changes.add([(1, 1)])
    texts = changes.stream(other).select("id", F.lit("2026-01-01 09:00:00").alias("at"), F.lit("x").alias("number"))
    sink = merge_sink(target, on="target.id = source.id").when_not_matched_insert(
        values={"id": "source.id", "at": "to_timestamp(source.at)", "number": "try_cast(source.number AS INT)"}
    )
    run(texts, sink, checkpoint)
    [(_, at, number)] = rows(spark, target)
    assert (at.isoformat(), number) == ("2026-01-01T00:00:00", None)


def test_the_commit_says_what_it_is(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table(SCHEMA, [(1, 1)])
    changes.add([(1, 10), (2, 2)])
    run(changes.stream(spark), counting_sink(target, user_metadata="nightly"), checkpoint)
    [info] = actions_of(target, latest_version(target), "commitInfo")
    assert (info["operation"], info["userMetadata"]) == ("MERGE", "nightly")
    assert json.loads(info["operationParameters"]["matchedPredicates"]) == [{"actionType": "update"}]
    assert info["operationMetrics"]["numTargetRowsUpdated"] == "1"
