"""Defines the errors that end a command, each with one sentence for the user and an exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; `INTERRUPTED` and `TERMINATED` are the shell's codes for the two signals."""

    OK = 0
    """Done: `--once` has merged what was available, or a signal stopped the pipeline after its running micro-batch."""
    FAILED = 1
    """A micro-batch, or the query, failed for a reason that a retry does not fix."""
    USAGE = 2
    """The arguments or the pipeline file are wrong."""
    CANNOT_START = 3
    """Java, packages, a broker, a topic or a table are missing."""
    PARKED = 4
    """`--once` has merged what was available, but for tables at rest, whose records are parked."""
    DIFFERS = 5
    """`diff` has found rows that differ from those of the database."""
    INTERRUPTED = 130
    """Ctrl-C (SIGINT) interrupted a running micro-batch, or came before the pipeline ran."""
    TERMINATED = 143
    """SIGTERM interrupted a running micro-batch, or came before the pipeline ran."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return a sentence on how to install a missing Python package."""
    return f"The Python package {error.name} is not installed: pip install 'stream-merge[spark,cli]'."


class PipelineError(Exception):
    """An error that the user can fix; its text says in one sentence what is wrong and what to do.

    Attributes:
        exit_code: The exit code of the command.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class StopNow(BaseException):
    """The command must end at once: a second signal came, or the first one while no micro-batch could be running.

    Attributes:
        signal_number: The signal.
        may_cut_off: Whether a micro-batch may be running.
    """

    def __init__(self, signal_number: int, *, may_cut_off: bool = True) -> None:
        self.signal_number = signal_number
        self.may_cut_off = may_cut_off
        super().__init__(signal_number)
