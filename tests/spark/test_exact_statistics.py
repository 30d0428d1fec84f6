"""Bounds of files are read and written with all their digits: rounded ones hide rows from the merge and from every
reader."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import Row

from stream_merge import merge_sink
from tests.spark.delta_log import actions_of, latest_version

pytestmark = pytest.mark.always

LONG = Decimal(1234567890123456789)
THIRD = Decimal("0.333333333333333333")


@pytest.mark.core
def test_a_row_with_a_long_decimal_as_key_is_found(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("k DECIMAL(38,10), v INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k")
    for v in range(3):
        sink.merge(create_source("k DECIMAL(38,10), v INT", [(LONG, v), (THIRD.quantize(Decimal("1e-10")), v)]))
    assert read_rows(path) == [
        Row(k=Decimal("0.3333333333"), v=2),
        Row(k=Decimal("1234567890123456789.0000000000"), v=2),
    ]


def test_a_long_decimal_is_removed_from_a_table_without_a_key(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("d DECIMAL(38,18)", deletion_vectors=deletion_vectors)
    sink = merge_sink(
        path, sequence_by="seq", before="old", except_columns=["seq", "old", "op"], delete_when="op = 'd'"
    )
    schema = "d DECIMAL(38,18), op STRING, seq BIGINT, old STRUCT<d: DECIMAL(38,18)>"
    sink.merge(create_source(schema, [(THIRD, "c", 1, None), (LONG, "c", 2, None)]))
    sink.merge(create_source(schema, [(None, "d", 3, (THIRD,)), (None, "d", 4, (LONG,))]))
    assert read_rows(path, "d") == []


@pytest.mark.parametrize("way", ["keys", "clauses", "ordered"])
def test_statistics_of_a_file_that_loses_rows_stay_byte_for_byte(
    spark, create_table, create_source, read_rows, append_rows, way
):
    """The bounds pass through with a vector; only the note that they may be wide is new."""
    path = create_table("k INT, amount DECIMAL(38,18), big DECIMAL(38,0), x DOUBLE", deletion_vectors=True)
    big = Decimal("12345678901234567890123456789012345678")
    rows = [(1, THIRD, big, 0.1), (2, THIRD, big, 1e300), (3, THIRD, big, 0.30000000000000004)]
    append_rows(path, "k INT, amount DECIMAL(38,18), big DECIMAL(38,0), x DOUBLE", rows)
    [before] = actions_of(path, latest_version(path), "add")
    source = create_source(
        "k INT, amount DECIMAL(38,18), big DECIMAL(38,0), x DOUBLE", [(1, Decimal(1), Decimal(1), 1.0)]
    )
    if way == "keys":
        merge_sink(path, keys="k").merge(source)
    elif way == "ordered":
        merge_sink(path, keys="k", sequence_by="x").merge(source)
    else:
        sink = merge_sink(path, on="target.k = source.k")
        sink.when_matched_update(set={"amount": "target.amount + source.amount"}).merge(source)
    with_vector = next(add for add in actions_of(path, latest_version(path), "add") if add["path"] == before["path"])
    assert with_vector["deletionVector"]
    assert with_vector["stats"] == before["stats"].replace('"tightBounds":true', '"tightBounds":false')
    # What every reader prunes by.
    for condition in (f"amount >= {THIRD}", f"amount <= {THIRD}", f"big = {big}", "x >= 0.30000000000000004D"):
        found = {row["k"] for row in spark.read.format("delta").load(path).where(condition).collect()}
        assert {3} <= found, condition
    assert {row["k"] for row in read_rows(path)} == {1, 2, 3}


@pytest.mark.parametrize(
    "stats",
    [
        '{"numRecords":1}',
        '{"numRecords":1,"tightBounds":true,"minValues":{"d":0.333333333333333333}}',
        '{ "numRecords" : 1 , "minValues" : {"tightBounds": true, "a": "\\"tightBounds\\":true"} , "tightBounds" : '
        "true }",
        "{}",
    ],
)
def test_all_but_the_note_passes_through(stats):
    from stream_merge.table.deletion_vectors import with_wide_bounds

    wide = with_wide_bounds(stats)
    exactly = {"parse_float": Decimal}
    assert json.loads(wide, **exactly) == {**json.loads(stats, **exactly), "tightBounds": False}
    assert with_wide_bounds(wide) == wide


def test_rows_of_times_before_standard_zones_are_found(spark, create_table, create_source, read_rows, deletion_vectors):
    """Statistics cut the seconds of an offset such as +00:53:28, Berlin's until 1893."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        path = create_table("k TIMESTAMP, v INT", deletion_vectors=deletion_vectors)
        sink = merge_sink(path, keys="k")
        batch = spark.sql("SELECT TIMESTAMP'1880-01-01 00:00:00.123456' AS k, 1 AS v")
        for _ in range(3):
            sink.merge(batch)
        assert spark.read.format("delta").load(path).count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_bounds_of_timestamps_contain_the_seconds_of_old_offsets():
    from stream_merge.table.files import parse_stat

    moment = dt.datetime(1880, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=53)))
    text = "1880-01-01T00:00:00.000+00:53"
    assert parse_stat(text, "timestamp") <= moment - dt.timedelta(seconds=28)
    assert parse_stat(text, "timestamp", is_upper=True) >= moment + dt.timedelta(seconds=28)


def test_reorg_repairs_a_table_with_rounded_bounds(spark, create_table, create_source, append_rows):
    """As docs/operations.md says of tables that earlier versions have written."""
    schema = "k INT, amount DECIMAL(38,18)"
    path = create_table(schema, deletion_vectors=True)
    append_rows(path, schema, [(1, Decimal(0)), (2, THIRD)])
    merge_sink(path, keys="k").merge(create_source(schema, [(1, Decimal(1))]))
    version = latest_version(path)
    log = Path(path, "_delta_log")
    lines = (log / f"{version:020d}.json").read_text().splitlines()
    rounded = [line.replace(str(THIRD), "0.3333333333333333") for line in lines]
    assert rounded != lines
    for file in {*log.glob(".*.crc"), *log.glob("*.crc")}:
        file.unlink()
    (log / f"{version:020d}.json").write_text("\n".join(rounded) + "\n")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def found() -> list[int]:
        rows = spark.read.format("delta").load(path).where(f"amount >= {THIRD} AND amount < 1").collect()
        return [row["k"] for row in rows]

    assert found() == []
    spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")
    assert found() == [2]
