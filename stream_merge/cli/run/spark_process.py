"""Starts Spark's JVM so that it ignores SIGTERM, and kills it if the start is interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


class _Launch(threading.local):
    """The JVM that a thread is starting."""

    report_to: int | None = None
    """Pipe to which a child of this thread writes its process id; None while the thread starts no JVM."""


_launch = _Launch()


@contextmanager
def starting_jvm() -> Iterator[None]:
    """Make a JVM that the block starts ignore SIGTERM, as PySpark does for SIGINT, while the command handles both.

    A service manager may send the signal to all processes of a service, and the JVM would stop Spark in the middle of a
    micro-batch. The JVM ends with the command, when its standard input closes, but not while it fetches packages, which
    can take minutes. So a signal that ends the block kills it.
    """
    _hear_of_forks()
    read_end, write_end = os.pipe()
    _launch.report_to = write_end
    try:
        yield
    except Exception:
        raise
    except BaseException:
        _kill(read_end)
        raise
    finally:
        _launch.report_to = None
        os.close(write_end)
        os.close(read_end)


@cache
def _hear_of_forks() -> None:
    """Make children of this process run `_begin_child`; once, since the hook cannot be removed.

    PySpark does not pass hooks on to its Popen, but it starts the JVM with a hook of its own (`preexec_fn`), so that
    Python's fork hooks run as well.
    """
    os.register_at_fork(after_in_child=_begin_child)


def _begin_child() -> None:
    if _launch.report_to is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The child begins as a shell script and becomes the JVM, with the same process id.
        os.write(_launch.report_to, b"%d\n" % os.getpid())


def _kill(reports: int) -> None:
    """Kill the children that have reported their ids."""
    os.set_blocking(reports, False)
    with suppress(BlockingIOError):
        for number in os.read(reports, 4096).split():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(int(number), signal.SIGKILL)
                os.waitpid(int(number), 0)
