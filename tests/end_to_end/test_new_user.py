"""The way of a new user as docs/command-line.md tells it, each step a process, on a real Kafka with what Debezium has
written."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.debezium.captures import CAPTURES, SHOP, canonical_rows, read_expected
from tests.end_to_end.pipeline_process import SPARK_CONF
from tests.services.kafka import Kafka
from tests.services.processes import Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = 240
CAPTURE = CAPTURES / "small-schema"
PAGE = (Path(__file__).parents[2] / "docs/command-line.md").read_text()


def commands_of_the_page() -> list[str]:
    """Return the commands between an empty folder and the first look at a table."""
    return re.findall(r"^stream-merge (.*)$", PAGE.split("## From an empty folder")[1].split("\n## ")[0], re.M)


def customers() -> list[dict[str, Any]]:
    """Return the records of a table as Debezium wrote them; towards the end it gets a column `phone`."""
    with gzip.open(CAPTURE / "events.jsonl.gz", "rt", encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    return [event for event in events if event["topic"].endswith(".customers")]


def send(kafka: Kafka, topic: str, events: list[dict[str, Any]]) -> None:
    kafka.send(topic, [tuple(e[part] and e[part].encode() for part in ("key", "value")) for e in events])


def rows(spark: SparkSession, path: Path) -> Counter[str]:
    frame = spark.read.format("delta").load(str(path))
    own = [name for name in frame.columns if name.startswith("_stream_merge_")]
    return canonical_rows((row.asDict() for row in frame.drop(*own).collect()), **SHOP)


@pytest.fixture
def topic(kafka: Kafka, prefix: str) -> str:
    """Return an empty topic, named as Debezium names it."""
    name = f"{prefix}.public.customers"
    kafka.create_topic(name)
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the new user's empty folder."""
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


@pytest.fixture
def stream_merge(
    tmp_path: Path, folder: Path, kafka_source: Mapping[str, str], start: Callable[..., Process]
) -> Callable[..., str]:
    """Return a function that runs the command there to its end and returns what it has said."""
    # No part of the user's file: what a mirror of Maven's repository lacks, and what makes small batches quick.
    settings = tmp_path / "spark"
    settings.mkdir()
    lines = [f"{name} {value}\n" for name, value in {**SPARK_CONF, **kafka_source}.items()]
    (settings / "spark-defaults.conf").write_text("".join(lines))

    def run(arguments: str) -> str:
        environ = {"SPARK_CONF_DIR": str(settings), "COLUMNS": "80"}
        process = start(*arguments.split(), directory=folder, environ=environ)
        assert process.wait(timeout=SECONDS) == 0, process.log.read_text()
        return process.log.read_text()

    return run


def edit(file: Path, **lines: str) -> None:
    """Write over the lines of the file that are marked for it."""
    text = file.read_text()
    assert len(re.findall("# <--", text)) == len(lines)
    for name, value in lines.items():
        text, number = re.subn(rf"^{name} = .*  # <--.*$", f"{name} = {value}", text, flags=re.M)
        assert number == 1
    file.write_text(text)


def test_from_an_empty_folder_to_a_table(
    spark: SparkSession, kafka: Kafka, topic: str, folder: Path, stream_merge: Callable[..., str]
):
    init, validate, run, status = commands_of_the_page()
    assert (init, validate, run) == ("init", "validate pipeline.toml", "run pipeline.toml")
    send(kafka, topic, customers())

    assert stream_merge(init) == "pipeline.toml is written. Edit it, then: stream-merge validate pipeline.toml\n"
    edit(folder / "pipeline.toml", bootstrap_servers=json.dumps(kafka.bootstrap_servers), topics=json.dumps([topic]))
    assert stream_merge(validate) == "pipeline.toml: no faults found (1 table).\n"
    assert sorted(path.name for path in folder.iterdir()) == ["pipeline.toml"], "validate writes nothing"

    said = [line.split(" ", 2)[2] for line in stream_merge(f"{run} --once").splitlines()]
    assert [re.sub(r" in [\d.]+ s$", "", line) for line in said] == [
        "INFO starting pipeline shop from pipeline.toml",
        "INFO ./lake/customers: batch 0, version 1: 217 rows, 205 inserted, 0 updated, 0 deleted",
        "INFO ended: everything available is merged",
    ]
    assert rows(spark, folder / "lake/customers") == read_expected(CAPTURE, "customers")

    told = [re.sub(" {2,}", "  ", line.strip("│ ")) for line in stream_merge(status).splitlines()]
    assert told[0] == "./lake/customers  version 1"
    assert told[1].startswith("1 merge, 1 commit of other writers  ")
    assert {"Batch  0", "Changes  205 inserted, 0 updated, 0 deleted", "Rows  205"} <= set(told)


@pytest.mark.long  # tests/spark/test_batch_columns.py asks it of the sink.
def test_a_column_that_the_source_gets_later(
    spark: SparkSession, kafka: Kafka, topic: str, folder: Path, stream_merge: Callable[..., str]
):
    """The table gets it, and nothing is missing."""
    events = customers()
    first = next(number for number, event in enumerate(events) if '"phone"' in (event["value"] or ""))
    stream_merge("init")
    edit(folder / "pipeline.toml", bootstrap_servers=json.dumps(kafka.bootstrap_servers), topics=json.dumps([topic]))
    send(kafka, topic, events[:first])
    assert "WARNING" not in stream_merge("run --once pipeline.toml")
    send(kafka, topic, events[first:])
    said = stream_merge("run --once pipeline.toml")
    assert "WARNING" not in said
    assert "phone (STRING) is new" in said
    assert rows(spark, folder / "lake/customers") == read_expected(CAPTURE, "customers")
