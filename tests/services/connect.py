"""Kafka Connect with Debezium's connector for PostgreSQL: a worker of the tests' own, and connectors on any worker."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.kafka import JAVA_OPTIONS, Kafka
from tests.services.maven import copy_jars, java
from tests.services.postgres import Database
from tests.services.processes import Process, ServiceError, free_ports, wait_until
from tests.services.server import LocalServer, Server

CONNECT_VERSION = "4.3.1"
DEBEZIUM_VERSION = "3.7.0.Final"
CONNECT_COORDINATES = (
    f"org.apache.kafka:connect-runtime:{CONNECT_VERSION}",
    f"org.apache.kafka:connect-json:{CONNECT_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
START_SECONDS = 120
REQUEST_SECONDS = 30
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Connect:
    """A worker, by its REST API."""

    url: str
    is_inside: bool = False
    """Whether it is in the network of the containers, where the other services have another address."""
    server: Server | None = None
    """What starts and stops it; None for one that was there before the tests."""

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request, from JSON.

        Raises:
            ServiceError: The worker refuses; the message is its own.
            OSError: There is no answer.
        """
        request = urllib.request.Request(
            self.url.rstrip("/") + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with OPENER.open(request, timeout=REQUEST_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as fault:
            with fault:
                raise ServiceError(f"{method} {path}: {fault.code} {fault.read().decode(errors='replace')}") from None
        return json.loads(text) if text else None

    def answers(self) -> bool:
        """Tell whether the worker takes requests."""
        try:
            return isinstance(self.request("GET", "/connectors"), list)
        except (OSError, ServiceError):
            return False

    @contextmanager
    def connector(self, name: str, config: dict[str, str], *, timeout: float = START_SECONDS) -> Iterator[None]:
        """Run a connector, from when its task runs until the end of the block.

        Raises:
            ServiceError: It could not be created, failed, or did not start within `timeout` seconds.
        """
        self.request("POST", "/connectors", {"name": name, "config": config})
        try:
            try:
                wait_until(f"connector {name} runs", lambda: self.is_running(name), timeout=timeout)
            except TimeoutError as fault:
                raise ServiceError(f"{fault}\n{self.server.last_lines() if self.server else ''}") from None
            yield
        finally:
            self.request("DELETE", f"/connectors/{name}")

    def is_running(self, name: str) -> bool:
        """Tell whether the connector and its task run.

        Raises:
            ServiceError: One of them has failed.
        """
        try:
            status = self.request("GET", f"/connectors/{name}/status")
        except ServiceError:
            # For a moment after its creation the worker does not know it.
            return False
        parts = [status["connector"], *status["tasks"]]
        for part in parts:
            if part["state"] == "FAILED":
                raise ServiceError(f"connector {name} has failed:\n{part.get('trace')}")
        return len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)

    def debezium_config(self, database: Database, prefix: str, **settings: str) -> dict[str, str]:
        """Return the configuration of a connector that captures a database: a snapshot, then every change.

        Messages carry their schema, so that new tables and columns can be known from them alone. Replication slot and
        publication are called as the prefix; the publication must be there.

        Args:
            database: What to capture.
            prefix: Beginning of the topics' names.
            settings: Further settings, with `_` for `.`; they go over those here.
        """
        postgres = database.postgres
        host, port = (self.is_inside and postgres.inside) or (postgres.host, postgres.port)
        config = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "plugin.name": "pgoutput",
            "database.hostname": host,
            "database.port": str(port),
            "database.user": postgres.user,
            "database.password": postgres.password,
            "database.dbname": database.name,
            "topic.prefix": prefix,
            "slot.name": prefix,
            "publication.name": prefix,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "initial",
            "skipped.operations": "none",
            "heartbeat.interval.ms": "1000",
            "poll.interval.ms": "100",
            "topic.creation.default.partitions": "3",
            "topic.creation.default.replication.factor": "1",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
        }
        return {**config, **{key.replace("_", "."): value for key, value in settings.items()}}


class LocalConnect(LocalServer):
    """A distributed worker, alone in its group, on loopback."""

    START_SECONDS = START_SECONDS

    def __init__(
        self, kafka: Kafka, *, log: Path, debezium: str = DEBEZIUM_VERSION, plugins: Sequence[Path] = ()
    ) -> None:
        """Write the worker's configuration.

        Args:
            kafka: Where its topics are.
            log: Where to write what it says.
            debezium: Version of the connector.
            plugins: Folders of further plugins, each in a folder of its own.

        Raises:
            Unavailable: Java or the jars cannot be had.
        """
        program = java()
        jars = copy_jars("connect", CONNECT_COORDINATES)
        plugin = copy_jars("debezium-postgres", [f"io.debezium:debezium-connector-postgres:{debezium}"])
        [self.port] = free_ports(1)
        self.folder = Path(tempfile.mkdtemp(prefix="stream_merge-connect-"))
        properties = self.folder / "worker.properties"
        properties.write_text(worker_properties(self.port, kafka.bootstrap_servers, plugin.parent, *plugins))
        command = [program, *JAVA_OPTIONS, "-Xmx384m", "-cp", f"{jars}/*"]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(properties)]
        self.process = Process("Kafka Connect", command, log=log, directory=self.folder)

    def connect(self) -> Connect:
        """Return the address."""
        return Connect(f"http://127.0.0.1:{self.port}", server=self)

    def answers(self) -> bool:
        """Return whether it takes requests."""
        return self.connect().answers()


def worker_properties(port: int, bootstrap_servers: str, plugins: Path, *more_plugins: Path) -> str:
    """Return the configuration of a distributed worker whose topics are named by its port."""
    topics = {
        f"{kind}.storage.{setting}": value
        for kind in ("config", "offset", "status")
        for setting, value in (("topic", f"connect_{kind}s_{port}"), ("replication.factor", 1), ("partitions", 1))
        if (kind, setting) != ("config", "partitions")
    }
    properties = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"connect_{port}",
        **topics,
        "plugin.path": ",".join(str(folder) for folder in (plugins, *(more.parent for more in more_plugins))),
        # Not all plugins have a file that names them; looking into all classes takes longer.
        "plugin.discovery": "hybrid_warn" if more_plugins else "service_load",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        # What was delivered is soon confirmed to the database, by which a test knows that it was.
        "offset.flush.interval.ms": 1000,
        "listeners": f"http://127.0.0.1:{port}",
        "rest.advertised.host.name": "127.0.0.1",
        "topic.creation.enable": "true",
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())
