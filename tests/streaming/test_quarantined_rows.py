"""Which rows are set aside, with what reason, and what the quarantine table says of them."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge import debezium, merge_sink
from stream_merge.errors import NullKeyError
from tests.conftest import CreateTable
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record
from tests.debezium.records import SCHEMA as RECORDS
from tests.spark.tables import kept_frames
from tests.streaming.streams import SCHEMA, query_id, rows, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def reasons(spark: SparkSession, rejected: str):
    """Return a function that gives row and reason of all that is in quarantine; the row as the values of some
    columns."""

    def read(*columns: str) -> list[tuple[Any, ...]]:
        found = spark.read.format("delta").load(rejected).select("row", "reason").collect()
        return sorted(((*(json.loads(r)[c] for c in columns), reason) for r, reason in found), key=repr)

    return read


@pytest.fixture
def compiled(spark: SparkSession, request: pytest.FixtureRequest):
    """Run the test with expressions interpreted, as the other tests do, and compiled, as users do."""
    names = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = {name: spark.conf.get(name) for name in names}
    if request.param:
        spark.conf.set(names[0], "true")
        spark.conf.set(names[1], "FALLBACK")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.core
@pytest.mark.parametrize("compiled", [False, True], indirect=True, ids=["interpreted", "compiled"])
def test_every_reason(spark, create_table: CreateTable, create_source, rejected, reasons, compiled):
    target = create_table("id INT, qty INT, price DECIMAL(5, 2), name STRING NOT NULL", [(1, 0, None, "old")])
    batch = create_source(
        "id STRING, qty STRING, price STRING, name STRING, error STRING",
        [
            ("1", "5", "1.00", "updated", None),
            ("2", "0", None, "inserted", None),
            ("x", "1", "1.00", "", None),
            (None, "1", "1.00", "", None),
            ("3", "abc", "1.00", "", None),
            ("4", "99999999999", "1.00", "", None),
            ("5", "1", "1000.00", "", None),
            ("6", "1", "1.00", None, None),
            ("7", "-1", "1.00", "", None),
            ("8", None, "1.00", "", None),
            ("9", "1", "1.00", "", "no JSON: {"),
            ("10", "abc", "x" * 100, "", "no JSON"),
        ],
    )
    sink = merge_sink(
        target,
        keys="id",
        null_keys="quarantine",
        quarantine=rejected,
        error_column="error",
        expect={"not negative": "CAST(qty AS INT) >= 0", "small": "CAST(source.qty AS INT) < 1000 -- pieces"},
    )
    result = sink.merge(batch)

    assert rows(spark, target) == [(1, 5, Decimal("1.00"), "updated"), (2, 0, None, "inserted")]
    failed = "expectation not negative failed; expectation small failed"
    assert reasons("id") == sorted(
        [
            ("x", "id cannot be converted to INT: x"),
            (None, "NULL in a key (id)"),
            ("3", f"qty cannot be converted to INT: abc; {failed}"),
            ("4", f"qty cannot be converted to INT: 99999999999; {failed}"),
            ("5", "price cannot be converted to DECIMAL(5,2): 1000.00"),
            ("6", "name is NULL, which the target does not allow"),
            ("7", "expectation not negative failed"),
            ("8", failed),
            ("9", "no JSON: {"),
            (
                "10",
                "no JSON; qty cannot be converted to INT: abc; price cannot be converted to DECIMAL(5,2): "
                f"{'x' * 80}; {failed}",
            ),
        ],
        key=repr,
    )
    assert (result.num_quarantined_rows, result.num_source_rows) == (10, 2)
    assert not kept_frames(spark)


def test_a_row_with_a_null_key_alone_is_still_an_error_unless_told_otherwise(create_table, create_source, rejected):
    target = create_table(SCHEMA)
    sink = merge_sink(target, keys="id", quarantine=rejected, error_column="error")
    batch = create_source(f"{SCHEMA}, error STRING", [(None, 1, "bad"), (1, 1, None)])
    assert sink.merge(batch).num_quarantined_rows == 1
    with pytest.raises(NullKeyError, match="1 source row"):
        sink.merge(create_source(f"{SCHEMA}, error STRING", [(None, 1, None)]))


def test_deletes_need_only_their_key(spark, create_table: CreateTable, create_source, rejected, reasons):
    target = create_table("id INT, n INT, s INT", [(1, 1, 1), (2, 2, 1)])
    sink = merge_sink(
        target, keys="id", sequence_by="s", delete_when="op = 'd' OR CAST(op AS INT) > 1", quarantine=rejected
    )
    batch = create_source(
        "id BIGINT, n STRING, s BIGINT, op STRING",
        [
            (1, "no number", 2, "d"),
            (2, "no number", 2, "0"),
            (2**40, None, 2, "d"),
            (3, "3", 2**40, "d"),
            (4, "4", 2, "x"),
            (5, "5", 2, "0"),
        ],
    )
    sink.merge(batch)
    assert rows(spark, target) == [(2, 2, 1), (5, 5, 2)]
    found = dict(reasons("id"))
    assert sorted(found) == [2, 3, 4, 2**40]
    assert found[2] == "n cannot be converted to INT: no number"
    assert found[2**40] == f"id cannot be converted to INT: {2**40}"
    assert found[3] == f"s cannot be converted to INT: {2**40}"
    assert "op cannot be converted to BOOLEAN: x" in found[4]


def test_expectations_are_asked_of_what_a_change_sets(spark, create_table: CreateTable, rejected, reasons):
    """Not of deletes and TRUNCATEs, which carry nothing but their key and place, nor of values that were not sent."""
    path = create_table("id INT, price INT, notes STRING NOT NULL", [(1, 10, "one")])
    expect = {"priced": "price > 0", "noted": "length(source.notes) > price / 10", "known": "_change.op IN ('c', 'u')"}
    images = {
        20: ("t", None, None),
        21: ("c", {"id": 2, "price": 1, "notes": "two"}, None),
        22: ("u", {"id": 2, "price": 200, "notes": PLACEHOLDER}, None),
        23: ("c", {"id": 3, "price": 3, "notes": "three"}, None),
        24: ("d", None, {"id": 3}),
        25: ("c", {"id": 4, "price": 0, "notes": PLACEHOLDER}, None),
        26: ("c", {"id": 5, "price": 90, "notes": "short"}, None),
    }
    records = [
        record(
            {"id": (after or before or {}).get("id")},
            envelope(op, after, before, connector="postgresql", snapshot="false", lsn=lsn, txId=lsn),
            lsn,
        )
        for lsn, (op, after, before) in images.items()
    ]
    changes = debezium.changes(frame_of(spark, *records), "id INT, price INT, notes STRING", ["id"])
    sink = merge_sink(path, **debezium.MERGE_OPTIONS, keys="id", expect=expect, quarantine=rejected)
    assert sink.merge(changes).num_quarantined_rows == 2
    assert rows(spark, path, "id", "price", "notes") == [(2, 200, "two")]
    assert reasons("id") == [(4, "expectation priced failed"), (5, "expectation noted failed")]


def test_values_that_stay_as_they_are_are_not_expected(
    spark, create_table: CreateTable, create_source, rejected, reasons
):
    path = create_table("id INT, n INT, s STRING", [(1, 1, "a"), (2, 2, "b")])
    expect = {"n": "n IS NOT NULL", "s": "s IS NOT NULL"}
    sink = merge_sink(
        path, keys="id", ignore_null_updates="N", expect=expect, quarantine=rejected, delete_when="id = 2"
    )
    sink.merge(create_source("id INT, n INT, s STRING", [(1, None, "c"), (2, None, None), (3, 3, None)]))
    assert rows(spark, path) == [(1, 1, "c")]
    assert reasons("id") == [(3, "expectation s failed")]


@pytest.mark.parametrize("has_key", [True, False], ids=["lean options", "without a key"])
def test_a_truncate_is_no_row_of_the_table(spark, create_table: CreateTable, create_source, rejected, has_key):
    path = create_table("id INT NOT NULL, n INT NOT NULL")
    shared = {"sequence_by": "seq", "delete_when": "op = 'd'", "truncate_when": "op = 't'", "quarantine": rejected}
    options = {"keys": "id"} if has_key else {"before": "old", "except_columns": ["old", "seq", "op"]}
    sink = merge_sink(path, **shared, **options)
    source = create_source(
        "id STRING, n INT, old STRUCT<id: INT, n: INT>, seq INT, op STRING",
        [("1", 1, None, 1, "c"), (None, None, None, 2, "t"), ("3", 3, None, 3, "c")],
    )
    assert sink.merge(source).num_quarantined_rows == 0
    assert rows(spark, path, "id", "n") == [(3, 3)]


def test_a_sequence_that_cannot_be_computed(spark, create_table: CreateTable, create_source, rejected, reasons):
    target = create_table(SCHEMA)
    sink = merge_sink(
        target, keys="id", sequence_by="CAST(at AS TIMESTAMP)", tombstone_retention=timedelta(0), quarantine=rejected
    )
    for day in ("02", "01", "03"):
        sink.merge(create_source("id INT, n INT, at STRING", [(1, int(day), f"2026-01-{day}"), (2, 2, "tomorrow?")]))
    assert [(row.id, row.n) for row in spark.read.format("delta").load(target).collect()] == [(1, 3)]
    assert reasons("id") == [(2, "the sequence cannot be computed: CAST(at AS TIMESTAMP)")] * 3


def test_clauses_of_ones_own(spark, create_table: CreateTable, create_source, rejected, reasons):
    """A value that a clause may take must be there, unless the clause's condition on the source rules the row out."""
    target = create_table("id INT, n INT, at STRUCT<x: INT, y: ARRAY<INT>>", [(1, 1, None), (2, 2, None)])
    sink = (
        merge_sink(target, on="target.id = source.key + 1", quarantine=rejected)
        .when_matched_delete(condition="source.op = 'd'")
        .when_matched_update(set={"n": "target.n + source.a / source.b", "at": "source.at"})
        .when_not_matched_insert(values={"id": "source.key + 1", "n": "source.a DIV source.b"})
    )
    batch = create_source(
        "key INT, op STRING, a INT, b INT, at STRUCT<x: STRING, y: ARRAY<STRING>>",
        [
            (0, "u", 4, 2, ("1", ["2"])),
            (1, "d", 0, 1, ("x", [])),
            (7, "u", 1, 0, None),
            (8, "u", 1, 1, ("1", ["2", "three"])),
            (2**31 - 1, "u", 1, 1, None),
            (9, "u", 9, 3, None),
        ],
    )
    sink.merge(batch)
    assert [(row.id, row.n, row["at"] and tuple(row["at"])) for row in _ordered(spark, target)] == [
        (1, 3, (1, [2])),
        (10, 3, None),
    ]
    found = dict(reasons("key"))
    assert sorted(found) == [7, 8, 2**31 - 1]
    assert found[7] == "n: a, b cannot be converted to INT"
    assert found[8] == "at cannot be converted to STRUCT<x: INT, y: ARRAY<INT>>: {1, [2, three]}"
    assert found[2**31 - 1] == "id: key cannot be converted to INT: 2147483647"


