"""The values that keys and sequences are drawn from: of each type those at its edges."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

LONG = "the same first thirty-two bytes.."

KEYS: dict[str, tuple[Any, ...]] = {
    "INT": (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    "BIGINT": (0, 1, -1, 2**53 + 1, 2**53, 2**63 - 1, -(2**63)),
    "STRING": (
        "a",
        "A",
        "a ",
        LONG[:31] + "\U0001f600" * 3,
        LONG + "a",
        LONG + "b",
        LONG + "\U0001f600" * 3,
        "é" * 40,
        "1;",
        "1:1",
        "\uffff\uffff",
    ),
    "DECIMAL(38,10)": (
        Decimal("1234567890123456789.0123456789"),
        Decimal("1234567890123456789.0123456788"),
        Decimal("9999999999999999999999999999.9999999999"),
        Decimal("-9999999999999999999999999999.9999999999"),
        Decimal("0E-10"),
        Decimal("1.0000000000"),
    ),
    "DATE": (
        dt.date(1, 1, 1),
        dt.date(1582, 10, 15),
        dt.date(1582, 10, 4),
        dt.date(1899, 12, 31),
        dt.date(1900, 1, 1),
        dt.date(2024, 2, 29),
        dt.date(9999, 12, 31),
    ),
    "TIMESTAMP": (
        dt.datetime.fromisoformat("1700-02-28 23:59:59.999999"),
        # New York was 4:56:02 behind, and Amsterdam 0:19:32 ahead.
        dt.datetime.fromisoformat("1883-11-18 16:59:30.123456"),
        dt.datetime.fromisoformat("1883-11-18 16:59:31.123456"),
        dt.datetime.fromisoformat("1899-12-31 23:59:59.999999"),
        dt.datetime.fromisoformat("1937-06-30 22:40:00.000001"),
        # 01:30 in New York, twice; and 02:30 in Amsterdam, twice.
        dt.datetime.fromisoformat("2024-11-03 05:30:00.000001"),
        dt.datetime.fromisoformat("2024-11-03 06:30:00.000001"),
        dt.datetime.fromisoformat("2024-10-27 00:30:00.999999"),
        dt.datetime.fromisoformat("2024-10-27 01:30:00.999999"),
        dt.datetime.fromisoformat("9999-12-31 12:00:00.000001"),
    ),
    "BOOLEAN": (True, False),
    "DOUBLE": (0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 2.0**53, 1e-320),
}
SEQUENCES: dict[str, tuple[Any, ...]] = {
    **{name: KEYS[name] for name in ("INT", "BIGINT", "DECIMAL(38,10)", "TIMESTAMP", "DOUBLE", "DATE")},
    "STRING": ("", "1", "10", "9", LONG, LONG + "a", "é", "\uffff", "\U0001f600"),
}
TEXTS = ("a", "b", LONG + "x", "", "it's")

BOTH = ("INT", "BIGINT")


def fits(value: Any, sql_type: str) -> bool:
    """Whether a value of a wider type is one of this type."""
    return sql_type != "INT" or value is None or -(2**31) <= value < 2**31


def as_text(value: Any, zone: str = "Z") -> str | None:
    """Return a text whose cast gives the value."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
        case dt.datetime():
            return value.isoformat(" ") + zone
        case dt.date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case int():
            return f"0{value}" if value >= 0 else str(value)
        case _:
            return str(value)
