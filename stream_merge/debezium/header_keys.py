"""The other key of a changed primary key, in the record's headers.

Kafka Connect's default `header.converter`, the SimpleHeaderConverter, writes what only resembles JSON: control characters stand
as they are, and a decimal is a number, with all its digits, where the record's key has base64. With the JsonConverter a header is
as a key.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from pyspark.sql import types as T

from stream_merge.debezium.fields import Field
from stream_merge.debezium.settings import Settings
from stream_merge.debezium.spelling import text
from stream_merge.debezium.values import Handling, decode

_MARK = "#"
"""What a number without quotes is told by: it is in no base64."""


def header_json(name: str, settings: Settings) -> str:
    """Return SQL for a header's text, the numbers of decimals in quotes and marked: Spark reads others as doubles."""
    sql = name
    for position in settings.key_positions:
        if _is_bytes(list(settings.fields.values())[position], settings.handling):
            # No text in JSON has it: its quotes would be escaped.
            start = re.escape(f"{json.dumps(settings.names[position], ensure_ascii=False)}:")
            pattern, marked = rf"({start})(-?[0-9][^,}}]*)", rf'$1"{_MARK}$2"'
            sql = f"regexp_replace({sql}, {text(pattern)}, {text(marked)})"
    return sql


def decode_header(raw: str, field: Field, handling: Handling) -> str:
    """Return SQL for a value of a header's key, as `decode` does for one of the record's key."""
    value = decode(raw, field, handling)
    if not _is_bytes(field, handling):
        return value
    number = f"substring({raw}, 2)"
    if isinstance(field.data_type, T.StringType):
        # The digits of the scale, as those of the record's key.
        plain = f"CASE WHEN NOT contains({raw}, 'E') THEN {number} END"
    else:
        plain = decode(number, replace(field, semantic=None, scale=None), replace(handling, decimals="string"))
    return f"CASE WHEN startswith({raw}, '{_MARK}') THEN {plain} ELSE {value} END"


def _is_bytes(field: Field, handling: Handling) -> bool:
    """Return whether the record's key has the value as bytes."""
    is_decimal = isinstance(field.data_type, T.DecimalType) and field.kind is None and handling.decimals == "precise"
    return field.kind == "Decimal" or is_decimal
