"""The demo ends with tables that equal the database's dump, says so, and says the opposite when they do not."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import DEFAULT_TABLES, TABLES
from demo.progress import Progress, TableProgress
from demo.replay import Replay, write_replay
from demo.shop import CAPTURED_TABLES
from stream_merge import MergeResult

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "demo" / "data"
EQUAL = "All 3 tables equal the database's own dump, row for row."
DIFFERENT = "The tables do NOT equal the database's own dump."
NUM_MICRO_BATCHES = 20
NUM_OF_A_RUN = 4
"""A micro-batch of three tables takes seconds."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_demo(workdir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", "--workdir", str(workdir), "--batches", str(NUM_OF_A_RUN)]
    command += ["--tables", *TABLES, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def test_replay_keeps_every_record_in_order(tmp_path: Path) -> None:
    replay = write_replay(
        DATA / "events.jsonl.gz", tmp_path / "log", tables=TABLES, num_micro_batches=NUM_MICRO_BATCHES
    )
    files = sorted(replay.directory.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == [f"{number:05d}.json" for number in range(1, NUM_MICRO_BATCHES + 1)]
    assert b"".join(path.read_bytes() for path in files) == gzip.decompress((DATA / "events.jsonl.gz").read_bytes())
    assert (replay.num_micro_batches, replay.num_records, replay.num_redelivered) == (NUM_MICRO_BATCHES, 29_038, 4_860)


def test_the_tables_of_the_command_line_are_those_of_the_capture() -> None:
    assert set(DEFAULT_TABLES) < set(TABLES) == set(CAPTURED_TABLES)


def test_replay_of_some_tables_has_their_records_alone(tmp_path: Path) -> None:
    replay = write_replay(DATA / "events.jsonl.gz", tmp_path / "log", tables=DEFAULT_TABLES, num_micro_batches=20)
    records = [
        json.loads(line)
        for path in replay.directory.iterdir()
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    assert {record["topic"] for record in records} == {f"shop.public.{table}" for table in DEFAULT_TABLES}
    assert (replay.num_micro_batches, replay.num_records, replay.num_redelivered) == (20, len(records), 3_907)


def test_replay_cuts_where_nothing_older_comes_later(tmp_path: Path) -> None:
    replay = write_replay(DATA / "events.jsonl.gz", tmp_path / "log", tables=TABLES, num_micro_batches=50)
    highest: dict[str, int] = {}
    for path in sorted(replay.directory.iterdir()):
        positions: dict[str, list[int]] = {}
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            change = json.loads(record["value"] or '{"op": "r"}')
            if change["op"] != "r":
                run = dict(record["headers"])["__debezium.context.runId"]
                positions.setdefault(run, []).append(change["source"]["lsn"])
        for run, lsns in positions.items():
            assert min(lsns) > highest.get(run, 0)
            highest[run] = max(lsns)
    assert len(highest) == 2


def test_progress_redraws_its_table_on_a_terminal(tmp_path: Path) -> None:
    out = Terminal()
    replay = Replay(directory=tmp_path, num_micro_batches=20, num_records=100, num_redelivered=0)
    progress = Progress(out, replay, {"orders": TableProgress(), "customers": TableProgress()})
    for batch_id in range(2):
        progress.on_result(
            MergeResult(
                target="/tables/orders",
                version=batch_id + 1,
                strategy="merge_on_read",
                num_target_rows_inserted=7,
                num_target_rows_deleted=1,
                execution_time_ms=250,
            )
        )
        progress.on_micro_batch(batch_id, {"orders": 8})
    first, second = out.getvalue().split("\x1b[4A")
    assert "micro-batch 1/20 [#" in first
    assert "micro-batch 2/20 [##" in second
    (orders,) = [line for line in second.splitlines() if "orders" in line]
    assert orders.split()[1:] == ["16", "14", "0", "2", "2", "250", "ms", "merge_on_read"]
    assert first.count("\n") == second.count("\n") == 4


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "work"


@pytest.fixture(scope="module")
def first_run(workdir: Path) -> subprocess.CompletedProcess[str]:
    """Run the whole demo once; the other run goes on from its tables."""
    return run_demo(workdir)


def read_commits(workdir: Path, table: str) -> list[str]:
    return sorted(path.name for path in (workdir / "tables" / table / "_delta_log").glob("*.json"))


@pytest.mark.slow
def test_tables_equal_the_dump(first_run: subprocess.CompletedProcess[str], workdir: Path) -> None:
    assert first_run.returncode == 0, first_run.stdout + first_run.stderr
    assert EQUAL in first_run.stdout.splitlines()
    batches = re.findall(r"^micro-batch (\d+)/(\d+): ", first_run.stdout, re.MULTILINE)
    assert batches == [(str(number), str(NUM_OF_A_RUN)) for number in range(1, NUM_OF_A_RUN + 1)]
    assert "customers: 2,311 rows in the database, equal to the Delta table" in first_run.stdout
    assert "orders: 4,015 rows in the database, equal to the Delta table" in first_run.stdout
    assert "order_items: 1,887 rows in the database, equal to the Delta table" in first_run.stdout
    assert "no sink for" not in first_run.stdout + first_run.stderr
    # The checkpoint's own record of what was committed.
    assert len([path for path in (workdir / "checkpoint" / "commits").iterdir() if path.name.isdigit()]) == len(batches)


@pytest.mark.long
@pytest.mark.slow
def test_second_run_merges_nothing_again_and_fails_on_a_tampered_dump(
    first_run: subprocess.CompletedProcess[str], workdir: Path, tmp_path: Path
) -> None:
    assert first_run.returncode == 0
    before = {table: read_commits(workdir, table) for table in TABLES}
    data = tmp_path / "data"
    shutil.copytree(DATA, data)
    dump = data / "expected" / "orders.jsonl.gz"
    first_line, *lines = gzip.decompress(dump.read_bytes()).decode().splitlines(keepends=True)
    order = json.loads(first_line)
    order["note"] = "not in the database"
    dump.write_bytes(gzip.compress("".join([json.dumps(order) + "\n", *lines]).encode()))

    run = run_demo(workdir, "--data", str(data))

    assert run.returncode == 1, run.stdout + run.stderr
    assert "0 micro-batches in" in run.stdout
    assert {table: read_commits(workdir, table) for table in before} == before
    assert DIFFERENT in run.stdout.splitlines()
    assert EQUAL not in run.stdout
    assert "orders: 4,015 rows in the database, DIFFERENT from the Delta table" in run.stdout
    assert run.stdout.count("1 missing, for example") == run.stdout.count("1 unexpected, for example") == 1
    assert order["order_id"] in run.stdout
    assert "customers: 2,311 rows in the database, equal to the Delta table" in run.stdout
