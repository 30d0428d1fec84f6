"""Which table features are maintained depends on the version of Spark, and which are added on the types of columns."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import types as T

from stream_merge.errors import UnsupportedTableError
from stream_merge.table.features import check_supported, properties_for_types

PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["variantType"]}


@pytest.mark.parametrize(
    ("version", "is_refused"), [("4.0.1", True), ("4.1.0", True), ("4.2.0", False), ("5.0", False)]
)
def test_variants_need_spark_4_2(monkeypatch, version, is_refused):
    """The reader of deletion vectors of older versions fails at one, when the table already has the rows."""
    monkeypatch.setattr(pyspark, "__version__", version)
    if is_refused:
        with pytest.raises(UnsupportedTableError, match="variantType"):
            check_supported("t", {}, PROTOCOL, {"fields": []})
    else:
        check_supported("t", {}, PROTOCOL, {"fields": []})


def test_a_field_that_is_called_like_a_type_is_none():
    def asks(kind):
        found = properties_for_types([T.LongType(), kind], {"writerFeatures": ["appendOnly"]})
        assert found in ({}, {"delta.feature.timestampNtz": "supported"})
        return bool(found)

    named = T.StructField("timestamp_ntz", T.IntegerType())
    assert not asks(T.ArrayType(T.StructType([named])))
    assert asks(T.ArrayType(T.StructType([named, T.StructField("at", T.TimestampNTZType())])))
    assert asks(T.MapType(T.StringType(), T.TimestampNTZType()))
    assert properties_for_types([T.TimestampNTZType()], {"writerFeatures": ["timestampNtz"]}) == {}