def _ordered(spark, path):
    return spark.read.format("delta").load(path).orderBy("id").collect()


def test_with_clauses_a_sequence_may_have_any_bytes(spark, create_table: CreateTable, rejected):
    """It decides inside the batch alone, so that nothing of it is kept as JSON."""
    target = create_table("id INT, s STRING")
    sink = merge_sink(target, keys="id", sequence_by="s", quarantine=rejected).when_not_matched_insert_all()
    result = sink.merge(spark.sql("SELECT 1 id, CAST(x'FF' AS STRING) s UNION ALL SELECT 1, 'a'"))
    assert result.num_quarantined_rows == 0
    (row,) = spark.read.format("delta").load(target).selectExpr("CAST(s AS BINARY)").collect()
    assert bytes(row["s"]) == b"\xff"


def test_odd_column_names(spark, create_table: CreateTable, create_source, rejected, reasons):
    columns = "`The Key` INT, `a.b` INT, `Umlaut ä` STRING"
    target = create_table(columns, properties={"delta.columnMapping.mode": "name"})
    sink = merge_sink(
        target,
        keys="the key",
        null_keys="quarantine",
        quarantine=rejected,
        error_column="a.b error",
        expect={"it's `odd`": "`tick``ed` > 0"},
    )
    # Delta's MERGE * takes no target columns with back quotes.
    types = "`The Key` INT, `a.b` STRING, `tick``ed` INT, `Umlaut ä` STRING, `a.b error` STRING"
    sink.merge(
        create_source(
            types,
            [
                (1, "1", 1, "good", None),
                (None, "1", 1, "key", None),
                (2, "b", 1, "cast", None),
                (3, "1", 0, "expectation", None),
                (4, "1", 1, "error", "undecodable"),
            ],
        )
    )
    assert rows(spark, target) == [(1, 1, "good")]
    assert reasons("Umlaut ä") == [
        ("cast", "a.b cannot be converted to INT: b"),
        ("error", "undecodable"),
        ("expectation", "expectation it's `odd` failed"),
        ("key", "NULL in a key (the key)"),
    ]


