"""Logs of a real MariaDB, by Debezium's connector for it, and of a MySQL: they give the database's own contents.

The load has every type with its extremes, odd names, keys of many types, key changes, deletes and inserts of one key in
one transaction, rollbacks, statements of many rows, TRUNCATE, ALTER TABLE and seven binlog files. The snapshot was
taken while rows were written; the worker was killed with -9 and delivered events again; in the end came an incremental
snapshot.
"""

from collections import Counter

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge import debezium, merge_sink
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID, SEQUENCE
from stream_merge.sql import quote
from tests.debezium.captures import fold
from tests.debezium.mariadb import (
    COLUMNS,
    KEYS,
    MYSQL,
    PLAIN,
    SECOND_SNAPSHOT,
    WITH_SCHEMA,
    decode,
    own_rows,
    read_own,
    read_records,
    with_new_name,
)
from tests.debezium.test_merged_logs import batches_of

DELETED_IN_BETWEEN = '{"line": 1, "order_no": "o3", "qty": 1, "sku": null}'
KEYED = ["zoo", "accounts", "lines", "odd_keys", "odd_names", "altered", "wiped", "ci_keys"]


@pytest.mark.core
@pytest.mark.parametrize("table", KEYED)
def test_the_log_makes_the_database_s_own_tables(spark, table):
    rows = decode(spark, table).collect()
    assert own_rows(fold(rows, KEYS[table])) == read_own(PLAIN, table)


@pytest.mark.parametrize("table", ["t", "k"])
def test_the_log_of_mysql_makes_its_own_tables(spark, table):
    """MySQL 5.5, by the connector for MySQL: its messages are those of MariaDB's."""
    assert own_rows(fold(decode(spark, table, MYSQL).collect(), KEYS[table])) == read_own(MYSQL, table)


def test_a_snapshot_that_was_begun_anew_repairs_what_was_lost_in_between(spark):
    """The worker was killed before it had committed an offset, and the changes between it and the second snapshot were
    not sent."""
    own = read_own(SECOND_SNAPSHOT, "lines")
    rows = own_rows(fold(decode(spark, "lines", SECOND_SNAPSHOT).collect(), KEYS["lines"]))
    assert not own - rows
    # Of a row that was deleted in between nothing tells.
    assert rows - own == Counter([DELETED_IN_BETWEEN])
    before = decode(spark, "lines", SECOND_SNAPSHOT, snapshot_first=True).collect()
    assert len(own - own_rows(fold(before, KEYS["lines"]))) == 4


@pytest.mark.parametrize("table", ["zoo", "big_keys", "nokey", "altered"])
def test_columns_and_keys_are_learnt_from_the_messages(spark, table):
    records = read_records(spark, WITH_SCHEMA, table)
    schema = debezium.table_schema(records)
    assert [field.name for field in schema if not field.nullable] == [
        name for name in schema.names if name in KEYS[table]
    ]
    types = {field.name: field.dataType for field in schema}
    given = debezium.fields.resolve_columns(COLUMNS[table])
    expected = {name: field.data_type for name, field in given.items()}
    if table == "zoo":
        # BIGINT UNSIGNED with bigint.unsigned.handling.mode=precise; a FLOAT(7, 3) is a double, and points have their
        # coordinates.
        expected |= {"bu": T.DecimalType(20, 0), "ti": T.ShortType(), "f2": T.DoubleType(), "pt": types["pt"]}
        assert types["pt"].simpleString() == "struct<x:double,y:double,wkb:binary,srid:int>"
    if table == "altered":
        expected["doomed"] = T.IntegerType()
    assert types == expected
    if table != "nokey":
        changes = debezium.changes(records)
        if table == "altered":
            changes = with_new_name(changes).drop("doomed")
        assert own_rows(fold(changes.collect(), KEYS[table])) == read_own(WITH_SCHEMA, table)


