"""Writes numbers, rates, sizes and times as they are shown on a terminal and on a page."""

from __future__ import annotations

from datetime import datetime, timedelta

from rich import filesize

UNKNOWN = "-"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


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


def count(number: float) -> str:
    """Return a number of rows in at most six characters: 12,345, then 123.4k, 1.2M, 3.4G."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    if number < 99_999.5:
        return f"{number:,.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 999.95 or unit == "G":
            return f"{number:.1f}{unit}"
    raise AssertionError(number)


def duration(seconds: float) -> str:
    """Return a duration in one unit: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{min(59, round(seconds))} s"


def end_of(name: str, width: int) -> str:
    """Return a name or its end, which tells tables in one folder apart."""
    return name if len(name) <= width else f"…{name[len(name) - width + 1 :]}"
