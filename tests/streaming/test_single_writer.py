"""`single_writer`: the checkpoint knows what the table got, so that an overwritten commit is noticed after a
restart."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from stream_merge import merge_sink
from tests.spark.delta_log import latest_version
from tests.streaming.streams import ChangeFiles, count, counting_sink, query_id, rows, run, run_to_failure

BATCHES = [[(1, 1)], [(1, 10), (2, 20)], [(2, 200)]]


@pytest.fixture
def changes(tmp_path):
    """Return changes in three micro-batches."""
    files = ChangeFiles(tmp_path / "changes")
    files.add(*BATCHES)
    return files


@pytest.fixture
def checkpoint(tmp_path):
    """Return the folder of the checkpoint."""
    return tmp_path / "checkpoint"


@pytest.fixture
def target(create_table):
    """Return an empty table."""
    return create_table("id INT, n INT")


def sink(target: str, **options: Any):
    """Return a new sink, as a new process makes one."""
    return counting_sink(target, **{"single_writer": True, **options})


def notes(checkpoint: Path) -> list[str]:
    """Return the numbers that the checkpoint keeps."""
    return [file.name for file in checkpoint.glob("stream_merge/*/[0-9]*")]


def overwrite_last_commit(spark, target: str) -> None:
    """Put another writer's commit in the place of the last one, as a store without mutual exclusion lets it."""
    version = latest_version(target)
    for file in Path(target, "_delta_log").glob(f"*{version:020d}*"):
        file.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    spark.createDataFrame([(7, 7)], "id INT, n INT").write.format("delta").mode("append").save(target)
    assert latest_version(target) == version


def test_a_commit_that_was_overwritten_is_noticed_after_a_restart(spark, changes, checkpoint, target):
    run(changes.stream(spark), sink(target), checkpoint)
    overwrite_last_commit(spark, target)
    changes.add([(3, 3)])
    error = run_to_failure(changes.stream(spark), sink(target), checkpoint)
    assert "CommitLostError" in error
    assert "a commit was overwritten. Batch 2 of application" in error
    assert "knows of none after batch 1" in error
    assert rows(spark, target) == sorted([*count(*BATCHES[:2]), (7, 7)])
    # What the error says to do where the table may be without the batch.
    shutil.rmtree(checkpoint / "stream_merge")
    run(changes.stream(spark), sink(target), checkpoint)
    assert rows(spark, target) == sorted([*count(*BATCHES[:2]), (3, 3), (7, 7)])


def test_a_note_of_an_earlier_version_counts(spark, changes, checkpoint, target):
    """It had the same place for a table and for a copy of its folder. It goes with the first note of this version."""
    run(changes.stream(spark), sink(target), checkpoint)
    (note,) = (checkpoint / "stream_merge").iterdir()
    table_id = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").first()["id"]
    former = note.with_name(hashlib.sha256(f"{query_id(checkpoint)}\n{table_id}".encode()).hexdigest()[:32])
    note.rename(former)
    changes.add([(3, 3)])
    run(changes.stream(spark), sink(target), checkpoint)
    assert (notes(checkpoint), [*(checkpoint / "stream_merge").iterdir()]) == (["3"], [note])
    note.rename(former)
    overwrite_last_commit(spark, target)
    changes.add([(4, 4)])
    assert "CommitLostError" in run_to_failure(changes.stream(spark), sink(target), checkpoint)


def test_the_checkpoint_keeps_one_number_a_table(spark, changes, checkpoint, target):
    run(changes.stream(spark), sink(target), checkpoint)
    assert notes(checkpoint) == ["2"]
    changes.add([(3, 3)])
    run(changes.stream(spark), sink(target), checkpoint)
    assert notes(checkpoint) == ["3"]
    assert rows(spark, target) == count(*BATCHES, [(3, 3)])


def test_nothing_is_kept_where_the_log_store_excludes_other_writers(spark, changes, checkpoint, target):
    run(changes.stream(spark), sink(target, single_writer=False), checkpoint)
    assert not (checkpoint / "stream_merge").exists()


def test_micro_batches_that_are_left_out_are_no_loss(spark, changes, checkpoint, target):
    def merge_first(frame, batch_id):
        if batch_id == 0:
            sink(target)(frame, batch_id)

    run(changes.stream(spark), merge_first, checkpoint)
    changes.add([(3, 3)])
    run(changes.stream(spark), sink(target), checkpoint)
    assert rows(spark, target) == count(BATCHES[0], [(3, 3)])
    assert notes(checkpoint) == ["3"]


def test_a_batch_whose_note_was_not_written_is_no_loss(spark, changes, checkpoint, target):
    """Killed between commit and note, the query replays the batch, and takes the note then."""
    run(changes.stream(spark), sink(target), checkpoint)
    [note] = checkpoint.glob("stream_merge/*/2")
    note.rename(note.with_name("1"))
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    run(changes.stream(spark), sink(target), checkpoint)
    assert rows(spark, target) == count(*BATCHES)
    assert notes(checkpoint) == ["2"]


def test_another_table_in_the_place_of_the_old_one_is_no_loss(spark, changes, checkpoint, target, create_table):
    run(changes.stream(spark), sink(target), checkpoint)
    shutil.rmtree(target)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    create_table("id INT, n INT")
    changes.add([(3, 3)])
    run(changes.stream(spark), sink(target), checkpoint)
    assert rows(spark, target) == [(3, 3)]


def test_a_note_that_cannot_be_written_fails_no_batch(spark, changes, checkpoint, target, caplog):
    checkpoint.mkdir()
    (checkpoint / "stream_merge").write_text("a file in the place of the folder")
    run(changes.stream(spark), sink(target), checkpoint)
    assert rows(spark, target) == count(*BATCHES)
    assert "the checkpoint could not take a note of it" in caplog.text


def test_outside_a_stream_nothing_is_kept(spark, target, create_source):
    result = merge_sink(target, keys="id", single_writer=True).merge(create_source("id INT, n INT", [(1, 1)]))
    assert result.num_target_rows_inserted == 1
