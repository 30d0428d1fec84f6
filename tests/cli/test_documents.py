"""What the pages on the command show is what the command has: texts, codes, options, figures."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from stream_merge.cli.errors import ExitCode
from stream_merge.cli.run.runner import FIRST_DELAY, LONGEST_DELAY, MAX_RETRIES_ONCE
from tests.cli.test_status import AT_80
from tests.cli.test_watch import AT_REST_AT_80, OVERVIEW_AT_80

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
GUIDE = (ROOT / "docs/command-line.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
EXAMPLE = (ROOT / "stream_merge/cli/file/example.toml").read_text()


def blocks(text: str, language: str = "") -> list[str]:
    """Return the code blocks of a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [code for of_code, code in found if of_code == language]


def test_the_status_is_what_the_command_prints():
    [shown] = [block for block in blocks(GUIDE) if "Last batch" in block]
    assert AT_80.startswith(shown)


def test_the_overview_is_what_the_command_prints():
    assert f"{OVERVIEW_AT_80}\n" in blocks(GUIDE)
    assert f"{AT_REST_AT_80}\n" in blocks(GUIDE)


def test_the_two_lines_are_those_of_the_example():
    [shown] = [block for block in blocks(GUIDE, "toml") if "<--" in block]
    assert [line for line in EXAMPLE.split("\n") if "<--" in line and not line.startswith("#")] == shown.split("\n")[
        :-1
    ]


def test_the_exit_codes_are_those_of_the_command():
    rows = re.findall(r"^\| ([\d, ]+) \|", GUIDE, re.M)
    assert sorted(int(code) for row in rows for code in row.split(", ")) == sorted(ExitCode)


def test_retries_are_those_of_the_runner():
    assert (FIRST_DELAY, LONGEST_DELAY, MAX_RETRIES_ONCE) == (1.0, 60.0, 5)
    assert "after 1 second, then 2, 4 and so on up to 60" in OPERATIONS
    assert "(`--once` five times)" in OPERATIONS


def test_figures_are_those_of_the_benchmarks():
    page = (ROOT / "docs/comparison.md").read_text()
    figures = page.split("\n## Figures\n")[1].split("\n## ")[0]
    measured = (ROOT / "benchmarks/README.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\|.*\|$", figures, re.M)][2:]
    assert len(rows) == 7
    results = [row.strip("| ").split(" | ") for row in re.findall(r"^\|.*\|$", measured, re.M)]
    assert [row for row in rows if row not in [result[:8] for result in results]] == []
    [decoding] = [part for part in figures.split("\n\n") if part.startswith("**Decoding and ordering**")]
    numbers = re.findall(r"\d,\d{3}|\d+(?= ms)|\d\.\d\d", decoding)
    assert len(numbers) == 11
    assert [number for number in numbers if number not in measured] == []


def test_figures_of_the_peers_are_those_of_the_benchmarks():
    def table(page: str, first: str) -> list[dict[str, str]]:
        lines = (ROOT / page).read_text().split("\n")
        start = next(number for number, line in enumerate(lines) if line.startswith(first))
        rows = [line.strip("| ").split(" | ") for line in itertools.takewhile(bool, lines[start:])]
        return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]

    shown = table("docs/comparison.md", "| system | rows |")
    measured = table("benchmarks/README.md", "| system | version | rows |")
    assert [{name: row[name] for name in shown[0]} for row in measured] == shown


def test_sources_of_the_comparison_are_all_used():
    page = (ROOT / "docs/comparison.md").read_text()
    text, sources = page.split("\n## Sources\n")
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", sources, re.M)]
    assert listed == list(range(1, len(listed) + 1))
    assert {int(number) for number in re.findall(r"\[(\d+)\]", text)} == set(listed)


def test_tables_of_the_pages_are_whole():
    for page in PAGES:
        widths: list[int] = []
        for line in (ROOT / page).read_text().split("\n"):
            cells = re.sub(r"`[^`]*`", "", line).count("|") if line.startswith("|") else 0
            assert cells in (0, widths[-1] if widths and widths[-1] else cells), (page, line)
            widths.append(cells)


@pytest.mark.parametrize("command", ["init", "validate", "run", "status", "explain", "diff"])
def test_options_of_the_guide_are_there(command):
    from typer.main import get_command

    from stream_merge.cli.app import app

    group = get_command(app)
    known = {name for param in group.commands[command].params for name in (*param.opts, *param.secondary_opts)}
    lines = re.findall(rf"^(?:docker compose exec pipeline )?stream-merge {command}\b(.*?)(?:#.*)?$", GUIDE, re.M)
    assert lines
    used = {option for line in lines for option in re.findall(r"(?<= )--[a-z-]+", line)}
    assert used - known == set()
