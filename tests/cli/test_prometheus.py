"""The metrics as Prometheus gets them over HTTP."""

import socket
import threading
import urllib.request
from datetime import datetime, timezone

import pytest

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.endpoint import Endpoint
from stream_merge.cli.show.prometheus import Metrics
from stream_merge.metrics import ParkedTable


def no_page():
    raise AssertionError("nobody asked for the page")


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def metrics():
    progress = Progress("shop", lambda: 1_000.0)
    return progress, Metrics(progress, "shop", lambda text: text.replace("s3cret", "***"))


def test_every_metric_is_served_and_the_endpoint_leaves_nothing(metrics, make_result, report):
    progress, counted = metrics
    threads = set(threading.enumerate())
    progress.set_state(State.RUNNING)
    result = make_result(
        "./s3cret/orders",
        batch_id=4,
        version=9,
        num_source_rows=100,
        num_target_rows_inserted=60,
        num_target_rows_updated=30,
        num_target_rows_deleted=5,
        num_superseded_rows=1,
        num_stale_rows=2,
        num_outdated_rows=3,
        num_unchanged_rows=4,
        num_undecidable_rows=6,
        num_unresolved_rows=7,
        num_tied_keys=8,
        num_quarantined_rows=9,
        conflicts=("ConcurrentAppendException",),
        num_added_files=10,
        num_removed_files=11,
        num_target_bytes_added=1200,
        num_target_bytes_removed=1300,
        num_tombstones=14,
        oldest_tombstone_ms=15_000,
        index_rows=16,
        index_disk_bytes=17,
        maintenance="compacted",
        compacted_files=18,
        compacted_bytes=1900,
        purged_rows=20,
        table_files=21,
        table_rows=200,
        deleted_rows=50,
        execution_time_ms=1500,
        phase_ms={"open": 100, "source": 200, "locate": 300, "stage": 400, "commit": 500, "maintenance": 600},
    )
    progress.on_result(result)
    counted.on_result(result)
    counted.on_result(make_result("./s3cret/orders", skipped=True))
    counted.on_failure()
    parked = ParkedTable(
        target="./s3cret/orders",
        sources=("orders",),
        since=datetime.now(timezone.utc),
        num_batches=2,
        num_rows=7,
        error="",
    )
    progress.watch_parked(lambda: (parked,))
    progress.on_query_progress(
        report(4, end={"orders": {"0": 5}}, latest={"orders": {"0": 8}}, newest={"all": 990_000})
    )
    with Endpoint(counted, "127.0.0.1", 0, no_page) as endpoint:
        served = scrape(endpoint.port)
    table = 'pipeline="shop",table="./***/orders"'

    def left_out(reason):
        return f'stream_merge_changes_left_out_total{{pipeline="shop",reason="{reason}",table="./***/orders"}}'

    buckets = {name: value for name, value in served.items() if name.startswith("stream_merge_batch_seconds_bucket")}
    assert buckets[f'stream_merge_batch_seconds_bucket{{le="1.0",{table}}}'] == "0.0"
    assert buckets[f'stream_merge_batch_seconds_bucket{{le="2.0",{table}}}'] == "1.0"
    assert {name: float(value) for name, value in served.items() if name not in buckets} == {
        'stream_merge_up{pipeline="shop"}': 1,
        f'stream_merge_batches_total{{outcome="merged",{table}}}': 1,
        f'stream_merge_batches_total{{outcome="skipped",{table}}}': 1,
        'stream_merge_batch_failures_total{pipeline="shop"}': 1,
        f"stream_merge_batch_seconds_count{{{table}}}": 1,
        f"stream_merge_batch_seconds_sum{{{table}}}": 1.5,
        f'stream_merge_phase_seconds_total{{phase="open",{table}}}': 0.1,
        f'stream_merge_phase_seconds_total{{phase="source",{table}}}': 0.2,
        f'stream_merge_phase_seconds_total{{phase="locate",{table}}}': 0.3,
        f'stream_merge_phase_seconds_total{{phase="stage",{table}}}': 0.4,
        f'stream_merge_phase_seconds_total{{phase="commit",{table}}}': 0.5,
        f'stream_merge_phase_seconds_total{{phase="maintenance",{table}}}': 0.6,
        f"stream_merge_source_rows_total{{{table}}}": 100,
        f'stream_merge_rows_total{{change="inserted",{table}}}': 60,
        f'stream_merge_rows_total{{change="updated",{table}}}': 30,
        f'stream_merge_rows_total{{change="deleted",{table}}}': 5,
        left_out("superseded"): 1,
        left_out("stale"): 2,
        left_out("outdated"): 3,
        left_out("unchanged"): 4,
        f"stream_merge_undecidable_changes_total{{{table}}}": 6,
        f"stream_merge_unresolved_rows_total{{{table}}}": 7,
        f"stream_merge_tied_keys_total{{{table}}}": 8,
        f"stream_merge_quarantined_rows_total{{{table}}}": 9,
        f"stream_merge_commit_conflicts_total{{{table}}}": 1,
        f'stream_merge_files_total{{change="added",{table}}}': 10,
        f'stream_merge_files_total{{change="removed",{table}}}': 11,
        f'stream_merge_bytes_total{{change="added",{table}}}': 1200,
        f'stream_merge_bytes_total{{change="removed",{table}}}': 1300,
        f"stream_merge_tombstones{{{table}}}": 14,
        f"stream_merge_oldest_tombstone_seconds{{{table}}}": 15,
        f"stream_merge_index_rows{{{table}}}": 16,
        f"stream_merge_index_disk_bytes{{{table}}}": 17,
        f'stream_merge_maintenance_total{{outcome="compacted",{table}}}': 1,
        f'stream_merge_maintenance_total{{outcome="vacuumed",{table}}}': 0,
        f'stream_merge_maintenance_total{{outcome="conflict",{table}}}': 0,
        f'stream_merge_maintenance_total{{outcome="failed",{table}}}': 0,
        f"stream_merge_compacted_files_total{{{table}}}": 18,
        f"stream_merge_compacted_bytes_total{{{table}}}": 1900,
        f"stream_merge_purged_rows_total{{{table}}}": 20,
        f"stream_merge_table_files{{{table}}}": 21,
        f"stream_merge_deleted_rows_share{{{table}}}": 0.25,
        f"stream_merge_last_commit_timestamp_seconds{{{table}}}": 1000,
        f"stream_merge_last_version{{{table}}}": 9,
        'stream_merge_parked_tables{pipeline="shop"}': 1,
        f"stream_merge_parked_rows{{{table}}}": 7,
        'stream_merge_last_batch_id{pipeline="shop"}': 4,
        'stream_merge_offset_lag_records{pipeline="shop",topic="orders"}': 3,
        f"stream_merge_sequence_lag_seconds{{{table}}}": 10,
        'stream_merge_input_rows_per_second{pipeline="shop"}': 150,
        'stream_merge_processed_rows_per_second{pipeline="shop"}': 120.5,
    }
    assert set(threading.enumerate()) == threads
    with pytest.raises(OSError, match="refused"):
        scrape(endpoint.port)


