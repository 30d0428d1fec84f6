"""Scan and index find the same rows, whatever other writers do to the table between the batches."""

import random

import pytest

from stream_merge import AmbiguousMatchError, merge_sink
from stream_merge.engines import index_locator

KEYS = {"string": str, "bigint": int, "date": lambda key: f"{1970 + key // 300}-01-{key % 28 + 1:02d}"}


@pytest.mark.core
@pytest.mark.parametrize("locator", ["scan", "index"])
@pytest.mark.parametrize("key_type", ["string", "bigint"])
def test_each_batch_is_what_a_dictionary_makes_of_it(spark, create_table, locator, key_type):
    as_key = KEYS[key_type]
    path = create_table(f"k {key_type}, v bigint", deletion_vectors=True)
    first = [(as_key(key), key) for key in range(200)]
    for start in range(0, 200, 70):
        rows = first[start : start + 70]
        spark.createDataFrame(rows, f"k {key_type}, v bigint").coalesce(1).write.format("delta").mode("append").save(
            path
        )
    expected = dict(first)
    sink = merge_sink(path, keys="k", delete_when="op = 'd'", locator=locator)
    rng = random.Random(5)
    for number in range(5):
        batch = [(as_key(k), number * 1000 + k, rng.choice("uuud")) for k in rng.sample(range(260), 40)]
        result = sink.merge(spark.createDataFrame(batch, f"k {key_type}, v bigint, op string"))
        matched = {key for key, _, _ in batch if key in expected}
        deleted = {key for key, _, op in batch if op == "d"}
        assert result.locator == locator
        assert result.num_target_rows_deleted == len(deleted & matched)
        assert result.num_target_rows_updated == len(matched - deleted)
        assert result.num_target_rows_inserted == len({key for key, _, _ in batch} - matched - deleted)
        expected |= {key: value for key, value, op in batch if op == "u"}
        expected = {key: value for key, value in expected.items() if key not in deleted}
        if number == 1:
            spark.sql(f"OPTIMIZE delta.`{path}`")
        if number == 2:
            spark.sql(f"DELETE FROM delta.`{path}` WHERE v % 7 = 0")
            expected = {key: value for key, value in expected.items() if value % 7}
        if number == 3:
            more = [(as_key(9000), 9)]
            spark.createDataFrame(more, f"k {key_type}, v bigint").write.format("delta").mode("append").save(path)
            expected |= dict(more)
    assert {row["k"]: row["v"] for row in spark.read.format("delta").load(path).collect()} == expected


@pytest.mark.parametrize("locator", ["scan", "index"])
def test_two_changes_of_one_row_are_refused_and_of_a_deleted_row_are_not(spark, create_table, locator):
    path = create_table("k bigint, v bigint", [(1, 1), (2, 2), (3, 3), (4, 4)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", delete_when="v < 0", locator=locator)
    schema = "k bigint, v bigint"
    sink.merge(spark.createDataFrame([(2, -1)], schema))
    with pytest.raises(AmbiguousMatchError, match=r"1 target row.*k=3"):
        sink.merge(spark.createDataFrame([(3, 5), (3, 6), (4, 7)], schema))
    # Key 2 is in a file still, but marked: both rows are new, as they are for Delta's MERGE.
    sink.merge(spark.createDataFrame([(2, 8), (2, 9)], schema))
    rows = spark.read.format("delta").load(path).collect()
    assert sorted(map(tuple, rows)) == [(1, 1), (2, 8), (2, 9), (3, 3), (4, 4)]


def test_the_index_is_not_asked_where_it_cannot_answer(spark, create_table):
    path = create_table("k bigint, v double", [(1, 1.0), (None, 0.0)], deletion_vectors=True)
    batch = spark.createDataFrame([(1, 2.0), (None, -0.0)], "k bigint, v double")
    null_safe = merge_sink(path, keys="k", null_keys="match", locator="index").merge(batch)
    by_double = merge_sink(path, on="target.v = source.v", locator="index")
    result = by_double.when_matched_update_all().when_not_matched_insert().merge(batch)
    assert [null_safe.locator, result.locator] == ["scan", "scan"]
    assert null_safe.num_target_rows_updated == result.num_target_rows_updated == 2


def test_the_index_is_of_the_files_that_one_batch_after_the_other_asks_for(
    spark, create_table, create_source, read_rows, monkeypatch
):
    """Recent keys in a table of any size: what no batch looks into is not read for the index, either."""
    monkeypatch.setattr(index_locator, "MIN_CANDIDATE_ROWS", 10)
    monkeypatch.setattr(index_locator, "MAX_UNFAMILIAR_ROWS", 5)
    path = create_table("k bigint, v bigint", deletion_vectors=True)
    for start in (0, 100, 200):
        rows = spark.range(start, start + 20).selectExpr("id AS k", "0L AS v")
        rows.coalesce(1).write.format("delta").mode("append").save(path)
    sink = merge_sink(path, keys="k")
    expected = {key: 0 for start in (0, 100, 200) for key in range(start, start + 20)}
    asked_for = [
        # The first batch may be the last that looks into this file; the third looks also into what the batches before wrote.
        ([205, 206], "scan"),
        ([205, 230], "index"),
        ([206, 230, 231], "index"),
        # Another file, and back again.
        ([105, 106], "scan"),
        ([207, 232], "index"),
        # The index has that file no more than the first one, which nobody asked for; of all rows these are too many to be read.
        ([5, 107, 208], "scan"),
        ([6, 108, 209], "index"),
        # Fewer rows than an index is worth.
        ([232], "scan"),
    ]
    for number, (keys, locator) in enumerate(asked_for, 1):
        result = sink.merge(create_source("k bigint, v bigint", [(key, number) for key in keys]))
        assert (number, result.locator) == (number, locator)
        assert result.num_target_rows_updated == len([key for key in keys if key in expected])
        expected |= dict.fromkeys(keys, number)
    assert {row["k"]: row["v"] for row in read_rows(path)} == expected
