"""Records written by hand, as Kafka has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from stream_merge import debezium

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
POSTGRES = {"connector": "postgresql", "snapshot": "false", "lsn": 100, "txId": 7}
PLACEHOLDER = "__debezium_unavailable_value"


def record(key: Any, value: Any, offset: int = 0, **headers: Any) -> tuple[Any, ...]:
    """Return a record; a key or value of bytes is taken as it is, any other is made JSON of."""
    pairs = [(name, _bytes(header)) for name, header in headers.items()] or None
    return (_bytes(key), _bytes(value), "shop.public.t", 0, offset, None, 0, pairs)


def envelope(op: str, after: Any = None, before: Any = None, **source: Any) -> dict[str, Any]:
    """Return a message of PostgreSQL's connector, unless `source` says other."""
    source = source or POSTGRES
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": 1}


def frame_of(spark: SparkSession, *records: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(records), SCHEMA).coalesce(1)


def decode(spark: SparkSession, *records: tuple[Any, ...], columns: Any, keys: Any, **options: Any) -> list[Row]:
    """Return the changes, in the order of the records."""
    return debezium.changes(frame_of(spark, *records), columns, keys, **options).collect()


def decode_values(spark: SparkSession, *cases: tuple[Any, Any], **options: Any) -> tuple[list[Any], Row]:
    """Return the decoded values of (field, value in the JSON), and the change that they are of."""
    fields = {f"x{number}": field for number, (field, _) in enumerate(cases)}
    values = {f"x{number}": value for number, (_, value) in enumerate(cases)}
    message = envelope("c", {"id": 1, **values})
    (row,) = decode(spark, record({"id": 1}, message), columns={"id": "INT", **fields}, keys=["id"], **options)
    return [row[name] for name in fields], row["_change"]


def base64_of(number: int) -> str:
    """Return an unscaled decimal as Kafka Connect writes it."""
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def with_schema(fields: list[Mapping[str, Any]], payload: Any) -> dict[str, Any]:
    """Return a message in which the converter has put the schema."""
    return {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": payload}


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
