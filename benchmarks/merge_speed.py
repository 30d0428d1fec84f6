"""How long does a batch of 10,000 changes take: a plain append of its rows, Delta's MERGE, stream_merge.

For each workload and each kind of session a process of its own builds one table for each system and gives all the
same batches, round by round, in turns. It prints a Markdown table: milliseconds of a batch, the ratio to the append
and to the MERGE, and what stream_merge did in that time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import SETTINGS, SYSTEMS, Task, measure
from benchmarks.workloads import WORKLOADS

HEADER = (
    "| workload | rows | session | append ms | MERGE ms | stream_merge ms | : append | : MERGE | CPU : MERGE "
    "| jobs | JVM calls | touched files | calls per further file | locator | phases, ms | load |"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if the systems' tables differ."""
    options = _parse(arguments)
    all_measured = [_measure_in_child(task) for task in _tasks(options)]
    if options.json:
        options.json.write_text(json.dumps(all_measured, indent=1), encoding="utf-8")
    print(describe_machine())
    print()
    print("\n".join(format_table(all_measured)))
    for measured in all_measured:
        held = ", ".join(f"{name} {mb:,}" for name, mb in measured["peak_mb"].items())
        print(f"\n{measured['task']['workload']}, MiB: peak memory: {held or '-'}; key index: {measured['index_mb']:,}")
    different = [measured["task"] for measured in all_measured if measured["is_equal"] is False]
    for task in different:
        print(f"\nThe table of stream_merge DIFFERS from MERGE's or the fold: {task['workload']}, {task['settings']}")
    return 1 if different else 0


def _tasks(options: argparse.Namespace) -> Iterable[Task]:
    for workload in options.workload:
        for settings in options.settings:
            yield Task(
                workload=workload,
                settings=settings,
                mode=options.mode,
                num_rows=options.rows,
                batch_rows=options.batch_rows,
                rounds=options.rounds,
                warmup=options.warmup,
                workdir=options.workdir,
                driver_memory=options.driver_memory,
                systems=tuple(system for system in SYSTEMS if system in options.systems),
            )


def _measure_in_child(task: Task) -> dict[str, Any]:
    print(f"{task.workload}, {task.settings} settings, {task.mode} ...", file=sys.stderr, flush=True)
    # A session's settings and its compiled code would outlive it in this process.
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measure_in_directory, (task,))


def _measure_in_directory(task: Task) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="stream_merge-benchmark-", dir=task.workdir))
    try:
        return asdict(measure(Task(**{**asdict(task), "workdir": directory})))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def describe_machine() -> str:
    """Return in one line what the numbers were measured on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "delta-spark"))
    return f"{os.cpu_count()} cores, {packages}, Python {sys.version.split()[0]}."


def format_table(all_measured: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the Markdown table; times are median (minimum)."""
    columns = HEADER.count("|") - 1
    return [HEADER, "|" + "---|" * columns, *(_format_row(measured) for measured in all_measured)]


def _format_row(measured: dict[str, Any]) -> str:
    task, results = measured["task"], measured["results"]
    workload = WORKLOADS[task["workload"]]
    ms = {system: [reading["ms"] for reading in measured["readings"][system]] for system in SYSTEMS}
    cpu = {system: [reading["cpu_ms"] for reading in measured["readings"][system]] for system in SYSTEMS}
    touched = [result["num_removed_files"] for result in results]
    calls = [reading["num_calls"] for reading in measured["readings"]["stream_merge"]]
    cells = [
        workload.title + (" (stream)" if task["mode"] == "stream" else ""),
        f"{task['num_rows'] * workload.size_factor:,}",
        task["settings"],
        *(_format_times(ms[system]) for system in SYSTEMS),
        *(_format_ratio(ms["stream_merge"], ms[other]) for other in ("append", "delta_merge")),
        _format_ratio(cpu["stream_merge"], cpu["delta_merge"]),
        _format_median([reading["num_jobs"] for reading in measured["readings"]["stream_merge"]]),
        _format_median(calls),
        _format_median(touched),
        _format_slope(touched, calls),
        ", ".join(dict.fromkeys(str(result["locator"]) for result in results)) or "-",
        _format_phases(results),
        "{:.1f}-{:.1f}".format(*measured["load"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _format_times(ms: Sequence[float]) -> str:
    return f"{statistics.median(ms):,.0f} ({min(ms):,.0f})" if ms else "-"


def _format_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> str:
    if not numerator or not denominator:
        return "-"
    return f"{statistics.median(numerator) / max(1e-9, statistics.median(denominator)):.2f}"


def _format_median(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):,.0f}" if numbers else "-"


def _format_slope(touched: Sequence[float], calls: Sequence[float]) -> str:
    """Return how many calls more a batch makes for each file more that it touches, by least squares."""
    if len(touched) != len(calls) or len(set(touched)) < 2:
        return "-"
    return f"{statistics.linear_regression(touched, calls).slope:.1f}"


def _format_phases(results: Sequence[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for result in results for name in result["phase_ms"])
    medians = {name: statistics.median([result["phase_ms"].get(name, 0) for result in results]) for name in names}
    return ", ".join(f"{name} {ms:.0f}" for name, ms in medians.items()) or "-"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Workloads: " + "; ".join(f"{name}: {workload.title}" for name, workload in WORKLOADS.items()),
    )
    option = parser.add_argument
    option("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME", help="default: all")
    option(
        "--settings",
        nargs="+",
        choices=SETTINGS,
        default=["tuned", "default"],
        help="kinds of session (default: %(default)s)",
    )
    option("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="default: all")
    option("--mode", choices=("batch", "stream"), default="batch", help="one call a batch, or a real streaming query")
    option("--rows", type=int, default=1_000_000, help="rows of the table (default: %(default)s)")
    option("--batch-rows", type=int, default=10_000, help="rows of a batch (default: %(default)s)")
    option("--rounds", type=int, default=8, help="rounds that count (default: %(default)s)")
    option("--warmup", type=int, default=3, help="rounds before them that do not (default: %(default)s)")
    option("--driver-memory", default="4g", help="memory of Spark (default: %(default)s)")
    option("--workdir", type=Path, help="where the tables are built (default: the system's temporary directory)")
    option("--json", type=Path, help="file for every single reading")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
