"""One type decides the order of changes everywhere: inside a batch, against the table's rows and against remembered
deletes."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink
from stream_merge.errors import SchemaMismatchError, StreamMergeError

pytestmark = [pytest.mark.any_strategy, pytest.mark.always]

NOON = dt.datetime.fromisoformat("2024-01-01 12:00:00")


def ordered(path: str, **options):
    return merge_sink(
        path, **{"keys": "k", "sequence_by": "s", "delete_when": "op = 'd'", "except_columns": ["op"], **options}
    )


def test_a_number_is_not_compared_as_text(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("k INT, s STRING", deletion_vectors=deletion_vectors)
    with pytest.raises(SchemaMismatchError, match="s is BIGINT in the batch and STRING in the target"):
        ordered(path).merge(create_source("k INT, s BIGINT, op STRING", [(1, 8, "u")]))
    assert read_rows(path) == []


def test_text_of_numbers_is_compared_as_the_numbers_that_the_target_keeps(
    create_table, create_source, read_rows, deletion_vectors
):
    path = create_table("k INT, s BIGINT, v STRING", deletion_vectors=deletion_vectors)
    schema = "k INT, s STRING, v STRING, op STRING"
    ordered(path).merge(create_source(schema, [(1, "9", "nine", "u"), (1, "10", "ten", "u"), (2, "9", "nine", "u")]))
    ordered(path).merge(create_source(schema, [(1, "9", "late", "u"), (2, "10", None, "d")]))
    ordered(path).merge(create_source(schema, [(2, "9", "late", "u")]))
    assert read_rows(path) == [Row(k=1, s=10, v="ten")]
    with pytest.raises(SchemaMismatchError, match="s: ten"):
        ordered(path).merge(create_source(schema, [(1, "ten", "x", "u")]))


def test_a_date_first_and_a_timestamp_later_in_the_sinks_own_column(
    create_table, create_source, read_rows, deletion_vectors
):
    path = create_table("k INT, v STRING", deletion_vectors=deletion_vectors)
    sink = ordered(path, except_columns=["op", "s"])
    sink.merge(create_source("k INT, s DATE, v STRING, op STRING", [(1, NOON.date(), "day", "u")]))
    schema = "k INT, s TIMESTAMP, v STRING, op STRING"
    with pytest.raises(SchemaMismatchError, match=r"sequence_by \(s\): 2024-01-01 12:00:00"):
        sink.merge(create_source(schema, [(1, NOON, "noon", "u")]))
    sink.merge(create_source(schema, [(1, NOON.replace(hour=0) + dt.timedelta(days=1), "next", "u")]))
    sink.merge(create_source(schema, [(1, NOON.replace(hour=0), "old", "u")]))
    assert read_rows(path, "v") == [Row(v="next")]


@pytest.mark.parametrize("own_column", [True, False])
def test_a_wider_number_does_not_wrap(spark, create_table, create_source, read_rows, deletion_vectors, own_column):
    """Without ANSI mode a cast of 2^31 + 1 to INT gives a negative number."""
    path = create_table("k INT, v STRING" + ("" if own_column else ", s INT"), deletion_vectors=deletion_vectors)
    sink = ordered(path, except_columns=["op", "s"] if own_column else ["op"])
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        sink.merge(create_source("k INT, v STRING, s INT, op STRING", [(1, "old", 5, "u")]))
        wide = create_source("k INT, v STRING, s BIGINT, op STRING", [(1, "newest", 2**31 + 1, "u")])
        with pytest.raises(SchemaMismatchError, match="2147483649"):
            sink.merge(wide)
        sink.merge(create_source("k INT, v STRING, s BIGINT, op STRING", [(1, "newer", 6, "u"), (2, "x", 1, "u")]))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
    assert read_rows(path, "k", "v") == [Row(k=1, v="newer"), Row(k=2, v="x")]


def test_what_the_type_of_the_target_cannot_hold_goes_to_the_quarantine(
    spark, create_table, create_source, read_rows, deletion_vectors, tmp_path
):
    path = create_table("k INT, s INT", deletion_vectors=deletion_vectors)
    quarantine = str(tmp_path / "quarantine")
    sink = ordered(path, quarantine=quarantine)
    rows = [(1, 2**40, "u"), (1, 3, "u"), (2, 4, "d")]
    result = sink.merge(create_source("k INT, s BIGINT, op STRING", rows))
    assert (read_rows(path), result.num_quarantined_rows) == ([Row(k=1, s=3)], 1)
    assert [row["row"] for row in read_rows(quarantine, "row")] == ['{"k":1,"s":1099511627776,"op":"u"}']


@pytest.mark.core
def test_a_sequence_that_is_widened_keeps_its_deletes(spark, create_table, create_source, read_rows, deletion_vectors):
    path = create_table(
        "k INT, s INT, v STRING", deletion_vectors=deletion_vectors, properties={"delta.enableTypeWidening": "true"}
    )
    sink = ordered(path)
    sink.merge(create_source("k INT, s INT, v STRING, op STRING", [(1, 5, "x", "u"), (2, 5, None, "d")]))
    spark.sql(f"ALTER TABLE delta.`{path}` CHANGE COLUMN s TYPE BIGINT")
    schema = "k INT, s BIGINT, v STRING, op STRING"
    sink.merge(create_source(schema, [(1, 4, "late", "u"), (2, 4, "late", "u"), (3, 2**40, None, "d")]))
    sink.merge(create_source(schema, [(3, 2**40 - 1, "late", "u"), (2, 2**40, "new", "u")]))
    assert read_rows(path) == [Row(k=1, s=5, v="x"), Row(k=2, s=2**40, v="new")]


def test_a_struct_whose_fields_have_odd_names(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("k INT, v STRING", deletion_vectors=deletion_vectors)
    schema = "k INT, v STRING, op STRING, s STRUCT<`log-file`: STRING, `at-pos`: TIMESTAMP>"
    sink = ordered(path, except_columns=["op", "s"])
    for op, v, at in (("u", "new", 2), ("u", "late", 1), ("d", "gone", 4), ("u", "late", 3)):
        sink.merge(create_source(schema, [(1, v, op, ("f", NOON.replace(second=at))), (2, v, "u", ("f", NOON))]))
    assert [(row["k"], row["v"]) for row in read_rows(path)] == [(2, "late")]


def test_a_sequence_of_microseconds_where_the_session_writes_milliseconds(
    spark, create_table, create_source, read_rows, deletion_vectors
):
    path = create_table("k INT, s TIMESTAMP, v STRING", deletion_vectors=deletion_vectors)
    setting = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    try:
        sink = ordered(path)
        for op, v, micros in (("u", "new", 300), ("u", "late", 100), ("d", "gone", 500), ("u", "late", 400)):
            at = NOON.replace(microsecond=micros)
            sink.merge(create_source("k INT, s TIMESTAMP, v STRING, op STRING", [(1, at, v, op), (2, at, v, "u")]))
            if v == "late" and micros == 100:
                assert [(row["k"], row["v"]) for row in read_rows(path)] == [(1, "new"), (2, "new")]
    finally:
        spark.conf.unset(setting)
    assert [(row["k"], row["v"]) for row in read_rows(path)] == [(2, "gone")]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("sequence", "in_target"),
    [
        ("s", "s STRING"),
        ("o", "o STRUCT<t: STRING, n: INT>"),
        ("named_struct('a', o)", "s STRING"),
    ],
)
def test_a_sequence_that_is_no_utf_8_is_refused(spark, create_table, read_rows, tmp_path, sequence, in_target):
    """What is remembered of a delete would have another place in the order."""
    path = create_table(f"id INT, v STRING, {in_target}")
    rejected = str(tmp_path / "rejected")
    options = {"keys": "id", "sequence_by": sequence, "delete_when": "op = 'd'", "except_columns": ["op"]}

    def change(key, v, text, op):
        text = f"CAST({text} AS STRING)"
        return f"SELECT {key} id, '{v}' v, {text} s, named_struct('n', 1, 't', {text}) o, '{op}' op"

    merge_sink(path, **options).merge(spark.sql(change(1, "a", "'m'", "u")))
    invalid = change(1, "b", "x'FF'", "d")
    with pytest.raises(StreamMergeError, match="INVALID_UTF8_STRING"):
        merge_sink(path, **options).merge(spark.sql(invalid))
    assert read_rows(path, "v") == [("a",)]
    sink = merge_sink(path, quarantine=rejected, **options)
    result = sink.merge(spark.sql(f"{invalid} UNION ALL {change(2, 'c', chr(39) + 'é' + chr(39), 'u')}"))
    assert (result.num_quarantined_rows, result.num_target_rows_inserted) == (1, 1)
    assert read_rows(path, "v") == [("a",), ("c",)]
    [row] = read_rows(rejected)
    assert row.reason == f"the sequence is not UTF-8: {sequence}"
    assert json.loads(row.row)["s"] == "base64:/w=="
