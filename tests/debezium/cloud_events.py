"""CloudEvents as Debezium's CloudEventsConverter writes them: those of a captured log, and such of other envelopes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge import debezium
from tests.debezium.captures import CAPTURES, canonical_rows, read_expected, read_records, zoned

LOG = CAPTURES / "cloud-events"
COLUMNS: dict[str, Any] = {
    "customers": {
        "id": "BIGINT",
        "name": "STRING",
        "letter": "STRING",
        "balance": "DECIMAL(12, 2)",
        "photo": "BINARY",
        "seen": "TIMESTAMP",
        "born": "DATE",
        "tags": "ARRAY<STRING>",
        "kind": "INT",
        # Added when some records had been sent.
        "phone": debezium.Field("STRING", default="none"),
    },
    "lines": "order_id STRING, line_no INT, sku STRING, qty BIGINT",
    "visits": "page STRING, visitor STRING, seconds INT",
}
KEYS = {"customers": ["id"], "lines": ["order_id", "line_no"], "visits": []}


def read_events(spark: SparkSession, layout: str, table: str) -> DataFrame:
    """Return the records of one table of the captured log."""
    records = read_records(spark, LOG / layout, table)
    if layout != "avro":
        return records
    return records.withColumns({part: F.unbase64(F.col(part).cast("string")) for part in ("key", "value")})


def expected_rows(table: str) -> Counter[str]:
    """Return the rows that the database itself had in the end."""
    return read_expected(LOG, table)


def comparable(rows: DataFrame) -> DataFrame:
    """Return rows that Python can hold: an infinite time has no date in it."""
    if "seen" not in rows.columns:
        return rows
    is_infinite = F.expr("seen > '9999-12-31'")
    return rows.withColumn("seen_is_infinite", is_infinite).withColumn("seen", F.when(~is_infinite, F.col("seen")))


def canonical(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return rows in the form of the expected ones."""

    def day(value: date | None) -> str | None:
        return None if value is None else value.isoformat()

    return canonical_rows(rows, seen=zoned, born=day)


def event_of(message: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """Return the CloudEvent that the converter makes of an envelope, with or without a schema part."""
    body, data = message.get("payload", message), ("before", "after")
    images: dict[str, Any] = {name: body[name] for name in data}
    if "payload" in message:
        schema = message["schema"]
        fields = [member for member in schema["fields"] if member["field"] in data]
        images = {"schema": {**schema, "fields": fields}, "payload": images}
    source = body["source"]
    of_source = {
        "iodebezium" + "".join(each for each in name if each.isalnum()): str(value) if type(value) is int else value
        for name, value in source.items()
    }
    order = (body.get("transaction") or {}).get("total_order")
    return {
        "id": "name:shop;lsn:1",
        "source": f"/debezium/{source.get('connector')}/shop",
        "specversion": "1.0",
        "type": f"io.debezium.connector.{source.get('connector')}.DataChangeEvent",
        "time": "2026-11-27T00:00:00.000Z",
        "datacontenttype": "application/json",
        "iodebeziumop": body["op"],
        **of_source,
        "iodebeziumtxid": None,
        "iodebeziumtxtotalorder": None if order is None else str(order),
        **attributes,
        "data": images,
    }


def compact(message: dict[str, Any]) -> bytes:
    """Return JSON as the converter writes it."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
