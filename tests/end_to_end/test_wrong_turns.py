"""What `stream-merge run` says on a real Kafka when something that it needs is not there: a sentence, and the exit
code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.services.kafka import Kafka, LocalKafka
from tests.services.processes import Process, Unavailable, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2)]

SECONDS = 240
STARTED = "INFO starting pipeline shop from pipeline.toml"


def said(process: Process, exit_code: int) -> list[str]:
    """Return what a command has said that ended with this exit code, line by line and without the time."""
    ended = process.wait(timeout=SECONDS)
    text = process.log.read_text()
    assert ended == exit_code, text
    lines = [line.split(" ", 2)[2] if line[:2] == "20" else line for line in text.splitlines()]
    return [line for line in lines if "metrics for Prometheus" not in line]


@pytest.fixture
def orders(kafka: Kafka, prefix: str) -> str:
    """Return a topic with a record."""
    topic = f"{prefix}.orders"
    kafka.create_topic(topic)
    kafka.send(topic, [(b"1", json.dumps({"id": 1, "qty": 10}).encode())])
    return topic


def test_a_topic_that_does_not_exist(kafka: Kafka, orders: str, prefix: str, write_pipeline, start, tmp_path: Path):
    write_pipeline(f'topics = ["{orders}", "{prefix}.items", "{prefix}.lines"]')
    assert said(start("run", "--once", "pipeline.toml"), 3) == [
        STARTED,
        f"Kafka has no topic {prefix}.items, {prefix}.lines at {kafka.bootstrap_servers}: create it, or correct "
        "topics in [source].",
    ]
    assert not (tmp_path / "lake").exists()


def test_a_pattern_that_matches_no_topic(kafka: Kafka, prefix: str, write_pipeline, start):
    write_pipeline(f"topic_pattern = '{prefix}[.]customers.*'")
    assert said(start("run", "--once", "pipeline.toml"), 0) == [
        STARTED,
        f"WARNING no topic at {kafka.bootstrap_servers} matches {prefix}[.]customers.*, so there is nothing to merge; "
        "create one, or correct topic_pattern in [source]",
        "INFO ended: everything available is merged",
    ]


def test_a_pattern_that_matches_a_topic_later(kafka: Kafka, prefix: str, write_pipeline, start):
    write_pipeline(f'topic_pattern = \'{prefix}[.].*\'\n[source.options]\n"kafka.metadata.max.age.ms" = "1000"')
    waiting = start("run", "pipeline.toml")
    waiting.wait_until("the warning", lambda: "WARNING no topic at" in waiting.log.read_text(), timeout=SECONDS)
    kafka.create_topic(f"{prefix}.orders")
    kafka.send(f"{prefix}.orders", [(b"1", b'{"id": 1, "qty": 10}')])
    waiting.wait_until("a merge", lambda: "./lake/orders: batch" in waiting.log.read_text(), timeout=SECONDS)
    waiting.stop(timeout=SECONDS)
    lines = said(waiting, 0)
    assert len([line for line in lines if "WARNING no topic" in line]) == 1
    assert lines[-1] == "INFO ended: stopped by a signal"


@pytest.mark.parametrize(
    ("settings", "exit_code", "sentence"),
    [
        pytest.param(
            {"table": "create_if_missing = false"},
            3,
            "./lake/orders is not a Delta table. Create it first, or set create_if_missing = true for this table.",
            id="a table that is not to be created",
        ),
        pytest.param(
            {"key": "number"},
            2,
            "./lake/orders: keys names number, and the source has no such column. Name some of those that it has: id, "
            "qty.",
            id="a key that is no column",
        ),
    ],
)
def test_what_the_first_rows_show(orders: str, write_pipeline, start, tmp_path: Path, settings, exit_code, sentence):
    write_pipeline(f'topics = ["{orders}"]', **settings)
    assert said(start("run", "--once", "pipeline.toml"), exit_code) == [
        STARTED,
        sentence,
    ]
    assert not (tmp_path / "lake").exists()


def test_a_broker_that_is_not_there(orders: str, write_pipeline, start):
    [port] = free_ports(1)
    write_pipeline(f'topics = ["{orders}"]', servers=f"127.0.0.1:{port}")
    assert said(start("run", "--once", "pipeline.toml"), 3) == [
        f"No Kafka broker answers at 127.0.0.1:{port} (Connection refused): start it, or correct bootstrap_servers in "
        "[source]."
    ]


def test_a_broker_that_sends_its_clients_elsewhere(prefix: str, write_pipeline, start, tmp_path: Path):
    """Its port is open, and the name that it advertises is not known here, as that of a container is not."""
    try:
        server = LocalKafka(log=tmp_path / "kafka.log", advertised="nowhere.invalid:9092")
    except Unavailable as reason:
        pytest.skip(str(reason))
    server.start()
    try:
        write_pipeline(f'topics = ["{prefix}.orders"]', servers=f"127.0.0.1:{server.port}")
        waiting = start("run", "pipeline.toml")
        waiting.wait_until("the warning", lambda: "WARNING" in waiting.log.read_text(), timeout=SECONDS)
        # It would stop when Kafka's client has given up, after a minute.
        waiting.kill()
    finally:
        server.close()
    [warning] = [line.split(" ", 2)[2] for line in waiting.log.read_text().splitlines() if "WARNING" in line]
    assert warning == (
        "WARNING the Kafka broker advertises the address nowhere.invalid:9092, which this machine cannot resolve; "
        "still trying. Correct its advertised.listeners, or make the name known here"
    )
