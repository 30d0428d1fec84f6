"""Deletes that are remembered: where, for how long, and by which version of the table."""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import time
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import Row

from stream_merge import MergeResult, merge_sink
from stream_merge.batch import bind
from stream_merge.bridge.table import Table
from stream_merge.errors import ConfigurationChangedError
from stream_merge.tombstones import files
from stream_merge.tombstones.manifest import FOLDER
from tests.spark.delta_log import latest_version
from tests.spark.tables import recorded_state
from tests.spark.test_order import SCHEMA, TARGET, keyed

pytestmark = pytest.mark.any_strategy


def folder_names(path: str) -> set[str]:
    """Return the names of the folders of tombstones."""
    return {folder.name for folder in (Path(path) / FOLDER).iterdir()}


@pytest.mark.core
@pytest.mark.parametrize("folder", ["a table", "100%25", "x[1]{2}*", "ü#?"])
def test_folders_with_odd_names(create_table, create_source, read_rows, tmp_path, folder):
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)], path=str(tmp_path / folder))
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    assert len(folder_names(path)) == 1
    late = keyed(path).merge(create_source(SCHEMA, [(1, "old", 4, "u"), (2, "new", 4, "u")]))
    assert (late.num_outdated_rows, read_rows(path)) == (1, [Row(id=2, v="new", seq=4)])


@pytest.mark.parametrize("limit", [files.MAX_UNSHUFFLED_TOMBSTONES, 1])
def test_keys_that_were_deleted_several_times(create_table, create_source, read_rows, monkeypatch, limit):
    monkeypatch.setattr(files, "MAX_UNSHUFFLED_TOMBSTONES", limit)
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1), (3, "c", 1)])
    sink = keyed(path, null_keys="match")
    for sequence in (5, 9, 7):
        sink.merge(create_source(SCHEMA, [(1, None, sequence, "d"), (None, None, sequence, "d")]))
    batch = [(1, "old", 8, "u"), (None, "old", 6, "u"), (2, "new", 2, "u"), (4, "d", 1, "u")]
    late = sink.merge(create_source(SCHEMA, batch))
    assert (late.num_outdated_rows, late.num_target_rows_inserted, late.num_target_rows_updated) == (2, 1, 1)
    kept = [Row(id=2, v="new", seq=2), Row(id=3, v="c", seq=1), Row(id=4, v="d", seq=1)]
    assert read_rows(path) == kept
    newer = sink.merge(create_source(SCHEMA, [(1, "back", 10, "u"), (None, "back", 10, "u")]))
    assert (newer.num_outdated_rows, newer.num_target_rows_inserted) == (0, 2)


def test_another_configuration_is_refused(create_table, create_source, read_rows):
    path = create_table("id INT, v STRING, seq BIGINT, at BIGINT")
    schema = "id INT, v STRING, seq BIGINT, at BIGINT, op STRING"
    keyed(path).merge(create_source(schema, [(1, "a", 1, 1, "u")]))
    version = latest_version(path)
    for changed, what in [
        ({"keys": ["id", "v"]}, "keys"),
        ({"sequence_by": "at"}, "sequence_by"),
        ({"tie_break_by": "at"}, "sequence_by"),
        ({"sequence_by": "seq + 1"}, "sequence_by"),
    ]:
        sink = keyed(path, **changed)
        for call in (sink.merge, sink.explain):
            with pytest.raises(ConfigurationChangedError, match=f"was written with {what} ") as refused:
                call(create_source(schema, [(1, "b", 2, 2, "u")]))
            assert refused.value.option == what
    assert latest_version(path) == version
    # What does not change the meaning is no change of the configuration.
    keyed(path, keys=["ID"], delete_when="op IN ('d', 't')").merge(create_source(schema, [(1, "b", 2, 2, "u")]))
    assert read_rows(path, "v") == [Row(v="b")]


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("kind", ["INT", "STRING"])
def test_keys_in_another_order_are_the_same_keys(create_table, create_source, read_rows, kind):
    """A list in a pipeline file that was sorted, or records whose keys have their fields in another order."""
    path = create_table(f"a INT, B {kind}, v STRING, s BIGINT")
    schema = f"a INT, B {kind}, v STRING, s BIGINT"
    one, two, five = ("1", "2", "5") if kind == "STRING" else (1, 2, 5)

    def merge(keys, *rows):
        sink = merge_sink(path, keys=keys, sequence_by="s", delete_when="v = 'd'")
        return sink.merge(create_source(schema, rows))

    merge(["a", "B"], (1, two, "x", 10), (5, two, "y", 10))
    merge(["a", "B"], (1, two, "d", 20))
    late = merge(["b", "a"], (1, two, "late", 15), (2, one, "other", 15), (5, two, "d", 30))
    assert (late.num_outdated_rows, late.num_tombstones) == (1, 2)
    assert read_rows(path, "a", "B", "v") == [Row(a=2, B=one, v="other")]
    late = merge(["A", "b"], (5, two, "late", 25), (1, two, "new", 21), (2, five, "new", 25))
    assert late.num_outdated_rows == 1
    assert sorted((row.a, row.B, row.v) for row in read_rows(path)) == [
        (1, two, "new"), (2, one, "other"), (2, five, "new"),
    ]  # fmt: skip


