"""Rows that get another key: values that the change does not send follow the row, whatever comes first."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row

from stream_merge import MergeSink, merge_sink
from stream_merge.batch import reduce
from stream_merge.partial_updates.fold import folded_changes
from stream_merge.tombstones import files as tombstone_files
from stream_merge.tombstones.files import Tombstones
from stream_merge.tombstones.manifest import TombstoneFile
from tests.conftest import CreateTable
from tests.spark.drawing import LOGS, drawn
from tests.spark.tables import recorded_state

pytestmark = [pytest.mark.any_strategy, pytest.mark.one_in(3)]

SCHEMA = (
    "id INT, `Part 2` STRING, a STRING, b STRING, seq BIGINT, op STRING, unset ARRAY<STRING>, "
    "old STRUCT<id: INT, `Part 2`: STRING>, new STRUCT<id: INT, `Part 2`: STRING>"
)
TARGET = "id INT, `Part 2` STRING, a STRING, b STRING, seq BIGINT"


def moving(path: str, **options: Any) -> MergeSink:
    """Return a sink of changes that tell of the keys that rows had and get."""
    return merge_sink(
        path,
        **{
            "keys": ["id", "Part 2"],
            "sequence_by": "seq",
            "delete_when": "op = 'd'",
            "unchanged_columns": "unset",
            "old_key": "source.old",
            "new_key": "new",
            **options,
        },
    )


def upsert(key: int, a: str | None, b: str | None, seq: int, *unset: str, old: int | None = None) -> tuple[Any, ...]:
    """Return a change that makes or changes a row; `old` is the key that the row had."""
    return (key, "p", a, b, seq, "u", list(unset), None if old is None else (old, "p"), None)


def delete(key: int, seq: int, new: int | None = None) -> tuple[Any, ...]:
    """Return a delete; `new` is the key that the row gets."""
    return (key, "p", None, None, seq, "d", [], None, None if new is None else (new, "p"))


@pytest.fixture
def table(create_table: CreateTable, deletion_vectors: bool) -> str:
    """Return a table with one row."""
    return create_table(
        TARGET,
        [(1, "p", "a1", "b1", 1)],
        deletion_vectors=deletion_vectors,
        properties={"delta.columnMapping.mode": "name"},
    )


class TestCharKeys:
    @pytest.mark.parametrize("num_batches", [1, 2])
    def test_values_follow_a_row_whose_key_is_padded_in_its_file(
        self, spark, create_table, create_source, read_rows, deletion_vectors, num_batches
    ):
        """As any UPDATE pads it; the source pads its keys as it likes."""
        columns = TARGET.replace("`Part 2` STRING", "`Part 2` CHAR(4)")
        mapped = {"delta.columnMapping.mode": "name"}
        rows = [(1, "p", "a1", "b1", 1)]
        path = create_table(columns, rows, deletion_vectors=deletion_vectors, properties=mapped)
        spark.sql(f"UPDATE delta.`{path}` SET a = 'a2'")
        leaves = (1, "p ", None, None, 10, "d", [], None, (2, "q  "))
        comes = (2, "q", "A", None, 11, "u", ["b"], (1, "p"), None)
        for batch in [[leaves, comes]] if num_batches == 1 else [[leaves], [comes]]:
            moving(path).merge(create_source(SCHEMA, batch))
        (row,) = read_rows(path)
        assert (row.id, row["Part 2"].rstrip(), row.a, row.b) == (2, "q", "A", "b1")


class TestOneMove:
    @pytest.mark.parametrize(
        "batches",
        [
            [[delete(1, 10, new=2), upsert(2, "A", None, 11, "b", old=1)]],
            [[delete(1, 10, new=2)], [upsert(2, "A", None, 11, "b", old=1)]],
            [[upsert(2, "A", None, 11, "b", old=1)], [delete(1, 10, new=2)]],
        ],
        ids=["together", "departure first", "arrival first"],
    )
    def test_the_value_is_the_rows_under_its_old_key(self, create_source, read_rows, table, batches):
        """apache/hudi#9186: the old row stays; materialize#6553: both halves have one position in the log."""
        sink = moving(table)
        for batch in batches:
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=2, a="A", b="b1", seq=11)]
        for batch in batches:  # and once more
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=2, a="A", b="b1", seq=11)]

    def test_keys_in_another_order(self, create_source, read_rows, table):
        """The values that a tombstone holds for a row that is yet to come, and those of the row that is there."""
        moving(table).merge(create_source(SCHEMA, [delete(1, 10, new=2)]))
        sink = moving(table, keys=["Part 2", "id"])
        sink.merge(create_source(SCHEMA, [upsert(2, "A", None, 11, "b", old=1)]))
        assert read_rows(table, "id", "a", "b") == [Row(id=2, a="A", b="b1")]
        sink.merge(create_source(SCHEMA, [delete(2, 20, new=3), upsert(3, "B", None, 21, "b", old=2)]))
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="B", b="b1")]

    def test_a_row_that_takes_all_values_along_is_merged_whole(self, create_source, read_rows, table, monkeypatch):
        folded = []
        monkeypatch.setattr(reduce, "folded_changes", lambda *args: folded.append(1) or folded_changes(*args))
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [delete(1, 10, new=2), upsert(2, "A", "B", 11, old=1)]))
        assert not folded
        sink.merge(create_source(SCHEMA, [delete(2, 20, new=3), upsert(3, "C", None, 21, "b", old=2)]))
        assert folded
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=3, a="C", b="B", seq=21)]

    def test_a_value_that_the_batch_changes_before_the_move(self, create_source, read_rows, table):
        changes = [
            upsert(1, "a2", "b2", 2),
            upsert(1, "a3", None, 3, "b"),
            delete(1, 10, new=2),
            upsert(2, None, None, 11, "a", "b", old=1),
            delete(2, 20, new=3),
            upsert(3, None, "B", 21, "a", old=2),
            upsert(1, "other", "other", 12),
        ]
        result = moving(table).merge(create_source(SCHEMA, changes))
        assert read_rows(table, "id", "a", "b") == [Row(id=1, a="other", b="other"), Row(id=3, a="a3", b="B")]
        assert result.num_unresolved_rows == 0

    def test_a_value_that_comes_late_goes_after_a_row_that_leaves_again_in_the_same_batch(
        self, create_source, read_rows, table
    ):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(2, "A", None, 11, "b", old=1), delete(2, 20, new=3)]))
        changes = [
            delete(1, 10, new=2),
            upsert(3, "C", None, 21, "b", old=2),
            delete(3, 30, new=4),
            upsert(4, "D", None, 31, "b", old=3),
            delete(4, 40, new=5),
            upsert(5, "E", None, 41, "b", old=4),
        ]
        sink.merge(create_source(SCHEMA, changes))
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=5, a="E", b="b1", seq=41)]

    def test_a_row_that_is_on_its_way_leaves_the_one_that_still_has_its_key_alone(
        self, create_source, read_rows, table
    ):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(1, "a3", None, 3, "b"), upsert(2, "a2", "b2", 2)]))
        # Two rows exchange their keys by way of a third; what key 1 tells is read last.
        others = [upsert(3, "x", None, 11, "b", old=1), delete(2, 20, new=1), delete(3, 30, new=2)]
        others.append(upsert(2, "y", None, 31, "b", old=3))
        of_key_1 = [delete(1, 10, new=3), upsert(1, "z", None, 21, "b", old=2)]
        sink.merge(create_source(SCHEMA, others))
        assert read_rows(table, "id", "a", "b") == [Row(id=1, a="a3", b="b1"), Row(id=2, a="y", b=None)]
        sink.merge(create_source(SCHEMA, of_key_1))
        expected = [Row(id=1, a="z", b="b2"), Row(id=2, a="y", b="b1")]
        assert read_rows(table, "id", "a", "b") == expected
        for batch in (others, of_key_1):  # and once more
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b") == expected

    def test_an_older_change_that_comes_again_does_not_keep_the_value_away(self, create_source, read_rows, table):
        sink = moving(table)
        before = upsert(2, "a2", "b2", 5)
        for batch in (
            [before],
            [delete(2, 6), upsert(2, "A", None, 11, "b", old=1)],
            [before, delete(1, 10, new=2)],
        ):
            result = sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=2, a="A", b="b1", seq=11)]
        assert result.num_superseded_rows == 1

    def test_a_departure_that_comes_again_does_not_forget_what_its_row_had(self, create_source, read_rows, table):
        # Several rows, since which of two values wins is drawn by their hash.
        rows = range(0, 80, 10)
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(row + 1, f"a{row}", f"b{row}", 1) for row in rows]))
        arrivals = [upsert(row + 2, f"A{row}", None, 11, "b", old=row + 1) for row in rows]
        departures = [delete(row + 2, 20, new=row + 3) for row in rows]
        for batch in (
            arrivals + departures,
            departures,
            [delete(row + 1, 10, new=row + 2) for row in rows],
            [upsert(row + 3, None, None, 21, "a", "b", old=row + 2) for row in rows],
        ):
            sink.merge(create_source(SCHEMA, batch))
        expected = [Row(id=row + 3, a=f"A{row}", b=f"b{row}") for row in rows]
        assert sorted(read_rows(table, "id", "a", "b")) == expected

    def test_a_value_that_passed_a_row_which_had_left_is_not_passed_again_beside_the_rows_own(
        self, create_source, read_rows, table
    ):
        # Several rows, since which of two values wins is drawn by their hash.
        rows = range(0, 80, 10)
        sink = moving(table)
        of_first_keys: list[tuple[Any, ...]] = []
        of_other_keys: list[tuple[Any, ...]] = []
        for row in rows:
            of_first_keys += [upsert(row + 1, f"a{row}", f"b{row}", 1), delete(row + 1, 10, new=row + 2)]
            of_other_keys += [upsert(row + 2, None, f"B{row}", 11, "a", old=row + 1), delete(row + 2, 20, new=row + 3)]
            of_other_keys += [upsert(row + 3, None, None, 21, "a", "b", old=row + 2)]
        expected = [Row(id=row + 3, a=f"a{row}", b=f"B{row}") for row in rows]
        for batch in (of_other_keys, of_first_keys):
            sink.merge(create_source(SCHEMA, batch))
        assert sorted(read_rows(table, "id", "a", "b")) == expected
        num_moved = sum(file.num_moved for file in recorded_state(table).files)
        sink.merge(create_source(SCHEMA, of_first_keys + of_other_keys))  # and once more
        assert sorted(read_rows(table, "id", "a", "b")) == expected
        assert sum(file.num_moved for file in recorded_state(table).files) == num_moved

    def test_values_that_an_earlier_version_wrote_several_times_are_kept_once(
        self, create_source, read_rows, table, monkeypatch
    ):
        sink = moving(table)
        of_other_keys = [upsert(2, None, "B", 11, "a", old=1), delete(2, 20, new=3)]
        sink.merge(create_source(SCHEMA, of_other_keys))
        sink.merge(create_source(SCHEMA, [delete(1, 10, new=2)]))
        num_moved = sum(file.num_moved for file in recorded_state(table).files)

        def tombstones_that_lack_values(self: Tombstones, files: Sequence[TombstoneFile]) -> DataFrame | None:
            moved = self.read_moved(files)
            return None if moved is None else moved.where("size(moved.unset) > 0")

        with monkeypatch.context() as patched:
            patched.setattr(Tombstones, "read_lacking", tombstones_that_lack_values)
            sink.merge(create_source(SCHEMA, of_other_keys))
        assert sum(file.num_moved for file in recorded_state(table).files) > num_moved
        monkeypatch.setattr(tombstone_files, "MAX_FILES", 1)
        arrival = upsert(3, None, None, 21, "a", "b", old=2)
        while len(recorded_state(table).files) > 1:
            sink.merge(create_source(SCHEMA, [arrival]))
        assert sum(file.num_moved for file in recorded_state(table).files) == num_moved
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="a1", b="B")]

    @pytest.mark.parametrize("is_split", [False, True], ids=["at once", "delete by itself"])
    def test_a_value_does_not_go_past_a_delete_to_the_next_row_of_the_key(
        self, create_source, read_rows, table, is_split
    ):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(9, "a9", "b9", 2)]))
        of_key_2 = [upsert(2, "A", None, 11, "b", old=1), delete(2, 20)]
        then = [upsert(2, "C", None, 31, "b", old=9), delete(2, 40, new=3)]
        for batch in (
            *([of_key_2, then] if is_split else [of_key_2 + then]),
            [delete(1, 10, new=2), upsert(3, "D", None, 41, "b", old=2)],
            [delete(9, 30, new=2)],
        ):
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b", "seq") == [Row(id=3, a="D", b="b9", seq=41)]

    def test_a_row_that_is_gone_gives_nothing(self, create_source, read_rows, table):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [delete(1, 5)]))
        result = sink.merge(create_source(SCHEMA, [delete(1, 10, new=2), upsert(2, "A", None, 11, "b", old=1)]))
        assert read_rows(table, "id", "a", "b") == [Row(id=2, a="A", b=None)]
        assert result.num_unresolved_rows == 1

    def test_another_writer_changes_the_row_between_open_and_commit(self, create_source, read_rows, table, at_step):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(9, "z", "z", 9)]))
        at_step("before_commit", lambda: moving(table).merge(create_source(SCHEMA, [upsert(1, None, "b2", 2, "a")])))
        result = sink.merge(create_source(SCHEMA, [delete(1, 10, new=2), upsert(2, "A", None, 11, "b", old=1)]))
        assert result.num_commit_attempts == 2
        assert read_rows(table, "id", "a", "b") == [Row(id=2, a="A", b="b2"), Row(id=9, a="z", b="z")]

    def test_what_is_left_for_later_is_counted_with_the_tombstones_and_survives_their_merging(
        self, create_source, read_rows, table, max_files
    ):
        sink = moving(table)
        first = sink.merge(create_source(SCHEMA, [delete(1, 10, new=2)]))
        assert first.num_tombstones == 2
        for number in range(max_files + 1):
            sink.merge(create_source(SCHEMA, [delete(100 + number, 1)]))
        assert len(recorded_state(table).files) <= max_files
        sink.merge(create_source(SCHEMA, [upsert(2, "A", None, 11, "b", old=1)]))
        assert read_rows(table, "id", "a", "b") == [Row(id=2, a="A", b="b1")]


