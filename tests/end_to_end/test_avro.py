"""PostgreSQL, Debezium with Apicurio's Avro converter, its registry, Kafka, `stream-merge run` and Delta tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.comparison import assert_equal_tables
from tests.end_to_end.pipeline_process import PipelineProcess, write_pipeline
from tests.end_to_end.shop import ACTIONS, TABLES, Load, create_shop
from tests.services.connect import Connect, LocalConnect
from tests.services.kafka import Kafka
from tests.services.postgres import Postgres
from tests.services.processes import Unavailable, wait_until
from tests.services.registry import LocalRegistry, converter_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.every_case]

SEED = 21
SECONDS = 180


@pytest.fixture(scope="module")
def registry(service_logs: Path) -> Iterator[LocalRegistry]:
    try:
        server = LocalRegistry(log=service_logs / "registry.log")
    except Unavailable as reason:
        pytest.skip(f"no schema registry: {reason}")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def avro_connect(service_logs: Path, kafka: Kafka) -> Iterator[Connect]:
    try:
        server = LocalConnect(kafka, log=service_logs / "connect-avro.log", plugins=[converter_jars()])
    except Unavailable as reason:
        pytest.skip(f"no Kafka Connect with an Avro converter: {reason}")
    try:
        server.start()
        yield server.connect()
    finally:
        server.close()


@pytest.mark.parametrize("has_headers", [True, False])
def test_tables_equal_the_database(
    spark: SparkSession,
    postgres: Postgres,
    kafka: Kafka,
    kafka_source: Mapping[str, str],
    registry: LocalRegistry,
    avro_connect: Connect,
    tmp_path: Path,
    has_headers: bool,
):
    """Clients change the database and its schema. The converter writes ids into headers, or as Confluent's does."""
    with postgres.database("avro") as database:
        prefix = database.name
        load = Load(database, create_shop(database, seed=SEED, publication=prefix), seed=SEED, pause=0.05)
        config = avro_connect.debezium_config(database, prefix) | registry.converter_config()
        for part in ("key", "value"):
            config[f"{part}.converter.apicurio.registry.headers.enabled"] = str(has_headers).lower()
            config[f"{part}.converter.apicurio.registry.as-confluent"] = str(not has_headers).lower()
        with avro_connect.connector(prefix, config):
            with load.running():
                wait_until("transactions", lambda: load.done.total() >= 150, timeout=SECONDS)
                load.change_schema()
                wait_until("more", lambda: load.done.total() >= 300 and set(ACTIONS) <= set(load.done), timeout=SECONDS)
            database.wait_until_read(prefix, timeout=SECONDS)
        sent = kafka.read(f"{prefix}.public.customers")
        values = [record for record in sent if record.value is not None]
        assert {"apicurio.value.contentId" in dict(record.headers) for record in values} == {has_headers}
        assert has_headers or {record.value[:4] for record in values} == {b"\0" * 4}
        tables = tmp_path / "tables"
        file = write_pipeline(
            tmp_path,
            bootstrap_servers=kafka.bootstrap_servers,
            prefix=prefix,
            tables=tables,
            conf=kafka_source,
            registry={"url": registry.url},
        )
        pipeline = PipelineProcess(file, tables)
        assert pipeline.run_once() == 0, pipeline.last_lines()
        kafka.delete_topics(*[name for name in kafka.topics() if prefix in name])
        assert_equal_tables(spark, database, tables, TABLES)