def test_another_sink_with_its_keys_in_another_order_is_faster(create_table, create_source, read_rows, at_step):
    """The first to commit decides on the order in which the table remembers keys."""
    schema = "a INT, B INT, v STRING, s BIGINT"
    path = create_table(schema, [(1, 2, "x", 1)])

    def merge(keys, *rows):
        sink = merge_sink(path, keys=keys, sequence_by="s", delete_when="v = 'd'")
        return sink.merge(create_source(schema, rows))

    at_step("before_commit", lambda: merge(["B", "a"], (9, 8, "z", 1)))
    assert merge(["a", "B"], (1, 2, "d", 20)).num_commit_attempts == 2
    assert merge(["a", "B"], (1, 2, "late", 15), (2, 1, "other", 15)).num_outdated_rows == 1
    assert read_rows(path, "a", "B", "v") == [Row(a=2, B=1, v="other"), Row(a=9, B=8, v="z")]


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("column", ["k", "seq"])
@pytest.mark.parametrize("kind", ["STRUCT<x: INT, Y: INT>", "STRUCT<a: STRUCT<x: INT, Y: INT>>"])
def test_a_field_of_keys_or_sequence_that_has_another_name(spark, table_path, read_rows, column, kind):
    """The files of tombstones have the fields by name: renamed ones would be NULL, and every delete forgotten."""
    kinds = {"k": "INT", "seq": "INT", "v": "STRING"} | {column: kind}
    columns = ", ".join(map(" ".join, kinds.items()))
    spark.sql(
        f"CREATE TABLE delta.`{table_path}` ({columns}) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')"
    )
    sink = merge_sink(table_path, keys="k", sequence_by="seq", delete_when="v = 'd'")

    def merge(at, value, x="x"):
        number = 1 if column == "k" else at
        inner = f"named_struct('{x}', {number}, 'y', 0)"
        inner = f"named_struct('a', {inner})" if "STRUCT<a" in kind else inner
        texts = {"k": "1", "seq": str(at), "v": f"'{value}'"} | {column: inner}
        return sink.merge(spark.sql("SELECT " + ", ".join(f"{text} AS {name}" for name, text in texts.items())))

    merge(5, "d")
    path = f"{column}.a" if "STRUCT<a" in kind else column
    spark.sql(f"ALTER TABLE delta.`{table_path}` RENAME COLUMN {path}.x TO z")
    with pytest.raises(ConfigurationChangedError, match=rf"no field {path}\.x any more"):
        merge(3, "late", x="z")
    spark.sql(f"ALTER TABLE delta.`{table_path}` RENAME COLUMN {path}.z TO x")
    assert merge(3, "late").num_outdated_rows == 1
    assert read_rows(table_path) == []
    merge(9, "new")
    assert read_rows(table_path, "v") == [Row(v="new")]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("statement", "options"),
    [("RENAME COLUMN seq TO moment", {"schema_changes": "evolve"}), ("DROP COLUMN seq", {"columns": ["v"]})],
)
def test_rows_that_have_lost_their_sequence(spark, create_table, create_source, read_rows, statement, options):
    path = create_table(TARGET, [(1, "a", 1)], properties={"delta.columnMapping.mode": "name"})
    sink = keyed(path, except_columns=[] if "columns" in options else ["op"], **options)
    sink.merge(create_source(SCHEMA, [(1, "new", 9, "u")]))
    spark.sql(f"ALTER TABLE delta.`{path}` {statement}")
    version = latest_version(path)
    late = create_source(SCHEMA, [(1, "old", 5, "u")])
    for _ in range(2):
        with pytest.raises(ConfigurationChangedError, match="had their sequence in seq, which"):
            sink.merge(late)
        with pytest.raises(ConfigurationChangedError, match="had their sequence in seq, which"):
            sink.explain(late)
    assert latest_version(path) == version
    assert read_rows(path, "v") == [Row(v="new")]
    sink.reset_state(spark)
    sink.merge(late)
    assert read_rows(path, "v") == [Row(v="old")]


