"""Which log stores are refused: those with which two writers overwrite each other's commits."""

import pytest

from stream_merge.errors import UnsupportedTableError
from stream_merge.table.log_stores import CONDITIONAL_CREATE, check_log_store, find_log_store_fault

DELTA = "io.delta.storage."
OLD_DELTA = "org.apache.spark.sql.delta.storage."


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
@pytest.mark.parametrize("package", [DELTA, OLD_DELTA])
@pytest.mark.parametrize(
    "name", ["S3SingleDriverLogStore", "GCSLogStore", "HDFSLogStore", "AzureLogStore", "LocalLogStore"]
)
def test_what_is_refused_on_s3(scheme, package, name):
    fault = find_log_store_fault(scheme, package + name, single_writer=False)
    assert fault is not None
    for part in (package + name, f"spark.delta.logStore.{scheme}.impl", "single_writer=True"):
        assert part in fault
    assert find_log_store_fault(scheme, package + name, single_writer=True) is None


@pytest.mark.parametrize(
    "log_store", [CONDITIONAL_CREATE, f"{DELTA}S3DynamoDBLogStore", "com.example.S3SingleDriverLogStore"]
)
def test_what_is_trusted_on_s3(log_store):
    assert find_log_store_fault("s3a", log_store, single_writer=False) is None


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("file", "HDFSLogStore"), ("hdfs", "HDFSLogStore"), ("abfss", "AzureLogStore"), ("gs", "GCSLogStore")],
)
def test_the_defaults_elsewhere_are_trusted(scheme, name):
    assert find_log_store_fault(scheme, DELTA + name, single_writer=False) is None


def test_the_store_for_one_driver_is_so_everywhere():
    assert find_log_store_fault("file", f"{DELTA}S3SingleDriverLogStore", single_writer=False) is not None


def test_the_error_names_the_table():
    with pytest.raises(
        UnsupportedTableError, match=r"s3a://lake/orders: its LogStore for s3a: is io\.delta\.storage\.S3Single"
    ):
        check_log_store("s3a://lake/orders", "s3a", f"{DELTA}S3SingleDriverLogStore", single_writer=False)
