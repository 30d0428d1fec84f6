"""The crash matrix: that its page is whole and without a damage, and that its cases can be run and would show one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_merge import steps
from tests.crash.matrix.__main__ import OF_MAINTENANCE, OF_STATE, STEPS, cases
from tests.crash.matrix.page import BEGIN, END, FAULTS, PAGE, with_matrix
from tests.crash.matrix.session import EAGER, Case, Runner
from tests.crash.matrix.workloads import WORKLOADS, damage, damage_of_quarantine
from tests.random.faulty import FaultyFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_step_is_in_the_matrix():
    others = {*steps.OPTIONAL_STEPS, *steps.ALTERING_STEPS, *OF_MAINTENANCE, *steps.PARKING_STEPS}
    assert {*STEPS} == {*steps.STEPS, *others}
    assert {*steps.MAINTENANCE_STEPS} - {*OF_MAINTENANCE} == {"vacuuming"}
    planned = {(case.step, case.fault, case.strategy, case.workload) for case in cases(FAULTS, 1)}
    assert len(planned) == len(FAULTS) * 2 * (2 * len(STEPS) - len(OF_STATE) - len(steps.PARKING_STEPS))


def test_the_page_has_every_step_and_no_damage():
    matrix = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    lines = [line.strip("| ").split(" | ") for line in matrix.splitlines() if line.startswith("|")]
    # A run may have been of some faults only; the page names those that it has.
    faults = [fault for fault in FAULTS if fault in lines[0]]
    assert faults
    assert [line for line in lines if line[0] == "step"] == [["step", *faults]] * len(WORKLOADS)
    named = [line[0] for line in lines if line[0].startswith("`")]
    assert sorted({*named}) == sorted(f"`{step}`" for step in STEPS)
    assert "**" not in "".join(" ".join(line[1:]) for line in lines)
    assert [line[-3:] for line in lines if line[0] in (*FAULTS, "**all**")] == [["0", "0", "0"]] * (len(faults) + 1)


def test_a_damage_would_show():
    found = [
        {"step": "writing", "fault": "conflict", "strategy": strategy, "workload": "ordered", "faults": 1, **others}
        for strategy, others in (
            ("copy_on_write", {"error": "", "landed": True, "lost": 2, "doubled": 0, "revived": 1}),
            ("merge_on_read", {"error": "E", "landed": False, "lost": 0, "doubled": 0, "revived": 0}),
        )
    ]
    page = with_matrix(f"before {BEGIN}{END} after", found)
    assert "| `writing` | 1 + 1 **2 lost, 1 revived** |" in page
    assert "| **all** | 2 | 1 | 1 | 0 | 2 | 0 | 1 |" in page
    assert (page[:7], page[-6:]) == ("before ", " after")

    rows = [(key, n, m) for key, (n, m) in WORKLOADS["counting"].rows().items()]
    expected = WORKLOADS["counting"].rows()
    wrong = {
        (1, 0, 0): [*rows[1:]],
        (0, 1, 0): [*rows, rows[0]],
        (0, 0, 1): [*rows, (6, 1, 0)],
    }
    for counts, found_rows in wrong.items():
        found_damage = damage(found_rows, expected)
        assert (found_damage.lost, found_damage.doubled, found_damage.revived) == counts
    once_less, twice = [(rows[0][0], (rows[0][1] or 0) + by, rows[0][2]) for by in (-1, 1)]
    assert damage([once_less, *rows[1:]], expected).lost == 1
    assert damage([twice, *rows[1:]], expected).doubled == 1
    of_quarantine = damage_of_quarantine({(0, 1): 2, (0, 3): 1}, frozenset({(0, 1), (0, 2)}))
    assert (of_quarantine.lost, of_quarantine.doubled, of_quarantine.revived) == (1, 1, 1)


@pytest.fixture(scope="module")
def runner(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    if not FaultyFileSystem.is_possible():
        pytest.skip("there is no javac to compile a file system that fails")
    root = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in EAGER:
            patch.setattr(owner, name, value)
        yield Runner(spark, Path(root), FaultyFileSystem(spark, root / "filesystem"))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("step", "fault", "strategy", "workload"),
    [
        pytest.param("columns_added", "answer lost", "merge_on_read", "ordered", marks=pytest.mark.long),
        ("altered", "answer lost", "merge_on_read", "ordered"),
        pytest.param("compacted", "answer lost", "merge_on_read", "ordered", marks=pytest.mark.long),
        ("remembering", "answer lost", "copy_on_write", "ordered"),
        ("forgetting", "files fail before", "merge_on_read", "ordered"),
        pytest.param("truncating", "conflict", "copy_on_write", "ordered", marks=pytest.mark.long),
        ("writing", "conflict", "merge_on_read", "counting"),
        pytest.param("before_commit", "answer lost", "copy_on_write", "counting", marks=pytest.mark.long),
        pytest.param("parking", "conflict", "copy_on_write", "resting", marks=pytest.mark.long),
        ("unparking", "answer lost", "merge_on_read", "resting"),
    ],
)
def test_cases(runner: Runner, step: str, fault: str, strategy: str, workload: str):
    number = list(STEPS).index(step)
    case = Case(number=number, step=step, fault=fault, strategy=strategy, workload=workload, round=0)
    report = runner.run(case, resumes=False)
    assert report["faults"] == 1
    assert (report["lost"], report["doubled"], report["revived"]) == (0, 0, 0)
