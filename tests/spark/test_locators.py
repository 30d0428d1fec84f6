"""Scan and index find the same rows, whatever other writers do to the table between the batches."""

import datetime as dt
import random
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from stream_merge import AmbiguousMatchError, merge_sink
from stream_merge.key_index import index as key_index
from stream_merge.merge import merge_on_read
from stream_merge.merge.locate import index_lookup, index_sequence
from tests.spark.delta_log import actions_of, latest_version, row_metrics
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.tables import files_below, place_of

KEYS = {"string": str, "bigint": int, "date": lambda key: f"{1970 + key // 300}-01-{key % 28 + 1:02d}"}


@pytest.mark.always
@pytest.mark.parametrize(
    ("key_type", "locator"),
    [
        ("string", "scan"),
        pytest.param("string", "index", marks=pytest.mark.core),
        pytest.param("bigint", "scan", marks=pytest.mark.core),
        ("bigint", "index"),
    ],
)
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


@pytest.mark.parametrize(
    "way",
    [pytest.param("scan", marks=pytest.mark.core), "index", "scan of a large batch", "copy_on_write"],
)
def test_each_row_of_a_key_becomes_a_new_row(spark, create_table, create_source, read_rows, tmp_path, monkeypatch, way):
    """Delta's MERGE updates every row that a change matches; the rows of a key are in one file and in several."""
    if way == "scan of a large batch":
        monkeypatch.setattr(merge_on_read, "MAX_SOURCE_ROWS", 0)
    schema = "k bigint, v bigint"
    path = create_table(schema, [(1, 1), (3, 3)], deletion_vectors=way != "copy_on_write")
    more = spark.createDataFrame([(1, 2), (1, 3), (4, 4), (4, 5), (7, 7)], schema)
    more.coalesce(1).write.format("delta").mode("append").save(path)
    # A deleted row is none.
    spark.sql(f"DELETE FROM delta.`{path}` WHERE v IN (3, 5)")
    copy = copy_table(path, str(tmp_path / "copy"))
    sink = (
        merge_sink(path, on="target.k = source.k", locator="index" if way == "index" else "scan")
        .when_matched_delete(condition="source.v < 0")
        .when_matched_update_all()
        .when_not_matched_insert_all(condition="source.v >= 0")
    )
    for batch in ([(1, 9), (4, 8), (5, 5)], [(4, 7), (6, 6), (9, -1)], [(1, -1), (7, 70), (8, 8)], [(7, 71)]):
        source = create_source(schema, batch)
        result = sink.merge(source)
        merge_with_delta(sink, copy, source)
        assert sorted(map(tuple, read_rows(path))) == sorted(map(tuple, read_rows(copy)))
        metrics, of_delta = row_metrics(path, result.version), row_metrics(copy, latest_version(copy))
        if way == "copy_on_write":
            # How many rows lie beside changed ones depends on the files that earlier merges wrote.
            for counts in (metrics, of_delta):
                del counts["numTargetRowsCopied"], counts["numOutputRows"]
        assert metrics == of_delta
        if len(batch) == 3 and batch[0][0] == 4 and way == "index":
            assert result.locator == "index"
    # What was written in vain is gone.
    named = {file["path"] for version in range(latest_version(path) + 1) for file in actions_of(path, version, "add")}
    assert {file for file in files_below(path) if file.endswith(".parquet") and "_delta_log" not in file} == named


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


@pytest.mark.parametrize("deletion_vectors", [True, False])
def test_matches_that_are_not_decided_are_none_where_all_clauses_are_of_matches(
    create_table, create_source, read_rows, tmp_path, deletion_vectors
):
    """So Delta's MERGE has it: conditions that are NULL do not make a change ambiguous, false ones do."""
    schema = "k bigint, v bigint"
    path = create_table(schema, [(1, 1), (2, 2), (3, 3)], deletion_vectors=deletion_vectors)
    copy = copy_table(path, str(tmp_path / "copy"))
    sink = (
        merge_sink(path, on="target.k = source.k")
        .when_matched_delete(condition="source.v = 30")
        .when_matched_update_all(condition="source.v > 0 AND target.v > 0")
    )
    undecided = create_source(schema, [(1, -1), (1, None), (2, None), (2, None)])
    result = sink.merge(undecided)
    merge_with_delta(sink, copy, undecided)
    assert sorted(map(tuple, read_rows(path))) == sorted(map(tuple, read_rows(copy))) == [(1, 1), (2, 2), (3, 3)]
    assert result.num_target_files_removed == result.num_target_rows_updated == 0
    # In a file that is rewritten Delta's MERGE makes two rows of each such row, notices that, and fails.
    sink.merge(create_source(schema, [(1, 10), (1, None), (2, None), (2, None), (3, 30)]))
    assert sorted(map(tuple, read_rows(path))) == [(1, 10), (2, 2)]
    for refusing, batch in ((sink, [(2, -1), (2, -2)]), (sink.when_not_matched_insert_all(), [(2, None), (2, None)])):
        ambiguous = create_source(schema, batch)
        with pytest.raises(AmbiguousMatchError):
            refusing.merge(ambiguous)
        with pytest.raises(Exception, match="MULTIPLE_SOURCE_ROW_MATCHING"):
            merge_with_delta(refusing, copy, ambiguous)


