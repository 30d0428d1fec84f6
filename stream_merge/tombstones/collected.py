"""Writes tombstones that have come to the driver with the measures of the batch: without a Spark job.

Spark reads the files as if it had written them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_SPARK_VERSION = "org.apache.spark.version"
"""Without this entry Spark looks into its settings for the calendar of old dates."""


def is_writable(tombstones: Any) -> bool:
    """Whether collected tombstones are a table of types that Parquet has as well."""
    return tombstones is not None and all(_is_plain(field.type) for field in tombstones.schema)


def parquet_of(tombstones: Any, now_ms: int, spark_version: str) -> bytes:
    """Return the content of a Parquet file of tombstones, which get the time at which they are written.

    Args:
        tombstones: A table of them, which `is_writable`.
        now_ms: The current time, in milliseconds since the epoch.
        spark_version: The version of the Spark that they come from.
    """
    moments = pa.array([now_ms] * len(tombstones), pa.int64())
    table = tombstones.append_column("deleted_ms", moments)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_SPARK_VERSION: spark_version}), sink, store_schema=False)
    return bytes(sink.getvalue())


def _is_plain(data_type: Any) -> bool:
    if pa.types.is_struct(data_type):
        return all(_is_plain(field.type) for field in data_type)
    is_exact = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_date32,
    )
    if pa.types.is_timestamp(data_type):
        return bool(data_type.unit == "us")
    return any(is_type(data_type) for is_type in is_exact)
