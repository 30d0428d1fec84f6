"""PostgreSQL with logical replication: a server of the tests' own, and databases on any server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.processes import (
    Process,
    ServiceError,
    Unavailable,
    free_ports,
    is_listening,
    unprivileged_user,
    wait_until,
)
from tests.services.server import LocalServer, Server

if TYPE_CHECKING:
    import psycopg

SERVER_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "12",
    "max_replication_slots": "12",
    "timezone": "UTC",
    # Nobody needs these databases after the machine has lost its power.
    "fsync": "off",
}
START_SECONDS = 60
DEBIAN_BINARIES = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server and how to reach it."""

    host: str
    port: int
    user: str
    password: str
    inside: tuple[str, int] | None = None
    """Host and port in the network of the containers, where it is in one."""
    server: Server | None = None
    """What starts and stops it; None for one that was there before the tests."""

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection, each statement in a transaction of its own unless `autocommit=False`."""
        import psycopg

        options = {"autocommit": True, "connect_timeout": 10, "options": "-c timezone=UTC", **options}
        return psycopg.connect(
            host=self.host, port=self.port, user=self.user, password=self.password, dbname=database, **options
        )

    @contextmanager
    def database(self, prefix: str = "test") -> Iterator[Database]:
        """Create a database with a name of its own; drop it at the end, with its replication slots."""
        name = f"{prefix}_{uuid.uuid4().hex[:8]}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield Database(self, name)
        finally:
            with self.connect() as connection:
                _drop_slots(connection, name)
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test."""

    postgres: Postgres
    name: str

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection, each statement in a transaction of its own unless `autocommit=False`."""
        return self.postgres.connect(self.name, **options)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def wait_until_read(self, slot: str, *, timeout: float) -> None:
        """Wait until everything committed so far was read through a replication slot and confirmed.

        Debezium confirms what Kafka has acknowledged.

        Raises:
            ServiceError: It was not within `timeout` seconds.
        """
        with self.connect() as connection:
            [(target,)] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
            question = (
                "SELECT coalesce(confirmed_flush_lsn >= %s, false) FROM pg_replication_slots WHERE slot_name = %s"
            )

            def is_read() -> bool:
                # The slot stands behind the last event, so that there has to be one after the target.
                connection.execute("SELECT pg_logical_emit_message(true, 'stream_merge_tests', '')")
                return connection.execute(question, (target, slot)).fetchall() == [(True,)]

            try:
                wait_until(f"slot {slot} read up to {target}", is_read, timeout=timeout)
            except TimeoutError as fault:
                slots = connection.execute("SELECT slot_name, active, confirmed_flush_lsn FROM pg_replication_slots")
                raise ServiceError(f"{fault}; there are {slots.fetchall()}") from None


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], database: str) -> None:
    slots = connection.execute("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database,)).fetchall()
    for (slot,) in slots:

        def is_free(slot: str = slot) -> bool:
            question = (
                "SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
            )
            return all(pid is None for pid, _ in connection.execute(question, (slot,)).fetchall())

        wait_until(f"nobody reads slot {slot}", is_free, timeout=30)
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def find_binaries() -> Path:
    """Return the folder of PostgreSQL's server programs, of the newest version where there are several.

    Raises:
        Unavailable: They are not installed.
    """
    versions = sorted(DEBIAN_BINARIES.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise Unavailable("PostgreSQL's initdb is not installed (Debian and Ubuntu: package postgresql)")
    return Path(found).resolve().parent


class LocalPostgres(LocalServer):
    """A server with a data folder of its own, on loopback."""

    START_SECONDS = START_SECONDS

    def __init__(self, *, log: Path) -> None:
        """Make the data folder.

        Raises:
            Unavailable: PostgreSQL is not installed or cannot run here.
            ServiceError: The data folder could not be made.
        """
        self.binaries = find_binaries()
        self.user = unprivileged_user()
        [self.port] = free_ports(1)
        # Not below the tests' folders, which nobody but the user of the tests can enter.
        self.folder = Path(tempfile.mkdtemp(prefix="stream_merge-postgres-"))
        if self.user:
            shutil.chown(self.folder, self.user)
        self.data = self.folder / "data"
        settings = {
            **SERVER_SETTINGS,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        self._make_data_folder(log)
        self.process = Process(
            "PostgreSQL",
            [self.binaries / "postgres", "-D", self.data, *[f"--{key}={value}" for key, value in settings.items()]],
            log=log,
            environ=_environ(),
            directory=self.folder,
            user=self.user,
        )

    def _make_data_folder(self, log: Path) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        initdb = Process(
            "initdb",
            [self.binaries / "initdb", "-D", self.data, *options],
            log=log,
            environ=_environ(),
            directory=self.folder,
            user=self.user,
        )
        initdb.start()
        if initdb.wait(timeout=START_SECONDS) != 0:
            raise ServiceError(f"initdb ended with {initdb.exit_code}\n{initdb.last_lines()}")

    def postgres(self) -> Postgres:
        """Return the address."""
        return Postgres("127.0.0.1", self.port, "postgres", "postgres", server=self)

    def answers(self) -> bool:
        """Return whether it takes connections."""
        if not is_listening("127.0.0.1", self.port):
            return False
        isready = [str(self.binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(isready, check=False, timeout=10).returncode == 0

    def stop(self) -> None:
        """End all sessions and stop it."""
        self.process.stop(signal.SIGINT)

    def kill(self) -> None:
        """Stop it as a crash would: its own processes cannot outlive -9, and would keep the port."""
        self.process.stop(signal.SIGQUIT)


def _environ() -> dict[str, str]:
    # Settings of the user's own clients (PGPORT, PGDATA) do not hold for this server.
    return {key: value for key, value in os.environ.items() if not re.match(r"PG[A-Z]", key)}
