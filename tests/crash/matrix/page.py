"""The crash matrix as the tables of docs/reliability.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash.matrix.workloads import WORKLOADS

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"
BEGIN = "<!-- crash matrix: python -m tests.crash.matrix -->"
END = "<!-- end of the crash matrix -->"
FAULTS = (
    "process killed",
    "executor killed",
    "answer lost",
    "files fail before",
    "files fail after",
    "conflict",
    "disk full",
)
DAMAGES = ("lost", "doubled", "revived")


def with_matrix(page: str, found: Sequence[dict[str, Any]]) -> str:
    """Return the page with these cases in the place of its matrix."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    order = {fault: number for number, fault in enumerate(FAULTS)}
    found = sorted(found, key=lambda case: order[case["fault"]])
    body = [text for name, workload in WORKLOADS.items() for text in (workload.title, table(found, name))]
    return f"{before}{BEGIN}\n\n" + "\n\n".join([*body, "Outcomes:", outcomes(found)]) + f"\n\n{END}{after}"


def table(found: Sequence[dict[str, Any]], workload: str) -> str:
    """Return the table of a workload's steps and faults: how often a fault came by each strategy, and what was wrong if
    anything was."""
    of_workload = [case for case in found if case["workload"] == workload]
    steps = list(dict.fromkeys(case["step"] for case in of_workload))
    faults = list(dict.fromkeys(case["fault"] for case in found))
    lines = [_line(["step", *faults]), _line(["---", *["---:"] * len(faults)])]
    for step in steps:
        cells = []
        for fault in faults:
            cases = [case for case in of_workload if (case["step"], case["fault"]) == (step, fault)]
            cells.append(_cell(cases))
        lines.append(_line([f"`{step}`", *cells]))
    return "\n".join(lines)


def _cell(of_step: Sequence[dict[str, Any]]) -> str:
    """Return the cell of a fault at a step; an empty one if it was not run."""
    cases = [case for case in of_step if case["faults"]]
    if not cases:
        return "-" if of_step else ""
    num_of = Counter(case["strategy"] for case in cases)
    wrong = [f"{sum(case[name] for case in cases)} {name}" for name in DAMAGES if any(case[name] for case in cases)]
    return " ".join(
        [f"{num_of['copy_on_write']} + {num_of['merge_on_read']}", *(["**" + ", ".join(wrong) + "**"] if wrong else [])]
    )


def outcomes(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of what came of each fault, and the damage."""
    lines = [
        _line(["fault", "came", "merged all the same", "failed, not in the table", "failed, in the table", *DAMAGES]),
        _line(["---", *["---:"] * 7]),
    ]
    came = [case for case in found if case["faults"]]
    for fault in [*dict.fromkeys(case["fault"] for case in came), None]:
        cases = [case for case in came if fault in (None, case["fault"])]
        counts = [
            len(cases),
            sum(not case["error"] for case in cases),
            sum(bool(case["error"]) and not case["landed"] for case in cases),
            sum(bool(case["error"]) and case["landed"] for case in cases),
            *[sum(case[name] for case in cases) for name in DAMAGES],
        ]
        lines.append(_line([fault or "**all**", *[str(number) for number in counts]]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
