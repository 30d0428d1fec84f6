"""Only those remembered deletes are looked up that a change of the batch can be older than."""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row

from stream_merge import MergeSink, merge_sink
from stream_merge.bridge.table import Table
from stream_merge.tombstones.files import Tombstones
from stream_merge.tombstones.manifest import TombstoneFile
from tests.spark.tables import recorded_state

SCHEMA = "id INT, v STRING, seq BIGINT, op STRING"
TARGET = "id INT, v STRING, seq BIGINT"


def keyed(path: str, **options: Any) -> MergeSink:
    return merge_sink(path, keys="id", sequence_by="seq", delete_when="op = 'd'", **options)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the deletes that are looked up, one by one."""
    numbers: list[int] = []
    deleted = Tombstones.deleted

    def noted(self: Tombstones, files: Collection[TombstoneFile], source: DataFrame, *, only_older: bool) -> DataFrame:
        numbers.append(sum(file.num_rows for file in files))
        return deleted(self, list(files), source, only_older=only_older)

    monkeypatch.setattr(Tombstones, "deleted", noted)
    return numbers


def test_batches_in_order_look_up_nothing_and_a_late_one_all_that_it_must(
    create_table, create_source, read_rows, looked_up
):
    path = create_table(TARGET, [(1, "a", 1), (3, "c", 1)])
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    sink.merge(create_source(SCHEMA, [(2, "b", 10, "u")]))
    sink.merge(create_source(SCHEMA, [(3, None, 20, "d"), (4, None, 19, "d")]))
    sink.merge(create_source(SCHEMA, [(5, "e", 30, "u")]))
    assert looked_up == []
    late = sink.merge(create_source(SCHEMA, [(1, "old", 4, "u"), (6, "f", 40, "u")]))
    assert (looked_up, late.num_outdated_rows) == ([3], 1)
    recent = sink.merge(create_source(SCHEMA, [(3, "old", 15, "u"), (7, "g", 50, "u")]))
    assert (looked_up, recent.num_outdated_rows) == ([3, 3], 1), "what was reached before is looked up at once"
    again = sink.merge(create_source(SCHEMA, [(4, "old", 15, "u"), (3, "new", 20, "u")]))
    assert (looked_up, again.num_outdated_rows) == ([3, 3, 2], 1), "the older file is out of reach"
    sink.merge(create_source(SCHEMA, [(8, "h", 60, "u")]))
    sink.merge(create_source(SCHEMA, [(9, "i", 70, "u")]))
    assert looked_up == [3, 3, 2, 2]
    new_sink = keyed(path)
    new_sink.merge(create_source(SCHEMA, [(9, "j", 80, "u")]))
    assert looked_up == [3, 3, 2, 2, 3], "a sink that has just begun knows nothing of what comes"
    assert read_rows(path, "id", "v") == [
        Row(id=2, v="b"),
        Row(id=3, v="new"),
        Row(id=5, v="e"),
        Row(id=6, v="f"),
        Row(id=7, v="g"),
        Row(id=8, v="h"),
        Row(id=9, v="j"),
    ]


def test_a_value_that_is_older_than_its_change_is_looked_up(create_table, create_source, read_rows, looked_up):
    schema = "id INT, a STRING, b STRING, seq BIGINT, op STRING"
    path = create_table("id INT, a STRING, b STRING, seq BIGINT", [(1, "a1", "b1", 1)])
    sink = keyed(path, ignore_null_updates=True)
    sink.merge(create_source(schema, [(1, None, None, 5, "d")]))
    for seq in (10, 11):
        sink.merge(create_source(schema, [(2, "x", "y", seq, "u")]))
    looked_up.clear()
    sink.merge(create_source(schema, [(1, "A", None, 20, "u"), (1, None, "old", 4, "u")]))
    assert looked_up == [1]
    assert read_rows(path, "id", "a", "b") == [Row(id=1, a="A", b=None), Row(id=2, a="x", b="y")]


@pytest.mark.parametrize(
    ("sequence_type", "before", "deleted", "after"),
    [
        pytest.param(
            "TIMESTAMP",
            *(
                dt.datetime(2026, 10, 25, 1, 30, 0, micros, tzinfo=dt.timezone.utc)
                for micros in (999_001, 999_002, 999_003)
            ),
            id="timestamp",
        ),
        pytest.param(
            "TIMESTAMP_NTZ",
            *(dt.datetime.fromisoformat(f"0001-01-01T00:00:00.00000{n}") for n in (1, 2, 3)),
            id="timestamp_ntz",
        ),
        pytest.param("DECIMAL(38, 10)", *(Decimal(f"{'9' * 28}.000000000{n}") for n in (1, 2, 3)), id="decimal"),
        pytest.param("STRING", 'é"\\1', 'é"\\2', 'é"\\3', id="string"),
        pytest.param("BINARY", b"\x00\xfe", b"\x00\xff", b"\x01", id="binary"),
        pytest.param("DOUBLE", 1.0, float("inf"), float("nan"), id="double"),
        pytest.param("STRUCT<a: INT, b: DATE>", (None, None), (1, None), (1, dt.date(1, 1, 1)), id="struct"),
    ],
)
def test_any_type_that_has_an_order(spark, create_table, read_rows, looked_up, sequence_type, before, deleted, after):
    path = create_table(f"id INT, v STRING, seq {sequence_type}")
    sink = keyed(path)
    for seq, op in ((deleted, "d"), (after, "u"), (after, "u")):
        key = 1 if op == "d" else 2
        sink.merge(spark.createDataFrame([(key, "x", seq, op)], f"id INT, v STRING, seq {sequence_type}, op STRING"))
    looked_up.clear()
    late = spark.createDataFrame([(1, "old", before, "u")], f"id INT, v STRING, seq {sequence_type}, op STRING")
    assert sink.merge(late).num_outdated_rows == 1
    assert looked_up == [1]
    assert read_rows(path, "id", "v") == [Row(id=2, v="x")]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Amsterdam"])
def test_moments_when_the_offsets_of_zones_had_seconds(spark, create_table, read_rows, looked_up, zone):
    """What is remembered is exact to the microsecond: New York was 4:56:02 behind, and Amsterdam 0:19:32 ahead."""
    schema = "id INT, v STRING, seq TIMESTAMP, op STRING"

    def change(key: int, seconds: int, op: str) -> DataFrame:
        at = dt.datetime(1880, 1, 1, 12, 0, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=seconds)
        return session.createDataFrame([(key, "x", at, op)], schema).coalesce(1)

    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    path = create_table("id INT, v STRING, seq TIMESTAMP")
    sink = keyed(path, truncate_when="op = 't'")
    for key, seconds, op in ((1, 0, "d"), (2, 100, "u"), (2, 100, "u")):
        sink.merge(change(key, seconds, op))
    looked_up.clear()
    assert sink.merge(change(1, -1, "u")).num_outdated_rows == 1
    assert looked_up == [1]
    for key, seconds, op in ((3, 200, "u"), (4, 202, "u"), (None, 201, "t"), (5, 200, "u"), (6, 202, "u")):
        sink.merge(change(key, seconds, op))
    assert read_rows(path, "id") == [Row(id=4), Row(id=6)]


def test_a_file_that_is_gone_is_forgotten_when_small_ones_are_merged(
    create_table, create_source, read_rows, max_files, caplog
):
    path = create_table(TARGET)
    sink = keyed(path)
    for number in range(max_files):
        sink.merge(create_source(SCHEMA, [(number, None, number, "d")]))
    shutil.rmtree(Path(path) / recorded_state(path).files[0].path)
    with caplog.at_level(logging.WARNING):
        sink.merge(create_source(SCHEMA, [(max_files, None, max_files, "d")]))
    assert "tombstone files are missing" in caplog.text
    late = sink.merge(create_source(SCHEMA, [(number, "old", -1, "u") for number in range(max_files + 1)]))
    assert late.num_outdated_rows == max_files
    assert read_rows(path, "id", "v") == [Row(id=0, v="old")]


@pytest.mark.parametrize("harm", ["gone", "empty", "without its part"])
def test_a_file_without_content_is_told(create_table, create_source, read_rows, caplog, harm):
    """A disk that lost its power leaves empty files, of which Spark reads no rows without a word."""
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 10, "d")]))
    (state,) = recorded_state(path).files
    folder = Path(path) / state.path
    (part,) = folder.rglob("*.parquet")
    for file in folder.rglob("*.crc"):
        file.unlink()
    match harm:
        case "gone":
            shutil.rmtree(folder)
        case "empty":
            part.write_bytes(b"")
        case _:
            part.unlink()
    with caplog.at_level(logging.WARNING):
        keyed(path).merge(create_source(SCHEMA, [(1, "old", 5, "u")]))
    assert f"tombstone files are missing ({state.path})" in caplog.text
    assert read_rows(path, "id", "v") == [Row(id=1, v="old")]
    assert recorded_state(path).files == ()


def test_files_are_looked_at_once_for_their_content(create_table, create_source, monkeypatch):
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 10, "d")]))
    looked_at: list[str] = []
    has_content = Table.has_content
    monkeypatch.setattr(Table, "has_content", lambda self, path: looked_at.append(path) or has_content(self, path))
    sink = keyed(path)
    for number in range(2, 5):
        sink.merge(create_source(SCHEMA, [(number, None, 10 * number, "d"), (1, "late", 5, "u")]))
    assert len(looked_at) == 1


def test_a_file_of_which_nothing_is_known_is_always_looked_up(
    create_table, create_source, read_rows, looked_up, monkeypatch
):
    path = create_table(TARGET)
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(1, None, 4, "d")]))
    with monkeypatch.context() as patched:
        written = Tombstones.write
        patched.setattr(Tombstones, "write", lambda *args: replace(written(*args), highest=None))
        sink.merge(create_source(SCHEMA, [(2, None, 6, "d"), (3, None, 6, "d")]))
    assert [file.highest is None for file in recorded_state(path).files] == [False, True]
    assert looked_up == []
    late = sink.merge(create_source(SCHEMA, [(2, "old", 6, "u"), (3, "old", 5, "u"), (4, "x", 9, "u")]))
    assert (looked_up, late.num_outdated_rows) == ([2], 1)
    sink.merge(create_source(SCHEMA, []))
    assert read_rows(path, "id", "v") == [Row(id=2, v="old"), Row(id=4, v="x")]
