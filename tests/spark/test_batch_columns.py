"""Columns of a batch that the target does not have, and columns that no table can tell apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from stream_merge import debezium, merge_router, merge_sink
from stream_merge.errors import ConfigError, RouterError
from tests.debezium.records import envelope, frame_of, record
from tests.spark.delta_log import latest_version
from tests.spark.tables import upsert
from tests.streaming.streams import ChangeFiles, run_to_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALIKE = (
    "the source has the columns v and V, which Delta does not tell apart: rename all but one of them in the source, "
    "or leave them out (with stream_merge.debezium by columns=, which takes names exactly)"
)


@pytest.fixture(params=["false", "true"], ids=["names of any case", "names with their case"])
def case_sensitive(spark: SparkSession, request: pytest.FixtureRequest):
    spark.conf.set("spark.sql.caseSensitive", request.param)
    yield request.param == "true"
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.core
@pytest.mark.usefixtures("case_sensitive")
def test_names_that_differ_in_case_alone_are_refused(create_table, create_source, read_rows, tmp_path):
    path, missing = create_table("id INT, v INT", [(1, 1)]), str(tmp_path / "missing")
    version = latest_version(path)
    batch = create_source("id INT, v INT, V INT", [(1, 2, 3)])
    sinks = [
        merge_sink(path, keys="id"),
        merge_sink(path, keys="id", except_columns=["V"]),
        merge_sink(path, keys="id", sequence_by="v", merge_schema=True),
        merge_sink(path, keys="id", output_mode="complete"),
        merge_sink(missing, keys="id", create_if_missing=True),
        upsert(path),
    ]
    for sink in sinks:
        for call in (sink.merge, sink.explain):
            with pytest.raises(ConfigError) as raised:
                call(batch)
            assert raised.value.faults == (ALIKE,)
    router = merge_router({"t": sinks[0]}, by="'t'")
    with pytest.raises(RouterError) as failed:
        router.merge(batch)
    assert [str(failure) for failure in failed.value.failures.values()] == [ALIKE]
    assert (latest_version(path), read_rows(path)) == (version, [(1, 1)])
    assert not (tmp_path / "missing").exists()
    # What the message says to do.
    sinks[0].merge(batch.toDF("id", "v", "other").drop("other"))
    assert read_rows(path) == [(1, 2)]


def test_a_stream_of_such_names_ends_with_the_error(spark: SparkSession, create_table, read_rows, tmp_path):
    path = create_table("id INT, v INT")
    changes = ChangeFiles(tmp_path / "changes", "id INT, v INT, V INT")
    changes.add([(1, 1, 2)])
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        error = run_to_failure(changes.stream(spark), merge_sink(path, keys="id"), tmp_path / "checkpoint")
        assert ALIKE in error
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert read_rows(path) == []


@pytest.mark.usefixtures("case_sensitive")
def test_debezium_s_columns_that_differ_in_case_alone(spark, create_table, read_rows):
    """Decoded each by its own name; merged when one of them is left out."""
    event = envelope("c", {"id": 1, "Id": "one", "v": "x"})
    records = frame_of(spark, record({"id": 1}, event))
    both = debezium.changes(records, "id INT, Id STRING, v STRING", ["id"])
    assert [tuple(row)[:3] for row in both.collect()] == [(1, "one", "x")]
    path = create_table("id INT, v STRING")
    sink = merge_sink(path, keys="id", **debezium.MERGE_OPTIONS)
    with pytest.raises(ConfigError, match=r"^the source has the columns id and Id, which Delta does not tell apart"):
        sink.merge(both)
    sink.merge(debezium.changes(records, "id INT, v STRING", ["id"]))
    assert read_rows(path, "id", "v") == [(1, "x")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.core
def test_values_that_no_column_takes_are_told_once(create_table, create_source, read_rows, caplog):
    path = create_table("id INT, v INT")
    sink = merge_sink(path, keys="id")
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        sink.merge(create_source("id INT, v INT, New INT, note STRING", [(1, 1, 1, "a")]))
        sink.merge(create_source("id INT, v INT, note STRING, New INT", [(2, 2, "b", 2)]))
        assert warnings(caplog) == [
            f"{path}: the table has no column New, note, so its values are left out; set merge_schema, add it to the "
            "table, or name it in except_columns"
        ]
        sink.merge(create_source("id INT, v INT, more INT", [(3, 3, 3)]))
        assert len(warnings(caplog)) == 2
        assert "has no column more," in warnings(caplog)[1]
    assert read_rows(path) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"merge_schema": True}, "extra INT"),
        ({"except_columns": ["EXTRA"]}, "extra INT"),
        ({"columns": ["v"]}, "extra INT"),
        ({"sequence_by": "seq", "delete_when": "source.Op = 'd'"}, "seq INT, op STRING"),
        ({"sequence_by": "CAST(seq AS BIGINT)", "tie_break_by": "tie"}, "seq INT, tie INT"),
        ({"expect": {"positive": "extra > 0"}, "error_column": "error"}, "extra INT, error STRING"),
        ({"quarantine": "{path}_rejected"}, "topic STRING, partition INT, offset BIGINT"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_columns_that_an_option_uses_are_not_told(create_table, create_source, caplog, options, columns):
    path = create_table("id INT, v INT")
    options = {name: value.format(path=path) if isinstance(value, str) else value for name, value in options.items()}
    empty = create_source(f"id INT, v INT, {columns}", [])
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        merge_sink(path, keys="id", **options).merge(empty)
    assert warnings(caplog) == []


def test_columns_that_are_no_text_count_as_well(create_table, create_source, caplog):
    path = create_table("id INT, v INT")
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        sink = merge_sink(path, keys="id", sequence_by=F.col("seq") + 1, delete_when=F.col("op") == "d")
        sink.merge(create_source("id INT, v INT, seq INT, op STRING", []))
    assert warnings(caplog) == []


def test_of_clauses_those_that_take_all_columns_are_told_of(create_table, create_source, caplog):
    path = create_table("id INT, v INT")
    batch = create_source("id INT, v INT, extra INT, used INT", [(1, 1, 1, 1)])
    named = merge_sink(path, on="target.id = source.id").when_not_matched_insert(values={"id": "source.id"})
    taking_all = merge_sink(path, on="target.id = source.id").when_not_matched_insert_all(condition="source.used > 0")
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        named.merge(batch)
        assert warnings(caplog) == []
        taking_all.merge(batch)
        assert ["no column extra," in text for text in warnings(caplog)] == [True]


def test_debezium_s_columns_that_the_table_lacks(spark, create_table, read_rows, caplog):
    path = create_table("id INT")
    records = frame_of(spark, record({"id": 1}, envelope("c", {"id": 1, "v": "x"})))
    with caplog.at_level(logging.WARNING, logger="stream_merge"):
        sink = merge_sink(path, keys="id", **debezium.MERGE_OPTIONS)
        sink.merge(debezium.changes(records, "id INT, v STRING", ["id"]))
    assert ["has no column v," in text for text in warnings(caplog)] == [True]
    assert read_rows(path, "id") == [(1,)]
