"""Fifty tables from an empty folder, of which one cannot be merged for a while, with the process killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.debezium.records import envelope, with_schema
from tests.streaming.streams import recorded_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.crash]

TABLES = [f"t{number:02}" for number in range(50)]
BROKEN = "t17"
SECONDS = 600
PIPELINE = """\
[pipeline]
name = "many"
checkpoint = "./checkpoint"
trigger = "0 seconds"
route_by = "topic"
parking = "./lake/_parked"

[source]
format = "files"
path = "./landing"
schema = "key STRING, value STRING, topic STRING, `partition` INT, offset BIGINT, timestamp TIMESTAMP"
max_files_per_trigger = 1

[decode]
format = "debezium"

[[tables]]
source = 're:shop\\.public\\.(?P<table>\\w+)'
target = "./lake/{table}"

[spark]
master = "local[2]"
"""

ID = {"field": "id", "type": "int64", "optional": False}
ROW = [ID, {"field": "name", "type": "string", "optional": True}]
PARTS = [
    *({"field": name, "type": "struct", "fields": ROW, "optional": True} for name in ("before", "after")),
    {"field": "source", "type": "struct", "fields": []},
    {"field": "op", "type": "string"},
]


class Shop:
    """The changes of all tables in files, and the rows that they make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, dict[int, str]] = {table: {} for table in TABLES}
        self.batches: dict[str, list[int]] = {table: [] for table in TABLES}
        self._num_files = self._lsn = 0
        folder.mkdir()

    def land(self, tables: Sequence[str] = TABLES) -> None:
        """Write the next file: it sets three rows of each table, and deletes one of the third file on."""
        number = self._num_files
        self._num_files += 1
        lines = []
        for table in tables:
            self.batches[table].append(number)
            keys = range(number, number + 3)
            lines += [self._record(table, key, f"{table}, file {number}, key {key}") for key in keys]
            if number > 1:
                lines.append(self._record(table, number - 2, None))
        path = self.folder / f"{number}.json"
        written = path.with_suffix(".part")
        written.write_text("\n".join(lines) + "\n")
        # Files are read in the order of their times.
        os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))
        written.rename(path)

    def _record(self, table: str, key: int, name: str | None) -> str:
        self._lsn += 1
        row = {"id": key, "name": name}
        source = {"connector": "postgresql", "snapshot": "false", "lsn": self._lsn}
        is_there = key in self.rows[table]
        if name is None:
            del self.rows[table][key]
            message = envelope("d", None, row, **source)
        else:
            self.rows[table][key] = name
            message = envelope("u" if is_there else "c", row, **source)
        record: dict[str, Any] = {
            "key": json.dumps(with_schema([ID], {"id": key})),
            "value": json.dumps(with_schema(PARTS, message)),
            "topic": f"shop.public.{table}",
            "partition": 0,
            "offset": self._lsn,
            "timestamp": "2026-01-01T00:00:00Z",
        }
        return json.dumps(record)


class Run:
    """The command, in a process group of its own with its JVM."""

    def __init__(self, folder: Path, number: int, *arguments: str) -> None:
        self.log = folder / f"run-{number}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stream_merge.cli", "run", "pipeline.toml", *arguments],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text()

    def kill_when(self, text: str, times: int = 1) -> None:
        """Kill it with its JVM as soon as it has said something often enough."""
        until = time.monotonic() + SECONDS
        while self.said().count(text) < times:
            assert self.process.poll() is None, self.said()[-4000:]
            assert time.monotonic() < until, self.said()[-4000:]
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    """Return the processes that a test starts; what still runs in the end is killed."""
    started: list[Run] = []
    yield started
    for run in started:
        run.kill()


def test_one_of_fifty_tables_rests_while_the_process_is_killed_twice(
    spark: SparkSession, tmp_path: Path, runs: list[Run]
):
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    shop = Shop(tmp_path / "landing")
    broken = f"./lake/{BROKEN}"

    def start(*arguments: str) -> Run:
        runs.append(Run(tmp_path, len(runs), *arguments))
        return runs[-1]

    def run_once() -> int:
        run = start("--once")
        return run.process.wait(SECONDS)

    shop.land()
    assert run_once() == 0, runs[-1].said()[-4000:]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/lake/{BROKEN}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    shop.land()
    start().kill_when(f"{broken} failed and goes to rest")
    shop.land()
    # In the midst of the third micro-batch, with the second one repeated before it.
    start().kill_when(": batch 2, version", times=20)
    num_done = sum(2 in recorded_ids(f"{tmp_path}/lake/{table}") for table in TABLES)
    assert 20 <= num_done < len(TABLES) - 1, "it was killed in between"
    shop.land([*TABLES[::5], BROKEN])
    assert run_once() == 4, runs[-1].said()[-4000:]
    parked = spark.read.format("delta").load(f"{tmp_path}/lake/_parked")
    assert {row["source"] for row in parked.select("source").distinct().collect()} == {f"shop.public.{BROKEN}"}
    assert sorted(row["batch_id"] for row in parked.select("batch_id").distinct().collect()) == [1, 2, 3]
    # What was parked is there once, too.
    assert parked.count() == 3 + 4 + 4
    assert recorded_ids(f"{tmp_path}/lake/{BROKEN}") == [0]

    spark.sql(f"ALTER TABLE delta.`{tmp_path}/lake/{BROKEN}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    codes = []
    while len(codes) < 4 and 0 not in codes:
        # It catches up for some seconds of each micro-batch, so that a busy machine needs several.
        shop.land([TABLES[0]])
        codes.append(run_once())
    assert codes == [4] * (len(codes) - 1) + [0], runs[-1].said()[-4000:]
    for table in TABLES:
        path = f"{tmp_path}/lake/{table}"
        rows = spark.read.format("delta").load(path).collect()
        assert {row["id"]: row["name"] for row in rows} == shop.rows[table]
        assert len(rows) == len(shop.rows[table])
        assert recorded_ids(path) == shop.batches[table]
    assert spark.read.format("delta").load(f"{tmp_path}/lake/_parked").count() == 0
