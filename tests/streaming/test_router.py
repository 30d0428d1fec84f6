"""Many tables from one stream: each exactly once, side by side up to a bound, and a failure that names its table."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge import ConfigError, MergeResult, MergeSink, RouterError, debezium, merge_router, merge_sink
from stream_merge.errors import BatchIdRegressionError, ConstraintViolationError, UnknownSourceError
from tests.conftest import CreateTable
from tests.debezium.records import envelope, record
from tests.spark.delta_log import latest_version
from tests.streaming.streams import (
    ROUTED,
    SCHEMA,
    TABLES,
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
    start,
)
from tests.streaming.test_soak import assert_nothing_left, footprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def changes(tmp_path: Path) -> ChangeFiles:
    """Return a folder of changes of several tables without any."""
    return ChangeFiles(tmp_path / "changes", ROUTED)


def without_topic(_: str, changed: DataFrame) -> DataFrame:
    return changed.drop("topic")


def counting_sinks(tables: Mapping[str, str], **options: Any) -> dict[str, MergeSink]:
    """Return for each table the sink that shows a batch which is applied twice."""
    return {name: counting_sink(path, **options) for name, path in tables.items()}


def contents(spark: SparkSession, tables: Mapping[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows(spark, path) for name, path in tables.items()}


@pytest.mark.core
def test_three_tables_that_the_stream_creates(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    """Tables have the schema of their own events, and only the batches that have rows of theirs."""
    tables = {name: str(tmp_path / "lake" / name) for name in TABLES}
    results: list[MergeResult] = []
    router = merge_router(
        counting_sinks(tables, create_if_missing=True, on_result=results.append),
        prepare=lambda name, changed: changed.drop("topic") if name != "carts" else changed,
    )
    changes.add(
        [("orders", 1, 1), ("items", 1, 2), ("orders", 2, 3)],
        [("orders", 1, 10)],
        [("carts", 5, 5), ("items", 1, 20)],
        [],
        [("orders", 2, 30), ("items", 3, 3), ("carts", 5, 50)],
    )
    query = run(changes.stream(spark), router, checkpoint)

    assert contents(spark, tables) == {
        "orders": [(1, 11), (2, 33)],
        "items": [(1, 22), (3, 3)],
        "carts": [("carts", 5, 55)],
    }
    assert {name: recorded_ids(path) for name, path in tables.items()} == {
        "orders": [0, 1, 4],
        "items": [0, 2, 4],
        "carts": [2, 4],
    }
    assert recorded_batches(tables["carts"]) == [(query_id(checkpoint), 2), (query_id(checkpoint), 4)]
    assert {result.query_id for result in results} == {query.id}
    assert sorted((result.batch_id, Path(result.target).name) for result in results) == sorted(
        [(0, "orders"), (0, "items"), (1, "orders"), (2, "carts"), (2, "items")] + [(4, name) for name in TABLES]
    )


@pytest.mark.core
def test_a_table_that_fails_is_named_and_the_replay_merges_only_it(
    spark: SparkSession, create_table: CreateTable, tables, changes: ChangeFiles, checkpoint: Path
):
    results: list[MergeResult] = []
    router = merge_router(counting_sinks(tables, on_result=results.append), prepare=without_topic)
    first = [(name, 1, 1) for name in TABLES]
    changes.add(first)
    run(changes.stream(spark), router, checkpoint)
    spark.sql(f"ALTER TABLE delta.`{tables['items']}` ADD CONSTRAINT positive CHECK (n > 0)")
    before = footprint(spark)

    changes.add([("orders", 1, 10), ("items", 1, -100), ("carts", 1, 1000), ("items", 2, 2)], [("orders", 1, 5)])
    error = run_to_failure(changes.stream(spark), router, checkpoint)

    assert "RouterError: router: batch 1: 1 of 3 source(s) failed" in error
    assert f"items (table {tables['items']}): ConstraintViolationError: " in error
    assert "the tables of carts, orders have the batch" in error
    assert contents(spark, tables) == {"orders": [(1, 11)], "items": [(1, 1)], "carts": [(1, 1001)]}
    assert_nothing_left(spark, before)

    # Once more the same, with nothing mended: nothing is doubled.
    results.clear()
    run_to_failure(changes.stream(spark), router, checkpoint)
    assert {(Path(result.target).name, result.batch_id, result.skipped) for result in results} == {
        ("orders", 1, True),
        ("carts", 1, True),
    }
    assert contents(spark, tables) == {"orders": [(1, 11)], "items": [(1, 1)], "carts": [(1, 1001)]}

    spark.sql(f"ALTER TABLE delta.`{tables['items']}` DROP CONSTRAINT positive")
    results.clear()
    run(changes.stream(spark), router, checkpoint)
    assert sorted((result.batch_id, Path(result.target).name, result.skipped) for result in results) == [
        (1, "carts", True),
        (1, "items", False),
        (1, "orders", True),
        (2, "orders", False),
    ]
    assert contents(spark, tables) == {"orders": [(1, 16)], "items": [(1, -99), (2, 2)], "carts": [(1, 1001)]}
    assert {name: recorded_ids(path) for name, path in tables.items()} == {
        "orders": [0, 1, 2],
        "items": [0, 1],
        "carts": [0, 1],
    }


@pytest.mark.parametrize("dies_after", [1, 2, 3])
def test_a_run_that_dies_between_two_tables(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path, at_step, dies_after: int
):
    """As a kill would: the process sees nothing of it, and the checkpoint does not say that the batch is done."""

    class KillError(BaseException):
        pass

    def die() -> None:
        raise KillError

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        try:
            router(batch_df, batch_id)
        except KillError as error:
            raise RuntimeError("died") from error  # py4j answers the JVM for an Exception only

    router = merge_router(counting_sinks(tables), prepare=without_topic, max_parallel=1)
    batch = [(name, 1, number) for number, name in enumerate(TABLES, 1)]
    changes.add(batch)
    at_step("after_commit", die, after=dies_after - 1)
    assert "died" in run_to_failure(changes.stream(spark), merge, checkpoint)
    assert sum(recorded_ids(path) == [0] for path in tables.values()) == dies_after

    run(changes.stream(spark), router, checkpoint)
    forget_commit(checkpoint, 0)
    run(changes.stream(spark), router, checkpoint)
    assert contents(spark, tables) == {name: [(1, number)] for number, name in enumerate(TABLES, 1)}
    assert {tuple(recorded_ids(path)) for path in tables.values()} == {(0,)}


@pytest.mark.core
def test_a_stateful_query_is_evaluated_once_and_replayed(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    tables = {name: create_table("id INT, n BIGINT", path=str(tmp_path / "lake" / name)) for name in TABLES}
    sinks = {name: merge_sink(path, keys="id") for name, path in tables.items()}
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("int")
    def passed_through(n):
        evaluated.add(1)
        return n

    def run_totals() -> None:
        noted = changes.stream(spark).select("topic", "id", passed_through.asNondeterministic()("n").alias("n"))
        totals = noted.groupBy("topic", "id").agg(F.sum("n").alias("n"))
        run(totals, merge_router(sinks, prepare=without_topic), checkpoint)

    changes.add([(name, 1, 1) for name in TABLES], [("orders", 1, 10), ("items", 2, 2)])
    run_totals()
    after = {"orders": [(1, 11)], "items": [(1, 1), (2, 2)], "carts": [(1, 1)]}
    assert contents(spark, tables) == after
    assert evaluated.value == 5, "each row once, however many tables there are"

    forget_commit(checkpoint, 1)
    run_totals()
    assert contents(spark, tables) == after
    assert evaluated.value == 7, "the replay is read once, for its state"
    changes.add([("carts", 1, 100)])
    run_totals()
    assert contents(spark, tables) == {**after, "carts": [(1, 101)]}
    assert {name: recorded_ids(path) for name, path in tables.items()} == {
        "orders": [0, 1],
        "items": [0, 1],
        "carts": [0, 2],
    }


UNKNOWN = [("orders", 1, 1), ("orders2", 1, 1), (None, 3, 3), ("orders2", 2, 2)]


@pytest.mark.core
def test_rows_of_an_unknown_source_are_refused_before_anything_is_merged(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path, create_source
):
    router = merge_router(counting_sinks(tables), prepare=without_topic)
    changes.add(UNKNOWN)
    error = run_to_failure(changes.stream(spark), router, checkpoint)
    assert "UnknownSourceError: router: batch 0: no sink for 'orders2' (2 row(s)), NULL (1 row(s))" in error
    with pytest.raises(UnknownSourceError) as caught:
        router.merge(create_source(ROUTED, UNKNOWN))
    assert caught.value.sources == {"orders2": 2, None: 1}
    assert contents(spark, tables) == {name: [] for name in TABLES}


def test_rows_of_an_unknown_source_are_counted_when_they_are_ignored(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path, caplog
):
    router = merge_router(counting_sinks(tables), prepare=without_topic, unknown="ignore")
    changes.add(UNKNOWN, [("nothing", 1, 1)])
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        run(changes.stream(spark), router, checkpoint)
    assert contents(spark, tables) == {"orders": [(1, 1)], "items": [], "carts": []}
    assert [record.getMessage() for record in caplog.records] == [
        "router: batch 0: no sink for 'orders2' (2 row(s)), NULL (1 row(s)); their rows were dropped",
        "router: batch 1: no sink for 'nothing' (1 row(s)); their rows were dropped",
    ]


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    """Return the name of an empty database."""
    spark.sql("CREATE DATABASE routed")
    yield "routed"
    spark.sql("DROP DATABASE routed CASCADE")


@pytest.mark.core
@pytest.mark.parametrize("kind", ["pattern", "function"])
def test_tables_in_the_catalog_are_created_side_by_side(
    spark: SparkSession, database: str, changes: ChangeFiles, checkpoint: Path, kind: str
):
    made: list[str] = []

    def sink_of(name: str) -> MergeSink | None:
        made.append(name)
        table = name.removeprefix("shop.public.")
        return None if table == name else counting_sink(f"{database}.{table}", create_if_missing=True)

    pattern = re.compile(r"shop\.public\.(?P<table>\w+)")
    sinks = {pattern: counting_sink(f"{database}.{{table}}", create_if_missing=True)}
    router = merge_router(
        sinks if kind == "pattern" else sink_of, by="concat('shop.public.', topic)", prepare=without_topic
    )
    names = [f"t{number}" for number in range(6)]
    changes.add([(name, 1, 1) for name in names], [(name, 1, 10) for name in names[:3]])
    run(changes.stream(spark), router, checkpoint)
    found = {name: [tuple(row) for row in spark.table(f"{database}.{name}").collect()] for name in names}
    assert found == {name: [(1, 11 if number < 3 else 1)] for number, name in enumerate(names)}
    assert sorted(made) == ([f"shop.public.{name}" for name in names] if kind == "function" else [])


@pytest.mark.core
def test_no_more_tables_at_a_time_than_allowed(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    names = [f"t{number}" for number in range(5)]
    tables = {name: create_table(SCHEMA, path=str(tmp_path / "lake" / name)) for name in names}
    lock, together = threading.Lock(), threading.Barrier(2, timeout=60)
    running: set[str] = set()
    most: list[int] = []
    groups: list[tuple[str | None, str | None]] = []

    def prepare(name: str, changed: DataFrame) -> DataFrame:
        context = changed.sparkSession.sparkContext
        with lock:
            running.add(name)
            most.append(len(running))
            groups.append((context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty("callers own")))
        if name in names[:2]:
            together.wait()  # only two at the same time get past it
        return changed.drop("topic")

    def on_result(result: MergeResult) -> None:
        with lock:
            running.remove(Path(result.target).name)

    router = merge_router(counting_sinks(tables, on_result=on_result), prepare=prepare, max_parallel=2)

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        batch_df.sparkSession.sparkContext.setLocalProperty("callers own", "mine")
        router(batch_df, batch_id)

    # The most rows go first.
    changes.add([(name, number, 1) for name in names for number in range(2 if name in names[:2] else 1)])
    query = run(changes.stream(spark), merge, checkpoint)
    assert max(most) == 2
    assert len(most) == 5
    assert set(groups) == {(query.runId, "mine")}
    assert {name: rows(spark, path)[0] for name, path in tables.items()} == dict.fromkeys(names, (0, 1))


def test_nothing_is_left_behind(spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path):
    router = merge_router(counting_sinks(tables), prepare=without_topic)
    batches = [[(name, number % 3, 1) for name in TABLES[: 1 + number % 3]] for number in range(15)]
    changes.add(*batches[:3])
    run(changes.stream(spark), router, checkpoint)
    before = footprint(spark)
    changes.add(*batches[3:])
    run(changes.stream(spark), router, checkpoint)
    assert_nothing_left(spark, before)
    for name in TABLES:
        own = [[(key, n) for topic, key, n in batch if topic == name] for batch in batches]
        assert rows(spark, tables[name]) == count(*own)


def test_two_sinks_of_one_table_are_refused_however_it_is_spelt(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path
):
    path = tables["orders"]
    spellings = {"orders": path, "items": f"delta.`file:{path}/`"}
    changes.add([("orders", 1, 1)], [("orders", 1, 1), ("items", 1, 1)])
    error = run_to_failure(changes.stream(spark), merge_router(counting_sinks(spellings)), checkpoint)
    assert "ConfigError: orders and items have different sinks for one table" in error
    by_function = merge_router(lambda name: counting_sink(spellings[name]), prepare=without_topic)
    error = run_to_failure(changes.stream(spark), by_function, checkpoint)
    assert "ConfigError: items and orders have different sinks for one table" in error
    assert recorded_ids(path) == [0], "the batch with rows of one of them"
    assert rows(spark, path) == [(1, 1)]


def test_tables_may_share_a_quarantine(spark, tables, changes: ChangeFiles, checkpoint: Path, tmp_path: Path):
    """Each records the batch under an id of its own, or Delta would skip the second append."""
    rejected = str(tmp_path / "rejected")
    options = {"expect": {"small": "n < 10"}, "quarantine": rejected}
    router = merge_router({name: merge_sink(path, keys="id", **options) for name, path in tables.items()})
    for _ in range(2):
        changes.add([(name, 1, 1) for name in tables] + [(name, 2, 20) for name in tables])
        run(changes.stream(spark), router, checkpoint)
    found = spark.read.format("delta").load(rejected).groupBy("target").count().collect()
    assert {tuple(row) for row in found} == {(path, 2) for path in tables.values()}
    assert all(rows(spark, path) == [(1, 1)] for path in tables.values())


@pytest.mark.core
@pytest.mark.parametrize("is_prepared", [True, False])
def test_sources_of_one_sink_are_merged_together(
    spark: SparkSession, create_table: CreateTable, changes: ChangeFiles, checkpoint: Path, is_prepared: bool
):
    """Shards of a table: in one commit, so that none is taken for a replay of the other."""
    target = create_table(SCHEMA)
    router = merge_router(
        {re.compile(r"shop\d+\.orders"): counting_sink(target)}, prepare=without_topic if is_prepared else None
    )
    changes.add([("shop1.orders", 1, 1), ("shop2.orders", 2, 2), ("shop17.orders", 3, 3)], [("shop2.orders", 2, 20)])
    run(changes.stream(spark), router, checkpoint)
    assert rows(spark, target) == [(1, 1), (2, 22), (3, 3)]
    assert recorded_ids(target) == [0, 1]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("CAST(1.5 AS DOUBLE) AS id, v, s", "column id is bigint and double; cast"),
        ("id, 1 AS v, s", "column v is string and int"),
        ("id, v, s, 1 AS w", "not all have the columns w"),
        ("2.5BD AS id, v, s", r"column id is bigint and decimal\(2,1\)"),
        ("CAST(2 AS INT) AS id, v, s", None),
    ],
)
def test_sources_of_one_table_have_the_same_columns_and_no_value_changes(
    spark: SparkSession, create_table: CreateTable, other: str, reason: str | None
):
    """A union of a BIGINT and a DOUBLE, or of a text and a number, would change values in silence."""
    path = create_table("id BIGINT, v STRING, s BIGINT")
    rows_of = {"a": ["id", "v", "s"], "b": other.split(", ")}
    sink = merge_sink(path, keys="id", sequence_by="s", app_id="app")
    router = merge_router(dict.fromkeys(rows_of, sink), by="name", prepare=lambda n, rows: rows.selectExpr(*rows_of[n]))
    batch = spark.sql("SELECT * FROM VALUES ('a', 9007199254740993, '0012', 1), ('b', 2, 'x', 1) AS t(name, id, v, s)")
    if reason is not None:
        with pytest.raises(RouterError, match=reason):
            router.merge(batch)
        assert rows(spark, path, "id", "v") == []
        return
    router.merge(batch)
    assert rows(spark, path, "id", "v") == [(2, "x"), (9007199254740993, "0012")]


def test_shards_of_one_table_may_have_keys_of_other_integers(spark: SparkSession, create_table: CreateTable):
    """One is migrated after the other, and the struct that describes the changes has their types."""
    path = create_table("id BIGINT, price DECIMAL(12, 2)")
    types = {"a": "id INT, price DECIMAL(10, 2)", "b": "id BIGINT, price DECIMAL(12, 2)"}
    sink = merge_sink(path, **debezium.MERGE_OPTIONS, keys="id", app_id="app")
    router = merge_router(
        dict.fromkeys(types, sink),
        by="topic",
        prepare=lambda name, changed: debezium.changes(changed, types[name], ["id"], decimals="string"),
    )
    changed = {"a": {"id": 1, "price": "1.50"}, "b": {"id": 2**40, "price": "2.50"}}
    records = [(*record({"id": row["id"]}, envelope("c", row))[:2], name) for name, row in changed.items()]
    batch = spark.createDataFrame(records, "key BINARY, value BINARY, topic STRING").selectExpr(
        "*", "0 AS partition", "0L AS offset", "current_timestamp() AS timestamp"
    )
    router.merge(batch)
    assert rows(spark, path, "id", "price") == [(1, Decimal("1.50")), (2**40, Decimal("2.50"))]


def test_complete_mode_is_refused(spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path):
    changes.add([("orders", 1, 1)])
    totals = changes.stream(spark).groupBy("topic", "id").agg(F.sum("n").cast("int").alias("n"))
    error = run_to_failure(totals, merge_router(counting_sinks(tables)), checkpoint, output_mode="complete")
    assert "ConfigError: orders: in output mode Complete a table without rows would keep its old ones" in error
    assert contents(spark, tables) == {name: [] for name in TABLES}
    merging = merge_router(counting_sinks(tables, output_mode="update"), prepare=without_topic)
    run(totals, merging, checkpoint, output_mode="complete")
    assert contents(spark, tables) == {"orders": [(1, 1)], "items": [], "carts": []}


@pytest.mark.core
def test_a_lost_checkpoint_shows_in_tables_without_rows_too(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path
):
    """Else `items` would take batch 2 of the new checkpoint for a new one."""
    router = merge_router(counting_sinks(tables, app_id="shop"), prepare=without_topic)
    changes.add([("orders", 1, 1)], [("items", 1, 1)])
    run(changes.stream(spark), router, checkpoint)
    replace_folder(checkpoint, None)
    error = run_to_failure(changes.stream(spark).where("topic <> 'orders' OR n > 1"), router, checkpoint)
    assert f"items (table {tables['items']}): BatchIdRegressionError: Batch 0 of application 'shop'" in error

    replace_folder(checkpoint, None)
    changes.add([("orders", 1, 10)])
    only_orders = changes.stream(spark).where("topic = 'orders'")
    error = run_to_failure(only_orders, router, checkpoint)
    assert BatchIdRegressionError.__name__ in error
    assert contents(spark, tables) == {"orders": [(1, 1)], "items": [(1, 1)], "carts": []}


def test_outside_a_stream(spark: SparkSession, tables, create_source):
    source = create_source(ROUTED, [("orders", 1, 1), ("items", 1, 2), ("items", 2, 2)])
    router = merge_router(counting_sinks(tables), by=F.lower("topic"), prepare=without_topic)
    results = router.merge(source)
    assert {name: (r.num_target_rows_inserted, r.batch_id) for name, r in results.items()} == {
        "items": (2, None),
        "orders": (1, None),
    }
    assert router.merge(source)["items"].num_target_rows_updated == 2
    assert contents(spark, tables) == {"orders": [(1, 2)], "items": [(1, 4), (2, 4)], "carts": []}
    assert router.merge(source.where("false")) == {}

    spark.sql(f"ALTER TABLE delta.`{tables['items']}` ADD CONSTRAINT few CHECK (n < 5)")
    with pytest.raises(RouterError) as caught:
        router.merge(source)
    assert isinstance(caught.value.failures.pop("items"), ConstraintViolationError)
    assert (caught.value.failures, list(caught.value.results)) == ({}, ["orders"])
    assert isinstance(caught.value.__cause__, ConstraintViolationError)


def test_a_name_that_is_not_utf_8_is_an_unknown_source(spark: SparkSession, tables, create_source):
    """Python has another name for it, under which no row would be found."""
    sinks = {**counting_sinks(tables), re.compile(".*"): counting_sinks(tables)["carts"]}
    del sinks["carts"]
    rows = create_source(ROUTED, [("orders", 1, 1), ("others", 2, 2), ("bad", 3, 3)])
    named = rows.withColumn("topic", F.expr("IF(topic = 'bad', CAST(x'80' AS STRING), topic)"))
    with pytest.raises(UnknownSourceError):
        merge_router(sinks, prepare=without_topic).merge(named)
    merge_router(sinks, prepare=without_topic, unknown="ignore").merge(named)
    assert contents(spark, tables) == {"orders": [(1, 1)], "items": [], "carts": [(2, 2)]}


def test_prepare_finds_nan(spark: SparkSession, create_table: CreateTable, create_source):
    """The bounds that Spark keeps with cached rows leave it out."""
    path = create_table("k INT, d DOUBLE")
    router = merge_router({"t": merge_sink(path, keys="k")}, prepare=lambda _, rows: rows.drop("topic").where("d > 5"))
    router.merge(create_source("topic STRING, k INT, d DOUBLE", [("t", 1, 1.0), ("t", 2, float("nan")), ("t", 3, 3.0)]))
    assert [row["k"] for row in spark.read.format("delta").load(path).collect()] == [2]


def test_a_frame_from_one_of_the_targets_is_refused_outside_a_stream(spark: SparkSession, tables, create_source):
    router = merge_router(counting_sinks(tables), prepare=without_topic)
    own = spark.read.format("delta").load(tables["items"]).select(F.lit("items").alias("topic"), "*")
    with pytest.raises(ConfigError, match=f"items: the frame reads {tables['items']}"):
        router.merge(own.union(create_source(ROUTED, [("items", 1, 1)])))
    assert router.merge(own.union(create_source(ROUTED, [("orders", 1, 1)])))["orders"].num_source_rows == 1


def test_what_prepare_raises_names_the_table(spark: SparkSession, tables, create_source):
    def prepare(name: str, changed: DataFrame) -> DataFrame:
        return {"orders": lambda: changed.drop("topic"), "items": lambda: changed.select("missing")}[name]()

    with pytest.raises(RouterError) as caught:
        merge_router(counting_sinks(tables), prepare=prepare).merge(
            create_source(ROUTED, [(name, 1, 1) for name in TABLES])
        )
    assert {name: type(error).__name__ for name, error in caught.value.failures.items()} == {
        "items": "UnresolvedColumnError",
        "carts": "KeyError",
    }
    assert "carts (table " in str(caught.value)
    assert contents(spark, tables) == {"orders": [(1, 1)], "items": [], "carts": []}


def test_a_source_of_which_there_is_nothing_to_merge(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path
):
    """Records without a value that follow deletes, say. Two sources of one table are looked at one by one."""
    sinks = counting_sinks(tables)
    router = merge_router(
        {**sinks, "more orders": sinks["orders"]},
        prepare=lambda name, changed: None if name in ("items", "orders") else changed.drop("topic"),
    )
    changes.add([("orders", 1, 1), ("more orders", 1, 10), ("items", 1, 1)], [("items", 1, 1), ("orders", 1, 1)])
    run(changes.stream(spark), router, checkpoint)
    assert contents(spark, tables) == {"orders": [(1, 10)], "items": [], "carts": []}
    assert {name: recorded_ids(path) for name, path in tables.items()} == {"orders": [0], "items": [], "carts": []}
    rows_of_items = spark.createDataFrame([("items", 1, 1)], ROUTED)
    assert router.merge(rows_of_items) == {}


def test_too_many_sources_are_refused(spark: SparkSession, tables, create_source, monkeypatch):
    monkeypatch.setattr("stream_merge.routing.routed_batch.MAX_SOURCES", 2)
    with pytest.raises(ConfigError, match="more than 2 sources have rows in it"):
        merge_router(counting_sinks(tables)).merge(create_source(ROUTED, [(name, 1, 1) for name in TABLES]))


def test_a_pickled_router(spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path):
    router = merge_router(counting_sinks(tables), prepare=without_topic)
    round_trip: Callable[[], Any] = lambda: pickle.loads(pickle.dumps(router))  # noqa: E731
    for batch in ([("orders", 1, 1)], [("orders", 1, 10), ("carts", 1, 1)]):
        changes.add(batch)
        run(changes.stream(spark), round_trip(), checkpoint)
    assert contents(spark, tables) == {"orders": [(1, 11)], "items": [], "carts": [(1, 1)]}


def test_tables_that_wait_when_the_query_is_stopped_are_left_to_its_next_run(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path
):
    is_merging, is_stopped = threading.Event(), threading.Event()
    begun: list[str] = []

    def prepare(name: str, changed: DataFrame) -> DataFrame:
        begun.append(name)
        is_merging.set()
        assert is_stopped.wait(60)
        return changed.drop("topic")

    changes.add([(name, 1, 1) for name in TABLES])
    query = start(
        changes.stream(spark), merge_router(counting_sinks(tables), prepare=prepare, max_parallel=1), checkpoint
    )
    assert is_merging.wait(60)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    while query.isActive:
        time.sleep(0.01)
    is_stopped.set()
    stopping.join()
    assert len(begun) == 1
    assert [name for name in TABLES if name != begun[0] and latest_version(tables[name]) > 0] == []

    run(changes.stream(spark), merge_router(counting_sinks(tables), prepare=without_topic), checkpoint)
    assert contents(spark, tables) == {name: [(1, 1)] for name in TABLES}


@pytest.mark.core
def test_sources_whose_names_look_like_those_of_others(spark: SparkSession, tables, create_source):
    """Two of them share a table, and a third one has the name that both have together in messages."""
    shared = counting_sink(tables["orders"], app_id="shop")
    other = counting_sink(tables["items"], app_id="shop")
    router = merge_router({"a": shared, "b": shared, "a, b": other}, prepare=without_topic)
    router(create_source(ROUTED, [("a", 1, 1), ("b", 2, 2), ("a, b", 3, 3)]), 0)
    assert contents(spark, tables) == {"orders": [(1, 1), (2, 2)], "items": [(3, 3)], "carts": []}


def test_the_table_of_one_sink_cannot_be_the_quarantine_of_another(spark: SparkSession, tables, create_source):
    orders = Path(tables["orders"])
    spelled = f"{orders.parent}/x/../{orders.name}"
    sinks = {
        "orders": counting_sink(str(orders), app_id="shop"),
        "items": counting_sink(tables["items"], app_id="shop", quarantine=spelled, expect={"some": "n > 0"}),
    }
    router = merge_router(sinks, prepare=without_topic)
    with pytest.raises(ConfigError, match=f"items: the quarantine {spelled} is the target of orders, too"):
        router(create_source(ROUTED, [("items", 1, -1)]), 0)
    assert contents(spark, tables) == {"orders": [], "items": [], "carts": []}


@pytest.mark.core
@pytest.mark.parametrize("max_parallel", [1, 4])
def test_two_spellings_of_one_table_that_only_the_disk_knows(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path, tmp_path: Path, max_parallel: int
):
    """Neither is the same folder to Hadoop. The rows of one of them would be taken for those of a replay."""
    link = tmp_path / "link"
    link.symlink_to(tables["orders"])
    sinks = {"orders": counting_sink(tables["orders"]), "items": counting_sink(str(link))}
    router = merge_router(sinks, prepare=without_topic, max_parallel=max_parallel)
    changes.add([("orders", 1, 1), ("items", 2, 2)])
    for _ in range(2):
        error = run_to_failure(changes.stream(spark), router, checkpoint)
        assert "MergedTwiceError" in error
    assert len(rows(spark, tables["orders"])) == 1


@pytest.mark.parametrize("single_writer", [False, True])
def test_a_table_and_a_copy_of_its_folder(
    spark: SparkSession, tables, changes: ChangeFiles, checkpoint: Path, tmp_path: Path, single_writer: bool
):
    """Both have the same id in Delta's log, and are two tables all the same."""
    shutil.copytree(tables["orders"], tmp_path / "copy")
    both = {"orders": tables["orders"], "items": str(tmp_path / "copy")}
    changes.add([("orders", 1, 1), ("items", 2, 2)], [("items", 2, 20)], [("orders", 1, 10)])
    for number, max_parallel in enumerate((1, 4)):
        sinks = counting_sinks(both, single_writer=single_writer)
        run(changes.stream(spark), merge_router(sinks, prepare=without_topic, max_parallel=max_parallel), checkpoint)
        assert contents(spark, both) == {"orders": [(1, 11 + 2 * number)], "items": [(2, 22 + 4 * number)]}
        changes.add([("orders", 1, 2), ("items", 2, 4)])
