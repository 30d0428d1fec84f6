"""Implements `stream-merge status --plot`: plots batch time, rows and delay over time as an image or a page."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge.cli.errors import ExitCode
from stream_merge.cli.show.commits import Commit, Window
from stream_merge.cli.show.status import Status, StatusError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")

# Okabe and Ito's palette, which people with any kind of colour vision can distinguish.
_BLUE, _ORANGE, _GREEN, _RED, _SKY, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#8C8C8C"
_INK, _FAINT = "#303030", "#D9D9D9"
_PHASE_COLORS = {"source": _SKY, "locate": _BLUE, "stage": _ORANGE, "rest": _GREY}
_CHANGES: tuple[tuple[str, str, Callable[[Commit], int]], ...] = (
    ("inserted", _GREEN, lambda merge: merge.num_inserted),
    ("updated", _BLUE, lambda merge: merge.num_updated),
    ("deleted", _RED, lambda merge: merge.num_deleted),
)
_TITLES = ("Time of a batch", "Rows of a batch", "Delay")
_OUTLIER = 3.0
"""A value is cut off above this multiple of the usual highest value."""

_MAX_LABELS = 4
_FEW = 20
"""With fewer merges, no value is cut off."""

_MAX_TITLE = 60
_MIN_MARGIN = 5 / 86400
"""Five seconds, in days."""

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.titlesize": 11,
    "svg.fonttype": "none",
    # A table may have a dollar in its name.
    "text.parse_math": False,
    # Otherwise ids in the SVG are random, and two plots of one history differ.
    "svg.hashsalt": "stream_merge",
}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font-family: sans-serif; color: #303030; }}
svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
{svg}
</body>
</html>
"""


def plot(status: Status, file: Path) -> None:
    """Plot batch time, rows and delay of the merges over time into a file, replacing an existing one.

    Args:
        status: What `read_status` returned.
        file: The file; its ending, .png, .svg or .html, is the format.

    Raises:
        StatusError: The ending is another one, the folder does not exist, or the file cannot be written.
    """
    check_plot_file(file)
    ending = file.suffix.lower()
    figure = draw(status)
    if ending == ".png":
        content = _rendered(figure, "png")
    else:
        svg = _rendered(figure, "svg")
        content = svg if ending == ".svg" else _page(status, svg.decode()).encode()
    try:
        file.write_bytes(content)
    except OSError as error:
        raise StatusError(f"{file}: the plot cannot be written: {error.strerror or error}.", ExitCode.FAILED) from error


def check_plot_file(file: Path) -> None:
    """Refuse a file that `plot` cannot write, before anything is read for it.

    Raises:
        StatusError: The ending is not a format, or the folder does not exist.
    """
    if file.suffix.lower() not in FORMATS:
        endings = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise StatusError(f"{file}: the name of a plot must end with {endings}.", ExitCode.USAGE)
    if not file.parent.is_dir():
        raise StatusError(
            f"{file}: the plot cannot be written: there is no folder {file.parent}; create it.", ExitCode.USAGE
        )


