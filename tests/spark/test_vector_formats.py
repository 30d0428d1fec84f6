"""Deletion vectors as Delta's own code writes them, in each of its formats."""

import pytest

from stream_merge.bridge.jvm import java_class, scala_object
from stream_merge.table.deletion_vectors import deserialize

PACKAGE = "org.apache.spark.sql.delta.deletionvectors"
# Rows in three segments of 32 bits, the second of which has none.
ROWS = [0, 1, 2, 1000, 70_000, 2**33 + 5, 2**33 + 100_000]


@pytest.mark.parametrize("name", ["Native", "Portable"])
def test_what_delta_writes_is_read(spark, name):
    bitmap = java_class(spark._jvm, f"{PACKAGE}.RoaringBitmapArray")()
    for row in ROWS:
        bitmap.add(row)
    form = getattr(scala_object(spark._jvm, f"{PACKAGE}.RoaringBitmapArrayFormat"), name)()
    assert list(deserialize(bytes(bitmap.serializeAsByteArray(form)))) == ROWS
