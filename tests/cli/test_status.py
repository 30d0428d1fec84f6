"""What `stream-merge status` computes from a table's history, how it looks, and that it is true of a real table."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console

from stream_merge import merge_sink
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.file.secrets import Secrets
from stream_merge.cli.show.overview import read_overview
from stream_merge.cli.show.status import Files, StatusError, measure_files, read_status, remembered_deletes
from stream_merge.cli.show.status_command import Request, show_status
from stream_merge.cli.show.status_facts import summary
from stream_merge.cli.show.status_view import print_status
from tests.cli.parsed_html import Parsed
from tests.cli.sample_history import QUERY, START_MS, commits_of, commits_of_a_stream, merge_metrics, row, status_of
from tests.cli.sample_parked import write_parked

START = datetime(2026, 1, 1, 10, tzinfo=timezone.utc)


def printed(status, width: int) -> list[str]:
    """Return the lines that a terminal of this width shows, without colours."""
    console = Console(width=width, record=True, file=io.StringIO())
    print_status(console, status)
    return [line.rstrip() for line in console.export_text().splitlines()]


def every_ten_seconds(*metrics: dict[str, int], operation: str = "MERGE"):
    """Return commits with these metrics, one every ten seconds."""
    rows = [row(version, START_MS + 10_000 * version, values, operation) for version, values in enumerate(metrics)]
    return commits_of(rows)


def test_a_commit_is_read_from_its_row():
    metrics = merge_metrics(inserted=3, updated=2, deleted=1, ms=1000, numSupersededRows=4, numStaleRows=1)
    recorded = [(7, f"{QUERY}/planned-ms", START_MS - 2500), (7, QUERY, 41), (6, "another", 3)]
    [commit] = commits_of([row(7, START_MS, metrics, userMetadata="nightly")], recorded)
    assert (commit.version, commit.time, commit.operation, commit.is_merge) == (7, START, "MERGE", True)
    assert (commit.app_id, commit.batch_id, commit.planned) == (QUERY, 41, START - timedelta(seconds=2.5))
    assert (commit.num_source_rows, commit.num_inserted, commit.num_updated, commit.num_deleted) == (6, 3, 2, 1)
    assert (commit.num_left_out, commit.num_quarantined, commit.num_conflicts) == (5, 0, 0)
    assert (commit.duration_ms, commit.delay, commit.user_metadata) == (1000, timedelta(seconds=2.5), "nightly")


def test_commits_are_in_order_of_their_versions():
    rows = [row(version, START_MS, {}, "WRITE") for version in (2, 0, 1)]
    assert [commit.version for commit in commits_of(rows)] == [0, 1, 2]


def test_a_merge_by_delta_is_a_commit_of_another_writer():
    metrics = {"numSourceRows": "5", "numTargetRowsInserted": "5", "executionTimeMs": "100"}
    history = {"version": 3, "ms": START_MS, "operation": "MERGE", "operationMetrics": metrics, "userMetadata": None}
    [commit] = commits_of([history])
    assert not commit.is_merge


def test_metrics_that_are_no_numbers_are_left_out():
    history = row(0, START_MS, operation="OPTIMIZE") | {
        "operationMetrics": {"numAddedFiles": "3", "p50FileSize": "1.5", "note": "none", "balance": "-2"}
    }
    [commit] = commits_of([history])
    assert commit.metrics == {"numAddedFiles": 3, "balance": -2}
    [without] = commits_of([history | {"operationMetrics": None}])
    assert without.metrics == {}


@pytest.mark.parametrize(
    ("metrics", "phases"),
    [
        ({"ms": 1000}, {"source": 300, "locate": 400, "stage": 200, "rest": 100}),
        # Inserts are written while matching rows are located.
        ({"ms": 1000, "rewriteTimeMs": 500}, {"source": 300, "locate": 400, "stage": 300, "rest": 0}),
        ({"ms": 0}, {"source": 0, "locate": 0, "stage": 0, "rest": 0}),
    ],
)
def test_phases_add_up_to_the_time_of_the_merge(metrics, phases):
    [commit] = every_ten_seconds(merge_metrics(inserted=1, **metrics))
    assert commit.phases_ms == phases
    assert sum(phases.values()) == commit.duration_ms


@pytest.mark.parametrize(
    ("metrics", "operation", "how"),
    [
        (merge_metrics(updated=1), "MERGE", "deletion vectors"),
        (merge_metrics(inserted=1), "MERGE", "new files"),
        (merge_metrics(), "MERGE", "nothing to write"),
        (merge_metrics(updated=1, numTargetDeletionVectorsAdded=0, numRemovedFiles=2), "MERGE", "rewritten files"),
        (merge_metrics(inserted=1, numRemovedFiles=2), "STREAMING UPDATE", "overwrite"),
    ],
)
def test_how_it_was_written_is_seen_in_the_metrics(metrics, operation, how):
    assert every_ten_seconds(metrics, operation=operation)[0].how == how


def test_rates_count_from_the_commit_before():
    commits = every_ten_seconds(*(merge_metrics(inserted=rows, ms=500) for rows in (9000, 100, 300, 200)))
    status = status_of(commits)
    last, three, every = status.window(1), status.window(3), status.window()
    assert (last.rows_per_second, last.rows_per_busy_second) == (20.0, 400.0)
    assert (three.rows_per_second, three.rows_per_busy_second) == (20.0, 400.0)
    # Nothing tells how long the rows of the first commit were on their way.
    assert (every.rows_per_second, every.rows_per_busy_second) == (20.0, 4800.0)
    assert every.gaps == [timedelta(seconds=10)] * 3
    assert status.window(99) == every


def test_rates_of_a_single_merge_are_not_known():
    window = status_of(every_ten_seconds(merge_metrics(inserted=5, ms=0))).window(1)
    assert (window.rows_per_second, window.rows_per_busy_second, window.gaps) == (None, None, [])


def test_conflicts_are_the_attempts_that_failed():
    status = status_of(every_ten_seconds(*(merge_metrics(numCommitAttempts=number) for number in (1, 4, 2))))
    assert (status.window(1).num_conflicts, status.window().num_conflicts) == (1, 4)


def test_conflicts_of_commits_that_do_not_tell_are_not_known():
    silent = {name: value for name, value in merge_metrics(inserted=1).items() if name != "numCommitAttempts"}
    status = status_of(every_ten_seconds(silent, merge_metrics(inserted=1)))
    assert (status.window(1).num_conflicts, status.window().num_conflicts) == (0, None)


def test_commits_of_others_are_counted_by_operation():
    rows = [
        row(0, START_MS, operation="CREATE TABLE"),
        row(1, START_MS + 1000, {"numAddedFiles": 1}, "OPTIMIZE"),
        row(2, START_MS + 2000, merge_metrics(inserted=1)),
        row(3, START_MS + 3000, {"numAddedFiles": 1}, "OPTIMIZE"),
    ]
    status = status_of(commits_of(rows))
    assert status.others == [("OPTIMIZE", 2, START + timedelta(seconds=3)), ("CREATE TABLE", 1, START)]
    assert status.last.version == 2


def test_compactions_of_the_sink_are_no_commits_of_others():
    compaction = {"numRemovedFiles": 20, "numAddedFiles": 1, "maintenanceTimeMs": 700}
    rows = [
        row(0, START_MS, merge_metrics(inserted=1)),
        row(1, START_MS + 1000, compaction, "OPTIMIZE"),
        row(2, START_MS + 2000, {"numAddedFiles": 1}, "OPTIMIZE"),
        row(3, START_MS + 3000, compaction, "OPTIMIZE"),
    ]
    status = status_of(commits_of(rows))
    assert [commit.version for commit in status.compactions] == [1, 3]
    assert status.others == [("OPTIMIZE", 1, START + timedelta(seconds=2))]
    shown = "\n".join(printed(status, 80))
    assert "1 merge, 1 commit of other writers" in shown
    assert "2 compactions of 40 files to 2 in 1.40 s" in shown


def test_files_are_measured_by_the_log():
    adds = [
        {"size": 100, "stats": json.dumps({"numRecords": 40})},
        {"size": 300, "stats": json.dumps({"numRecords": 60}), "deletionVector": {"cardinality": 25}},
    ]
    files = measure_files(adds)
    assert files == Files(num_files=2, num_bytes=400, smallest=100, largest=300, num_rows=75, num_deleted_rows=25)
    assert (files.average, files.deleted_share) == (200.0, 0.25)


def test_rows_are_not_known_where_a_file_has_no_statistics():
    files = measure_files([{"size": 100, "stats": '{"numRecords": 40}'}, {"size": 5}, {"size": 5, "stats": "{}"}])
    assert (files.num_rows, files.deleted_share, files.num_bytes) == (None, None, 110)


def test_an_empty_table_has_no_files():
    files = measure_files([])
    assert (files.num_files, files.average, files.num_rows, files.deleted_share) == (0, 0.0, 0, 0.0)


def test_remembered_deletes_are_those_of_all_files():
    file = {"path": "a", "num_rows": 3, "oldest_ms": START_MS, "newest_ms": START_MS}
    later = file | {"path": "b", "num_rows": 4, "oldest_ms": START_MS + 5}
    state = {"format": 1, "keys": ["id"], "sequence": ["seq"], "files": [later, file]}
    deletes = remembered_deletes(json.dumps(state))
    assert (deletes.num_rows, deletes.oldest) == (7, START)
    empty = remembered_deletes(json.dumps(state | {"files": []}))
    assert (empty.num_rows, empty.oldest) == (0, None)


AT_80 = """\
./lake/customers                                                     version 203
200 merges, 4 commits of other writers                   2026-01-01 10:34:45 UTC
╭─ Last batch ─────────────────────────────────────────────────────────────────╮
│ Batch      199                                                               │
│ Of query   5f2c81d0-93a1-4a5e-8f39-0e7f2a1c9b64                              │
│ Committed  42 s ago, 2026-01-01 10:34:03 UTC                                 │
│ Version    203, deletion vectors                                             │
│ Seconds    0.90: source 0.27, locate 0.36, stage 0.18, rest 0.09             │
│ Rows       6,673 of the source                                               │
│ Changes    3,530 inserted, 2,837 updated, 306 deleted                        │
│ Left out   218 superseded                                                    │
│ Delay      1.0 s from planning to commit                                     │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Table ──────────────────────────────────────────────────────────────────────╮
│ Rows           12,400,118                                                    │
│ Deleted rows   301,442 still in the files, 2.4%                              │
│ Files          84, 1.3 GB                                                    │
│ File size      15.6 MB on average, 312.0 kB to 134.0 MB                      │
│ Tombstones     40,211, the oldest of 3 d 6 h ago                             │
│ Other writers  OPTIMIZE 3 (4 min 5 s ago)                                    │
│                CREATE TABLE 1 (34 min 46 s ago)                              │
╰──────────────────────────────────────────────────────────────────────────────╯
Batches                            last    last 10   last 100    all 200
─────────────────────────────────────────────────────────────────────────
Rows of the source                6,673     68,937    651,725  1,347,743
  inserted                        3,530     35,697    335,702    702,175
  updated                         2,837     29,483    281,082    573,627
  deleted                           306      3,757     34,941     71,941
  left out                          218      1,788     17,312     38,172
  quarantined                         0          0         11         28
