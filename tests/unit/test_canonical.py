"""Which types have values that are their own canonical form; no JVM."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from stream_merge.merge.canonical import EXACT, TEXT

DECIMAL, BYTES, MAP = T.DecimalType(10, 2), T.BinaryType(), T.MapType(T.StringType(), T.StringType())


@pytest.mark.parametrize(
    ("kind", "exact", "text"),
    [
        (T.StringType(), True, False),
        (T.StringType("UTF8_LCASE"), False, False),
        (T.DoubleType(), False, True),
        (T.FloatType(), False, True),
        (T.IntegerType(), True, False),
        (DECIMAL, True, False),
        (BYTES, True, True),
        (T.TimestampType(), True, True),
        (MAP, False, False),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else None,
)
@pytest.mark.parametrize("wrap", [lambda kind: kind, T.ArrayType, lambda kind: T.StructType().add("x", kind)])
def test_which_values_are_their_own_form(kind, exact, text, wrap):
    assert (EXACT.keeps(wrap(kind)), TEXT.keeps(wrap(kind))) == (exact, text)