def test_a_sequence_of_a_type_that_needs_a_table_feature(spark, create_table, read_rows):
    path = create_table("id INT, v STRING")
    sink = merge_sink(path, keys="id", sequence_by="at", delete_when="v = 'd'", except_columns=["at"])
    for v, moment in (("a", "01"), ("d", "03"), ("late", "02")):
        sink.merge(spark.sql(f"SELECT 1 id, '{v}' v, TIMESTAMP_NTZ'2026-01-01 00:00:{moment}' at"))
    assert read_rows(path) == []


def test_a_configuration_that_was_changed_on_purpose(spark, create_table, create_source, read_rows):
    path = create_table("id INT, v STRING, seq BIGINT, at BIGINT", [(1, "a", 9, 1)])
    schema = "id INT, v STRING, seq BIGINT, at BIGINT, op STRING"
    keyed(path).merge(create_source(schema, [(2, None, 9, 1, "d")]))
    changed = keyed(path, sequence_by="at")
    changed.reset_state(spark)
    result = changed.merge(create_source(schema, [(1, "b", 1, 2, "u"), (2, "c", 1, 2, "u")]))
    assert read_rows(path, "id", "v") == [Row(id=1, v="b"), Row(id=2, v="c")]
    assert result.num_tombstones == 0


@pytest.mark.core
def test_vacuum_leaves_them(spark, create_table, create_source, read_rows, deletion_vectors):
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)], deletion_vectors=deletion_vectors)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    result = keyed(path).merge(create_source(SCHEMA, [(1, "old", 4, "u")]))
    assert (result.num_outdated_rows, read_rows(path)) == (1, [Row(id=2, v="b", seq=1)])


@pytest.mark.every_case
@pytest.mark.parametrize("by", ["version", "UTC", "Asia/Tokyo", "America/New_York"])
def test_after_a_restore_the_restored_versions_count(spark, create_table, create_source, read_rows, settings, by):
    """By a version, or by a time, which Delta's log has in the time zone of the process that restored the table."""
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)])
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    version = latest_version(path)
    moment = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]["timestamp"]
    time.sleep(0.01)
    sink.merge(create_source(SCHEMA, [(2, None, 6, "d")]))
    if by == "version":
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    else:
        zones = spark._jvm.java.util.TimeZone
        local = moment.replace(tzinfo=dt.timezone.utc).astimezone(ZoneInfo(by)).replace(tzinfo=None)
        settings({"spark.sql.session.timeZone": by})
        zones.setDefault(zones.getTimeZone(by))
        try:
            spark.sql(f"RESTORE TABLE delta.`{path}` TO TIMESTAMP AS OF '{local}'")
        finally:
            zones.setDefault(zones.getTimeZone("UTC"))
        settings({"spark.sql.session.timeZone": "UTC"})
    result = sink.merge(create_source(SCHEMA, [(1, "old", 4, "u"), (2, "new", 5, "u")]))
    assert read_rows(path) == [Row(id=2, v="new", seq=5)]
    assert (result.num_outdated_rows, result.num_tombstones) == (1, 1)


