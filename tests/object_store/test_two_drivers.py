"""Two drivers that merge into one table on S3, of whose answers some are lost: no commit is lost, and none is made
twice.

STREAM_MERGE_TEST_COMMITS says how many micro-batches each driver merges, 20 by default, and
STREAM_MERGE_TEST_LOG_COMMITS how many commits each makes without a merge, 500 by default.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stream_merge.table.log_stores import CONDITIONAL_CREATE
from tests.object_store.conftest import BUCKET
from tests.object_store.s3_proxy import LOST, LOST_FOR_GOOD, NOT_SENT
from tests.streaming.child_session import ROOT, last_lines

NUM_BATCHES = int(os.environ.get("STREAM_MERGE_TEST_COMMITS", "20"))
NUM_LOG_COMMITS = int(os.environ.get("STREAM_MERGE_TEST_LOG_COMMITS", "500"))
SECONDS_A_BATCH = 30
START_SECONDS = 240
TARGET = f"s3a://{BUCKET}/counts"
LOG_STORE = "spark.delta.logStore.s3a.impl"


def run_writers(
    conf: dict[str, str], root: Path, names: list[str], *, batches: int, restarts: int = 0, **options: Any
) -> dict[str, dict[str, Any]]:
    """Run a query in a driver process for each name, side by side, and return their reports."""
    arguments = {"conf": conf, "target": TARGET, "batches": batches, "restarts": restarts, "options": options}
    return run_drivers("writer_session", arguments, root, names, seconds=SECONDS_A_BATCH * batches * len(names))


def run_drivers(
    module: str, arguments: dict[str, Any], root: Path, names: list[str], *, seconds: float
) -> dict[str, dict[str, Any]]:
    """Run a module in a process for each name, side by side, and return their reports."""
    drivers = {}
    for name in names:
        (root / name).mkdir()
        argument = {**arguments, "name": name, "root": str(root / name)}
        with (root / f"{name}.log").open("w") as log:
            drivers[name] = subprocess.Popen(
                [sys.executable, "-m", f"tests.object_store.{module}", json.dumps(argument)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    deadline = time.monotonic() + START_SECONDS + seconds
    try:
        for name, driver in drivers.items():
            code = driver.wait(max(1, deadline - time.monotonic()))
            assert code == 0, last_lines(root / f"{name}.log")
    finally:
        for driver in drivers.values():
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    return {name: json.loads((root / name / "report.json").read_text()) for name in names}


@pytest.mark.slow
def test_a_thousand_commits_by_the_log_store(s3, s3_conf, tmp_path):
    """Without merges around them commits meet all the time."""
    s3.loses_answers = True
    names = ["left", "right"]
    arguments = {
        "conf": s3_conf,
        "log_store": os.environ.get("STREAM_MERGE_TEST_LOG_STORE", CONDITIONAL_CREATE),
        "log": f"{TARGET}/_delta_log",
        "commits": NUM_LOG_COMMITS,
    }
    reports = run_drivers("log_store_session", arguments, tmp_path, names, seconds=5 * NUM_LOG_COMMITS)
    print(s3.commits, {name: report["num_taken"] for name, report in reports.items()})
    found = [commit for report in reports.values() for commit in report["found"]]
    assert sorted(found) == sorted(f"{name}-{number}" for name in names for number in range(NUM_LOG_COMMITS))
    assert s3.commits["plain"] == 0
    assert all(s3.commits[fate] for fate in (LOST, LOST_FOR_GOOD, NOT_SENT, "refused")), s3.commits


@pytest.mark.slow
def test_two_drivers_lose_no_commit(s3, s3_conf, tmp_path):
    s3.loses_answers = True
    names = ["left", "right"]
    conf = {**s3_conf, LOG_STORE: CONDITIONAL_CREATE}
    reports = run_writers(conf, tmp_path, names, batches=NUM_BATCHES, restarts=NUM_BATCHES)
    print(s3.commits, {name: {k: r[k] for k in ("starts", "conflicts")} for name, r in reports.items()})
    assert [report["error"] for report in reports.values()] == [None, None]
    # Whoever ended last has seen all.
    last = max(reports.values(), key=lambda report: report["merges"])
    expected = [[f"{name}-{number}", 1] for name in names for number in range(NUM_BATCHES)]
    assert sorted(last["rows"]) == sorted([*expected, ["both", 2 * NUM_BATCHES]])
    assert last["merges"] == 2 * NUM_BATCHES
    versions = [version for report in reports.values() for _, version in report["committed"]]
    assert len(set(versions)) == len(versions)
    # The test has tested something: every commit was conditional, and of each kind of loss there was one.
    assert s3.commits["plain"] == 0
    assert all(s3.commits[fate] for fate in (LOST, LOST_FOR_GOOD, NOT_SENT, "refused")), s3.commits


def test_the_default_log_store_is_refused(s3, s3_conf, tmp_path):
    [report] = run_writers(s3_conf, tmp_path, ["left"], batches=1).values()
    assert "UnsupportedTableError" in report["error"]
    assert "io.delta.storage.S3SingleDriverLogStore" in report["error"]
    assert s3.puts == []


def test_a_single_writer_may_use_it(s3, s3_conf, tmp_path):
    [report] = run_writers(s3_conf, tmp_path, ["left"], batches=2, single_writer=True).values()
    assert report["error"] is None
    assert sorted(report["rows"]) == [["both", 2], ["left-0", 1], ["left-1", 1]]
    assert s3.commits["conditional"] == 0


def test_a_hadoop_that_is_told_not_to_is_refused_by_the_log_store(s3, s3_conf, tmp_path):
    conf = {**s3_conf, LOG_STORE: CONDITIONAL_CREATE, "spark.hadoop.fs.s3a.create.conditional.enabled": "false"}
    [report] = run_writers(conf, tmp_path, ["left"], batches=1).values()
    assert "Conditional Writes Unavailable" in report["error"]
    assert s3.commits["plain"] == s3.commits["conditional"] == 0


def test_a_store_that_does_not_know_the_header_is_refused(s3, s3_conf, tmp_path):
    s3.ignores_conditions = True
    [report] = run_writers({**s3_conf, LOG_STORE: CONDITIONAL_CREATE}, tmp_path, ["left"], batches=2).values()
    assert "overwrites a file in spite of If-None-Match" in report["error"]
    assert report["committed"] == []
