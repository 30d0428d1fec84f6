"""Starts Spark's JVM so that it ignores SIGTERM, and ends it when the start is cut off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


class _Launch(threading.local):
    """What a thread is starting."""

    report_to: int | None = None
    """Where a child of this thread writes its process id; None while it starts no JVM."""


_launch = _Launch()


@contextmanager
def starting_jvm() -> Iterator[None]:
    """Start the JVM in the block deaf to SIGTERM, as PySpark does for SIGINT, while the command itself listens to both.

    Who ends a service may send the signal to all of its processes, and the JVM would stop Spark in the middle of a micro-batch.
    It ends when the command does, since its standard input ends then; but not while it fetches packages, which can take minutes.
    So a signal that ends the block kills it.
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
    """Have children of this process run `_begin_child`, once for all, since such a hook cannot be taken back.

    PySpark hands no hook of ours on to its Popen, but starts the JVM with one of its own (`preexec_fn`), so that Python's run, too.
    """
    os.register_at_fork(after_in_child=_begin_child)


def _begin_child() -> None:
    if _launch.report_to is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The shell script that it begins as becomes the JVM: the number stays.
        os.write(_launch.report_to, b"%d\n" % os.getpid())


def _kill(reports: int) -> None:
    """Kill the children that have reported themselves."""
    os.set_blocking(reports, False)
    with suppress(BlockingIOError):
        for number in os.read(reports, 4096).split():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(int(number), signal.SIGKILL)
                os.waitpid(int(number), 0)
