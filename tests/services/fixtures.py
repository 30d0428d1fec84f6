"""The fixtures `kafka`, `postgres` and `connect`, one of each for a test run, from the first way that there is.

1. An address: STREAM_MERGE_TEST_KAFKA (`host:port`), STREAM_MERGE_TEST_POSTGRES (a libpq URI or connection string of a
   superuser) and STREAM_MERGE_TEST_CONNECT (a URL). Where that worker has another address of the database, as with
   docker-compose.yml, STREAM_MERGE_TEST_POSTGRES_INSIDE (`host:port`) says it.
2. Containers, where an engine answers.
3. Processes on this machine: PostgreSQL as it is installed; Kafka and Kafka Connect from Maven, which need a Java.

`mariadb`, which one test of the long tier asks for, is a process as it is installed, or nothing.

Where there is no way, the tests are skipped with the reasons of all three; with STREAM_MERGE_TEST_REQUIRE_SERVICES=1
they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tests.services.connect import DEBEZIUM_VERSION, Connect, LocalConnect
from tests.services.containers import Containers
from tests.services.kafka import Kafka, LocalKafka
from tests.services.mariadb import LocalMariaDB, MariaDB
from tests.services.postgres import LocalPostgres, Postgres
from tests.services.processes import ServiceError, Unavailable
from tests.services.spark_packages import kafka_conf

PREFIX = "STREAM_MERGE_TEST_"
T = TypeVar("T")
Way = Callable[[], Iterator[T]]
"""Starts a service, yields it and stops it, or raises `Unavailable` before it yields."""


@pytest.fixture(scope="session")
def service_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the services' logs."""
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="session")
def containers() -> Iterator[Containers]:
    """Return what starts containers; nothing of it is there until one is asked for."""
    found = Containers()
    yield found
    found.close()


@pytest.fixture(scope="session")
def postgres(service_logs: Path, containers: Containers) -> Generator[Postgres]:
    """Return a PostgreSQL with logical replication."""

    def given() -> Iterator[Postgres]:
        yield given_postgres(address("POSTGRES"), os.environ.get(f"{PREFIX}POSTGRES_INSIDE"))

    def in_container() -> Iterator[Postgres]:
        found, server = containers.postgres()
        try:
            server.start()
            yield found
        finally:
            server.close()

    def as_process() -> Iterator[Postgres]:
        server = LocalPostgres(log=service_logs / "postgres.log")
        try:
            server.start()
            yield server.postgres()
        finally:
            server.close()

    yield from first_way("PostgreSQL", given, in_container, as_process)


@pytest.fixture(scope="session")
def mariadb(service_logs: Path) -> Generator[MariaDB]:
    """Return a MariaDB, a process on this machine; nothing in the suite but its own test needs one."""

    def as_process() -> Iterator[MariaDB]:
        server = LocalMariaDB(log=service_logs / "mariadb.log")
        try:
            server.start()
            yield server.mariadb()
        finally:
            server.close()

    yield from first_way("MariaDB", as_process)


@pytest.fixture(scope="session")
def kafka(service_logs: Path, containers: Containers) -> Generator[Kafka]:
    """Return a Kafka broker."""

    def given() -> Iterator[Kafka]:
        found = Kafka(address("KAFKA"))
        if not found.answers():
            raise ServiceError(f"no broker answers at {found.bootstrap_servers}, which {PREFIX}KAFKA names")
        yield found

    def in_container() -> Iterator[Kafka]:
        found, server = containers.kafka()
        try:
            server.start()
            yield found
        finally:
            server.close()

    def as_process() -> Iterator[Kafka]:
        server = LocalKafka(log=service_logs / "kafka.log")
        try:
            server.start()
            yield server.kafka()
        finally:
            server.close()

    yield from first_way("Kafka", given, in_container, as_process)


@pytest.fixture(scope="session")
def connect(service_logs: Path, containers: Containers, postgres: Postgres, kafka: Kafka) -> Generator[Connect]:
    """Return a Kafka Connect that has Debezium's connector for PostgreSQL."""
    yield from connect_of(service_logs, containers, postgres, kafka)


@pytest.fixture(scope="session")
def kafka_source() -> dict[str, str]:
    """Return the settings of Spark by which it gets its Kafka source."""
    try:
        return kafka_conf()
    except Unavailable as reason:
        refuse(f"no Kafka source of Spark: {reason}")


def connect_of(
    service_logs: Path, containers: Containers, postgres: Postgres, kafka: Kafka, *, debezium: str = DEBEZIUM_VERSION
) -> Generator[Connect]:
    """Yield a Kafka Connect that has Debezium's connector for PostgreSQL, as a process in this version."""

    def given() -> Iterator[Connect]:
        found = Connect(address("CONNECT"), is_inside=postgres.inside is not None)
        if not found.answers():
            raise ServiceError(f"no Kafka Connect answers at {found.url}, which {PREFIX}CONNECT names")
        yield found

    def in_container() -> Iterator[Connect]:
        found, server = containers.connect(kafka, postgres)
        try:
            server.start()
            yield found
        finally:
            server.close()

    def as_process() -> Iterator[Connect]:
        server = LocalConnect(kafka, log=service_logs / f"connect-{debezium}.log", debezium=debezium)
        try:
            server.start()
            yield server.connect()
        finally:
            server.close()

    yield from first_way("Kafka Connect", given, in_container, as_process)


def address(name: str) -> str:
    """Return an address from the environment.

    Raises:
        Unavailable: It is not there.
    """
    found = os.environ.get(f"{PREFIX}{name}")
    if not found:
        raise Unavailable(f"{PREFIX}{name} is not set")
    return found


def given_postgres(conninfo: str, inside: str | None = None) -> Postgres:
    """Return the server that a libpq URI or connection string names.

    Raises:
        ServiceError: It does not answer, or has no logical replication.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    parts = {key: str(value) for key, value in conninfo_to_dict(conninfo).items() if value is not None}
    host, _, port = (inside or "").rpartition(":")
    found = Postgres(
        parts.get("host", "127.0.0.1"),
        int(parts.get("port", 5432)),
        parts.get("user", "postgres"),
        parts.get("password", "postgres"),
        inside=(host, int(port)) if inside else None,
    )
    try:
        with found.connect() as connection:
            [(wal_level,)] = connection.execute("SHOW wal_level").fetchall()
    except psycopg.OperationalError as fault:
        raise ServiceError(f"no session at {found.host}:{found.port}, which {PREFIX}POSTGRES names: {fault}") from None
    if wal_level != "logical":
        raise ServiceError(f"{found.host}:{found.port} has wal_level={wal_level}; Debezium needs logical")
    return found


def first_way(name: str, *ways: Way[T]) -> Generator[T]:
    """Yield what the first way gives that is not unavailable, and end it afterwards; without any, skip the test."""
    reasons: list[str] = []
    for way in ways:
        running = way()
        try:
            found = next(iter(running))
        except Unavailable as reason:
            reasons.append(str(reason))
            continue
        yield found
        # The rest of the way stops the service.
        for _ in running:
            raise AssertionError("a way yields once")
        return
    refuse(f"no {name}: {'; '.join(reasons)}")


def refuse(message: str) -> NoReturn:
    """Skip the test that needs what is not there, or fail it where everything has to be."""
    if os.environ.get(f"{PREFIX}REQUIRE_SERVICES") == "1":
        pytest.fail(message)
    pytest.skip(message)
