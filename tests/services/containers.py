"""The services in containers, of the images that docker-compose.yml names, where an engine answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.connect import START_SECONDS as CONNECT_SECONDS
from tests.services.connect import Connect
from tests.services.kafka import START_SECONDS as KAFKA_SECONDS
from tests.services.kafka import Kafka
from tests.services.postgres import SERVER_SETTINGS, Postgres
from tests.services.postgres import START_SECONDS as POSTGRES_SECONDS
from tests.services.processes import LAST_LINES, ServiceError, Unavailable, free_ports, is_listening, wait_until

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"
ENGINE_SECONDS = 5


def compose_image(service: str) -> str:
    """Return the image of a service of docker-compose.yml; `${NAME:-default}` in it comes from the environment."""
    found = re.search(rf"^  {service}:\n(?:    .*\n|\s*\n)*?    image: *(\S+)", COMPOSE_FILE.read_text(), re.MULTILINE)
    if found is None:
        raise ServiceError(f"docker-compose.yml has no image of a service {service!r}")
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda part: os.environ.get(part[1]) or part[2], found[1].strip("\"'"))


class ContainerServer:
    """A service in a container with ports of its own, which it keeps when it is started again."""

    def __init__(self, name: str, container: DockerContainer, answers: Callable[[], bool], *, timeout: float) -> None:
        """Describe it; nothing is started.

        Args:
            name: What errors call it.
            container: The container, with its host ports bound.
            answers: Whether the service answers.
            timeout: Seconds within which it must.
        """
        self.name = name
        self.container = container
        self.answers = answers
        self.timeout = timeout
        self.is_created = False

    def start(self) -> None:
        """Start it and wait until it answers."""
        from docker.errors import DockerException

        try:
            if self.is_created:
                self.container.get_wrapped_container().start()
            else:
                self.container.start()
                self.is_created = True
        except DockerException as fault:
            raise Unavailable(f"{self.name} in a container: {fault}") from fault
        try:
            wait_until(f"{self.name} answers", self.answers, timeout=self.timeout)
        except TimeoutError as fault:
            raise ServiceError(f"{fault}\n{self.last_lines()}") from None

    def stop(self) -> None:
        """Stop it in good order."""
        self.container.get_wrapped_container().stop()

    def kill(self) -> None:
        """Kill it with -9."""
        self.container.get_wrapped_container().kill()

    def last_lines(self) -> str:
        """Return the end of its log."""
        if not self.is_created:
            return "(it was not started)"
        lines: bytes = self.container.get_wrapped_container().logs(tail=LAST_LINES)
        return lines.decode(errors="replace")

    def close(self) -> None:
        """Remove the container."""
        if self.is_created:
            self.container.stop()


class Containers:
    """The containers of a test run, in one network."""

    def __init__(self) -> None:
        self._network: Network | None = None

    def network(self) -> Network:
        """Return the network, made the first time.

        Raises:
            Unavailable: No container engine answers, or testcontainers is not installed.
        """
        if self._network is None:
            check_engine()
            from testcontainers.core.network import Network

            self._network = Network().create()
        return self._network

    def close(self) -> None:
        """Remove the network; its containers must be gone."""
        if self._network is not None:
            self._network.remove()

    def _container(self, service: str, port: int, host_port: int, **options: Any) -> DockerContainer:
        network = self.network()
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(compose_image(service), **options)
        return container.with_bind_ports(port, host_port).with_network(network).with_network_aliases(service)

    def postgres(self) -> tuple[Postgres, ContainerServer]:
        """Return a PostgreSQL that is not started yet."""
        [host_port] = free_ports(1)
        command = ["postgres", *[part for key, value in SERVER_SETTINGS.items() for part in ("-c", f"{key}={value}")]]
        container = self._container("postgres", 5432, host_port).with_command(command)
        container.with_envs(POSTGRES_USER="postgres", POSTGRES_PASSWORD="postgres", TZ="UTC")
        host = _engine_host(container)
        server = ContainerServer("PostgreSQL", container, lambda: postgres_answers(postgres), timeout=POSTGRES_SECONDS)
        postgres = Postgres(host, host_port, "postgres", "postgres", inside=("postgres", 5432), server=server)
        return postgres, server

    def kafka(self) -> tuple[Kafka, ContainerServer]:
        """Return a broker that is not started yet."""
        [host_port] = free_ports(1)
        container = self._container("kafka", 19092, host_port)
        host = _engine_host(container)
        container.with_envs(
            KAFKA_NODE_ID="1",
            KAFKA_PROCESS_ROLES="broker,controller",
            KAFKA_CONTROLLER_QUORUM_VOTERS="1@localhost:9093",
            KAFKA_CONTROLLER_LISTENER_NAMES="CONTROLLER",
            KAFKA_LISTENERS="HOST://:19092,INTERNAL://:9092,CONTROLLER://:9093",
            KAFKA_ADVERTISED_LISTENERS=f"HOST://{host}:{host_port},INTERNAL://kafka:9092",
            KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="HOST:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            KAFKA_INTER_BROKER_LISTENER_NAME="INTERNAL",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_MIN_ISR="1",
            KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS="0",
        )
        server = ContainerServer("Kafka", container, lambda: kafka.answers(), timeout=KAFKA_SECONDS)
        kafka = Kafka(f"{host}:{host_port}", inside="kafka:9092", server=server)
        return kafka, server

    def connect(self, kafka: Kafka, postgres: Postgres) -> tuple[Connect, ContainerServer]:
        """Return a Connect worker that is not started yet.

        Raises:
            Unavailable: Kafka or PostgreSQL is not in the containers' network.
        """
        if kafka.inside is None or postgres.inside is None:
            raise Unavailable("Kafka Connect in a container needs Kafka and PostgreSQL in containers, too")
        [host_port] = free_ports(1)
        container = self._container("connect", 8083, host_port)
        container.with_envs(
            BOOTSTRAP_SERVERS=kafka.inside,
            GROUP_ID="stream-merge",
            CONFIG_STORAGE_TOPIC="connect_configs",
            OFFSET_STORAGE_TOPIC="connect_offsets",
            STATUS_STORAGE_TOPIC="connect_statuses",
            CONNECT_OFFSET_FLUSH_INTERVAL_MS="1000",
        )
        host = _engine_host(container)
        server = ContainerServer("Kafka Connect", container, lambda: connect.answers(), timeout=CONNECT_SECONDS)
        connect = Connect(f"http://{host}:{host_port}", is_inside=True, server=server)
        return connect, server


def check_engine() -> None:
    """Ask the container engine whether it is there.

    Raises:
        Unavailable: It is not, or testcontainers is not installed.
    """
    try:
        import docker
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer  # noqa: F401
    except ImportError as fault:
        raise Unavailable(f"testcontainers is not installed: {fault}") from None
    try:
        client = docker.from_env(timeout=ENGINE_SECONDS)
    except DockerException:
        raise Unavailable("no container engine answers") from None
    try:
        client.ping()
    except (DockerException, OSError):
        raise Unavailable("no container engine answers") from None
    finally:
        client.close()


def postgres_answers(postgres: Postgres) -> bool:
    """Tell whether a session can be had: the image starts its server once to make the data folder, without TCP."""
    import psycopg

    if not is_listening(postgres.host, postgres.port):
        return False
    try:
        postgres.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def _engine_host(container: DockerContainer) -> str:
    return str(container.get_docker_client().host())