class TestLateTruncates:
    """A row comes to a free key: if the table still has another there, its end is yet to come."""

    @pytest.mark.one_in(1)
    @pytest.mark.parametrize(
        "ends",
        [(4,), (1, 4), (2, 4), (3, 4)],
        ids=["together", "other row first", "departure by itself", "next arrival by itself"],
    )
    def test_values_of_the_row_that_had_the_key_before_do_not_go_with_the_one_that_comes_to_it(
        self, create_source, read_rows, table, ends
    ):
        sink = moving(table, truncate_when="op = 't'")
        read_first = [
            upsert(2, "other", "other", 2),
            upsert(2, None, None, 11, "a", "b", old=1),
            delete(2, 20, new=3),
            upsert(3, None, None, 21, "a", "b", old=2),
        ]
        truncate = (None, None, None, None, 5, "t", [], None, None)
        read_last = [truncate, upsert(1, "a7", "b7", 7), delete(1, 10, new=2)]
        for begin, end in itertools.pairwise((0, *ends)):
            sink.merge(create_source(SCHEMA, read_first[begin:end]))
        sink.merge(create_source(SCHEMA, read_last))
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="a7", b="b7")]
        for batch in (read_first, read_last):  # and once more
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="a7", b="b7")]

    def test_an_arrival_that_comes_again_keeps_the_values_that_followed_its_row(self, create_source, read_rows, table):
        """They are older than the arrival, as those of the row that had the key before."""
        sink = moving(table)
        arrival = upsert(2, "A", None, 11, "b", old=1)
        for batch in (
            [arrival],
            [delete(1, 10, new=2)],
            [arrival],
            [arrival, upsert(2, "A2", None, 12, "b")],
            [arrival, delete(2, 20, new=3)],
            [arrival, upsert(3, None, None, 21, "a", "b", old=2)],
        ):
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="A2", b="b1")]

    def test_a_change_that_names_the_key_that_the_row_keeps_is_no_arrival(self, create_source, read_rows, table):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(1, "A", None, 11, "b", old=1)]))
        assert read_rows(table, "id", "a", "b") == [Row(id=1, a="A", b="b1")]