@pytest.mark.core
def test_a_table_restored_to_before_its_first_delete_remembers_none(spark, create_table, create_source, read_rows):
    path = create_table(TARGET, [(1, "a", 1)])
    before = latest_version(path)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}")
    keyed(path).merge(create_source(SCHEMA, [(1, "b", 4, "u")]))
    assert read_rows(path) == [Row(id=1, v="b", seq=4)]


def test_a_replaced_table_remembers_none(spark, create_table, create_source, read_rows):
    path = create_table(TARGET, [(1, "a", 1)])
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    rows = "SELECT INT(2) AS id, 'c' AS v, BIGINT(1) AS seq"
    spark.sql(f"CREATE OR REPLACE TABLE delta.`{path}` USING delta AS {rows}")
    keyed(path).merge(create_source(SCHEMA, [(1, "b", 4, "u")]))
    assert read_rows(path, "id", "v") == [Row(id=1, v="b"), Row(id=2, v="c")]


def test_what_is_older_than_the_horizon_is_forgotten_and_counted(create_table, create_source, read_rows, monkeypatch):
    path = create_table(TARGET, [(key, "a", 1) for key in range(1, 4)])
    sink = keyed(path, tombstone_retention=dt.timedelta(hours=1))
    sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    later = time.time_ns() + 40 * 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    kept = sink.merge(create_source(SCHEMA, [(2, None, 6, "d")]))
    assert (kept.num_tombstones, kept.num_tombstones_removed) == (2, 0)
    assert 39 * 60_000 < kept.oldest_tombstone_ms < 41 * 60_000
    monkeypatch.setattr(time, "time_ns", lambda: later + 40 * 60 * 10**9)
    forgot = sink.merge(create_source(SCHEMA, [(9, "x", 1, "u")]))
    assert (forgot.num_tombstones, forgot.num_tombstones_removed) == (1, 1)
    late = sink.merge(create_source(SCHEMA, [(1, "old", 4, "u"), (2, "old", 4, "u"), (8, "new", 6, "u")]))
    assert (late.num_undecidable_rows, late.num_outdated_rows) == (1, 1)
    assert read_rows(path, "id", "v") == [
        Row(id=1, v="old"),
        Row(id=3, v="a"),
        Row(id=8, v="new"),
        Row(id=9, v="x"),
    ]


def test_many_small_files_become_few_and_the_old_ones_go(
    spark, create_table, create_source, read_rows, monkeypatch, max_files
):
    path = create_table(TARGET)
    sink = keyed(path, tombstone_retention=dt.timedelta(days=30))
    num_batches = max_files + 4
    for number in range(num_batches):
        # One key is deleted again and again: its last tombstone is the one that counts.
        result = sink.merge(create_source(SCHEMA, [(number, None, 100, "d"), (1000, None, number, "d")]))
        assert result.num_tombstones >= number + 2
    folders = folder_names(path)
    assert len(folders) > max_files
    state = recorded_state(path)
    assert len(state.files) <= max_files
    assert state.retired
    late = [(number, "old", 99, "u") for number in range(num_batches)]
    result = sink.merge(create_source(SCHEMA, [*late, (1000, "old", num_batches - 2, "u"), (2000, "new", 1, "u")]))
    assert (result.num_outdated_rows, read_rows(path, "id")) == (num_batches + 1, [Row(id=2000)])

    # Files that yesterday's version names are kept, however old they are, and RESTORE finds them.
    for folder in (Path(path) / FOLDER).iterdir():
        old = time.time() - 20 * 24 * 3600
        os.utime(folder, (old, old))
    for number in range(max_files):
        sink.merge(create_source(SCHEMA, [(5000 + number, None, 1, "d")]))
    assert folders <= folder_names(path)
    newest = latest_version(path)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest - max_files - num_batches}")
    restored = sink.merge(create_source(SCHEMA, [(0, "old", 99, "u"), (5000, "new", 1, "u")]))
    assert (restored.num_outdated_rows, read_rows(path, "id")) == (1, [Row(id=5000)])
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest}")

    # A week later they are gone.
    later = time.time_ns() + 8 * 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    result = sink.merge(create_source(SCHEMA, [(1, "old", 99, "u"), (3000, "new", 1, "u")]))
    named = {file.path.rpartition("/")[2] for file in recorded_state(path).files}
    assert named <= folder_names(path)
    assert not folder_names(path) & folders - named
    assert (result.num_outdated_rows, recorded_state(path).retired) == (1, ())


