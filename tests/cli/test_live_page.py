"""The page of a running pipeline: what it says of the pipeline and of the last merges of each table."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone

import pytest

from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.live_page import RecentResults, live_page, phases, served_page
from stream_merge.cli.show.page import render
from stream_merge.cli.show.parked import HOW_TO_TAKE_UP
from stream_merge.metrics import ParkedTable
from tests.cli.parsed_html import Parsed


class Clock:
    now = 1_767_261_600.0

    def __call__(self):
        return self.now


@pytest.fixture
def running(make_result, report):
    """Return the progress and the results of a pipeline that has merged two batches into one of two tables."""
    clock = Clock()
    progress, results = Progress("shop", clock), RecentResults(clock)
    results.expect(["./lake/orders", "./lake/items"])
    progress.set_state(State.RUNNING)
    for batch_id in range(2):
        clock.now += 30
        result = make_result(
            "./lake/orders",
            batch_id=batch_id,
            version=batch_id + 4,
            query_id="a-query",
            strategy="merge_on_read",
            reason="deletion vectors are on",
            num_source_rows=900,
            num_target_rows_inserted=600,
            num_target_rows_updated=250,
            num_target_rows_deleted=50,
            num_stale_rows=7,
            num_quarantined_rows=batch_id,
            conflicts=("ConcurrentAppendException",) if batch_id else (),
            num_tombstones=12,
            oldest_tombstone_ms=90_000,
            execution_time_ms=1_000,
            phase_ms={"open": 50, "source": 300, "locate": 400, "stage": 500, "commit": 120, "maintenance": 80},
            maintenance=None if batch_id else "compacted",
            table_files=None if batch_id else 40,
            table_rows=None if batch_id else 1_000,
            deleted_rows=None if batch_id else 300,
        )
        progress.on_result(result)
        results.on_result(result)
    progress.on_query_progress(
        report(
            1,
            end={"orders": {"0": 5}, "items": {"0": 1}},
            latest={"orders": {"0": 1_500}, "items": {"0": 1}},
            newest={"all": (clock.now - 9) * 1000},
        )
    )
    clock.now += 12
    return progress, results


def test_the_page_of_a_running_pipeline(running):
    progress, results = running
    page = Parsed(served_page(progress, results, lambda text: text)())
    assert page.all("h1")[0].text == "shop running"
    assert page.all("header")[0].facts() == {
        "Running for": "1 min",
        "Last batch": "1",
        "Rows/s, arriving": "150",
        "Rows/s, merged": "120",
        "Records behind": "1,495",
        "Failures": "0",
        "Behind in orders": "1,495",
    }
    assert page.all("table", "list")[0].rows() == [
        ["table", "version", "batch", "commit", "behind", "rows/s", "files", "deleted", "aside"],
        ["./lake/items", "no micro-batch since the start of the command"],
        ["./lake/orders", "5", "1", "12 s", "21 s", "30", "40", "30.0%", "1"],
    ]
    orders = page.section("./lake/orders")
    tiles = orders.all("dl", "tiles")[0].facts()
    assert (tiles["Last commit"], tiles["Behind the source"], tiles["Time of the last batch"]) == (
        "12 s ago",
        "21 s",
        "1.0 s",
    )
    assert (tiles["Maintenance: compacted"], tiles["Conflicts"], tiles["Quarantined"]) == ("42 s ago", "1", "1")
    last, since, table = (panel.facts() for panel in orders.all("div", "panel"))
    assert last["Strategy"] == "merge_on_read: deletion vectors are on"
    assert (last["Left out"], last["Conflicts"]) == ("7", "ConcurrentAppendException")
    assert since == {
        "Batches": "2, and 0 that the table had already",
        "Rows": "1,800 of the source",
        "Changes": "1,200 inserted, 500 updated, 100 deleted",
    }
    assert table["Tombstones"] == "12, the oldest of 2 min ago"
    assert [line[:3] for line in orders.all("table", "commits")[0].rows()[1:]] == [
        ["5", "2026-01-01 10:01:00", "batch 1"],
        ["4", "2026-01-01 10:00:30", "batch 0"],
    ]
    assert [key.text for key in orders.all("span", "key")] == [
        "source 0.30 s", "locate 0.40 s", "stage 0.30 s", "commit 0.12 s",  "maintenance 0.08 s",
    ]  # fmt: skip


def test_stage_that_overlaps_locate_is_not_counted_twice(make_result):
    result = make_result(execution_time_ms=1000, phase_ms={"source": 200, "locate": 500, "stage": 900, "commit": 40})
    assert phases(result) == (
        ("source", 200),
        ("locate", 500),
        ("stage", 300),
        ("rest", 0),
        ("commit", 40),
        ("maintenance", 0),
    )


def test_a_skipped_batch_leaves_the_last_merge_on_the_page(running, make_result):
    progress, results = running
    skipped = make_result("./lake/orders", batch_id=2, skipped=True, reason="the table has it")
    progress.on_result(skipped)
    results.on_result(skipped)
    page = Parsed(render(live_page(progress.snapshot(), results.tables())))
    last, since, _ = (panel.facts() for panel in page.section("./lake/orders").all("div", "panel"))
    assert last["Batch"] == "1"
    assert since["Batches"] == "2, and 1 that the table had already"


def test_ten_results_are_kept_of_each_table(make_result):
    results = RecentResults()
    for batch_id in range(30):
        results.on_result(make_result("t", batch_id=batch_id))
    assert [result.batch_id for _, result in results.tables()["t"].merges] == list(range(20, 30))


def test_a_pipeline_that_retries_says_why_and_masks_it(running):
    progress, results = running
    now = progress.snapshot().now
    progress.set_state(State.RETRYING, "The broker hush-hush does not answer.", retry_at=now + 8)
    text = served_page(progress, results, lambda text: text.replace("hush-hush", "***"))()
    page = Parsed(text)
    assert page.all("p", "notice")[0].text == "The broker *** does not answer; next attempt in 8.0 s"
    assert page.all("span", "retrying")[0].text == "retrying"


def test_a_table_that_topics_name_later_appears_with_its_first_batch(running, make_result):
    progress, results = running
    result = make_result("./lake/new", batch_id=2)
    progress.on_result(result)
    assert Parsed(served_page(progress, results, str)()).section("./lake/new"), "even before its result is kept"
    results.on_result(result)
    page = Parsed(served_page(progress, results, str)())
    assert [each.all("h2")[0].text.split()[0] for each in page.all("section")] == [
        "./lake/items",
        "./lake/new",
        "./lake/orders",
    ]


def test_a_table_at_rest_is_told_before_the_others_and_in_its_section(running):
    progress, results = running
    since = datetime(2026, 1, 1, 9, 58, 20, tzinfo=timezone.utc)
    why = "ParkingError: <b>s3cret</b> is gone"
    rests = [
        ParkedTable(target=target, sources=("x",), since=since, num_batches=3, num_rows=1_207, error=why)
        for target in ("./lake/orders", "./lake/never")
    ]
    rests[0] = dataclasses.replace(rests[0], next_attempt=since + timedelta(hours=1))
    progress.watch_parked(lambda: tuple(rests))
    page = Parsed(served_page(progress, results, lambda text: text.replace("s3cret", "***"))())
    (told,) = page.all("section", "at-rest")
    assert told.all("table", "resting")[0].rows() == [
        ["table", "Since", "Records that wait", "Batches", "Next attempt", "Reason"],
        [
            "./lake/never",
            "2026-01-01 09:58:20 UTC",
            "1,207",
            "3",
            "with the next micro-batch",
            "ParkingError: <b>***</b> is gone",
        ],
        ["./lake/orders", "2026-01-01 09:58:20 UTC", "1,207", "3", "in 57 min", "ParkingError: <b>***</b> is gone"],
    ]
    assert told.all("p", "notice")[0].text == HOW_TO_TAKE_UP
    assert page.all("dl", "tiles")[0].facts()["Tables at rest"] == "2"
    assert page.section("./lake/orders").all("h2")[0].text == (
        "./lake/orders version 5; at rest since 2026-01-01 09:58:20 UTC; 1,207 records wait"
    )
    assert page.section("./lake/never").all("p", "problem")[0].text == (
        "no micro-batch since the start of the command; at rest since 2026-01-01 09:58:20 UTC; 1,207 records wait"
    )
    progress.watch_parked(lambda: ())
    assert not Parsed(served_page(progress, results, str)()).all("section", "at-rest")
