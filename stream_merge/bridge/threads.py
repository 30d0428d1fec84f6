"""Runs tasks in a bounded number of threads; a failed task does not stop the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.bridge.sessions import active, job_description

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class Outcomes(Generic[K, T]):
    """The outcomes of tasks, by the key of each task.

    Attributes:
        results: Returned values.
        failures: Raised errors.
        pending: Tasks that were not started.
    """

    results: dict[K, T] = field(default_factory=dict)
    failures: dict[K, Exception] = field(default_factory=dict)
    pending: list[K] = field(default_factory=list)


def run_side_by_side(
    spark: SparkSession,
    tasks: Mapping[K, Callable[[], T]],
    *,
    max_parallel: int,
    may_begin: Callable[[], bool] = lambda: True,
) -> Outcomes[K, T]:
    """Run the tasks in order, at most `max_parallel` at a time, and return when all started ones have ended.

    If one at a time is enough, the calling thread runs them. Otherwise new threads do, with the caller's local
    properties of Spark: its job group (so that stopping the query ends their jobs), its pool and its execution id. The
    session is active in them: Delta takes the settings of the active one, which would be the application's.

    Args:
        spark: The session of the tasks.
        tasks: The tasks, each with a key of its own.
        max_parallel: The largest number of threads.
        may_begin: Called before each task; once it returns False, no other task starts.
    """
    work = _Work(spark, tasks, may_begin)
    num_threads = min(max_parallel, len(tasks))
    if num_threads <= 1:
        work.do()
    else:
        work.do_in_threads([InheritableThread(target=work.do_in_thread, session=spark) for _ in range(num_threads)])
    work.outcomes.pending = list(work.waiting)
    return work.outcomes


class BackgroundTask(Generic[T]):
    """A call that runs in its own thread during the caller's block.

    The thread has the caller's session and local properties of Spark, as in `run_side_by_side`. The block does not end
    before the call. `result` raises the call's error, and so does the end of the block if the block raised none.
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

    def start(self) -> None:
        """Begin without a block. The caller has to see that it ends, by `result`."""
        self._thread.start()

    def __enter__(self) -> BackgroundTask[T]:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # In any case: the running call may still use what the caller holds.
        self._thread.join()
        if kind is None:
            self.result()

    def result(self) -> T:
        """Wait for the call, and return its result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]


class _Work(Generic[K, T]):
    """Tasks that several threads take from a queue."""

    def __init__(self, spark: SparkSession, tasks: Mapping[K, Callable[[], T]], may_begin: Callable[[], bool]) -> None:
        self._spark = spark
        self.outcomes: Outcomes[K, T] = Outcomes()
        self.waiting = deque(tasks)
        self._tasks = tasks
        self._may_begin = may_begin
        self._broken: list[BaseException] = []

    def do(self) -> None:
        """Run waiting tasks, one after the other."""
        while self.waiting and self._may_begin():
            try:
                key = self.waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.outcomes.results[key] = self._tasks[key]()
            except Exception as error:  # noqa: BLE001 - the caller raises it, with what else has failed
                self.outcomes.failures[key] = error

    def do_in_thread(self) -> None:
        """Run waiting tasks in a thread of their own."""
        try:
            with active(self._spark):
                self.do()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._broken.append(error)
            self.waiting.clear()

    def do_in_threads(self, threads: Sequence[threading.Thread]) -> None:
        """Let the threads run the waiting tasks, and wait for them."""
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            # The caller is interrupted: start nothing more, but wait, since running tasks may still use what the caller
            # holds.
            self.waiting.clear()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._broken:
            raise self._broken[0]
