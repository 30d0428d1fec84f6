"""A table is put elsewhere, or an older state of it is put back, while the process of its sink lives."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import merge_sink
from stream_merge.bridge.transaction import Transaction
from tests.spark.delta_log import latest_version
from tests.streaming.streams import (
    SCHEMA,
    ChangeFiles,
    count,
    counting_sink,
    forget_commit,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import CreateTable

pytestmark = [
    pytest.mark.any_strategy,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

OPTIONS: dict[str, dict[str, Any]] = {"keys": {}, "ordered": {"sequence_by": "n"}, "index": {"locator": "index"}}


@pytest.fixture
def target(create_table: CreateTable, deletion_vectors: bool) -> str:
    return create_table(SCHEMA, deletion_vectors=deletion_vectors)


@pytest.mark.core
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("num_inserts", [1, 2])
def test_a_backup_that_is_put_back_has_a_history_of_its_own(
    spark: SparkSession,
    create_source: Callable[..., DataFrame],
    target: str,
    options: dict[str, Any],
    num_inserts: int,
):
    """It has the table's id, and versions with the numbers of those that are lost, but with other files."""
    sink = merge_sink(target, keys="id", **options)

    def merge(*given: tuple[int, int]) -> None:
        sink.merge(create_source(SCHEMA, given))

    merge((1, 1), (2, 1))
    backup = shutil.copytree(target, f"{target}-backup")
    merge((1, 2), (3, 2))
    merge((2, 3))
    shutil.rmtree(target)
    shutil.copytree(backup, target)
    for number in range(num_inserts):
        create_source(SCHEMA, [(4 + number, 1)]).write.format("delta").option("mergeSchema", "true").mode(
            "append"
        ).save(target)
    merge((1, 4), (4, 4), (6, 4))
    inserted = {5: 1} if num_inserts == 2 else {}
    assert dict(rows(spark, target)) == {1: 4, 2: 1, 4: 4, 6: 4, **inserted}
    merge((2, 5), (6, 5))
    assert dict(rows(spark, target)) == {1: 4, 2: 5, 4: 4, 6: 5, **inserted}


def test_the_list_of_files_is_loaded_once_as_long_as_the_history_goes_on(
    spark: SparkSession, create_source: Callable[..., DataFrame], target: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever writes checkpoints, and whoever else commits, even where the sink's process has seen neither."""
    loads = []
    load = Transaction.all_files
    monkeypatch.setattr(Transaction, "all_files", lambda self: loads.append(self.version) or load(self))
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    sink = merge_sink(target, keys="id")
    for number in range(8):
        sink.merge(create_source(SCHEMA, [(number % 3, number)]))
        if number % 4 == 3:
            create_source(SCHEMA, [(10 + number, 0)]).write.format("delta").mode("append").save(target)
        if number == 5:
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert dict(rows(spark, target)) == {0: 6, 1: 7, 2: 5, 13: 0, 17: 0}
    assert len(loads) == 1


@pytest.mark.core
@pytest.mark.parametrize("is_older", [False, True])
def test_a_table_by_name_that_is_moved_to_a_copy_is_merged_there(
    spark: SparkSession,
    create_source: Callable[..., DataFrame],
    create_table: CreateTable,
    deletion_vectors: bool,
    tmp_path: Path,
    is_older: bool,
):
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    create_table(SCHEMA, path=before, deletion_vectors=deletion_vectors)
    spark.sql(f"CREATE TABLE moved USING delta LOCATION '{before}'")
    try:
        sink = merge_sink("moved", keys="id", locator="index")
        sink.merge(create_source(SCHEMA, [(1, 1), (2, 1)]))
        if is_older:
            shutil.copytree(before, after)
        sink.merge(create_source(SCHEMA, [(1, 2), (3, 2)]))
        if not is_older:
            shutil.copytree(before, after)
        spark.sql(f"ALTER TABLE moved SET LOCATION '{after}'")
        sink.merge(create_source(SCHEMA, [(2, 3), (4, 3)]))
        sink.merge(create_source(SCHEMA, [(4, 4)]))
        assert dict(rows(spark, after)) == {1: 1 if is_older else 2, 2: 3, 4: 4} | ({} if is_older else {3: 2})
        assert dict(rows(spark, before)) == {1: 2, 2: 1, 3: 2}
    finally:
        spark.sql("DROP TABLE moved")


@pytest.mark.core
def test_a_replay_for_a_table_and_its_copy_is_skipped_in_both(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str, tmp_path: Path
):
    """A copy of a table has its id, so that both sinks merge under the same application id."""
    copy = shutil.copytree(target, tmp_path / "copy")
    changes.add([(1, 1), (2, 2)], [(1, 10)])
    sinks = [counting_sink(target), counting_sink(str(copy))]

    def merge_both(frame: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(frame, batch_id)

    run(changes.stream(spark), merge_both, checkpoint)
    forget_commit(checkpoint, 1)
    versions = latest_version(target), latest_version(str(copy))
    run(changes.stream(spark), merge_both, checkpoint)
    assert rows(spark, target) == rows(spark, str(copy)) == count([(1, 1), (2, 2)], [(1, 10)])
    assert (latest_version(target), latest_version(str(copy))) == versions


@pytest.mark.core
def test_a_replay_by_another_spelling_of_a_folder_is_refused_again(
    spark: SparkSession, changes: ChangeFiles, checkpoint: Path, target: str, tmp_path: Path
):
    """The rows of the second call are in no table: what was refused must not pass at the restart."""
    link = tmp_path / "link"
    link.symlink_to(target)
    changes.add([(1, 1)])
    sinks = [counting_sink(target), counting_sink(str(link))]

    def merge_both(frame: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(frame, batch_id)

    for _ in range(2):
        error = run_to_failure(changes.stream(spark), merge_both, checkpoint)
        assert "batch 0 is merged a second time by the same query" in error
    assert rows(spark, target) == [(1, 1)]
