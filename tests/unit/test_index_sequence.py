"""The driver compares the sequences of many rows at a time as it compares them one by one."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_merge.merge.locate.index_sequence import are_older, newest_of
from tests.spark.tables import place_of

VALUES = {
    pa.int64(): st.none() | st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1]),
    pa.string(): st.none() | st.sampled_from(["", "A", "a", "aa", "é", "\uffff", "\U0001f600"]),
    pa.bool_(): st.none() | st.booleans(),
    pa.decimal128(38, 10): st.none() | st.sampled_from([Decimal("-0.1"), Decimal(0), Decimal("0.0000000001")]),
}


def struct_of(*fields: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = pa.struct([(f"p{number}", of_field) for number, (of_field, _) in enumerate(fields)])
    values = st.tuples(*[strategy for _, strategy in fields])
    return kind, values.map(lambda parts: {f"p{number}": part for number, part in enumerate(parts)})


def nullable(kind: pa.DataType, values: st.SearchStrategy[Any]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return kind, st.none() | values


LEAVES = list(VALUES.items())
KINDS = {
    "one number": struct_of(LEAVES[0]),
    "of each type": struct_of(*LEAVES),
    "a struct": struct_of(nullable(*struct_of(LEAVES[0], LEAVES[1])), LEAVES[0]),
    "structs in structs": struct_of(LEAVES[2], nullable(*struct_of(nullable(*struct_of(LEAVES[0])), LEAVES[3]))),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_many_at_a_time(name: str, is_chunked: bool) -> None:
    kind, values = KINDS[name]

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(st.lists(values, max_size=8), values | st.none(), st.integers(0, 3))
    def compare(given_values: list[Any], other: Any, start: int) -> None:
        column = pa.array(given_values, kind)
        if is_chunked:
            column = pa.chunked_array([column.slice(0, 2), column.slice(2, 0), column.slice(2)])
        column, sequences = column.slice(start), given_values[start:]
        for newest in [other, *itertools.islice(sequences, 3)]:
            expected = [place_of(sequence) < place_of(newest) for sequence in sequences]
            assert are_older(column, newest).tolist() == expected
        assert newest_of(column) == max(sequences, key=place_of, default=None)

    compare()
