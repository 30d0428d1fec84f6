"""Frames that a merge keeps, in few parts; expressions without notes of where they were made: the user's own are as
before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stream_merge import debezium, merge_sink
from stream_merge.batch.reduce import in_one_task
from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.sessions import active, planned_at_once, summaries
from stream_merge.errors import StreamMergeError
from stream_merge.merge.source import MAX_UNSHUFFLED_ROWS
from stream_merge.order.sequence import newest_changes
from tests.conftest import CreateTable
from tests.debezium.records import frame_of
from tests.spark.jobs import job_descriptions, jobs_since, next_job_id
from tests.spark.tables import upsert

SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
COALESCE_KEPT = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@pytest.fixture
def many_partitions(spark: SparkSession) -> Iterator[None]:
    """Give the session the number of partitions that Spark has by default."""
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    spark.conf.set(SHUFFLE_PARTITIONS, "200")
    yield
    spark.conf.set(SHUFFLE_PARTITIONS, before)


def ranked(spark: SparkSession, num_rows: int) -> DataFrame:
    of_key = Window.partitionBy("key").orderBy("id")
    return spark.range(num_rows).withColumn("key", F.col("id") % 100).withColumn("rank", F.row_number().over(of_key))


@pytest.mark.any_strategy
@pytest.mark.parametrize("is_substituted", [True, False])
def test_options_may_name_settings(spark, create_table, create_source, read_rows, deletion_vectors, is_substituted):
    """Their values are shorter or longer than their names, and more columns come after them."""
    path = create_table("id INT, v STRING", [(1, "a"), (2, "b"), (3, "c")], deletion_vectors=deletion_vectors)
    settings = {
        "the.letter.of.deletes": "d",
        "t": "a longer text",
        "spark.sql.variable.substitute": str(is_substituted),
    }
    letter, text = ("d", "a longer text") if is_substituted else ("${the.letter.of.deletes}", "${t}")
    rows = [(1, "A", letter, True, text), (2, "B", letter, False, text), (3, "C", letter, True, "another text")]
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        sink = merge_sink(
            path,
            keys="id",
            columns=["id", "v"],
            delete_when="op = '${the.letter.of.deletes}' AND is_certain AND why IN ('${t}', 'no') AND is_certain",
        )
        sink.merge(create_source("id INT, v STRING, op STRING, is_certain BOOLEAN, why STRING", rows))
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert read_rows(path) == [(2, "B"), (3, "C")]


@pytest.mark.core
def test_few_rows_are_kept_in_few_parts(spark: SparkSession, many_partitions: None) -> None:
    before = spark.conf.get(COALESCE_KEPT)
    with persisted(ranked(spark, 5_000)) as rows:
        assert rows.agg(F.count("*"), F.max("rank")).collect()[0][:] == (5_000, 50)
        assert rows.rdd.getNumPartitions() < 10
        assert spark.conf.get(COALESCE_KEPT) == before
        assert rows.sparkSession is spark


def test_settings_that_are_changed_later_count(spark: SparkSession, many_partitions: None) -> None:
    num_kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    with persisted(ranked(spark, 10)) as rows:
        assert rows.count() == 10
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        with persisted(ranked(spark, 20)) as rows:
            assert rows.count() == 20
            assert rows.rdd.getNumPartitions() == 200
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == num_kept


@pytest.mark.core
def test_a_summary_is_one_job_of_few_tasks(spark: SparkSession, many_partitions: None) -> None:
    adaptive = "spark.sql.adaptive.enabled"
    before = spark.conf.get(adaptive)
    spark.conf.set(adaptive, "true")
    try:
        rows = spark.range(0, 1_000, 1, 3).withColumn("key", F.col("id") % 100)
        first = next_job_id(spark)
        largest = planned_at_once(rows.groupBy("key").agg(F.max("id").alias("id")))
        assert sorted(tuple(row) for row in largest.collect()) == [(key, 900 + key) for key in range(100)]
        assert len(job_descriptions(spark, first)) == 1
        assert largest.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
        assert spark.conf.get(adaptive) == "true"
        assert spark.conf.get(SHUFFLE_PARTITIONS) == "200"
    finally:
        spark.conf.set(adaptive, before)


def test_two_summaries_are_one_job(spark: SparkSession) -> None:
    first = next_job_id(spark)
    counts = spark.range(10).agg(F.count("*").alias("n"), F.max("id").alias("last"))
    names = spark.range(3).agg(F.collect_list(F.concat(F.lit("n"), "id")).alias("names"), F.lit(None).alias("none"))
    found = summaries(counts, names)
    assert [tuple(row) for row in found] == [(10, 9), (["n0", "n1", "n2"], None)]
    assert len(job_descriptions(spark, first)) == 1


def test_the_newest_of_few_changes_are_chosen_without_a_shuffle(spark: SparkSession, many_partitions: None) -> None:
    config = merge_sink("t", keys="id", sequence_by="seq").config
    changes = spark.createDataFrame([(1, 1, "a"), (1, 2, "b"), (2, 5, "c")], "id INT, seq INT, v STRING").repartition(3)
    for num_rows, is_shuffled in ((3, False), (None, True), (MAX_UNSHUFFLED_ROWS + 1, True)):
        rows = newest_changes(in_one_task(changes, num_rows), config, changes.columns, lambda _, make: make())
        assert sorted(tuple(row) for row in rows.select("id", "v").collect()) == [(1, "b"), (2, "c")]
        assert ("hashpartitioning(id" in rows._jdf.queryExecution().toString()) == is_shuffled


def test_a_batch_is_evaluated_in_one_job_measured_in_one_and_located_in_two(
    spark: SparkSession, create_table: CreateTable, create_source, many_partitions: None
) -> None:
    sink = upsert(create_table("id INT, n INT", [(1, 0)], deletion_vectors=True))
    source = create_source("id INT, n INT", [(1, 1), (2, 2)])
    first = next_job_id(spark)
    sink.merge(source)
    phases = Counter(description.rpartition(": ")[2] for description in job_descriptions(spark, first))
    # Nothing looks at the rows before all are kept. The second to locate is the broadcast of the batch.
    assert (phases["read the source"], phases["locate"]) == (2, 2)


@pytest.mark.core
@pytest.mark.parametrize("own", [None, "7"])
def test_a_checkpoint_of_a_small_log_is_few_tasks_unless_the_user_wants_more(
    spark: SparkSession, create_table: CreateTable, create_source, own: str | None
) -> None:
    path = create_table("id INT, n INT", [(1, 0)], properties={"delta.checkpointInterval": "3"})
    before = spark.conf.get(SNAPSHOT_PARTITIONS)
    spark.conf.unset(SNAPSHOT_PARTITIONS)
    if own is not None:
        spark.conf.set(SNAPSHOT_PARTITIONS, own)
    try:
        first = next_job_id(spark)
        for n in range(1, 5):
            upsert(path).merge(create_source("id INT, n INT", [(1, n)]))
        most = max(int(job.numTasks()) for job in jobs_since(spark, first))
        assert spark.conf.get(SNAPSHOT_PARTITIONS, None) == own
    finally:
        spark.conf.set(SNAPSHOT_PARTITIONS, before)
    assert list(Path(path).glob("_delta_log/*.checkpoint*.parquet"))
    assert most < 7 if own is None else 7 <= most < 50


@pytest.mark.core
def test_only_the_users_own_expressions_carry_where_they_were_made(
    spark: SparkSession, create_table: CreateTable, create_source, monkeypatch
):
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)

    def divided() -> bool:
        """Return whether an error names the line that made the expression."""
        with active(spark), pytest.raises(PySparkException) as caught:
            spark.range(1).select(F.lit(1) / F.col("id")).collect()
        return __file__ in str(caught.value)

    assert divided()
    with without_call_sites(), ThreadPoolExecutor(1) as another:
        assert not divided()
        with without_call_sites():
            assert not divided()
        assert not divided()
        assert another.submit(divided).result()
    assert divided()

    source, records = create_source("id INT, n INT", [(1, 1)]), frame_of(spark)
    target = create_table("id INT, n INT", [(1, 0)])
    noted: list[int] = []
    monkeypatch.setattr("pyspark.errors.utils._capture_call_site", lambda depth: noted.append(depth) or "")
    upsert(target).merge(source)
    debezium.changes(records, "id INT, n INT", ["id"])
    assert noted == []


def test_the_whole_table_is_overwritten_whatever_the_session_says(
    spark: SparkSession,
    create_table: CreateTable,
    tmp_path: Path,
    settings: Callable[[Mapping[str, str]], None],
) -> None:
    settings({"spark.sql.sources.partitionOverwriteMode": "dynamic"})
    path = create_table("k INT, n BIGINT", [(3, 1)], partition_by=["k"])
    source = str(tmp_path / "source")
    spark.createDataFrame([(1,), (2,), (2,)], "k INT").coalesce(1).write.parquet(source)
    counted = spark.readStream.schema("k INT").parquet(source).groupBy("k").agg(F.count("*").alias("n"))
    writer = counted.writeStream.outputMode("complete").foreachBatch(merge_sink(path, keys="k"))
    writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(map(tuple, spark.read.format("delta").load(path).collect())) == [(1, 1), (2, 2)]


def test_rows_are_set_aside_whatever_transaction_id_the_session_has(
    spark: SparkSession,
    create_table: CreateTable,
    tmp_path: Path,
    settings: Callable[[Mapping[str, str]], None],
) -> None:
    name = "spark.databricks.delta.write.txn"
    settings({f"{name}AppId": "mine", f"{name}Version": "7"})
    path, quarantine = create_table("k INT, n INT"), str(tmp_path / "quarantine")
    sink = merge_sink(path, keys="k", quarantine=quarantine, expect={"positive": "n > 0"})
    for k in (1, 2):
        sink.merge(spark.createDataFrame([(k, -1), (k + 10, 1)], "k INT, n INT"))
    settings({f"{name}Version": "8"})
    assert spark.read.format("delta").load(quarantine).count() == 2
    assert sorted(row["k"] for row in spark.read.format("delta").load(path).collect()) == [11, 12]


def test_no_number_becomes_another_one_whatever_the_session_allows(
    spark: SparkSession, create_table: CreateTable, settings: Callable[[Mapping[str, str]], None]
) -> None:
    flag = "spark.databricks.delta.updateAndMergeCastingFollowsAnsiEnabledFlag"
    settings({flag: "true", "spark.sql.ansi.enabled": "false"})
    path = create_table("k INT, n INT, s INT")
    source = spark.createDataFrame([(1, 2**40 + 7, 1)], "k INT, n BIGINT, s INT")
    with pytest.raises(StreamMergeError, match="CAST_OVERFLOW"):
        merge_sink(path, keys="k", sequence_by="s").merge(source)
    assert spark.read.format("delta").load(path).count() == 0


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    ("name", "value"),
    [("spark.sql.retainGroupColumns", "false"), ("spark.sql.parser.quotedRegexColumnNames", "true")],
)
def test_a_setting_that_changes_what_a_column_is_stops_no_merge(
    spark, create_table, create_source, settings, deletion_vectors, name, value
):
    """A key is updated, another one deleted, and an older change of that comes late; rows get another key."""
    path = create_table(
        "k INT, `p q` INT, v STRING",
        [(1, 1, "a"), (2, 1, "b")],
        deletion_vectors=deletion_vectors,
        properties={"delta.columnMapping.mode": "name"},
    )
    settings({name: value})
    schema = "k INT, `p q` INT, v STRING, op STRING, unset ARRAY<STRING>, old STRUCT<k: INT>, new STRUCT<k: INT>"
    sink = merge_sink(
        path,
        keys="k",
        sequence_by="p q",
        delete_when="op = 'd'",
        except_columns=["op", "unset", "old", "new"],
        unchanged_columns="unset",
        old_key="old",
        new_key="new",
        locator="index",
    )
    for batch in (
        [(1, 5, "A", "u", [], None, None), (2, 9, None, "d", [], None, None)],
        [
            (2, 6, "late", "u", [], None, None),
            (1, 10, None, "d", [], None, (3,)),
            (3, 10, None, "u", ["v"], (1,), None),
        ],
        [(4, 11, "new", "u", [], None, None), (3, 12, "C", "u", [], None, None)],
    ):
        sink.merge(create_source(schema, batch))
    rows = spark.newSession().read.format("delta").load(path).select("k", F.col("p q"), "v").collect()
    assert sorted(map(tuple, rows)) == [(3, 12, "C"), (4, 11, "new")]


@pytest.mark.core
@pytest.mark.any_strategy
@pytest.mark.parametrize("name", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_a_file_that_cannot_be_read_is_no_empty_file(
    spark, create_table, read_rows, tmp_path, settings, caplog, deletion_vectors, name
):
    """A row that is not found would be inserted once more. The source's reader may leave out what it likes."""
    path = create_table("k INT, v STRING", [(1, "old")], deletion_vectors=deletion_vectors)
    source = tmp_path / "source"
    for k in (1, 2):
        spark.createDataFrame([(k, "new")], "k INT, v STRING").coalesce(1).write.mode("append").parquet(str(source))
    settings({f"spark.sql.files.{name}": "true"})

    def damage(folder: Path, *, only: str = "*.parquet") -> Path:
        (file, *_) = sorted(folder.glob(only), key=lambda each: each.stat().st_mtime)
        kept = file.rename(file.with_name("_" + file.name))
        (folder / f".{file.name}.crc").unlink(missing_ok=True)
        if name == "ignoreCorruptFiles":
            file.write_bytes(b"PAR1" + bytes(kept.stat().st_size - 4))
        return kept

    read = spark.read.option(name, "true").parquet(str(source))
    kept = damage(Path(path))
    for _ in range(2):
        with pytest.raises(StreamMergeError, match="FAILED_READ_FILE"):
            merge_sink(path, keys="k").merge(read)
    kept.rename(kept.with_name(kept.name[1:]))
    damage(source)
    merge_sink(path, keys="k").merge(read)
    assert read_rows(path) == [(1, "old"), (2, "new")]
    told = [record.getMessage() for record in caplog.records if "does not count in a merge" in record.getMessage()]
    assert {text.partition(" ")[0] for text in told} == {f"spark.sql.files.{name}"}


