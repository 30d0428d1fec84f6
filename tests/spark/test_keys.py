"""Which keys are the same: by their values as the target has them, whatever type they come with and however they are
looked up."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.errors import AmbiguousMatchError, NullKeyError, SchemaMismatchError
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.tables import upsert

# Two keys whose xxhash64 is the same, also with what xxhash64(1) is for a seed: differences in its state cancel.
COLLIDING = (
    "}F0K}|aWmsbphxzmnvflrwyvxlcovqdyav9pEswjmsbphxzmnvflrwyvxlcovqdy" + "z" * 32,
    "}F0K}|akmsbphxzmnvflrwyvxlcovqdyav9*U3`Amsbphxzmnvflrwyvxlcovqdy" + "z" * 32,
)


@pytest.mark.always
@pytest.mark.core
def test_keys_that_only_the_cast_makes_equal_are_one(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("k INT, s BIGINT, v STRING", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="v = 'gone'")
    sink.merge(create_source("k STRING, s BIGINT, v STRING", [("1", 1, "old"), ("01", 2, "new"), (" 2", 1, "two")]))
    assert read_rows(path) == [Row(k=1, s=2, v="new"), Row(k=2, s=1, v="two")]
    sink.merge(create_source("k STRING, s BIGINT, v STRING", [("001", 4, "gone"), ("1", 3, "late")]))
    sink.merge(create_source("k INT, s BIGINT, v STRING", [(1, 3, "late")]))
    assert read_rows(path) == [Row(k=2, s=1, v="two")]


@pytest.mark.always
def test_keys_that_only_the_cast_makes_equal_match_one_row(create_table, create_source, read_rows, deletion_vectors):
    """Without a sequence nothing decides between them, as for Delta's MERGE."""
    path = create_table("k INT, v STRING", [(1, "old")], deletion_vectors=deletion_vectors)
    with pytest.raises(AmbiguousMatchError):
        merge_sink(path, keys="k").merge(create_source("k STRING, v STRING", [("1", "a"), ("01", "b")]))
    assert read_rows(path) == [Row(k=1, v="old")]


@pytest.mark.any_strategy
@pytest.mark.parametrize("is_padded", [True, False], ids=["padding", "no padding"])
def test_keys_of_char_are_compared_as_they_are_written(
    spark, create_table, create_source, read_rows, tmp_path, deletion_vectors, is_padded
):
    path = create_table("k CHAR(3), n INT", [("a", 1), ("b  ", 2)], deletion_vectors=deletion_vectors)
    by_keys, by_delta = (copy_table(path, str(tmp_path / name)) for name in ("keys", "delta"))
    source = create_source("k STRING, n INT", [("a", 10), ("b  ", 20)])
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"n": "source.n"})
    sink = sink.when_not_matched_insert()
    spark.conf.set("spark.sql.readSideCharPadding", "false")
    try:
        merge_with_delta(sink, by_delta, source)
        expected = read_rows(by_delta)
        spark.conf.set("spark.sql.readSideCharPadding", str(is_padded).lower())
        sink.merge(source)
        merge_sink(by_keys, keys="k").merge(source)
        spark.conf.set("spark.sql.readSideCharPadding", "false")
        assert read_rows(path) == expected == [Row(k="a", n=10), Row(k="b  ", n=20)]
        assert read_rows(by_keys) == expected
    finally:
        spark.conf.unset("spark.sql.readSideCharPadding")


CHAR_SINKS: dict[str, dict[str, Any]] = {
    "keys": {"keys": "k", "delete_when": "v = 'd'"},
    "order": {"keys": ["k", "n"], "sequence_by": "s", "delete_when": "v = 'd'"},
    "columns": {
        "keys": ["k", "n"],
        "sequence_by": "s",
        "delete_when": "v = 'd'",
        "unchanged_columns": "IF(v = 'd', array(), array('w'))",
    },
}


