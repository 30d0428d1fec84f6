"""The command on a real Kafka: topics that are not there or come later, a broker that is away, records that are dropped."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.pipeline_process import SPARK_CONF, command
from tests.services.kafka import Kafka
from tests.services.processes import Process, Unavailable
from tests.services.spark_packages import kafka_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = 240
"""For the start of the command and a first merge, on a machine that has other things to do."""

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
trigger = "0 seconds"

[source]
format = "kafka"
bootstrap_servers = {bootstrap_servers}
{topics}

[decode]
format = "json"

[[tables]]
source = 're:{prefix}[.](?P<table>\\w+)'
target = "./lake/{{table}}"
keys = ["id"]
columns = "id BIGINT, qty INT"

[spark]
master = "local[2]"

[spark.conf]
{conf}
"""


@pytest.fixture
def prefix(kafka: Kafka) -> Iterator[str]:
    """Return the prefix of the test's topics, which are deleted in the end."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    yield name
    kafka.delete_topics(*[topic for topic in kafka.topics() if topic.startswith(name)])


@pytest.fixture
def write_pipeline(tmp_path: Path, kafka: Kafka, prefix: str) -> Callable[[str], None]:
    """Return a function that writes the pipeline of some topics."""
    try:
        conf = kafka_conf()
    except Unavailable as reason:
        pytest.skip(str(reason))

    def write(topics: str) -> None:
        text = PIPELINE.format(
            bootstrap_servers=json.dumps(kafka.bootstrap_servers),
            topics=topics,
            prefix=prefix,
            conf="\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**SPARK_CONF, **conf}.items()),
        )
        (tmp_path / "pipeline.toml").write_text(text)

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts the command in the test's folder; what still runs in the end is killed."""
    started: list[Process] = []

    def start_command(*arguments: str) -> Process:
        log = tmp_path / f"{len(started)}.log"
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
        process = Process("stream-merge", command(*arguments), log=log, environ=environ, directory=tmp_path)
        started.append(process)
        process.start()
        return process

    yield start_command
    for process in started:
        process.kill()


def printed(process: Process) -> str:
    return process.log.read_text()


def rows(spark: SparkSession, path: Path) -> list[tuple[int, int]]:
    return sorted((row["id"], row["qty"]) for row in spark.read.format("delta").load(str(path)).collect())


def send(kafka: Kafka, topic: str, *changes: tuple[int, int]) -> None:
    kafka.send(topic, [(str(key).encode(), json.dumps({"id": key, "qty": qty}).encode()) for key, qty in changes])


def test_validate_tells_topics_that_are_not_there(kafka: Kafka, prefix: str, write_pipeline, start):
    kafka.create_topic(f"{prefix}.orders")
    write_pipeline(f'topics = ["{prefix}.orders", "{prefix}.items"]')
    named = start("validate", "pipeline.toml")
    assert named.wait(timeout=SECONDS) == 2, printed(named)
    assert printed(named).splitlines() == [
        f"pipeline.toml:9: source.topics[1]: Kafka has no topic {prefix}.items at {kafka.bootstrap_servers}; create it, or "
        "correct its name"
    ]

    write_pipeline(f"topic_pattern = '{prefix}[.]customers.*'")
    matched = start("validate", "pipeline.toml")
    assert matched.wait(timeout=SECONDS) == 2, printed(matched)
    assert printed(matched).splitlines() == [
        f"pipeline.toml:9: source.topic_pattern: no topic matches {prefix}[.]customers.*"
    ]


def test_nothing_is_lost_or_skipped(spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path):
    """A topic comes later, the broker is away for longer than a request waits, and then drops records that nobody has read."""
    write_pipeline(f"topic_pattern = '{prefix}[.].*'")
    orders, items = f"{prefix}.orders", f"{prefix}.items"
    kafka.create_topic(orders)
    send(kafka, orders, (1, 10), (2, 20))
    running = start("run", "pipeline.toml")
    running.wait_until(
        "the first merge", lambda: "./lake/orders: batch 0, version" in printed(running), timeout=SECONDS
    )

    kafka.create_topic(items)
    send(kafka, items, (7, 70))
    running.wait_until("the new topic's table", lambda: "./lake/items: batch" in printed(running), timeout=SECONDS)

    if kafka.server is not None:
        kafka.server.stop()
        time.sleep(20)
        kafka.server.start()
    send(kafka, orders, (2, 21), (3, 30))
    running.wait_until("a merge after it", lambda: printed(running).count("./lake/orders: batch") > 1, timeout=SECONDS)
    assert running.stop(timeout=SECONDS) == 0, printed(running)
    merged = [(1, 10), (2, 21), (3, 30)]
    assert rows(spark, tmp_path / "lake/orders") == merged
    assert rows(spark, tmp_path / "lake/items") == [(7, 70)]

    send(kafka, orders, (4, 40), (5, 50))
    kafka.delete_records(orders, {0: 5})
    send(kafka, orders, (6, 60))
    refused = start("run", "pipeline.toml", "--once")
    assert refused.wait(timeout=SECONDS) == 1, printed(refused)
    last = printed(refused).splitlines()[-1]
    assert "Kafka has dropped records before the pipeline read them" in last
    assert "Traceback" not in printed(refused)
    assert rows(spark, tmp_path / "lake/orders") == merged