def draw(status: Status) -> Figure:
    """Return the figure: three panels over one time axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    merges = status.merges
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 8.4), dpi=110, layout=ConstrainedLayoutEngine(h_pad=0.08))
        panels: Sequence[Axes] = figure.subplots(3, sharex=True, height_ratios=(3, 3, 2))
        figure.suptitle(_title(status), x=0.012, ha="left", fontsize=13, fontweight="bold")
        seconds = [[merge.phases_ms[phase] / 1000 for merge in merges] for phase in _PHASE_COLORS]
        _stack(panels[0], merges, list(_PHASE_COLORS.items()), seconds)
        _mark(panels[0], merges, [bool(merge.num_conflicts) for merge in merges], seconds, "after a conflict")
        rows = [[float(number(merge)) for merge in merges] for _, _, number in _CHANGES]
        _stack(panels[1], merges, [(name, color) for name, color, _ in _CHANGES], rows)
        _mark(panels[1], merges, [merge.num_quarantined > 0 for merge in merges], rows, "with quarantined rows")
        _draw_delay(panels[2], status.window())
        for axes, title, unit in zip(panels, _TITLES, ("s", "", "s"), strict=True):
            _finish(axes, title, unit)
        _show_others(panels, status)
        _show_times(panels[-1], merges)
        for axes in panels:
            axes.legend(
                loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, frameon=False, borderaxespad=0.2,
                handlelength=1.2, columnspacing=1.4,
            )  # fmt: skip
    return figure


def _title(status: Status) -> str:
    first, last = status.merges[0].time, status.merges[-1].time
    until = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    number = len(status.merges)
    name = status.table if len(status.table) <= _MAX_TITLE else f"…{status.table[-_MAX_TITLE:]}"
    return f"{name}   {number:,} merge{'s' if number > 1 else ''}, {first:%Y-%m-%d %H:%M} to {until} UTC"


def _stack(
    axes: Axes, merges: Sequence[Commit], names: Sequence[tuple[str, str]], series: Sequence[Sequence[float]]
) -> None:
    """Draw a bar for each merge, with one area for each series, so that a thousand bars stay one path."""
    edges = _edges(merges)
    bottom = [0.0] * len(merges)
    for (name, color), values in zip(names, series, strict=True):
        top = [low + value for low, value in zip(bottom, values, strict=True)]
        # In the gap between two bars the area has no height.
        lows = [value for low in bottom for value in (low, 0.0)]
        highs = [value for high in top for value in (high, 0.0)]
        axes.fill_between(edges, lows, highs, step="post", color=color, linewidth=0, label=name)
        bottom = top
    _limit(axes, [_days(merge.time) for merge in merges], bottom)


def _days(time: datetime) -> float:
    """Return a time in days, as matplotlib counts it."""
    return time.timestamp() / 86400


def _edges(merges: Sequence[Commit]) -> list[float]:
    """Return where the bar of each merge begins and ends, in days."""
    times = [_days(merge.time) for merge in merges]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    span = times[-1] - times[0]
    # A stop of hours would make all bars as thin as hairs; keep them visible.
    half = max(0.42 * statistics.median(gaps), span / 1400) if span > 0 else 1 / 86400
    starts = [time - half for time in times]
    ends = [min(time + half, start) for time, start in zip(times, [*starts[1:], times[-1] + half], strict=True)]
    return [edge for pair in zip(starts, ends, strict=True) for edge in pair]


def _limit(axes: Axes, times: Sequence[float], heights: Sequence[float]) -> None:
    """Cut off the few values that would flatten all others, and label them at the top."""
    usual = sorted(heights)[int(0.97 * (len(heights) - 1))]
    highest = max(heights)
    is_cut = len(heights) >= _FEW and highest > _OUTLIER * usual > 0
    top = 2 * usual if is_cut else 1.08 * highest
    axes.set_ylim(0, top or 1)
    outliers = [(height, time) for time, height in zip(times, heights, strict=True) if height > top]
    for height, time in sorted(outliers, reverse=True)[:_MAX_LABELS]:
        axes.annotate(
            _number(height), (time, 1.0), xycoords=("data", "axes fraction"), xytext=(5, -2),
            textcoords="offset points", va="top", fontsize=8.5, fontweight="bold",
        )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _mark(
    axes: Axes, merges: Sequence[Commit], is_marked: Sequence[bool], series: Sequence[Sequence[float]], label: str
) -> None:
    """Put a mark over the bars of some merges."""
    top = axes.get_ylim()[1]
    heights = [sum(values) for values in zip(*series, strict=True)]
    marks = [
        (_days(merge.time), min(height, 0.92 * top) + 0.045 * top)
        for merge, height, is_shown in zip(merges, heights, is_marked, strict=True)
        if is_shown
    ]
    if marks:
        axes.plot(*zip(*marks, strict=True), "v", color=_INK, markersize=5, label=label)


def _draw_delay(axes: Axes, window: Window) -> None:
    times = [_days(merge.time) for merge in window.merges[1:]]
    gaps = [gap.total_seconds() for gap in window.gaps]
    if gaps:
        axes.plot(times, gaps, ".-", markersize=2, color=_GREY, linewidth=1, label="since the commit before")
    delays = [(_days(merge.time), merge.delay.total_seconds()) for merge in window.merges if merge.delay is not None]
    if delays:
        size = 5 if len(delays) < 300 else 3
        axes.plot(*zip(*delays, strict=True), ".", color=_BLUE, markersize=size, label="from planning to commit")
    if gaps or delays:
        _limit(axes, [*times, *(time for time, _ in delays)], [*gaps, *(seconds for _, seconds in delays)])


def _finish(axes: Axes, title: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(title, loc="left", fontweight="bold")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{_number(value)} {unit}".rstrip()))
    axes.grid(axis="y", color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=7)


def _show_others(panels: Sequence[Axes], status: Status) -> None:
    first, last = status.merges[0].time, status.merges[-1].time
    shown = [commit for commit in status.commits if not commit.is_merge and first <= commit.time <= last]
    for axes in panels:
        labels = {False: "commit of another writer", True: "compaction"} if axes is panels[-1] else {}
        for commit in shown:
            axes.axvline(
                _days(commit.time),
                color=_GREEN if commit.is_maintenance else _GREY,
                linewidth=0.8,
                linestyle=(0, (3, 3)),
                zorder=0.6,
                label=labels.pop(commit.is_maintenance, None),
            )


def _show_times(axes: Axes, merges: Sequence[Commit]) -> None:
    from matplotlib import dates

    untyped: Any = dates
    locator = untyped.AutoDateLocator(tz=timezone.utc, minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=timezone.utc))
    edges = _edges(merges)
    margin = max((edges[-1] - edges[0]) / 100, _MIN_MARGIN)
    axes.set_xlim(edges[0] - margin, edges[-1] + margin)


def _rendered(figure: Figure, kind: str) -> bytes:
    from matplotlib import rc_context

    target = io.BytesIO()
    with rc_context(_STYLE):
        figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return target.getvalue()


def _page(status: Status, svg: str) -> str:
    # Without the XML declaration, which may only be at the beginning of a file.
    return _PAGE.format(title=escape(_title(status)), svg=svg[svg.index("<svg") :])
