"""The table of results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.systems import SYSTEMS

HEADER = (
    "| system | version | rows | batches | append ms | system ms | : append | : append, means | MB a batch | append MB "
    "| read s | : fresh copy | load |"
)


def format_table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the Markdown table; times of a batch are median / mean / 90th percentile."""
    return [HEADER, "|" + "---|" * (HEADER.count("|") - 1), *(_format_row(result) for result in results)]


def format_maintenance(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each system: what ran beside its merges."""
    systems = [SYSTEMS[result["task"]["system"]] for result in results]
    return [f"- {system.title}: {system.maintenance}" for system in systems]


def percentile_90(numbers: Sequence[float]) -> float:
    """Return the smallest number that nine tenths of them do not exceed."""
    return sorted(numbers)[-(-9 * len(numbers) // 10) - 1]


def _format_row(result: dict[str, Any]) -> str:
    ms, written = result["ms"], result["written"]
    cells = [
        SYSTEMS[result["task"]["system"]].title,
        result["versions"],
        f"{result['task']['num_rows']:,}",
        f"{result['task']['rounds']} after {result['task']['warmup']}",
        _format_times(ms["append"]),
        _format_times(ms["system"]),
        f"{statistics.median(ms['system']) / statistics.median(ms['append']):.2f}",
        f"{statistics.mean(ms['system']) / statistics.mean(ms['append']):.2f}",
        f"{statistics.mean(written['system']) / 1e6:.2f}",
        f"{statistics.mean(written['append']) / 1e6:.2f}",
        f"{result['read']:.2f}",
        f"{result['read'] / result['read_fresh']:.2f}",
        "{:.1f}-{:.1f}".format(*result["load"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _format_times(ms: Sequence[float]) -> str:
    return f"{statistics.median(ms):,.0f} / {statistics.mean(ms):,.0f} / {percentile_90(ms):,.0f}"