def test_texts_that_are_not_utf_8_are_no_other_keys(spark, create_table):
    """The first byte of a character says how many follow; as lengths, its bytes would be taken for those of others."""
    path = create_table("a STRING, b STRING, v INT", deletion_vectors=True)
    spark.sql(f"INSERT INTO delta.`{path}` SELECT CAST(X'E4' AS STRING), '3:abc', 1")
    batch = spark.sql("SELECT CAST(X'E4353A' AS STRING) a, 'abc' b, 2 v UNION ALL SELECT 'é', '1', 3").coalesce(1)
    sink = merge_sink(path, keys=["a", "b"], locator="index")
    for values in ([1, 2, 3], [1, 2, 3]):
        result = sink.merge(batch)
        assert result.locator == "index"
        rows = spark.read.format("delta").load(path).orderBy("v").collect()
        assert [row["v"] for row in rows] == values
        keys = spark.read.format("delta").load(path).orderBy("v").selectExpr("CAST(a AS BINARY)").collect()
        assert [bytes(row[0]) for row in keys] == [b"\xe4", b"\xe45:", "é".encode()]


@pytest.mark.always
def test_a_sequence_of_the_table_that_is_not_utf_8_is_no_error(spark, create_table, create_source, read_rows):
    path = create_table("k bigint, s string, v string", deletion_vectors=True)
    rows = "(1, 'a', 'x'), (2, CAST(X'FF61' AS STRING), 'y'), (3, 'c', 'z')"
    spark.sql(f"INSERT INTO delta.`{path}` VALUES {rows}")
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="op = 'd'", locator="index")
    for value in ("new", "newer"):
        sink.merge(create_source("k bigint, s string, v string, op string", [(1, f"b{value}", value, "u")]))
        assert [row["v"] for row in sorted(read_rows(path, "k", "v"))] == [value, "y", "z"]
    # An older change leaves rows of any sequence alone.
    sink.merge(create_source("k bigint, s string, v string, op string", [(2, "b", "old", "u"), (3, "b", "old", "u")]))
    assert [row["v"] for row in sorted(read_rows(path, "k", "v"))] == ["newer", "y", "z"]


def test_the_index_knows_the_files_of_a_shallow_clone(spark, create_table, create_source, read_rows, tmp_path):
    source = create_table("k bigint, v bigint", [(1, 1), (2, 2)], deletion_vectors=True)
    clone = str(tmp_path / "clone")
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    sink = merge_sink(clone, keys="k", locator="index")
    for value in (5, 6):
        result = sink.merge(create_source("k bigint, v bigint", [(2, value), (value, value)]))
        assert (result.locator, result.num_target_rows_updated) == ("index", 1)
    assert sorted(map(tuple, read_rows(clone))) == [(1, 1), (2, 6), (5, 5), (6, 6)]


@pytest.mark.always
def test_the_index_is_not_asked_where_it_cannot_answer(spark, create_table):
    path = create_table("k bigint, v double", [(1, 1.0), (None, 0.0)], deletion_vectors=True)
    batch = spark.createDataFrame([(1, 2.0), (None, -0.0)], "k bigint, v double")
    null_safe = merge_sink(path, keys="k", null_keys="match", locator="index").merge(batch)
    by_double = merge_sink(path, on="target.v = source.v", locator="index")
    result = by_double.when_matched_update_all().when_not_matched_insert().merge(batch)
    assert [null_safe.locator, result.locator] == ["scan", "scan"]
    assert null_safe.num_target_rows_updated == result.num_target_rows_updated == 2