@pytest.mark.parametrize(
    ("table", "number", "deletion_vectors"),
    [("accounts", 2, True), ("lines", 2, False)],
)
def test_batches_make_the_database_s_own_tables(spark, create_table, table, number, deletion_vectors):
    """Partitions are read at their own speeds, and a part of every batch comes twice."""
    sink, path = sink_of(create_table, table, deletion_vectors)
    changes = decode(spark, table).persist()
    try:
        for batch in batches_of(changes, number):
            sink.merge(batch)
        again = sink.merge(changes)
    finally:
        changes.unpersist()
    assert rows_of(spark, path) == read_own(PLAIN, table)
    assert (again.num_target_rows_inserted, again.num_target_rows_deleted) == (0, 0)


@pytest.mark.parametrize("table", ["odd_names", "nokey"])
def test_batches_in_any_order_make_the_database_s_own_tables(spark, create_table, table):
    sink, path = sink_of(create_table, table, True)
    changes = decode(spark, table).persist()
    number_of_batch = F.pmod(F.xxhash64("_change.partition", "_change.offset"), F.lit(2))
    try:
        for number in (1, 0, 1):
            sink.merge(changes.where(number_of_batch == number))
    finally:
        changes.unpersist()
    assert rows_of(spark, path) == read_own(PLAIN, table)


def test_what_the_connector_sends_of_values_that_it_cannot_send(spark):
    rows = {row["id"]: row for row in fold(decode(spark, "lossy").collect(), ["id"])}
    epoch, default = "1970-01-01 00:00:00", "2000-01-01"
    texts = {number: {name: str(value) for name, value in row.items()} for number, row in rows.items()}
    # Zero dates: NULL; where NOT NULL, the column's default or 1970. The log has the timestamp's 0, the snapshot its
    # default.
    for number, stamp, year in ((1, "None", "2000"), (11, epoch, "1900")):
        row = texts[number]
        assert [row[name] for name in ("da", "dann", "dt", "dtnn", "ts")] == ["None", default, "None", epoch, stamp]
        # YEAR 0000 is the server's zero year.
        assert row["y"] == year
    # Of years before 100 the time adjuster makes ones of this and the last century.
    assert [texts[2][name] for name in ("dt", "dtnn", "old")] == ["2001-01-01 00:00:00", epoch, "1999-12-31"]
    # A snapshot has the six digits of a FLOAT that the server prints.
    assert (rows[1]["f"], rows[11]["f"]) == (16777200.0, 16777216.0)
    # With the default bigint.unsigned.handling.mode, which is long, the values wrap around.
    assert [rows[number]["bu"] for number in (1, 2)] == [-1, -(2**63)]
    # replace.null.with.default of Kafka Connect's JsonConverter, which is on: NULL in a column that has a default.
    assert [rows[number]["nd"] for number in (1, 2, 11, 12)] == [5, 5, 5, 5]
    changes = debezium.changes(read_records(spark, WITH_SCHEMA, "lossy"))
    rows = {row["id"]: row for row in fold(changes.collect(), ["id"])}
    assert [rows[number]["nd"] for number in (1, 2, 11, 12)] == [None] * 4
    assert [str(rows[number]["bu"]) for number in (1, 2)] == ["18446744073709551615", "9223372036854775808"]


def test_what_a_foreign_key_does_to_other_rows_is_not_in_the_log(spark):
    rows = own_rows(fold(decode(spark, "child").collect(), ["id"]))
    surplus = Counter(rows)
    surplus.subtract(read_own(PLAIN, "child"))
    assert {text for text, times in surplus.items() if times > 0} == {
        '{"id": 1, "parent": 1}',  # ON DELETE CASCADE
        '{"id": 2, "parent": 1}',
        '{"id": 3, "parent": 2}',  # ON UPDATE SET NULL
    }


def sink_of(create_table, table, deletion_vectors):
    fields = debezium.fields.resolve_columns(COLUMNS[table])
    schema = ", ".join(f"{quote(name)} {field.data_type.simpleString()}" for name, field in fields.items())
    properties = {"delta.columnMapping.mode": "name"} if table == "odd_names" else None
    path = create_table(schema, deletion_vectors=deletion_vectors, properties=properties)
    if not KEYS[table]:
        return merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS), path
    return merge_sink(path, keys=KEYS[table], **debezium.MERGE_OPTIONS), path


def rows_of(spark, path):
    table = spark.read.format("delta").load(path).drop(SEQUENCE, COLUMN_SEQUENCES, ROW_ID)
    return own_rows(row.asDict() for row in table.collect())
