"""What the benchmarks count beside the time: Spark jobs, calls into the JVM, processor time."""

from __future__ import annotations

import os
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

RELEASE_COMMAND = "m\n"
"""What py4j sends when Python has dropped a Java object, at a time of its own; not a call."""

READS = 7
"""How often a table is read; the first two times do not count."""


@dataclass(slots=True)
class Reading:
    """What one operation took.

    Attributes:
        ms: Milliseconds on the clock.
        cpu_ms: Milliseconds of processor time of the JVM and this process; 0 where the system does not tell.
        num_jobs: Spark jobs.
        num_calls: Calls from Python into the JVM.
    """

    ms: float = 0.0
    cpu_ms: float = 0.0
    num_jobs: int = 0
    num_calls: int = 0


class Sampler(ABC):
    """Takes samples in a thread of its own while the block runs."""

    def __init__(self, pause: float) -> None:
        """Take one after each pause, in seconds."""
        self._pause = pause
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._pause):
            self.sample()

    @abstractmethod
    def sample(self) -> None:
        """Take a sample."""


class Meters:
    """Reads the meters of one session around an operation."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        gateway: Any = spark.sparkContext._gateway
        self._scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        self._jvm_stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
        self._num_calls = 0
        client = gateway._gateway_client
        client.send_command = self._counted(client.send_command)

    def _counted(self, send_command: Callable[..., str]) -> Callable[..., str]:
        def send(command: str, *args: Any, **kwargs: Any) -> str:
            self._num_calls += not command.startswith(RELEASE_COMMAND)
            return send_command(command, *args, **kwargs)

        return send

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Fill the reading in when the block ends."""
        reading = Reading()
        jobs = self._scheduler.numTotalJobs()
        cpu = self._cpu_ms()
        calls = self._num_calls
        start = time.perf_counter()
        try:
            yield reading
        finally:
            reading.ms = (time.perf_counter() - start) * 1000
            reading.num_calls = self._num_calls - calls
            reading.cpu_ms = self._cpu_ms() - cpu
            reading.num_jobs = self._scheduler.numTotalJobs() - jobs

    def _cpu_ms(self) -> float:
        own = time.process_time() * 1000
        if not self._jvm_stat.exists():
            return own
        # The name in parentheses may hold spaces; user and system time are the 14th and 15th fields.
        fields = self._jvm_stat.read_text().rpartition(")")[2].split()
        return own + (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def peak_memory(spark: SparkSession) -> dict[str, int]:
    """Return the most memory that the JVM and Python have held so far, in MiB, files mapped into it included; nothing
    where the system does not tell."""
    jvm: Any = spark._jvm
    processes = {"JVM": jvm.java.lang.ProcessHandle.current().pid(), "Python": os.getpid()}
    peaks = {}
    for name, pid in processes.items():
        status = Path(f"/proc/{pid}/status")
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("VmHWM:"):
                peaks[name] = int(line.split()[1]) >> 10
    return peaks


def read_in_turn(*tables: Callable[[], DataFrame]) -> list[float]:
    """Return the median of the seconds that it takes to open each table and read all its columns."""
    times: list[list[float]] = [[] for _ in tables]
    for _ in range(READS):
        for open_table, of_table in zip(tables, times, strict=True):
            started = time.perf_counter()
            rows = open_table()
            rows.agg(*[F.max(column) for column in rows.columns], F.count(F.lit(1))).collect()
            of_table.append(time.perf_counter() - started)
    return [statistics.median(of_table[2:]) for of_table in times]
