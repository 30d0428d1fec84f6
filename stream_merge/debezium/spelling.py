"""Builds small pieces of SQL text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

_numbers = count()


def text(value: str) -> str:
    """Return a string as an SQL literal."""
    # Spark would replace ${...} by a setting or a variable of the environment.
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
    return f"'{escaped}'"


NUL = r"'\0'"
"""SQL for the character 0, with which JSON never begins, and Avro with the id of a schema does."""

JSON_SPACE = r"' \t\r\n'"
"""SQL for the characters that may surround JSON."""

_BETWEEN_OBJECTS = ("}{", "}\\n{", "}\\r\\n{", "} {")
"""Inside of one JSON object, only texts have these."""


def is_one_value(json: str) -> str:
    """Return SQL for whether JSON is one value; of several, Spark's parser returns the first."""
    # To an array, values are nothing if there is no comma between them.
    return f"coalesce(size(from_json(concat('[', {json}, ']'), 'ARRAY<STRING>')), 0) = 1"


def are_several_objects(json: str) -> str:
    """Return SQL for whether JSON is several objects, one after the other. It costs little where it is one."""
    may_be = " OR ".join(f"contains({json}, '{sign}')" for sign in _BETWEEN_OBJECTS)
    return f"(({may_be}) AND NOT ({is_one_value(json)}))"


# Trimming is slow in Spark, and hardly any JSON object needs it.
IS_TOMBSTONE = (
    "CASE WHEN endswith(CAST(value AS STRING), '}') THEN false "
    f"ELSE coalesce(trim(BOTH {JSON_SPACE} FROM CAST(value AS STRING)) = 'null', true) END"
)
"""SQL for whether a record has no value."""


def let(value: str, body: Callable[[str], str]) -> str:
    """Return SQL in which a value has a name, so that it is written, and computed, once.

    SQL's only local names are the variables of lambda functions.
    """
    name = f"x{next(_numbers)}"
    return f"transform(array({value}), {name} -> {body(name)})[0]"


def rarely(condition: str, value: str) -> str:
    """Return SQL for a value that few rows have, NULL for the others.

    Spark interprets the bodies of lambda functions. Compiled with the rest, what few rows need would make methods so
    long that the JVM does not compile them (over 8,000 bytes), and interprets all that is in them, for every row.

    Args:
        condition: SQL for whether a row may have the value; it should be short.
        value: SQL for the value.
    """
    return f"CASE WHEN {condition} THEN transform(array(0), {lambda_name()} -> {value})[0] END"


def lambda_name() -> str:
    """Return a name for a lambda variable that differs from those of all surrounding lambda functions."""
    return f"x{next(_numbers)}"
