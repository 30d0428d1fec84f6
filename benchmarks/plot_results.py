"""Draw the pictures of the README and of benchmarks/README.md from the tables of results there.

python -m benchmarks.plot_results
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from benchmarks.log_plot import LogPlot, Point

RESULTS = Path(__file__).parent / "README.md"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "batch-times.svg"
PICTURE_OF_SIZES = PICTURE.parent / "batch-sizes.svg"

SESSION = "tuned"
"""The session in which MERGE does best."""
GROUPS = {
    "recent keys, deletion vectors": "Recent keys",
    "recent keys, deletion vectors, 5 times the rows": "Recent keys, 5 million rows",
    "random string keys, deletion vectors": "Random keys",
    "general clauses, deletion vectors": "General clauses",
    "random string keys, copy-on-write": "Random keys, copy-on-write",
}
"""Workloads in the order of the picture, and what it calls them."""
SYSTEMS = {
    "append ms": ("append", "#8c959f"),
    "stream_merge ms": ("stream_merge", "#1a7f5a"),
    "MERGE ms": ("MERGE", "#c4622d"),
}
"""Columns of the table, and name and colour of their bars."""

SIZES = "### Larger tables"
"""The heading above the table whose lines differ in the size of the table."""
PLOT_OF_SIZES = LogPlot(
    heading="Seconds to merge 10,000 changes of random keys",
    title="Seconds for a micro-batch of 10,000 changes, by append, stream_merge and MERGE, over the rows of the table",
    colours=dict(SYSTEMS.values()),
    right=200,
    label=lambda system, cost: f"{cost:.2f} s {system}",
)

WIDTH = 860
LEFT = 230
RIGHT = 70
BAR = 15
GAP = 14
TOP = 58


def read_results(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table whose columns are the systems."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    start = next(number for number, row in enumerate(rows) if {*SYSTEMS} <= {*row})
    return [dict(zip(rows[start], row, strict=True)) for row in rows[start + 2 :] if len(row) == len(rows[start])]


def read_larger(text: str) -> list[dict[str, str]]:
    """Return the rows of the table of larger tables."""
    return read_results(text[text.index(SIZES) :])


def read_sizes(text: str) -> dict[str, list[Point]]:
    """Return rows of the table and seconds of a batch of each system, from the table of larger tables."""
    points: dict[str, list[Point]] = {}
    for row in read_larger(text):
        for column, (system, _) in SYSTEMS.items():
            if row[column] != "-":
                points.setdefault(system, []).append((int(row["rows"].replace(",", "")), median_ms(row[column]) / 1000))
    return points


def median_ms(cell: str) -> int:
    """Return the median of a cell such as `3,695 (3,077)`."""
    return int(cell.split(" ")[0].replace(",", ""))


def seconds(ms: int) -> str:
    """Return milliseconds as seconds with two digits; halves are rounded up."""
    return f"{(ms + 5) // 10 / 100:.2f}"


def draw(results: list[dict[str, str]]) -> str:
    """Return the picture as SVG: a bar for each workload and system. Its own background suits light and dark pages."""
    of_workload = {row["workload"]: row for row in results if row["session"] == SESSION}
    times = {name: [median_ms(of_workload[name][column]) for column in SYSTEMS] for name in GROUPS}
    scale = (WIDTH - LEFT - RIGHT) / max(max(each) for each in times.values())
    height = TOP + len(GROUPS) * (len(SYSTEMS) * BAR + GAP) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#1f2328" role="img">',
        "<title>Seconds for a micro-batch of 10,000 changes, by append, stream_merge and MERGE</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#f6f8fa"/>',
        '<text x="16" y="30" font-size="15" font-weight="600">'
        "Seconds to merge 10,000 changes into 1 million rows</text>",
    ]
    x = WIDTH - 330
    for name, colour in SYSTEMS.values():
        lines.append(
            f'<rect x="{x}" y="19" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="30">{name}</text>'
        )
        x += 30 + 9 * len(name)
    y = TOP
    for workload, label in GROUPS.items():
        lines.append(
            f'<text x="{LEFT - 12}" y="{y + len(SYSTEMS) * BAR // 2 + 5}" text-anchor="end">{escape(label)}</text>'
        )
        for ms, (_, colour) in zip(times[workload], SYSTEMS.values(), strict=True):
            width = round(ms * scale, 1)
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR - 2}" fill="{colour}"/>')
            lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 11}" font-size="12">{seconds(ms)}</text>')
            y += BAR
        y += GAP
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    measured = RESULTS.read_text(encoding="utf-8")
    PICTURE.write_text(draw(read_results(measured)), encoding="utf-8")
    PICTURE_OF_SIZES.write_text(PLOT_OF_SIZES.draw(read_sizes(measured)), encoding="utf-8")
