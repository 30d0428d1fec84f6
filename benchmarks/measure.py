"""One child process of a benchmark: one workload in one session, the systems taking turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.meters import Meters, Reading, peak_memory
from benchmarks.workloads import (
    WORKLOADS,
    Changes,
    append_batch,
    batch_schema,
    copy_target,
    create_target,
    delta_merge,
    fingerprint,
    fingerprint_of,
    fold,
    make_sink,
    target_rows,
)
from stream_merge import MergeResult
from stream_merge.packages import delta_package

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SYSTEMS = ("append", "delta_merge", "stream_merge")
SETTINGS = {
    "tuned": {
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.codegen.cache.maxEntries": "1000",
    },
    "readme": {"spark.sql.codegen.cache.maxEntries": "1000"},
    "default": {},
}
"""The sessions: one for such tables; Spark's and Delta's defaults
(200 shuffle and 50 snapshot partitions, code of 100 classes kept), with what the README and the command set, and
without."""

STREAM_TRIGGER = "500 milliseconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a child is to measure."""

    workload: str
    settings: str
    mode: str
    num_rows: int
    batch_rows: int
    rounds: int
    warmup: int
    workdir: Path
    driver_memory: str
    systems: tuple[str, ...] = SYSTEMS


@dataclass(slots=True, kw_only=True)
class Measured:
    """What it measured: one reading of each system a round, and stream_merge's own results."""

    task: dict[str, Any]
    readings: dict[str, list[Reading]] = field(default_factory=lambda: {system: [] for system in SYSTEMS})
    results: list[dict[str, Any]] = field(default_factory=list)
    num_rows: dict[str, int] = field(default_factory=dict)
    is_equal: bool | None = None
    """Whether the sink's table equals MERGE's or, without one, the fold of the changes."""
    peak_mb: dict[str, int] = field(default_factory=dict)
    """The most memory that the JVM and Python held, in MiB, where the system tells."""
    index_mb: int = 0
    """Size of the key index in the table's folder after the last batch, in MiB."""
    load: tuple[float, float] = (0.0, 0.0)


def measure(task: Task) -> Measured:
    """Build the tables, run the rounds, and compare what came of them."""
    spark = start_session(task.workdir, SETTINGS[task.settings], task.driver_memory)
    try:
        return _Bench(spark, task).run()
    finally:
        spark.stop()


