"""How a batch is reduced is planned while it is evaluated, as if it were like the last one, and then compared."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from stream_merge import debezium, merge_sink
from stream_merge.batch import reduce
from stream_merge.bridge import materialized
from stream_merge.bridge.counted import materialized_and_counted
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record
from tests.spark.jobs import job_descriptions, next_job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from tests.conftest import CreateTable

COLUMNS = "id INT, `a.b` STRING, v DOUBLE"

Records = list[tuple[Any, ...]]


def source(lsn: int) -> dict[str, Any]:
    return {"connector": "postgresql", "snapshot": "false", "lsn": lsn, "txId": lsn}


def change(op: str, lsn: int, key: int, text: Any = None, value: Any = None, **headers: Any) -> tuple[Any, ...]:
    row = {"id": key, "a.b": text, "v": value}
    message = envelope(op, None if op == "d" else row, row if op == "d" else None, **source(lsn))
    return record({"id": key}, message, offset=lsn, **headers)


def key_change(lsn: int, old: int, new: int, text: Any, value: Any) -> Records:
    return [
        change("d", lsn, old, **{"__debezium.newkey": {"id": new}}),
        change("c", lsn + 1, new, text, value, **{"__debezium.oldkey": {"id": old}}),
    ]


# Each batch, whether it is reduced as the last one was, as far as that can tell, and what it changes in the table.
BATCHES: dict[str, tuple[Records, bool, dict[int, tuple[Any, ...] | None]]] = {
    "the first": (
        [change("c", key, key, f"t{key}", key / 2) for key in (1, 2, 3, 4)],
        True,
        {1: ("t1", 0.5), 2: ("t2", 1.0), 3: ("t3", 1.5), 4: ("t4", 2.0)},
    ),
    "one like it": (
        [change("u", 11, 1, "u1", float("nan")), change("u", 10, 1, "old", 0.0)],
        True,
        {1: ("u1", float("nan"))},
    ),
    "with a value that was not sent": (
        [change("u", 20, 2, PLACEHOLDER, 5.0), change("u", 21, 3, "u3", -0.0)],
        False,
        {2: ("t2", 5.0), 3: ("u3", -0.0)},
    ),
    "with another such value": (
        [change("u", 30, 3, PLACEHOLDER, 6.0), change("d", 31, 4)],
        True,
        {3: ("u3", 6.0), 4: None},
    ),
    "without": ([change("u", 40, 1, "w1", 1.0)], False, {1: ("w1", 1.0)}),
    "with a new key": (key_change(50, 2, 9, PLACEHOLDER, 7.0), False, {2: None, 9: ("t2", 7.0)}),
    "after a new key": (
        [change("u", 60, 9, "x9", 8.0), change("c", 61, 5, None, None)],
        False,
        {9: ("x9", 8.0), 5: (None, None)},
    ),
    "with a new key and all values": (key_change(65, 9, 8, "m8", 1.5), False, {9: None, 8: ("m8", 1.5)}),
    "like that": ([change("u", 70, 5, "y5", 9.0)], True, {5: ("y5", 9.0)}),
    "with a row that cannot be merged": (
        [change("u", 80, 5, "z5", "no number"), change("u", 81, 1, "z1", 2.0)],
        True,
        {1: ("z1", 2.0)},
    ),
    "with a TRUNCATE": (
        [record(None, envelope("t", **source(90)), offset=90), change("c", 91, 6, "a6", 3.0)],
        False,
        {1: None, 3: None, 5: None, 8: None, 6: ("a6", 3.0)},
    ),
    "after a TRUNCATE": (
        [change("c", 100, 7, "b7", 4.0), change("u", 85, 1, "late", 0.0)],
        True,
        {7: ("b7", 4.0)},
    ),
    "the last": ([change("u", 110, 6, "c6", 5.0), change("d", 111, 7)], True, {6: ("c6", 5.0), 7: None}),
}


@pytest.fixture
def num_planned(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the reduction of a batch is planned."""
    counter: Counter[str] = Counter()
    plan = reduce.planned_reduction

    def counted(reduction: reduce.Reduction) -> Any:
        counter["planned"] += 1
        return plan(reduction)

    monkeypatch.setattr("stream_merge.batch.attempts.planned_reduction", counted)
    return counter


@pytest.mark.core
def test_batches_of_all_kinds_follow_each_other(
    spark: SparkSession, tmp_path: Path, read_rows: Callable[[str], list[Row]], num_planned: Counter[str]
) -> None:
    path, aside = str(tmp_path / "t"), str(tmp_path / "aside")
    sink = merge_sink(path, keys="id", **debezium.MERGE_OPTIONS, quarantine=aside, create_if_missing=True)
    expected: dict[int, Any] = {}
    for name, (records, is_alike, changed) in BATCHES.items():
        num_planned.clear()
        result = sink.merge(debezium.changes(frame_of(spark, *records), COLUMNS, ["id"]))
        # What was planned in vain is planned again.
        assert num_planned["planned"] == (1 if is_alike else 2), name
        expected = {key: row for key, row in {**expected, **changed}.items() if row is not None}
        rows = {row["id"]: (row["a.b"], row["v"]) for row in read_rows(path)}
        assert str(sorted(rows.items())) == str(sorted(expected.items())), name
        assert result.num_quarantined_rows == name.startswith("with a row"), name
    assert [row["offset"] for row in read_rows(aside)] == [80]


