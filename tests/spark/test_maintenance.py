"""Maintenance by the sink: the table has the same rows before and after, in fewer files and without deleted rows."""

from __future__ import annotations

import random
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from stream_merge import MergeSink, merge_sink
from stream_merge.batch import maintain
from stream_merge.errors import StreamMergeError
from stream_merge.maintenance import account, compaction, policy, vacuum
from stream_merge.merge.locate import index_additions, index_lookup
from tests.spark.delta_log import actions_of, latest_version, operation_metrics
from tests.spark.statistics_oracle import check_statistics
from tests.spark.tables import change_rows, create_computed, files_below, upsert

SCHEMA = "id INT, n INT"
ROWS = [(key, 0) for key in range(20)]
START = datetime.fromisoformat("2026-01-01T00:00:00")


@pytest.fixture
def eager(monkeypatch):
    """Let the time for maintenance be always there, and any two small files be enough."""
    monkeypatch.setattr(account, "SHARE", 1000.0)
    monkeypatch.setattr(policy, "MIN_FILES", 2)
    monkeypatch.setattr(policy, "TIER_FACTOR", 1e9)
    monkeypatch.setattr(maintain, "WAIT_BATCHES", 0)


def commits(path: str) -> list[str]:
    return [actions_of(path, v, "commitInfo")[0]["operation"] for v in range(latest_version(path) + 1)]


def active(path: str) -> dict[str, dict[str, Any]]:
    """Return the active files by path, from the log alone."""
    found: dict[str, dict[str, Any]] = {}
    for version in range(latest_version(path) + 1):
        for removed in actions_of(path, version, "remove"):
            found.pop(removed["path"], None)
        for added in actions_of(path, version, "add"):
            found[added["path"]] = added
    return found


def contents(read_rows, path: str) -> dict[Any, Any]:
    """Return the last column by the first, of a table that has each key once."""
    rows = read_rows(path)
    found = {row[0]: row[-1] for row in rows}
    assert len(found) == len(rows)
    return found


def merge(sink: MergeSink, create_source, *rows, schema: str = SCHEMA):
    return sink.merge(create_source(schema, rows))


@pytest.mark.core
@pytest.mark.parametrize("with_vectors", [True, False], ids=["vectors", "no vectors"])
def test_rows_are_the_same_and_deleted_ones_go(eager, create_table, create_source, read_rows, with_vectors):
    path = create_table(SCHEMA, ROWS, deletion_vectors=with_vectors)
    result = merge(upsert(path, maintenance=True), create_source, *[(key, 1) for key in range(10, 25)])

    assert (result.maintenance, result.compacted_files) == ("compacted", 2)
    assert result.purged_rows == (10 if with_vectors else 0)
    assert (result.table_files, result.table_rows, result.deleted_rows) == (1, 25, 0)
    assert contents(read_rows, path) == {key: int(key >= 10) for key in range(25)}
    version = latest_version(path)
    assert result.version == version - 1
    assert commits(path)[-2:] == ["MERGE", "OPTIMIZE"]
    assert [action["dataChange"] for kind in ("add", "remove") for action in actions_of(path, version, kind)] == [
        False
    ] * 3
    assert [add.get("deletionVector") for add in active(path).values()] == [None]
    metrics = operation_metrics(path, version)
    assert (metrics["numAddedFiles"], metrics["numRemovedFiles"]) == (1, 2)
    assert metrics["numDeletionVectorsRemoved"] == int(with_vectors)
    assert metrics["maintenanceTimeMs"] > 0
    check_statistics(path)


def test_without_the_option_nothing_is_done(eager, create_table, create_source):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    result = merge(upsert(path), create_source, *[(key, 1) for key in range(10, 25)])
    assert (result.maintenance, result.table_files, "maintenance" in result.phase_ms) == (None, None, False)
    assert commits(path)[-1] == "MERGE"
    assert not [name for name in files_below(path) if "vacuum" in name]


