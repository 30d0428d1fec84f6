"""A table whose LogStore lets writers overwrite each other's commits is refused before anything is written."""

from pathlib import Path

import pytest

from stream_merge import merge_router, merge_sink
from stream_merge.bridge.table import open_table
from stream_merge.errors import RouterError, UnsupportedTableError
from tests.spark.delta_log import latest_version

SCHEMA = "id INT, n INT"


@pytest.mark.core
def test_the_log_store_of_a_table(spark, create_table):
    table = open_table(spark, create_table(SCHEMA))
    assert table.scheme == "file"
    assert table.log_store == "io.delta.storage.HDFSLogStore"


@pytest.mark.core
def test_a_table_that_is_there(create_table, create_source, read_rows, single_driver_log_store):
    target = create_table(SCHEMA, [(1, 1)])
    version = latest_version(target)
    source = create_source(SCHEMA, [(1, 2)])
    with pytest.raises(
        UnsupportedTableError, match=r"its LogStore for file: is io\.delta\.storage\.S3SingleDriverLogStore"
    ):
        merge_sink(target, keys="id").merge(source)
    assert latest_version(target) == version
    merge_sink(target, keys="id", single_writer=True).merge(source)
    assert [tuple(row) for row in read_rows(target)] == [(1, 2)]


def test_a_table_that_would_be_made(table_path, create_source, read_rows, single_driver_log_store):
    source = create_source(SCHEMA, [(1, 2)])
    with pytest.raises(UnsupportedTableError, match="S3SingleDriverLogStore"):
        merge_sink(table_path, keys="id", create_if_missing=True).merge(source)
    assert not Path(table_path).exists()
    merge_sink(table_path, keys="id", create_if_missing=True, single_writer=True).merge(source)
    assert [tuple(row) for row in read_rows(table_path)] == [(1, 2)]


def test_a_table_of_the_catalog_that_would_be_made(spark, create_source, single_driver_log_store):
    with pytest.raises(UnsupportedTableError, match="S3SingleDriverLogStore"):
        merge_sink("not_made", keys="id", create_if_missing=True).merge(create_source(SCHEMA, [(1, 2)]))
    assert not spark.catalog.tableExists("not_made")


def test_the_sinks_of_a_router(create_table, create_source, single_driver_log_store):
    target = create_table(SCHEMA)
    router = merge_router({"a": merge_sink(target, keys="id")}, by="'a'")
    with pytest.raises(RouterError, match="S3SingleDriverLogStore"):
        router.merge(create_source(SCHEMA, [(1, 2)]))
