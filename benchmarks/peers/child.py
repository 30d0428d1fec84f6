"""A process of its own for one system: the batches in turns with a plain append, then contents, size and reading.

python -m benchmarks.peers.child TASK.json RESULT.json
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.measure import SETTINGS, start_session
from benchmarks.meters import Meters, read_in_turn
from benchmarks.peers.data import COLUMN_NAMES, PARQUET, WORKLOAD, Data
from benchmarks.peers.systems import APPEND, SYSTEMS, System, session_of
from benchmarks.workloads import fingerprint_of, target_rows

PREPARE = "prepare"
"""The task that writes the batches, in place of a system's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the process is to do.

    Attributes:
        system: Name of the system, or `prepare`.
        num_rows: Rows of the table before the first batch.
        batch_rows: Rows of a batch.
        rounds: Batches that count.
        warmup: Batches before them.
        data: Folder of the batches.
        workdir: Folder for the tables.
        driver_memory: Memory of Spark.
    """

    system: str
    num_rows: int
    batch_rows: int
    rounds: int
    warmup: int
    data: str
    workdir: str
    driver_memory: str


@dataclass(slots=True, kw_only=True)
class Result:
    """What was measured of one system and of the append beside it.

    Attributes:
        task: The task.
        versions: Versions of Spark and the system.
        ms: Milliseconds of each batch that counts, by `append` and `system`.
        written: Bytes of the files that each of these batches wrote, by the same names.
        wrong: What differs from the rows that should be there, a sentence each.
        read: Seconds to read the table.
        read_fresh: Seconds to read a fresh copy of it.
        load: The machine's load average before and after.
    """

    task: dict[str, Any]
    versions: str
    ms: dict[str, list[float]]
    written: dict[str, list[int]]
    wrong: list[str] = field(default_factory=list)
    read: float = 0.0
    read_fresh: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)


def measure(spark: SparkSession, task: Task) -> Result:
    """Merge all batches, by the system and by append in turns, and measure."""
    data, system = Data(Path(task.data)), SYSTEMS[task.system]
    tables = Path(task.workdir) / "tables.db"
    paths = {"append": tables / "appended", "system": tables / "merged"}
    base = target_rows(spark, WORKLOAD, task.num_rows)
    APPEND.create(base, paths["append"])
    system.create(base, paths["system"])
    merges = {"append": APPEND.merger(paths["append"]), "system": system.merger(paths["system"])}
    meters = Meters(spark)
    result = Result(
        task=asdict(task), versions=_versions(system), ms={name: [] for name in merges}, written={n: [] for n in merges}
    )
    load = os.getloadavg()[0]
    for number in range(task.warmup + task.rounds):
        batch = data.batch(spark, number)
        for name in (*merges,) if number % 2 else (*reversed(merges),):
            before = _files(paths[name])
            with meters.read() as reading:
                merges[name](batch)
            if number >= task.warmup:
                result.ms[name].append(reading.ms)
                result.written[name].append(written_bytes(before, _files(paths[name])))
    result.load = (load, os.getloadavg()[0])
    _compare(spark, result, data, {"appended": (APPEND, paths["append"]), "merged": (system, paths["system"])})
    _read(spark, result, system, data, tables)
    return result


def written_bytes(before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]) -> int:
    """Return the size of the files that are new or were written over."""
    return sum(size for path, (size, time) in after.items() if before.get(path) != (size, time))


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of all files of a table, without the checksums that Hadoop keeps on a local disk only."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not (path.name.startswith(".") and path.suffix == ".crc"):
            status = path.stat()
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def _compare(spark: SparkSession, result: Result, data: Data, tables: dict[str, tuple[System, Path]]) -> None:
    expected = data.fingerprints()
    for name, (system, path) in tables.items():
        found = fingerprint_of(system.read(spark, path).select(*COLUMN_NAMES))
        if found != expected[name]:
            result.wrong.append(
                f"{system.title}: {found[0]:,} rows with the hash {found[1]}, not {expected[name][0]:,} with "
                f"{expected[name][1]}"
            )


def _read(spark: SparkSession, result: Result, system: System, data: Data, tables: Path) -> None:
    # The fresh copy has files of the same size as the table had at first.
    num_files = target_rows(spark, WORKLOAD, result.task["num_rows"]).rdd.getNumPartitions()
    system.create(data.expected(spark).repartition(num_files), tables / "fresh")
    result.read, result.read_fresh = read_in_turn(
        lambda: system.read(spark, tables / "merged"), lambda: system.read(spark, tables / "fresh")
    )


def _versions(system: System) -> str:
    if system.package:
        return f"{system.package.rpartition(':')[2]}, Spark {version('pyspark')}"
    return f"{version(system.distribution)}, Spark {version('pyspark')}"


def run(task: Task) -> dict[str, Any]:
    """Do the task in a Spark of its own."""
    workdir = Path(task.workdir)
    is_prepare = task.system == PREPARE
    settings = SETTINGS["tuned"] | (PARQUET if is_prepare else session_of(SYSTEMS[task.system], workdir))
    spark = start_session(workdir, settings, task.driver_memory)
    try:
        if is_prepare:
            num_batches = task.warmup + task.rounds
            Data(Path(task.data)).write(
                spark, num_rows=task.num_rows, batch_rows=task.batch_rows, num_batches=num_batches
            )
            return {}
        return asdict(measure(spark, task))
    finally:
        spark.stop()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(run(Task(**given)), indent=1), encoding="utf-8")
