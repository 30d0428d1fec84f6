"""ALTER TABLE on a PostgreSQL while Debezium, Kafka and `stream-merge run` run, which is killed with -9 on the way."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.pipeline_process import SPARK_CONF, PipelineProcess
from tests.services.connect import Connect
from tests.services.kafka import Kafka
from tests.services.postgres import Database, Postgres
from tests.services.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.long]

CATCH_UP_SECONDS = 180
TABLES = ("followed", "divided")
NUM_ROWS = 20

PIPELINE = """\
[pipeline]
name = "columns"
checkpoint = {checkpoint}
trigger = "0 seconds"

[source]
format = "kafka"
bootstrap_servers = {servers}
topics = ["{prefix}.public.followed", "{prefix}.public.divided"]
max_offsets_per_trigger = 2000

[decode]
format = "debezium"

[[tables]]
source = "{prefix}.public.followed"
target = "{folder}/tables/followed"

[[tables]]
source = "{prefix}.public.divided"
target = "{folder}/tables/divided"
schema_changes = "lenient"

[spark]
master = "local[2]"

[spark.conf]
{conf}
"""

COLUMNS = "id int PRIMARY KEY, n int, d numeric(8, 2), f real, day date, gone text, old_name text, v int NOT NULL"
ALTERATIONS = (
    "ALTER TABLE {table} ADD COLUMN added timestamp, ADD COLUMN tags text[]",
    "ALTER TABLE {table} ALTER n TYPE bigint, ALTER f TYPE float8",
    "ALTER TABLE {table} DROP COLUMN gone",
    "ALTER TABLE {table} ALTER d TYPE numeric(12, 4), ALTER day TYPE timestamp",
    "ALTER TABLE {table} RENAME COLUMN old_name TO new_name",
    "ALTER TABLE {table} ALTER id TYPE bigint",
)
DIVISION = "ALTER TABLE divided ALTER v TYPE text USING v::text, ALTER v DROP NOT NULL"
"""To a type that does not widen: it goes to a column of its own."""
AT_LAST = (
    "UPDATE {table} SET n = 1099511627776, f = 0.1, d = 12345678.1234, day = '2026-01-02 03:04:05', new_name = 'new', "
    "added = '2026-01-02 03:04:05.678', tags = '{{a,b}}' WHERE id < 5",
    "INSERT INTO {table} (id, n, v, new_name) VALUES (1099511627776, 1, {v}, 'big')",
    "DELETE FROM {table} WHERE id = 5",
)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """Return a database of both tables, with rows and a publication."""
    with postgres.database("columns") as created:
        for table in TABLES:
            created.execute(
                f"CREATE TABLE {table} ({COLUMNS})",
                f"INSERT INTO {table} SELECT i, i, i + 0.25, i, '2020-01-01', 'gone', 'old', i "
                f"FROM generate_series(1, {NUM_ROWS}) AS i",
            )
        created.execute(f'CREATE PUBLICATION "{created.name}" FOR ALL TABLES')
        yield created


@pytest.fixture
def prefix(kafka: Kafka, database: Database) -> Iterator[str]:
    """Return the prefix of the topics, which is the name of the database; they are deleted in the end."""
    yield database.name
    kafka.delete_topics(*[name for name in kafka.topics() if database.name in name])


@pytest.fixture
def pipeline(tmp_path: Path, kafka: Kafka, kafka_source: Mapping[str, str], prefix: str) -> Iterator[PipelineProcess]:
    """Return the pipeline, not started yet."""
    file = tmp_path / "pipeline.toml"
    file.write_text(
        PIPELINE.format(
            checkpoint=json.dumps(str(tmp_path / "checkpoint")),
            servers=json.dumps(kafka.bootstrap_servers),
            prefix=prefix,
            folder=tmp_path,
            conf="\n".join(
                f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**SPARK_CONF, **kafka_source}.items()
            ),
        )
    )
    process = PipelineProcess(file, tmp_path / "tables")
    yield process
    process.kill()


@contextmanager
def changes(database: Database) -> Iterator[None]:
    """Update, insert and delete rows of both tables during the block, in columns that no ALTER TABLE touches."""
    is_over, drawn, faults = threading.Event(), random.Random(1), []

    def run() -> None:
        try:
            with database.connect() as connection:
                while not is_over.is_set():
                    for table in TABLES:
                        key = drawn.randrange(1, NUM_ROWS + 1)
                        connection.execute(f"UPDATE {table} SET n = n + 1 WHERE id = {key}")
                        if drawn.random() < 0.2:
                            connection.execute(f"DELETE FROM {table} WHERE id = {key} AND id > 5")
                        else:
                            added = f"INSERT INTO {table} (id, n, v) VALUES ({key}, 0, '7') ON CONFLICT DO NOTHING"
                            connection.execute(added)
                    time.sleep(0.2)
        except Exception as fault:
            faults.append(fault)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert not faults


def test_tables_follow_a_database_whose_columns_change(
    spark: SparkSession, kafka: Kafka, connect: Connect, database: Database, prefix: str, pipeline: PipelineProcess
) -> None:
    with connect.connector(prefix, connect.debezium_config(database, prefix)):
        topics = {f"{prefix}.public.{table}" for table in TABLES}
        wait_until("topics of all tables", lambda: topics <= set(kafka.topics()), timeout=CATCH_UP_SECONDS)
        with changes(database):
            pipeline.start()
            pipeline.wait_for_merges(2)
            for number, alteration in enumerate(ALTERATIONS):
                database.execute(*[alteration.format(table=table) for table in TABLES])
                if number == len(ALTERATIONS) // 2:
                    database.execute(DIVISION)
                # Of a micro-batch that needs the change, or the one after it.
                pipeline.wait_for_merges(1)
                if number % 2 == 0:
                    pipeline.kill()
                    pipeline.start()
            pipeline.wait_for_merges(2)
        for table in TABLES:
            value = "'text'" if table == "divided" else "7"
            database.execute(*[statement.format(table=table, v=value) for statement in AT_LAST])
        database.execute("UPDATE divided SET v = NULL WHERE id = 4")
        database.wait_until_read(prefix, timeout=CATCH_UP_SECONDS)
    pipeline.kill()
    assert pipeline.run_once() == 0, pipeline.last_lines()

    for table in TABLES:
        frame = spark.read.format("delta").load(str(pipeline.tables / table))
        types = {each.name: each.dataType.simpleString() for each in frame.schema if not each.name.startswith("_")}
        divided = {"v__string": "string"} if table == "divided" else {}
        assert types == {
            "id": "bigint", "n": "bigint", "d": "decimal(12,4)", "f": "double", "day": "timestamp_ntz",
            "gone": "string", "old_name": "string", "v": "int", "added": "timestamp_ntz", "tags": "array<string>",
            "new_name": "string", **divided,
        }, table  # fmt: skip
        assert found_rows(frame, is_divided=bool(divided)) == expected_rows(database, table), table
        dropped = {(row["gone"], row["old_name"]) for row in frame.where("id < 5 OR id > 100").collect()}
        assert dropped == {(None, None)}


def expected_rows(database: Database, table: str) -> dict[int, Any]:
    """Return the database's rows by their keys."""
    columns = "id, n, d, f, day, added, tags, new_name, v::text"
    with database.connect() as connection:
        rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    return {row[0]: tuple(row[1:]) for row in rows}


def found_rows(frame: Any, *, is_divided: bool) -> dict[int, Any]:
    """Return the rows of a table of the lake by their keys."""
    found = {}
    for row in frame.collect():
        value = row["v__string"] if is_divided and row["v__string"] is not None else row["v"]
        # Rows that have not changed since a column was renamed have their value under the old name.
        name = row["old_name"] if row["new_name"] is None else row["new_name"]
        columns = ("n", "d", "f", "day", "added", "tags")
        found[row["id"]] = (*(row[column] for column in columns), name, None if value is None else str(value))
    return found