def test_of_files_that_are_merged_the_old_tombstones_go(create_table, create_source, read_rows, monkeypatch, max_files):
    path = create_table(TARGET)
    sink = keyed(path, tombstone_retention=dt.timedelta(hours=1))
    start = time.time_ns()

    def delete(keys: Iterable[int], *, minutes: int, sequence: int = 10) -> MergeResult:
        monkeypatch.setattr(time, "time_ns", lambda: start + minutes * 60 * 10**9)
        return sink.merge(create_source(SCHEMA, [(key, None, sequence, "d") for key in keys]))

    delete([0], minutes=0, sequence=5)
    for number in range(1, max_files + 1):
        delete([number], minutes=40)
    (mixed,) = [file for file in recorded_state(path).files if file.oldest_ms < file.newest_ms]
    # These are larger, so that the one with the old tombstone is among the first that are merged.
    results = [delete(range(100 * n, 100 * n + 10), minutes=80) for n in range(1, max_files + 1)]
    assert mixed not in recorded_state(path).files
    assert sum(result.num_tombstones_removed for result in results) == 1
    late = sink.merge(create_source(SCHEMA, [(0, "back", 4, "u"), (1, "old", 9, "u")]))
    assert (late.num_undecidable_rows, late.num_outdated_rows) == (1, 1)
    assert read_rows(path) == [Row(id=0, v="back", seq=4)]


def test_what_killed_attempts_left_goes_when_it_is_old_although_nothing_is_retired(
    create_table, create_source, monkeypatch
):
    """A folder that an attempt wrote before it was killed, in full or in part, and those of attempts that may be
    alive."""
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    (known,) = folder_names(path)
    root, days = Path(path) / FOLDER, 24 * 3600
    for name, age in {"old": 8 * days, "young": 5 * days}.items():
        written = shutil.copytree(root / known, root / name)
        part = root / f"{name}_part" / "_temporary" / "0"
        part.mkdir(parents=True)
        (part / "part-0.parquet").write_bytes(b"PAR1")
        for each in [written, *written.iterdir(), *(root / f"{name}_part").rglob("*"), root / f"{name}_part"]:
            os.utime(each, (time.time() - age, time.time() - age))
    # Object stores give folders no time, or that of the call.
    os.utime(root / "young", (0, 0))
    os.utime(root / "old")
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(2, "a", 1, "u")]))
    assert folder_names(path) == {known, "young", "young_part"}
    assert recorded_state(path).retired == ()
    # A day later, in the same run.
    sink.merge(create_source(SCHEMA, [(3, "a", 1, "u")]))
    later = time.time_ns() + 25 * 3600 * 10**9
    for each in (root / "young_part").rglob("*.parquet"):
        os.utime(each, (time.time() - 7 * days, time.time() - 7 * days))
    assert "young_part" in folder_names(path)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    sink.merge(create_source(SCHEMA, [(4, "a", 1, "u")]))
    assert folder_names(path) == {known, "young"}
    late = keyed(path).merge(create_source(SCHEMA, [(1, "old", 4, "u")]))
    assert late.num_outdated_rows == 1