@pytest.mark.core
@pytest.mark.any_strategy
@pytest.mark.parametrize("options", CHAR_SINKS.values(), ids=CHAR_SINKS)
@pytest.mark.parametrize("rewrite", ["OPTIMIZE {}", "UPDATE {} SET w = 'u'"])
def test_blanks_at_the_end_of_a_char_key_do_not_count(
    spark, create_table, create_source, deletion_vectors, rewrite, options
):
    """Spark pads a CHAR where it reads it, and so whatever rewrites a file: the keys of new files have no blanks."""
    schema = "k STRING, n INT, s BIGINT, v STRING, w STRING"
    path = create_table(schema.replace("k STRING", "k CHAR(3)"), [], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, **options)

    def merge(*rows):
        return sink.merge(create_source(schema, [(k, 1, s, v, "w") for k, s, v in rows]))

    merge(("a", 1, "a1"), ("b ", 1, "b1"), ("c", 1, "c1"))
    merge(("d", 1, "d1"), ("e", 1, "e1"))
    spark.sql(rewrite.format(f"delta.`{path}`"))
    merge(("a", 2, "a2"), ("b", 2, "b2"), ("c", 2, "d"), ("d  ", 2, "d"), ("f", 1, "f1"))
    spark.sql(rewrite.format(f"delta.`{path}`"))
    result = merge(("a  ", 3, "a3"), ("b", 3, "d"), ("e ", 2, "e2"), ("f", 2, "f2"))
    assert (result.num_target_rows_updated, result.num_target_rows_deleted) == (3, 1)
    if "sequence_by" in options:
        late = merge(("c ", 1, "late"), ("d", 1, "late"), ("b  ", 2, "late"), ("a", 4, "a4"), ("a ", 5, "a5"))
        assert (late.num_outdated_rows, late.num_superseded_rows) == (3, 1)
    rows = spark.read.format("delta").load(path).selectExpr("rtrim(k) AS k", "v").collect()
    newest = "a5" if "sequence_by" in options else "a3"
    assert sorted(map(tuple, rows)) == [("a", newest), ("e", "e2"), ("f", "f2")]


def test_a_char_key_of_blanks_alone_in_a_partition(spark, create_table, create_source, read_rows):
    """The empty text would be NULL there."""
    path = create_table("k CHAR(3), s BIGINT, v STRING", [], partition_by=["k"])
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="v = 'd'")
    for at, rows in enumerate([[("   ", "a"), ("b ", "a")], [("   ", "b"), ("b", "b")], [("b  ", "d")]]):
        sink.merge(create_source("k STRING, s BIGINT, v STRING", [(key, at, value) for key, value in rows]))
    assert read_rows(path, "v") == [Row(v="b")]
    assert spark.read.format("delta").load(path).where("k IS NULL").count() == 0
    sink.merge(create_source("k STRING, s BIGINT, v STRING", [("   ", 9, "d")]))
    late = create_source("k STRING, s BIGINT, v STRING", [("   ", 8, "late"), ("b ", 1, "late")])
    assert sink.merge(late).num_outdated_rows == 2
    assert read_rows(path) == []


def test_what_users_see_of_a_char_key_has_its_blanks(create_table, create_source, read_rows):
    path = create_table("k CHAR(3), v STRING", [("a", "x")])
    sink = merge_sink(path, keys="k").when_matched_update(set={"v": "concat('[', source.k, ']')"})
    sink.when_not_matched_insert().merge(create_source("k STRING, v STRING", [("a  ", "y"), ("b ", "z")]))
    assert sorted(row["v"] for row in read_rows(path)) == ["[a  ]", "z"]