def test_partitions_column_mapping_and_change_feed(eager, spark, create_table, append_rows, create_source, read_rows):
    schema = "`the id` INT, part STRING, n INT"
    path = create_table(
        schema,
        [(key, f"p {key % 2}", 0) for key in range(10)],
        deletion_vectors=True,
        partition_by=["part"],
        properties={"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"},
    )
    result = upsert(path, key="the id", maintenance=True).merge(
        create_source(schema, [(key, f"p {key % 2}", 1) for key in range(4, 12)])
    )
    assert (result.maintenance, result.purged_rows) == ("compacted", 6)
    assert contents(read_rows, path) == {key: int(key >= 4) for key in range(12)}
    assert {tuple(add["partitionValues"].values()) for add in active(path).values()} == {("p 0",), ("p 1",)}
    assert len(active(path)) == 2
    assert change_rows(spark, path, latest_version(path)) == []
    assert len(change_rows(spark, path, latest_version(path) - 1)) == 6 * 2 + 2


@pytest.mark.always
def test_row_ids_and_commit_versions_stay(eager, spark, create_table, create_source):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True, properties={"delta.enableRowTracking": "true"})
    tracked = ["id", "n", "_metadata.row_id", "_metadata.row_commit_version"]

    def rows(version=None):
        reader = spark.read.format("delta")
        reader = reader if version is None else reader.option("versionAsOf", version)
        return sorted(map(tuple, reader.load(path).select(*tracked).collect()))

    for number in range(1, 4):
        result = merge(upsert(path, maintenance=True), create_source, *[(key, number) for key in range(5 * number, 25)])
        assert result.maintenance == "compacted"
        assert rows() == rows(result.version)
    assert len({row_id for *_, row_id, _ in rows()}) == 25


def test_values_are_copied_and_not_computed(eager, spark, create_source, read_rows, tmp_path):
    path = create_computed(
        spark,
        str(tmp_path / "t"),
        {"id": "INT", "n": "INT", "twice": ("INT", "n * 2"), "d": "INT"},
        deletion_vectors=True,
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (n >= 0)")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')")
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN d SET DEFAULT 7")
    spark.sql(f"INSERT INTO delta.`{path}` (id, n, d) VALUES (1, 1, NULL), (2, 2, NULL), (3, 3, 3)")
    values = {name: f"source.{name}" for name in ("id", "n", "d")}
    sink = merge_sink(path, on="target.id = source.id", maintenance=True).when_matched_update(set=values)
    source = create_source("id INT, n INT, d INT", [(2, 5, 5), (4, 6, None)])
    result = sink.when_not_matched_insert(values=values).merge(source)
    assert result.maintenance == "compacted"
    assert read_rows(path) == [
        Row(id=1, n=1, twice=2, d=None),
        Row(id=2, n=5, twice=10, d=5),
        Row(id=3, n=3, twice=6, d=3),
        Row(id=4, n=6, twice=12, d=None),
    ]


def test_clustered_files_stay_clustered(eager, spark, create_table, create_source, read_rows):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True, cluster_by=["id"])
    spark.sql(f"OPTIMIZE delta.`{path}`")
    [clustered] = active(path).values()
    assert clustered["clusteringProvider"]
    sink = upsert(path, maintenance=True)
    result = merge(sink, create_source, *[(key, 1) for key in range(10)])
    # The old file has lost half of its rows and keeps what clustering knows of it; the new file is not mixed into it.
    assert (result.maintenance, result.compacted_files, result.purged_rows) == ("compacted", 1, 10)
    files = active(path).values()
    assert sorted(bool(add.get("clusteringProvider")) for add in files) == [False, True]
    [rewritten] = [add for add in files if add.get("clusteringProvider")]
    assert {**clustered["tags"]}.items() <= rewritten["tags"].items()
    assert contents(read_rows, path) == {key: int(key < 10) for key in range(20)}


def test_an_append_only_table_gets_fewer_files(eager, create_table, create_source, read_rows):
    path = create_table(SCHEMA, ROWS, properties={"delta.appendOnly": "true"})
    sink = merge_sink(path, on="target.id = source.id", maintenance=True).when_not_matched_insert_all()
    assert merge(sink, create_source, (1, 1), (50, 1)).maintenance == "compacted"
    assert len(active(path)) == 1
    assert len(read_rows(path)) == 21


def test_small_files_are_left_to_deltas_own_compaction(eager, create_table, create_source):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True, properties={"delta.autoOptimize.autoCompact": "true"})
    sink = upsert(path, maintenance=True)
    assert merge(sink, create_source, (1, 1), (50, 1)).maintenance is None
    result = merge(sink, create_source, *[(key, 2) for key in range(10)])
    assert (result.maintenance, result.compacted_files) == ("compacted", 2)


