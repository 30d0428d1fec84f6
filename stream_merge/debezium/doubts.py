"""Finds values that a message without a schema leaves in doubt: one text, two meanings, and no word of which.

Debezium writes a number as base64, as text or as a number, bytes as base64 or hexadecimal, and a point in time in
milli-, micro- or nanoseconds, as the connector is set. Most values of one way are no values of another one, and become
errors. Those that are would be read as something else without a word, so they are errors as well, unless the settings
of the connector are given.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import types as T

from stream_merge.debezium.fields import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """The connector's settings that a message without a schema does not tell; None if nobody has given them.

    Attributes:
        decimals: `decimal.handling.mode`: "precise", "string" or "double".
        binary: `binary.handling.mode`: "base64" (also for "bytes", which is base64 in JSON), "base64-url-safe" or
            "hex".
        timestamp_unit: Unit of integers that are timestamps: "ms", "us" or "ns".
    """

    decimals: str | None = None
    binary: str | None = None
    timestamp_unit: str | None = None

    @property
    def decimal_mode(self) -> str:
        """`decimals`, or the connector's default."""
        return self.decimals or "precise"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A doubt about a value.

    Attributes:
        condition: SQL for whether the value is in doubt; NULL or false if it is not.
        remedy: What removes the doubt.
    """

    condition: str
    remedy: str


_NUMBER = "'^([0-9]+(E[+]?[0-9]+)?|NaN|NAN|Infinity)$'"
"""Numbers, as the connector writes them, that are base64 as well; a point or a minus sign never is."""
_NO_NUMBER = "('NaN', 'NAN', 'Infinity')"
_HEX = "'^([0-9a-f]{2})+$'"
_INTEGER = "'^-?[0-9]+$'"
_MICROS = (
    "{0} = 0 OR {0} IN (9223372036825200000, -9223372036832400000) "
    "OR {0} BETWEEN 253402300800000 AND 253402300799999999 AND {0} <> 9223372036825200 "
    "OR {0} BETWEEN -253402300800000000 AND -253402300800000 AND {0} <> -9223372036832400"
).format
"""Integers that are microseconds: of years up to 9999, and in milliseconds of years beyond; or infinity."""

_OF_DECIMAL = "a number, or base64 of one? Set decimals to the connector's decimal.handling.mode"
_OF_BINARY = "base64, or hexadecimal? Set binary to the connector's binary.handling.mode"
_OF_TIMESTAMP = "milli-, micro- or nanoseconds? Set timestamp_unit, or take the columns from messages with schemas"


def find_doubt(raw: str, field: Field, handling: Handling) -> Doubt | None:
    """Return what may be in doubt about a value of a field; None if nothing can be.

    Args:
        raw: SQL for the value's text. It is repeated, so it should be a name.
        field: The column. Its semantic type leaves no doubt.
        handling: The connector's settings.
    """
    if field.kind is not None:
        return None
    match field.data_type:
        case T.DecimalType() if handling.decimals is None:
            return Doubt(f"{raw} RLIKE {_NUMBER}", _OF_DECIMAL)
        case T.DecimalType() if handling.decimals == "precise":
            return Doubt(f"{raw} IN {_NO_NUMBER}", _OF_DECIMAL)
        case T.BinaryType() if handling.binary is None:
            return Doubt(f"{raw} RLIKE {_HEX}", _OF_BINARY)
        case T.TimestampType() | T.TimestampNTZType() if handling.timestamp_unit is None:
            is_micros = _MICROS(f"try_cast({raw} AS BIGINT)")
            return Doubt(f"{raw} RLIKE {_INTEGER} AND NOT coalesce({is_micros}, false)", _OF_TIMESTAMP)
        case _:
            return None
