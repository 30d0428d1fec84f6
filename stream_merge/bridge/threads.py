"""Runs several tasks at once, a bounded number, each of which may fail for itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.bridge.sessions import active, job_description

T = TypeVar("T")


@dataclass(slots=True)
class Outcomes(Generic[T]):
    """What came of each task, by name.

    Attributes:
        results: What the tasks returned.
        failures: What they raised.
        pending: Tasks that were not begun any more.
    """

    results: dict[str, T] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)


def run_side_by_side(
    spark: SparkSession,
    tasks: Mapping[str, Callable[[], T]],
    *,
    max_parallel: int,
    may_begin: Callable[[], bool] = lambda: True,
) -> Outcomes[T]:
    """Run the tasks in their order, at most `max_parallel` at a time, and return when all that were begun have ended.

    Where one at a time is enough, that is the calling thread. Else the threads are new ones, which have the caller's local
    properties of Spark: its job group (so that stopping the query ends their jobs), its pool and its execution id.

    Args:
        spark: The session of the tasks.
        tasks: What to do, by name.
        max_parallel: How many threads there are.
        may_begin: Asked before each task; no other is begun once it says no.
    """
    work = _Work(tasks, may_begin)
    num_threads = min(max_parallel, len(tasks))
    if num_threads <= 1:
        work.do()
    else:
        work.do_in_threads([InheritableThread(target=work.do_in_thread, session=spark) for _ in range(num_threads)])
    work.outcomes.pending = list(work.waiting)
    return work.outcomes


class BackgroundTask(Generic[T]):
    """A call that runs in a thread of its own while the caller's block does something else.

    The thread has the caller's session and local properties of Spark, as those of `run_side_by_side` do. The block does not
    end before the call has ended; what the call raised is raised by `result`, and at the end of a block that raised nothing.
    """

    def __init__(self, spark: SparkSession, description: str, call: Callable[[], T]) -> None:
        self._spark = spark
        self._description = description
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread = InheritableThread(target=self._run, session=spark)

    def _run(self) -> None:
        try:
            with active(self._spark), job_description(self._spark, self._description), without_call_sites():
                self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = error

    def __enter__(self) -> BackgroundTask[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Whatever has happened: what runs may still use what the caller holds.
        self._thread.join()
        if kind is None:
            self.result()

    def result(self) -> T:
        """Wait, and return what the call returned or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]


class _Work(Generic[T]):
    """Tasks that several threads take from a queue."""

    def __init__(self, tasks: Mapping[str, Callable[[], T]], may_begin: Callable[[], bool]) -> None:
        self.outcomes: Outcomes[T] = Outcomes()
        self.waiting = deque(tasks)
        self._tasks = tasks
        self._may_begin = may_begin
        self._broken: list[BaseException] = []

    def do(self) -> None:
        """Do what waits, one after the other."""
        while self.waiting and self._may_begin():
            try:
                name = self.waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.outcomes.results[name] = self._tasks[name]()
            except Exception as error:  # noqa: BLE001 - the caller raises it, with what else has failed
                self.outcomes.failures[name] = error

    def do_in_thread(self) -> None:
        """Do what waits, in a thread of its own."""
        try:
            self.do()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._broken.append(error)
            self.waiting.clear()

    def do_in_threads(self, threads: Sequence[threading.Thread]) -> None:
        """Let the threads do what waits, and wait for them."""
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            # The caller is interrupted: nothing more is begun, and what runs may still use what the caller holds.
            self.waiting.clear()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._broken:
            raise self._broken[0]