@pytest.mark.parametrize("statement", ["DELETE FROM {} WHERE id = 3", "OPTIMIZE {}"])
def test_another_writer_comes_first(eager, spark, create_table, create_source, read_rows, at_step, statement):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    sink = upsert(path, maintenance=True)
    at_step("compacted", lambda: spark.sql(statement.format(f"delta.`{path}`")))
    before = {name for name in files_below(path) if name.endswith(".parquet")}
    result = merge(sink, create_source, *[(key, 1) for key in range(10, 25)])
    assert (result.maintenance, result.compacted_files, result.conflicts) == ("conflict", 0, ())
    expected = {key: int(key >= 10) for key in range(25) if key != 3 or "OPTIMIZE" in statement}
    assert contents(read_rows, path) == expected
    # The files of the compaction are gone: only those of commits are there.
    named = {add["path"] for v in range(latest_version(path) + 1) for add in actions_of(path, v, "add")}
    found = {name for name in files_below(path) if name.endswith(".parquet") and "_delta_log" not in name}
    assert found <= named | before

    result = merge(sink, create_source, (1, 2), (3, 2))
    assert contents(read_rows, path) == expected | {1: 2, 3: 2}
    assert len(read_rows(path)) == 25


def test_an_append_beside_it_is_no_conflict(eager, spark, create_table, create_source, append_rows, read_rows, at_step):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    at_step("compacted", lambda: append_rows(path, SCHEMA, [(100, 100)]))
    result = merge(upsert(path, maintenance=True), create_source, *[(key, 1) for key in range(10, 25)])
    assert result.maintenance == "compacted"
    assert len(read_rows(path)) == 26


@pytest.mark.parametrize("step", ["compacting", "compacted", "compaction_committed"])
def test_a_failure_fails_no_batch(eager, create_table, create_source, read_rows, at_step, caplog, step):
    def fail():
        raise ValueError("no luck")

    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    sink = upsert(path, maintenance=True)
    at_step(step, fail)
    result = merge(sink, create_source, *[(key, 1) for key in range(10, 25)])
    assert (result.maintenance, result.version) == ("failed", latest_version(path) - (step == "compaction_committed"))
    assert "no luck" in caplog.text
    merge(sink, create_source, (1, 2), (11, 2))
    expected = {key: int(key >= 10) for key in range(25)} | {1: 2, 11: 2}
    assert contents(read_rows, path) == expected
    assert len(read_rows(path)) == 25


def test_a_rewrite_that_loses_rows_is_given_up(eager, monkeypatch, create_table, create_source, read_rows, caplog):
    rewrite = compaction.rewrite
    monkeypatch.setattr(compaction, "rewrite", lambda transaction, files: rewrite(transaction, files[:1]))
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    result = merge(upsert(path, maintenance=True), create_source, *[(key, 1) for key in range(10, 25)])
    assert (result.maintenance, commits(path)[-1]) == ("failed", "MERGE")
    assert "a compaction of 25 rows wrote" in caplog.text
    assert len(read_rows(path)) == 25


@pytest.mark.parametrize("fails", [False, True])
def test_several_files_are_written_at_a_time(
    eager, monkeypatch, create_table, append_rows, create_source, read_rows, fails
):
    """If one of them fails, none of them is left."""
    monkeypatch.setattr(policy, "SMALL_SHARE", 0.0)
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    append_rows(path, SCHEMA, [(key, 0) for key in range(100, 120)])
    both, rewrite = threading.Barrier(2, timeout=60), compaction.rewrite

    def meeting(transaction, files):
        number = both.wait()
        added = rewrite(transaction, files)
        both.wait()
        if fails and number == 0:
            raise StreamMergeError("no luck")
        return added

    monkeypatch.setattr(compaction, "rewrite", meeting)
    keys = [*range(10), *range(100, 110)]
    result = merge(upsert(path, maintenance=True), create_source, *[(key, 1) for key in keys])
    assert contents(read_rows, path) == {key: int(key in keys) for key in (*range(20), *range(100, 120))}
    if not fails:
        assert (result.maintenance, result.compacted_files, result.purged_rows) == ("compacted", 2, 20)
        assert (result.table_files, result.deleted_rows) == (3, 0)
        return
    assert (result.maintenance, commits(path)[-1]) == ("failed", "MERGE")
    named = {add["path"] for v in range(latest_version(path) + 1) for add in actions_of(path, v, "add")}
    left = {name for name in files_below(path) if name.endswith(".parquet") and "_delta_log" not in name} - named
    assert len(left) <= 1, "of the one that failed nothing is known"


