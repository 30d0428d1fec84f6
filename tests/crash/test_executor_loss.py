"""Executors that die or stall, and blocks of kept rows that are lost, in a merge on a real cluster of two executor processes.

In every scenario each key must be in the table once, with a value that the source gives it: docs/guarantees.md, "One evaluation".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.cluster_session import NUM_KEYS, NUM_OLD, SPECULATION
from tests.streaming.child_session import child_conf, last_lines, run_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SINKS = ("keys", "clauses", "ordered", "partial", "quarantine", "router")

STALLS = (
    ("clauses", "writing", False),
    ("keys", "writing", True),
    ("ordered", "remembering", True),
    ("quarantine", "locating", False),
)
"""Where an executor stands still, so that its tasks are run twice: the sinks, the steps, and whether there are deletion vectors."""


def _scenarios() -> dict[str, dict[str, Any]]:
    """Return the scenarios: an executor of every sink is killed, and every other loses blocks, at steps that take turns."""
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


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the child process found in each scenario."""
    root = tmp_path_factory.mktemp("cluster")
    settings = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g", **SPECULATION}
    conf = child_conf(spark, **settings)
    argument = {"conf": conf, "root": str(root), "scenarios": SCENARIOS}
    log = root / "child.log"
    code = run_child("tests.crash.cluster_session", json.dumps(argument), log, timeout=900)
    assert code == 0, last_lines(log)
    found: dict[str, Any] = json.loads(Path(root, "report.json").read_text())
    return found


def _values(key: int) -> set[int]:
    """Return the values that the source may give a key."""
    return {n for n in range(2 * NUM_KEYS) if n * 7919 % NUM_KEYS == key}


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_row_is_there_once(report: dict[str, Any], name: str):
    found, sink = report[name], SCENARIOS[name]["sink"]
    assert "error" not in found, found
    assert found["num_faults"] == 1
    if SCENARIOS[name]["fault"] == "stall":
        assert found["num_speculated"]
    tables = found["tables"]
    rows = [tuple(row) for table in ("target", "odd") for row in tables.get(table, [])]
    if sink == "ordered":
        newest = {key: key + NUM_KEYS for key in range(NUM_KEYS)}
        assert rows == [(key, n) for key, n in newest.items() if n % 4 != 3]
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