@pytest.mark.core
def test_the_row_keeps_values_of_every_type(spark, create_table: CreateTable, rejected):
    target = create_table("id INT")
    values = {
        "tiny": ("CAST(-1 AS TINYINT)", -1),
        "big": ("9223372036854775807", 2**63 - 1),
        "float": ("CAST('NaN' AS FLOAT)", "NaN"),
        "infinite": ("array(double('-Infinity'), 0.1D)", ["-Infinity", 0.1]),
        "decimal": ("CAST('12345678901234567890123456.123456789012' AS DECIMAL(38, 12))", None),
        "binary": ("X'00FF'", "AP8="),
        "is_true": ("true", True),
        "text": ("'quote \" and \\n line'", 'quote " and \n line'),
        "at": ("TIMESTAMP'2026-01-01 00:00:00.123456+01:00'", "2025-12-31T23:00:00.123456Z"),
        "ntz": ("TIMESTAMP_NTZ'2026-01-01 00:00:00.000001'", "2026-01-01T00:00:00.000001"),
        "before_christ": ("DATE'-0044-03-15'", "-0044-03-15"),
        "day_time": ("INTERVAL '1 2' DAY TO HOUR", "INTERVAL '1 02' DAY TO HOUR"),
        "year_month": ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH"),
        "calendar": ("make_interval(1, 2, 0, 3)", "1 years 2 months 3 days"),
        "variant": ("""parse_json('{"a": [1, null]}')""", {"a": [1, None]}),
        "nothing": ("NULL", None),
        "by_name": ("map('a', 1, 'b', NULL)", {"a": 1, "b": None}),
        "by_date": ("map(DATE'2026-01-01', X'01')", [{"key": "2026-01-01", "value": "AQ=="}]),
        "by_binary": ("map(X'00FF', 1)", [{"key": "AP8=", "value": 1}]),
        "by_struct": (
            "map(named_struct('x', 1), array(map(2, 3)))",
            [{"key": {"x": 1}, "value": [[{"key": 2, "value": 3}]]}],
        ),
        "deep": (
            "named_struct('m', map('k', map(1.5, 'v')), 'n', NULL)",
            {"m": {"k": [{"key": 1.5, "value": "v"}]}, "n": None},
        ),
        "no_struct": ("CAST(NULL AS STRUCT<m: MAP<INT, INT>>)", None),
        "no_text": ("CAST(NULL AS STRING)", None),
        "latin": ("CAST(X'6DFC' AS STRING)", "base64:bfw="),
        "collated": ("'Straße' COLLATE UTF8_LCASE", "Straße"),
        "deep_texts": (
            "map('k', array(named_struct('t', CAST(X'FF' AS STRING)), named_struct('t', 'é'), NULL))",
            {"k": [{"t": "base64:/w=="}, {"t": "é"}, None]},
        ),
    }
    batch = spark.range(1).select(
        F.lit(None).cast("int").alias("id"), *[F.expr(sql).alias(name) for name, (sql, _) in values.items()]
    )
    sink = merge_sink(target, keys="id", null_keys="quarantine", quarantine=rejected)
    assert sink.merge(batch).num_quarantined_rows == 1
    [(text,)] = spark.read.format("delta").load(rejected).select("row").collect()
    assert '"decimal":12345678901234567890123456.123456789012' in text
    row = json.loads(text)
    assert list(row) == ["id", *values]
    for name, (_, expected) in values.items():
        if name != "decimal":
            assert row[name] == expected, name


