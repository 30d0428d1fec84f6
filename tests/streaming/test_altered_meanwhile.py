"""Another writer alters the table after a merge has opened a version, and later the table has its old columns again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stream_merge import CommitConflictError, merge_sink
from tests.spark.delta_log import latest_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.conftest import CreateTable

pytestmark = pytest.mark.any_strategy

BY_NAME = {"delta.columnMapping.mode": "name"}
SWAP = ("RENAME COLUMN a TO c", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b")
ALTERATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    # What another writer does, and how the table gets its old columns again; None by a RESTORE.
    "dropped": (("DROP COLUMN o",), None),
    "added": (("ADD COLUMN z INT",), None),
    "renamed": (("RENAME COLUMN o TO z",), ("RENAME COLUMN z TO o",)),
    "swapped": (SWAP, SWAP),
}


@pytest.mark.core
@pytest.mark.parametrize("name", ALTERATIONS)
def test_what_was_resolved_for_the_altered_table_is_not_kept_for_the_old_one(
    spark: SparkSession,
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[..., list[Row]],
    at_step: Callable[..., None],
    deletion_vectors: bool,
    name: str,
) -> None:
    alter, undo = ALTERATIONS[name]
    rows = [(n, f"a{n}", f"b{n}", f"o{n}") for n in range(4)]
    path = create_table(
        "id INT, a STRING, b STRING, o STRING", rows, deletion_vectors=deletion_vectors, properties=BY_NAME
    )
    before = latest_version(path)

    def run(statements: tuple[str, ...]) -> None:
        for statement in statements:
            spark.sql(f"ALTER TABLE delta.`{path}` {statement}")

    sink = merge_sink(path, keys="id", columns=["a"])
    at_step("after_open", lambda: run(alter))
    sink.merge(create_source("id INT, a STRING", [(1, "X")]))
    if undo is None:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}")
    else:
        run(undo)
        rows[1] = (1, "a1", "X", "o1") if name == "swapped" else (1, "X", "b1", "o1")
    sink.merge(create_source("id INT, a STRING", [(2, "P")]))
    rows[2] = (2, "P", "b2", "o2")
    assert [tuple(row) for row in read_rows(path, "id", "a", "b", "o")] == rows


def test_a_table_that_is_altered_again_and_again_is_a_conflict(
    spark: SparkSession,
    create_table: CreateTable,
    create_source: Callable[..., DataFrame],
    read_rows: Callable[..., list[Row]],
    at_step: Callable[..., None],
) -> None:
    path = create_table("id INT, a STRING", [(1, "a1")])
    numbers = iter(range(9))
    at_step("after_open", lambda: spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN z{next(numbers)} INT"), times=9)
    sink = merge_sink(path, keys="id", columns=["a"], max_commit_retries=2)
    with pytest.raises(CommitConflictError, match="altered while the merge was being planned") as raised:
        sink.merge(create_source("id INT, a STRING", [(1, "X")]))
    assert raised.value.retriable
    assert next(numbers) == 3
    assert read_rows(path, "a")[0]["a"] == "a1"
