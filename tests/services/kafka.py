"""A Kafka broker: one of the tests' own, and what tests do with any."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.maven import copy_jars, java
from tests.services.processes import Process, ServiceError, free_ports, wait_until
from tests.services.server import LocalServer, Server

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

KAFKA_VERSION = "4.1.2"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
CLUSTER_ID = "stream-merge-tests-000"
START_SECONDS = 90
REQUEST_SECONDS = 30

# The second compiler would only take time from a broker that lives for a minute.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.showDateTime=true")


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the broker has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Kafka:
    """A broker and how to reach it."""

    bootstrap_servers: str
    inside: str | None = None
    """Its address in the network of the containers, where it is in one."""
    server: Server | None = None
    """What starts and stops it, with its data and on its port; None for one that was there before the tests."""

    def admin(self) -> AdminClient:
        """Return a client for what has no method here."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def answers(self) -> bool:
        """Tell whether the broker answers within a few seconds."""
        from confluent_kafka import KafkaException

        try:
            return bool(self.admin().list_topics(timeout=3).brokers)
        except KafkaException:
            return False

    def topics(self) -> list[str]:
        """Return the names of the topics, without Kafka's own."""
        return sorted(name for name in self.admin().list_topics(timeout=REQUEST_SECONDS).topics if name[:2] != "__")

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until the broker has it."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        # Requests end with their client, so that it has a name until they are answered.
        admin = self.admin()
        for created in admin.create_topics([topic]).values():
            created.result(REQUEST_SECONDS)
        wait_until(f"topic {name}", lambda: name in self.topics(), timeout=REQUEST_SECONDS)

    def delete_topics(self, *names: str) -> None:
        """Delete topics."""
        admin = self.admin()
        for deleted in admin.delete_topics(list(names)).values() if names else ():
            deleted.result(REQUEST_SECONDS)

    def make_anew(self, name: str) -> None:
        """Delete a topic and create another one of its name."""
        self.delete_topics(name)
        wait_until(f"no topic {name}", lambda: name not in self.topics(), timeout=REQUEST_SECONDS)
        self.create_topic(name)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Drop the records of each partition before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        admin = self.admin()
        for deleted in admin.delete_records(offsets).values():
            deleted.result(REQUEST_SECONDS)

    def send(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        *,
        partition: int = -1,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Write keys and values, and wait until the broker has acknowledged all of them.

        Args:
            topic: Where to; it is created if there is none.
            records: Keys and values.
            partition: Partition of all of them; by default the key decides.
            headers: Headers of all of them.
        """
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        faults: list[str] = []

        def note(fault: Any, _: Any) -> None:
            if fault is not None:
                faults.append(str(fault))

        for key, value in records:
            producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=note)
            producer.poll(0)
        left = producer.flush(REQUEST_SECONDS)
        if left or faults:
            raise ServiceError(f"{left} records for {topic} were not acknowledged; {faults[:3]}")

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one after the last, for each partition."""
        from confluent_kafka import Consumer, TopicPartition

        partitions = self.admin().list_topics(topic, timeout=REQUEST_SECONDS).topics[topic].partitions
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "offsets", "log_level": 0})
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_SECONDS)
                for partition in sorted(partitions)
            }
        finally:
            consumer.close()

    def read(self, topic: str, *, timeout: float = REQUEST_SECONDS) -> list[Record]:
        """Return all records that the topic has now, by partition and offset.

        Raises:
            ServiceError: Not all of them came within `timeout` seconds of each other.
        """
        from confluent_kafka import Consumer, TopicPartition

        ends = {partition: end for partition, (start, end) in self.offsets(topic).items() if end > start}
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "read",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        found: list[Record] = []
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            while ends:
                message = consumer.poll(timeout)
                if message is None or message.error():
                    raise ServiceError(f"{topic} could not be read: {message.error() if message else 'nothing came'}")
                record = as_record(message)
                found.append(record)
                partition, offset = record.partition, record.offset
                if offset >= ends.get(partition, 0) - 1:
                    ends.pop(partition, None)
        finally:
            consumer.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))


def as_record(message: Message) -> Record:
    """Return what a client has read."""
    headers: Any = message.headers() or []
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Record(partition, offset, message.key(), message.value(), tuple(headers))


class LocalKafka(LocalServer):
    """A broker and its controller in one process, on loopback, with a folder of its own."""

    START_SECONDS = START_SECONDS

    def __init__(self, *, log: Path, advertised: str | None = None) -> None:
        """Format the folder.

        Args:
            log: Where it writes what it says.
            advertised: Where it tells its clients that it is, `host:port`; by default where it is.

        Raises:
            Unavailable: Java or Kafka's jars cannot be had.
            ServiceError: The folder could not be formatted.
        """
        program, jars = java(), copy_jars("kafka", COORDINATES)
        self.port, controller_port = free_ports(2)
        self.folder = Path(tempfile.mkdtemp(prefix="stream_merge-kafka-"))
        self.properties = self.folder / "server.properties"
        self.properties.write_text(server_properties(self.port, controller_port, self.folder / "data", advertised))
        command = [program, *JAVA_OPTIONS, "-Xmx256m", "-cp", f"{jars}/*"]
        self._run_once([*command, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self.properties], log)
        self.process = Process("Kafka", [*command, "kafka.Kafka", self.properties], log=log, directory=self.folder)

    def _run_once(self, command: list[str | Path], log: Path) -> None:
        formatting = Process("Kafka's storage tool", command, log=log, directory=self.folder)
        formatting.start()
        if formatting.wait(timeout=START_SECONDS) != 0:
            raise ServiceError(f"Kafka's folder could not be formatted\n{formatting.last_lines()}")

    def kafka(self) -> Kafka:
        """Return the address."""
        return Kafka(f"127.0.0.1:{self.port}", server=self)

    def answers(self) -> bool:
        """Return whether it takes requests."""
        return self.kafka().answers()


def server_properties(port: int, controller_port: int, data: Path, advertised: str | None = None) -> str:
    """Return the configuration of a broker that is its own controller, the only one of its cluster."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"HOST://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"HOST://{advertised or f'127.0.0.1:{port}'}",
        "listener.security.protocol.map": "HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "HOST",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        # Fifty partitions by default, which a broker would open one by one.
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        # A group whose member was killed is free again after seconds.
        "group.min.session.timeout.ms": 1000,
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())