class TestTies:
    """What has the sequence of something else is decided for a row that leaves its key as for one that stays."""

    def test_what_the_row_has_itself_goes_before_a_value_of_the_same_sequence_that_comes_to_it(
        self, create_source, read_rows, table
    ):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(2, "A", None, 10, "b", old=1)]))
        changes = [delete(1, 10, new=2), delete(2, 20, new=3), upsert(3, None, None, 21, "a", "b", old=2)]
        sink.merge(create_source(SCHEMA, changes))
        assert read_rows(table, "id", "a", "b") == [Row(id=3, a="A", b="b1")]

    @pytest.mark.parametrize("is_split", [False, True], ids=["at once", "departure by itself"])
    def test_a_delete_takes_the_values_of_its_own_sequence_that_came_before_it(
        self, create_source, read_rows, table, is_split
    ):
        sink = moving(table)
        sink.merge(create_source(SCHEMA, [upsert(1, "a5", "b5", 5)]))
        again = [delete(1, 5), upsert(1, None, "b6", 6, "a")]
        leaves = [delete(1, 10, new=2), upsert(2, None, None, 11, "a", "b", old=1)]
        for batch in [again, leaves] if is_split else [again + leaves]:
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(table, "id", "a", "b") == [Row(id=2, a=None, b="b6")]


