"""The services that the tests of real parts stand on: each does what those tests need of it."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.connect import Connect
from tests.services.containers import compose_image
from tests.services.fixtures import first_way, given_postgres
from tests.services.kafka import Kafka, Record
from tests.services.maven import copy_jars
from tests.services.postgres import Postgres
from tests.services.processes import Process, ServiceError, Unavailable, free_ports, is_listening, wait_until


def python(code: str, log: Path, **options: Any) -> Process:
    return Process("the child", [sys.executable, "-c", code], log=log, **options)


def test_a_process_that_ends_too_early_says_why(tmp_path: Path):
    child = python("print('a reason'); raise SystemExit(3)", tmp_path / "log")
    child.start()
    with pytest.raises(ServiceError) as fault:
        child.wait_until("answers", lambda: False, timeout=30)
    assert str(fault.value) == (f"the child ended with 3 instead of: answers\nThe end of {tmp_path / 'log'}:\na reason")


def test_a_process_that_takes_too_long_is_said_to(tmp_path: Path):
    child = python("import time; print('busy', flush=True); time.sleep(60)", tmp_path / "log")
    child.start()
    wait_until("output", lambda: "busy" in child.last_lines(), timeout=30)
    with pytest.raises(ServiceError) as fault:
        child.wait_until("answers", lambda: False, timeout=0.2)
    assert str(fault.value) == f"not within 0 s: the child: answers\nThe end of {tmp_path / 'log'}:\nbusy"
    assert child.stop() == -signal.SIGTERM
    assert not child.is_running


def test_kill_takes_what_the_process_has_started(tmp_path: Path):
    [port] = free_ports(1)
    listen = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {listen!r}])"
    child = python(code, tmp_path / "log")
    child.start()
    child.wait_until("listens", lambda: is_listening("127.0.0.1", port), timeout=30)
    child.kill()
    assert child.exit_code == -signal.SIGKILL
    wait_until("nobody listens", lambda: not is_listening("127.0.0.1", port), timeout=10)


def test_a_process_is_started_again_with_the_same_log(tmp_path: Path):
    child = python("print('once')", tmp_path / "log")
    for _ in range(2):
        child.start()
        assert child.wait(timeout=30) == 0
    assert (tmp_path / "log").read_text() == "once\nonce\n"


def missing(reason: str) -> Any:
    def way() -> Iterator[str]:
        raise Unavailable(reason)
        yield

    return way


def test_the_first_way_that_there_is_gives_the_service(monkeypatch: pytest.MonkeyPatch):
    steps: list[str] = []

    def way() -> Iterator[str]:
        steps.append("started")
        yield "the service"
        steps.append("stopped")

    assert list(first_way("Kafka", missing("not set"), way, missing("not asked"))) == ["the service"]
    assert steps == ["started", "stopped"]

    monkeypatch.delenv("STREAM_MERGE_TEST_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^no Kafka: not set; no engine$"):
        next(first_way("Kafka", missing("not set"), missing("no engine")))
    monkeypatch.setenv("STREAM_MERGE_TEST_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match=r"^no Kafka: not set; no engine$"):
        next(first_way("Kafka", missing("not set"), missing("no engine")))


def test_images_are_those_of_the_compose_file(monkeypatch: pytest.MonkeyPatch):
    assert compose_image("postgres").partition(":")[0] == "postgres"
    assert compose_image("kafka").partition(":")[0] == "apache/kafka"
    monkeypatch.setenv("DEBEZIUM_CONNECT_IMAGE", "mirror/connect:1")
    assert compose_image("connect") == "mirror/connect:1"
    with pytest.raises(ServiceError, match=r"^docker-compose\.yml has no image of a service 'zookeeper'$"):
        compose_image("zookeeper")


def test_maven_that_is_missing_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"^no mvn on PATH to get kafka with"):
        copy_jars("kafka", ["org.apache.kafka:kafka_2.13:4.1.2"])


def test_postgres_has_a_database_for_each_test(postgres: Postgres):
    with postgres.database("shop") as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'é'), (2, NULL)")
        with database.connect() as connection:
            assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "é"), (2, None)]
            assert connection.execute("SHOW wal_level").fetchall() == [("logical",)]
            assert connection.execute("SHOW timezone").fetchall() == [("UTC",)]
            # A slot would keep the database from being dropped.
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.name,))
    with postgres.connect() as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE datname = %s", (database.name,))
        assert names.fetchall() == []
        slots = connection.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", (database.name,))
        assert slots.fetchall() == []


def test_postgres_is_found_by_its_address(postgres: Postgres):
    address = f"{postgres.host}:{postgres.port}"
    uri = f"postgresql://{postgres.user}:{postgres.password}@{address}/postgres"
    found = given_postgres(uri, "postgres:5432")
    assert (found.host, found.port, found.inside) == (postgres.host, postgres.port, ("postgres", 5432))
    [port] = free_ports(1)
    with pytest.raises(
        ServiceError, match=rf"^no session at 127.0.0.1:{port}, which STREAM_MERGE_TEST_POSTGRES names: "
    ):
        given_postgres(f"host=127.0.0.1 port={port} user=postgres")


def restart(server: Any, *, kill: bool) -> None:
    if server is None:
        pytest.skip("a service that was there before the tests is not theirs to restart")
    if kill:
        server.kill()
    else:
        server.stop()
    server.start()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_postgres_is_restarted_with_its_data(postgres: Postgres, kill: bool):
    with postgres.database() as database:
        database.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (7)")
        restart(postgres.server, kill=kill)
        with database.connect() as connection:
            assert connection.execute("SELECT id FROM t").fetchall() == [(7,)]


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=2)
    yield name
    kafka.delete_topics(name)


def test_records_are_read_as_they_were_sent(kafka: Kafka, topic: str):
    assert topic in kafka.topics()
    kafka.send(topic, [(b"a", b"1"), (None, b"2")], partition=0, headers=[("h", b"x")])
    kafka.send(topic, [(b"b", None)], partition=1)
    assert kafka.offsets(topic) == {0: (0, 2), 1: (0, 1)}
    assert kafka.read(topic) == [
        Record(0, 0, b"a", b"1", (("h", b"x"),)),
        Record(0, 1, None, b"2", (("h", b"x"),)),
        Record(1, 0, b"b", None),
    ]
    kafka.delete_records(topic, {0: 1})
    assert kafka.offsets(topic) == {0: (1, 2), 1: (0, 1)}
    assert [record.offset for record in kafka.read(topic)] == [1, 0]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_kafka_is_restarted_with_its_records(kafka: Kafka, topic: str, kill: bool):
    kafka.send(topic, [(b"a", b"1")], partition=0)
    restart(kafka.server, kill=kill)
    kafka.send(topic, [(b"b", b"2")], partition=0)
    assert kafka.read(topic) == [Record(0, 0, b"a", b"1"), Record(0, 1, b"b", b"2")]


def payload(record: Record) -> Any:
    assert record.value is not None
    return json.loads(record.value)["payload"]


@pytest.mark.slow
def test_debezium_captures_a_database_across_a_restart_of_kafka(postgres: Postgres, kafka: Kafka, connect: Connect):
    with postgres.database("shop") as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'one')",
            f"CREATE PUBLICATION {database.name} FOR ALL TABLES",
        )
        topic = f"{database.name}.public.t"
        with connect.connector(database.name, connect.debezium_config(database, database.name)):
            database.execute("UPDATE t SET v = 'eins' WHERE id = 1")
            database.wait_until_read(database.name, timeout=60)
            assert [(body["op"], body["after"]) for body in map(payload, sorted(kafka.read(topic), key=written))] == [
                ("r", {"id": 1, "v": "one"}),
                ("u", {"id": 1, "v": "eins"}),
            ]

            if kafka.server is not None:
                kafka.server.stop()
                database.execute("ALTER TABLE t ADD COLUMN n numeric(6, 2)", "INSERT INTO t VALUES (2, 'two', 1.50)")
                kafka.server.start()
                database.wait_until_read(database.name, timeout=90)
                bodies = [payload(record) for record in kafka.read(topic) if record.key and b'"id":2' in record.key]
                # 150, in base64.
                assert [(body["op"], body["after"]) for body in bodies] == [("c", {"id": 2, "v": "two", "n": "AJY="})]
        kafka.delete_topics(*[name for name in kafka.topics() if database.name in name])


def written(record: Record) -> int:
    return int(payload(record)["ts_ms"])


def test_a_connector_that_cannot_start_says_why(postgres: Postgres, connect: Connect):
    with postgres.database("shop") as database:
        config = {**connect.debezium_config(database, database.name), "database.dbname": "nowhere"}
        with (
            pytest.raises(ServiceError, match=r'^POST /connectors: 400 .* database \\"nowhere\\" does not exist'),
            connect.connector(database.name, config),
        ):
            pass


def test_a_service_is_there_once_for_the_whole_run(request: pytest.FixtureRequest, kafka: Kafka):
    definitions = request._fixturemanager.getfixturedefs("kafka", request.node)
    assert definitions is not None
    assert len(definitions) == 1
