"""Five hundred micro-batches through the command: what it uses stays what it was; some ten minutes, so only with
--long."""

import json
import os
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from tests.spark.delta_log import actions_of, latest_version

NUM_BATCHES = 500
KEYS = 2_000
ROWS = 150

PIPELINE = """\
[pipeline]
name = "long"
checkpoint = "./checkpoint"
trigger = "0 seconds"

[source]
format = "files"
path = "./landing"
schema = "id BIGINT, name STRING, at BIGINT"
max_files_per_trigger = 1

[[tables]]
target = "./lake/orders"
keys = ["id"]
sequence_by = "at"
delete_when = "name IS NULL"

[metrics]
prometheus_port = 0

[spark]
master = "local[2]"
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("jcmd") is None, reason="needs jcmd, which a JDK has"),
]


def change(number, batch):
    """Return the change of a key in a batch, each of another key; every tenth is a delete."""
    key = (batch * 37 + number * 11) % KEYS
    return {"id": key, "name": None if (batch + number) % 10 == 0 else f"n{batch}", "at": batch}


def status(pid, name):
    """Return a number of a process from its /proc/.../status."""
    return int(re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE).group(1))


def footprint(python):
    """Return what the command uses now: memory in MB, that of the JVM after it has collected its garbage, and
    threads."""
    (java,) = Path(f"/proc/{python}/task/{python}/children").read_text().split()
    live = subprocess.run(["jcmd", java, "GC.class_histogram"], capture_output=True, text=True, check=True).stdout
    return {
        "python MB": status(python, "VmRSS") / 1024,
        "java MB": int(re.search(r"^Total\s+\d+\s+(\d+)", live, re.MULTILINE).group(1)) / 2**20,
        "python threads": status(python, "Threads"),
        "java threads": status(java, "Threads"),
    }


def test_five_hundred_batches_use_what_fifty_use(start_command, read_rows, tmp_path):
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "landing").mkdir()
    expected = {}
    for batch in range(NUM_BATCHES):
        changes = [change(number, batch) for number in range(ROWS)]
        path = tmp_path / "landing" / f"{batch:04d}.json"
        path.write_text("\n".join(map(json.dumps, changes)) + "\n")
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
        for one in changes:
            expected[one["id"]] = one["name"]
    child = start_command("run", "pipeline.toml", "--once")
    seen = {}
    while child.process.poll() is None:
        done = child.stderr.count("./lake/orders: batch")
        if done // 50 > len(seen) and done < NUM_BATCHES:
            seen[done] = footprint(child.process.pid)
            print(done, {name: round(value) for name, value in seen[done].items()})
        time.sleep(0.5)
    assert child.wait() == 0, child.stderr[-2000:]

    rows = [(key, name) for key, name in sorted(expected.items()) if name is not None]
    assert sorted(tuple(row) for row in read_rows(str(tmp_path / "lake/orders"), "id", "name")) == rows
    # The first ones still warm up: the JVM's compiler, Spark's caches of a hundred plans and classes.
    first, *_, last = [seen[done] for done in sorted(seen) if done >= 100]
    for name, allowed in {"python MB": 1.1, "java MB": 1.25, "python threads": 1.1, "java threads": 1.25}.items():
        assert last[name] <= first[name] * allowed, (name, seen)
    kept = [len(list((tmp_path / "checkpoint" / folder).iterdir())) for folder in ("offsets", "commits")]
    # With their checksums; Spark keeps a hundred.
    assert max(kept) <= 2 * 110, kept

    times = merge_times(tmp_path / "lake/orders")
    early, late = statistics.median(times[100:200]), statistics.median(times[-100:])
    print(f"median ms of a merge: batches 100 to 199 {early}, last hundred {late}")


def merge_times(path):
    """Return the times in ms of the merges that the table's commits tell."""
    infos = [actions_of(str(path), version, "commitInfo")[0] for version in range(latest_version(str(path)) + 1)]
    return [int(info["operationMetrics"]["executionTimeMs"]) for info in infos if info["operation"] == "MERGE"]
