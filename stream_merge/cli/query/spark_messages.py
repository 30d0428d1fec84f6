"""Shortens messages of Spark, Kafka's client and Delta to one sentence."""

from __future__ import annotations

import re

from stream_merge.bridge.jvm import throwables, translate

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*")
_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors\.)?(\w+Exception)(?::[ \t]*([^\r\n]*))?")
_OF_SEVERAL_LINES = "CSV header"
"""In messages whose other lines tell what is wrong: the columns of the header and of the schema, and the file."""
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


def short_message(error: BaseException) -> str:
    """Return the first sentence of an error from Spark, without condition, SQLSTATE and plan."""
    message = str(translate(error))
    message = _SQL_STATE.sub("", _CONDITION.sub("", message))
    if _OF_SEVERAL_LINES in message:
        message = " ".join(message.split())
    first = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
    return first.rstrip(".")


def condition(error: BaseException) -> str:
    """Return Spark's or Delta's name of the failure; empty if there is none."""
    return translate(error).condition or ""


def kafka_error(error: BaseException) -> tuple[str, str] | None:
    """Return the class and the message of the innermost error of Kafka's client; None if there is none."""
    found = _KAFKA_ERROR.findall("\n".join([str(error), *map(str, throwables(error))]))
    return None if not found else (found[-1][0], found[-1][1].strip().rstrip("."))
