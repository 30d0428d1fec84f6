"""What a batch does without that is known to be small: shuffles, adaptive execution, and jobs for a few deletes."""

from __future__ import annotations

import datetime as dt
import sys
import time
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from stream_merge import merge_sink
from stream_merge.batch import reduce
from stream_merge.bridge import kept_rows, source_size
from stream_merge.bridge.materialized import kept_relation
from stream_merge.bridge.sessions import running_query
from stream_merge.merge.locate import probes
from stream_merge.tombstones.manifest import FOLDER
from tests.spark.jobs import job_descriptions, jobs_since, next_job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.conftest import CreateTable


def tombstones(spark: SparkSession, path: str) -> list[str]:
    """Return the keys and sequences of all tombstones below a table, as text, in which NaN equals NaN."""
    files = [str(file) for file in Path(path, FOLDER).rglob("*.parquet")]
    rows = spark.read.parquet(*files).drop("deleted_ms").collect()
    return sorted(map(str, rows))


MOMENTS = ("0001-01-01 00:00:00", "1850-06-01 12:00:00.000001", "9999-12-31 23:59:59.999999")
SEQUENCES: dict[str, Callable[[int], Any]] = {
    "decimal(9,2)": lambda n: Decimal(n) / 4,
    "decimal(38,10)": lambda n: Decimal(10**27) + Decimal(n) / 10**10,
    "timestamp": lambda n: dt.datetime.fromisoformat(MOMENTS[1 + n % 2]),
    "timestamp_ntz": lambda n: dt.datetime.fromisoformat(MOMENTS[n % 3]),
    "double": lambda n: [float("-inf"), -0.0, float("nan")][n % 3],
    "binary": lambda n: bytes([n, 0, 255]),
    "string": lambda n: f"ключ '{n}' " + "x" * 40,
    "boolean": lambda n: n % 2 == 0,
    "date": lambda n: dt.date(1 if n % 2 else 1582, 10, 4),
}


@pytest.mark.parametrize("sequence_type", SEQUENCES)
def test_deletes_are_remembered_alike_with_and_without_a_job(
    spark: SparkSession, create_table: CreateTable, tmp_path: Path, sequence_type: str
) -> None:
    schema = f"k string, d date, t timestamp, n smallint, s {sequence_type}, v int"

    def row(number: int, value: int) -> tuple[Any, ...]:
        moment = dt.datetime.fromisoformat(MOMENTS[1 + number % 2])
        return (f"k{number}", dt.date(1 + number, 1, 1), moment, -number, SEQUENCES[sequence_type](number), value)

    found = {}
    for locator in ("index", "scan"):
        path = create_table(
            schema, [row(n, 0) for n in range(9)], deletion_vectors=True, path=str(tmp_path / f"of {locator} d=1")
        )
        sink = merge_sink(path, keys=["k", "d", "t", "n"], sequence_by="s", delete_when="v < 0", locator=locator)
        sink.merge(spark.createDataFrame([row(8, 5), row(20, 1)], schema))
        since = next_job_id(spark)
        result = sink.merge(spark.createDataFrame([row(n, -1) for n in range(6)] + [row(21, 1)], schema))
        described = [text.rpartition(": ")[2] for text in job_descriptions(spark, since)]
        assert (result.num_target_rows_deleted, result.num_tombstones_added) == (6, 6)
        found[locator] = tombstones(spark, path), "remember deletes" in described
    # The driver compares no sequences of these types: the index does not serve them.
    assert found["index"] == (found["scan"][0], sequence_type in {"timestamp_ntz", "double", "binary"})
    assert found["scan"][1]
    assert len(found["scan"][0]) == 6


