"""Run every fault at every step of a merge, and write what was found into docs/reliability.md.

`python -m tests.crash.matrix` runs all once, which takes hours. `--rounds 3` runs it three times, each with another
call of the file system that fails, and another moment after the step at which the process dies. `--faults conflict
--steps writing` runs some only, and `--dry` writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stream_merge import steps
from tests.conftest import SESSION_CONF, STRATEGIES
from tests.crash.matrix.page import FAULTS, PAGE, with_matrix
from tests.crash.matrix.session import Case
from tests.crash.matrix.workloads import WORKLOADS
from tests.jvm.jars import jar_conf
from tests.streaming.child_session import last_lines, run_child

_PREPARING, _WITHIN = steps.OPTIONAL_STEPS[1:3], steps.OPTIONAL_STEPS[3:]
OF_STATE = (*_PREPARING, *steps.ALTERING_STEPS, *_WITHIN)
"""The steps that only a sink with state comes to."""
OF_MAINTENANCE = steps.MAINTENANCE_STEPS[:3]
"""The steps of maintenance, without `vacuuming`, which comes once a day."""
_OPENING, _PERSISTING, _MERGING = steps.STEPS[:2], steps.STEPS[2:3], steps.STEPS[3:]
STEPS = (
    "created",
    *_PREPARING,
    *_OPENING,
    *steps.ALTERING_STEPS,
    *_PERSISTING,
    *_WITHIN,
    *_MERGING,
    *OF_MAINTENANCE,
    *steps.PARKING_STEPS,
)
"""In order."""
KILLED = -9
DISK = "24m"


def cases(faults: Sequence[str], rounds: int, steps_of_cases: Sequence[str] = STEPS) -> list[Case]:
    """Return a case for each fault at each step, by each strategy, of each workload that comes to the step."""
    planned = [
        (step, fault, strategy, workload, number_of_round)
        for fault in faults
        for number_of_round in range(rounds)
        for step in steps_of_cases
        for strategy in STRATEGIES
        for workload in WORKLOADS
        if workload in _workloads_at(step)
    ]
    return [
        Case(number=number, step=step, fault=fault, strategy=strategy, workload=workload, round=number_of_round)
        for number, (step, fault, strategy, workload, number_of_round) in enumerate(planned)
    ]


def _workloads_at(step: str) -> tuple[str, ...]:
    if step in steps.PARKING_STEPS:
        return ("resting",)
    return ("ordered",) if step in OF_STATE else ("counting", "ordered")


def run(of_fault: Sequence[Case], root: Path, conf: dict[str, str]) -> list[dict[str, Any]]:
    """Run cases in as many processes as it takes, and return what was found in each."""
    reports = root / "reports.jsonl"
    reports.write_text("")
    left, resumes = list(of_fault), False
    found: list[dict[str, Any]] = []
    while left:
        argument = {"conf": conf, "root": str(root), "cases": [asdict(case) for case in left], "resumes": resumes}
        code = run_child("tests.crash.matrix.session", json.dumps(argument), root / "child.log", timeout=7200)
        found = [json.loads(line) for line in reports.read_text().splitlines()]
        left = list(of_fault)[len(found) :]
        if code not in (0, KILLED) or (code == 0) == bool(left):
            raise RuntimeError(f"{left[:1]} ended with {code}:\n{last_lines(root / 'child.log')}")
        resumes = code == KILLED
    return found


def run_all(planned: Sequence[Case], conf: dict[str, str], root: Path) -> Iterator[list[dict[str, Any]]]:
    """Run the matrix, and yield the cases of one fault after the other with what was found in them."""
    for fault in dict.fromkeys(case.fault for case in planned):
        of_fault = [case for case in planned if case.fault == fault]
        folder = root / fault.replace(" ", "_")
        (folder / "disk").mkdir(parents=True)
        conf_of_fault = conf
        if fault == "executor killed":
            conf_of_fault = {**conf, "spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g"}
        if fault == "disk full" and not _mount(folder / "disk"):
            print("disk full: left out, since a small file system can be mounted by root only", flush=True)
            continue
        try:
            reports = run(of_fault, folder, conf_of_fault)
        finally:
            if fault == "disk full":
                # Lazily: the JVM of the last process may still be ending.
                subprocess.run(["umount", "--lazy", str(folder / "disk")], check=True)
        found = [{**asdict(case), **report} for case, report in zip(of_fault, reports, strict=True)]
        bad = [report for report in found if report["lost"] or report["doubled"] or report["revived"]]
        print(f"{fault}: {len(reports)} cases, {len(bad)} wrong {bad}", flush=True)
        yield found


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.matrix", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--results", type=Path, help="add to the results of this file, and write all of them")
    parser.add_argument("--dry", action="store_true", help="write no page")
    arguments = parser.parse_args()
    conf = {**SESSION_CONF, **jar_conf()}
    conf["spark.driver.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
    found = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        for of_fault in run_all(cases(arguments.faults, arguments.rounds, arguments.steps), conf, Path(folder)):
            found += of_fault
            if arguments.results is not None:
                with arguments.results.open("a") as results:
                    results.writelines(json.dumps(report) + "\n" for report in of_fault)
    if arguments.results is not None:
        found = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    if not arguments.dry:
        PAGE.write_text(with_matrix(PAGE.read_text(), found))
    sys.exit(any(report["lost"] or report["doubled"] or report["revived"] for report in found))


if __name__ == "__main__":
    main()
