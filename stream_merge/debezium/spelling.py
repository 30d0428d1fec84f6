"""Small pieces of SQL text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

_numbers = count()


def text(value: str) -> str:
    """Return text as a literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


JSON_SPACE = r"' \t\r\n'"
"""SQL for the characters that may stand around JSON."""

# Spark trims slowly; hardly any JSON of an object needs it.
IS_TOMBSTONE = (
    "CASE WHEN endswith(CAST(value AS STRING), '}') THEN false "
    f"ELSE coalesce(trim(BOTH {JSON_SPACE} FROM CAST(value AS STRING)) = 'null', true) END"
)
"""SQL for whether a record has no value."""


def let(value: str, body: Callable[[str], str]) -> str:
    """Return SQL in which the value has a name, so that it is written, and computed, once.

    SQL's only local names are those of lambda functions.
    """
    name = f"x{next(_numbers)}"
    return f"transform(array({value}), {name} -> {body(name)})[0]"


def lambda_name() -> str:
    """Return a name for the variable of a lambda function that no lambda function around it has."""
    return f"x{next(_numbers)}"
