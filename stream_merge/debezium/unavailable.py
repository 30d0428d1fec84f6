"""Recognizes Debezium's placeholder for "this value did not change and is not in the log", in every type."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

from pyspark.sql import types as T

from stream_merge.debezium.fields import Field
from stream_merge.debezium.spelling import text

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
"""Debezium's own default of `unavailable.value.placeholder`."""

# PostGIS: points that lie nowhere, as well-known binary.
_WKB = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
    "0101000000000000FC83D797C1000000FC83D797C1",
)
_GEOMETRY = ("Point", "Geometry", "Geography")


def is_unavailable(raw: str, field: Field, placeholder: str) -> str:
    """Return SQL for whether a value is the placeholder of one that was not sent.

    Args:
        raw: SQL for the value's text.
        field: The column.
        placeholder: The connector's `unavailable.value.placeholder`; bytes in hexadecimal after "hex:".
    """
    content = bytes.fromhex(placeholder[4:]) if placeholder.startswith("hex:") else placeholder.encode()
    spellings = _spellings(content)
    # Hardly any value has their lengths, and a value's own is there without looking at it.
    lengths = sorted({len(spelling.encode()) for spelling in spellings})
    condition = (
        f"octet_length({raw}) IN ({', '.join(map(str, lengths))}) AND {raw} IN ({', '.join(map(text, spellings))})"
    )
    if isinstance(field.data_type, T.StructType) or field.kind in _GEOMETRY:
        for wkb in (*(bytes.fromhex(nowhere) for nowhere in _WKB), content):
            encoded = base64.b64encode(wkb).decode()
            condition += f""" OR contains({raw}, '"wkb":"{encoded}"')"""
    return f"coalesce({condition}, false)"


def _spellings(content: bytes) -> list[str]:
    """Return the placeholder in every type, in the compact JSON that Spark writes for arrays and maps."""
    string = content.decode(errors="replace")
    version_3 = uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3)
    scalars = [
        string,
        base64.b64encode(content).decode(),
        base64.urlsafe_b64encode(content).decode(),
        content.hex(),
        content.hex().upper(),
        str(version_3),
        _compact({string: string}),
        _compact(string),
    ]
    codes = [code - 256 if code > 127 else code for code in content]
    spellings = [*scalars, *(_compact([scalar]) for scalar in scalars), _compact(codes)]
    return list(dict.fromkeys(spellings))


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
