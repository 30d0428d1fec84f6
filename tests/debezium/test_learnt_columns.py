"""Columns that the messages' schema parts tell, batch by batch: altered tables, late records, batches that tell
little."""

from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge import ConfigError, debezium, merge_sink
from tests.debezium.captures import CAPTURES, COLUMNS, KEYS, SHOP, canonical_rows, read_expected, read_records
from tests.debezium.records import base64_of, envelope, frame_of, record, with_schema

KEY = {"id": 1}


def field(name, kind, semantic=None, *, optional=True, **more):
    return {"field": name, "type": kind, "optional": optional, **({"name": semantic} if semantic else {}), **more}


def decimal(name, precision, scale, **more):
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return field(name, "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters, **more)


ID = field("id", "int64", optional=False)


def wrapped(columns, op, after, offset=0, *, key=KEY):
    """Return a record with the schema part of these columns."""
    row = {"type": "struct", "field": "after", "optional": True, "fields": columns}
    parts = [row, field("op", "string"), {"type": "struct", "field": "source", "fields": []}]
    return record(key and with_schema([ID], key), with_schema(parts, envelope(op, after)), offset)


def test_rows_of_before_have_the_default_of_a_column_that_was_added(spark):
    """PostgreSQL gives it to the rows that are there, whether or not the column may be NULL."""
    added = [
        field("channel", "string", optional=False, default="web"),
        field("note", "string", default="none"),
        decimal("price", 8, 2, default=base64_of(150)),
        field("day", "int32", "io.debezium.time.Date", default=1),
        field("at", "int64", "io.debezium.time.Timestamp", default=1500),
        field("data", "bytes", default="AQ=="),
        field("tags", "array", items={"type": "string"}, default=["a", "b"]),
        field("flag", "boolean", default=True),
        # What the connector makes of DEFAULT now(): the rows have another value, which is not known.
        field(
            "made", "string", "io.debezium.time.ZonedTimestamp", optional=False, default="1970-01-01T00:00:00.000000Z"
        ),
    ]
    names = [each["field"] for each in added]
    old = wrapped([ID, field("a", "string", default="x")], "c", {"id": 1, "a": None}, 1)
    new = wrapped([ID, field("a", "string", default="x"), *added], "c", {"id": 2, "channel": "app"}, 2)
    # The column that is gone may be the new one under its old name.
    renamed = wrapped([ID, field("b", "string", default="y"), *added], "c", {"id": 3, "channel": "app"}, 3)
    rows = debezium.changes(frame_of(spark, new, renamed, old)).collect()
    first, second, third = sorted(rows, key=lambda row: row["id"])
    assert [row["_change"]["error"] for row in rows] == [None] * 3
    assert {name: first[name] for name in ("a", *names)} == {
        "a": None,
        "channel": "web",
        "note": "none",
        "price": Decimal("1.50"),
        "day": date(1970, 1, 2),
        "at": datetime.fromisoformat("1970-01-01T00:00:01.5"),
        "data": b"\x01",
        "tags": ["a", "b"],
        "flag": True,
        "made": None,
    }
    # NULL is NULL in a record of a schema that has the column.
    assert {name: second[name] for name in names} == {**dict.fromkeys(names), "channel": "app"}
    assert [row["b"] for row in (first, second, third)] == [None] * 3


def test_records_of_a_schema_that_was_not_learnt_are_errors_and_no_other_numbers(spark):
    narrow = [ID, decimal("n", 8, 2)]
    wide = [ID, decimal("n", 12, 4), field("more", "string")]
    before = wrapped(narrow, "c", {"id": 1, "n": base64_of(12345)}, 1)
    after = wrapped(wide, "u", {"id": 1, "n": base64_of(12345), "more": "x"}, 2)
    plain = record(KEY, envelope("u", {"id": 1, "n": base64_of(5)}), 3)
    broken = record(KEY, b'{"schema":{"type":"struct"},"payload":{', 4)
    learnt = debezium.learn_columns(frame_of(spark, before))
    good, unknown, plain, broken = debezium.changes(frame_of(spark, before, after, plain, broken), learnt).collect()
    assert (good["n"], good["_change"]["error"]) == (Decimal("123.45"), None)
    assert unknown["_change"]["error"].startswith("the record's schema was not learnt: for each batch, pass")
    # As before: what has no schema is read as the newest one spells it.
    assert (plain["n"], plain["_change"]["error"]) == (Decimal("0.05"), None)
    assert broken["_change"]["error"].startswith("the value is not the JSON of a change")

    learnt = debezium.learn_columns(frame_of(spark, after), learnt)
    assert list(learnt.fields) == ["id", "n", "more"]
    late = wrapped(narrow, "u", {"id": 1, "n": base64_of(777)}, 1)
    learnt = debezium.learn_columns(frame_of(spark, late, after), learnt)
    rows = debezium.changes(frame_of(spark, late, after), learnt).collect()
    assert {row["n"]: row["more"] for row in rows} == {Decimal("7.7700"): None, Decimal("1.2345"): "x"}
    assert [row["_change"]["error"] for row in rows] == [None, None]


@pytest.mark.parametrize("is_split", [False, True])
def test_schemas_of_one_moment_are_in_the_order_of_their_records(spark, is_split):
    """What a broker gets together has one time if it sets it itself (message.timestamp.type=LogAppendTime)."""
    moment = datetime.fromisoformat("2026-01-01T00:00:00")
    old, new = [ID, field("a", "string")], [ID, field("a", "string"), field("c", "string", default="web")]
    records = [
        (*each[:5], moment, *each[6:])
        for each in (
            wrapped(old, "c", {"id": 1, "a": "x"}, 1, key={"id": 1}),
            wrapped(new, "c", {"id": 2, "a": "y", "c": None}, 2, key={"id": 2}),
            wrapped(old, "c", {"id": 3, "a": "z"}, 1, key={"id": 3}),
        )
    ]
    learnt, rows = None, {}
    for batch in [records[:1], records[1:]] if is_split else [records]:
        frame = frame_of(spark, *batch)
        learnt = debezium.learn_columns(frame, learnt)
        rows |= {row["id"]: row for row in debezium.changes(frame, learnt).collect()}
    assert [rows[key]["c"] for key in (2, 3)] == [None, "web"]
    assert is_split or rows[1]["c"] == "web"
    # A column that was dropped was not there before.
    dropped = [(*records[1][:4], 1, *records[1][5:]), (*records[0][:4], 2, *records[0][5:])]
    rows = debezium.changes(frame_of(spark, *dropped)).collect()
    assert [(row["id"], row["c"]) for row in rows] == [(2, None), (1, None)]


def test_a_map_whose_keys_are_no_texts_is_its_text(spark):
    """PostgreSQL's sparsevec: JsonConverter writes a list of pairs."""
    vector = field("vector", "map", keys={"type": "int16"}, values={"type": "double"})
    labels = field("labels", "map", keys={"type": "string"}, values={"type": "string"})
    after = {"id": 1, "vector": [[1, 2.5], [3, 4.0]], "labels": {"a": "b"}}
    (row,) = debezium.changes(frame_of(spark, wrapped([ID, vector, labels], "c", after))).collect()
    assert (row["vector"], row["labels"], row["_change"]["error"]) == ("[[1,2.5],[3,4.0]]", {"a": "b"}, None)


def test_each_of_several_batches_is_decoded_by_the_schemas_of_its_records(spark):
    old, new = [ID, decimal("price", 8, 2)], [ID, decimal("price", 8, 3), field("note", "string", default="none")]
    learnt = None
    for number in range(1, 5):
        batch = frame_of(
            spark,
            wrapped(old, "c", {"price": base64_of(100 * number)}, 1, key={"id": 1}),
            wrapped(new, "c", {"price": base64_of(1000 * number), "note": f"n{number}"}, 2, key={"id": 2}),
        )
        learnt = debezium.learn_columns(batch, learnt)
        rows = debezium.changes(batch, learnt).select("id", "price", "note", "_change.error").collect()
        price = Decimal(number).quantize(Decimal("0.001"))
        assert sorted(map(tuple, rows)) == [(1, price, "none", None), (2, price, f"n{number}", None)]


def test_a_batch_of_late_records_has_the_columns_that_newer_ones_told(spark):
    """Partitions are read at their own speeds: the records of before come after those of after."""
    old = [ID, field("gone", "string")]
    new = [ID, field("channel", "string", optional=False, default="web")]
    both = [*old, new[1]]
    learnt = debezium.learn_columns(frame_of(spark, wrapped(both, "c", {"id": 2, "channel": "app"}, 5)))
    late = frame_of(spark, wrapped(old, "c", {"id": 1, "gone": "g"}, 1))
    learnt = debezium.learn_columns(late, learnt)
    (row,) = debezium.changes(late, learnt).collect()
    assert (row["id"], row["gone"], row["channel"]) == (1, "g", "web")
    # A column that was dropped is no column of the changes from then on, as in a query that was started again.
    learnt = debezium.learn_columns(frame_of(spark, wrapped(new, "c", {"id": 3}, 9)), learnt)
    assert list(learnt.fields) == ["id", "channel"]
    # Nor is it in the way of another one of its name.
    again = [*new, field("gone", "int32")]
    learnt = debezium.learn_columns(frame_of(spark, wrapped(again, "c", {"id": 4}, 10)), learnt)
    assert learnt.fields["gone"].data_type == T.IntegerType()


def test_a_truncate_that_comes_first_tells_no_keys(spark):
    truncate = wrapped([ID], "t", None, 1, key=None)
    learnt = debezium.learn_columns(frame_of(spark, truncate))
    assert (list(learnt.fields), learnt.keys) == (["id"], None)
    assert debezium.changes(frame_of(spark, truncate), learnt, ["id"]).first()["_change"]["op"] == "t"
    (change,) = debezium.changes(frame_of(spark, truncate)).collect()
    assert (change["id"], change["_change"]["op"], change["_change"]["error"]) == (None, "t", None)
    with pytest.raises(ConfigError, match="no record tells the keys"):
        debezium.table_schema(frame_of(spark, truncate))
    row = wrapped([ID], "c", {"id": 1}, 2)
    assert debezium.learn_columns(frame_of(spark, row), learnt).keys == ("id",)
    keyless = wrapped([ID], "c", {"id": 1}, 2, key=None)
    assert debezium.learn_columns(frame_of(spark, truncate, keyless)).keys == ()


@pytest.mark.long
@pytest.mark.any_strategy
def test_a_log_learnt_batch_by_batch_makes_the_database_s_own_table(spark, create_table, deletion_vectors):
    """The log has an ALTER TABLE ... ADD COLUMN channel NOT NULL DEFAULT 'web', and comes as foreachBatch gets it."""
    path = create_table(COLUMNS["orders"], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=KEYS["orders"], **debezium.MERGE_OPTIONS)
    records = read_records(spark, CAPTURES / "small-schema", "orders").persist()
    # The third partition is the slow one: in the last batch it has records of before the ALTER TABLE.
    of_slow, of_others = (f"IF(offset < {a}, 0, IF(offset < {b}, 1, 2))" for a, b in ((10, 20), (60, 140)))
    places = f"IF(partition = 2, {of_slow}, {of_others})"
    learnt = None
    for number in range(3):
        batch = records.where(F.expr(places) == number)
        learnt = debezium.learn_columns(batch, known=learnt)
        changes = debezium.changes(batch, learnt)
        sink.merge(changes)
    assert changes.where("channel IS NULL AND _change.op <> 'd'").isEmpty()
    records.unpersist()
    # Rows that were merged before the column was known.
    spark.sql(f"UPDATE delta.`{path}` SET channel = 'web' WHERE channel IS NULL")
    table = spark.read.format("delta").load(path).select(*T.StructType.fromDDL(COLUMNS["orders"]).names)
    assert canonical_rows((row.asDict() for row in table.collect()), **SHOP) == read_expected(
        CAPTURES / "small-schema", "orders"
    )
