"""Parses the durations in a pipeline file."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?", re.IGNORECASE)
_SPARK_UNITS = "week|day|hour|minute|second|millisecond|microsecond"
_PART = re.compile(rf"(?:(\d+)\s+({_SPARK_UNITS})s?|(\d+\.\d+)\s+seconds?)(?:\s+|$)", re.IGNORECASE)


def parse_duration(text: str) -> timedelta:
    """Return the duration of a text such as "7 days" or "1.5 hours".

    Args:
        text: A number and second, minute, hour or day, with or without an s.

    Raises:
        ValueError: The text is not a duration; the message is one clause without the text.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError('must be a number and seconds, minutes, hours or days, such as "7 days" or "12 hours"')
    try:
        return timedelta(**{f"{match[2].lower()}s": float(match[1])})
    except OverflowError:
        raise ValueError("is too long; give fewer days") from None


def parse_interval(text: str) -> timedelta | None:
    """Return the interval of a trigger, such as "1 minute 30 seconds"; None if Spark would not accept it."""
    text = re.sub(r"^interval\s+", "", text.strip(), flags=re.IGNORECASE)
    total, position = timedelta(), 0
    while position < len(text) or not position:
        part = _PART.match(text, position)
        if part is None:
            return None
        number, unit, seconds = part.groups()
        try:
            total += timedelta(seconds=float(seconds)) if seconds else timedelta(**{f"{unit.lower()}s": int(number)})
        except OverflowError:
            return None
        position = part.end()
    return total