@pytest.mark.core
def test_files_written_at_a_time_are_written_with_the_settings_of_the_merge(
    eager, monkeypatch, spark, create_table, append_rows, create_source, read_rows
):
    """A thread of its own would take the application's: times cut to milliseconds, no columns found by their ids."""
    monkeypatch.setattr(policy, "SMALL_SHARE", 0.0)
    schema = "id INT, at TIMESTAMP"
    path = create_table(schema, deletion_vectors=True, properties={"delta.columnMapping.mode": "id"})
    old, new = ({key: START + timedelta(microseconds=first + key) for key in range(200)} for first in (1_100, 5_500))
    for first in (0, 100):
        append_rows(path, schema, [(key, old[key]) for key in range(first, first + 20)])
    changed = [*range(10), *range(100, 110)]
    setting = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    try:
        result = merge(upsert(path, maintenance=True), create_source, *[(k, new[k]) for k in changed], schema=schema)
    finally:
        spark.conf.unset(setting)
    assert (result.maintenance, result.compacted_files, result.purged_rows) == ("compacted", 2, 20)
    kept = [*range(10, 20), *range(110, 120)]
    assert contents(read_rows, path) == {**{key: new[key] for key in changed}, **{key: old[key] for key in kept}}


@pytest.mark.long
def test_two_sinks_of_one_table(eager, create_table, create_source, read_rows):
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    expected = dict(ROWS)
    sinks = [upsert(path, maintenance=True) for _ in range(2)]
    for number in range(1, 5):
        keys = range(number, 40, number)
        result = merge(sinks[number % 2], create_source, *[(key, number) for key in keys])
        assert (result.maintenance, result.num_commit_attempts) == ("compacted", 1)
        expected |= dict.fromkeys(keys, number)
        assert contents(read_rows, path) == expected


@pytest.mark.parametrize("order", [None, "s"])
def test_the_index_follows(eager, monkeypatch, spark, create_table, append_rows, read_rows, order):
    monkeypatch.setattr(index_lookup, "MIN_CANDIDATE_ROWS", 20)
    schema = "k STRING, s BIGINT, v BIGINT"
    path = create_table(schema, [(str(key), 0, key) for key in range(100)], deletion_vectors=True)
    read: list[str] = []
    add_some = index_additions._add_some

    def noted(job, files):
        # Those that a batch reads, not maintenance after it.
        if not isinstance(job, maintain._Indexed):
            read.extend(file.path for file in files)
        return add_some(job, files)

    monkeypatch.setattr(index_additions, "_add_some", noted)
    sink = merge_sink(path, keys="k", sequence_by=order, delete_when="op = 'd'", locator="index", maintenance=True)
    expected, rng, compacted = {str(key): key for key in range(100)}, random.Random(4), 0
    for number in range(1, 6):
        if number == 3:
            spark.sql(f"OPTIMIZE delta.`{path}`")
        read.clear()
        known = {*active(path)} - {file for file in active(path) if not sink._state().index.has(file)}
        batch = [(str(key), number, 1000 * number + key, rng.choice("uuud")) for key in rng.sample(range(140), 40)]
        result = sink.merge(spark.createDataFrame(batch, f"{schema}, op STRING").coalesce(1))
        assert result.locator == "index"
        # Beside a checkpoint of the log there is no compaction.
        assert result.maintenance == (None if result.version % 10 in (0, 9) else "compacted")
        compacted += result.maintenance == "compacted"
        for key, _, value, op in batch:
            expected.pop(key, None)
            if op == "u":
                expected[key] = value
        assert contents(read_rows, path) == expected
        assert len(read_rows(path)) == len(expected)
        # What a compaction wrote, the next batch does not read.
        assert not known & {*read}
        assert not result.maintenance or all(sink._state().index.has(file) for file in active(path))
    assert compacted >= 3


