"""Chooses the tests that the suite leaves to the long tier: `python -m tests.choose_suite JUNIT_XML` writes their names
to `tests/long_tier.txt`.

It needs the times of a run of all drawn tests and the branches that each of them takes; see "What the suite leaves out"
in CONTRIBUTING.md.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

from tests.conftest import LONG_TIER

ROOT = Path(__file__).parents[1]
SHORT_SECONDS = 1.0
"""A test that takes less is never left out: leaving it out saves nothing."""

Branch: TypeAlias = tuple[int, int, int]
"""The number of a file, and two lines of which one was run after the other."""

TAKEN = """
    SELECT context.context, arc.file_id, arc.fromno, arc.tono FROM arc JOIN context ON context.id = arc.context_id
    WHERE context.context != ''
"""
HEADER = """\
# Left to the long tier by `python -m tests.choose_suite`: other tests take the same branches in less time.
"""


def left_out(
    seconds: Mapping[str, float], branches: Mapping[str, Collection[Branch]], always: Collection[str]
) -> list[str]:
    """Return the tests that can be left out so that each branch is still taken.

    Args:
        seconds: How long each test takes, by its name.
        branches: The branches that each test takes. A test without any is kept: it starts processes of its own.
        always: Tests that are kept.
    """
    kept = {name for name in seconds if seconds[name] < SHORT_SECONDS or not branches.get(name) or name in always}
    others = sorted(set(seconds) - kept)
    missing: set[Branch] = set()
    missing.update(*(branches[name] for name in others))
    missing.difference_update(*(branches[name] for name in kept if name in branches))
    while missing:
        best = max(others, key=lambda name: len(missing.intersection(branches[name])) / seconds[name])
        others.remove(best)
        missing.difference_update(branches[best])
    return others


def read_seconds(junit: Path) -> dict[str, float]:
    """Return how long each test took, from what `--junitxml` writes."""
    seconds = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        *folders, last = case.attrib["classname"].split(".")
        is_class = not (ROOT.joinpath(*folders, last).with_suffix(".py")).exists()
        parts = ["/".join(folders) + ".py", last] if is_class else ["/".join([*folders, last]) + ".py"]
        seconds["::".join([*parts, case.attrib["name"]])] = float(case.attrib["time"])
    return seconds


def read_branches(coverage: Path) -> dict[str, set[Branch]]:
    """Return the branches that each test took, from what `--cov-branch --cov-context=test` writes."""
    branches: dict[str, set[Branch]] = {}
    with closing(sqlite3.connect(coverage)) as data:
        for context, *branch in data.execute(TAKEN):
            name, _, _phase = context.rpartition("|")
            branches.setdefault(name, set()).add((branch[0], branch[1], branch[2]))
    return branches


def always_run() -> set[str]:
    """Return the names of the tests that are marked `always`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", "always", "--all-drawn"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


def main(junit: Path) -> None:
    """Write the names of the tests that can be left out, and print how much that saves."""
    seconds = read_seconds(junit)
    names = left_out(seconds, read_branches(ROOT / ".coverage"), always_run())
    LONG_TIER.write_text(HEADER + "".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    saved, total = sum(seconds[name] for name in names), sum(seconds.values())
    print(f"{len(names)} of {len(seconds)} tests are left out: {saved:.0f} of {total:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.choose_suite JUNIT_XML")
    main(Path(sys.argv[1]))
