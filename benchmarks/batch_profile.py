"""Where the time of a batch goes: the phases, and the Spark jobs that run in them.

`python -m benchmarks.batch_profile` merges batches of one workload of `merge_speed.py` by the sink, each beside a plain
append of its rows, and reads Spark's event log afterwards. It prints the median batch: when each phase and each job
begins and how long it takes, how long any job runs, and how long none does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import SETTINGS, start_session
from benchmarks.merge_speed import describe_machine
from benchmarks.workloads import WORKLOADS, Changes, append_batch, batch_schema, copy_target, create_target, make_sink

PHASES = ("open", "source", "locate", "stage", "commit")


@dataclass(slots=True)
class Job:
    """A Spark job: what it is for, when it begins after the batch does, and how long it takes, in milliseconds."""

    name: str
    start: float
    ms: float
    num_tasks: int = 0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class Batch:
    """A batch: when it began in milliseconds since the epoch, how long it and an append took, its phases and jobs."""

    began: float
    ms: float
    append_ms: float
    phases: dict[str, float]
    jobs: list[Job] = field(default_factory=list)

    @property
    def busy_ms(self) -> float:
        """How long at least one job ran."""
        busy, until = 0.0, 0.0
        for job in sorted(self.jobs, key=lambda job: job.start):
            end = job.start + job.ms
            busy += max(0.0, end - max(job.start, until))
            until = max(until, end)
        return busy


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    options = _parse(arguments)
    workdir = Path(tempfile.mkdtemp(prefix="stream_merge-profile-", dir=options.workdir))
    try:
        batches = _measure(options, workdir)
        add_jobs(batches, workdir / "events")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
    print(describe_machine())
    print()
    print("\n".join(format_profile(batches)))
    return 0


def _measure(options: argparse.Namespace, workdir: Path) -> list[Batch]:
    workload = WORKLOADS[options.workload]
    (workdir / "events").mkdir()
    events = {"enabled": "true", "dir": f"file:{workdir}/events", "rolling.enabled": "false", "compress": "false"}
    settings = SETTINGS[options.settings] | {f"spark.eventLog.{name}": value for name, value in events.items()}
    spark = start_session(workdir, settings, options.driver_memory)
    try:
        create_target(spark, workdir / "append", workload, options.rows)
        copy_target(workdir / "append", workdir / "merge")
        changes = Changes(workload, options.rows, options.batch_rows)
        paths = [workdir / f"batch-{number:03d}" for number in range(options.warmup + options.rounds)]
        for path in paths:
            changes.write_batch(spark, path)
        schema = batch_schema(spark, paths[0])
        append, sink = append_batch(workdir / "append"), make_sink(workdir / "merge", workload)
        batches = []
        for path in paths:
            started = time.perf_counter()
            append(spark.read.schema(schema).parquet(str(path)))
            append_ms = (time.perf_counter() - started) * 1000
            began, started = time.time() * 1000, time.perf_counter()
            result = sink.merge(spark.read.schema(schema).parquet(str(path)))
            took = (time.perf_counter() - started) * 1000
            batches.append(Batch(began, took, append_ms, dict(result.phase_ms)))
        return batches[options.warmup :]
    finally:
        spark.stop()


def add_jobs(batches: Sequence[Batch], folder: Path) -> None:
    """Give each batch the jobs that ran while it was merged, by the log of Spark's events."""
    (log,) = folder.iterdir()
    jobs: dict[int, dict[str, Any]] = {}
    tasks: dict[int, list[float]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart":
                jobs[event["Job ID"]] = event
            case "SparkListenerJobEnd":
                jobs[event["Job ID"]]["end"] = event["Completion Time"]
            case "SparkListenerTaskEnd":
                cpu = (event.get("Task Metrics") or {}).get("Executor CPU Time", 0) / 1e6
                tasks.setdefault(event["Stage ID"], []).append(cpu)
    for job in jobs.values():
        start = job["Submission Time"]
        of_job = [cpu_ms for stage in job["Stage IDs"] for cpu_ms in tasks.get(stage, [])]
        for batch in batches:
            if batch.began <= start <= batch.began + batch.ms and "end" in job:
                name = str((job.get("Properties") or {}).get("spark.job.description") or "").rpartition(": ")[2]
                batch.jobs.append(Job(name, start - batch.began, job["end"] - start, len(of_job), sum(of_job)))


def format_profile(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield the lines of the table; times are medians."""
    merge, append = (statistics.median([getattr(each, name) for each in batches]) for name in ("ms", "append_ms"))
    yield f"A batch takes {merge:.0f} ms, an append of its rows {append:.0f} ms: {merge / append:.2f} appends."
    yield ""
    yield "| | begins at, ms | takes, ms | tasks | of them processor time, ms |"
    yield "|---|---|---|---|---|"
    took = {phase: statistics.median([batch.phases.get(phase, 0) for batch in batches]) for phase in PHASES}
    jobs = _median_jobs(batches)
    begins = 0.0
    for phase in PHASES:
        yield f"| **{phase}** | {begins:.0f} | {took[phase]:.0f} | | |"
        begins += took[phase]
        while jobs and (jobs[0].start < begins or phase == PHASES[-1]):
            job = jobs.pop(0)
            yield f"| job: {job.name} | {job.start:.0f} | {job.ms:.0f} | {job.num_tasks:.0f} | {job.cpu_ms:.0f} |"
    busy = statistics.median([batch.busy_ms for batch in batches])
    yield ""
    idle = statistics.median([batch.ms - batch.busy_ms for batch in batches])
    yield f"A job runs for {busy:.0f} ms, none for {idle:.0f} ms."


def _median_jobs(batches: Sequence[Batch]) -> list[Job]:
    """Return the jobs of most batches in their order, each with its medians."""
    number = statistics.mode([len(batch.jobs) for batch in batches])
    ordered = [sorted(batch.jobs, key=lambda job: job.start) for batch in batches if len(batch.jobs) == number]
    found = []
    for alike in zip(*ordered, strict=True):
        start, ms, num_tasks, cpu_ms = (
            statistics.median([getattr(job, name) for job in alike]) for name in ("start", "ms", "num_tasks", "cpu_ms")
        )
        found.append(Job(statistics.mode([job.name for job in alike]), start, ms, round(num_tasks), cpu_ms))
    return sorted(found, key=lambda job: job.start)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--workload", choices=WORKLOADS, default="random_ordered", metavar="NAME", help="default: %(default)s")
    option("--settings", choices=SETTINGS, default="tuned", help="kind of session (default: %(default)s)")
    option("--rows", type=int, default=1_000_000, help="rows of the table (default: %(default)s)")
    option("--batch-rows", type=int, default=10_000, help="rows of a batch (default: %(default)s)")
    option("--rounds", type=int, default=20, help="batches that count (default: %(default)s)")
    option("--warmup", type=int, default=22, help="batches before them that do not (default: %(default)s)")
    option("--driver-memory", default="4g", help="memory of Spark (default: %(default)s)")
    option("--workdir", type=Path, help="where the tables are built (default: the system's temporary directory)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