@pytest.mark.always
@pytest.mark.parametrize(("kind", "key"), [("DOUBLE", 1.5), ("STRING", "1.5"), ("DECIMAL(3,1)", "1.5")])
def test_a_delete_of_another_key_leaves_no_tombstone_on_the_one_it_is_cast_to(
    spark, create_table, create_source, read_rows, deletion_vectors, kind, key
):
    path = create_table("k INT, s BIGINT, gone BOOLEAN", [(1, 1, False)], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by="s", delete_when="gone")
    with pytest.raises(SchemaMismatchError, match=r"k: 1\.5"):
        sink.merge(spark.sql(f"SELECT CAST('{key}' AS {kind}) AS k, 9L AS s, true AS gone"))
    sink.merge(create_source("k INT, s BIGINT, gone BOOLEAN", [(1, 5, False)]))
    assert read_rows(path) == [Row(k=1, s=5, gone=False)]


@pytest.mark.always
@pytest.mark.parametrize("locator", ["index", "scan"])
def test_hostile_keys_are_told_apart(create_table, create_source, read_rows, locator):
    one, other = COLLIDING
    hashes = create_source("k STRING", [(one,), (other,)]).select(F.xxhash64("k"), F.xxhash64(F.lit(1), "k")).collect()
    assert hashes[0] == hashes[1]
    path = create_table("k STRING, v INT", [(one, 1)], deletion_vectors=True)
    sink = merge_sink(path, keys="k", locator=locator)
    sink.merge(create_source("k STRING, v INT", [(other, 2)]))
    assert read_rows(path) == sorted([Row(k=one, v=1), Row(k=other, v=2)], key=repr)


def test_composite_keys_of_one_text_are_told_apart(create_table, create_source, read_rows):
    path = create_table("a STRING, b STRING, n INT, v INT", [("x", "yz", 1, 0), ("", "", 12, 0)], deletion_vectors=True)
    sink = merge_sink(path, keys=["a", "b", "n"], locator="index")
    result = sink.merge(
        create_source(
            "a STRING, b STRING, n INT, v INT", [("xy", "z", 1, 1), ("1:x", "", 2, 1), ("", "", 12, 1), ("é", "", 1, 1)]
        )
    )
    assert (result.locator, result.num_target_rows_updated) == ("index", 1)
    assert len(read_rows(path)) == 5


@pytest.mark.always
@pytest.mark.parametrize("locator", ["index", "scan"])
def test_a_rename_that_swaps_two_columns_moves_the_key(spark, create_table, create_source, read_rows, locator):
    path = create_table(
        "k BIGINT, j BIGINT, v INT",
        [(1, 2, 0), (3, 4, 0)],
        deletion_vectors=True,
        properties={"delta.columnMapping.mode": "name"},
    )
    sink = merge_sink(path, keys="k", locator=locator)
    sink.merge(create_source("k BIGINT, j BIGINT, v INT", [(1, 2, 1)]))
    for old, new in (("k", "t"), ("j", "k"), ("t", "j")):
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN {old} TO {new}")
    sink.merge(create_source("k BIGINT, j BIGINT, v INT", [(4, 3, 2)]))
    assert read_rows(path, "k", "j", "v") == [Row(k=2, j=1, v=1), Row(k=4, j=3, v=2)]


