"""Processes that tests start: waited for, stopped or killed, with the end of what they printed in every error."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

LAST_LINES = 40
POLL_SECONDS = 0.1
UNPRIVILEGED = ("postgres", "nobody")
"""Users that take the place of root for programs that refuse to run as root."""


class ServiceError(Exception):
    """A service did not do what a test needs of it."""


class Unavailable(Exception):  # noqa: N818
    """Something that a service needs is not on this machine; says what."""


class Process:
    """A process whose output goes to a log. It can be started again after its end, with the same log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        user: str | None = None,
    ) -> None:
        """Describe a process; nothing is started.

        Args:
            name: What errors call it.
            command: The program and its arguments.
            log: File that standard output and standard error are appended to.
            environ: Its environment; that of the tests by default.
            directory: Its working directory.
            user: Whom it runs as, if the tests run as root.
        """
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self.environ = dict(os.environ if environ is None else environ)
        self.directory = directory
        self.user = user
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        return None if self._child is None else self._child.poll()

    @property
    def pid(self) -> int:
        """The id of the process that runs, or ran last."""
        if self._child is None:
            raise ServiceError(f"{self.name} was not started")
        return self._child.pid

    def start(self) -> None:
        """Start the process; it must not be running."""
        if self.is_running:
            raise ServiceError(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._child = self._spawn(output)

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        account = pwd.getpwnam(self.user) if self.user else None
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environ,
            cwd=self.directory,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    def wait_until(self, what: str, condition: Callable[[], bool], *, timeout: float) -> None:
        """Wait until the condition holds.

        Raises:
            ServiceError: The process has ended, or `timeout` seconds have passed.
        """

        def holds() -> bool:
            if not self.is_running:
                raise ServiceError(f"{self.name} ended with {self.exit_code} instead of: {what}\n{self.last_lines()}")
            return condition()

        try:
            wait_until(f"{self.name}: {what}", holds, timeout=timeout)
        except TimeoutError as fault:
            raise ServiceError(f"{fault}\n{self.last_lines()}") from None

    def wait(self, *, timeout: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            ServiceError: It still runs after `timeout` seconds; it is killed then.
        """
        if self._child is None:
            raise ServiceError(f"{self.name} was not started")
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            last_lines = self.last_lines()
            self.kill()
            raise ServiceError(f"{self.name} did not end within {timeout:.0f} s\n{last_lines}") from None

    def stop(self, signal_number: int = signal.SIGTERM, *, timeout: float = 60) -> int:
        """Send a signal to the process alone, wait for its end and return the exit code."""
        if self.is_running:
            os.kill(self.pid, signal_number)
        return self.wait(timeout=timeout)

    def kill(self) -> None:
        """Kill it with -9, with all that it has started; nothing if it has ended."""
        if self._child is None:
            return
        if self.is_running:
            for pid in [self.pid, *descendants(self.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._child.wait()

    def last_lines(self, number: int = LAST_LINES) -> str:
        """Return the end of what it printed."""
        if not self.log.exists():
            return "(it printed nothing)"
        lines = self.log.read_text(errors="replace").splitlines()[-number:]
        return "\n".join([f"The end of {self.log}:", *lines])


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have; none where there is no /proc.

    They are not told by a process group: what ends the group of the tests must end them, too.
    """
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            # "pid (name) state parent ...", and the name may have anything in it.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def wait_until(what: str, condition: Callable[[], bool], *, timeout: float) -> None:
    """Wait until the condition holds; it is looked at every tenth of a second.

    Raises:
        TimeoutError: It did not hold within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


def free_ports(number: int) -> list[int]:
    """Return ports of the loopback address on which nothing listens."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_listening(host: str, port: int) -> bool:
    """Tell whether a TCP connection is accepted."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def unprivileged_user() -> str | None:
    """Return whom to run a program as that refuses root; None if the tests are not root.

    Raises:
        Unavailable: There is no such user.
    """
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    for name in UNPRIVILEGED:
        if name in known:
            return name
    raise Unavailable(f"the tests run as root, and there is none of the users {', '.join(UNPRIVILEGED)}")