def test_it_keeps_within_its_account(monkeypatch, create_table, create_source):
    """With half of the time for it, and batches of half a second, by the test's clock."""
    now = [0.0]

    def tick():
        now[0] += 0.5
        return now[0]

    monkeypatch.setattr(policy, "MIN_FILES", 2)
    monkeypatch.setattr(account, "SHARE", 0.5)
    monkeypatch.setattr(maintain, "clock", tick)
    monkeypatch.setattr(maintain, "VACUUM_LOOKED_MS", 1e18)
    monkeypatch.setattr("stream_merge.metrics.PhaseTimer.elapsed_ms", lambda _: 500)
    path = create_table(SCHEMA, ROWS, deletion_vectors=True)
    sink = upsert(path, maintenance=True)
    done = [merge(sink, create_source, (number, number)).maintenance for number in range(7)]
    # Four save up a second, the time of two batches; the compaction takes more than that.
    assert done == [None] * 3 + ["compacted"] + [None] * 3
    assert sink._state().upkeep.account.balance < 1


class TestVacuum:
    @pytest.fixture(autouse=True)
    def often(self, monkeypatch):
        """Look for it with every batch."""
        monkeypatch.setattr(maintain, "VACUUM_LOOKED_MS", 0)

    def old_file(self, path: str) -> Path:
        """Make a file that no version has and that is older than the retention."""
        import os

        orphan = Path(path, "part-00000-of-a-killed-attempt.parquet")
        orphan.write_bytes(b"")
        past = time.time() - 8 * 24 * 3600
        os.utime(orphan, (past, past))
        return orphan

    def test_once_a_day_whichever_process(self, monkeypatch, create_table, create_source, read_rows):
        path = create_table(SCHEMA, ROWS, deletion_vectors=True)
        now = [1_700_000_000_000]
        monkeypatch.setattr(maintain, "now_ms", lambda: now[0])
        orphan = self.old_file(path)
        found = []
        for hours in (0, 1, 23.5, 1, 22, 1.5):
            now[0] += int(hours * 3600 * 1000)
            sink = upsert(path, maintenance=True)
            found.append((merge(sink, create_source, (1, 1)).maintenance, orphan.exists()))
        assert found == [
            (None, True),
            (None, True),
            ("vacuumed", False),
            (None, False),
            (None, False),
            ("vacuumed", False),
        ]
        assert len(read_rows(path)) == 20

    @pytest.mark.usefixtures("eager")
    def test_files_within_the_retention_stay(self, monkeypatch, create_table, create_source, read_rows):
        monkeypatch.setattr(vacuum, "INTERVAL_MS", 0)
        path = create_table(SCHEMA, ROWS, deletion_vectors=True)
        sink = upsert(path, maintenance=True)
        for number in range(1, 4):
            merge(sink, create_source, (number, number))
        assert read_rows(path, version=0 if len(commits(path)) < 2 else 1) == sorted(
            (Row(id=k, n=0) for k, _ in ROWS), key=repr
        )

    def test_a_failure_waits_for_the_next_day(self, monkeypatch, create_table, create_source):
        def fail(_):
            raise ValueError("no luck")

        calls = []
        monkeypatch.setattr(vacuum.maintenance, "vacuum", lambda table: calls.append(1) or fail(table))
        path = create_table(SCHEMA, ROWS, deletion_vectors=True)
        merge(upsert(path, maintenance=True), create_source, (1, 1))
        monkeypatch.setattr(maintain, "now_ms", lambda: int(time.time() * 1000) + 25 * 3600 * 1000)
        sink = upsert(path, maintenance=True)
        assert [merge(sink, create_source, (1, n)).maintenance for n in (1, 2)] == ["failed", None]
        assert calls == [1]


@pytest.mark.usefixtures("eager")
def test_a_table_with_a_column_of_the_name_of_the_files_own(create_table, create_source, read_rows):
    """It gets no deletion vectors, and its files are merged as others are."""
    path = create_table("id INT, _metadata INT", ROWS, deletion_vectors=True)
    sink = merge_sink(path, keys="id", maintenance=True)
    told = [sink.merge(create_source("id INT, _metadata INT", [(100 + n, n)])).maintenance for n in range(8)]
    assert "compacted" in told
    assert {row[0]: row[1] for row in read_rows(path)} == {**dict(ROWS), **{100 + n: n for n in range(8)}}
    assert not any(add.get("deletionVector") for add in active(path).values())
