"""What the containers are configured with does its work, on the same parts without containers: from PostgreSQL to Delta
tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge.cli.show.status import read_status
from tests.end_to_end.pipeline_process import SPARK_CONF, command
from tests.services.connect import Connect
from tests.services.containers import Containers, compose_image
from tests.services.fixtures import connect_of
from tests.services.kafka import Kafka
from tests.services.postgres import Database, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "STREAM_MERGE_TEST_WHOLE_WAY" not in os.environ,
        reason="takes two minutes of two cores that do nothing else; STREAM_MERGE_TEST_WHOLE_WAY=1 runs it",
    ),
]

COMPOSE = Path(__file__).parents[2] / "compose"
KEYS = {"customers": ["id"], "orders": ["order_id"], "order_items": ["order_id", "line_no"]}
COLUMNS = {
    "customers": "id, name, email, notes, balance",
    "orders": "order_id, customer_id, status",
    "order_items": "order_id, line_no, sku, quantity, price",
}


@pytest.fixture(scope="module")
def connect(service_logs: Path, containers: Containers, postgres: Postgres, kafka: Kafka) -> Generator[Connect]:
    """Return a Kafka Connect with the version of Debezium that the containers have, which is older than that of the
    other tests."""
    yield from connect_of(
        service_logs, containers, postgres, kafka, debezium=compose_image("connect").rpartition(":")[2]
    )


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """Return the database with the tables and rows of compose/shop.sql."""
    with postgres.database("compose") as created:
        created.execute((COMPOSE / "shop.sql").read_text())
        yield created


@pytest.fixture
def registered(connect: Connect, kafka: Kafka, database: Database, tmp_path: Path) -> Iterator[None]:
    """Register compose/connector.json by the script that the containers run; only the database's address is another."""
    config = json.loads((COMPOSE / "connector.json").read_text())
    address = {name: value for name, value in connect.debezium_config(database, "shop").items() if "database." in name}
    file = tmp_path / "connector.json"
    file.write_text(json.dumps({**config, **address}))
    environ = {**os.environ, "CONNECT_URL": connect.url.rstrip("/"), "CONNECTOR_CONFIG": str(file), "no_proxy": "*"}
    script = ["sh", str(COMPOSE / "register-connector.sh")]
    try:
        done = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"shop.public.{table} is there" for table in KEYS]
        yield
    finally:
        connect.request("DELETE", "/connectors/shop")
        kafka.delete_topics(*[name for name in kafka.topics() if name.startswith("shop.public.")])


@pytest.fixture
def pipeline_file(tmp_path: Path, kafka_source: Mapping[str, str]) -> Path:
    """Return compose/pipeline.toml with a free port, and settings for a process that lives for half a minute."""
    conf = {**SPARK_CONF, **kafka_source}
    text = (COMPOSE / "pipeline.toml").read_text()
    given = '"spark.driver.memory" = "1g"'
    assert text.count(given) == text.count("prometheus_port = 9108") == 1
    text = text.replace(given, "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items()))
    text = text.replace("prometheus_port = 9108", "prometheus_port = 0").replace('"0.0.0.0"', '"127.0.0.1"')
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return file


def run_once(file: Path, kafka: Kafka, data: Path) -> str:
    """Run the pipeline until all that is there is merged, and return what it wrote."""
    environ = {
        **os.environ,
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "DATA_FOLDER": str(data),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        command("run", "--once", file), env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_in(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return sorted(connection.execute(f"SELECT {COLUMNS[table]} FROM {table}").fetchall())


def rows_of(spark: SparkSession, data: Path, table: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(f"{data}/lake/{table}").selectExpr(*COLUMNS[table].split(", "))
    return sorted(tuple(row) for row in frame.collect())


def test_the_parts_of_the_compose_file(
    spark: SparkSession, kafka: Kafka, database: Database, registered: None, pipeline_file: Path, tmp_path: Path
):
    data = tmp_path / "data"
    data.mkdir()
    log = run_once(pipeline_file, kafka, data)
    assert "metrics for Prometheus at http://127.0.0.1:" in log
    for table in KEYS:
        assert rows_of(spark, data, table) == rows_in(database, table), table
    assert [len(rows_in(database, table)) for table in KEYS] == [1000, 2000, 4000]

    database.execute("CALL change_rows(300)", "ALTER TABLE orders ADD COLUMN channel text", "CALL change_rows(50)")
    database.wait_until_read("shop_slot", timeout=60)
    run_once(pipeline_file, kafka, data)
    for table in KEYS:
        assert rows_of(spark, data, table) == rows_in(database, table), table
    status = read_status(spark, f"{data}/lake/orders")
    assert status.files.num_rows == len(rows_in(database, "orders"))
    assert status.window().count("numQuarantinedRows") == 0
    assert status.last.delay is not None
    assert "channel" in spark.read.format("delta").load(f"{data}/lake/orders").columns
