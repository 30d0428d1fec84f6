"""Draw the comparison's picture from the table of peers in benchmarks/README.md.

python -m benchmarks.peers.plot
"""

from __future__ import annotations

from benchmarks.log_plot import LogPlot, Point
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


PLOT = LogPlot(
    heading="Cost of 10,000 changes, in plain appends of the same process",
    title="Cost of a batch of 10,000 changes, in plain appends, over the rows of the table",
    colours=COLOURS,
    right=330,
    label=lambda system, cost: f"{cost:.1f} {system}",
)


if __name__ == "__main__":
    PICTURE.write_text(PLOT.draw(read_points(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
