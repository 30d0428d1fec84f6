"""Writes numbers, rates, sizes and times as the status of a table shows them, on a terminal and on a page."""

from __future__ import annotations

from datetime import datetime, timedelta

from rich import filesize

UNKNOWN = "-"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: 1 merge, 2 merges."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def short(number: int) -> str:
    """Return a number, from a million on in millions."""
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.1f}M"


def or_dash(value: int | None) -> str:
    """Return a number, or a dash if it is not known."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate, or a dash if it is not known."""
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """Return a share as a percentage, or a dash if it is not known."""
    return UNKNOWN if value is None else f"{value:.1%}"


def in_seconds(ms: float) -> str:
    """Return milliseconds as seconds."""
    return f"{ms / 1000:.2f}"


def size(num_bytes: float) -> str:
    """Return a number of bytes in kB, MB and so on."""
    return filesize.decimal(round(num_bytes))


def utc(time: datetime) -> str:
    """Return a time in UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def span(time: timedelta) -> str:
    """Return a duration in its two largest units."""
    left = max(0.0, time.total_seconds())
    if left < 60:
        return f"{left:.1f} s" if left < 10 else f"{left:.0f} s"
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
