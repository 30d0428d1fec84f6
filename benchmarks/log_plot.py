"""Draws lines over logarithmic axes as SVG: the cost of a batch over the rows of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

WIDTH = 860
HEIGHT = 420
LEFT, TOP, BOTTOM = 70, 58, 52
STROKE = 'stroke="#d0d7de" stroke-width="1"'
LABEL_HEIGHT = 17

Point = tuple[int, float]
_Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlot:
    """A picture of what a batch costs in several systems.

    Attributes:
        heading: The text above it.
        title: What it shows, for those who cannot see it.
        colours: The systems as the points have them, and their colours.
        right: Width of the labels at the right, in pixels.
        label: Makes the label of a system from its name and its last value.
    """

    heading: str
    title: str
    colours: Mapping[str, str]
    right: int
    label: Callable[[str, float], str]

    def draw(self, points: Mapping[str, list[Point]]) -> str:
        """Return the picture of each system's points: rows of the table, and cost."""
        sizes = sorted({size for of_system in points.values() for size, _ in of_system})
        costs = [cost for of_system in points.values() for _, cost in of_system]
        x_of = _scale(min(sizes) / 1.4, max(sizes) * 1.4, LEFT, WIDTH - self.right)
        exponents = (min(0, math.floor(math.log10(min(costs)))), max(1, math.ceil(math.log10(max(costs)))))
        y_of = _scale(10.0 ** exponents[0], 10.0 ** exponents[1], HEIGHT - BOTTOM, TOP)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="13" fill="#1f2328" role="img">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#f6f8fa"/>',
            f'<text x="16" y="30" font-size="15" font-weight="600">{escape(self.heading)}</text>',
            *self._axes(sizes, exponents, x_of, y_of),
        ]
        by_cost = sorted(points, key=lambda system: y_of(points[system][-1][1]))
        heights = _spread([y_of(points[system][-1][1]) for system in by_cost])
        for system, label_y in zip(by_cost, heights, strict=True):
            lines += self._line(system, points[system], label_y, x_of, y_of)
        return "\n".join([*lines, "</svg>", ""])

    def _axes(self, sizes: list[int], exponents: tuple[int, int], x_of: _Scale, y_of: _Scale) -> list[str]:
        lines = []
        low, high = exponents
        end = WIDTH - self.right
        for number in (*(digit * 10.0**exponent for exponent in range(low, high) for digit in (1, 2, 5)), 10.0**high):
            y = y_of(number)
            lines.append(f'<line x1="{LEFT}" y1="{y}" x2="{end}" y2="{y}" {STROKE}/>')
            lines.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{number:g}</text>')
        for size in sizes:
            x = x_of(size)
            lines.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}" {STROKE}/>')
            lines.append(
                f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" font-size="12">{size:,}</text>'
            )
        middle = (LEFT + end) / 2
        lines.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">rows of the table</text>')
        return lines

    def _line(self, system: str, of_system: list[Point], label_y: float, x_of: _Scale, y_of: _Scale) -> list[str]:
        colour = self.colours[system]
        places = [(x_of(size), y_of(cost)) for size, cost in of_system]
        path = " ".join(f"{x},{y}" for x, y in places)
        x, y = places[-1]
        end = WIDTH - self.right + 14
        return [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in places),
            f'<line x1="{x + 6:.1f}" y1="{y}" x2="{end - 4}" y2="{label_y:.1f}" stroke="{colour}" stroke-width="0.7"/>',
            f'<text x="{end}" y="{label_y + 4:.1f}" fill="{colour}">'
            f"{escape(self.label(system, of_system[-1][1]))}</text>",
        ]


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    factor = (end - start) / math.log(high / low)
    return lambda value: round(start + math.log(value / low) * factor, 1)


def _spread(heights: list[float]) -> list[float]:
    """Return the heights, from top to bottom, so far apart that labels do not overlap."""
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + LABEL_HEIGHT) if spread else height)
    return spread