@pytest.fixture
def berlin(monkeypatch):
    """Let this process be in Berlin, where the clocks are put back on 2024-10-27: 02:30 is there twice."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.always
@pytest.mark.parametrize("hour", ["00:30", "01:30"])
def test_an_insert_in_the_hour_that_comes_twice_is_seen(spark, create_table, at_step, berlin, deletion_vectors, hour):
    path = create_table("k INT, at TIMESTAMP, v INT", deletion_vectors=deletion_vectors, partition_by=["at"])
    row = f"SELECT 1 AS k, TIMESTAMP'2024-10-27 {hour}:00Z' AS at"
    at_step("before_commit", lambda: spark.sql(f"INSERT INTO delta.`{path}` {row}, 0 AS v"))
    result = merge_sink(path, keys=["k", "at"]).merge(spark.sql(f"{row}, 1 AS v"))
    assert result.num_commit_attempts == 2
    rows = spark.read.format("delta").load(path).selectExpr("k", "CAST(at AS STRING)", "v").collect()
    assert [tuple(found) for found in rows] == [(1, f"2024-10-27 {hour}:00", 1)]


@pytest.mark.always
@pytest.mark.parametrize("locator", ["scan", "index"])
def test_texts_that_are_not_utf_8_do_not_hide_others(
    spark, create_table, read_rows, deletion_vectors, locator, tmp_path
):
    """Spark orders texts by their bytes; in Delta's statistics, and in Python, such bytes are another character."""
    bad = "CAST(x'80' AS STRING)"
    path = create_table("k STRING, v INT", deletion_vectors=deletion_vectors)
    first = spark.sql("SELECT 'é' k, 1 v UNION ALL SELECT '日本', 2").coalesce(1)
    first.write.format("delta").mode("append").save(path)
    theirs = copy_table(path, str(tmp_path / "copy"))
    sink = merge_sink(path, keys="k", locator=locator if deletion_vectors else None)
    batches = [
        f"SELECT 'é' k, 10 v UNION ALL SELECT '日本', 20 UNION ALL SELECT {bad}, 30 UNION ALL SELECT '😀', 40",
        "SELECT 'é' k, 100 v",
        f"SELECT {bad} k, 300 v UNION ALL SELECT '日本', 200",
    ]
    for batch in batches:
        source = spark.sql(batch).coalesce(1)
        sink.merge(source)
        merge_with_delta(upsert(theirs, "k"), theirs, source)
        rows = [
            sorted(map(tuple, spark.read.format("delta").load(each).selectExpr("hex(k)", "v").collect()))
            for each in (path, theirs)
        ]
        assert rows[0] == rows[1]
    assert len(rows[0]) == 4