Rows a second                       659        678        637        642
Rows a second of merging          7,439      4,499      4,489      4,422
Seconds a batch, median            0.90       1.42       1.18       1.21
Seconds a batch, longest           0.90       3.69       4.01      10.14
Longest time between commits       10 s       10 s       14 s       14 s
Conflicts with other writers          0          0          2          5

Version Time (UTC)     Commit    Source Inserted Updated Deleted Seconds
────────────────────────────────────────────────────────────────────────
    203 01-01 10:34:03 batch 199  6,673    3,530   2,837     306    0.90
    202 01-01 10:33:53 batch 198  6,644    3,231   3,062     351    1.07
    201 01-01 10:33:43 batch 197  6,417    3,477   2,624     316    1.57
    200 01-01 10:33:33 batch 196  8,231    5,021   2,785     425    3.69
    199 01-01 10:33:22 batch 195  6,870    3,643   2,823     404    1.71
    198 01-01 10:33:12 batch 194  7,409    3,937   3,104     368    1.46
    197 01-01 10:33:02 batch 193  6,726    3,119   3,181     426    1.39
    196 01-01 10:32:52 batch 192  6,320    2,959   2,959     402    1.19
    195 01-01 10:32:41 batch 191  6,780    3,580   2,828     372    0.89
    194 01-01 10:32:31 batch 190  6,867    3,200   3,280     387    1.45"""

HEAD_AT_120 = """\
./lake/customers                                                                                             version 203
200 merges, 4 commits of other writers                                                           2026-01-01 10:34:45 UTC
╭─ Last batch ────────────────────────────────────────────╮ ╭─ Table ──────────────────────────────────────────────────╮
│ Batch      199                                          │ │ Rows           12,400,118                                │
│ Of query   5f2c81d0-93a1-4a5e-8f39-0e7f2a1c9b64         │ │ Deleted rows   301,442 still in the files, 2.4%          │
│ Committed  42 s ago, 2026-01-01 10:34:03 UTC            │ │ Files          84, 1.3 GB                                │
│ Version    203, deletion vectors                        │ │ File size      15.6 MB on average, 312.0 kB to 134.0 MB  │
│ Seconds    0.90: source 0.27, locate 0.36, stage 0.18,  │ │ Tombstones     40,211, the oldest of 3 d 6 h ago         │
│            rest 0.09                                    │ │ Other writers  OPTIMIZE 3 (4 min 5 s ago)                │
│ Rows       6,673 of the source                          │ │                CREATE TABLE 1 (34 min 46 s ago)          │
│ Changes    3,530 inserted, 2,837 updated, 306 deleted   │ ╰──────────────────────────────────────────────────────────╯
│ Left out   218 superseded                               │
│ Delay      1.0 s from planning to commit                │
╰─────────────────────────────────────────────────────────╯"""

COMMITS_AT_120 = """\
Version  Time (UTC)           Commit     Source  Inserted  Updated  Deleted  Left out  Quarantined  Seconds
────────────────────────────────────────────────────────────────────────────────────────────────────────────
    203  2026-01-01 10:34:03  batch 199   6,673     3,530    2,837      306       218            0     0.90"""


def test_what_a_terminal_of_80_columns_shows():
    assert "\n".join(printed(status_of(commits_of_a_stream()), 80)) == AT_80


def test_what_a_terminal_of_120_columns_shows():
    text = "\n".join(printed(status_of(commits_of_a_stream()), 120))
    assert text.startswith(HEAD_AT_120)
    assert COMMITS_AT_120 in text


def test_the_first_merge_of_a_table():
    rows = [row(0, START_MS, operation="CREATE TABLE"), row(1, START_MS + 1000, merge_metrics(inserted=2_500_000))]
    files = Files(num_files=0, num_bytes=0, smallest=0, largest=0, num_rows=None, num_deleted_rows=0)
    lines = printed(status_of(commits_of(rows), files=files, tombstones=None, is_complete=False), 80)
    text = "\n".join(lines)
    assert lines[1].startswith("the newest 1 merge, 1 commit of other writers ")
    assert "│ Batch      outside a stream " in text
    assert "│ Rows           not known: files without statistics " in text
    assert "│ Tombstones     none " in text
    assert "│ Other writers  CREATE TABLE 1 (43 s ago) " in text
    assert "\nBatches                           all 1\n" in text
    assert "\nRows a second                         -\n" in text
    assert "\nLongest time between commits          -\n" in text
    assert lines[-2:] == [
        "      1 01-01 10:00:01 merge          2.5M     2.5M       0       0    1.00",
        "      0 01-01 10:00:00 CREATE TABLE",
    ]


def test_what_needs_attention_is_coloured():
    commits = every_ten_seconds(merge_metrics(inserted=5, numQuarantinedRows=3))
    files = Files(num_files=1, num_bytes=9, smallest=9, largest=9, num_rows=70, num_deleted_rows=30)
    console = Console(width=80, force_terminal=True, color_system="standard", file=io.StringIO())
    print_status(console, status_of(commits, files=files))
    shown = console.file.getvalue()
    assert "\x1b[33m3 " in shown
    assert "\x1b[33m30 still in the files, 30.0% " in shown


def test_text_of_the_table_is_no_markup():
    commits = commits_of([row(0, START_MS, merge_metrics(inserted=1), userMetadata="[red]all[/nothing]")])
    status = dataclasses.replace(status_of(commits), table="./[bold]lake[/]/t")
    lines = printed(status, 80)
    assert lines[0].startswith("./[bold]lake[/]/t ")
    assert any("│ Metadata   [red]all[/nothing] " in line for line in lines)


def test_a_batch_with_left_out_and_quarantined_rows():
    metrics = merge_metrics(inserted=1, numStaleRows=2, numUnchangedRows=1200, numQuarantinedRows=7)
    text = "\n".join(printed(status_of(every_ten_seconds(metrics)), 80))
    assert "│ Left out     2 stale, 1,200 unchanged " in text
    assert "│ Quarantined  7 " in text


SCHEMA = "id INT, name STRING, seq BIGINT, op STRING"


@pytest.fixture
def written_table(spark, table_path, create_source):
    """Return a table that a sink and an OPTIMIZE wrote."""
    sink = merge_sink(
        table_path,
        keys=["id"],
        sequence_by="seq",
        delete_when="op = 'd'",
        create_if_missing=True,
        quarantine=f"{table_path}_rejected",
        null_keys="quarantine",
        table_properties={"delta.enableDeletionVectors": "true"},
        app_id="orders",
        user_metadata="from a test",
    )
    sink(create_source(SCHEMA, [(key, f"name {key}", 1, "c") for key in range(10)]), 0)
    spark.sql(f"OPTIMIZE delta.`{table_path}`")
    changes = [(0, "newer", 2, "u"), (0, "older", 1, "u"), (1, None, 2, "d"), (2, "stale", 0, "u"), (None, "x", 1, "c")]
    sink(create_source(SCHEMA, changes), 1)
    return table_path


def test_the_status_of_a_real_table(spark, written_table, read_rows):
    before = datetime.now(timezone.utc) - timedelta(minutes=5)
    status = read_status(spark, written_table)
    first, last = status.merges
    assert (first.batch_id, last.batch_id, last.app_id) == (0, 1, "orders")
    assert (first.num_source_rows, first.num_inserted) == (10, 10)
    assert (last.num_source_rows, last.num_inserted, last.num_updated, last.num_deleted) == (3, 0, 1, 1)
    assert (last.count("numSupersededRows"), last.count("numStaleRows"), last.num_quarantined) == (1, 1, 1)
    assert (last.how, last.user_metadata) == ("deletion vectors", "from a test")
    assert before < first.time < last.time < status.now
    assert 0 < last.duration_ms == sum(last.phases_ms.values())
    assert status.version == last.version == len(status.commits) - 1
    assert status.is_complete
    assert [commit.version for commit in status.commits] == list(range(status.version + 1))
    assert "OPTIMIZE" not in {commit.operation for commit in status.merges}
    assert status.files.num_rows == len(read_rows(written_table)) == 9
    assert status.files.num_deleted_rows == 2
    assert status.files.deleted_share == pytest.approx(2 / 11)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{written_table}`").head()
    assert (status.files.num_files, status.files.num_bytes) == (detail["numFiles"], detail["sizeInBytes"])
    assert 0 < status.files.smallest <= status.files.average <= status.files.largest
    assert status.tombstones is not None
    assert (status.tombstones.num_rows, before < status.tombstones.oldest < status.now) == (1, True)


def test_fewer_commits_can_be_read(spark, written_table):
    status = read_status(spark, written_table, limit=1)
    assert [commit.batch_id for commit in status.commits] == [1]
    assert not status.is_complete
    assert status.files.num_rows == 9


def test_a_streaming_query_tells_when_it_planned_the_batch(spark, tmp_path, create_source):
    create_source("id INT, name STRING", [(1, "a"), (2, "b")]).write.json(str(tmp_path / "changes"))
    sink = merge_sink(str(tmp_path / "target"), keys=["id"], create_if_missing=True)
    changes = spark.readStream.schema("id INT, name STRING").json(str(tmp_path / "changes"))
    writer = changes.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    status = read_status(spark, str(tmp_path / "target"))
    assert (status.last.app_id, status.last.batch_id) == (str(query.id), 0)
    assert timedelta(0) < status.last.delay < timedelta(minutes=2)
    assert status.tombstones is None
    assert f"│ Of query   {query.id} " in "\n".join(printed(status, 80))


def test_a_table_by_name(spark, create_source):
    spark.sql("CREATE TABLE status_by_name (id INT, name STRING) USING delta")
    try:
        merge_sink("status_by_name", keys=["id"]).merge(create_source("id INT, name STRING", [(1, "a")]))
        status = read_status(spark, "status_by_name")
        assert (status.last.batch_id, status.last.num_inserted, status.files.num_rows) == (None, 1, 1)
    finally:
        spark.sql("DROP TABLE status_by_name")


@pytest.fixture
def load(make_pipeline, tmp_path):
    """Return a function that makes the loaded file of a pipeline with some tables."""

    def loaded(*tables, secrets=(), parking=None):
        known = Secrets()
        for value in secrets:
            known.add(value)
        source = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topic_pattern": ".*"}
        pipeline = make_pipeline(source, *tables, pipeline={"checkpoint": f"{tmp_path}/checkpoint", "parking": parking})
        return LoadedPipeline(pipeline=pipeline, path=tmp_path / "p.toml", secrets=known, lines={})

    return loaded


def test_the_tables_of_a_pipeline_with_their_quarantine(spark, written_table, create_source, load, tmp_path):
    """One is there, one is not yet, one was written by others, one is named by a topic; then one by one as a page."""
    other = f"{tmp_path}/others"
    create_source("id INT", [(1,)]).write.format("delta").save(other)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/kafka-topics.json").write_text('{"shop.late": "id"}')
    loaded = load(
        {"source": "orders", "target": written_table, "keys": ["id"], "quarantine": f"{written_table}_rejected"},
        {"source": "items", "target": f"{tmp_path}/s3cret/items", "keys": ["id"]},
        {"source": "others", "target": other, "keys": ["id"], "quarantine": f"{tmp_path}/never"},
        {"source": "re:shop[.](?P<name>\\w+)", "target": f"{tmp_path}/{{name}}", "keys": ["id"]},
        {"source": "re:another[.](?P<name>\\w+)", "target": f"{tmp_path}/another/{{name}}", "keys": ["id"]},
        secrets=["s3cret"],
    )
    overview = read_overview(spark, loaded.pipeline, 100, with_quarantine=True)
    orders, items, others, late = overview.tables
    told = {fact.name: fact.value for fact in summary(orders.status)}
    assert (told["version"], told["batch"]) == (f"{orders.status.version}", "1")
    assert (told["files"], told["deleted"], told["aside"]) == (f"{orders.status.files.num_files}", "18.2%", "1")
    assert [state.problem.in_short for state in (items, others, late)] == [
        "not there yet",
        "no merge in its history",
        "not there yet",
    ]
    assert (late.target, overview.unlisted) == (f"{tmp_path}/late", (f"{tmp_path}/another/{{name}}",))
    assert (items.quarantined, others.quarantined.reasons) == (None, ())
    found = orders.quarantined
    assert [(reason.kind, reason.num_rows) for reason in found.reasons] == [("NULL in a key (id)", 1)]
    [sample] = found.samples
    assert (sample.reason, sample.origin) == ("NULL in a key (id)", "batch 1")
    assert json.loads(sample.text) == {"id": None, "name": "x", "seq": 1, "op": "c"}
    assert (found.starts, found.problem) == ((), None)

    console = Console(width=120, file=io.StringIO())
    request = Request(table=None, loaded=loaded, plot=None, html=tmp_path / "page.html", limit=None, interval=None)
    show_status(spark, request, console, console.print)
    shown = console.file.getvalue().splitlines()
    assert shown[0].startswith("shop  4 tables ")
    assert f"{tmp_path}/***/items: not there yet" in shown
    page = Parsed((tmp_path / "page.html").read_text())
    assert [row[0] for row in page.all("table", "list")[0].rows()[1:]] == [
        written_table,
        f"{tmp_path}/***/items",
        other,
        f"{tmp_path}/late",
    ]
    assert "NULL in a key (id)" in page.section(written_table).all("div", "quarantine")[0].text


def test_tables_at_rest_are_told_of_a_pipeline_and_of_one_table(spark, written_table, create_source, load, tmp_path):
    parked = f"{tmp_path}/s3cret"
    mine, other = (1, written_table, "orders", "no s3cret"), (3, f"{tmp_path}/items", "items", "why")
    write_parked(spark, parked, [mine, (2, *mine[1:]), other])
    tables = [{"source": name, "target": target, "keys": ["id"]} for _, target, name, _ in (mine, other)]
    loaded = load(*tables, secrets=["s3cret"], parking=parked)

    def shown(table):
        console = Console(width=400, file=io.StringIO())
        html = tmp_path / "page.html"
        request = Request(table=table, loaded=loaded, plot=None, html=html, limit=None, interval=None)
        show_status(spark, request, console, console.print)
        told = Parsed(html.read_text()).all("table", "resting")
        return console.file.getvalue(), [row[0] for each in told for row in each.rows()[1:]]

    text, on_page = shown(None)
    since = "at rest since 2026-01-01 09:58:20 UTC"
    assert f"{written_table}: {since}; 2 records wait\n  no ***\n" in text
    assert f"{tmp_path}/items: {since}; 1 record waits\n  why\n" in text
    assert on_page == sorted([written_table, f"{tmp_path}/items"])
    # In another spelling; and one that is not at rest.
    text, on_page = shown(f"{written_table}/")
    assert f"{written_table}: {since}; 2 records wait\n  no ***\nTo take up a table at rest" in text
    assert "1 record waits" not in text
    assert on_page == [written_table]
    create_source("id INT", [(1,)]).write.format("delta").save(f"{tmp_path}/parked-not")
    loaded = load(*tables, parking=f"{tmp_path}/parked-not")
    text, on_page = shown(None)
    assert f"{tmp_path}/parked-not can't be read, so tables at rest are not known: " in text
    assert "is no parking table of stream_merge" in text
    assert on_page == []


def test_a_table_is_watched_while_it_is_written(spark, written_table, create_source, load, tmp_path):
    sink = merge_sink(written_table, keys=["id"], sequence_by="seq", delete_when="op = 'd'", app_id="orders")
    rejected = {"target": written_table, "keys": ["id"], "quarantine": f"{written_table}_rejected"}
    page, pages = tmp_path / "page.html", []

    def wait(seconds):
        assert seconds == 7
        pages.append(Parsed(page.read_text()))
        if len(pages) == 2:
            raise KeyboardInterrupt
        sink(create_source(SCHEMA, [(100, "new", 9, "c")]), 2)

    console = Console(width=80, file=io.StringIO())
    request = Request(table=written_table, loaded=load(rejected), plot=None, html=page, limit=None, interval=7)
    show_status(spark, request, console, console.print, wait)
    first, second = (block for block in console.file.getvalue().split(" Last batch ")[1:])
    assert [re.search(r" Batch +(\d+) ", block)[1] for block in (first, second)] == ["1", "2"]
    assert [each.all("dl", "tiles")[0].facts()["Quarantined in 2 merges"] for each in pages[:1]] == ["1"]
    assert pages[1].all("table", "commits")[0].rows()[1][2] == "batch 2"
    assert [each.all("div", "quarantine")[0].all("li")[0].text[:18] for each in pages] == ["NULL in a key (id)"] * 2


def refusal(spark, table: str) -> str:
    with pytest.raises(StatusError) as raised:
        read_status(spark, table)
    return str(raised.value)


def test_a_table_that_is_not_there(spark, tmp_path):
    assert refusal(spark, f"{tmp_path}/none") == f"There is no table {tmp_path}/none. Check the path."
    hint = "Check the name; a path needs a slash, as in ./customers."
    assert refusal(spark, "no_such_table") == f"There is no table no_such_table. {hint}"
    assert refusal(spark, "not a name") == f"There is no table not a name. {hint}"


def test_a_table_of_another_format(spark, tmp_path, create_source):
    create_source("id INT", [(1,)]).write.parquet(f"{tmp_path}/plain")
    assert refusal(spark, f"{tmp_path}/plain") == (
        f"{tmp_path}/plain is not a Delta table: the folder has no _delta_log."
    )
    spark.sql("CREATE TABLE status_of_parquet (id INT) USING parquet")
    try:
        told = "status_of_parquet is not a Delta table but parquet. Name a Delta table as the target."
        assert refusal(spark, "status_of_parquet") == told
    finally:
        spark.sql("DROP TABLE status_of_parquet")


def test_a_table_that_others_wrote(spark, create_table):
    path = create_table("id INT", [(1,)])
    reason = "its history has no merge (2 commit(s) read)"
    assert refusal(spark, path) == f"{path} was never written by stream_merge: {reason}. Name a table of a sink."
