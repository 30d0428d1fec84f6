"""Parses the durations in a pipeline file."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?", re.IGNORECASE)
_SPARK_UNITS = "week|day|hour|minute|second|millisecond|microsecond"
_INTERVAL = re.compile(rf"(?:interval\s+)?(?:\d+\s+(?:{_SPARK_UNITS})s?|\d+\.\d+\s+seconds?)", re.IGNORECASE)
_FURTHER_PART = re.compile(rf"\s+(?:\d+\s+(?:{_SPARK_UNITS})s?|\d+\.\d+\s+seconds?)", re.IGNORECASE)


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


def is_interval(text: str) -> bool:
    """Return whether Spark accepts a text as the interval of a trigger: "10 seconds", "1 minute 30 seconds"."""
    text = text.strip()
    first = _INTERVAL.match(text)
    if first is None:
        return False
    position = first.end()
    while position < len(text):
        part = _FURTHER_PART.match(text, position)
        if part is None:
            return False
        position = part.end()
    return True
