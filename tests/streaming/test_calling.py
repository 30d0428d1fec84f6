"""The ways to call a sink: pickled, wrapped, from threads, from Spark Connect; and targets that are not there yet."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F

from stream_merge import ConfigError, MergeResult, MergeSink, merge_sink, steps
from stream_merge.batch import caches
from stream_merge.bridge.creation import create_table
from stream_merge.errors import StreamMergeError, TargetNotFoundError, UnsupportedTableError
from tests.conftest import CreateTable
from tests.spark.delta_log import latest_version
from tests.streaming.child_session import child_conf, last_lines, run_child
from tests.streaming.streams import (
    SCHEMA,
    ChangeFiles,
    count,
    counting_sink,
    query_id,
    recorded_batches,
    recorded_ids,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_TRIPS: dict[str, Callable[[MergeSink], MergeSink]] = {
    "pickle": lambda sink: pickle.loads(pickle.dumps(sink)),
    "cloudpickle": lambda sink: cloudpickle.loads(cloudpickle.dumps(sink)),
}


@pytest.mark.core
@pytest.mark.parametrize("how", ROUND_TRIPS)
def test_a_sink_can_be_pickled_before_and_after_its_use(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, how: str
):
    target = create_table(SCHEMA)
    sink = ROUND_TRIPS[how](counting_sink(target))
    changes.add([(1, 1)])
    run(changes.stream(spark), sink, checkpoint)
    used = ROUND_TRIPS[how](sink)
    assert (used.config, str(used)) == (sink.config, f"MergeSink[{target}]")
    changes.add([(1, 10)])
    run(changes.stream(spark), used, checkpoint)
    assert rows(spark, target) == [(1, 11)]


@pytest.mark.core
def test_a_sink_inside_a_function(spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path):
    target = create_table(SCHEMA)
    results: list[MergeResult] = []
    sink = counting_sink(target, on_result=results.append)
    changes.add([(1, 1)], [(1, 10), (-2, 2)])
    run(
        changes.stream(spark),
        lambda batch_df, batch_id: sink(batch_df.withColumn("id", F.abs("id")).where("n > 0"), batch_id),
        checkpoint,
    )
    assert rows(spark, target) == [(1, 11), (2, 2)]
    assert recorded_batches(target) == [(query_id(checkpoint), 0), (query_id(checkpoint), 1)]
    assert {result.query_id for result in results} == {query_id(checkpoint)}


def test_a_batch_that_the_function_persisted_stays_so(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path
):
    targets = [create_table(SCHEMA, path=str(checkpoint.with_name(name))) for name in ("one", "two")]
    seen: list[bool] = []

    def fan_out(batch_df, batch_id):
        batch_df.persist()
        for target in targets:
            counting_sink(target)(batch_df, batch_id)
            seen.append(batch_df.storageLevel.useMemory)
        batch_df.unpersist()

    changes.add([(1, 1)], [(1, 10)])
    run(changes.stream(spark), fan_out, checkpoint)
    assert [rows(spark, target) for target in targets] == [[(1, 11)], [(1, 11)]]
    assert seen == [True] * 4


@pytest.mark.core
@pytest.mark.parametrize("session", ["of the test run", "new"])
def test_a_sink_in_a_thread_of_the_function(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, session: str
):
    """The thread is not the query's own, but output mode and query id are still the query's."""
    target = create_table("id INT, n BIGINT", [(9, 9)])
    results: list[MergeResult] = []
    sink = merge_sink(target, keys="id", on_result=results.append)

    def merge(batch_df, batch_id):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sink, batch_df, batch_id).result()

    changes.add([(1, 1)], [(1, 10)])
    own = spark if session == "of the test run" else spark.newSession()
    totals = changes.stream(own).groupBy("id").agg(F.sum("n").alias("n"))
    run(totals, merge, checkpoint, output_mode="complete")
    assert rows(spark, target) == [(1, 11)]
    assert [result.strategy for result in results] == ["overwrite"] * 2
    assert recorded_batches(target) == [(query_id(checkpoint), 0), (query_id(checkpoint), 1)]


@pytest.mark.core
def test_a_sink_called_outside_a_stream_needs_an_app_id(spark, create_table: CreateTable, create_source):
    target = create_table(SCHEMA)
    with pytest.raises(ConfigError, match="app_id"):
        counting_sink(target)(create_source(SCHEMA, [(1, 1)]), 0)
    sink = counting_sink(target, app_id="nightly")
    for _ in range(2):
        sink(create_source(SCHEMA, [(1, 1)]), 7)
    assert rows(spark, target) == [(1, 1)]
    assert recorded_batches(target) == [("nightly", 7)]


@pytest.mark.core
def test_spark_connect_is_refused(spark: SparkSession, tmp_path: Path):
    for package in ("grpc", "grpc_status", "zstandard", "pandas"):
        pytest.importorskip(package, reason=f"the client of Spark Connect needs {package}")
    conf = {key: value for key, value in child_conf(spark).items() if key != "spark.master"}
    output = tmp_path / "connect.log"
    assert run_child("tests.streaming.connect_session", json.dumps({"conf": conf}), output) == 0, last_lines(output)
    errors = json.loads(next(line for line in output.read_text().splitlines() if line.startswith("{")))
    assert {name: error for name, (error, _) in errors.items()} == dict.fromkeys(
        ("merge", "explain", "foreachBatch", "router", "router in foreachBatch"), "ConnectNotSupportedError"
    )
    assert "without .remote(" in errors["merge"][1]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        pytest.param("path", TargetNotFoundError, marks=pytest.mark.core),
        ("name", TargetNotFoundError),
        ("folder of files", TargetNotFoundError),
        ("parquet table", UnsupportedTableError),
        ("view", UnsupportedTableError),
    ],
)
def test_a_target_that_is_no_delta_table(
    spark, changes: ChangeFiles, checkpoint: Path, create_source, tmp_path: Path, kind: str, error: type[Exception]
):
    target = f"{tmp_path}/nothing" if kind in ("path", "folder of files") else "no_such_table"
    if kind == "folder of files":
        spark.range(3).write.parquet(target)
    elif kind == "parquet table":
        spark.sql("CREATE TABLE no_such_table USING parquet AS SELECT 1 AS id")
    elif kind == "view":
        spark.range(3).createOrReplaceTempView("no_such_table")
    try:
        with pytest.raises(error, match=Path(target).name):
            counting_sink(target).merge(create_source(SCHEMA, [(1, 1)]))
        changes.add([(1, 1)])
        assert error.__name__ in run_to_failure(changes.stream(spark), counting_sink(target), checkpoint)
    finally:
        spark.catalog.dropTempView("no_such_table")
        spark.sql("DROP TABLE IF EXISTS no_such_table")
    assert not Path(target, "_delta_log").exists()


CREATIONS = {
    "partitioned": {"partition_by": "region"},
    "clustered": {"cluster_by": ["id"]},
    "with properties": {"table_properties": {"delta.enableDeletionVectors": "true", "team": "orders"}},
    "plain": {},
}


@pytest.mark.core
@pytest.mark.parametrize("options", CREATIONS.values(), ids=CREATIONS)
def test_a_missing_target_is_created(spark, tmp_path: Path, checkpoint: Path, options):
    target = str(tmp_path / "new" / "target")
    changes = ChangeFiles(tmp_path / "changes", "id INT, n INT, region STRING")
    changes.add([(1, 1, "eu"), (2, 2, "us")], [(1, 10, "eu"), (3, 3, "eu")])
    run(changes.stream(spark), counting_sink(target, create_if_missing=True, **options), checkpoint)

    assert rows(spark, target) == [(1, 11, "eu"), (2, 2, "us"), (3, 3, "eu")]
    assert recorded_ids(target) == [0, 1]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").collect()[0]
    assert detail["partitionColumns"] == [options[name] for name in ("partition_by",) if name in options]
    assert detail["clusteringColumns"] == options.get("cluster_by", [])
    properties = options.get("table_properties", {})
    assert {name: detail["properties"].get(name) for name in properties} == properties
    assert spark.read.format("delta").load(target).schema.simpleString() == "struct<id:int,n:int,region:string>"


def test_a_target_that_vanishes_is_not_created_anew(spark, tmp_path: Path, changes: ChangeFiles, checkpoint: Path):
    """A mount that is lost, say: a new table would have the later micro-batches only."""
    target = tmp_path / "target"
    sink = counting_sink(str(target), create_if_missing=True)
    changes.add([(1, 1)])
    run(changes.stream(spark), sink, checkpoint)
    target.rename(tmp_path / "elsewhere")
    changes.add([(2, 2)])
    failure = run_to_failure(changes.stream(spark), sink, checkpoint)
    assert "batch 1: the table has earlier micro-batches of this query, and is gone" in failure
    assert not target.exists()
    (tmp_path / "elsewhere").rename(target)
    run(changes.stream(spark), sink, checkpoint)
    assert rows(spark, str(target)) == [(1, 1), (2, 2)]


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    """Return the name of an empty database."""
    spark.sql("CREATE DATABASE streams")
    yield "streams"
    spark.sql("DROP DATABASE streams CASCADE")


@pytest.mark.core
def test_a_missing_target_is_created_in_the_catalog(
    spark, database: str, changes: ChangeFiles, checkpoint: Path, create_source
):
    target = f"{database}.orders"
    changes.add([(1, 1)], [(1, 10)])
    sink = counting_sink(target, create_if_missing=True)
    run(changes.stream(spark), sink, checkpoint)
    sink.merge(create_source(SCHEMA, [(2, 2)]))
    assert sorted(tuple(row) for row in spark.table(target).collect()) == [(1, 11), (2, 2)]
    location = spark.sql(f"DESCRIBE DETAIL {target}").collect()[0]["location"].removeprefix("file:")
    assert recorded_ids(location) == [0, 1]


def test_two_streams_that_both_create_the_target(spark, tmp_path: Path):
    from tests.streaming.streams import start

    target = str(tmp_path / "target")
    queries = []
    for name, batches in {"first": [[(1, 1)], [(1, 10)]], "second": [[(1, 100)], [(2, 2)]]}.items():
        files = ChangeFiles(tmp_path / name)
        files.add(*batches)
        sink = counting_sink(target, create_if_missing=True, max_commit_retries=50)
        queries.append(start(files.stream(spark), sink, tmp_path / f"{name}_checkpoint"))
    for query in queries:
        query.awaitTermination()
    assert rows(spark, target) == count([(1, 111), (2, 2)])
    assert len(recorded_ids(target)) == 4


def test_many_threads_that_all_create_one_table(spark, tmp_path: Path, create_source):
    """As the tables of a router do with a quarantine that they share: Delta calls that a conflict."""
    rows = create_source("id INT, n INT")
    for number in range(3):
        path = str(tmp_path / f"table{number}")
        start = threading.Barrier(6)

        def create(path: str = path, start: threading.Barrier = start) -> None:
            start.wait()
            create_table(spark, path, rows, partition_by=(), cluster_by=(), properties={})

        with ThreadPoolExecutor(start.parties) as pool:
            for created in [pool.submit(create) for _ in range(start.parties)]:
                created.result()
        assert (latest_version(path), spark.read.format("delta").load(path).columns) == (0, ["id", "n"])


@pytest.mark.parametrize("name", ["source", "target"])
def test_temporary_views_of_the_users_stay_as_they_are(
    spark, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, name: str
):
    """A view of the user's own named like an alias is neither read nor replaced."""
    target = create_table(SCHEMA, [(1, 1)])
    spark.createDataFrame([(77, "mine")], "id INT, word STRING").createOrReplaceTempView(name)
    try:
        changes.add([(1, 10), (2, 2)])
        run(changes.stream(spark), counting_sink(target), checkpoint)
        assert rows(spark, target) == [(1, 11), (2, 2)]
        assert [tuple(row) for row in spark.table(name).collect()] == [(77, "mine")]
    finally:
        spark.catalog.dropTempView(name)