def test_a_pipeline_that_retries_is_not_up(metrics):
    progress, counted = metrics
    progress.set_state(State.RETRYING, "Kafka does not answer.")
    with Endpoint(counted, "127.0.0.1", 0, no_page) as endpoint:
        assert scrape(endpoint.port) == {
            'stream_merge_up{pipeline="shop"}': "0.0",
            'stream_merge_batch_failures_total{pipeline="shop"}': "0.0",
            'stream_merge_parked_tables{pipeline="shop"}': "0.0",
        }


def test_counters_are_there_before_the_first_batch(metrics, make_result):
    """Else what a first micro-batch sets aside would be no increase."""
    _, counted = metrics
    counted.expect(["./s3cret/orders", "./lake/items"])
    name = 'stream_merge_quarantined_rows_total{pipeline="shop",table="./***/orders"}'
    with Endpoint(counted, "127.0.0.1", 0, no_page) as endpoint:
        before = scrape(endpoint.port)
        counted.on_result(make_result("./s3cret/orders", num_quarantined_rows=3, phase_ms={"source": 20}))
        after = scrape(endpoint.port)
    assert set(before.values()) == {"0.0"}
    assert (before[name], after[name]) == ("0.0", "3.0")
    assert before[name.replace("***/orders", "lake/items")] == "0.0"
    appeared = {name.partition("{")[0] for name in set(after) - set(before)}
    assert {name for name in appeared if not name.startswith("stream_merge_batch_seconds")} == {
        "stream_merge_tombstones",
        "stream_merge_oldest_tombstone_seconds",
        "stream_merge_index_rows",
        "stream_merge_index_disk_bytes",
    }


def test_a_port_that_is_taken_is_told_in_a_sentence(metrics):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PipelineError) as caught, Endpoint(metrics[1], "127.0.0.1", port, no_page):
            pass
    assert str(caught.value) == (
        f"The metrics cannot be served at 127.0.0.1:{port}: Address already in use. Choose another prometheus_port in "
        "[metrics], or 0 for a free one."
    )
    assert caught.value.exit_code is ExitCode.CANNOT_START