@pytest.mark.parametrize(("mode", "used"), [("formatted", "simple"), ("extended", "extended")])
def test_plans_are_written_for_the_ui_in_the_short_format_unless_the_user_has_chosen_one(spark, mode, used):
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.ui.explainMode", mode)
    assert planned_at_once(session.range(1)).sparkSession.conf.get("spark.sql.ui.explainMode") == used
    assert session.conf.get("spark.sql.ui.explainMode") == mode


@pytest.fixture
def works_in_clone(spark: SparkSession) -> Iterator[None]:
    """Without adaptive execution, as in streams of Spark 4.1, the merge works in a clone of the session."""
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)


@pytest.mark.core
@pytest.mark.any_strategy
@pytest.mark.usefixtures("works_in_clone")
def test_a_function_that_is_registered_anew_counts_from_the_next_batch(
    spark: SparkSession, create_table: CreateTable, create_source, read_rows, deletion_vectors: bool
):
    path = create_table("id INT, v STRING", deletion_vectors=deletion_vectors)
    try:
        sink = merge_sink(path, keys="id", delete_when="is_gone(id)", expect={"good": "is_good(v)"})
        for limit in (1, 2, 3):
            spark.udf.register("is_gone", lambda key, limit=limit: key > limit, "boolean")
            spark.udf.register("is_good", lambda text, limit=limit: text == f"{limit}", "boolean")
            sink.merge(create_source("id INT, v STRING", [(key, f"{limit}") for key in range(1, 5)]))
            assert [tuple(row) for row in read_rows(path)] == [(key, f"{limit}") for key in range(1, limit + 1)]
    finally:
        for name in ("is_gone", "is_good"):
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")


