"""Ordered changes are written while their rows are looked up, as if no row of the table were newer; where one is, it
stays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink
from stream_merge.batch import attempts, write_ahead
from stream_merge.bridge.transaction import Transaction
from stream_merge.errors import NullKeyError
from stream_merge.merge import merge_on_read
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.tables import files_below

SCHEMA = "id INT, v STRING, seq BIGINT, op STRING"


@pytest.fixture
def thrown_away(monkeypatch) -> list[Any]:
    """Collect what was written in vain; it is deleted all the same."""
    calls: list[Any] = []
    delete = Transaction.delete_new_files

    def noted(self: Transaction, new_files: Any) -> None:
        calls.append(new_files)
        delete(self, new_files)

    monkeypatch.setattr(Transaction, "delete_new_files", noted)
    return calls


@pytest.mark.core
@pytest.mark.parametrize("way", ["pairs", "large batches"])
def test_a_newer_row_stays_though_its_change_was_written(
    create_table, create_source, read_rows, monkeypatch, thrown_away, way
):
    if way == "large batches":
        monkeypatch.setattr(merge_on_read, "MAX_SOURCE_ROWS", 0)
    table = [(1, "a", 5), (2, "b", 5), (3, "c", 5), (4, "d", 5), (5, "e", None)]
    path = create_table("id INT, v STRING, seq BIGINT", table, deletion_vectors=True)
    sink = merge_sink(path, keys="id", sequence_by="seq", delete_when="op = 'd'")
    batches = [
        # Nothing newer: an equal sequence is not, nor is none.
        [(1, "a1", 5, "u"), (5, "e1", 1, "u"), (6, "f", 5, "u"), (4, None, 6, "d")],
        # A newer row meets an upsert.
        [(1, "late", 4, "u"), (2, "b1", 6, "u"), (7, "g", 5, "u")],
        # One meets a delete; and since the batch before had one, nothing was written ahead.
        [(2, None, 5, "d"), (3, "c1", 6, "u")],
        [(3, "c2", 7, "u"), (8, "h", None, "u")],
        # Again the first of its kind.
        [(6, None, 4, "d"), (9, "i", 5, "u")],
    ]
    assert "new rows while the matches are looked up" in sink.explain(create_source(SCHEMA, batches[0]))
    results, times = [], []
    for batch in batches:
        results.append(sink.merge(create_source(SCHEMA, batch)))
        times.append(len(thrown_away))
    assert read_rows(path) == [
        Row(id=1, v="a1", seq=5),
        Row(id=2, v="b1", seq=6),
        Row(id=3, v="c2", seq=7),
        Row(id=5, v="e1", seq=1),
        Row(id=6, v="f", seq=5),
        Row(id=7, v="g", seq=5),
        Row(id=8, v="h", seq=None),
        Row(id=9, v="i", seq=5),
    ]
    assert [result.num_stale_rows for result in results] == [0, 1, 1, 0, 1]
    assert [result.num_target_rows_updated for result in results] == [2, 1, 1, 1, 0]
    assert [result.num_target_rows_inserted for result in results] == [1, 1, 0, 1, 1]
    assert [result.num_target_rows_deleted for result in results] == [1, 0, 0, 0, 0]
    assert times == [0, 1, 1, 1, 2]
    assert_nothing_is_left(path)


def assert_nothing_is_left(path):
    """No file is left of what was written in vain."""
    named = {file["path"] for version in range(latest_version(path) + 1) for file in actions_of(path, version, "add")}
    left = {file for file in files_below(path) if file.endswith(".parquet")}
    assert {file for file in left if "_delta_log" not in file and "_stream_merge" not in file} == named


@pytest.fixture
def begun(monkeypatch) -> list[bool]:
    """Collect whether the writing of each batch began before it was measured."""
    begun: list[bool] = []
    written_ahead = attempts.written_ahead

    @contextmanager
    def noted(*arguments: Any) -> Iterator[Any]:
        with written_ahead(*arguments) as ahead:
            begun.append(ahead is not None)
            yield ahead

    monkeypatch.setattr(attempts, "written_ahead", noted)
    return begun


@pytest.mark.core
def test_what_the_measures_show_to_be_wrong_is_thrown_away(create_table, create_source, read_rows, begun, thrown_away):
    path = create_table(
        "id INT, v STRING, seq BIGINT",
        [(1, "a", 5)],
        deletion_vectors=True,
        constraints={"short": "v IS NULL OR length(v) < 5"},
    )
    sink = merge_sink(path, keys="id", sequence_by="seq", delete_when="op = 'd'")

    def merge(*rows):
        begun.clear()
        thrown_away.clear()
        result = sink.merge(create_source(SCHEMA, rows))
        return begun[0], len(thrown_away), result

    assert merge((2, "b", 6, "u"))[:2] == (False, 0)
    assert merge((3, "c", 7, "u"), (2, None, 9, "d"))[:2] == (True, 0)
    # Older than a delete that the table remembers.
    is_begun, num_thrown, result = merge((2, "late", 8, "u"), (4, "d", 8, "u"))
    assert (is_begun, num_thrown, result.num_outdated_rows, result.num_target_rows_inserted) == (True, 1, 1, 1)
    # Where that is to be feared, the batch is measured first; afterwards not.
    assert merge((2, "late", 8, "u"), (5, "e", 8, "u"))[:2] == (False, 0)
    assert merge((5, "e2", 10, "u"))[:2] == (False, 0)
    assert merge((5, "e3", 11, "u"))[:2] == (True, 0)
    with pytest.raises(NullKeyError):
        merge((None, "x", 12, "u"), (6, "f", 12, "u"))
    assert (begun, len(thrown_away)) == ([True], 1)
    # A newer row of the table: written ahead, in vain.
    is_begun, num_thrown, result = merge((1, "old", 4, "u"), (8, "h", 15, "u"))
    assert (is_begun, num_thrown, result.num_stale_rows) == (True, 1, 1)
    assert merge((8, "i", 16, "u"))[:2] == (False, 0)
    assert_nothing_is_left(path)
    assert merge((8, "j", 17, "u"))[:2] == (False, 0)
    assert merge((8, "j", 17, "u"))[:2] == (True, 0)
    # An error of the writing is told as if it had come later, unless another one comes before it.
    with pytest.raises(Exception, match="CHECK constraint short"):
        merge((7, "too long", 18, "u"))
    with pytest.raises(NullKeyError):
        merge((None, "x", 19, "u"), (7, "too long", 19, "u"))
    assert {row["id"]: row["v"] for row in read_rows(path)} == {1: "a", 3: "c", 4: "d", 5: "e3", 8: "j"}


def test_a_batch_of_many_rows_is_measured_first(spark, create_table, begun, monkeypatch):
    path = create_table("id BIGINT, v BIGINT", deletion_vectors=True)
    sink = merge_sink(path, keys="id")
    for number in range(2):
        sink.merge(spark.range(10).selectExpr("id", f"{number}L AS v"))
    monkeypatch.setattr(write_ahead, "ROWS_PER_TASK", 15)
    for num_rows in (10, 20):
        sink.merge(spark.range(num_rows).selectExpr("id", "7L AS v"))
    assert begun == [False, True, True, False]


@pytest.mark.always
@pytest.mark.parametrize("key", ["BIGINT", "STRING"])
def test_late_changes_are_left_out_without_a_scan_of_the_table(create_table, create_source, read_rows, key):
    schema = f"id {key}, v STRING, seq BIGINT"
    drawn = random.Random(7)

    def id_of(number: int) -> Any:
        return number if key == "BIGINT" else f"key {number}"

    model = {id_of(number): ("old", 100) for number in range(400)}
    rows = [(id_, *values) for id_, values in model.items()]
    path = create_table(schema, rows, deletion_vectors=True)
    sink = merge_sink(path, keys="id", sequence_by="seq", delete_when="v = 'gone'", locator="index")
    deleted: dict[Any, int] = {}
    # In turn: none are late, some, some again, all of them, all with a new key, none again.
    for batch, share in enumerate([0, 0.3, 0.3, 1, 1, 0, 0, 0.1]):
        changes, counts = [], {"stale": 0, "outdated": 0, "updated": 0, "inserted": 0, "deleted": 0}
        for number in drawn.sample(range(500), 60):
            id_, is_late = id_of(number), drawn.random() < share
            value = "gone" if drawn.random() < 0.2 else f"batch {batch}"
            seq = 50 if is_late else 1_000 * (batch + 1) + number
            if batch == 3 and id_ not in model:
                continue
            changes.append((id_, value, seq))
            if seq < deleted.get(id_, 0):
                counts["outdated"] += 1
            elif id_ in model and seq < model[id_][1]:
                counts["stale"] += 1
            elif value == "gone":
                counts["deleted"] += id_ in model
                model.pop(id_, None)
                deleted[id_] = seq
            else:
                counts["updated" if id_ in model else "inserted"] += 1
                model[id_] = (value, seq)
        result = sink.merge(create_source(schema, changes))
        assert sorted(map(tuple, read_rows(path))) == sorted((id_, *values) for id_, values in model.items()), batch
        assert result.locator == "index", batch
        found = {name: getattr(result, f"num_target_rows_{name}") for name in ("updated", "inserted", "deleted")}
        assert {"stale": result.num_stale_rows, "outdated": result.num_outdated_rows, **found} == counts, batch
    assert_nothing_is_left(path)


@pytest.mark.always
@pytest.mark.parametrize("num_late", [0, 1])
def test_a_change_that_becomes_late_before_the_commit_is_left_out(
    create_table, create_source, read_rows, at_step, num_late
):
    schema = "id INT, v STRING, seq BIGINT"
    path = create_table(schema, [(number, "old", 100) for number in range(50)], deletion_vectors=True)
    sink, other = (merge_sink(path, keys="id", sequence_by="seq", locator="index") for _ in range(2))
    # The batch before has a late change, so that this one's rows are looked up before anything is written.
    sink.merge(create_source(schema, [(0, "late", 50), (1, "first", 200)]))
    at_step("before_commit", lambda: other.merge(create_source(schema, [(2, "other", 900), (60, "other", 900)])))
    late = [(3, "late", 50)][:num_late]
    result = sink.merge(create_source(schema, [(2, "mine", 300), (4, "mine", 300), (60, "mine", 300), *late]))
    assert (result.num_commit_attempts, result.num_stale_rows) == (2, 2 + num_late)
    assert (result.num_target_rows_updated, result.num_target_rows_inserted) == (1, 0)
    values = {row["id"]: row["v"] for row in read_rows(path)}
    assert values == {
        **dict.fromkeys(range(50), "old"),
        **dict.fromkeys([2, 60], "other"),
        1: "first",
        4: "mine",
    }


def test_a_file_that_cannot_be_deleted_is_left_for_vacuum(create_table, create_source, read_rows, monkeypatch, caplog):
    path = create_table("id INT, v STRING, seq BIGINT", [(1, "a", 5)], deletion_vectors=True)
    before = files_below(path)
    delete = Transaction.delete_new_files

    def hindered(self: Transaction, new_files: Any) -> None:
        # A folder that is not empty stands where the file was.
        for name in {file for file in files_below(path) if file.endswith(".parquet")} - set(before):
            (Path(path) / name).unlink()
            (Path(path) / name / "folder").mkdir(parents=True)
        delete(self, new_files)

    monkeypatch.setattr(Transaction, "delete_new_files", hindered)
    sink = merge_sink(path, keys="id", sequence_by="seq")
    sink.merge(create_source("id INT, v STRING, seq BIGINT", [(1, "late", 4), (2, "b", 1)]))
    assert "left for VACUUM" in caplog.text
    assert read_rows(path) == [Row(id=1, v="a", seq=5), Row(id=2, v="b", seq=1)]
