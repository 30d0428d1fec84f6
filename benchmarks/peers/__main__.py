"""How long does a batch of 10,000 changes take other systems: Delta's MERGE, delta-rs, Iceberg, Paimon, Hudi.

python -m benchmarks.peers --system iceberg --rows 1000000
python -m benchmarks.peers --system all

Each system runs in a process of its own, one after the other, in turns with a plain append to a Delta table. The tables
must have the same rows at the end, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.child import PREPARE, Task
from benchmarks.peers.interpreters import SPARK_4_2, Interpreter, NoInterpreterError, find_python, run_python
from benchmarks.peers.report import format_maintenance, format_table
from benchmarks.peers.systems import SYSTEMS

CHILD = "benchmarks.peers.child"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if a system failed or has other rows than it should."""
    options = _parse(arguments)
    folder = Path(tempfile.mkdtemp(prefix="stream_merge-peers-", dir=options.workdir))
    names = [*SYSTEMS] if "all" in options.system else options.system
    try:
        _run(options, folder, PREPARE, SPARK_4_2)
        results, faults = _measure_all(options, folder, names)
    except (NoInterpreterError, ChildError) as error:
        results, faults = [], [f"The batches could not be written: {error}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join([*format_table(results), "", *format_maintenance(results), *(f"\n{fault}" for fault in faults)]))
    return 1 if faults else 0


def _measure_all(
    options: argparse.Namespace, folder: Path, names: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    results, faults = [], []
    for name in names:
        print(f"{name}, {options.rows:,} rows ...", file=sys.stderr, flush=True)
        try:
            result = _run(options, folder, name, SYSTEMS[name].interpreter)
        except (NoInterpreterError, ChildError) as error:
            faults.append(f"{name}: {error}")
            continue
        results.append(result)
        faults += result["wrong"]
        print("\n".join(format_table([result])[2:]), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results, faults


class ChildError(RuntimeError):
    """The process of a system failed."""


def _run(options: argparse.Namespace, folder: Path, name: str, interpreter: Interpreter) -> dict[str, Any]:
    """Run one task in a process of its own and return its result.

    Raises:
        NoInterpreterError: There is no Python with the Spark that it needs.
        ChildError: The process failed; it has said why on its standard error.
    """
    workdir = folder / name
    workdir.mkdir()
    task = Task(
        system=name,
        num_rows=options.rows,
        batch_rows=options.batch_rows,
        rounds=options.rounds,
        warmup=options.warmup,
        data=str(folder / "data"),
        workdir=str(workdir),
        driver_memory=options.driver_memory,
    )
    given, result = folder / f"{name}.task.json", folder / f"{name}.json"
    given.write_text(json.dumps(asdict(task)), encoding="utf-8")
    (folder / "data").mkdir(exist_ok=True)
    try:
        status = run_python(find_python(interpreter), "-m", CHILD, str(given), str(result))
        if status:
            raise ChildError(f"its process ended with the exit status {status}.")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Systems: " + "; ".join(f"{name}: {system.title}" for name, system in SYSTEMS.items()),
    )
    option = parser.add_argument
    option("--system", nargs="+", choices=["all", *SYSTEMS], default=["all"], metavar="NAME", help="default: all")
    option("--rows", type=int, default=1_000_000, help="rows of the table (default: %(default)s)")
    option("--batch-rows", type=int, default=10_000, help="rows of a batch (default: %(default)s)")
    option("--rounds", type=int, default=12, help="batches that count (default: %(default)s)")
    option("--warmup", type=int, default=12, help="batches before them that do not (default: %(default)s)")
    option("--driver-memory", default="4g", help="memory of Spark (default: %(default)s)")
    option("--workdir", type=Path, help="where the tables are built (default: the system's temporary directory)")
    option("--json", type=Path, help="file for every single time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