def test_where_a_row_came_from(spark, create_table: CreateTable, rejected):
    target = create_table("id INT, value STRING")
    records = spark.createDataFrame(
        [(None, b'{"id": ', "shop", 3, 2**40), (None, b"\xff\x00", "shop", 4, 1), (1, b"{}", "shop", 5, 2)],
        "id INT, value BINARY, topic STRING, partition INT, Offset BIGINT",
    )
    merge_sink(target, keys="id", null_keys="quarantine", quarantine=rejected).merge(records)
    # Columns of the same names that are no record's.
    others = spark.createDataFrame(
        [(None, 1.5, 7, "left", "far")], "id INT, value DOUBLE, topic INT, partition STRING, offset STRING"
    )
    merge_sink(target, keys="id", null_keys="quarantine", quarantine=rejected).merge(others)
    found = spark.read.format("delta").load(rejected)
    assert sorted(map(tuple, found.select("topic", "partition", "offset", "value").collect()), key=repr) == [
        ("shop", 3, 2**40, '{"id": '),
        ("shop", 4, 1, "/wA="),
        (None, None, None, None),
    ]
    assert found.where("batch_id IS NULL AND app_id IS NULL").count() == 3, "outside a stream"


@pytest.mark.core
def test_records_that_debezium_did_not_write(spark, create_table: CreateTable, checkpoint, tmp_path, rejected):
    """From the topic to both tables: malformed, of an unknown kind, without a key, with a value that does not fit."""
    records = [
        record({"id": 1}, envelope("c", {"id": 1, "n": 1}), 0),
        record({"id": 2}, b'{"op": "c", "after"', 1),
        record({"id": 3}, {"hello": "world"}, 2),
        record(None, envelope("d", None, {"id": 4, "n": 1}), 3),
        record({"id": 5}, envelope("c", {"id": 5, "n": "many"}), 4),
        record({"id": 6}, b'{"op": "\xff"}', 5),
        record({"id": 7}, envelope("c", {"id": 7, "n": -7}), 6),
        record({"id": 8}, envelope("c", {"id": 8, "n": 8}), 7),
    ]
    frame_of(spark, *records).write.parquet(str(tmp_path / "topic"))
    stream = spark.readStream.schema(RECORDS).parquet(str(tmp_path / "topic"))
    changes = debezium.changes(stream, "id BIGINT, n INT", ["id"])
    target = create_table("id BIGINT, n INT")
    sink = merge_sink(
        target,
        keys="id",
        sequence_by="_change.sequence",
        delete_when="_change.op = 'd'",
        quarantine=rejected,
        null_keys="quarantine",
        error_column="_change.error",
        expect={"not negative": "n IS NULL OR n >= 0"},
    )
    run(changes, sink, checkpoint)

    assert [tuple(row)[:2] for row in _ordered(spark, target)] == [(1, 1), (8, 8)]
    table = spark.read.format("delta").load(rejected)
    found = table.orderBy("offset").select("offset", "topic", "partition", "value", "reason").collect()
    assert [(row.offset, row.topic, row.partition) for row in found] == [
        (offset, "shop.public.t", 0) for offset in range(1, 7)
    ]
    assert [row.value for row in found] == [
        '{"op": "c", "after"',
        '{"hello": "world"}',
        json.dumps(envelope("d", None, {"id": 4, "n": 1})),
        json.dumps(envelope("c", {"id": 5, "n": "many"})),
        "eyJvcCI6ICL/In0=",
        None,
    ]
    expected = (
        'the value is not the JSON of a change: {"op": "c", "after"',
        "neither an envelope nor a flattened event",
        "key column id is missing; NULL in a key (id)",
        "n is not a valid int: many",
        "the value is not UTF-8",
        "expectation not negative failed",
    )
    for row, reason in zip(found, expected, strict=True):
        assert row.reason.startswith(reason)
    assert {tuple(row) for row in table.select("batch_id", "app_id", "target").collect()} == {
        (0, query_id(checkpoint), target)
    }
