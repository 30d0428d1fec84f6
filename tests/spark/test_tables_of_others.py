"""Tables as other writers leave them: without statistics, cloned, with columns that another sink adds meanwhile."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.delta_merge import copy_table, merge_with_delta

SCHEMA = "k BIGINT, v STRING"


@pytest.fixture
def without_statistics(spark):
    """Let Delta write files without statistics."""
    name = "spark.databricks.delta.stats.collect"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.mark.core
@pytest.mark.parametrize("way", ["keys", "clauses"])
def test_files_without_statistics(
    spark, create_table, create_source, read_rows, append_rows, without_statistics, deletion_vectors, way
):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    append_rows(path, SCHEMA, [(1, "a"), (2, "a"), (3, "a")])
    append_rows(path, SCHEMA, [(4, "a")])
    assert not any(add.get("stats") for add in actions_of(path, latest_version(path), "add"))
    sink = merge_sink(path, keys="k", delete_when="v = 'gone'")
    if way == "clauses":
        sink = merge_sink(path, on="target.k = source.k").when_matched_delete(condition="source.v = 'gone'")
        sink = sink.when_matched_update(set={"v": "source.v"}).when_not_matched_insert()
    sink.merge(create_source(SCHEMA, [(1, "b"), (5, "b"), (4, "gone")]))
    sink.merge(create_source(SCHEMA, [(2, "c"), (5, "c")]))
    assert read_rows(path) == [Row(k=1, v="b"), Row(k=2, v="c"), Row(k=3, v="a"), Row(k=5, v="c")]
    result = sink.merge(create_source(SCHEMA, [(3, "gone"), (1, "gone")]))
    assert result.num_target_rows_deleted == 2
    assert read_rows(path) == [Row(k=2, v="c"), Row(k=5, v="c")]
    # Delta's own commands go on with what the merges wrote.
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 5")
    assert read_rows(path) == [Row(k=2, v="c")]


def test_inserted_rows_are_counted_without_statistics(
    create_table, create_source, read_rows, without_statistics, append_rows
):
    path = create_table(SCHEMA)
    append_rows(path, SCHEMA, [(1, "a")])
    sink = merge_sink(path, on="target.k = source.k").when_not_matched_insert()
    assert sink.merge(create_source(SCHEMA, [(1, "b"), (2, "b"), (3, "b")])).num_target_rows_inserted == 2
    assert read_rows(path) == [Row(k=1, v="a"), Row(k=2, v="b"), Row(k=3, v="b")]


def test_a_shallow_clone_of_a_table_with_vectors_whose_path_has_a_space(
    spark, create_table, create_source, read_rows, tmp_path
):
    path = create_table(
        SCHEMA, [(k, "a") for k in range(6)], deletion_vectors=True, path=str(tmp_path / "a table of % signs" / "t")
    )
    merge_sink(path, keys="k", delete_when="v = 'gone'").merge(create_source(SCHEMA, [(0, "gone"), (1, "b")]))
    clone = str(tmp_path / "the clone")
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{path}`")
    for locator in ("scan", "index"):
        merge_sink(clone, keys="k", locator=locator).merge(create_source(SCHEMA, [(2, locator), (0, locator)]))
    others = [Row(k=k, v="a") for k in (3, 4, 5)]
    assert read_rows(clone) == [Row(k=0, v="index"), Row(k=1, v="b"), Row(k=2, v="index"), *others]
    assert read_rows(path) == [Row(k=1, v="b"), Row(k=2, v="a"), *others]


@pytest.mark.core
def test_an_update_of_all_columns_but_the_key_is_written_ahead_and_found_by_the_index(
    create_table, create_source, read_rows
):
    """In rows that match the key of the target is that of the source."""
    path = create_table("k BIGINT, name STRING, v BIGINT", [(1, "a", 1), (2, "b", 2)], deletion_vectors=True)
    sink = merge_sink(path, on="target.k = source.k", locator="index")
    sink = sink.when_matched_update(set={"name": "source.name", "v": "source.v"}).when_not_matched_insert()
    source = create_source("k BIGINT, name STRING, v BIGINT", [(2, "new", 3), (3, "c", 3)])
    assert "while the matches are looked up" in sink.explain(source)
    result = sink.merge(source)
    assert (result.locator, result.num_target_rows_updated, result.num_target_rows_inserted) == ("index", 1, 1)
    assert read_rows(path) == [Row(k=1, name="a", v=1), Row(k=2, name="new", v=3), Row(k=3, name="c", v=3)]


def test_a_key_that_is_equal_and_not_the_same_stays_as_the_target_has_it(
    spark, create_table, read_rows, deletion_vectors
):
    path = create_table("k DOUBLE, v INT", [(-0.0, 1)], deletion_vectors=deletion_vectors)
    copy = copy_table(path, f"{path}_copy")
    source = spark.sql("SELECT 0.0D AS k, 2 AS v")
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"v": "source.v"})
    sink.merge(source)
    merge_with_delta(sink, copy, source)
    assert repr(read_rows(path)) == repr(read_rows(copy)) == "[Row(k=-0.0, v=2)]"


@pytest.mark.parametrize("is_tracked", [False, True])
def test_explain_promises_no_early_writing_with_row_tracking(create_table, create_source, is_tracked):
    path = create_table(SCHEMA, deletion_vectors=True, properties={"delta.enableRowTracking": str(is_tracked).lower()})
    text = merge_sink(path, keys="k").explain(create_source(SCHEMA, [(1, "a")]))
    assert ("while the matches are looked up" in text) is not is_tracked


@pytest.mark.parametrize("step", ["after_persist", "before_commit"])
def test_another_sink_that_adds_its_column_meanwhile(
    create_table, create_source, read_rows, at_step, deletion_vectors, step
):
    """A sink of whole rows then keeps the sequences of single columns as well."""
    path = create_table(
        "k BIGINT, a INT, b INT, s BIGINT", [(1, 0, 0, 1), (2, 0, 0, 1)], deletion_vectors=deletion_vectors
    )
    whole = merge_sink(path, keys="k", sequence_by="s", delete_when="a < 0")
    parts = merge_sink(path, keys="k", sequence_by="s", columns=["a"])
    some = create_source("k BIGINT, a INT, s BIGINT", [(1, 5, 5), (2, 3, 3)])
    at_step(step, lambda: parts.merge(some))
    result = whole.merge(create_source("k BIGINT, a INT, b INT, s BIGINT", [(1, 4, 4, 4), (2, 4, 4, 4), (3, 4, 4, 4)]))
    assert result.num_commit_attempts == 2
    assert read_rows(path, "k", "a", "b") == [Row(k=1, a=5, b=4), Row(k=2, a=4, b=4), Row(k=3, a=4, b=4)]
    parts.merge(create_source("k BIGINT, a INT, s BIGINT", [(2, 9, 3), (3, 9, 9)]))
    assert read_rows(path, "k", "a", "b") == [Row(k=1, a=5, b=4), Row(k=2, a=4, b=4), Row(k=3, a=9, b=4)]
