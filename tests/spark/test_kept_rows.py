"""Rows that the application keeps: those of a batch stay as they are, and the user's own follow the table."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.bridge.materialized import materialized
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
