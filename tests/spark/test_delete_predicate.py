"""`delete_when`: NULL is no delete, wherever the sink asks whether a change is one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink

pytestmark = pytest.mark.any_strategy

SCHEMA = "id INT, v STRING, seq BIGINT, is_gone BOOLEAN"
CHANGES = [(1, "new", 2, None), (2, "new", 2, False), (3, "new", 2, True), (4, "x", 2, None), (5, "x", 2, True)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence_by": "seq"},
        {"sequence_by": "seq", "ignore_null_updates": ["v"]},
        {"sequence_by": "seq", "tombstone_retention": timedelta(0)},
    ],
    ids=["keys", "order", "single columns", "no tombstones"],
)
def test_null_is_no_delete(create_table, create_source, read_rows, deletion_vectors, options):
    old = [(key, "old", 1) for key in (1, 2, 3)]
    path = create_table("id INT, v STRING, seq BIGINT", old, deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", delete_when="source.is_gone", **options)
    result = sink.merge(create_source(SCHEMA, CHANGES))
    assert read_rows(path, "id", "v") == [Row(id=1, v="new"), Row(id=2, v="new"), Row(id=4, v="x")]
    remembers = "sequence_by" in options and "tombstone_retention" not in options
    assert result.num_tombstones == (2 if remembers else 0)
