"""The profile of a batch: what is made of the log of Spark's events."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.batch_profile import Batch, add_jobs, format_profile

PHASES = {"open": 10.0, "source": 100.0, "locate": 20.0, "stage": 5.0, "commit": 15.0}


def job(number: int, start: int, end: int, stage: int, description: str = "/t: write") -> list[dict[str, object]]:
    begin = {"Event": "SparkListenerJobStart", "Job ID": number, "Submission Time": start, "Stage IDs": [stage]}
    return [
        {**begin, "Properties": {"spark.job.description": description}},
        *[
            {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": {"Executor CPU Time": 4_000_000}}
            for _ in range(2)
        ],
        {"Event": "SparkListenerJobEnd", "Job ID": number, "Completion Time": end},
    ]


def test_the_jobs_of_each_batch_are_those_that_begin_in_it(tmp_path: Path) -> None:
    events = [
        *job(0, 900, 990, 0, "an append"),
        *job(1, 1020, 1060, 1, "/t: read the source"),
        *job(2, 1050, 1090, 2),
        *job(3, 1142, 1148, 3),
        *job(4, 2020, 2080, 4, "/t: read the source"),
        *job(5, 2060, 2120, 5),
        *job(6, 2140, 2144, 6),
    ]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, events)))
    batches = [Batch(1000, 150, 60, PHASES), Batch(2000, 150, 100, PHASES)]
    add_jobs(batches, tmp_path)
    assert [[(each.start, each.ms, each.num_tasks, each.cpu_ms) for each in batch.jobs] for batch in batches] == [
        [(20, 40, 2, 8), (50, 40, 2, 8), (142, 6, 2, 8)],
        [(20, 60, 2, 8), (60, 60, 2, 8), (140, 4, 2, 8)],
    ]
    # What runs beside another job is not counted twice.
    assert [batch.busy_ms for batch in batches] == [76, 104]
    first, *_, last = lines = [*format_profile(batches)]
    assert first == "A batch takes 150 ms, an append of its rows 80 ms: 1.88 appends."
    assert last == "A job runs for 90 ms, none for 60 ms."
    assert lines[4:-2] == [
        "| **open** | 0 | 10 | | |",
        "| **source** | 10 | 100 | | |",
        "| job: read the source | 20 | 50 | 2 | 8 |",
        "| job: write | 55 | 50 | 2 | 8 |",
        "| **locate** | 110 | 20 | | |",
        "| **stage** | 130 | 5 | | |",
        "| **commit** | 135 | 15 | | |",
        "| job: write | 141 | 5 | 2 | 8 |",
    ]