@pytest.mark.parametrize("replaced", [False, True], ids=["restored", "replaced"])
def test_what_a_restore_may_want_again_stays(spark, create_table, create_source, read_rows, replaced):
    path = create_table(TARGET)
    retention = {"tombstone_retention": dt.timedelta(days=30)}
    keyed(path, **retention).merge(create_source(SCHEMA, [(1, "a", 1, "u")]))
    before = latest_version(path)
    keyed(path, **retention).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    deleted = latest_version(path)
    (known,) = (Path(path) / FOLDER).iterdir()
    for each in (known, *known.iterdir()):
        os.utime(each, (time.time() - 20 * 24 * 3600,) * 2)
    if replaced:
        row = "SELECT 7 AS id, 'x' AS v, 1L AS seq"
        spark.sql(f"CREATE OR REPLACE TABLE delta.`{path}` USING delta AS {row}")
    else:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}")
    keyed(path, **retention).merge(create_source(SCHEMA, [(2, "a", 1, "u")]))
    assert [file.path for file in recorded_state(path).retired] == [f"{FOLDER}/{known.name}"]
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {deleted}")
    late = keyed(path, **retention).merge(create_source(SCHEMA, [(1, "old", 4, "u"), (3, "new", 1, "u")]))
    assert (late.num_outdated_rows, read_rows(path, "id")) == (1, [Row(id=3)])


def test_a_clean_up_that_fails_does_not_fail_the_commit(
    spark, create_table, create_source, read_rows, monkeypatch, caplog
):
    path = create_table(TARGET)
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    later = time.time_ns() + 8 * 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)

    def fail_in_the_jvm(*_: Any) -> None:
        spark.sql("SELECT * FROM no_such_table")

    monkeypatch.setattr(Table, "list_folder", fail_in_the_jvm)
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        result = sink.merge(create_source(SCHEMA, [(2, "a", 1, "u")]))
    assert (result.version, read_rows(path, "id")) == (latest_version(path), [Row(id=2)])
    assert "what follows a commit failed" in caplog.text


def test_a_conflict_does_not_write_them_again(create_table, create_source, read_rows, append_rows, at_step):
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(9, "z", 1, "u")]))
    at_step("before_commit", lambda: append_rows(path, TARGET, [(1, "a", 1)]))
    result = keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    assert (result.num_commit_attempts, len(folder_names(path))) == (2, 1)
    assert read_rows(path, "id") == [Row(id=9)]


@pytest.mark.always
@pytest.mark.parametrize("kind", ["BIGINT", "STRING"])
def test_each_batch_is_measured_by_what_is_remembered_then(create_table, create_source, read_rows, monkeypatch, kind):
    def at(number: int) -> Any:
        return number if kind == "BIGINT" else f'\u00e9"\\${number:04}'

    schema = f"id INT, v STRING, seq {kind}"
    path, now = create_table(schema), time.time_ns()
    sink = keyed(path, tombstone_retention=dt.timedelta(hours=1))
    found = []
    for batch in range(7):
        monkeypatch.setattr(time, "time_ns", lambda batch=batch: now + batch * 40 * 60 * 10**9)
        seq = 100 + 10 * batch
        # The delete of the batch before is still remembered, that of three batches before is forgotten.
        rows = [
            (batch, None, at(seq), "d"),
            (batch - 1, "old", at(seq - 11), "u"),
            (100 + batch, "x", at(seq - 31), "u"),
            (200 + batch, "x", at(seq - 30), "u"),
        ]
        result = sink.merge(create_source(f"{schema}, op STRING", rows))
        found.append((result.num_outdated_rows, result.num_undecidable_rows, result.num_tombstones))
    assert found == [(0, 0, 1), (1, 0, 2), (1, 0, 2), *[(1, 1, 2)] * 4]
    expected = sorted([-1, *(100 + batch for batch in range(7)), *(200 + batch for batch in range(7))])
    assert sorted(row["id"] for row in read_rows(path)) == expected


