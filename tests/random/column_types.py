"""The types of columns that are neither keys nor sequences: which one holds the values of two, and their values."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

TYPES = ("STRING", "INT", "BIGINT", "DOUBLE", "DECIMAL(12,2)", "DATE", "TIMESTAMP_NTZ")
_TIMES = ("DATE", "TIMESTAMP_NTZ")
_INTEGERS = {"INT": (10, 10), "BIGINT": (20, 19)}
"""The digits that a decimal needs for a column of the type to become one, and to hold its values."""


def digits(sql_type: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; None for another type."""
    found = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", sql_type)
    return None if found is None else (int(found[1]), int(found[2]))


def is_number(sql_type: str) -> bool:
    """Whether the type is one of numbers."""
    return sql_type in (*_INTEGERS, "DOUBLE") or digits(sql_type) is not None


def wider(kept: str, sent: str) -> str | None:
    """Return the type for a column of the table that holds the values of both types; None if Delta has no way to it."""
    if sent == kept or kept == "STRING":
        return kept
    if kept in _TIMES and sent in _TIMES:
        return "TIMESTAMP_NTZ"
    if not is_number(kept) or not is_number(sent):
        return None
    both = {kept, sent}
    if both <= {*_INTEGERS}:
        return "BIGINT"
    if "DOUBLE" in both:
        return "DOUBLE" if "INT" in both else None
    whole, scale = 0, 0
    for place, sql_type in enumerate((kept, sent)):
        of_decimal = digits(sql_type)
        whole = max(whole, of_decimal[0] - of_decimal[1] if of_decimal else _INTEGERS[sql_type][place])
        scale = max(scale, of_decimal[1] if of_decimal else 0)
    return f"DECIMAL({whole + scale},{scale})"


def value_of(sql_type: str, text: str | None, number: int) -> Any:
    """Return a value of a type for what was drawn: a text and a number."""
    if sql_type == "STRING":
        return text
    if number < 0:
        return None
    match sql_type:
        case "DOUBLE":
            return number + 0.5
        case "DATE":
            return dt.date(2024, 1, 1) + dt.timedelta(days=number)
        case "TIMESTAMP_NTZ":
            return dt.datetime.fromisoformat("2024-01-01 00:00:00.000001") + dt.timedelta(days=number)
        case _:
            return number if digits(sql_type) is None else Decimal(number) + Decimal("0.25")


def converted(value: Any, sql_type: str) -> Any:
    """Return a value in another type, whose column holds it."""
    of_decimal = digits(sql_type)
    if value is None:
        return None
    if of_decimal is not None:
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-of_decimal[1]))
    match sql_type:
        case "STRING":
            return str(value)
        case "INT" | "BIGINT":
            return int(value)
        case "DOUBLE":
            return float(value)
        case "DATE":
            return dt.date.fromisoformat(value) if isinstance(value, str) else value
        case "TIMESTAMP_NTZ" if isinstance(value, str):
            return dt.datetime.fromisoformat(value)
        case "TIMESTAMP_NTZ" if not isinstance(value, dt.datetime):
            return dt.datetime.combine(value, dt.time())
        case _:
            return value
