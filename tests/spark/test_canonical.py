"""The canonical form of values: the same text and the same exact form for equal values, others for others."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from stream_merge.merge.canonical import EXACT, canonical_text
from stream_merge.order.sequence import contents_hash
from tests.spark.drawing import drawn

pytestmark = pytest.mark.core

TYPES = {
    "d": "DOUBLE",
    "i": "INT",
    "n": "DECIMAL(10, 2)",
    "t": "TIMESTAMP",
    "s": "STRING",
    "c": "STRING COLLATE UTF8_LCASE",
    "b": "BINARY",
    "m": "MAP<STRING, DOUBLE>",
    "l": "ARRAY<STRUCT<x: FLOAT, y: MAP<INT, STRING>>>",
}
MOMENTS = [dt.datetime(2026, 3, 29, 1, 30, 0, micros, dt.timezone.utc) for micros in (0, 1)]


def drawn_value(draw: random.Random, name: str) -> Any:
    """Draw one of a few values of a column, so that two are often equal."""
    if draw.random() < 0.15:
        return None
    number = draw.choice([0.0, -0.0, 1.5, math.nan, math.inf])
    entries = [("a", number), ("b", draw.choice([None, 2.0])), ("A", 1.0)]
    return {
        "d": number,
        "i": draw.choice([0, -1]),
        "n": draw.choice([decimal.Decimal("1.50"), decimal.Decimal("0.00")]),
        "t": draw.choice(MOMENTS),
        "s": draw.choice(["", "a", "A"]),
        "c": draw.choice(["a", "A"]),
        "b": draw.choice([b"", b"\xff"]),
        "m": dict(draw.sample(entries, draw.randint(0, 3))),
        "l": [
            (draw.choice([0.0, -0.0, math.nan]), dict(draw.sample([(1, "x"), (2, "y")], 2)))
            for _ in range(draw.randint(0, 2))
        ],
    }[name]


def exact(value: Any) -> Any:
    """Return what equals for the same values alone: -0.0 is not 0.0, NaN is NaN, and a map has no order."""
    match value:
        case float():
            return repr(value)
        case dict():
            return "map", frozenset((key, exact(item)) for key, item in value.items())
        case list() | tuple():
            return tuple(map(exact, value))
        case _:
            return value


@drawn(1)
@given(seed=st.integers(0, 2**32))
def test_two_values_have_one_form_where_they_are_the_same(spark: Any, seed: int) -> None:
    draw = random.Random(seed)
    pairs = [[drawn_value(draw, name) for name in TYPES for _ in ("one", "other")] for _ in range(300)]
    columns = ", ".join(f"{name}_{side} {kind}" for name, kind in TYPES.items() for side in ("one", "other"))
    frame = spark.createDataFrame(pairs, columns).coalesce(1)
    kinds = {name: frame.schema[f"{name}_one"].dataType for name in TYPES}

    def both(form: Any) -> Any:
        return {
            name: [form(F.col(f"{name}_{side}"), kind) for side in ("one", "other")] for name, kind in kinds.items()
        }

    exactly = {name: one.eqNullSafe(other) for name, (one, other) in both(EXACT.of).items()}
    texts = both(lambda value, kind: canonical_text({"v": (value, kind)}))
    as_texts = {name: one == other for name, (one, other) in texts.items()}
    found = frame.select(
        *[same.alias(f"{name}_exact") for name, same in exactly.items()],
        *[same.alias(f"{name}_text") for name, same in as_texts.items()],
    ).collect()
    for number, name in enumerate(TYPES):
        one, other = ([exact(pair[2 * number + side]) for pair in pairs] for side in (0, 1))
        expected = [first == second for first, second in zip(one, other, strict=True)]
        assert [row[f"{name}_exact"] for row in found] == expected, name
        assert [row[f"{name}_text"] for row in found] == expected, name


def test_the_text_is_the_one_that_tables_hold_hashes_of(spark: Any) -> None:
    """Ids of rows without a key are made of it: another text would find none of them again."""
    value = (
        -0.0,
        7,
        decimal.Decimal("1.50"),
        MOMENTS[1],
        "ä",
        None,
        b"\xff",
        {"b": math.nan, "a": None},
        [(0.5, {2: "y"})],
    )
    frame = spark.createDataFrame([value], ", ".join(f"{name} {kind}" for name, kind in TYPES.items()))
    text = canonical_text({field.name: (F.col(field.name), field.dataType) for field in frame.schema})
    assert frame.select(text).first()[0] == (
        '{"d":-0.0,"i":"7","n":"1.5","t":"2026-03-29T01:30:00.000001Z","s":"ä","b":"/w==",'
        r'"m":["{\"key\":\"a\"}","{\"key\":\"b\",\"value\":\"NaN\"}"],'
        r'"l":[{"x":0.5,"y":["{\"key\":\"2\",\"value\":\"y\"}"]}]}'
    )


def test_the_text_stays_when_a_column_is_widened(spark: Any) -> None:
    narrow, wide = (
        "STRUCT<i: INT, n: DECIMAL(5, 1), l: ARRAY<SMALLINT>>",
        "STRUCT<i: BIGINT, n: DECIMAL(20, 3), l: ARRAY<INT>>",
    )
    frame = spark.createDataFrame([((7, decimal.Decimal("10.0"), [1, None]),)], f"v {narrow}")
    frame = frame.select("v", F.col("v").cast(wide).alias("w"))
    texts = [canonical_text({"v": (F.col(name), frame.schema[name].dataType)}) for name in ("v", "w")]
    assert len({*frame.select(*texts).first()}) == 1


def test_changes_with_equal_maps_have_one_hash(spark: Any) -> None:
    frame = spark.sql(
        "SELECT map('a', TIMESTAMP'2026-01-01 00:00:00.000001', 'b', NULL) AS m UNION ALL "
        "SELECT map('b', NULL, 'a', TIMESTAMP'2026-01-01 00:00:00.000001') UNION ALL "
        "SELECT map('a', TIMESTAMP'2026-01-01 00:00:00.000002', 'b', NULL)"
    )
    hashes = [row[0] for row in frame.select(contents_hash(frame)).collect()]
    assert hashes[0] == hashes[1] != hashes[2]