class TestKeysWithNull:
    """`null_keys="match"`: NULL equals NULL, for rows that get another key too."""

    @pytest.mark.parametrize(
        ("partition_by", "none"),
        [((), None), (("Part 2",), None), (("Part 2",), "")],
        ids=["plain", "partitioned", "partitioned, empty"],
    )
    @pytest.mark.parametrize("is_split", [False, True], ids=["together", "departure first"])
    def test_the_value_is_the_rows_under_its_old_key(
        self, create_table, create_source, read_rows, deletion_vectors, partition_by, none, is_split
    ):
        """Delta has NULL for an empty text in a column that partitions the table."""
        path = create_table(
            TARGET,
            [(1, None, "a1", "b1", 1), (3, "p", "a3", "b3", 1)],
            deletion_vectors=deletion_vectors,
            partition_by=partition_by,
            properties={"delta.columnMapping.mode": "name"},
        )
        sink = moving(path, null_keys="match")
        departures = [
            (1, none, None, None, 10, "d", [], None, (2, none)),
            (3, "p", None, None, 10, "d", [], None, (3, none)),
        ]
        arrivals = [
            (2, none, "A", None, 11, "u", ["b"], (1, none), None),
            (3, none, "C", None, 11, "u", ["b"], (3, "p"), None),
        ]
        for batch in [departures, arrivals] if is_split else [departures + arrivals]:
            result = sink.merge(create_source(SCHEMA, batch))
        expected = [(2, None, "A", "b1"), (3, None, "C", "b3")]
        assert sorted(map(tuple, read_rows(path, "id", "`Part 2`", "a", "b"))) == expected
        assert result.num_unresolved_rows == 0
        # And back, where the value passes a key with NULL that the row leaves again in the same batch.
        there_and_back = [
            (2, none, None, None, 20, "d", [], None, (4, none)),
            (4, none, "D", None, 21, "u", ["b"], (2, none), None),
            (4, none, None, None, 30, "d", [], None, (1, "p")),
            (1, "p", "E", None, 31, "u", ["b"], (4, none), None),
        ]
        sink.merge(create_source(SCHEMA, there_and_back))
        assert (1, "p", "E", "b1") in [tuple(row) for row in read_rows(path, "id", "`Part 2`", "a", "b")]

    def test_a_value_that_comes_late_finds_the_row_that_is_there(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(
            TARGET,
            [(1, None, "a1", "b1", 1)],
            deletion_vectors=deletion_vectors,
            properties={"delta.columnMapping.mode": "name"},
        )
        sink = moving(path, null_keys="match")
        of_key_2 = [
            (2, None, "A", None, 11, "u", ["b"], (1, None), None),
            (2, None, None, None, 20, "d", [], None, (3, None)),
        ]
        for batch in (
            of_key_2,
            [(3, None, "C", None, 21, "u", ["b"], (2, None), None)],
            [(1, None, None, None, 10, "d", [], None, (2, None))],
        ):
            sink.merge(create_source(SCHEMA, batch))
        assert read_rows(path, "id", "a", "b", "seq") == [Row(id=3, a="C", b="b1", seq=21)]


def history(draw: random.Random, keys: range) -> tuple[list[tuple[Any, ...]], list[tuple[int, str | None, str | None]]]:
    """Return the log of a random life of some rows, and what is left of them in the end."""
    rows: dict[int, dict[str, str | None]] = {}
    log: list[tuple[Any, ...]] = []
    for number in range(1, draw.randint(6, 18)):
        seq = 10 * number
        free = [key for key in keys if key not in rows]
        draw.shuffle(free)
        kind = draw.choice(["insert", "update", "update", "move", "swap", "delete"])
        unset = [name for name in "ab" if draw.random() < 0.6]
        sent = {name: f"{name}{seq}" for name in "ab" if name not in unset}
        if kind == "insert" and free:
            key = free[0]
            rows[key] = {name: f"{name}{seq}" for name in "ab"}
            log.append(upsert(key, rows[key]["a"], rows[key]["b"], seq))
        elif kind != "insert" and rows:
            key = draw.choice(list(rows))
            if kind == "update":
                rows[key] |= sent
                log.append(upsert(key, sent.get("a"), sent.get("b"), seq, *unset))
            elif kind == "delete":
                del rows[key]
                log.append(delete(key, seq))
            elif free:
                # Sometimes two rows exchange their keys by way of a third one.
                hops = [(key, free[0])]
                others = [other for other in rows if other != key]
                if kind == "swap" and others:
                    other = draw.choice(others)
                    hops += [(other, key), (free[0], other)]
                for hop, (old, new) in enumerate(hops):
                    rows[new] = rows.pop(old) | sent
                    log.append(delete(old, seq + 2 * hop, new=new))
                    log.append(upsert(new, sent.get("a"), sent.get("b"), seq + 2 * hop + 1, *unset, old=old))
    return log, [(key, row["a"], row["b"]) for key, row in rows.items()]


@pytest.mark.slow
def test_partitions_read_at_any_speed_and_twice_give_the_table(
    spark: Any, create_table: CreateTable, read_rows: Any, deletion_vectors: bool, tmp_path: Path
) -> None:
    numbers = iter(range(10**6))

    @drawn(1)
    @given(seed=st.integers(0, 2**32), num_batches=st.integers(2, 5))
    def check(seed: int, num_batches: int) -> None:
        draw = random.Random(seed)
        expected: list[tuple[Any, ...]] = []
        # As in Kafka: the changes of a key are in one partition, in order; partitions are read at their own speed.
        batches: list[list[tuple[Any, ...]]] = [[] for _ in range(num_batches)]
        for number in range(LOGS):
            keys = range(10 * number, 10 * number + 4)
            log, rows = history(draw, keys)
            expected += rows
            for key in keys:
                place = draw.randrange(num_batches)
                for change in (change for change in log if change[0] == key):
                    place = draw.randint(place, num_batches - 1) if draw.random() < 0.5 else place
                    batches[place].append(change)
                    if draw.random() < 0.2:
                        batches[draw.randint(place, num_batches - 1)].append(change)
        path = str(tmp_path / f"target_{next(numbers)}")
        create_table(
            TARGET, path=path, deletion_vectors=deletion_vectors, properties={"delta.columnMapping.mode": "name"}
        )
        sink = moving(path)
        for batch in batches:
            sink.merge(spark.createDataFrame(draw.sample(batch, len(batch)), SCHEMA).coalesce(1))
        assert sorted(map(tuple, read_rows(path, "id", "a", "b"))) == sorted(expected), (seed, num_batches)
        shutil.rmtree(path)

    check()


def test_columns_are_widened_while_values_wait_for_their_row(
    spark, create_table, create_source, read_rows, deletion_vectors
):
    """The value left with one type, and comes back with another."""
    path = create_table(
        "id INT, n INT, s INT",
        [(1, 10, 1), (3, 30, 1)],
        deletion_vectors=deletion_vectors,
        properties={"delta.enableTypeWidening": "true"},
    )
    sink = merge_sink(
        path,
        keys="id",
        sequence_by="s",
        delete_when="op = 'd'",
        unchanged_columns="unset",
        old_key="old",
        new_key="new",
        except_columns=["op", "unset", "old", "new"],
    )
    schema = "id INT, n {0}, s {0}, op STRING, unset ARRAY<STRING>, old STRUCT<id: INT>, new STRUCT<id: INT>"
    old, new = schema.format("INT"), schema.format("BIGINT")
    sink.merge(create_source(old, [(1, None, 10, "d", [], None, (2,))]))
    for column in ("n", "s"):
        spark.sql(f"ALTER TABLE delta.`{path}` CHANGE COLUMN {column} TYPE BIGINT")
    sink.merge(create_source(new, [(3, None, 2**30, "d", [], None, (4,))]))
    sink.merge(
        create_source(new, [(2, None, 11, "u", ["n"], (1,), None), (4, None, 2**30 + 1, "u", ["n"], (3,), None)])
    )
    sink.merge(create_source(new, [(1, 99, 9, "u", [], None, None), (3, 99, 2**30 - 1, "u", [], None, None)]))
    assert read_rows(path, "id", "n", "s") == [Row(id=2, n=10, s=11), Row(id=4, n=30, s=2**30 + 1)]


VALUES = {
    "s": ("STRUCT<x: STRING, y: ARRAY<STRUCT<p: INT, q: INT>>>", "STRUCT<y: ARRAY<STRUCT<q: INT, p: INT>>, x: STRING>",
          "named_struct('x', 'X', 'y', array(named_struct('p', 1, 'q', 2)))"),
    "a": ("ARRAY<DOUBLE>", "ARRAY<INT>", "array(1.5D)"),
    "de": ("DECIMAL(10, 4)", "DECIMAL(10, 2)", "1.2345"),
    "d": ("DOUBLE", "INT", "1.5D"),
    "f": ("DOUBLE", "FLOAT", "0.1D"),
    "t": ("TIMESTAMP", "DATE", "TIMESTAMP'2024-01-01 12:34:56Z'"),
    "l": ("BIGINT", "INT", "5000000000L"),
    "st": ("STRING", "INT", "'abc'"),
    "n": ("INT", "BIGINT", "7"),
}  # fmt: skip
"""For names of columns the types in the target and in the batch, and a value that the target has."""


@pytest.mark.parametrize("at_once", [True, False], ids=["together", "departure first"])
def test_values_whose_type_the_batch_does_not_have(spark, create_table, deletion_vectors, read_rows, at_once):
    """They follow the row as they are, and Delta sets the fields of a struct by their names."""
    path = create_table(
        f"id INT, seq BIGINT, {', '.join(f'{name} {kind}' for name, (kind, _, _) in VALUES.items())}",
        deletion_vectors=deletion_vectors,
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT 1, 1, {', '.join(value for _, _, value in VALUES.values())}")
    before = read_rows(path, *VALUES)
    sink = moving(path, keys="id", except_columns=["op", "unset", "old", "new"])
    of_key = "CAST({} AS STRUCT<id: INT>)"
    nothing = ", ".join(f"CAST(NULL AS {kind}) {name}" for name, (_, kind, _) in VALUES.items())
    names = f"array({', '.join(map(repr, VALUES))})"

    def change(key, op, unset, old, new):
        return (
            f"SELECT {key} id, {nothing}, 2L seq, '{op}' op, CAST({unset} AS ARRAY<STRING>) unset, "
            f"{of_key.format(old)} old, {of_key.format(new)} new"
        )

    departure = change(1, "d", "array()", "NULL", "named_struct('id', 2)")
    arrival = change(2, "u", names, "named_struct('id', 1)", "NULL")
    for statement in [f"{departure} UNION ALL {arrival}"] if at_once else [departure, arrival]:
        sink.merge(spark.sql(statement))
    assert read_rows(path, "id") == [(2,)]
    assert read_rows(path, *VALUES) == before
    # A value that does not fit is none of the table's where a newer change of its row has another.
    too_large, newer = (
        change(5, "u", "array()", "NULL", "NULL").replace(
            "CAST(NULL AS DECIMAL(10, 2))", f"CAST({number} AS DECIMAL(10, 2))"
        )
        for number in (99999999, 1)
    )
    sink.merge(spark.sql(f"{too_large} UNION ALL {newer.replace('2L seq', '3L seq')}"))
    assert [row.de for row in read_rows(path) if row.id == 5] == [1]


def test_an_old_key_whose_struct_is_never_null(spark, create_table, read_rows):
    """Its departure came in an earlier batch, so that the value is taken from what the table remembers."""
    path = create_table("id INT, v INT, w INT, s INT")
    options = {"delete_when": "op = 'd'", "unchanged_columns": "unset", "old_key": "old", "new_key": "new"}
    sink = merge_sink(path, keys="id", sequence_by="s", except_columns=["op", "unset", "old", "new"], **options)
    nothing, old = "CAST(NULL AS STRUCT<id: INT>)", "struct(2 AS id)"
    for row in (
        f"2 AS id, 1 AS v, 1 AS w, 1 AS s, 'u' AS op, array('') AS unset, {nothing} AS old, {nothing} AS new",
        f"2 AS id, 0 AS v, 0 AS w, 7 AS s, 'd' AS op, array('') AS unset, {nothing} AS old, struct(8 AS id) AS new",
        f"8 AS id, 2 AS v, INT(NULL) AS w, 7 AS s, 'u' AS op, array('w') AS unset, {old} AS old, {nothing} AS new",
    ):
        sink.merge(spark.sql(f"SELECT {row}"))
    assert [tuple(row) for row in read_rows(path, "id", "v", "w", "s")] == [(8, 2, 1, 7)]
