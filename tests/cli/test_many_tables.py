"""Fifty tables of one section, of which one is broken: the others go on, and it catches up exactly once, also over two
kills. The command as users run it, from files, with the events of `benchmarks/many_tables.py`."""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.database_events import PATTERN, RECORD, Database, write_file
from tests.jvm.jars import jar_conf

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
trigger = "0 seconds"
route_by = "topic"
parking = "./lake/_parked"

[source]
format = "files"
path = "./landing"
file_format = "parquet"
schema = "{record}"
max_files_per_trigger = 1

[decode]
format = "debezium"

[[tables]]
source = '{pattern}'
target = "./lake/{{table}}"

[spark]
master = "local[2]"
choose_packages = {choose_packages}

[spark.conf]
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 2
"spark.databricks.delta.snapshotPartitions" = 2
"spark.sql.codegen.wholeStage" = false
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
{jars}
"""
NUM_TABLES = 50
BROKEN = 7
MAX_STARTS = 4


def kill(child):
    """Kill the command and its JVM at once."""
    (java,) = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text().split()
    for pid in (child.process.pid, int(java)):
        os.kill(pid, signal.SIGKILL)
    child.process.wait()


@pytest.fixture
def database(tmp_path):
    """Write the pipeline's file, and return the database and a function that lands changes of some of its tables."""
    conf = jar_conf()
    chooses = "spark.jars.packages" in conf
    jars = [] if chooses else [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in conf.items()]
    text = PIPELINE.format(record=RECORD, pattern=PATTERN, choose_packages=json.dumps(chooses), jars="\n".join(jars))
    (tmp_path / "pipeline.toml").write_text(text)
    (tmp_path / "landing").mkdir()
    made = Database(NUM_TABLES)

    def land(numbers):
        place = len(list((tmp_path / "landing").iterdir()))
        records = made.change([made.tables[number] for number in numbers], 3)
        write_file(tmp_path / "landing" / f"{place}.parquet", records, place)

    return made, land


def batches_of(table):
    """Return the micro-batches that the commits of a table record, in order, those that were parked marked."""
    found = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        txns = {txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn"))}
        numbers = [version for name, version in txns.items() if name.count("-") == 4 and "/" not in name]
        is_parked = any(name.endswith("/parked") for name in txns)
        found += [(number, is_parked) for number in numbers]
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.crash
def test_one_broken_table_of_fifty(start_command, database, read_rows, tmp_path):
    made, land = database
    broken = tmp_path / "lake" / made.tables[BROKEN].name
    log, away = broken / "_delta_log", tmp_path / "log"

    def check(tables):
        for table in tables:
            columns = [f"`{name.replace('`', '``')}`" for name in table.columns]
            found = [tuple(row) for row in read_rows(str(tmp_path / "lake" / table.name), *columns)]
            assert sorted(found, key=repr) == sorted(table.rows.values(), key=repr), table.name

    # From an empty folder.
    land(range(NUM_TABLES))
    first = start_command("run", "pipeline.toml", "--once")
    assert first.wait() == 0, first.stderr
    check(made.tables)

    # The log of one table cannot be read. The others go on, and the command is killed while they do.
    log.rename(away)
    log.write_text("no folder")
    for start in (0, 20, 40):
        land({BROKEN, *range(start, start + 10)})
    second = start_command("run", "pipeline.toml")
    second.wait_for(
        f"./lake/{broken.name} failed and goes to rest: its records are parked in ./lake/_parked from batch 1"
    )
    second.wait_for(": batch 2, version")
    kill(second)
    third = start_command("run", "pipeline.toml", "--once")
    assert third.wait() == 4, third.stderr
    assert f"ERROR ./lake/{broken.name}: at rest, 9 records parked since " in third.stderr
    check(table for number, table in enumerate(made.tables) if number != BROKEN)
    status = start_command("status", "--pipeline", "pipeline.toml")
    assert status.wait() == 0, status.stderr
    assert f"./lake/{broken.name}: at rest since " in status.stdout
    assert "To take up a table at rest, mend what its reason says." in status.stdout

    # It is mended, and the command is killed while it catches up.
    log.unlink()
    away.rename(log)
    land({BROKEN, 1})
    fourth = start_command("run", "pipeline.toml")
    fourth.wait_for(f"./lake/{broken.name}: batch 1, version")
    kill(fourth)
    for _ in range(MAX_STARTS):
        # It catches up in micro-batches, for at most some seconds in each.
        land({BROKEN, 2})
        last = start_command("run", "pipeline.toml", "--once")
        if last.wait() == 0:
            break
    assert last.wait() == 0, last.stderr
    check(made.tables)
    batches = batches_of(broken)
    assert [number for number, _ in batches] == list(range(len(list((tmp_path / "landing").iterdir()))))
    assert [number for number, is_parked in batches if is_parked][:3] == [1, 2, 3]
    assert read_rows(str(tmp_path / "lake/_parked")) == []
