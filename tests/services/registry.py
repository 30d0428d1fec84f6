"""Apicurio's schema registry as a process of the tests' own, and its Avro converter for Kafka Connect."""

from __future__ import annotations

import tempfile
import urllib.request
from pathlib import Path

from tests.services.kafka import JAVA_OPTIONS
from tests.services.maven import copy_jars, java, unpack
from tests.services.processes import Process, free_ports
from tests.services.server import LocalServer

REGISTRY_VERSION = "2.6.13.Final"
"""The last that runs on Java 17."""
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LocalRegistry(LocalServer):
    """A registry that keeps its schemas in memory, on loopback."""

    START_SECONDS = 180

    def __init__(self, *, log: Path) -> None:
        """Get the registry.

        Args:
            log: Where to write what it says.

        Raises:
            Unavailable: Java or the registry cannot be had.
        """
        program = java()
        archive = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
        jar = unpack("apicurio-registry", archive) / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"
        [self.port] = free_ports(1)
        self.folder = Path(tempfile.mkdtemp(prefix="stream_merge-registry-"))
        options = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        command = [program, *JAVA_OPTIONS, "-Xmx384m", *options, "-jar", str(jar)]
        self.process = Process("Apicurio Registry", command, log=log, directory=self.folder)

    @property
    def url(self) -> str:
        """Its address for clients that speak Confluent's protocol."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def converter_config(self) -> dict[str, str]:
        """Return the settings of a connector by which keys and values are in Avro."""
        settings = {
            "": "io.apicurio.registry.utils.converter.AvroConverter",
            ".apicurio.registry.url": f"http://127.0.0.1:{self.port}/apis/registry/v2",
            ".apicurio.registry.auto-register": "true",
            ".apicurio.registry.find-latest": "true",
            # Confluent's protocol gives a schema by this id; by default the converter writes that of the version.
            ".apicurio.registry.use-id": "contentId",
        }
        return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in settings.items()}

    def answers(self) -> bool:
        """Return whether it takes requests."""
        try:
            with OPENER.open(f"{self.url}/schemas/types", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


def converter_jars() -> Path:
    """Return the folder of the converter's jars.

    Raises:
        Unavailable: They cannot be had.
    """
    return copy_jars("apicurio-converter", [f"io.apicurio:apicurio-registry-utils-converter:{REGISTRY_VERSION}"])
