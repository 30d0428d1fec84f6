"""How a pipeline ends: what is retried, what a signal does, and a query that runs in this process."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from stream_merge.cli.errors import ExitCode, PipelineError, StopNow
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.run.stopping import BatchGate, StoppedError, StopSignals

FILES_SCHEMA = "id BIGINT, name STRING"


def test_a_gate_that_is_closed_lets_no_batch_begin():
    merged = []
    gate = BatchGate(lambda _, batch_id: merged.append(batch_id))
    gate(None, 1)
    gate.close()
    with pytest.raises(StoppedError, match="batch 2 was not started: the pipeline is stopping"):
        gate(None, 2)
    assert (merged, gate.num_merged, gate.batch_id, gate.failure) == ([1], 1, 1, None)


def test_a_gate_keeps_what_a_batch_failed_with():
    gate = BatchGate(lambda *_: {}["missing"])
    with pytest.raises(KeyError):
        gate(None, 1)
    assert isinstance(gate.failure, KeyError)
    assert (gate.num_merged, gate.is_merging) == (0, False)


def test_the_first_signal_is_noted_and_the_second_ends_at_once():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        assert signals.received == signal.SIGTERM
        with pytest.raises(StopNow) as caught:
            signal.raise_signal(signal.SIGINT)
        assert caught.value.signal_number == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def landing(tmp_path):
    """Return a function that puts a file of rows into the source's folder."""
    folder = tmp_path / "landing"
    folder.mkdir()

    def land(name, *rows):
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / name).write_text(text + "\n")
        (tmp_path / name).rename(folder / name)

    return land


@pytest.fixture
def make_runner(spark, tmp_path, make_pipeline):
    """Return a function that makes the runner of a pipeline of files, with what shows its progress."""
    from stream_merge.cli.query.tables import build_sink
    from stream_merge.cli.run.runner import Runner

    def make(signals, *, once=False, around=lambda merge: merge, pipeline=None, **table):
        source = {
            "format": "files",
            "path": str(tmp_path / "landing"),
            "schema": FILES_SCHEMA,
            "max_files_per_trigger": 1,
        }
        target = {"target": str(tmp_path / "orders"), "keys": ["id"], **table}
        settings = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds", **(pipeline or {})}
        made = make_pipeline(source, target, pipeline=settings)
        progress = Progress("shop")
        failures = []
        merge = around(build_sink(made, progress.on_result))
        runner = Runner(spark, made, merge, progress, signals, once=once, on_failure=lambda: failures.append(1))
        return runner, progress, failures

    return make


def rows_of(read_rows, tmp_path):
    return [tuple(row) for row in read_rows(str(tmp_path / "orders"), "id", "name")]


def test_batches_that_end_before_the_first_look_are_counted(make_runner, landing, monkeypatch):
    from stream_merge.cli.run import runner as module

    for number in range(3):
        landing(f"{number}.json", {"id": number, "name": "a"})
    monkeypatch.setattr(module, "_POLL_SECONDS", 300)
    with StopSignals() as signals:
        runner, progress, _ = make_runner(signals, once=True)
        assert runner.run() is ExitCode.OK
    snapshot = progress.snapshot()
    assert (snapshot.num_batches, snapshot.batch_id) == (3, 2)


