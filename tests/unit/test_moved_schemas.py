"""The schemas of files with values of rows that got another key."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from stream_merge.tombstones.moved_schemas import MovedSchemas, united


def row(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def of(**values: T.DataType) -> T.StructType:
    return row(k0=T.IntegerType(), moved=row(row=row(**values)))


def test_files_with_different_columns_are_read_with_all_of_them():
    known = MovedSchemas()
    known.note(["one"], of(a=T.StringType(), b=T.LongType()))
    known.note(["other"], of(b=T.LongType(), c=T.DateType()))
    assert known.of(["one", "other"]) == of(a=T.StringType(), b=T.LongType(), c=T.DateType())


@pytest.mark.parametrize("paths", [[], ["unknown"], ["one", "unknown"], ["unknown", "one"], ["one", "wider"]])
def test_no_schema(paths: list[str]):
    known = MovedSchemas()
    known.note(["one"], of(a=T.IntegerType()))
    known.note(["wider"], of(a=T.LongType()))
    assert known.of(paths) is None


def test_types_that_differ_within_an_array_are_not_united():
    one, other = (T.ArrayType(row(**{name: T.StringType()})) for name in "ab")
    assert united(one, other) is None


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stream_merge.tombstones.moved_schemas._MAX_KNOWN", 2)
    known = MovedSchemas()
    for path in "abc":
        known.note([path], of(a=T.StringType()))
    assert (known.of(["a"]), known.of(["c"])) == (None, of(a=T.StringType()))
