"""Executors that die or stall, and blocks of kept rows that are lost, in a merge on a real cluster of two executor
processes.

In every scenario each key must be in the table once, with a value that the source gives it: docs/guarantees.md, "One
evaluation".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.cluster_session import NUM_KEYS, NUM_OLD, SPECULATION
from tests.services.processes import Process, free_ports
from tests.streaming.child_session import child_conf, last_lines, run_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.always]

SINKS = ("keys", "clauses", "ordered", "partial", "quarantine", "router", "evolving", "decoded")

STALLS = (
    ("clauses", "writing", False),
    ("keys", "writing", True),
    ("ordered", "remembering", True),
    ("quarantine", "locating", False),
)
"""Where an executor stands still, so that its tasks are run twice: the sinks, the steps, and whether there are deletion
vectors."""


def _scenarios() -> dict[str, dict[str, Any]]:
    """Return the scenarios: an executor of every sink is killed, and every other loses blocks, at steps that take
    turns."""
    found = {}
    for number, sink in enumerate(SINKS):
        for fault, is_other in (("kill", False), ("drop", True))[: 1 + number % 2]:
            deletion_vectors = bool(number % 2) != is_other
            step = ("writing", "locating", "after_persist")[(number + is_other) % 3]
            scenario = {"sink": sink, "fault": fault, "step": step, "deletion_vectors": deletion_vectors}
            strategy = "merge_on_read" if deletion_vectors else "copy_on_write"
            found[f"{sink}-{strategy}-{fault}-{step}"] = scenario
    # What an adversarial review has found to be wrong.
    for sink, deletion_vectors in (("keys", False), ("clauses", False), ("clauses", True)):
        strategy = "merge_on_read" if deletion_vectors else "copy_on_write"
        found[f"{sink}-{strategy}-kill-writing"] = {
            "sink": sink,
            "fault": "kill",
            "step": "writing",
            "deletion_vectors": deletion_vectors,
        }
    for sink, step, deletion_vectors in STALLS:
        strategy = "merge_on_read" if deletion_vectors else "copy_on_write"
        found[f"{sink}-{strategy}-stall-{step}"] = {
            "sink": sink,
            "fault": "stall",
            "step": step,
            "deletion_vectors": deletion_vectors,
        }
    return found


SCENARIOS = _scenarios()
IN_THE_SUITE = (
    "keys-copy_on_write-kill-writing",
    "clauses-copy_on_write-drop-after_persist",
    "partial-merge_on_read-kill-writing",
    "router-merge_on_read-kill-after_persist",
    "quarantine-copy_on_write-stall-locating",
)
"""Every fault, step and strategy; the others are in the long tier, since each takes twenty seconds."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(root: Path) -> Iterator[str]:
    """Return the address of a cluster of two workers, each a host of its own: Spark runs no task twice on one host."""
    environ = {**os.environ, "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    spark_class = Path(find_spec("pyspark").origin).parent / "bin" / "spark-class"

    def process(name: str, *arguments: str) -> Process:
        command = [spark_class, f"org.apache.spark.deploy.{name}", *arguments, "--webui-port", "0"]
        return Process(name, command, log=root / f"{name}.log", environ=environ)

    (port,) = free_ports(1)
    address = f"spark://127.0.0.1:{port}"
    processes = [process("master.Master", "--host", "127.0.0.1", "--port", str(port))]
    for host in ("127.0.0.2", "127.0.0.3"):
        folder = str(root / host)
        processes.append(
            process("worker.Worker", "--host", host, "--cores", "1", "--memory", "1g", "--work-dir", folder, address)
        )
    for each in processes:
        each.start()
    yield address
    for each in reversed(processes):
        each.stop()


@pytest.fixture(scope="module")
def report(spark: SparkSession, master: str, root: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the child process found in each scenario."""
    # An executor that was killed is followed by another, which has seconds to live, too.
    java_options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    settings = {
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": java_options,
        **SPECULATION,
    }
    (root / "events").mkdir()
    events = {"enabled": "true", "dir": f"file:{root}/events", "rolling.enabled": "false", "compress": "false"}
    conf = child_conf(spark, **settings, **{f"spark.eventLog.{name}": value for name, value in events.items()})
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    argument = {"conf": conf, "root": str(root), "scenarios": {name: SCENARIOS[name] for name in names}}
    log = root / "child.log"
    code = run_child("tests.crash.cluster_session", json.dumps(argument), log, timeout=1500)
    assert code == 0, last_lines(log)
    found: dict[str, Any] = json.loads(Path(root, "report.json").read_text())
    return found


@pytest.fixture(scope="module")
def speculated(report: dict[str, Any], root: Path) -> list[float]:
    """Return when tasks were started a second time, in seconds, by the log of Spark's events."""
    (log,) = (root / "events").iterdir()
    starts = [json.loads(line) for line in log.read_text().splitlines() if '"SparkListenerTaskStart"' in line]
    return [start["Task Info"]["Launch Time"] / 1000 for start in starts if start["Task Info"]["Speculative"]]


def _values(key: int) -> set[int]:
    """Return the values that the source may give a key."""
    return {n for n in range(2 * NUM_KEYS) if n * 7919 % NUM_KEYS == key}


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_THE_SUITE else [pytest.mark.long]) for name in SCENARIOS]
)
def test_each_row_is_there_once(report: dict[str, Any], speculated: list[float], name: str):
    found, sink = report[name], SCENARIOS[name]["sink"]
    assert "error" not in found, found
    assert found["num_faults"] == 1
    if SCENARIOS[name]["fault"] == "stall":
        assert any(found["began"] < start < found["ended"] for start in speculated)
    tables = found["tables"]
    rows = [tuple(row) for table in ("target", "odd") for row in tables.get(table, [])]
    if sink in ("ordered", "decoded", "evolving"):
        newest = {key: key + NUM_KEYS for key in range(NUM_KEYS)}
        if sink == "decoded":
            newest |= {key: key + 2 * NUM_KEYS for key in range(10)}
        assert rows == [(key, n) for key, n in newest.items() if sink == "evolving" or n % 4 != 3]
        assert tables.get("wrong_ratios", []) == []
        return
    keys = [key for key, _ in rows]
    if sink == "quarantine":
        quarantined = tables["quarantined"]
        updated = [key for key, n in rows if n >= 0]
        assert sorted(keys) == sorted({*keys})
        assert {*updated, *quarantined} == {*range(NUM_KEYS)}
        assert all(n in _values(key) and n < NUM_KEYS for key, n in rows if n >= 0)
        return
    assert sorted(keys) == [*range(NUM_KEYS)]
    if sink == "router":
        assert all(n == key for key, n in rows)
    elif sink == "clauses":
        assert all(n - (-1 - key if key < NUM_OLD else 0) in _values(key) for key, n in rows)
    elif sink == "keys":
        assert all(n in _values(key) for key, n in rows)
    else:
        assert all(n is None or n < 0 or n in _values(key) for key, n in rows)
