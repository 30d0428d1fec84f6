"""What can start and stop a service at one address, with its data."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from tests.services.processes import Process


class Server(Protocol):
    """What can start and stop a service at one address, with its data."""

    def start(self) -> None:
        """Start it and wait until it answers."""

    def stop(self) -> None:
        """Stop it in good order."""

    def kill(self) -> None:
        """Take it away at once, as a crash would."""

    def last_lines(self) -> str:
        """Return the end of its log."""


class LocalServer(ABC):
    """A process on loopback, with a folder of its own."""

    START_SECONDS: float
    folder: Path
    process: Process

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it takes requests."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until("answers", self.answers, timeout=self.START_SECONDS)

    def stop(self) -> None:
        """Stop it in good order."""
        self.process.stop()

    def kill(self) -> None:
        """Take it away at once, as a crash would."""
        self.process.kill()

    def last_lines(self) -> str:
        """Return the end of its log."""
        return self.process.last_lines()

    def close(self) -> None:
        """Kill it, and remove its data."""
        if self.process.is_running:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