def test_once_takes_what_is_there_and_ends(make_runner, landing, read_rows, tmp_path):
    landing("1.json", {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    landing("2.json", {"id": 1, "name": "c"})
    with StopSignals() as signals:
        runner, progress, failures = make_runner(signals, once=True)
        assert runner.run() is ExitCode.OK
    assert rows_of(read_rows, tmp_path) == [(1, "c"), (2, "b")]
    snapshot = progress.snapshot()
    table = snapshot.tables[str(tmp_path / "orders")]
    assert (snapshot.num_batches, snapshot.batch_id) == (2, 1)
    assert (table.num_source_rows, table.num_inserted, table.num_updated) == (3, 2, 1)
    assert failures == []


def test_a_signal_lets_the_running_batch_finish(make_runner, landing, read_rows, tmp_path):
    landing("1.json", {"id": 1, "name": "a"})
    landing("2.json", {"id": 2, "name": "b"})

    def stopped_inside(merge):
        def around(batch_df, batch_id):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
            merge(batch_df, batch_id)

        return around

    with StopSignals() as signals:
        runner, progress, failures = make_runner(signals, around=stopped_inside)
        assert runner.run() is ExitCode.OK
    assert rows_of(read_rows, tmp_path) == [(1, "a")]
    assert progress.snapshot().state is State.STOPPING
    assert (tmp_path / "checkpoint" / "commits" / "0").exists(), "Spark knows that the batch is done"
    assert failures == []
    with StopSignals() as signals:
        runner, progress, _ = make_runner(signals, once=True)
        assert runner.run() is ExitCode.OK
    assert rows_of(read_rows, tmp_path) == [(1, "a"), (2, "b")]
    assert progress.snapshot().tables[str(tmp_path / "orders")].num_skipped == 0


def test_a_batch_that_takes_too_long_is_cut_off(make_runner, landing, tmp_path):
    landing("1.json", {"id": 1, "name": "a"})

    def endless(merge):
        def around(batch_df, batch_id):
            os.kill(os.getpid(), signal.SIGINT)
            batch_df.sparkSession.range(10**15).selectExpr("max(hash(id))").collect()

        return around

    with StopSignals() as signals:
        runner, _, _ = make_runner(signals, around=endless, pipeline={"stop_timeout": 1})
        assert runner.run() is ExitCode.INTERRUPTED
    assert not (tmp_path / "orders").exists()


def test_a_batch_that_fails_while_stopping_is_a_failure(make_runner, landing):
    landing("1.json", {"id": None, "name": "a"})

    def stopped_inside(merge):
        def around(batch_df, batch_id):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            merge(batch_df, batch_id)

        return around

    with StopSignals() as signals:
        runner, _, failures = make_runner(signals, around=stopped_inside)
        with pytest.raises(PipelineError, match=r"have NULL in a key \(id\)") as caught:
            runner.run()
    assert caught.value.exit_code is ExitCode.FAILED
    assert failures == [1]


def test_a_target_that_cannot_be_written_for_a_while_is_retried(
    make_runner, landing, read_rows, tmp_path, caplog, monkeypatch
):
    landing("1.json", {"id": 1, "name": "a"})
    (tmp_path / "lake").write_text("where the folder of the table is to be")

    def mended():
        time.sleep(2)
        (tmp_path / "lake").unlink()

    with StopSignals() as signals:
        runner, progress, failures = make_runner(signals, once=True, target=str(tmp_path / "lake" / "orders"))
        states = []
        set_state = progress.set_state
        monkeypatch.setattr(progress, "set_state", lambda state, *rest: states.append(state) or set_state(state, *rest))
        helper = threading.Thread(target=mended)
        helper.start()
        assert runner.run() is ExitCode.OK
        helper.join()
    assert [tuple(row) for row in read_rows(str(tmp_path / "lake" / "orders"), "id", "name")] == [(1, "a")]
    assert failures
    # To start the query again is not enough to call it running.
    assert states == [State.RUNNING, *[State.RETRYING] * (2 * len(failures)), State.RUNNING]
    warnings = [record.getMessage() for record in caplog.records if "Next attempt" in record.getMessage()]
    assert warnings[0].startswith("Storage cannot be read or written: ")
    assert warnings[0].endswith("Next attempt in 1 seconds.")
    assert [warning.rsplit(" ", 2)[1] for warning in warnings] == ["1", "2", "4", "8", "16"][: len(warnings)]


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of a megabyte for the targets, and return its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small disk, which takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_is_retried_until_there_is_room(make_runner, landing, read_rows, small_disk, caplog):
    """Whatever the file is that finds no room: one of the rows, one of the log, or what Delta keeps beside it."""
    target, filler = small_disk / "orders", small_disk / "filler"
    landing("0.json", {"id": 0, "name": "first"})
    with StopSignals() as signals:
        make_runner(signals, once=True, target=str(target))[0].run()
        failed = 0
        for number, free in enumerate((0, 4, 8, 12, 16), start=1):
            space = os.statvfs(small_disk)
            filler.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - free * 1024)))
            landing(f"{number}.json", {"id": 0, "name": f"{free} KB"}, {"id": number, "name": "new"})
            runner, _, failures = make_runner(signals, once=True, target=str(target))

            def make_room(failures=failures):
                until = time.monotonic() + 60
                while not failures and time.monotonic() < until:
                    time.sleep(0.1)
                filler.unlink()

            helper = threading.Thread(target=make_room)
            helper.start()
            assert runner.run() is ExitCode.OK
            failures.append(0)
            helper.join()
            failed += len(failures) - 1
            expected = [(0, f"{free} KB"), *((other, "new") for other in range(1, number + 1))]
            assert [tuple(row) for row in read_rows(str(target), "id", "name")] == expected
    assert failed >= 3
    warnings = [record.getMessage() for record in caplog.records if "Next attempt" in record.getMessage()]
    assert len(warnings) == failed
    assert all(warning.startswith("Storage cannot be read or written: No space left on device") for warning in warnings)


def test_a_signal_ends_the_waiting_for_a_retry(make_runner, landing, tmp_path):
    landing("1.json", {"id": 1, "name": "a"})
    (tmp_path / "lake").write_text("where the folder of the table is to be")
    with StopSignals() as signals:
        runner, progress, _ = make_runner(signals, target=str(tmp_path / "lake" / "orders"))

        def interrupt():
            while progress.snapshot().state is not State.RETRYING:
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        helper = threading.Thread(target=interrupt)
        helper.start()
        assert runner.run() is ExitCode.OK
        helper.join()


def test_a_record_that_does_not_fit_stops_the_query_or_is_set_aside(make_runner, landing, read_rows, tmp_path):
    landing("1.json", {"id": 1, "name": "a"}, '{"id": "x", "name": "b"}', "no JSON")
    with StopSignals() as signals:
        runner, _, _ = make_runner(signals, once=True)
        with pytest.raises(PipelineError) as caught:
            runner.run()
        assert "2 of 3 rows cannot be merged" in str(caught.value)
        assert 'the record does not fit the schema: {"id": "x", "name": "b"}' in str(caught.value)
        runner, progress, _ = make_runner(signals, once=True, quarantine=str(tmp_path / "rejected"))
        assert runner.run() is ExitCode.OK
    assert rows_of(read_rows, tmp_path) == [(1, "a")]
    assert sorted(row["reason"] for row in read_rows(str(tmp_path / "rejected"))) == [
        "the record does not fit the schema: no JSON",
        'the record does not fit the schema: {"id": "x", "name": "b"}',
    ]
    assert progress.snapshot().tables[str(tmp_path / "orders")].num_quarantined == 2


def test_a_source_that_is_not_there_is_a_sentence(make_runner, tmp_path):
    with StopSignals() as signals:
        runner, _, _ = make_runner(signals, once=True)
        with pytest.raises(PipelineError) as caught:
            runner.run()
    assert str(caught.value).startswith("The source does not exist: Path does not exist: ")
    assert "landing" in str(caught.value)
    assert caught.value.exit_code is ExitCode.CANNOT_START