def test_what_is_special_is_counted_by_the_job_that_evaluates_the_batch(
    spark: SparkSession, create_table: CreateTable
) -> None:
    sink = merge_sink(
        create_table("id INT, `a.b` STRING, v DOUBLE", [(1, "x", 1.0)], deletion_vectors=True),
        keys="id",
        **debezium.MERGE_OPTIONS,
    )
    for lsn in (10, 20, 30):
        rows = frame_of(spark, change("u", lsn, 1, "y", 2.0), change("c", lsn + 1, lsn, "n", 3.0))
        first = next_job_id(spark)
        sink.merge(debezium.changes(rows, COLUMNS, ["id"]))
        phases = Counter(text.rpartition(": ")[2] for text in job_descriptions(spark, first))
        # The rows that arrived, those that are merged, and their measures.
        assert phases["read the source"] == 3


def counted(frame: DataFrame, counts: Sequence[Column]) -> tuple[list[Row], dict[str, Any], int]:
    with materialized_and_counted(frame, counts, "s", lambda rows: len(rows.columns)) as (rows, found, result):
        return rows.collect(), dict(found), result


def number(condition: Column) -> Column:
    return F.count(F.when(condition, 1)).alias("found")


@pytest.mark.core
@pytest.mark.parametrize("num_partitions", [1, 3])
def test_rows_and_counts_are_those_of_one_evaluation(spark: SparkSession, num_partitions: int) -> None:
    frame = spark.range(0, 1000, 1, num_partitions).withColumn("f", F.rand().alias("f"))
    texts = F.array_distinct(F.flatten(F.collect_set(F.array(F.when(F.col("id") < 2, F.concat(F.lit('ü".'), "id"))))))
    rows, found, num_columns = counted(
        frame, [number(F.col("s.f") < 0.5), texts.alias("texts"), F.max("id").alias("n")]
    )
    assert found["found"] == sum(row["f"] < 0.5 for row in rows)
    assert (found["rows"], found["n"], num_columns, len(rows)) == (1000, 999, 2, 1000)
    assert {*found["texts"]} == {'ü".0', 'ü".1', None}


@pytest.mark.parametrize("num_discarded", [1, 2])
def test_what_was_observed_of_a_discarded_evaluation_does_not_count(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, num_discarded: int
) -> None:
    """As where two executors keep a version of the same rows."""
    verdicts = iter([False] * num_discarded + [True])
    monkeypatch.setattr(materialized, "_are_unique", lambda *_: next(verdicts))
    frame = spark.range(0, 1000, 1, 2).withColumn("f", F.rand())
    rows, found, _ = counted(frame, [number(F.col("f") < 0.5)])
    assert (found["found"], found["rows"]) == (sum(row["f"] < 0.5 for row in rows), 1000)


@pytest.mark.parametrize("observation", [None, {"rows": 999, "found": 0}])
def test_where_not_all_rows_were_observed_they_are_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, observation: dict[str, int] | None
) -> None:
    monkeypatch.setattr("stream_merge.bridge.counted._observation", lambda _: observation)
    _, found, _ = counted(spark.range(1000), [number(F.col("id") < 5)])
    assert found == {"found": 5, "rows": 1000}


@pytest.mark.parametrize("is_aside", [False, True])
def test_the_clock_of_a_condition_goes_on(
    spark: SparkSession, create_table: CreateTable, tmp_path: Path, is_aside: bool
) -> None:
    path = create_table("id INT, at TIMESTAMP", [(1, None)], deletion_vectors=True)
    options: dict[str, Any] = {"quarantine": str(tmp_path / "aside")} if is_aside else {}
    sink = merge_sink(path, keys="id", sequence_by="id", truncate_when="at <= TIMESTAMP'now'", **options)
    later = spark.sql("SELECT 2 AS id, TIMESTAMP'now' + INTERVAL 1 HOUR AS at")
    sink.merge(later)
    time.sleep(1)
    sink.merge(spark.sql("SELECT 3 AS id, TIMESTAMP'now' AS at"))
    # The second batch is a TRUNCATE.
    assert spark.read.format("delta").load(path).count() == 0


def evaluations(spark: SparkSession) -> Iterator[tuple[str, Column]]:
    """Yield conditions of which Spark observes only some."""
    yield "plain", F.col("s.id") < 3
    yield "random", (F.col("id") < 3) & (F.rand() < 2)
    yield "subquery", F.expr("id < (SELECT max(id) + 1 FROM range(3))")
    yield "user's function", F.udf(lambda n: n % 2, IntegerType())("id") == 1


@pytest.mark.parametrize("name", ["plain", "random", "subquery", "user's function"])
def test_what_cannot_be_observed_is_counted_all_the_same(spark: SparkSession, name: str) -> None:
    rows, found, _ = counted(spark.range(6).toDF("id"), [number(dict(evaluations(spark))[name])])
    assert (found["found"], found["rows"], len(rows)) == (3, 6, 6)


@pytest.mark.core
def test_without_rows_nothing_is_counted(spark: SparkSession) -> None:
    rows, found, _ = counted(spark.range(0), [number(F.col("id") > 0), F.collect_set("id").alias("ids")])
    assert (rows, found) == ([], {"found": 0, "ids": [], "rows": 0})