def test_the_target_is_changed_between_two_batches_of_one_sink(
    spark, create_table: CreateTable, create_source, strategy, deletion_vectors: bool
):
    """What a sink remembers of the table is brought up to date: other writers, a restore, a table made anew."""
    target = create_table(SCHEMA, [(1, 1)], deletion_vectors=deletion_vectors)
    table = f"delta.`{target}`"
    sink = counting_sink(target)

    def merge(*source: tuple[int, int]) -> list[tuple[int, int]]:
        result = sink.merge(create_source(SCHEMA, source))
        assert (result.version, result.strategy) == (latest_version(target), strategy)
        return rows(spark, target)

    assert merge((1, 10), (2, 2)) == [(1, 11), (2, 2)]
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    assert merge((1, 100), (2, 20)) == [(1, 100), (2, 22)]
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    assert merge((1, 1000), (2, 200)) == [(1, 1001), (2, 200)]
    spark.sql(f"OPTIMIZE {table}")
    assert merge((1, 1)) == [(1, 1002), (2, 200)]
    vectors = f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(deletion_vectors).lower()}')"
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta {vectors} AS SELECT INT(2) AS id, INT(3) AS n")
    assert merge((1, 5)) == [(1, 5), (2, 3)]


def test_a_sink_in_many_threads_merges_one_batch_at_a_time(spark, create_table: CreateTable):
    target = create_table(SCHEMA)
    sink = counting_sink(target)
    running, seen = [0], []

    def observe(step: str) -> None:
        running[0] += {"before_open": 1, "after_commit": -1}.get(step, 0)
        seen.append(running[0])

    steps.observer = observe
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: sink.merge(spark.createDataFrame([(number % 2, 1)], SCHEMA)), range(6)))
    finally:
        steps.observer = None
    assert (rows(spark, target), max(seen)) == ([(0, 3), (1, 3)], 1)


