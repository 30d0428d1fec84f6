"""PostgreSQL, Debezium with its CloudEventsConverter, Kafka, `stream-merge run` and Delta tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.comparison import assert_equal_tables
from tests.end_to_end.pipeline_process import PipelineProcess, write_pipeline
from tests.end_to_end.shop import ACTIONS, TABLES, Load, create_shop
from tests.services.connect import Connect
from tests.services.kafka import Kafka
from tests.services.postgres import Postgres
from tests.services.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long]

SEED = 22
SECONDS = 180


def test_tables_equal_the_database(
    spark: SparkSession,
    postgres: Postgres,
    kafka: Kafka,
    kafka_source: Mapping[str, str],
    connect: Connect,
    tmp_path: Path,
):
    """Clients change the database and its schema; the pipeline's file does not tell what the converter is."""
    with postgres.database("events") as database:
        prefix = database.name
        load = Load(database, create_shop(database, seed=SEED, publication=prefix), seed=SEED, pause=0.05)
        config = connect.debezium_config(database, prefix) | {
            "value.converter": "io.debezium.converters.CloudEventsConverter",
            "value.converter.json.schemas.enable": "true",
        }
        del config["value.converter.schemas.enable"]
        with connect.connector(prefix, config):
            with load.running():
                wait_until("transactions", lambda: load.done.total() >= 150, timeout=SECONDS)
                load.change_schema()
                wait_until("more", lambda: load.done.total() >= 300 and set(ACTIONS) <= set(load.done), timeout=SECONDS)
            database.wait_until_read(prefix, timeout=SECONDS)
        values = [record.value for record in kafka.read(f"{prefix}.public.customers") if record.value is not None]
        assert {json.loads(value)["specversion"] for value in values} == {"1.0"}
        tables = tmp_path / "tables"
        file = write_pipeline(
            tmp_path, bootstrap_servers=kafka.bootstrap_servers, prefix=prefix, tables=tables, conf=kafka_source
        )
        pipeline = PipelineProcess(file, tables)
        assert pipeline.run_once() == 0, pipeline.last_lines()
        kafka.delete_topics(*[name for name in kafka.topics() if prefix in name])
        assert_equal_tables(spark, database, tables, TABLES)
