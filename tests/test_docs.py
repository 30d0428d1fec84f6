"""All Markdown files: their lines are short enough, their links lead somewhere, and the picture shows the figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import plot_results
from benchmarks.peers import plot as plot_peers

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
)
MAX_WIDTH = 120
"""The width of code, too: `line-length` of ruff."""


def without_code(text: str) -> str:
    """Return a page without its code blocks and code spans."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`]*`", "", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_too_long(line: str) -> bool:
    """Whether a line is too long and can be shortened: rows of tables, and words such as URLs, cannot be wrapped."""
    text = re.sub(r"^(> |[-*] |\d+\. )", "", line.strip())
    return len(line) > MAX_WIDTH and not line.lstrip().startswith("|") and " " in text


def faulty_links(page: Path) -> list[str]:
    """Return the relative links of a page to files that are not there, or to headings that the page does not have."""
    faults = []
    for link in re.findall(r"\]\(([^)\s]*)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            faults.append(link)
    return faults


def test_there_are_pages():
    assert {"README.md", "CHANGELOG.md", "docs/guide.md", "benchmarks/README.md"} <= {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page):
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    assert [f"{page}:{number}: {line}" for number, line in enumerate(lines, 1) if is_too_long(line)] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert faulty_links(ROOT / page) == []


def test_a_long_line_and_a_dead_link_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```sh\n# Code\n```\n[a](#a-page) [b](#code) [c](gone.md) `[d](no-link)` [e](https://e)\n"
    )
    assert faulty_links(page) == ["#code", "gone.md"]
    assert is_too_long("word " * 30)
    assert is_too_long("- " + "word " * 30)
    assert not is_too_long("| " + "word " * 30)
    assert not is_too_long("- " + "x" * 130)
    assert not is_too_long("word " * 24)


def test_the_picture_shows_the_figures_of_the_benchmarks():
    results = plot_results.read_results(plot_results.RESULTS.read_text(encoding="utf-8"))
    remedy = "draw it anew: python -m benchmarks.plot_results"
    assert plot_results.PICTURE.read_text(encoding="utf-8") == plot_results.draw(results), remedy
    points = plot_results.read_sizes(plot_results.RESULTS.read_text(encoding="utf-8"))
    assert plot_results.PICTURE_OF_SIZES.read_text(encoding="utf-8") == plot_results.PLOT_OF_SIZES.draw(points), remedy


def test_the_picture_of_the_peers_shows_the_figures_of_the_benchmarks():
    points = plot_peers.read_points(plot_peers.RESULTS.read_text(encoding="utf-8"))
    remedy = "draw it anew: python -m benchmarks.peers.plot"
    assert plot_peers.PICTURE.read_text(encoding="utf-8") == plot_peers.PLOT.draw(points), remedy


def test_the_times_of_the_readme_are_those_of_the_benchmarks():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = plot_results.RESULTS.read_text(encoding="utf-8")
    results = plot_results.read_results(text)
    columns = ("MERGE ms", "stream_merge ms", "append ms")
    shown = re.findall(r"^\| [^|]* \| ([\d.]+) s \| \*\*([\d.]+) s\*\* \(an append: ([\d.]+) s\) \|$", readme, re.M)
    workloads = [*plot_results.GROUPS][:3]
    measured = [
        *(
            row
            for name in workloads
            for row in results
            if (row["workload"], row["session"]) == (name, plot_results.SESSION)
        ),
        *(row for row in plot_results.read_larger(text) if row["rows"] == "20,000,000"),
    ]
    assert [[*row] for row in shown] == [
        [plot_results.seconds(plot_results.median_ms(row[column])) for column in columns] for row in measured
    ]
