"""The key index of a large table: in parts, in files, and taken over by the next process."""

import datetime as dt
import os
import random
import shutil
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.batch import measure
from stream_merge.bridge.transaction import Transaction
from stream_merge.key_index import index as key_index
from stream_merge.key_index import stored
from stream_merge.merge.locate import index_additions, index_lookup, probes
from stream_merge.table.files import DataFile
from tests.spark.delta_log import latest_version


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let a table of a few hundred rows be large."""
    monkeypatch.setattr(key_index, "RUN_ROWS", 40)
    monkeypatch.setattr(index_lookup, "MIN_CANDIDATE_ROWS", 20)


@pytest.fixture
def files_read(monkeypatch):
    """Note how many files are read for the index at a time."""
    read = []
    add_some = index_additions._add_some
    monkeypatch.setattr(
        index_additions, "_add_some", lambda job, files: read.append(len(files)) or add_some(job, files)
    )
    return read


def stored_runs(path):
    return sorted(Path(path, stored.FOLDER).glob("*/*.arrow"))


def settled(sink):
    """Wait until the index of a sink has written what it has to write."""
    sink._state().index.wait()
    return sink


SCHEMA = "k {}, s bigint, v bigint"


@pytest.mark.always
@pytest.mark.core
@pytest.mark.parametrize(("key_type", "order"), [("string", None), ("bigint", "s")])
def test_each_process_makes_what_a_dictionary_makes(
    spark, create_table, append_rows, read_rows, tmp_path, files_read, monkeypatch, key_type, order
):
    monkeypatch.setattr(index_lookup, "MAX_UNFAMILIAR_ROWS", 60)
    schema, as_key = SCHEMA.format(key_type), str if key_type == "string" else int
    path = create_table(schema, deletion_vectors=True, path=str(tmp_path / "a table [x]%20é"))
    disk = tmp_path / "a disk [y]%20ü"
    disk.mkdir()
    monkeypatch.setattr(index_lookup, "local_folder", lambda _: str(disk))
    expected = {as_key(key): (0, key) for key in range(200)}
    for start in range(0, 200, 50):
        append_rows(path, schema, [(as_key(key), 0, key) for key in range(start, start + 50)])
    rng, locators, num_read, states = random.Random(9), [], [], {}
    for number in range(8):
        if number % 2 == 0:
            sink = merge_sink(path, keys="k", sequence_by=order, delete_when="op = 'd'")
        if number == 2:
            append_rows(path, schema, [(as_key(900 + key), 0, key) for key in range(15)])
            expected |= {as_key(900 + key): (0, key) for key in range(15)}
        if number == 4:
            spark.sql(f"OPTIMIZE delta.`{path}`")
        if number == 6 and order is None:
            spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {states[3][0]}")
            expected = dict(states[3][1])
        files_read.clear()
        batch = [(as_key(k), number + 1, 1000 * number + k, rng.choice("uud")) for k in rng.sample(range(260), 25)]
        locators.append(sink.merge(spark.createDataFrame(batch, f"{schema}, op string").coalesce(1)).locator)
        settled(sink)
        num_read.append(sum(files_read))
        for key, sequence, value, op in batch:
            expected.pop(key, None)
            if op == "u":
                expected[key] = (sequence, value)
        states[number] = latest_version(path), dict(expected)
        assert {row["k"]: (row["s"], row["v"]) for row in read_rows(path)} == expected
    # The first batch of all scans, the second reads all files for the index. The next process begins with the index,
    # and reads at most the files that were too few for a run, and those of others.
    assert locators[:4] == ["scan", "index", "index", "index"]
    assert num_read[1] == 5
    assert max(num_read[2:4]) <= 2
    # After OPTIMIZE no file is known. After RESTORE those of before are, but no process had them any more.
    assert locators[4:] == ["scan", "index", "index" if order else "scan", "index"]
    assert stored_runs(path)
    assert len({run.parent for run in stored_runs(path)}) == 1
    assert list(disk.iterdir()) == []


def test_runs_of_keys_that_nobody_merges_by_any_more_go_after_a_month(create_table, create_source, append_rows):
    schema = SCHEMA.format("bigint")
    path = create_table(schema, [(key, 0, key) for key in range(60)], deletion_vectors=True)
    index = Path(path, stored.FOLDER)
    month = stored.KEPT_MS / 1000
    ages = {"f" * 32: month + 60, "e" * 32: month - 3600, "d" * 32: month + 60}
    for name, age in ages.items():
        (index / name).mkdir(parents=True)
        (index / name / "run.arrow").write_bytes(b"of another sink")
        os.utime(index / name / "run.arrow", (time.time() - age, time.time() - age))
    # A sink that has added to its runs is there.
    (index / ("d" * 32) / "newer.arrow").write_bytes(b"of another sink")
    sink = merge_sink(path, keys="k", locator="index")
    for number in (1, 2):
        sink.merge(create_source(schema, [(number, 1, number)]))
    settled(sink)
    (own,) = {run.parent.name for run in stored_runs(path)} - {*ages}
    assert {folder.name for folder in index.iterdir()} == {own, "e" * 32, "d" * 32}


def test_without_its_stored_runs_the_index_is_made_anew(
    create_table, create_source, append_rows, read_rows, files_read, caplog
):
    schema = SCHEMA.format("string")
    path = create_table(schema, deletion_vectors=True)
    for start in (0, 50, 100):
        append_rows(path, schema, [(str(key), 0, key) for key in range(start, start + 50)])
    expected = {str(key): key for key in range(150)}
    harms = [
        lambda run: run.write_bytes(run.read_bytes()[:-100]),
        lambda run: run.write_bytes(bytes(reversed(run.read_bytes()))),
        lambda run: run.rename(run.with_name("00000000-00000000.arrow")),
        lambda run: run.unlink(),
        lambda run: run.unlink(),
    ]
    for number, harm in enumerate(harms, 1):
        sink = merge_sink(path, keys="k", locator="index")
        for value in (1, 2):
            rows = [(str(key), number, 100 * number + value) for key in (5, 70, 120, 1000 + number)]
            assert sink.merge(create_source(schema, rows)).locator == "index"
            expected |= {key: value for key, _, value in rows}
        settled(sink)
        assert max(files_read) >= 3
        files_read.clear()
        assert {row["k"]: row["v"] for row in read_rows(path)} == expected
        runs = stored_runs(path)
        assert runs
        for run in runs:
            harm(run)
            # Hadoop's local file system would find the damage by itself.
            run.with_name(f".{run.name}.crc").unlink(missing_ok=True)
    assert caplog.text.count("a stored part of the key index is not used") >= 3


def test_runs_of_files_that_have_left_the_table_are_removed(spark, create_table, create_source, append_rows):
    schema = SCHEMA.format("bigint")
    path = create_table(schema, deletion_vectors=True)
    append_rows(path, schema, [(key, 0, key) for key in range(100)])
    settled_sink = merge_sink(path, keys="k", locator="index")
    settled_sink.merge(create_source(schema, [(1, 1, 1)]))
    settled(settled_sink)
    (before,) = stored_runs(path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    sink = merge_sink(path, keys="k", locator="index")
    assert sink.merge(create_source(schema, [(1, 2, 2)])).num_target_rows_updated == 1
    settled(sink)
    (after,) = stored_runs(path)
    assert before != after


def test_of_a_table_too_large_for_one_batch_the_rest_is_scanned(
    spark, create_table, append_rows, read_rows, files_read, monkeypatch
):
    monkeypatch.setattr(index_additions, "MAX_ADDED_ROWS", 100)
    monkeypatch.setattr(index_additions, "MAX_READ_ROWS", 50)
    schema = SCHEMA.format("string")
    path = create_table(schema, deletion_vectors=True)
    for start in range(0, 240, 30):
        append_rows(path, schema, [(str(key), 5, key) for key in range(start, start + 30)])
    expected = {str(key): (5, key) for key in range(240)}
    sink = merge_sink(path, keys="k", sequence_by="s", locator="index")
    at_a_time = []
    for number in range(4, 9):
        batch = [(str(key), number, number) for key in range(number, 260, 20)]
        files_read.clear()
        result = sink.merge(spark.createDataFrame(batch, schema).coalesce(1))
        at_a_time.append(list(files_read))
        late = {key for key, sequence, _ in batch if key in expected and expected[key][0] > sequence}
        assert result.num_stale_rows == len(late)
        expected |= {key: (sequence, value) for key, sequence, value in batch if key not in late}
        assert {row["k"]: (row["s"], row["v"]) for row in read_rows(path)} == expected
    # Two of the first files would be more rows than one job may read, and five more than one batch may.
    assert at_a_time[0] == [1] * 4


@pytest.mark.parametrize("limit", [50_000, 10])
def test_the_job_that_measures_a_batch_brings_what_the_index_is_asked(
    spark, create_table, read_rows, monkeypatch, limit
):
    """Unless it has too many rows."""
    monkeypatch.setattr(probes, "MAX_COLLECTED", limit)
    asked = []
    probes_of = index_lookup.probes_of
    monkeypatch.setattr(index_lookup, "probes_of", lambda *arguments: asked.append(1) or probes_of(*arguments))
    schema = "k bigint, j string, v bigint"
    path = create_table(schema, [(key, str(key), 0) for key in range(50)], deletion_vectors=True)
    sink = (
        merge_sink(path, on="target.k = source.k AND target.j = source.j", locator="index")
        .when_matched_update_all(condition="source.j IS NOT NULL")
        .when_not_matched_insert_all(condition="source.j IS NOT NULL")
    )
    for number in (1, 2, 3):
        rows = [(key, str(key) if key % 7 else None, number) for key in range(10, 60)]
        result = sink.merge(spark.createDataFrame(rows, schema).repartition(3, "k"))
        assert (result.locator, result.num_target_rows_inserted) == ("index", 0 if number > 1 else 9)
    assert len(asked) == (1 if limit == 50_000 else 3)
    values = {row["k"]: row["v"] for row in read_rows(path)}
    assert values == {key: 3 if key >= 10 and key % 7 else 0 for key in range(60) if key < 50 or key % 7}


@pytest.mark.core
@pytest.mark.parametrize("order", [None, "s"])
def test_what_a_process_writes_is_read_once_and_then_known(
    spark, create_table, append_rows, read_rows, files_read, order
):
    schema = SCHEMA.format("string")
    path = create_table(schema, deletion_vectors=True)
    append_rows(path, schema, [(str(key), 0, key) for key in range(50)])
    expected = {str(key): (0, key) for key in range(50)}
    sink = merge_sink(path, keys="k", sequence_by=order, delete_when="op = 'd'", locator="index")
    rng, read = random.Random(1), []
    for number in range(1, 7):
        # Most keys are of the batch before, in another order. The first and the last are in every batch, so that no
        # file can be skipped.
        keys = rng.sample([0, *range(10 * number, 10 * number + 30), 99], 25)
        keys = rng.sample([*{0, 99, *keys}], len({0, 99, *keys}))
        batch = [(str(key), number, 100 * number + key, rng.choice("uud")) for key in keys]
        if number == 6:
            append_rows(path, schema, [("555", 0, 0)])
            expected["555"] = (0, 0)
        files_read.clear()
        frame = spark.createDataFrame(batch, f"{schema}, op string")
        assert sink.merge(frame.coalesce(1)).locator == "index"
        read.append(sum(files_read))
        for key, sequence, value, op in batch:
            expected.pop(key, None)
            if op == "u":
                expected[key] = (sequence, value)
        assert {row["k"]: (row["s"], row["v"]) for row in read_rows(path)} == expected
    # The file that was there; the one of the first batch, which brings no probes; that of the second, to compare it
    # with what it should hold; and that of another writer.
    assert read == [1, 1, 1, 0, 0, 1]
    assert sink._state().index.writes_in_order is True


def test_the_order_of_partitions_in_a_file_is_not_known(spark, create_table, read_rows, files_read):
    schema = SCHEMA.format("bigint")
    path = create_table(schema, [(key, 0, key) for key in range(50)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", locator="index")
    for number in range(1, 6):
        rows = [(key, number, number) for key in range(number, 40)]
        sink.merge(spark.createDataFrame(rows, schema).repartition(1 if number < 4 else 3))
    # Those of the last batches but the last of all, too.
    assert files_read == [1, 1, 1, 1]
    assert sink._state().index.writes_in_order is True
    assert {row["k"]: row["v"] for row in read_rows(path)} == {k: min(k, 5) if k < 40 else k for k in range(50)}


@pytest.mark.parametrize("setting", ["table", "session"])
def test_where_delta_shuffles_what_it_writes_every_file_is_read(
    spark, create_table, append_rows, read_rows, files_read, setting
):
    schema = SCHEMA.format("bigint")
    properties = {"delta.autoOptimize.optimizeWrite": "true"} if setting == "table" else None
    path = create_table(schema, [(key, 0, key) for key in range(50)], deletion_vectors=True, properties=properties)
    sink = merge_sink(path, keys="k", locator="index")
    if setting == "session":
        spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", "true")
    try:
        for number in range(1, 6):
            rows = [(key, number, number) for key in range(number, 40)]
            sink.merge(spark.createDataFrame(rows, schema).coalesce(1))
    finally:
        spark.conf.unset("spark.databricks.delta.optimizeWrite.enabled")
    assert sum(files_read) == 5
    assert sink._state().index.writes_in_order is None
    assert {row["k"]: row["v"] for row in read_rows(path)} == {
        key: min(key, 5) if key < 40 else key for key in range(50)
    }


def test_after_a_file_in_another_order_every_file_is_read(spark, create_table, read_rows, files_read, monkeypatch):
    """As if something between the merge and the file had shuffled the rows."""
    write = Transaction.write
    monkeypatch.setattr(Transaction, "write", lambda self, frame: write(self, frame.orderBy(F.desc("v")).coalesce(1)))
    schema = SCHEMA.format("bigint")
    path = create_table(schema, [(key, 0, key) for key in range(50)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", locator="index")
    for number in range(1, 6):
        rows = [(key, number, 100 * number + key) for key in range(number, 40)]
        sink.merge(spark.createDataFrame(rows, schema).coalesce(1))
    assert sum(files_read) == 5
    assert sink._state().index.writes_in_order is False
    found = {row["k"]: row["v"] for row in read_rows(path)}
    assert found == {key: 100 * min(key, 5) + key if 0 < key < 40 else key for key in range(50)}


@pytest.mark.parametrize(("num_columns", "num_jobs"), [(3, 0), (0, 1)])
def test_the_newest_sequences_come_from_the_statistics(
    create_table, create_source, append_rows, read_rows, monkeypatch, num_columns, num_jobs
):
    jobs = []
    planned_at_once = index_additions.planned_at_once
    monkeypatch.setattr(index_additions, "planned_at_once", lambda frame: jobs.append(1) or planned_at_once(frame))
    schema = SCHEMA.format("bigint")
    properties = {"delta.dataSkippingNumIndexedCols": str(num_columns)}
    path = create_table(schema, deletion_vectors=True, properties=properties)
    append_rows(path, schema, [(1, 2**62 + 1, 1), (2, None, 2), (3, 5, 3)])
    read, pairs_in = [], index_lookup.pairs_in
    monkeypatch.setattr(index_lookup, "pairs_in", lambda job, files: read.append(len(files)) or pairs_in(job, files))
    sink = merge_sink(path, keys="k", sequence_by="s", locator="index")
    result = sink.merge(create_source(schema, [(1, 2**62 + 1, 10), (2, 2**62 + 2, 20)]))
    assert (result.locator, result.num_target_rows_updated, jobs, read) == ("index", 2, [1] * num_jobs, [])
    # The row is older than the change; another one in its file is not.
    result = sink.merge(create_source(schema, [(3, 6, 30)]))
    assert (result.locator, result.num_target_rows_updated, read) == ("index", 1, [1])
    assert {row["k"]: row["v"] for row in read_rows(path)} == {1: 10, 2: 20, 3: 30}


def test_what_a_large_batch_brings_along_is_bounded(spark, create_table, monkeypatch):
    monkeypatch.setattr(probes, "MAX_COLLECTED", 100)
    collected = []
    collected_table = measure.collected_table

    def note(found, number):
        collected.append((len(found.values), number))
        return collected_table(found, number)

    monkeypatch.setattr(measure, "collected_table", note)
    path = create_table("k bigint, v bigint", [(1, 1)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", locator="index")
    sink.merge(spark.range(3).selectExpr("id AS k", "id AS v"))
    sink.merge(spark.range(0, 50_000, 1, 40).selectExpr("id AS k", "id AS v"))
    sink.merge(spark.range(0, 100, 1, 4).selectExpr("id AS k", "id AS v"))
    (of_large, of_small) = collected
    assert of_large == (sum(-(-100 // number) for number in range(1, 41)), 50_000)
    assert of_small == (100, 100)
    assert spark.read.format("delta").load(path).count() == 50_000


def test_a_process_that_lacks_little_begins_with_the_index(create_table, create_source, append_rows, monkeypatch):
    """What the process before had in memory alone may be more than what one batch usually reads for the index."""
    monkeypatch.setattr(index_lookup, "MAX_UNFAMILIAR_ROWS", 5)
    schema = SCHEMA.format("bigint")
    path = create_table(schema, deletion_vectors=True)
    append_rows(path, schema, [(key, 0, key) for key in range(0, 320, 2)])
    sink = merge_sink(path, keys="k")
    assert [sink.merge(create_source(schema, [(2, 1, 1)])).locator for _ in range(2)] == ["scan", "index"]
    settled(sink)
    append_rows(path, schema, [(key, 0, key) for key in range(1, 60, 2)])
    assert merge_sink(path, keys="k").merge(create_source(schema, [(2, 1, 1)])).locator == "index"
    append_rows(path, schema, [(key, 0, key) for key in range(1, 320, 2)])
    assert merge_sink(path, keys="k").merge(create_source(schema, [(2, 1, 1)])).locator == "scan"


def test_files_with_one_checksum_are_read_apart(spark, create_table, append_rows, read_rows, monkeypatch, files_read):
    schema = SCHEMA.format("bigint")
    path = create_table(schema, deletion_vectors=True)
    for start in (0, 20, 40, 60, 80):
        append_rows(path, schema, [(key, 0, key) for key in range(start, start + 20)])
    by_checksum = index_additions.by_checksum

    def colliding(transaction, files):
        # As if the first and the last of the files had names with one checksum.
        names = sorted(add["path"] for add in transaction.all_files())
        return None if {names[0], names[-1]} <= {file.path for file in files} else by_checksum(transaction, files)

    monkeypatch.setattr(index_additions, "by_checksum", colliding)
    sink = merge_sink(path, keys="k", locator="index")
    result = sink.merge(spark.range(0, 100, 7).selectExpr("id AS k", "1L AS s", "-1L AS v"))
    assert (result.locator, result.num_target_rows_updated) == ("index", 15)
    assert files_read[0] == 5
    assert len(files_read) > 2
    assert {row["k"]: row["v"] for row in read_rows(path)} == {k: k if k % 7 else -1 for k in range(100)}


def test_parts_of_files_have_few_rows_and_few_files(monkeypatch):
    monkeypatch.setattr(index_additions, "MAX_READ_ROWS", 100)
    monkeypatch.setattr(index_additions, "MAX_READ_FILES", 3)
    counts = [60, 40, 1, 1, 1, 1, 500, 99]
    files = [DataFile({"path": str(n), "stats": f'{{"numRecords": {count}}}'}) for n, count in enumerate(counts)]
    parts = [[file.num_physical_rows for file in part] for part in index_additions._parts(files)]
    assert parts == [[60, 40], [1, 1, 1], [1], [500], [99]]


def test_what_is_measured_with_the_probes_is_what_is_measured_without(spark, create_table, read_rows, monkeypatch):
    measured = []
    planned, collect = measure._Measure.planned, measure._Measure.collect
    rows_of = []

    def planning(self, rows):
        rows_of.append(rows)
        return planned(self, rows)

    def compared(self, frame):
        facts = collect(self, frame)
        if self.probes_by is not None:
            other = replace(self, probes_by=None)
            without = collect(other, planned(other, rows_of[-1]))
            assert {name: facts[name] for name in without} == without
            assert {*map(type, without.values())} == {type(facts[name]) for name in without}
            measured.append(facts["rows"])
        return facts

    monkeypatch.setattr(measure._Measure, "planned", planning)
    monkeypatch.setattr(measure._Measure, "collect", compared)
    schema = "k string, d date, t timestamp, i smallint, b bigint, s decimal(38,10), v int"
    path = create_table(schema, deletion_vectors=True, partition_by=["d", "t"])
    sink = merge_sink(
        path,
        keys=["k", "d", "t", "i", "b"],
        sequence_by="s",
        delete_when="v < 0",
        locator="index",
    )
    moments = [dt.datetime.fromisoformat(text) for text in ("1850-01-01 00:00:00.000001", "2024-02-29 23:59:59.999999")]
    for number in range(1, 4):
        rows = [
            (
                f"ключ{i}",
                dt.date(1 if i % 2 else 9999, 12, 31),
                moments[i % 2],
                -i,
                2**62 + i,
                Decimal(10**27) + number,
                i,
            )
            for i in range(10)
        ]
        result = sink.merge(spark.createDataFrame(rows, schema).coalesce(1))
        assert (result.locator, result.num_stale_rows) == ("index" if number > 1 else result.locator, 0)
    assert measured
    assert len(read_rows(path)) == 10


@pytest.mark.parametrize("is_new_process", [False, True])
def test_partitions_without_a_zone_are_other_times_in_another_session(spark, create_table, read_rows, is_new_process):
    """Delta writes the moment with its zone by default; older releases and other writers do not."""
    without_zone, zone = "spark.databricks.delta.write.utcTimestampPartitionValues", "spark.sql.session.timeZone"
    path = create_table("k TIMESTAMP, n INT, v INT", [], partition_by=["k"], deletion_vectors=True)

    def rows(*values):
        return spark.createDataFrame(values, "at BIGINT, n INT, v INT").selectExpr("timestamp_seconds(at) k", "n", "v")

    before = spark.conf.get(zone)
    sink = merge_sink(path, keys=["k", "n"], locator="index")
    try:
        spark.conf.set(zone, "UTC")
        spark.conf.set(without_zone, "false")
        rows((7200, 1, 1)).write.format("delta").mode("append").save(path)
        spark.conf.unset(without_zone)
        for value in (1, 2):
            sink.merge(rows((99, 1, value), (7200, 7, value)))
        settled(sink)
        spark.conf.set(zone, "Europe/Berlin")
        if is_new_process:
            sink = merge_sink(path, keys=["k", "n"], locator="index")
        # 02:00 in Berlin is an hour before 02:00 in UTC.
        result = sink.merge(rows((3600, 1, 9)))
        assert (result.num_target_rows_updated, result.num_target_rows_inserted) == (1, 0)
        found = spark.read.format("delta").load(path).selectExpr("unix_seconds(k) AS at", "n", "v").collect()
        assert (3600, 1, 9) in map(tuple, found)
    finally:
        spark.conf.unset(without_zone)
        spark.conf.set(zone, before)


def test_runs_are_stored_where_the_table_has_been_moved(spark, create_table, append_rows, create_source, tmp_path):
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    schema = SCHEMA.format("bigint")
    create_table(schema, deletion_vectors=True, path=before)
    for start in range(0, 200, 50):
        append_rows(before, schema, [(key, 0, key) for key in range(start, start + 50)])
    spark.sql(f"CREATE TABLE indexed USING delta LOCATION '{before}'")
    try:
        sink = merge_sink("indexed", keys="k", locator="index")

        def merge(number):
            rows = [(key, number, number) for key in range(100 * number, 100 * number + 60)]
            result = settled(sink).merge(create_source(schema, rows))
            settled(sink)
            return result

        assert merge(1).locator == "index"
        old = stored_runs(before)
        shutil.copytree(before, after, ignore=shutil.ignore_patterns(stored.FOLDER))
        spark.sql(f"ALTER TABLE indexed SET LOCATION '{after}'")
        assert [merge(2).locator for _ in range(2)][1] == "index"
        assert stored_runs(before) == old != []
        assert stored_runs(after)
    finally:
        spark.sql("DROP TABLE indexed")
    assert {row["k"]: row["v"] for row in spark.read.format("delta").load(after).collect()} == {
        key: next((n for n in (2, 1) if 100 * n <= key < 100 * n + 60), key) for key in range(260)
    }
