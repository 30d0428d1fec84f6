"""What runs beside the caller: it ends before the caller goes on, and no fault of it is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stream_merge import MergeSink, merge_sink
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.errors import ConstraintViolationError, StreamMergeError
from stream_merge.tombstones.manifest import FOLDER
from tests.spark.delta_log import latest_version

pytestmark = pytest.mark.any_strategy

SCHEMA = "id INT, v STRING, seq BIGINT, op STRING"


class OwnError(Exception):
    """Raised by these tests alone."""


def keyed(path: str) -> MergeSink:
    return merge_sink(path, keys="id", sequence_by="seq", delete_when="op = 'd'")


def fail(message: str) -> None:
    raise OwnError(message)


def test_a_call_has_the_callers_properties_of_spark(spark: SparkSession) -> None:
    spark.sparkContext.setLocalProperty("spark.test.of", "the caller")
    try:
        with BackgroundTask(spark, "what it does", lambda: read_properties(spark)) as running:
            inside = running.result()
        assert inside == ("the caller", "what it does")
        assert spark.sparkContext.getLocalProperty("spark.job.description") != "what it does"
    finally:
        spark.sparkContext.setLocalProperty("spark.test.of", None)  # type: ignore[arg-type]


def read_properties(spark: SparkSession) -> tuple[str | None, ...]:
    names = ("spark.test.of", "spark.job.description")
    return tuple(spark.sparkContext.getLocalProperty(name) for name in names)


def test_a_fault_of_the_call_is_raised_at_the_end_of_the_block(spark: SparkSession) -> None:
    done = []
    with pytest.raises(OwnError, match="of the call"), BackgroundTask(spark, "fails", lambda: fail("of the call")):
        done.append("the block")
    assert done == ["the block"]


def test_a_fault_of_the_block_waits_for_the_call(spark: SparkSession) -> None:
    done = []

    def call() -> None:
        time.sleep(0.3)
        done.append("the call")
        fail("of the call")

    with pytest.raises(OwnError, match="of the block"), BackgroundTask(spark, "fails", call):
        fail("of the block")
    assert done == ["the call"]


class TestTombstonesBesideTheMerge:
    """One of the two fails: nothing of the batch is in the table, nothing is left running, and the batch can come
    again."""

    def prepare(self, path: str, create_source: Any) -> None:
        """Let the sink give the table what it needs, in commits of its own."""
        keyed(path).merge(create_source(SCHEMA, [(1, "old", 0, "u")]))

    def check(self, path: str, batch: Any, error: type[Exception], mend: Any, read_rows: Any) -> None:
        before, threads, rows = latest_version(path), set(threading.enumerate()), read_rows(path)
        with pytest.raises(error):
            keyed(path).merge(batch)
        assert (latest_version(path), read_rows(path)) == (before, rows)
        left = [thread.name for thread in set(threading.enumerate()) - threads if thread.is_alive()]
        assert not left
        mend()
        result = keyed(path).merge(batch)
        assert result.num_tombstones == 1
        assert [(row["id"], row["v"]) for row in read_rows(path)] == [(2, "new")]

    def test_tombstones_that_cannot_be_written(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, v STRING, seq BIGINT", [(1, "a", 1), (2, "b", 1)], deletion_vectors=deletion_vectors
        )
        self.prepare(path, create_source)
        # A file where the folder should be.
        blocked = Path(path) / FOLDER
        blocked.parent.mkdir(exist_ok=True)
        blocked.write_text("")
        batch = create_source(SCHEMA, [(1, None, 5, "d"), (2, "new", 5, "u")])
        self.check(path, batch, StreamMergeError, blocked.unlink, read_rows)

    def test_a_merge_that_fails(self, spark, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, v STRING, seq BIGINT", [(1, "a", 1), (2, "b", 1)], deletion_vectors=deletion_vectors
        )
        self.prepare(path, create_source)
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (length(v) < 3)")
        batch = create_source(SCHEMA, [(1, None, 5, "d"), (2, "new", 5, "u")])
        drop = f"ALTER TABLE delta.`{path}` DROP CONSTRAINT short"
        self.check(path, batch, ConstraintViolationError, lambda: spark.sql(drop), read_rows)