@pytest.mark.core
@pytest.mark.parametrize("max_collected", [probes.MAX_COLLECTED, 1])
def test_what_was_deleted_without_a_job_stays_deleted(
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[[str], list[Row]],
    monkeypatch: pytest.MonkeyPatch,
    max_collected: int,
) -> None:
    """If not all of them come to the driver, a job writes them."""
    monkeypatch.setattr(probes, "MAX_COLLECTED", max_collected)
    schema = "k string, s bigint, v int"
    path = create_table(schema, [(f"k{n}", 0, n) for n in range(5)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="v < 0", locator="index")
    sink.merge(create_source(schema, [("k4", 0, 4), ("k9", 1, 9)]))
    sink.merge(create_source(schema, [("k0", 5, -1), ("k1", 7, -1)]))
    late = merge_sink(path, keys="k", sequence_by="s", delete_when="v < 0")
    result = late.merge(create_source(schema, [("k0", 4, 40), ("k1", 6, 60), ("k2", 1, 20)]))
    assert result.num_outdated_rows == 2
    assert {row["k"]: row["v"] for row in read_rows(path)} == {"k2": 20, "k3": 3, "k4": 4, "k9": 9}


def sorted_jobs(spark: SparkSession, since: int) -> Sequence[str]:
    return sorted(text.rpartition(": ")[2] for text in job_descriptions(spark, since))


@pytest.mark.parametrize("is_small", [True, False])
def test_a_small_batch_is_reduced_in_one_job(
    spark: SparkSession, create_table: CreateTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    monkeypatch.setattr(source_size, "_SMALL_BYTES", source_size._SMALL_BYTES if is_small else 0)
    path = create_table("k bigint, s bigint, v bigint", [(n, 0, n) for n in range(50)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="v < 0", locator="index")
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        for number in range(1, 4):
            rows = spark.range(60).selectExpr("id AS k", f"{number}L + id % 2 AS s", "if(id % 10 = 0, -1L, id) AS v")
            changes = str(tmp_path / str(number))
            rows.union(rows.withColumn("s", F.col("s") - 9)).repartition(3).write.parquet(changes)
            since = next_job_id(spark)
            result = sink.merge(spark.read.schema("k bigint, s bigint, v bigint").parquet(changes))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    # The source is read and measured; of one that is not small the shuffle is a job of its own.
    assert [job for job in sorted_jobs(spark, since) if job == "read the source"] == ["read the source"] * (
        2 if is_small else 3
    )
    assert "remember deletes" not in sorted_jobs(spark, since)
    assert (result.locator, result.num_superseded_rows, result.num_target_rows_updated) == ("index", 60, 54)


def jobs_that_read(spark: SparkSession, since: int) -> list[Any]:
    jobs = [job for job in jobs_since(spark, since) if job.description().isDefined()]
    return [job for job in jobs if job.description().get().endswith("read the source")]


@pytest.mark.parametrize(("kind", "num_stages"), [("file", 1), ("stream", 1), ("files", 2), ("repartitioned", 2)])
def test_what_one_task_computes_is_reduced_by_that_task(
    spark: SparkSession,
    create_table: CreateTable,
    read_rows: Callable[[str], list[Row]],
    tmp_path: Path,
    kind: str,
    num_stages: int,
) -> None:
    schema = "k bigint, s bigint, v double"
    path = create_table(schema, [(n, 0, 0.0) for n in range(50)], deletion_vectors=True)
    changes = spark.range(120).selectExpr("id % 60 AS k", "id AS s", "if(id % 7 = 0, double('NaN'), id / 2D) AS v")
    changes.repartition(2 if kind == "files" else 1).write.parquet(str(tmp_path / "changes"))
    sink = merge_sink(path, keys="k", sequence_by="s")
    since = next_job_id(spark)
    if kind == "stream":
        rows = spark.readStream.schema(schema).parquet(str(tmp_path / "changes"))
        started = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.trigger(availableNow=True).start().awaitTermination()
    else:
        batch = spark.read.schema(schema).parquet(str(tmp_path / "changes"))
        sink.merge(batch.repartition(3) if kind == "repartitioned" else batch)
    read = jobs_that_read(spark, since)
    first = min(read, key=lambda job: job.jobId())
    # Before a shuffle, the rows of a frame that the user distributes are distributed.
    assert first.stageIds().size() == num_stages + (kind == "repartitioned")
    expected = {n % 60: (n, str(float("nan") if n % 7 == 0 else n / 2)) for n in range(60, 120)}
    assert {row["k"]: (row["s"], str(row["v"])) for row in read_rows(path)} == expected


@pytest.mark.parametrize("options", [{"unchanged_columns": "array()"}, {"error_column": "IF(k < 0, 'negative', NULL)"}])
def test_no_step_of_what_one_task_computes_has_a_shuffle(
    spark: SparkSession,
    create_table: CreateTable,
    read_rows: Callable[[str], list[Row]],
    tmp_path: Path,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Special changes and rejected rows are counted before the newest changes are chosen."""
    kept = []

    @contextmanager
    def persisted(frame: DataFrame, **how: Any) -> Iterator[DataFrame]:
        with kept_rows.persisted(frame, **how) as rows:
            kept.append(kept_relation(rows).cacheBuilder().cachedPlan().toString())
            yield rows

    monkeypatch.setattr(reduce, "persisted", persisted)
    schema = "k bigint, s bigint, v double"
    path = create_table(schema, [(n, 0, 0.0) for n in range(50)], deletion_vectors=True)
    rows = spark.range(120).selectExpr("id % 60 AS k", "id AS s", "IF(id = 119, null, id / 2D) AS v")
    rows.coalesce(1).write.parquet(str(tmp_path / "changes"))
    sink = merge_sink(path, keys="k", sequence_by="s", **options)
    for _ in range(2):
        since = next_job_id(spark)
        sink.merge(spark.read.schema(schema).parquet(str(tmp_path / "changes")))
        read = jobs_that_read(spark, since)
        assert len(read) >= 3
        assert {job.stageIds().size() for job in read} == {1}
        # While it runs, adaptive execution may say that there are more partitions; the next step then has a shuffle.
        assert "AdaptiveSparkPlan" not in kept[-1]
    assert {row["k"]: row["v"] for row in read_rows(path)} == {k: (k + 60) / 2 if k < 59 else None for k in range(60)}


class Records(SimpleDataSourceStreamReader):
    """A source with offsets as Kafka's, by topic and partition: three records, then ten."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"orders": {"0": 0, "1": 0}}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[int]], dict[str, Any]]:
        ends = {(0, 0): (2, 1), (2, 1): (2, 11)}
        begin = (start["orders"]["0"], start["orders"]["1"])
        end = ends.get(begin, begin)
        return iter([(n,) for n in range(sum(end) - sum(begin))]), {"orders": {"0": end[0], "1": end[1]}}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[int]]:  # noqa: N802
        return iter([(n,) for n in range(sum(end["orders"].values()) - sum(start["orders"].values()))])


class RecordsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "records"

    def schema(self) -> str:
        return "k bigint"

    def simpleStreamReader(self, schema: Any) -> Records:  # noqa: ARG002, N802
        return Records()


@pytest.mark.parametrize(("format_name", "expected"), [("records", [(3, True), (10, False)]), ("rate", None)])
def test_a_source_that_counts_its_records_tells_how_many_a_batch_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, expected: Any
) -> None:
    monkeypatch.setattr(source_size, "_SMALL_OFFSETS", 5)
    # Workers unpickle the source by value.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(RecordsSource)
    found: list[tuple[int, bool]] = []

    def look(batch: DataFrame, _: int) -> None:
        query = running_query(batch.sparkSession)
        if batch.count():
            found.append((batch.count(), source_size.is_known_to_be_small(batch, query)))

    rows = spark.readStream.format(format_name).load()
    query = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        deadline = time.monotonic() + 120
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            assert query.exception() is None
    finally:
        query.stop()
    if expected is None:
        assert {is_small for _, is_small in found} == {False}
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        ({}, {"a": 3, "b": 4}, 7),
        ({"a": 3, "b": 4}, {"a": 3, "b": 9, "c": 1}, 6),
        # A topic that was made anew, and a partition that is gone, would hide the records of the others.
        ({"a": 1_000_000, "b": 0}, {"a": 5, "b": 900_000}, None),
        ({"a": 1_000_000, "b": 0}, {"b": 900_000}, None),
    ],
)
def test_records_are_counted_by_partition(begins: Any, ends: Any, expected: int | None) -> None:
    of_partition = [{(0, "t", name): offset for name, offset in offsets.items()} for offsets in (begins, ends)]
    assert source_size.num_between(*of_partition) == expected


def test_a_source_that_does_not_tell_its_size_is_merged(
    spark: SparkSession, create_table: CreateTable, read_rows: Callable[[str], list[Row]]
) -> None:
    path = create_table("k bigint, s bigint", [(1, 0)])
    changes = spark.sql(
        "WITH new AS (SELECT id AS k, 5L AS s FROM range(3)) SELECT a.* FROM new a JOIN new b USING (k)"
    )
    assert not source_size.is_known_to_be_small(changes, None)
    merge_sink(path, keys="k", sequence_by="s").merge(changes)
    assert {row["k"]: row["s"] for row in read_rows(path)} == {0: 5, 1: 5, 2: 5}