def test_without_room_for_an_index_the_files_are_scanned(spark, create_table, create_source, read_rows, monkeypatch):
    path = create_table("k bigint, v bigint", [(1, 1), (2, 2)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", locator="index")
    assert sink.merge(create_source("k bigint, v bigint", [(1, 3)])).locator == "index"
    monkeypatch.setattr(key_index, "MAX_ROWS_OF_ALL", 0)
    assert sink.merge(create_source("k bigint, v bigint", [(1, 4), (2, 4)])).locator == "scan"
    assert sorted(map(tuple, read_rows(path))) == [(1, 4), (2, 4)]


def test_the_index_is_of_the_files_that_one_batch_after_the_other_asks_for(
    spark, create_table, create_source, read_rows, monkeypatch
):
    """Recent keys in a table of any size: what no batch looks into is not read for the index, either."""
    monkeypatch.setattr(index_lookup, "MIN_CANDIDATE_ROWS", 10)
    monkeypatch.setattr(index_lookup, "MAX_UNFAMILIAR_ROWS", 5)
    path = create_table("k bigint, v bigint", deletion_vectors=True)
    for start in (0, 100, 200):
        rows = spark.range(start, start + 20).selectExpr("id AS k", "0L AS v")
        rows.coalesce(1).write.format("delta").mode("append").save(path)
    sink = merge_sink(path, keys="k")
    expected = {key: 0 for start in (0, 100, 200) for key in range(start, start + 20)}
    asked_for = [
        # The first batch may be the last that looks into this file; the third looks also into what the batches before
        # wrote.
        ([205, 206], "scan"),
        ([205, 230], "index"),
        ([206, 230, 231], "index"),
        # Another file, and back again.
        ([105, 106], "scan"),
        ([207, 232], "index"),
        # The index has that file no more than the first one, which nobody asked for; of all rows these are too many to
        # be read.
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


@pytest.mark.core
def test_the_index_answers_where_the_order_of_changes_counts(spark, create_table, read_rows):
    """Against a dictionary, in batches whose sequences overlap: some changes are older than their row, or its
    delete."""

    def as_sequence(place: int) -> tuple[int, str | None]:
        return place // 10, None if place % 10 == 0 else str(place % 10)

    schema = "k bigint, v bigint, s struct<a: bigint, b: string>"
    rows = [(key, key, as_sequence(key % 40)) for key in range(120)]
    path = create_table(schema, rows, deletion_vectors=True)
    expected = {key: (key % 40, key) for key in range(120)}
    dead: dict[int, int] = {}
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="op = 'd'", locator="index")
    rng = random.Random(3)
    had_stale = False
    locators = []
    for number in range(8):
        # Every third batch is late.
        start = 40 + 30 * number - (25 if number % 3 == 2 else 0)
        batch = [(key, start + rng.randrange(40), rng.choice("uuud")) for key in rng.sample(range(160), 15)]
        changes = [(key, number, as_sequence(place), op) for key, place, op in batch]
        result = sink.merge(spark.createDataFrame(changes, f"{schema}, op string"))
        alive = [change for change in batch if dead.get(change[0], -1) <= change[1]]
        stale = [change for change in alive if change[0] in expected and expected[change[0]][0] > change[1]]
        assert (result.num_stale_rows, result.num_outdated_rows) == (len(stale), len(batch) - len(alive))
        locators.append((bool(stale) or had_stale, result.locator))
        had_stale = bool(stale)
        for key, place, op in alive:
            if op == "d":
                dead[key] = max(place, dead.get(key, -1))
            if expected.get(key, (-1,))[0] <= place:
                expected.pop(key, None)
                if op == "u":
                    expected[key] = (place, number)
        if number == 3:
            spark.sql(f"OPTIMIZE delta.`{path}`")
        assert {row["k"]: row["v"] for row in read_rows(path)} == {key: v for key, (_, v) in expected.items()}
    assert {locator for may_scan, locator in locators if not may_scan} == {"index"}


@pytest.mark.core
def test_files_are_read_only_where_a_row_may_be_newer_than_its_change(
    create_table, create_source, append_rows, read_rows, monkeypatch
):
    read = []
    pairs_in = index_lookup.pairs_in
    monkeypatch.setattr(index_lookup, "pairs_in", lambda job, files: read.append(len(files)) or pairs_in(job, files))
    schema = "k bigint, v string, seq bigint"
    path = create_table(schema, [(1, "a", 1), (2, "a", 5), (3, "a", None)], deletion_vectors=True)
    append_rows(path, schema, [(11, "b", 10), (12, "b", 100)])
    sink = merge_sink(path, keys="k", sequence_by="seq", delete_when="v IS NULL", locator="index")

    def merge(*changes: tuple[int, str | None, int | None]) -> tuple[int, ...]:
        read.clear()
        result = sink.merge(create_source(schema, changes))
        assert result.locator == "index"
        return result.num_target_rows_updated, result.num_target_rows_deleted, result.num_target_rows_inserted

    # Of the first file all is older; nobody asks for the second.
    assert (merge((1, "c", 5), (3, None, 6), (4, "c", 1)), read) == ((1, 1, 1), [])
    # In the second a row is newer than the change, although not the one that matches.
    assert (merge((2, "d", 7), (11, "d", 50)), read) == ((2, 0, 0), [1])
    assert (merge((2, "e", 50), (11, "e", 100)), read) == ((2, 0, 0), [])
    assert sorted(map(tuple, read_rows(path))) == [
        (1, "c", 5),
        (2, "e", 50),
        (4, "c", 1),
        (11, "e", 100),
        (12, "b", 100),
    ]
    # What is older than its row is left out, and what was looked up in vain is done by a scan.
    read.clear()
    late = sink.merge(create_source(schema, [(12, "late", 99), (1, "f", 8)]))
    assert (late.num_stale_rows, late.num_target_rows_updated, read) == (1, 1, [1])


PLACES = {
    "bigint": [None, -(2**63), -1, 0, 2**63 - 1],
    "timestamp": [
        None,
        *(dt.datetime.fromisoformat(text) for text in ("0001-01-01", "1969-12-31 23:59:59.999999", "2024-01-01")),
    ],
    "date": [None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "decimal(38,10)": [None, Decimal("-0.1"), Decimal(0), Decimal("0.0000000001"), Decimal(10**27)],
    "string": [None, "", "A", "a", "aa", "é", "\uffff", "\U0001f600"],
    "boolean": [None, False, True],
    "struct<a: int, b: struct<`c.d`: date>>": [
        None,
        (None, None),
        (None, (None,)),
        (1, (dt.date(2024, 1, 1),)),
        (2, None),
    ],
}
"""Values of each type, in Spark's order."""


@pytest.mark.core
@pytest.mark.parametrize("kind", PLACES)
def test_the_driver_orders_sequences_as_spark_does(spark, kind):
    data_type = spark.createDataFrame([], f"s {kind}").schema["s"].dataType
    rows = spark.createDataFrame(list(enumerate(reversed(PLACES[kind]))), f"n int, s {kind}")
    sent = rows.select("n", "s", index_sequence.sent(rows["s"], data_type).alias("sent"))
    in_order = [row["n"] for row in sent.orderBy("s").select("n").collect()]
    assert in_order == sorted(in_order, reverse=True)
    values = sent.select("n", "sent").toArrow().to_pylist()
    assert [row["n"] for row in sorted(values, key=lambda row: place_of(row["sent"]))] == in_order
    assert index_sequence.is_comparable_type(data_type)
    # The same for many at a time.
    column = rows.select(F.struct(index_sequence.sent(rows["s"], data_type).alias("s0")).alias("s")).toArrow()["s"]
    sequences = column.to_pylist()
    for newest in [None, *sequences]:
        expected = [place_of(sequence) < place_of(newest) for sequence in sequences]
        assert index_sequence.are_older(column, newest).tolist() == expected
    assert index_sequence.newest_of(column) == sequences[0]
    assert index_sequence.newest_of(column.slice(0, 0)) is None
    assert index_sequence.newest_of(column.slice(len(sequences) - 1)) == sequences[-1]


def test_sequences_that_the_driver_cannot_compare_are_read(create_table, create_source, read_rows, tmp_path):
    path = create_table("k bigint, v bigint, seq double", [(1, 1, 1.0), (2, 2, 2.0)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", sequence_by="seq", locator="index")
    result = sink.merge(create_source("k bigint, v bigint, seq double", [(1, 5, float("nan")), (3, 3, 0.0)]))
    assert (result.locator, result.num_target_rows_updated) == ("scan", 1)
    # Another type than the table has is compared as the table's.
    other = create_table(
        "k bigint, v bigint, seq bigint", [(1, 1, 1)], deletion_vectors=True, path=str(tmp_path / "other")
    )
    sink = merge_sink(other, keys="k", sequence_by="seq", locator="index")
    assert sink.merge(create_source("k bigint, v bigint, seq int", [(1, 5, 2)])).locator == "index"
    assert [tuple(row) for row in read_rows(other)] == [(1, 5, 2)]
