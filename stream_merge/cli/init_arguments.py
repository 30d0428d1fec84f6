"""Holds the arguments by which `init` writes a pipeline file from what a broker has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from stream_merge.cli.errors import ExitCode, PipelineError

DEFAULT_LAKE = "./lake"


class InitSource(str, Enum):
    """What `init` can write a pipeline file from."""

    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class InitArguments:
    """The arguments of `init --from kafka`."""

    bootstrap_servers: str | None = None
    topics: str | None = None
    options: tuple[str, ...] = ()
    registry: str | None = None
    lake: str = DEFAULT_LAKE

    def check(self, source: InitSource | None) -> None:
        """Check that the arguments go together.

        Raises:
            PipelineError: They do not.
        """
        if source is None and self != InitArguments():
            raise PipelineError(
                "--bootstrap-servers, --topics, --option, --registry and --lake need --from kafka.", ExitCode.USAGE
            )
        if source is not None and self.bootstrap_servers is None:
            raise PipelineError("--from kafka needs the brokers: --bootstrap-servers HOST:PORT.", ExitCode.USAGE)
        try:
            re.compile(self.topics or "")
        except re.error as fault:
            raise PipelineError(f"--topics is not a valid pattern: {fault}.", ExitCode.USAGE) from None
