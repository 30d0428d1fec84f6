"""What does a batch cost with the number of tables, and does memory grow? Many tables of one section, from files.

`python -m benchmarks.many_tables` lets `stream-merge run --once` take the changes of 200 tables by one section with a
pattern, one file a micro-batch. In the first all tables have rows, and are created. In the others 1, 10 or 50 of them
have rows, in turns of ten batches; every table has its turn. After each turn it reads the resident memory of the JVM
and of Python, and the JVM's heap after a collection. In the end every table must have the rows of the database.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.database_events import PATTERN, Database, Table, write_file
from benchmarks.measure import SETTINGS, start_session
from benchmarks.merge_speed import describe_machine
from benchmarks.meters import Sampler
from benchmarks.throughput import batch_ends, children_of, files_source, pipeline_text, run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTION = """
[[tables]]
source = '{pattern}'
target = "{root}/lake/{{table}}"
"""
_LAST_BATCH = re.compile(r" INFO .*: batch (\d+), version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory after a batch, in MB."""

    batch: int
    jvm: int
    python: int
    heap: int


class MemoryMeter(Sampler):
    """Reads the memory of the command after each turn of batches, while the block runs."""

    def __init__(self, pid: int, log: Path, turn: int) -> None:
        super().__init__(0.2)
        self.pid = pid
        self.log = log
        self.turn = turn
        self.readings: list[Memory] = []
        self._due = turn

    def sample(self) -> None:
        """Read the memory if a turn has ended."""
        begun = [int(number) for number in _LAST_BATCH.findall(self.log.read_text())]
        if begun and max(begun) >= self._due:
            self._due = (max(begun) // self.turn + 1) * self.turn
            self._read(max(begun))

    def _read(self, batch: int) -> None:
        try:
            (jvm,) = (pid for pid in children_of(self.pid) if _name(pid) == "java")
            subprocess.run(["jcmd", f"{jvm}", "GC.run"], check=True, capture_output=True, timeout=60)
            told = subprocess.run(["jcmd", f"{jvm}", "GC.heap_info"], check=True, capture_output=True, text=True).stdout
        except (OSError, ValueError, subprocess.SubprocessError):  # it has ended
            return
        heap = sum(int(kilobytes) for kilobytes in re.findall(r"heap .*used (\d+)K", told)) // 1024
        memory = Memory(batch=batch, jvm=_resident(jvm), python=_resident(self.pid), heap=heap)
        self.readings.append(memory)


def main() -> None:
    """Measure and print."""
    options = _options()
    print(f"{describe_machine()} Load average before: {os.getloadavg()[0]:.1f}.\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="stream_merge-benchmark-") as folder:
        root = Path(folder)
        database = Database(options.tables)
        sizes = write_batches(database, root / "records", options)
        conf = {"spark.driver.memory": options.driver_memory, **dict(each.split("=", 1) for each in options.conf)}
        text = pipeline_text(root, files_source(root), conf, is_routed=True)
        text += SECTION.format(pattern=PATTERN, root=root)
        meters: list[MemoryMeter] = []

        def meter(pid: int, log: Path) -> MemoryMeter:
            meters.append(MemoryMeter(pid, log, options.turn))
            return meters[0]

        log = run_once(root, text, meter)
        if options.keep_log is not None:
            options.keep_log.write_text(log)
        report(sizes, batch_ends(log), meters[0].readings, options)
        print(f"Load average after: {os.getloadavg()[0]:.1f}.", flush=True)
        check(root, database, options)


def write_batches(database: Database, path: Path, options: argparse.Namespace) -> list[int]:
    """Write a file for each micro-batch; return how many tables have rows in each."""
    path.mkdir()
    sizes = [
        options.tables,
        *(size for _ in range(options.rounds) for size in options.sizes for _ in range(options.turn)),
    ]
    first = 0
    for place, size in enumerate(sizes):
        # Each batch goes on with the tables after those of the last one.
        chosen: list[Table] = [database.tables[(first + i) % options.tables] for i in range(size)]
        first += size
        write_file(path / f"{place:05d}.parquet", database.change(chosen, options.changes), place)
    return sizes


def report(sizes: Sequence[int], ends: dict[int, float], memory: Sequence[Memory], options: argparse.Namespace) -> None:
    """Print the time of a batch by the number of its tables, and the memory."""
    times: dict[int, list[float]] = defaultdict(list)
    for batch in range(1, len(sizes)):
        # A collection of the whole heap is part of the first batch of a turn.
        if batch % options.turn != 1 and batch in ends and batch - 1 in ends:
            times[sizes[batch]].append(ends[batch] - ends[batch - 1])
    print(f"{options.tables} tables, {options.changes} changes of each table that has rows.\n")
    print("| tables with rows | seconds a batch, first turn | last turn | seconds a table, last turn |")
    print("|---|---|---|---|")
    for size, seconds in sorted(times.items()):
        first, last = statistics.median(seconds[: options.turn - 1]), statistics.median(seconds[1 - options.turn :])
        print(f"| {size} | {first:.2f} | {last:.2f} | {last / size:.3f} |")
    print("\n| after batch | resident memory of the JVM, MB | of Python | heap after a collection |")
    print("|---|---|---|---|")
    for each in memory:
        print(f"| {each.batch} | {each.jvm:,} | {each.python:,} | {each.heap:,} |")


def check(root: Path, database: Database, options: argparse.Namespace) -> None:
    """Compare each table with the database's.

    Raises:
        AssertionError: They differ.
    """
    spark = start_session(root, SETTINGS["tuned"], options.driver_memory)
    for table in database.tables:
        assert rows_of(spark, root / "lake" / table.name, table) == sorted(table.rows.values(), key=repr), table.name
    print(f"\nAll {len(database.tables)} tables have the rows of the database.")
    spark.stop()


def rows_of(spark: SparkSession, path: Path, table: Table) -> list[tuple[object, ...]]:
    """Return the rows of a Delta table in the order of `repr`."""
    frame = spark.read.format("delta").load(str(path))
    columns = [f"`{name.replace('`', '``')}`" for name in table.columns]
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _resident(pid: int) -> int:
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) // 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--tables", type=int, default=200, help="number of tables (default: %(default)s)")
    option("--sizes", type=int, nargs="+", default=[1, 10, 50], help="tables with rows (default: 1 10 50)")
    option("--rounds", type=int, default=2, help="how often each size has its turn (default: %(default)s)")
    option("--turn", type=int, default=10, help="how many batches a turn has (default: %(default)s)")
    option("--changes", type=int, default=20, help="changes of a table in a batch (default: %(default)s)")
    option("--driver-memory", default="2g", help="memory of Spark (default: %(default)s)")
    option("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark, again and again")
    option("--keep-log", type=Path, metavar="FILE", help="where to copy the command's log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
