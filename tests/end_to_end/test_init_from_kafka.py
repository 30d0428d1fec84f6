"""`stream-merge init --from kafka` on a real Kafka with topics of all shapes: the file that it writes is valid, and
runs as it is."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.debezium.captures import CAPTURES, SHOP, canonical_rows, read_expected
from tests.debezium.records import with_schema
from tests.end_to_end.pipeline_process import SPARK_CONF
from tests.services.kafka import Kafka
from tests.services.processes import Process

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 300
ID = {"field": "id", "type": "int64", "optional": False}
KEY = {"schema": {"type": "struct", "fields": [ID], "optional": False}, "payload": {"id": 1}}
TABLES = ("customers", "order_items", "orders")


def captured(name: str, table: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return the records of one table as Debezium wrote them."""
    with gzip.open(CAPTURES / name / "events.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        events = [json.loads(line) for line in lines]
    return [
        (event["key"] and event["key"].encode(), event["value"] and event["value"].encode())
        for event in events
        if event["topic"].endswith(f".{table}")
    ]


def records(*pairs: tuple[Any, Any]) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values, those that are no bytes in JSON."""

    def written(value: Any) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()

    return [(written(key), written(value)) for key, value in pairs]


def envelope(op: str, lsn: int, after: Any = None, before: Any = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "snapshot": "false"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def foreign() -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    """Return topics that hold no rows, by the ends of their names."""
    return {
        "connect-configs": records((b"connector-shop", {"properties": {"database.password": "hunter22"}})),
        "connect-offsets": records((b'["shop",{"server":"shop"}]', {"lsn": 1})),
        "connect-status": records((b"status-connector-shop", {"state": "RUNNING"})),
        "transaction": records(({"id": "1"}, {"status": "BEGIN", "id": "1", "event_count": None})),
    }


@pytest.fixture
def stream_merge(
    tmp_path: Path, kafka_source: Mapping[str, str], start: Callable[..., Process]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs the command to its end, and returns its exit code and what it has said."""
    settings = tmp_path / "spark"
    settings.mkdir()
    lines = [f"{name} {value}\n" for name, value in {**SPARK_CONF, **kafka_source}.items()]
    (settings / "spark-defaults.conf").write_text("".join(lines))

    def run(*arguments: str, **environ: str) -> tuple[int, str]:
        process = start(*arguments, environ={"SPARK_CONF_DIR": str(settings), "COLUMNS": "80", **environ})
        code = process.wait(timeout=SECONDS)
        return code, process.log.read_text()

    return run


def table(spark: SparkSession, folder: Path, name: str) -> Any:
    frame = spark.read.format("delta").load(str(folder / "lake" / name))
    return frame.drop(*[each for each in frame.columns if each.startswith("_stream_merge_")])


def rows(frame: Any, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)


def send(kafka: Kafka, topics: Mapping[str, Iterable[tuple[bytes | None, bytes | None]]]) -> None:
    for name, its_records in topics.items():
        kafka.create_topic(name, partitions=2)
        kafka.send(name, its_records)


@pytest.mark.long  # tests/cli/test_discover.py asks the same of records at hand.
@pytest.mark.slow
def test_a_broker_with_topics_of_all_shapes(
    spark: SparkSession, kafka: Kafka, prefix: str, tmp_path: Path, stream_merge: Callable[..., tuple[int, str]]
):
    public = f"{prefix}.public"
    visits = [{"page": "/", "who": "ä"}, {"page": "/", "who": "ä"}, {"page": "/x", "who": None}]
    send(
        kafka,
        {
            # With a schema part: a section takes them all, the table without a key included.
            **{f"{public}.{name}": captured("small-schema", name) for name in TABLES},
            f"{public}.empty": [],
            # Without one.
            f"{public}.flat": captured("small-flat", "customers"),
            f"{public}.visits": records(
                *((None, envelope("c", lsn, row)) for lsn, row in enumerate(visits, 1)),
                (None, envelope("d", 9, before=visits[0])),
            ),
            # What goes into no pipeline of this kind, or into none.
            f"{prefix}.clicks": records(({"id": 1}, {"id": 1, "n": 1})),
            f"{public}.raw": records((b"17", b"no JSON")),
            f"{public}.avro": records((b"\0\0\0\0\7\2", b"\0\0\0\0\7\2")),
            **{f"{prefix}.{name}": sent for name, sent in foreign().items()},
        },
    )
    of_kafka = ("--from", "kafka", "--bootstrap-servers", "${BROKERS}", "--topics", f"{prefix}.*")
    option = ("--option", "kafka.ssl.key.password=hunter22", "--option", "kafka.client.id=${ID:-shop}")
    code, said = stream_merge("init", *of_kafka, *option, BROKERS=kafka.bootstrap_servers)
    assert code == 0, said
    assert said.splitlines()[0] == (
        "pipeline.toml is written: 5 topics in 3 sections [[tables]]. Read its comments, then: stream-merge validate "
        "pipeline.toml"
    )
    assert {f"{prefix}.clicks", f"{public}.avro", f"{public}.empty", f"{public}.raw"} >= {
        name.strip() for name in said.splitlines()[1].partition(": ")[2].split(",")
    }
    text = (tmp_path / "pipeline.toml").read_text()
    assert "hunter22" not in text + said
    assert kafka.bootstrap_servers not in text
    file = tomllib.loads(text)
    assert file["source"] == {
        "format": "kafka",
        "bootstrap_servers": "${BROKERS}",
        "topics": [f"{public}.{name}" for name in sorted((*TABLES, "flat", "visits"))],
        "options": {"kafka.ssl.key.password": "${KAFKA_SSL_KEY_PASSWORD}", "kafka.client.id": "${ID:-shop}"},
    }
    assert [table["source"] for table in file["tables"]] == [
        rf"re:{public}\.(?P<table>[^.]+)".replace(".public", r"\.public"),
        f"{public}.flat",
        f"{public}.visits",
    ]
    for name, kind in {
        f"{prefix}.connect-configs": "the configuration of Kafka Connect",
        f"{prefix}.transaction": "Debezium's transactions",
        f"{prefix}.clicks": "plain JSON objects",
    }.items():
        assert f"#   {name}: {kind}" in text.splitlines()

    environ = {"BROKERS": kafka.bootstrap_servers, "KAFKA_SSL_KEY_PASSWORD": "hunter22"}
    code, said = stream_merge("validate", "pipeline.toml", **environ)
    assert (code, said) == (0, "pipeline.toml: no faults found (3 tables).\n")
    code, said = stream_merge("run", "--once", "pipeline.toml", **environ)
    assert code == 0, said
    for name in TABLES:
        found = canonical_rows((row.asDict() for row in table(spark, tmp_path, name).collect()), **SHOP)
        assert found == read_expected(CAPTURES / "small-schema", name)
    assert rows(table(spark, tmp_path, "visits"), "page", "who") == [("/", "ä"), ("/x", None)]
    flat = table(spark, tmp_path, "flat")
    expected = [json.loads(line) for line in read_expected(CAPTURES / "small-flat", "customers").elements()]
    assert rows(flat, "id", "name", "email") == sorted(
        ((row["id"], row["name"], row["email"]) for row in expected), key=repr
    )
    assert dict(flat.dtypes)["balance"] == "string"

    # What is left gets a file of its own, which is not that one.
    code, said = stream_merge("init", *of_kafka, BROKERS=kafka.bootstrap_servers)
    assert (code, said) == (
        2,
        "pipeline.toml exists already; choose another file, or overwrite it with --force.\n",
    )


@pytest.mark.long
@pytest.mark.slow
def test_topics_of_the_other_kinds(
    spark: SparkSession, kafka: Kafka, prefix: str, tmp_path: Path, stream_merge: Callable[..., tuple[int, str]]
):
    odd = 'a b`c"d\\ß'
    send(
        kafka,
        {
            f"{prefix}.clicks": records(
                *(({"id": key}, {"id": key, "n": n, odd: f"{n}\n"}) for n, key in enumerate([1, 2, 1, 3, 1]))
            ),
            f"{prefix}.more": records(({"id": 9}, {"id": 9, "o": {"x": [1]}, "d": 0.5})),
            f"{prefix}.rows": records(
                *(
                    ({**KEY, "payload": {"id": key}}, with_schema([ID], {"id": key}) if is_there else None)
                    for key, is_there in [(1, True), (2, True), (1, False)]
                )
            ),
        },
    )
    for number, (topics, file) in enumerate([("clicks|{0}.more", "objects.toml"), ("rows", "rows.toml")]):
        pattern = f"{prefix}.{topics.format(prefix)}"
        arguments = ("--bootstrap-servers", kafka.bootstrap_servers, "--topics", pattern, "--lake", f"lake/{number}")
        code, said = stream_merge("init", file, "--from", "kafka", *arguments)
        assert code == 0, said
        text = (tmp_path / file).read_text().replace("checkpoints/", f"checkpoints/{number}")
        (tmp_path / file).write_text(text)
        code, said = stream_merge("validate", file)
        assert code == 0, said
        code, said = stream_merge("run", "--once", file)
        assert code == 0, said
    clicks = table(spark, tmp_path, "0/clicks")
    assert clicks.columns == ["id", "n", odd]
    assert [tuple(row) for row in clicks.orderBy("id").collect()] == [(1, 4, "4\n"), (2, 1, "1\n"), (3, 3, "3\n")]
    assert rows(table(spark, tmp_path, "0/more"), "id", "o", "d") == [(9, '{"x":[1]}', 0.5)]
    assert rows(table(spark, tmp_path, "1/rows"), "id") == [(2,)]
