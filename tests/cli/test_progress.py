"""How a pipeline stands, from results of merges and from the query's progress."""

import pytest

from stream_merge.cli.run.progress import Progress, State


class Clock:
    def __init__(self, now=1_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock):
    return Progress("shop", clock)


def test_rows_of_a_table_add_up(progress, clock, make_result):
    clock.now += 10
    progress.on_result(
        make_result(
            num_source_rows=100,
            num_target_rows_inserted=60,
            num_target_rows_updated=30,
            num_target_rows_deleted=5,
            num_quarantined_rows=2,
            conflicts=("ConcurrentAppendException",),
            execution_time_ms=1500,
        )
    )
    clock.now += 10
    progress.on_result(make_result(batch_id=1, num_source_rows=20, num_target_rows_inserted=20, execution_time_ms=500))
    table = progress.snapshot().tables["./lake/orders"]
    assert (table.num_batches, table.num_source_rows, table.num_inserted, table.num_updated) == (2, 120, 80, 30)
    assert (table.num_deleted, table.num_quarantined, table.num_conflicts) == (5, 2, 1)
    assert (table.batch_id, table.version, table.seconds, table.committed_at) == (1, 2, 0.5, 1_020.0)
    assert table.rows_per_second == 120 / 20
    clock.now += 45
    assert progress.snapshot().tables["./lake/orders"].rows_per_second == 120 / 60
    clock.now += 10
    assert progress.snapshot().tables["./lake/orders"].rows_per_second == 20 / 60
    clock.now += 60
    assert progress.snapshot().tables["./lake/orders"].rows_per_second == 0


def test_a_batch_that_the_table_had_already_counts_as_skipped(progress, make_result):
    progress.on_result(make_result(skipped=True, version=None, num_source_rows=0))
    table = progress.snapshot().tables["./lake/orders"]
    assert (table.num_batches, table.num_skipped, table.version, table.committed_at) == (0, 1, None, None)


def test_a_merge_that_commits_nothing_leaves_the_version(progress, make_result):
    progress.on_result(make_result(batch_id=0, version=7))
    progress.on_result(make_result(batch_id=1, version=None))
    assert progress.snapshot().tables["./lake/orders"].version == 7


def test_the_lag_is_what_lies_between_the_newest_and_the_last_read_offset(progress, report):
    progress.on_query_progress(
        report(
            3,
            end={"orders": {"0": 90, "1": 50}, "items": {"0": 7}},
            latest={"orders": {"0": 100, "1": 50, "2": 4}, "items": {"0": 7}},
        )
    )
    snapshot = progress.snapshot()
    assert snapshot.offset_lag == {"orders": 14, "items": 0}
    assert snapshot.total_offset_lag == 14
    assert (snapshot.batch_id, snapshot.num_batches) == (3, 1)
    assert (snapshot.input_rows_per_second, snapshot.processed_rows_per_second) == (150.0, 120.5)


def test_offsets_may_be_text_and_other_sources_have_none(progress, report):
    as_text = report(0, end={})
    as_text["sources"][0].update(endOffset='{"orders":{"0":5}}', latestOffset='{"orders":{"0":8}}')
    progress.on_query_progress(as_text)
    assert progress.snapshot().offset_lag == {"orders": 3}

    other = Progress("files")
    for offset in ({"logOffset": 0}, "0", "no JSON", None, {"reservoirVersion": 3, "index": -1}):
        files = report(0, end={})
        files["sources"][0].update(endOffset=offset, latestOffset=offset)
        other.on_query_progress(files)
    assert other.snapshot().offset_lag == {}
    assert other.snapshot().total_offset_lag is None


def test_a_report_of_nothing_to_do_is_no_batch(progress, report):
    assert progress.on_query_progress(report(2, end={"orders": {"0": 1}})) is True
    assert (
        progress.on_query_progress(report(2, end={"orders": {"0": 1}}, latest={"orders": {"0": 9}}, ran=False)) is False
    )
    assert progress.snapshot().num_batches == 1
    assert progress.snapshot().offset_lag == {"orders": 8}


def test_a_table_is_as_far_behind_as_its_newest_change_was_old_at_its_commit(progress, clock, make_result, report):
    progress.set_state(State.RUNNING)
    progress.on_result(make_result("./a"))
    progress.on_result(make_result("./b"))
    progress.on_query_progress(report(0, end={"t": {"0": 5}}, newest={"table:./a": 997_000, "all": 999_500}))
    assert progress.sequence_lag("./a") == 3.0
    assert progress.sequence_lag("./b") == 0.5
    clock.now += 100
    assert progress.sequence_lag("./a") == 3.0, "nothing waits to be read"

    # Only b has rows in the next batch, and there are more to read.
    progress.on_result(make_result("./b", batch_id=1))
    progress.on_query_progress(
        report(1, end={"t": {"0": 6}}, latest={"t": {"0": 9}}, newest={"table:./a": None, "all": 1_099_000})
    )
    clock.now += 50
    assert progress.sequence_lag("./a") == 153.0, "records wait: the age that its newest change has now"
    assert progress.sequence_lag("./b") == 51.0
    assert progress.sequence_lag("./c") is None


def test_a_query_that_does_not_run_falls_behind(progress, clock, make_result, report):
    progress.set_state(State.RUNNING)
    progress.on_result(make_result("./a"))
    progress.on_query_progress(report(0, end={"t": {"0": 5}}, newest={"all": 998_000}))
    progress.set_state(State.RETRYING, "Kafka does not answer.", 1_008.0)
    progress.on_failure()
    clock.now += 20
    snapshot = progress.snapshot()
    assert progress.sequence_lag("./a") == 22.0
    assert (snapshot.state, snapshot.notice, snapshot.retry_at) == (State.RETRYING, "Kafka does not answer.", 1_008.0)
    assert snapshot.num_failures == 1


def test_the_notice_of_a_retry_goes_with_the_next_batch(progress, report):
    progress.set_state(State.RETRYING, "Kafka does not answer.", 1_008.0)
    progress.set_state(State.RUNNING)
    assert progress.snapshot().notice == "Kafka does not answer."
    assert progress.snapshot().retry_at is None
    progress.on_query_progress(report(0, end={}))
    assert progress.snapshot().notice is None
