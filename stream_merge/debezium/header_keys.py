"""Decodes a row's old or new key, which Debezium puts into a header when a primary key changes.

Kafka Connect's default converter for headers (SimpleHeaderConverter) writes JSON that differs from the record's key:
decimals are digits where the key has base64, and control characters are not escaped. JsonConverter, which may be
configured for headers, writes them as in the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import types as T

from stream_merge.debezium.decimals import plain_text
from stream_merge.debezium.fields import Field
from stream_merge.debezium.spelling import let, text
from stream_merge.debezium.values import Handling, decode

PARSE_OPTIONS = {"allowUnquotedControlChars": "true"}
"""Spark's options for the JSON in headers."""

_MARK = "="
"""Precedes a number of digits; no base64 begins with it."""


def mark_digits(header: str, fields: Iterable[tuple[str, Field]], handling: Handling) -> str:
    """Return SQL for the header's JSON with a mark before digits that represent a decimal.

    They become text, since Spark would turn them into doubles; the mark distinguishes them from base64, which may
    consist of digits.

    Args:
        header: SQL for the header's text.
        fields: The key columns.
        handling: The connector's settings.
    """
    names = [re.escape(json.dumps(name, ensure_ascii=False)) for name, field in fields if _is_decimal(field, handling)]
    if not names:
        return header
    # Inside text every quote is escaped, so this matches only at names.
    digits = rf"([{{,]\s*(?:{'|'.join(names)})\s*:\s*)(-?[0-9][0-9.eE+-]*)"
    marked = f'$1"{_MARK}$2"'
    return f"regexp_replace({header}, {text(digits)}, {text(marked)})"


def decode_key(raw: str, field: Field, handling: Handling) -> str:
    """Return SQL for a value of a key in a header, in the field's type.

    Args:
        raw: SQL for the value's text, in the result of `mark_digits`.
        field: The key column.
        handling: The connector's settings.
    """
    as_in_key = decode(raw, field, handling)
    if not _is_decimal(field, handling):
        return as_in_key
    number, digits = replace(field, semantic=None), replace(handling, decimals="string")
    decoded = let(plain_text(f"substring({raw}, {len(_MARK) + 1})"), lambda plain: decode(plain, number, digits))
    return f"CASE WHEN {raw} LIKE '{_MARK}%' THEN {decoded} ELSE {as_in_key} END"


def unmarked(raw: str) -> str:
    """Return SQL for a value's text without the mark, as in the header."""
    return f"trim(LEADING '{_MARK}' FROM {raw})"


def _is_decimal(field: Field, handling: Handling) -> bool:
    """Return whether the record's key has the value in base64."""
    if field.kind is not None:
        return field.kind == "Decimal"
    return isinstance(field.data_type, T.DecimalType) and handling.decimals == "precise"
