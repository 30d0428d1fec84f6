"""`stream-merge diff` as users run it, against a PostgreSQL of all types whose log a sink has merged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_merge import debezium, merge_sink
from tests.debezium.captures import EVENT_SCHEMA
from tests.debezium.postgres_tables import CAPTURE, SETUP, create, odd_tables, quoted
from tests.debezium.test_odd_tables import decode
from tests.end_to_end.compared import compare, write_compared
from tests.services.postgres import Database, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.slow]

TABLES = ("zoo", "k_numeric", "k_float", "k_text", "k_bytea", "k_stamps", "k_enum", "k_bool_big", "CamelCase", "pairs")
ODD = "q`uo\"te's"
PASSWORD = "hush-hush-42"


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """Return an empty database."""
    with postgres.database("odd") as created:
        yield created


def run(database: Database, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    postgres = database.postgres
    # The tests' own server takes any.
    password = PASSWORD if postgres.server is not None else postgres.password
    url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/{database.name}"
    return compare(folder, "--jdbc", url, "--user", postgres.user, *arguments, password=password)


def test_tables_of_all_types_equal_the_database(spark: SparkSession, database: Database, tmp_path: Path):
    database.execute(*SETUP)
    events = spark.read.schema(EVENT_SCHEMA).json(str(CAPTURE / "events.jsonl.gz")).persist()
    topics = {topic: table for topic, table in odd_tables().items() if table["table"] in (*TABLES, ODD)}
    properties = {"delta.columnMapping.mode": "name"}
    for topic, table in topics.items():
        create(database, table)
        options = {"keys": table["key"], **debezium.MERGE_OPTIONS} if table["key"] else debezium.KEYLESS_MERGE_OPTIONS
        path = str(tmp_path / "lake" / topic.rpartition(".")[2])
        sink = merge_sink(path, create_if_missing=True, table_properties=properties, **options)
        sink.merge(decode(events, "odd", topic).persist())
    events.unpersist()
    named = [topic for topic, table in topics.items() if table["table"] != ODD]
    write_compared(tmp_path, topics=named, source=r"re:odd\.public\.(?P<table>\w+)")
    done = run(database, tmp_path, "--pipeline", "pipeline.toml", "--wait", "0")
    lines = done.stdout.splitlines()
    assert (done.returncode, [line for line in lines if ": different" in line]) == (0, []), done.stdout + done.stderr
    assert len([line for line in lines if ": equal" in line]) == len(TABLES)
    # What the decoded values do not show is told, and nothing else.
    assert sorted(line.split()[2] for line in lines if line.startswith("  not compared, ")) == ["hs", "only", "p"]
    assert PASSWORD not in done.stdout + done.stderr

    [odd] = [topic for topic, table in topics.items() if table["table"] == ODD]
    table = topics[odd]
    column = next(
        name for name, declared in table["columns"].items() if name not in table["key"] and declared == "text"
    )
    name = quoted(ODD)
    database.execute(f"UPDATE {name} SET {quoted(column)} = E'changed \\x1b[31m'")
    path = f"./lake/{odd.rpartition('.')[2]}"
    done = run(database, tmp_path, path, "--table", f"public.{name}", "--wait", "1", "--sample", "1")
    assert done.returncode == 5, done.stdout + done.stderr
    assert '"changed \\x1b[31m" in the database' in done.stdout
    assert "\x1b[31m" not in done.stdout