def test_a_horizon_is_exact_to_the_microsecond(create_table, create_source, monkeypatch):
    schema = "id INT, v STRING, at TIMESTAMP, op STRING"
    path = create_table("id INT, v STRING, at TIMESTAMP")
    sink = keyed(path, sequence_by="at", tombstone_retention=dt.timedelta(hours=1))
    at = dt.datetime.fromisoformat("2026-01-01T01:02:03.456789")
    sink.merge(create_source(schema, [(1, None, at, "d")]))
    later = time.time_ns() + 2 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    sink.merge(create_source(schema, [(2, "x", at, "u")]))
    early = at - dt.timedelta(microseconds=1)
    result = sink.merge(create_source(schema, [(3, "x", at, "u"), (4, "x", early, "u")]))
    assert result.num_undecidable_rows == 1


def test_a_state_that_was_reset_stays_so(spark, create_table, create_source, read_rows):
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)])
    sink = keyed(path)
    sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    sink.reset_state(spark)
    version = latest_version(path)
    sink.merge(create_source(SCHEMA, [(2, None, 5, "d")]))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    result = sink.merge(create_source(SCHEMA, [(1, "old", 4, "u")]))
    assert (result.num_outdated_rows, read_rows(path, "id", "v")) == (0, [Row(id=1, v="old"), Row(id=2, v="b")])


def test_lost_files_are_told(create_table, create_source, read_rows, caplog):
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
    shutil.rmtree(Path(path) / FOLDER)
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        keyed(path).merge(create_source(SCHEMA, [(1, "old", 4, "u")]))
    assert FOLDER in caplog.text
    assert read_rows(path, "v") == [Row(v="old")]


def test_another_sinks_deletes_between_open_and_commit(create_table, create_source, read_rows, at_step):
    path = create_table(TARGET)
    keyed(path).merge(create_source(SCHEMA, [(9, "z", 1, "u")]))
    at_step("before_commit", lambda: keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")])))
    result = keyed(path).merge(create_source(SCHEMA, [(1, "old", 4, "u"), (2, "new", 4, "u")]))
    assert read_rows(path, "id", "v") == [Row(id=2, v="new"), Row(id=9, v="z")]
    assert (result.num_commit_attempts, result.num_outdated_rows, result.num_tombstones) == (2, 1, 1)


def test_keys_and_sequences_of_many_types(create_table, create_source, read_rows, deletion_vectors):
    schema = "`a b` STRING, `K.x` DECIMAL(10,2), at TIMESTAMP, d DATE, v STRING"
    path = create_table(schema, deletion_vectors=deletion_vectors, properties={"delta.columnMapping.mode": "name"})
    sink = merge_sink(path, keys=["a b", "K.x"], sequence_by=["at", "d"], delete_when="v IS NULL", null_keys="match")
    at = dt.datetime.fromisoformat("2026-01-01T01:02:03.456789")
    day = dt.date(2026, 1, 1)
    number = Decimal("1.50")
    sink.merge(create_source(schema, [("k`", number, at, day, None), (None, number, at, day, None)]))
    early = at - dt.timedelta(microseconds=1)
    sink.merge(
        create_source(
            schema,
            [("k`", number, early, day, "old"), (None, number, at, None, "old"), ("k", None, at, day, "new")],
        )
    )
    assert [row["v"] for row in read_rows(path)] == ["new"]


@pytest.mark.parametrize("options", [{}, {"unchanged_columns": "array()"}])
def test_blanks_at_the_end_of_char_keys_that_older_versions_remembered(
    create_table, create_source, read_rows, monkeypatch, options
):
    schema = "k STRING, n INT, v STRING, s BIGINT"
    path = create_table("k CHAR(3), n INT, v STRING, s BIGINT", [])
    sink = merge_sink(path, keys=["n", "k"], sequence_by="s", delete_when="v = 'd'", **options)
    with monkeypatch.context() as patched:
        patched.setattr(bind, "char_columns", lambda _: frozenset())
        sink.merge(create_source(schema, [("b ", 1, "d", 5), ("c", 1, "d", 5)]))
    late = merge_sink(path, keys=["n", "k"], sequence_by="s", delete_when="v = 'd'", **options)
    assert late.merge(create_source(schema, [("b", 1, "late", 3), ("c ", 1, "late", 3)])).num_outdated_rows == 2
    assert read_rows(path) == []
