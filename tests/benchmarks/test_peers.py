"""The benchmark of other systems: the same rows from each, what it measures, and the table and picture made of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import meters
from benchmarks.peers import plot
from benchmarks.peers.__main__ import main
from benchmarks.peers.child import Task, measure, written_bytes
from benchmarks.peers.data import PARQUET, Data
from benchmarks.peers.interpreters import Interpreter, NoInterpreterError, find_python
from benchmarks.peers.report import format_maintenance, format_table, percentile_90
from benchmarks.peers.systems import SYSTEMS

ROWS, BATCH_ROWS, BATCHES = 2_000, 200, 3


@pytest.fixture
def data(spark, tmp_path, monkeypatch):
    """Return three batches in a folder; the session is left as it was found."""
    client = spark.sparkContext._gateway._gateway_client
    monkeypatch.setattr(client, "send_command", client.send_command)
    monkeypatch.setattr(meters, "READS", 3)
    folder = tmp_path / "data"
    [(name, value)] = PARQUET.items()
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        Data(folder).write(spark, num_rows=ROWS, batch_rows=BATCH_ROWS, num_batches=BATCHES)
    finally:
        spark.conf.set(name, before)
    return Data(folder)


def task(name: str, data: Data, workdir: Path) -> Task:
    return Task(
        system=name,
        num_rows=ROWS,
        batch_rows=BATCH_ROWS,
        rounds=BATCHES - 1,
        warmup=1,
        data=str(data.folder),
        workdir=str(workdir),
        driver_memory="1g",
    )


@pytest.mark.parametrize("name", ["stream_merge", "delta_merge"])
def test_systems_have_the_rows_of_the_fold(spark, data, tmp_path, name):
    result = measure(spark, task(name, data, tmp_path))
    assert result.wrong == []
    assert {system: len(times) for system, times in result.ms.items()} == {"append": 2, "system": 2}
    # Each batch wrote a file of new rows at least.
    assert min(result.written["append"] + result.written["system"]) > BATCH_ROWS
    [row] = format_table([asdict(result)])[2:]
    assert row.startswith(f"| {SYSTEMS[name].title} | ")


def test_a_table_with_other_rows_is_reported(spark, data, tmp_path):
    """The rows of delta-rs are right: what is made wrong is the fold."""
    prints = data.fingerprints()
    prints["merged"] = (prints["merged"][0] + 1, prints["merged"][1])
    (data.folder / "fingerprints.json").write_text(json.dumps(prints))
    [fault] = measure(spark, task("delta_rs", data, tmp_path)).wrong
    count, total = prints["merged"]
    assert fault == f"delta-rs, copy-on-write: {count - 1:,} rows with the hash {total}, not {count:,} with {total}"


@pytest.mark.long
@pytest.mark.parametrize("name", ["iceberg", "paimon", "paimon_read", "hudi"])
def test_peers_with_jars_have_the_rows_of_the_fold(tmp_path, capsys, name):
    try:
        find_python(SYSTEMS[name].interpreter)
    except NoInterpreterError as error:
        pytest.skip(str(error))
    sizes = ["--rows", "2000", "--batch-rows", "200", "--rounds", "2", "--warmup", "1", "--driver-memory", "1g"]
    assert main(["--system", name, *sizes, "--workdir", str(tmp_path)]) == 0
    assert f"| {SYSTEMS[name].title} | " in capsys.readouterr().out


def test_a_missing_interpreter_is_named_with_what_makes_it():
    missing = Interpreter(spark="1.6", folder=".venv-gone", remedy="make it")
    with pytest.raises(NoInterpreterError, match=r"^There is no Python with Spark 1\.6: make one by `make it`\.$"):
        find_python(missing)


def test_new_and_changed_files_are_written():
    kept, grown, gone, new = (Path(name) for name in ("kept", "grown", "gone", "new"))
    before = {kept: (10, 1), grown: (10, 1), gone: (10, 1)}
    assert written_bytes(before, {kept: (10, 1), grown: (15, 2), new: (7, 2)}) == 22


def test_nine_tenths_do_not_exceed_the_90th_percentile():
    assert percentile_90([*range(10, 0, -1)]) == 9
    assert percentile_90([5.0]) == 5.0
    assert percentile_90([*range(12)]) == 10


def result(system: str, num_rows: int, ms: list[float]) -> dict[str, Any]:
    return {
        "task": {"system": system, "num_rows": num_rows, "rounds": 3, "warmup": 1},
        "versions": "1.0, Spark 4.2.0",
        "ms": {"append": [100.0, 200.0, 300.0], "system": ms},
        "written": {"append": [1_000_000] * 3, "system": [2_500_000] * 3},
        "read": 3.0,
        "read_fresh": 2.0,
        "load": (1.0, 2.04),
    }


def test_the_table_and_the_picture_have_the_figures():
    results = [
        result("iceberg", 5_000_000, [1000.0, 2000.0, 9000.0]),
        result("iceberg", 1_000_000, [1000.0, 1100.0, 1200.0]),
        result("stream_merge", 1_000_000, [300.0, 400.0, 500.0]),
    ]
    table = format_table(results)
    assert table[2] == (
        "| Iceberg MERGE, deletion vectors | 1.0, Spark 4.2.0 | 5,000,000 | 3 after 1 | 200 / 200 / 300 "
        "| 2,000 / 4,000 / 9,000 | 10.00 | 20.00 | 2.50 | 1.00 | 3.00 | 1.50 | 1.0-2.0 |"
    )
    assert format_maintenance(results)[2] == "- stream_merge: checkpoints of the log, the index of keys; no compaction"
    points = plot.read_points("\n".join(["# Other", *table, "", "| not | this |"]))
    assert points == {
        "Iceberg MERGE, deletion vectors": [(1_000_000, 5.5), (5_000_000, 10.0)],
        "stream_merge": [(1_000_000, 2.0)],
    }
    picture = plot.PLOT.draw(points)
    assert ">10.0 Iceberg MERGE, deletion vectors</text>" in picture
    assert picture.count("<circle") == 3


def test_each_system_has_a_colour_of_its_own():
    assert {*plot.COLOURS} == {system.title for system in SYSTEMS.values()}
    assert len({*plot.COLOURS.values()}) == len(SYSTEMS)
