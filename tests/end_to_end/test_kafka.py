"""The command on a real Kafka: topics that are not there or come later, a broker that is away, records that are
dropped."""

from __future__ import annotations

import json
import re
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services.kafka import Kafka
from tests.services.processes import Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = 240
"""For the start of the command and a first merge, on a machine that has other things to do."""


IMPATIENT = """
[source.options]
"kafka.default.api.timeout.ms" = "3000"
"kafka.request.timeout.ms" = "3000"
"""
"""A broker that does not answer ends the query within seconds instead of minutes."""


def printed(process: Process) -> str:
    return process.log.read_text()


def rows(spark: SparkSession, path: Path) -> list[tuple[int, int]]:
    return sorted((row["id"], row["qty"]) for row in spark.read.format("delta").load(str(path)).collect())


def send(kafka: Kafka, topic: str, *changes: tuple[int, int]) -> None:
    kafka.send(topic, [(str(key).encode(), json.dumps({"id": key, "qty": qty}).encode()) for key, qty in changes])


def merged_rows(spark: SparkSession, path: Path) -> list[int]:
    """Return the number of the source's rows of each commit."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()
    return [int(commit["operationMetrics"].get("numSourceRows", 0)) for commit in history]


def scraped(process: Process) -> str:
    """Return the metrics, as Prometheus gets them."""
    address = printed(process).split("metrics for Prometheus at ")[1].split()[0]
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def is_up(process: Process) -> float:
    """Return the gauge `stream_merge_up`."""
    return float(scraped(process).split('\nstream_merge_up{pipeline="shop"} ')[1].split()[0])


def lags(process: Process) -> dict[str, float]:
    """Return how many records each topic has that the pipeline has not merged."""
    found = re.findall(
        r'^stream_merge_offset_lag_records\{pipeline="shop",topic="([^"]*)"\} (\S+)$', scraped(process), re.M
    )
    return {topic: float(number) for topic, number in found}


def failure_of(process: Process) -> str:
    """Return the sentence with which a run ends that fails."""
    assert process.wait(timeout=SECONDS) == 1, printed(process)
    assert "Traceback" not in printed(process)
    return printed(process).splitlines()[-1]


@pytest.mark.long
def test_validate_tells_topics_that_are_not_there(kafka: Kafka, prefix: str, write_pipeline, start):
    kafka.create_topic(f"{prefix}.orders")
    write_pipeline(f'topics = ["{prefix}.orders", "{prefix}.items"]')
    named = start("validate", "pipeline.toml")
    assert named.wait(timeout=SECONDS) == 2, printed(named)
    assert printed(named).splitlines() == [
        f"pipeline.toml:9: source.topics[1]: Kafka has no topic {prefix}.items at {kafka.bootstrap_servers}; create "
        "it, or correct its name"
    ]

    write_pipeline(f"topic_pattern = '{prefix}[.]customers.*'")
    matched = start("validate", "pipeline.toml")
    assert matched.wait(timeout=SECONDS) == 2, printed(matched)
    assert printed(matched).splitlines() == [
        f"pipeline.toml:9: source.topic_pattern: no topic matches {prefix}[.]customers.*"
    ]


def test_nothing_is_lost_or_skipped(spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path):
    """A topic comes later, the broker is away for longer than a request waits, drops records that nobody has read, and
    then has another topic of the same name, with more records than were read of the old one.
    """
    write_pipeline(f"topic_pattern = '{prefix}[.].*'\nmax_offsets_per_trigger = 1\n{IMPATIENT}")
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

    assert is_up(running) == 1
    if kafka.server is not None:
        kafka.server.stop()
        try:
            running.wait_until("a retry", lambda: "Next attempt in 2 seconds" in printed(running), timeout=SECONDS)
            assert is_up(running) == 0
        finally:
            kafka.server.start()
        lines = [line.split(" ", 2)[2] for line in printed(running).splitlines()]
        assert f"WARNING no Kafka broker answers at {kafka.bootstrap_servers}; still trying" in lines
        failures = [line for line in lines if line.startswith("WARNING Kafka does not answer: ")]
        assert [line.rsplit(". ", 1)[1] for line in failures[:2]] == [
            "Next attempt in 1 seconds.",
            "Next attempt in 2 seconds.",
        ]
    seen: list[float] = []

    def has_caught_up() -> bool:
        seen.append(lags(running)[orders])
        return max(seen) > 0 and lags(running) == {orders: 0, items: 0}

    send(kafka, orders, (2, 21), (3, 30), (3, 31), (3, 32))
    running.wait_until("a merge of all of them, one by one", has_caught_up, timeout=SECONDS)
    assert set(seen) <= {0, 1, 2, 3}
    # The query tells of a micro-batch after its merge.
    running.wait_until("the gauge", lambda: is_up(running) == 1, timeout=SECONDS)
    assert running.stop(timeout=SECONDS) == 0, printed(running)
    merged = [(1, 10), (2, 21), (3, 32)]
    assert rows(spark, tmp_path / "lake/orders") == merged
    assert rows(spark, tmp_path / "lake/items") == [(7, 70)]
    # Each record once: a change that is merged twice leaves the same rows.
    assert sum(merged_rows(spark, tmp_path / "lake/orders")) == 6
    assert sum(merged_rows(spark, tmp_path / "lake/items")) == 1

    send(kafka, orders, (4, 40), (5, 50))
    kafka.delete_records(orders, {0: 7})
    send(kafka, orders, (6, 60))
    sentence = failure_of(start("run", "pipeline.toml", "--once"))
    assert "Kafka has dropped records before the pipeline read them" in sentence
    assert f"{orders}-0" in sentence

    kafka.make_anew(orders)
    send(kafka, orders, *((number, 100) for number in range(20)))
    sentence = failure_of(start("run", "pipeline.toml", "--once"))
    assert sentence.startswith(f"The topic {orders} was deleted and recreated since this checkpoint read it")
    assert rows(spark, tmp_path / "lake/orders") == merged


@pytest.mark.long
def test_a_topic_that_no_table_takes(spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path):
    """It ends the pipeline before anything is merged; where the file says so, its rows are left out with a warning."""
    orders, visits = f"{prefix}.orders", f"{prefix}-visits"
    for topic in (orders, visits):
        kafka.create_topic(topic)
        send(kafka, topic, (1, 10), (2, 20))
    write_pipeline(f"topic_pattern = '{prefix}.*'")
    assert failure_of(start("run", "pipeline.toml", "--once")) == (
        f"No table takes '{visits}' (2 row(s)), so nothing of this micro-batch was merged: add a [[tables]] with this "
        "source, or "
        'set unknown = "ignore" in [pipeline].'
    )
    assert not (tmp_path / "lake").exists()

    write_pipeline(f"topic_pattern = '{prefix}.*'", pipeline='unknown = "ignore"')
    ignoring = start("run", "pipeline.toml", "--once")
    assert ignoring.wait(timeout=SECONDS) == 0, printed(ignoring)
    warnings = [line.split(" ", 2)[2] for line in printed(ignoring).splitlines() if "WARNING" in line]
    assert warnings == [f"WARNING router: batch 0: no sink for '{visits}' (2 row(s)); their rows were dropped"]
    assert rows(spark, tmp_path / "lake/orders") == [(1, 10), (2, 20)]
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["orders"]


@pytest.mark.long
def test_quarantined_records_are_read_again(
    spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path
):
    """By topic, partition and offset; those that Kafka has dropped stay in the quarantine."""
    topic = f"{prefix}.orders"
    kafka.create_topic(topic)
    options = 'sequence_by = "qty"\nquarantine = "./lake/rejected"\n'
    write_pipeline(f"topic_pattern = '{prefix}[.].*'", table=f'{options}expect = {{ few = "qty < 10" }}')
    send(kafka, topic, (1, 5), (1, 11), (2, 3), (2, 12), (3, 13))
    running = start("run", "pipeline.toml", "--once")
    assert running.wait(timeout=SECONDS) == 0, printed(running)
    assert rows(spark, tmp_path / "lake/orders") == [(1, 5), (2, 3)]

    write_pipeline(f"topic_pattern = '{prefix}[.].*'", table=options)
    kafka.delete_records(topic, {0: 2})
    replayed = start("quarantine", "replay", "pipeline.toml")
    assert replayed.wait(timeout=SECONDS) == 0, printed(replayed)
    assert printed(replayed).splitlines()[-1] == (
        "./lake/orders: 3 rows in ./lake/rejected; 2 records were read again: 1 inserted, 1 updated, 0 deleted, "
        "0 set aside again; the source has 1 records no more, and their rows stay."
    )
    assert rows(spark, tmp_path / "lake/orders") == [(1, 5), (2, 12), (3, 13)]
    rejected = spark.read.format("delta").load(str(tmp_path / "lake/rejected"))
    assert [row["offset"] for row in rejected.collect()] == [1]


@pytest.mark.long
def test_micro_batches_of_a_backlog_grow(
    spark: SparkSession, kafka: Kafka, prefix: str, write_pipeline, start, tmp_path
):
    """No micro-batch takes as long as the interval, so each may have twice as many records as the one before."""
    topic = f"{prefix}.orders"
    kafka.create_topic(topic)
    num_records = 420_000
    send(kafka, topic, *((number % 1_000, number) for number in range(num_records)))
    write_pipeline(f'topics = ["{topic}"]', table='sequence_by = "qty"')
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace('trigger = "0 seconds"', 'trigger = "1 hour"'))
    running = start("run", "pipeline.toml", "--once")
    assert running.wait(timeout=2 * SECONDS) == 0, printed(running)
    assert rows(spark, tmp_path / "lake/orders") == [(key, num_records - 1_000 + key) for key in range(1_000)]
    assert "micro-batches have at most 100,000 records from now on" in printed(running)
    logs = sorted((tmp_path / "checkpoint/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = [json.loads(log.read_text().splitlines()[-1])[topic]["0"] for log in logs]
    read = [end - start for start, end in pairwise([0, *ends])]
    assert read[0] == 50_000
    assert sorted(read[:-1]) == read[:-1]
    assert set(read[:-1]) in ({50_000, 100_000}, {50_000, 100_000, 200_000})
    assert ends[-1] == num_records
