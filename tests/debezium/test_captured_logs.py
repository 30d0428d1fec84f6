"""Real logs: decoded by Spark, folded in plain Python, they give the database's own contents."""

import pytest
from pyspark.sql import types as T

from stream_merge import debezium
from tests.debezium.captures import (
    CAPTURES,
    COLUMNS,
    DEMO,
    KEYS,
    SHOP,
    canonical_rows,
    fold,
    read_expected,
    read_records,
)


def columns_of(table):
    """Return the columns; the rows that were there when orders got its channel have its default."""
    if table != "orders":
        return COLUMNS[table]
    types = {field.name: field.dataType for field in T.StructType.fromDDL(COLUMNS["orders"])}
    return {**types, "channel": debezium.Field("STRING", default="web")}


def decode(spark, directory, table, **options):
    records = read_records(spark, directory, table)
    return debezium.changes(records, columns_of(table), KEYS[table], **options)


@pytest.mark.core
@pytest.mark.parametrize("table", ["customers", "orders", "order_items", "products"])
def test_messages_with_schemas_make_the_database_s_own_tables(spark, table):
    directory = CAPTURES / "small-schema"
    rows = decode(spark, directory, table).collect()
    assert canonical_rows(fold(rows, KEYS[table]), **SHOP) == read_expected(directory, table)


@pytest.mark.parametrize("table", ["customers", "orders", "products"])
def test_flattened_events_make_the_database_s_own_tables(spark, table):
    directory = CAPTURES / "small-flat"
    rows = decode(spark, directory, table).collect()
    assert canonical_rows(fold(rows, KEYS[table]), **SHOP) == read_expected(directory, table)


def test_flattening_loses_truncate_and_nothing_else(spark):
    directory = CAPTURES / "small-flat"
    rows = fold(decode(spark, directory, "order_items").collect(), KEYS["order_items"])
    surplus = canonical_rows(rows)
    surplus.subtract(read_expected(directory, "order_items"))
    assert {count for count in surplus.values() if count} == {1}
    assert sum(surplus.values()) == 429


@pytest.mark.slow
@pytest.mark.parametrize("table", ["customers", "orders", "order_items"])
def test_a_log_that_is_redelivered_makes_the_database_s_own_tables(spark, table):
    rows = decode(spark, DEMO, table).collect()
    assert canonical_rows(fold(rows, KEYS[table]), **SHOP) == read_expected(DEMO, table)


@pytest.mark.core
def test_a_snapshot_with_a_higher_position_than_a_later_change_does_not_revive_the_old_row(spark):
    directory = CAPTURES / "edge"
    rows = decode(spark, directory, "t").collect()
    assert canonical_rows(fold(rows, ["id"])) == read_expected(directory, "t")
    sequences = {(row["id"], row["_change"]["op"]): row["_change"]["sequence"] for row in rows}
    assert sequences[3, "r"] < sequences[3, "u"]
    assert sequences[3, "r"]["position"] > sequences[3, "u"]["position"]


@pytest.mark.parametrize("table", ["customers", "orders", "order_items", "products"])
def test_columns_and_keys_are_learnt_from_the_messages(spark, table):
    records = read_records(spark, CAPTURES / "small-schema", table)
    given = T.StructType.fromDDL(COLUMNS[table])
    schema = debezium.table_schema(records)
    expected = {field.name: field.dataType for field in given}
    if table == "orders":
        expected["total"] = T.StringType()  # numeric without a scale
    assert {field.name: field.dataType for field in schema} == expected
    assert [field.name for field in schema if not field.nullable] == KEYS[table]

    changes = debezium.changes(records)
    assert changes.columns == [*schema.names, "_change"]
    rows = fold(changes.collect(), KEYS[table])
    assert canonical_rows(rows, **SHOP) == read_expected(CAPTURES / "small-schema", table)
