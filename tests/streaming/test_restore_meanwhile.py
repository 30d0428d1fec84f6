"""Another writer restores the table between a merge's open and its commit, to before the sink has added its columns."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from stream_merge import MergeSink, merge_sink
from tests.spark.delta_log import latest_version

pytestmark = [pytest.mark.any_strategy, pytest.mark.always]

SCHEMA = "id INT, a STRING, b STRING, at INT, op STRING, unset ARRAY<STRING>"


def new_sink(path: str, **options: Any) -> MergeSink:
    """Return a sink that adds columns of its own for the sequence of rows and of single columns, and remembers
    deletes."""
    return merge_sink(
        path,
        keys="id",
        sequence_by="at * 1",
        delete_when="op = 'd'",
        **{"unchanged_columns": "unset", "except_columns": ["at", "op", "unset"], **options},
    )


@pytest.mark.parametrize(
    ("step", "is_downgraded", "is_partial"),
    [
        ("after_open", False, True),
        ("writing", False, True),
        ("before_commit", True, True),
        ("before_commit", False, False),
    ],
    ids=["opened", "writing", "written, with the feature", "written, whole rows"],
)
def test_the_table_is_prepared_anew(
    spark, create_table, create_source, read_rows, at_step, deletion_vectors, step, is_downgraded, is_partial
):
    path = create_table(
        "id INT, a STRING, b STRING",
        [(1, "a1", "b1"), (2, "a2", "b2"), (3, "a3", "b3")],
        deletion_vectors=deletion_vectors,
    )
    before = latest_version(path)
    sink = new_sink(path, **({} if is_partial else {"unchanged_columns": None}))
    sink.merge(create_source(SCHEMA, [(1, None, None, 5, "d", None), (2, "new", "new", 5, "u", None)]))

    def restore() -> None:
        conf = "spark.databricks.delta.restore.protocolDowngradeAllowed"
        spark.conf.set(conf, str(is_downgraded).lower())
        try:
            spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}")
        finally:
            spark.conf.unset(conf)

    at_step(step, restore)
    unset = ["b"] if is_partial else None
    batch = [
        (1, "late", "late", 3, "u", None),
        (2, "A", None if is_partial else "B", 4, "u", unset),
        (3, None, None, 6, "d", None),
        (4, "new", "new", 6, "u", None),
    ]
    result = sink.merge(create_source(SCHEMA, batch))
    # The restored table knows of no delete of key 1, and of no newer change of key 2.
    expected = [
        Row(id=1, a="late", b="late"),
        Row(id=2, a="A", b="b2" if is_partial else "B"),
        Row(id=4, a="new", b="new"),
    ]
    assert read_rows(path, "id", "a", "b") == expected
    assert result.num_commit_attempts == (1 if step == "after_open" else 2)
    # It does know of its own.
    sink.merge(create_source(SCHEMA, [(3, "late", "late", 5, "u", None), (2, "no", "no", 3, "u", None)]))
    expected[1] = Row(id=2, a="A", b="no" if is_partial else "B")
    assert read_rows(path, "id", "a", "b") == expected
