"""After a run with secrets none of their values is anywhere: tables, checkpoint, output, Spark's UI."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.services.kafka import Kafka
from tests.services.processes import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = 240
SECRETS = {
    "KAFKA_PASSWORD": 'k4fka/p\\ss "word"',
    "TRUSTSTORE_PASSWORD": "tr0st-p4ssword",
    "S3_SECRET": "wJalrXUtnFEMI/K7MDENG",
    "WEBHOOK": "hook-0a1b2c3d",
}
OPTIONS = """
quarantine = "./rejected/{table}"
"""
SOURCE = """
[source.options]
"kafka.sasl.mechanism" = "PLAIN"
"kafka.sasl.jaas.config" = '''org.apache.kafka.common.security.plain.PlainLoginModule required
  username="shop" password="${KAFKA_PASSWORD}";'''
"kafka.ssl.truststore.password" = "${TRUSTSTORE_PASSWORD}"
"""
"""The broker of the tests asks for no login, so that these are handed to its client and not used."""


def pages(port: int) -> Iterator[tuple[str, str]]:
    """Iterate over what Spark's UI tells of the only application, as pages and as JSON."""

    def read(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.read().decode()

    applications = read("/api/v1/applications")
    yield "applications", applications
    [application] = json.loads(applications)
    root = f"/api/v1/applications/{application['id']}"
    for path in (
        *("/environment/", "/jobs/", "/stages/", "/storage/", "/executors/", "/SQL/", "/StreamingQuery/"),
        *(f"{root}/{part}" for part in ("environment", "jobs", "stages", "executors", "sql?details=true&length=1000")),
    ):
        yield path, read(path)


def forms(secret: str) -> set[str]:
    """Return a secret as texts, JSON and addresses may have it."""
    return {secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1], quote(secret, safe="")}


def found(text: str) -> list[str]:
    return [name for name, value in SECRETS.items() if any(form in text for form in forms(value))]


def test_no_secret_is_left_anywhere(
    spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path: Path
):
    orders = f"{prefix}.orders"
    kafka.create_topic(orders)
    kafka.send(orders, [(b"1", b'{"id": 1, "qty": 10}'), (b"2", b'{"id": "x"}')])
    write_pipeline(f'topics = ["{orders}"]\n{SOURCE}', table=OPTIONS)
    [port] = free_ports(1)
    file = tmp_path / "pipeline.toml"
    settings = f"""\
"spark.ui.enabled" = true
"spark.ui.port" = {port}
"spark.hadoop.fs.s3a.secret.key" = "${{S3_SECRET}}"
"spark.webhook" = "https://example.org/${{WEBHOOK}}"
"""
    text = file.read_text()
    assert text.count('"spark.ui.enabled" = "false"\n') == 1
    file.write_text(text.replace('"spark.ui.enabled" = "false"\n', settings))
    assert (found(file.read_text()), found(json.dumps(SECRETS))) == ([], list(SECRETS))

    running = start("run", "--log-level", "debug", "pipeline.toml", environ=SECRETS)
    running.wait_until("a merge", lambda: "./lake/orders: batch 0, version" in running.log.read_text(), timeout=SECONDS)
    shown = dict(pages(port))
    assert running.stop(signal.SIGTERM, timeout=SECONDS) == 0, running.log.read_text()

    environment = dict(
        json.loads(next(text for path, text in shown.items() if path.endswith("/environment")))["sparkProperties"]
    )
    assert environment["spark.webhook"] == environment["spark.hadoop.fs.s3a.secret.key"] == "*********(redacted)"
    assert environment["spark.sql.shuffle.partitions"] == "2"
    assert {path: names for path, text in shown.items() if (names := found(text))} == {}

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    folders = {path.relative_to(tmp_path).parts[0] for path in files}
    assert {"lake", "rejected", "checkpoint", "pipeline.toml", running.log.name} <= folders
    assert {str(path): names for path in files if (names := found(path.read_bytes().decode("latin-1")))} == {}
    # Files of data are compressed.
    [row] = spark.read.format("delta").load(f"{tmp_path}/lake/orders").collect()
    [rejected] = spark.read.format("delta").load(f"{tmp_path}/rejected/orders").collect()
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/lake/orders`").collect()
    assert (row["id"], row["qty"], rejected["value"]) == (1, 10, '{"id": "x"}')
    assert found(f"{row} {rejected} {history}") == []
