"""PostgreSQL, Debezium, Kafka, `stream-merge run` and Delta tables, under a load, with processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.comparison import column_types, compare, database_rows, delta_rows
from tests.end_to_end.pipeline_process import PipelineProcess, write_pipeline
from tests.end_to_end.shop import ACTIONS, FIRST_TABLES, TABLES, Load, create_shop
from tests.services.connect import Connect
from tests.services.kafka import Kafka
from tests.services.postgres import Database, Postgres
from tests.services.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.skipif(
        "STREAM_MERGE_TEST_WHOLE_WAY" not in os.environ,
        reason="takes five minutes of two cores that do nothing else; STREAM_MERGE_TEST_WHOLE_WAY=1 runs it",
    ),
]

SEED = 20
MIN_TRANSACTIONS = 600
CATCH_UP_SECONDS = 180


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """Return an empty database."""
    with postgres.database("shop") as created:
        yield created


@pytest.fixture
def prefix(kafka: Kafka, database: Database) -> Iterator[str]:
    """Return the prefix of the topics, which is the name of the database; they are deleted in the end."""
    yield database.name
    kafka.delete_topics(*[name for name in kafka.topics() if database.name in name])


@pytest.fixture
def pipeline(tmp_path: Path, kafka: Kafka, kafka_source: Mapping[str, str], prefix: str) -> Iterator[PipelineProcess]:
    """Return the pipeline of all topics with the prefix, not started yet."""
    tables = tmp_path / "tables"
    file = write_pipeline(
        tmp_path, bootstrap_servers=kafka.bootstrap_servers, prefix=prefix, tables=tables, conf=kafka_source
    )
    process = PipelineProcess(file, tables)
    yield process
    process.kill()


def test_every_table_equals_the_database(
    spark: SparkSession,
    kafka: Kafka,
    connect: Connect,
    database: Database,
    prefix: str,
    pipeline: PipelineProcess,
):
    """The pipeline is killed twice and the broker restarted once, all while clients change the database and its
    schema."""
    orders = create_shop(database, seed=SEED, publication=prefix)
    load = Load(database, orders, seed=SEED, pause=0.2)
    with connect.connector(prefix, connect.debezium_config(database, prefix)):
        # A pipeline of which no topic is there refuses to start.
        topics = {f"{prefix}.public.{table}" for table in FIRST_TABLES}
        wait_until("topics of all tables", lambda: topics <= set(kafka.topics()), timeout=CATCH_UP_SECONDS)
        with load.running():
            pipeline.start()
            # Of the first micro-batch, which some tables have then and others have not.
            pipeline.wait_for_merges(3)
            pipeline.kill()
            assert pipeline.process.exit_code == -signal.SIGKILL

            load.change_schema()
            pipeline.start()
            pipeline.wait_for_merges(6)
            if kafka.server is not None:
                kafka.server.stop()
                time.sleep(2)
                kafka.server.start()
            pipeline.wait_for_merges(6)
            # Micro-batches follow each other without a pause, so that a moment like any other is in the midst of one.
            time.sleep(random.Random(SEED).uniform(0, 2))
            pipeline.kill_python()
            assert pipeline.process.exit_code == -signal.SIGKILL
            wait_until("transactions", lambda: load.done.total() >= MIN_TRANSACTIONS, timeout=CATCH_UP_SECONDS)
        database.wait_until_read(prefix, timeout=CATCH_UP_SECONDS)
    assert pipeline.run_once() == 0, pipeline.last_lines()

    check_load(load, kafka, prefix)
    for table in TABLES:
        expected = database_rows(database, table)
        comparison = compare(expected, delta_rows(spark, str(pipeline.tables / table), column_types(database, table)))
        # .ci/run knows by these words that a second try would prove nothing.
        assert comparison.is_equal, f"{table} of {comparison.num_rows} rows differs from the database: {comparison}"
        assert comparison.num_rows > 0, table


def check_load(load: Load, kafka: Kafka, prefix: str) -> None:
    """Check that everything that was to be tried was there to try."""
    assert set(ACTIONS) - set(load.done) == set()
    events = {table: sum(end for _, end in kafka.offsets(f"{prefix}.public.{table}").values()) for table in TABLES}
    assert min(events.values()) > 0, events
    assert sum(events.values()) > 1500, events