@pytest.mark.any_strategy
def test_dates_that_python_does_not_have_as_keys_that_partition_the_table(spark, create_table, deletion_vectors):
    """PostgreSQL's infinity is such a date."""
    path = create_table("k DATE, v INT", partition_by=["k"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k")
    for value in (1, 2):
        sink.merge(
            spark.sql(f"SELECT date'+12000-01-01' AS k, {value} AS v UNION ALL SELECT date'-0005-01-01', {value}")
        )
    found = spark.read.format("delta").load(path).selectExpr("CAST(k AS STRING)", "v").collect()
    assert sorted(map(tuple, found)) == [("+12000-01-01", 2), ("-0005-01-01", 2)]


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    ("kind", "order"),
    [("STRING", None), ("STRING", "v"), ("CHAR(1)", None), ("VARCHAR(1)", "v"), ("BINARY", None), ("BINARY", "v")],
)
def test_an_empty_value_in_a_key_that_partitions_the_table_is_null(spark, create_table, deletion_vectors, kind, order):
    """Delta makes NULL of it, so that each merge would insert the row again."""
    path = create_table(f"p {kind}, v INT", partition_by=["p"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="p", sequence_by=order)
    given = "BINARY" if kind == "BINARY" else "STRING"
    sink.merge(spark.sql(f"SELECT CAST('a' AS {given}) p, 1 v"))
    with pytest.raises(NullKeyError, match=r"1 source row\(s\) have NULL in a key \(p\)"):
        sink.merge(spark.sql(f"SELECT CAST('' AS {given}) p, 2 v UNION ALL SELECT CAST('a' AS {given}), 2"))
    found = spark.read.format("delta").load(path).selectExpr("CAST(p AS STRING)", "v").collect()
    assert [tuple(row) for row in found] == [("a", 1)]


@pytest.mark.any_strategy
@pytest.mark.parametrize(("kind", "order"), [("STRING", None), ("STRING", "v"), ("BINARY", None)])
def test_an_empty_value_in_a_key_that_partitions_the_table_matches_null(
    spark, create_table, deletion_vectors, kind, order
):
    path = create_table(f"p {kind}, k STRING, v INT", partition_by=["p"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=["p", "k"], null_keys="match", sequence_by=order, delete_when="v > 8")

    def merged(*rows):
        selects = [f"SELECT CAST({p} AS {kind}) p, {k} k, {v} v" for p, k, v in rows]
        sink.merge(spark.sql(" UNION ALL ".join(selects)))
        found = spark.read.format("delta").load(path).selectExpr("CAST(p AS STRING)", "k", "v").collect()
        return {tuple(row) for row in found}, len(found)

    for v in (1, 2):
        assert merged(("''", "''", v), ("'a'", "'b'", v)) == ({("a", "b", v), (None, "", v)}, 2)
    assert merged(("NULL", "''", 3)) == ({("a", "b", 2), (None, "", 3)}, 2)
    # As the partition of NULL is called.
    assert merged(("'__HIVE_DEFAULT_PARTITION__'", "''", 4)) == ({("a", "b", 2), (None, "", 4)}, 2)
    assert merged(("''", "''", 9)) == ({("a", "b", 2)}, 1)
    assert merged(("NULL", "''", 5))[1] == (1 if order else 2)


@pytest.mark.any_strategy
@pytest.mark.parametrize("kind", ["STRING", "BINARY"])
def test_an_empty_value_in_a_key_that_partitions_the_table_goes_to_the_quarantine(
    spark, create_table, deletion_vectors, tmp_path, kind
):
    path = create_table(f"p {kind}, v INT", partition_by=["p"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="p", null_keys="quarantine", quarantine=str(tmp_path / "set_aside"))
    for v in (1, 2):
        sink.merge(spark.sql(f"SELECT CAST('' AS {kind}) p, {v} v UNION ALL SELECT CAST('a' AS {kind}), {v}"))
    found = spark.read.format("delta").load(path).selectExpr("CAST(p AS STRING)", "v").collect()
    assert [tuple(row) for row in found] == [("a", 2)]
    set_aside = spark.read.format("delta").load(str(tmp_path / "set_aside")).select("reason", "row").collect()
    reason = "NULL in a key (p)"
    assert sorted(map(tuple, set_aside)) == [(reason, '{"p":"","v":1}'), (reason, '{"p":"","v":2}')]


def test_a_partition_whose_name_is_not_utf_8(spark, create_table, deletion_vectors):
    path = create_table("p STRING, k INT, v INT", partition_by=["p"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=["p", "k"], locator="index" if deletion_vectors else None)
    for v in (1, 2, 3):
        sink.merge(spark.sql(f"SELECT 'a' p, 1 k, {v} v UNION ALL SELECT CAST(x'80' AS STRING), 1, {v}"))
    rows = spark.read.format("delta").load(path).where("p = 'a'").select("k", "v").collect()
    assert [tuple(row) for row in rows] == [(1, 3)]


@pytest.mark.always
def test_structs_are_compared_field_by_field_of_the_same_name(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("k STRUCT<a: INT, b: INT>, v STRING", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by="s.x", delete_when="v IS NULL", except_columns="s")
    schema = "k STRUCT<B: INT, A: INT>, v STRING, s STRUCT<x: INT>"
    for rows in (
        [((2, 1), "x", (1,)), ((1, 2), "y", (1,)), ((4, 3), "z", (1,))],
        [((2, 1), "x2", (3,)), ((4, 3), None, (3,))],
        [((2, 1), "late", (2,)), ((4, 3), "late", (2,))],
    ):
        sink.merge(create_source(schema, rows))
    assert read_rows(path, "k.a", "k.b", "v") == [(1, 2, "x2"), (2, 1, "y")]
    with pytest.raises(SchemaMismatchError, match="k is STRUCT<A:INT,C:INT> in the batch"):
        sink.merge(create_source("k STRUCT<a: INT, c: INT>, v STRING, s STRUCT<x: INT>", [((1, 2), "x", (9,))]))
