"""Which columns the source has dropped (`schema_changes`): those that batches had, as the table remembers."""

from __future__ import annotations

from typing import Any

import pytest

from stream_merge import merge_sink

COLUMNS = "id INT, a STRING, gone STRING, s INT, op STRING, unsent ARRAY<STRING>"
LATER = COLUMNS.replace("gone STRING, ", "")


def following(path: str, **options: Any) -> Any:
    return merge_sink(
        path,
        keys="id",
        sequence_by="s",
        schema_changes="evolve",
        delete_when="op = 'd'",
        truncate_when="op = 't'",
        unchanged_columns="unsent",
        except_columns=["s", "op", "unsent", *[name for name in ("old", "new") if f"{name}_key" in options]],
        **options,
    )


@pytest.mark.any_strategy
@pytest.mark.every_case
@pytest.mark.parametrize("op", ["d", "t"])
def test_a_batch_has_columns_though_each_key_was_deleted_before(
    create_table, create_source, read_rows, deletion_vectors, op
):
    path = create_table("id INT", deletion_vectors=deletion_vectors)
    before = (1, None, None, 1, op, [])
    following(path).merge(create_source(COLUMNS, [before, (1, "a", "g", 2, "u", ["a"])]))
    following(path).merge(create_source(LATER, [(1, "A", 3, "u", []), (2, "A", 3, "u", [])]))
    assert read_rows(path, "id", "a", "gone") == [(1, "A", None), (2, "A", None)]


@pytest.mark.any_strategy
def test_deletes_alone_tell_of_no_column(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("id INT, a STRING, gone STRING", [(1, "a", "own")], deletion_vectors=deletion_vectors)
    following(path).merge(create_source(COLUMNS, [(2, None, None, 1, "d", []), (3, None, None, 1, "d", [])]))
    following(path).merge(create_source(LATER, [(1, "A", 3, "u", [])]))
    assert read_rows(path, "id", "a", "gone") == [(1, "A", "own")]


@pytest.mark.any_strategy
def test_values_that_follow_their_row_tell_of_no_column(create_table, create_source, read_rows, deletion_vectors):
    rows = [(1, "a", "own"), (4, "b", "own")]
    path = create_table("id INT, a STRING, gone STRING", rows, deletion_vectors=deletion_vectors)
    keys, moved = "old STRUCT<id: INT>, new STRUCT<id: INT>", {"old_key": "old", "new_key": "new"}
    arrived = create_source(f"{LATER}, {keys}", [(2, None, 1, "u", ["a"], (1,), None)])
    departed = create_source(f"{COLUMNS}, {keys}", [(1, None, None, 1, "d", [], None, (2,))])
    for batch in (arrived, departed, create_source(f"{LATER}, {keys}", [(4, "B", 3, "u", [], None, None)])):
        following(path, **moved).merge(batch)
    assert read_rows(path, "id", "a", "gone") == [(2, "a", "own"), (4, "B", "own")]


@pytest.mark.any_strategy
def test_a_restore_takes_away_what_batches_had_since(spark, create_table, create_source, read_rows, deletion_vectors):
    rows = [(1, "a", "own"), (2, "b", "own")]
    path = create_table("id INT, a STRING, gone STRING", rows, deletion_vectors=deletion_vectors)
    following(path).merge(create_source(LATER, [(3, "c", 1, "u", [])]))
    version = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").head()["version"]
    following(path).merge(create_source(COLUMNS, [(3, "c", "source", 2, "u", [])]))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    for key in (1, 2):
        following(path).merge(create_source(LATER, [(key, "A", 3, "u", [])]))
    assert read_rows(path, "id", "a", "gone") == [(1, "A", "own"), (2, "A", "own"), (3, "c", None)]
    # And back to where the source had it.
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version + 1}")
    following(path).merge(create_source(LATER, [(3, "C", 3, "u", [])]))
    assert read_rows(path, "id", "a", "gone")[2] == (3, "C", None)