@pytest.mark.any_strategy
@pytest.mark.usefixtures("works_in_clone")
def test_a_function_of_the_catalog_that_is_replaced_counts_from_the_next_batch(
    spark: SparkSession, create_table: CreateTable, create_source, read_rows, deletion_vectors: bool
):
    path = create_table("id INT, v STRING", deletion_vectors=deletion_vectors)
    try:
        sink = merge_sink(path, keys="id", quarantine=f"{path}_bad", expect={"good": "is_good(id)"})
        for limit in (1, 2, 3):
            spark.sql(f"CREATE OR REPLACE FUNCTION is_good(key INT) RETURNS BOOLEAN RETURN key <= {limit}")
            sink.merge(create_source("id INT, v STRING", [(key, f"{limit}") for key in range(1, 5)]))
            assert [tuple(row) for row in read_rows(path)] == [(key, f"{limit}") for key in range(1, limit + 1)]
    finally:
        spark.sql("DROP FUNCTION IF EXISTS is_good")


@pytest.mark.core
@pytest.mark.always
@pytest.mark.any_strategy
@pytest.mark.usefixtures("works_in_clone")
def test_a_view_that_is_made_anew_counts_from_the_next_batch(
    spark: SparkSession, create_table: CreateTable, create_source, read_rows, deletion_vectors: bool
):
    path = create_table("k INT, v INT", [(1, 0)], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"v": "(SELECT max(rate) FROM rates)"})
    try:
        for rate in (100, 200, 300):
            spark.sql(f"SELECT {rate} AS rate").createOrReplaceTempView("rates")
            sink.merge(create_source("k INT", [(1,)]))
            assert [tuple(row) for row in read_rows(path)] == [(1, rate)]
        # A name that is free again is that of a table.
        spark.catalog.dropTempView("rates")
        spark.sql("CREATE TABLE rates USING delta AS SELECT 400 AS rate")
        sink.merge(create_source("k INT", [(1,)]))
        assert [tuple(row) for row in read_rows(path)] == [(1, 400)]
    finally:
        spark.catalog.dropTempView("rates")
        spark.sql("DROP TABLE IF EXISTS rates")


@pytest.mark.always
@pytest.mark.any_strategy
@pytest.mark.usefixtures("works_in_clone")
def test_a_name_is_that_of_the_current_database(spark: SparkSession, create_source, read_rows):
    places = ("default", "other_place")
    spark.sql("CREATE DATABASE other_place")
    sink = merge_sink("placed", keys="k")
    try:
        for place in places:
            spark.sql(f"CREATE TABLE {place}.placed (k INT, v STRING) USING delta")
        for number in (1, 2):
            for place in places:
                spark.sql(f"USE {place}")
                sink.merge(create_source("k INT, v STRING", [(number, place)]))
        for place in places:
            rows = spark.table(f"{place}.placed").collect()
            assert sorted(map(tuple, rows)) == [(1, place), (2, place)]
    finally:
        spark.sql("USE default")
        spark.sql("DROP DATABASE other_place CASCADE")
        spark.sql("DROP TABLE IF EXISTS placed")
