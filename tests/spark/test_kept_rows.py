"""Rows that the application keeps: those of a batch stay as they are, and the user's own follow the table."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.bridge.materialized import materialized
from tests.spark.delta_merge import copy_table
from tests.spark.tables import kept_frames

SCHEMA = "k INT, v INT"


@pytest.fixture
def frame(spark, create_table):
    """Rows that are others whenever they are computed, joined with a table."""
    path = create_table(SCHEMA, [(k, k) for k in range(8)])
    random = F.reflect(F.lit("java.util.UUID"), F.lit("randomUUID"))
    return path, spark.read.format("delta").load(path).withColumn("random", random)


def rows_of(frame):
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("name", ["clear", "uncache", "insert", "merge", "delete", "same"])
def test_kept_rows_stay_as_they_are(spark, frame, create_source, name):
    path, asked = frame
    with materialized(asked) as rows:
        before = rows_of(rows)
        if name == "clear":
            spark.catalog.clearCache()
        elif name == "uncache":
            asked.unpersist(blocking=True)
        elif name == "same":
            with materialized(asked) as other:
                assert rows_of(other) != before
        elif name == "insert":
            create_source(SCHEMA, [(9, 9)]).write.format("delta").mode("append").save(path)
        elif name == "delete":
            spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 1")
        else:
            create_source(SCHEMA, [(1, 9)]).createOrReplaceTempView("changes")
            spark.sql(f"MERGE INTO delta.`{path}` t USING changes s ON t.k = s.k WHEN MATCHED THEN UPDATE SET *")
        assert rows_of(rows) == before
    assert not kept_frames(spark)


@pytest.mark.parametrize("deletion_vectors", [False, True])
def test_a_cached_frame_of_the_target_sees_each_merge_and_hides_nothing_from_it(
    spark, create_table, create_source, deletion_vectors
):
    path = create_table(SCHEMA, [(k, 0) for k in range(4)], deletion_vectors=deletion_vectors)
    spark.read.format("delta").load(path).cache().count()
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"v": "target.v + source.v"})
    sink = sink.when_not_matched_insert()
    for number in (1, 2, 3):
        sink.merge(create_source(SCHEMA, [(1, 1), (9, 10)]))
        # Each frame is planned once, and then reads what was kept at that time.
        cached = spark.read.format("delta").load(path)
        assert "InMemoryTableScan" in cached._jdf.queryExecution().executedPlan().toString()
        assert rows_of(cached) == [(0, 0), (1, number), (2, 0), (3, 0), (9, 10 * number)]
    cached.unpersist(blocking=True)
    assert rows_of(spark.read.format("delta").load(path)) == [(0, 0), (1, 3), (2, 0), (3, 0), (9, 30)]


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("deletion_vectors", [False, True])
def test_a_condition_finds_nan_among_the_rows(
    spark, create_table, create_source, read_rows, deletion_vectors, kind, tmp_path
):
    """NaN is greater than any number, but the bounds that Spark keeps with the rows of a batch leave it out."""
    schema, nan = f"k INT NOT NULL, d {kind} NOT NULL, s INT NOT NULL", float("nan")
    path = create_table(schema, [(1, 0.0, 0)], deletion_vectors=deletion_vectors)
    ours, theirs = path, copy_table(path, str(tmp_path / "copy"))
    source = create_source(schema, [(1, 1.0, 1), (2, nan, 1), (3, 3.0, 1)])
    for condition in ("source.d > 5", "source.d = double('nan')", "source.d >= 3"):
        clauses = f"WHEN NOT MATCHED AND {condition} THEN INSERT *"
        merge_sink(ours, on="target.k = source.k").when_not_matched_insert_all(condition=condition).merge(source)
        source.createOrReplaceTempView("nans")
        spark.sql(f"MERGE INTO delta.`{theirs}` target USING nans source ON target.k = source.k {clauses}")
        assert [row["k"] for row in read_rows(ours, "k")] == [row["k"] for row in read_rows(theirs, "k")]
    # A delete that only NaN fulfils is remembered.
    path = create_table(schema, path=str(tmp_path / "ordered"), deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="d > 5")
    for rows in ([(1, 1.0, 1), (2, 1.0, 1)], [(1, 2.0, 3), (2, nan, 3)], [(2, 1.0, 2)]):
        sink.merge(create_source(schema, rows))
    assert read_rows(path, "k", "d", "s") == [(1, 2.0, 3)]


def test_columns_of_kept_rows_are_those_of_the_frame(spark):
    frame = spark.range(3).selectExpr(
        "id AS `a.b`", "CAST(id AS DOUBLE) AS `c d`", "CAST(id AS FLOAT) AS f", "'x' AS s"
    )
    with materialized(frame) as rows:
        assert rows.schema == frame.schema
        assert rows_of(rows.where("`c d` > 0 AND f < 2")) == [(1, 1.0, 1.0, "x")]
