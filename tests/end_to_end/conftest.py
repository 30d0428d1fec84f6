"""Fixtures of the services (tests/services/fixtures.py), and of the command on topics of JSON objects."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.end_to_end.pipeline_process import SPARK_CONF, command
from tests.services.kafka import Kafka
from tests.services.processes import Process

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
trigger = "0 seconds"
{pipeline}
[source]
format = "kafka"
bootstrap_servers = {bootstrap_servers}
{topics}

[decode]
format = "json"

[[tables]]
source = 're:{prefix}[.](?P<table>\\w+)'
target = "./lake/{{table}}"
keys = [{key}]
columns = "id BIGINT, qty INT"
{table}

[spark]
master = "local[2]"

[spark.conf]
{conf}

[metrics]
prometheus_port = 0
"""


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures once for all folders that ask for them, so that each service is there once in a test
    run."""
    config.pluginmanager.import_plugin("tests.services.fixtures")


@pytest.fixture
def prefix(kafka: Kafka) -> Iterator[str]:
    """Return the prefix of the test's topics, which are deleted in the end."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    yield name
    kafka.delete_topics(*[topic for topic in kafka.topics() if topic.startswith(name)])


@pytest.fixture
def write_pipeline(tmp_path: Path, kafka: Kafka, kafka_source: Mapping[str, str], prefix: str) -> Callable[..., None]:
    """Return a function that writes the pipeline of some topics."""

    def write(topics: str, *, key: str = "id", table: str = "", pipeline: str = "", servers: str = "") -> None:
        text = PIPELINE.format(
            bootstrap_servers=json.dumps(servers or kafka.bootstrap_servers),
            topics=topics,
            prefix=prefix,
            key=json.dumps(key),
            table=table,
            pipeline=pipeline,
            conf="\n".join(
                f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**SPARK_CONF, **kafka_source}.items()
            ),
        )
        (tmp_path / "pipeline.toml").write_text(text)

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts the command in the test's folder; what still runs in the end is killed."""
    started: list[Process] = []

    def start_command(
        *arguments: str, directory: Path = tmp_path, environ: Mapping[str, str] = MappingProxyType({})
    ) -> Process:
        log = tmp_path / f"{len(started)}.log"
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1", **environ}
        process = Process("stream-merge", command(*arguments), log=log, environ=environ, directory=directory)
        started.append(process)
        process.start()
        return process

    yield start_command
    for process in started:
        process.kill()
