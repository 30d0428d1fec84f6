"""Draw the comparison's picture from the table of peers in benchmarks/README.md.

python -m benchmarks.peers.plot
"""

from __future__ import annotations

import math
from html import escape

from benchmarks.peers.report import HEADER
from benchmarks.plot_results import PICTURE as NEIGHBOUR
from benchmarks.plot_results import RESULTS

PICTURE = NEIGHBOUR.parent / "peers.svg"

COLOURS = {
    "stream_merge": "#1a7f5a",
    "Delta MERGE, deletion vectors": "#c4622d",
    "Delta MERGE, copy-on-write": "#e3a27c",
    "delta-rs, copy-on-write": "#8250df",
    "Iceberg MERGE, deletion vectors": "#0969da",
    "Paimon, merge-on-write": "#bf3989",
    "Paimon, merge-on-read": "#e087b8",
    "Hudi upsert, merge-on-read, record index": "#9a6700",
}
"""Systems as the table has them, and their colours."""

WIDTH = 860
HEIGHT = 420
LEFT, RIGHT, TOP, BOTTOM = 70, 330, 58, 52
STROKE = 'stroke="#d0d7de" stroke-width="1"'
LABEL_HEIGHT = 17

Point = tuple[int, float]


def read_points(text: str) -> dict[str, list[Point]]:
    """Return rows of the table and cost of a batch, in appends, of each system."""
    lines = text.split("\n")
    start = lines.index(HEADER)
    columns = [cell.strip() for cell in HEADER.strip("|").split("|")]
    points: dict[str, list[Point]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        row = dict(zip(columns, [cell.strip() for cell in line.strip("|").split("|")], strict=True))
        points.setdefault(row["system"], []).append((int(row["rows"].replace(",", "")), float(row[": append"])))
    return {system: sorted(of_system) for system, of_system in points.items()}


def draw(points: dict[str, list[Point]]) -> str:
    """Return the picture as SVG; both axes are logarithmic."""
    sizes = sorted({size for of_system in points.values() for size, _ in of_system})
    costs = [cost for of_system in points.values() for _, cost in of_system]
    x_of = _scale(min(sizes) / 1.4, max(sizes) * 1.4, LEFT, WIDTH - RIGHT)
    exponents = (min(0, math.floor(math.log10(min(costs)))), max(1, math.ceil(math.log10(max(costs)))))
    y_of = _scale(10 ** exponents[0], 10 ** exponents[1], HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#1f2328" role="img">',
        "<title>Cost of a batch of 10,000 changes, in plain appends, over the rows of the table</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#f6f8fa"/>',
        '<text x="16" y="30" font-size="15" font-weight="600">'
        "Cost of 10,000 changes, in plain appends of the same process</text>",
        *_axes(sizes, exponents, x_of, y_of),
    ]
    by_cost = sorted(points, key=lambda system: y_of(points[system][-1][1]))
    for system, label_y in zip(by_cost, _spread([y_of(points[system][-1][1]) for system in by_cost]), strict=True):
        lines += _line(system, points[system], label_y, x_of, y_of)
    return "\n".join([*lines, "</svg>", ""])


def _scale(low: float, high: float, start: float, end: float):
    factor = (end - start) / math.log(high / low)
    return lambda value: round(start + math.log(value / low) * factor, 1)


def _axes(sizes: list[int], exponents: tuple[int, int], x_of, y_of) -> list[str]:
    lines = []
    low, high = exponents
    ticks = [digit * 10**exponent for exponent in range(low, high) for digit in (1, 2, 5)]
    for number in (*ticks, 10**high):
        y = y_of(number)
        lines.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" {STROKE}/>')
        lines.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{number:g}</text>')
    for size in sizes:
        x = x_of(size)
        lines.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}" {STROKE}/>')
        lines.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" font-size="12">{size:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">rows of the table</text>')
    return lines


def _spread(heights: list[float]) -> list[float]:
    """Return the heights, from top to bottom, so far apart that labels do not overlap."""
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + LABEL_HEIGHT) if spread else height)
    return spread


def _line(system: str, of_system: list[Point], label_y: float, x_of, y_of) -> list[str]:
    colour = COLOURS[system]
    places = [(x_of(size), y_of(cost)) for size, cost in of_system]
    path = " ".join(f"{x},{y}" for x, y in places)
    x, y = places[-1]
    end = WIDTH - RIGHT + 14
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in places),
        f'<line x1="{x + 6:.1f}" y1="{y}" x2="{end - 4}" y2="{label_y:.1f}" stroke="{colour}" stroke-width="0.7"/>',
        f'<text x="{end}" y="{label_y + 4:.1f}" fill="{colour}">{of_system[-1][1]:.1f} {escape(system)}</text>',
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(read_points(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