def test_delta_analyses_a_statement_once_for_many_batches(spark, create_table: CreateTable, monkeypatch):
    target = create_table(SCHEMA)
    sink = counting_sink(target)
    analysed = []
    analyse = caches.analyse

    def count_calls(*args: Any, **kwargs: Any) -> Any:
        analysed.append(args[1])
        return analyse(*args, **kwargs)

    monkeypatch.setattr(caches, "analyse", count_calls)
    for _ in range(4):
        sink.merge(spark.createDataFrame([(1, 1)], SCHEMA))
    assert (rows(spark, target), len(analysed)) == ([(1, 4)], 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"keys": "id"}, "NOT NULL constraint violated for column: n"),
        ({"keys": "id", "sequence_by": "nme"}, "nme"),
        ({"keys": "id", "expect": {"known": "nme > 0"}, "quarantine": "rejected"}, "nme"),
    ],
    ids=["NOT NULL", "sequence_by", "expect"],
)
def test_every_error_names_the_table_and_the_batch(create_table, create_source, tmp_path, options, reason):
    path = create_table("id INT, n INT NOT NULL")
    given = {name: str(tmp_path / value) if name == "quarantine" else value for name, value in options.items()}
    sink = merge_sink(path, app_id="app", **given)
    with pytest.raises(StreamMergeError) as raised:
        sink(create_source("id INT, n INT", [(1, None)]), 7)
    message = str(raised.value)
    assert message.startswith(f"{path}: batch 7: ")
    assert reason in message


def test_a_table_that_cannot_be_created_is_named(create_source, tmp_path):
    path = str(tmp_path / "made")
    sink = merge_sink(path, keys="id", app_id="app", create_if_missing=True, partition_by="nme")
    with pytest.raises(StreamMergeError, match="nme") as raised:
        sink(create_source("id INT, n INT", [(1, 1)]), 7)
    assert path in str(raised.value)
