"""What else happens in the application while the rows of a batch are kept does not change them."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

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
