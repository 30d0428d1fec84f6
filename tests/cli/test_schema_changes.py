"""Columns that change while a pipeline runs: what `schema_changes` makes of the schemas of Debezium's messages."""

from __future__ import annotations

import logging
from datetime import date, datetime
from decimal import Decimal

import pytest

from stream_merge import merge_sink
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.pipeline import DecodeSettings, TableSettings
from stream_merge.cli.query.decoding import Decoder
from stream_merge.cli.query.sink_options import sink_options
from stream_merge.debezium.schemas import learn_columns
from stream_merge.errors import ConfigError, SchemaChangedError
from tests.debezium.records import POSTGRES, base64_of, frame_of, record, with_schema
from tests.debezium.test_learnt_columns import ID, decimal, field

DAY = date(1970, 1, 11)


def wrapped(columns, after, position, *, op="c"):
    """Return a record of a change at this position, with the schema part of its columns."""
    key = {"id": after["id"]}
    source = {**POSTGRES, "lsn": position, "sequence": f'["{position}","{position}"]'}
    row = {"type": "struct", "field": "after", "optional": True, "fields": [ID, *columns]}
    parts = [row, field("op", "string"), {"type": "struct", "field": "source", "fields": []}]
    message = {"before": None, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": 1}
    return record(with_schema([ID], key), with_schema(parts, message), position)


@pytest.fixture
def start(spark, tmp_path, make_pipeline):
    """Return a function that starts a pipeline of one table, and gives the function that merges its batches."""
    path = str(tmp_path / "lake" / "t")

    def started(**options):
        pipeline = make_pipeline({"format": "files", "path": "x", "schema": "x INT"}, {"target": path, **options},
                                 decode="debezium")  # fmt: skip
        decoder = Decoder(pipeline.decode, pipeline.tables[0], path, "t")
        sink = merge_sink(path, **sink_options(pipeline, 0))

        def merge(*records):
            sink.merge(decoder(frame_of(spark, *records)))
            table = spark.read.format("delta").load(path)
            own = [name for name in table.columns if name.startswith("_stream_merge_")]
            return {row["id"]: row.asDict() for row in table.drop(*own).collect()}

        return merge

    return started


NOW = "io.debezium.time.Timestamp"
OLD = [field("n", "int32"), field("gone", "string"), decimal("d", 8, 2), field("day", "int32", "io.debezium.time.Date")]
NEW = [field("n", "double"), decimal("d", 12, 4), field("day", "int64", NOW), field("new", "string", default="web")]


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("is_restarted", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_table_follows_its_source(start, is_restarted):
    merge = start()
    old = {"n": 7, "gone": "g", "d": base64_of(125), "day": 10}
    merge(*(wrapped(OLD, {"id": key, **old}, 1) for key in (1, 2, 3)))
    merge = start() if is_restarted else merge
    new = {"n": 1.5, "d": base64_of(12345), "day": 864000000, "new": "app"}
    changed = {
        "n": 1.5,
        "gone": None,
        "d": Decimal("1.2345"),
        "day": datetime.fromisoformat("1970-01-11"),
        "new": "app",
    }
    kept = {"n": 7.0, "gone": "g", "d": Decimal("1.2500"), "day": datetime.fromisoformat("1970-01-11"), "new": None}
    rows = merge(wrapped(NEW, {"id": 1, **new}, 5))
    assert rows == {1: {"id": 1, **changed}, 2: {"id": 2, **kept}, 3: {"id": 3, **kept}}
    merge = start() if is_restarted else merge
    # Late: older than its row; newer than its row, and of a row that was not there, both in a batch with others.
    late = {"n": 8, "gone": "late", "d": base64_of(250), "day": 10}
    assert merge(wrapped(OLD, {"id": 1, **late}, 4)) == rows
    rows = merge(*(wrapped(OLD, {"id": key, **late}, 4) for key in (2, 4)), wrapped(NEW, {"id": 3, **new}, 6))
    added = {**kept, "n": 8.0, "gone": "late", "d": Decimal("2.5000")}
    assert rows == {1: {"id": 1, **changed}, 2: {"id": 2, **added}, 3: {"id": 3, **changed}, 4: {"id": 4, **added}}


@pytest.mark.parametrize("mode", ["evolve", "lenient", "ignore", "error"])
def test_a_type_that_does_not_widen(start, mode, caplog, tmp_path):
    """Records of both types in one batch, too."""
    merge = start(schema_changes=mode, **({"quarantine": str(tmp_path / "rejected")} if mode == "evolve" else {}))
    merge(wrapped([field("n", "int32")], {"id": 1, "n": 1}, 1))
    text = [field("n", "string")]
    batch = [
        wrapped([field("n", "int32")], {"id": 2, "n": 2}, 2),
        wrapped(text, {"id": 3, "n": "3"}, 3),
        wrapped(text, {"id": 4, "n": "many"}, 4),
    ]
    if mode == "error":
        with pytest.raises(SchemaChangedError, match="n is STRING in the source and INT in the table"):
            merge(*batch)
        return
    if mode == "ignore":
        with pytest.raises(Exception, match="many"):
            merge(*batch)
        batch.pop()
    with caplog.at_level(logging.WARNING):
        rows = merge(*batch)
    assert [rows[key]["n"] for key in (1, 2, 3)] == ([1, None, None] if mode == "lenient" else [1, 2, 3])
    if mode == "lenient":
        assert [rows[key]["n__string"] for key in (1, 2, 3, 4)] == [None, "2", "3", "many"]
        assert "they go to n__string" in caplog.text
    if mode == "evolve":
        assert 4 not in rows
        assert "column n is STRING in the messages and INT in the table, in whose type it is read" in caplog.text


def test_messages_that_tell_no_columns_come_first(start, spark, tmp_path):
    """A poison pill, a message of another kind and a change without a schema are no reason to decode what comes after
    them by the table's types."""
    rejected = str(tmp_path / "rejected")
    old = [field("at", "int64", NOW), decimal("d", 12, 2)]
    new = [*old[:1], decimal("d", 12, 1), field("new", "string")]
    at = datetime.fromisoformat("2023-11-14T22:13:20")
    merge = start(quarantine=rejected)
    merge(wrapped(old, {"id": 1, "at": 1_700_000_000_000, "d": base64_of(125)}, 1))
    told = {"id": 1, "at": at, "d": Decimal("1.25")}
    other = {"schema": {"type": "string", "optional": False}, "payload": "x"}
    plain = {"op": "c", "before": None, "after": {"id": 3, "at": None, "d": None}, "source": POSTGRES, "ts_ms": 1}
    for number, first in enumerate([b'{"oops', other, plain]):
        merge = start(quarantine=rejected)
        merge(record({"id": 9}, first, 10 * number + 2))
        rows = merge(wrapped(new, {"id": 2, "at": 1_700_000_000_000, "d": base64_of(125), "new": "x"}, 10 * number + 3))
        assert rows[1] == {**told, "new": None}
        assert rows[2] == {"id": 2, "at": at, "d": Decimal("12.50"), "new": "x"}, first
    # Nor to forget what was learnt.
    assert merge(record({"id": 9}, other, 99)) == rows
    assert spark.read.format("delta").load(rejected).count() == 3


def test_numbers_are_no_base64_where_the_table_has_decimals(start):
    """To a DECIMAL, the text of a number could be the base64 of one: the messages' schema says that it is not."""
    merge = start()
    merge(wrapped([decimal("d", 8, 2), decimal("t", 8, 2)], {"id": 1, "d": base64_of(125), "t": base64_of(125)}, 1))
    rows = merge(wrapped([field("d", "int32"), field("t", "string")], {"id": 2, "d": 1234, "t": "1234"}, 2))
    assert rows[2] == {"id": 2, "d": Decimal("1234.00"), "t": Decimal("1234.00")}


def test_a_renamed_column_goes_on_in_its_column(start, spark):
    merge = start(rename={"mail": "email"})
    old, new = [field("email", "string"), field("n", "int32")], [field("mail", "string"), field("n", "int32")]
    merge(*(wrapped(old, {"id": key, "email": "old", "n": 1}, 1) for key in (1, 2)))
    rows = merge(
        wrapped(new, {"id": 1, "mail": "new", "n": 2}, 3),
        wrapped(old, {"id": 1, "email": "late", "n": 0}, 2),
        wrapped(old, {"id": 2, "email": "late", "n": 2}, 2),
        wrapped(new, {"id": 3, "mail": "new", "n": 3}, 3),
    )
    assert {key: (row["email"], row["n"]) for key, row in rows.items()} == {
        1: ("new", 2),
        2: ("late", 2),
        3: ("new", 3),
    }
    assert set(rows[1]) == {"id", "email", "n"}
    with pytest.raises(ConfigError, match="'mail' and 'email', and one was to be the other renamed"):
        learn_columns(frame_of(spark, wrapped([*old, *new], {"id": 1}, 4)), renamed={"mail": "email"})
    with pytest.raises(ConfigError, match="the key 'id' cannot be renamed"):
        learn_columns(frame_of(spark, wrapped(old, {"id": 1}, 4)), renamed={"id": "key"})
    plain = record({"id": 1}, {"op": "c", "source": POSTGRES, "after": {"id": 1, "mail": "x"}}, 9)
    merge_anew = start(rename={"mail": "email"})
    with pytest.raises(PipelineError, match="needs messages with a schema part"):
        merge_anew(plain)


def test_which_modes_a_file_means():
    debezium, plain = DecodeSettings(format="debezium"), DecodeSettings(format="json")

    def mode(decode, **options):
        return TableSettings(target="./t", keys=["id"], **options).schema_changes_of(decode)

    assert [mode(debezium), mode(plain), mode(debezium, columns="id INT")] == ["evolve", None, None]
    assert [mode(debezium, merge_schema=value) for value in (True, False)] == [None, None]
    assert [mode(each, schema_changes="lenient", columns="id INT") for each in (debezium, plain)] == ["lenient"] * 2