def start_session(workdir: Path, settings: Mapping[str, str], driver_memory: str) -> SparkSession:
    """Start Spark with Delta Lake on all cores; the settings win over what is set here."""
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("stream_merge benchmark")
        .config("spark.jars.packages", delta_package())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.driver.memory", driver_memory)
        .config("spark.local.dir", str(workdir / "spark"))
        .config("spark.sql.warehouse.dir", str(workdir / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class _Bench:
    def __init__(self, spark: SparkSession, task: Task) -> None:
        self.spark = spark
        self.task = task
        self.workload = WORKLOADS[task.workload]
        self.meters = Meters(spark)
        self.measured = Measured(task={**asdict(task), "workdir": None})
        self.num_rows = task.num_rows * self.workload.size_factor
        self.changes = Changes(self.workload, self.num_rows, task.batch_rows)
        self.batches = task.workdir / "batches"
        self.targets = {system: task.workdir / system for system in task.systems}

    def run(self) -> Measured:
        first, *others = self.targets.values()
        create_target(self.spark, first, self.workload, self.num_rows)
        for copy in others:
            copy_target(first, copy)
        for number in range(self.task.warmup + self.task.rounds):
            self.changes.write_batch(self.spark, self.batches / f"{number:03d}")
        self.schema = batch_schema(self.spark, self.batches / "000")

        load = os.getloadavg()[0]
        rounds = self._merge_batches if self.task.mode == "batch" else self._stream_batches
        rounds()
        self.measured.load = (load, os.getloadavg()[0])
        for system in self.measured.readings:
            del self.measured.readings[system][: self.task.warmup]
        del self.measured.results[: self.task.warmup]
        self.measured.peak_mb = peak_memory(self.spark)
        self.measured.index_mb = self._index_bytes() >> 20
        self._compare()
        return self.measured

    def _index_bytes(self) -> int:
        index = self.targets.get("stream_merge", self.task.workdir) / "_stream_merge" / "index"
        return sum(file.stat().st_size for file in index.rglob("*") if file.is_file())

    def _turns(self, number: int) -> list[str]:
        """Return the systems, each round another one first."""
        shift = number % len(self.task.systems)
        return [*self.task.systems[shift:], *self.task.systems[:shift]]

    def _operations(self, on_result: Callable[[MergeResult], None] | None) -> dict[str, Callable[[DataFrame], object]]:
        operations: dict[str, Callable[[DataFrame], object]] = {}
        for system, path in self.targets.items():
            match system:
                case "append":
                    operations[system] = append_batch(path)
                case "delta_merge":
                    operations[system] = delta_merge(path, self.workload)
                case _:
                    operations[system] = make_sink(path, self.workload, on_result).merge
        return operations

    def _merge_batches(self) -> None:
        operations = self._operations(self._keep)
        for number in range(self.task.warmup + self.task.rounds):
            path = str(self.batches / f"{number:03d}")
            for system in self._turns(number):
                with self.meters.read() as reading:
                    operations[system](self.spark.read.schema(self.schema).parquet(path))
                self.measured.readings[system].append(reading)

    def _stream_batches(self) -> None:
        queries = {system: self._start_query(system) for system in self.task.systems}
        try:
            for number in range(self.task.warmup + self.task.rounds):
                for system in self._turns(number):
                    self._feed(system, number)
                    with self.meters.read() as reading:
                        queries[system].processAllAvailable()
                    # On the clock is the trigger; waiting for it is not.
                    progress = [p for p in queries[system].recentProgress if p["numInputRows"] > 0][-1]
                    reading.ms = progress["durationMs"]["triggerExecution"]
                    self.measured.readings[system].append(reading)
        finally:
            for query in queries.values():
                query.stop()

    def _start_query(self, system: str) -> StreamingQuery:
        inbox = self.task.workdir / "inbox" / system
        inbox.mkdir(parents=True)
        rows = self.spark.readStream.schema(self.schema).parquet(str(inbox))
        path = self.targets[system]
        match system:
            case "append":
                writer = rows.drop("op").writeStream.format("delta").option("path", str(path))
            case "delta_merge":
                merge = delta_merge(path, self.workload)
                writer = rows.writeStream.foreachBatch(lambda batch, _: merge(batch))
            case _:
                writer = rows.writeStream.foreachBatch(make_sink(path, self.workload, self._keep))
        checkpoint = str(self.task.workdir / "checkpoints" / system)
        return writer.option("checkpointLocation", checkpoint).trigger(processingTime=STREAM_TRIGGER).start()

    def _feed(self, system: str, number: int) -> None:
        source = next((self.batches / f"{number:03d}").glob("*.parquet"))
        inbox = self.task.workdir / "inbox" / system
        # A hard link appears at once and whole.
        os.link(source, inbox / f"{number:03d}.parquet")

    def _keep(self, result: MergeResult) -> None:
        self.measured.results.append(result.to_dict() | {"phase_ms": dict(result.phase_ms)})

    def _compare(self) -> None:
        prints = {system: fingerprint(self.spark, path) for system, path in self.targets.items()}
        self.measured.num_rows = {system: count for system, (count, _) in prints.items()}
        if "stream_merge" in prints:
            expected = prints.get("delta_merge") or self._folded()
            self.measured.is_equal = prints["stream_merge"] == expected

    def _folded(self) -> tuple[int, int]:
        changes = self.spark.read.schema(self.schema).parquet(str(self.batches / "*"))
        return fingerprint_of(fold(target_rows(self.spark, self.workload, self.num_rows), changes))
