"""Logs captured from a real PostgreSQL, the database's own contents, and a fold of decoded changes in plain Python."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "tests/data/debezium"
DEMO = ROOT / "demo/data"

COLUMNS = {
    "customers": "id BIGINT, name STRING, email STRING, address STRING, balance DECIMAL(12, 2), active BOOLEAN, "
    "created_at TIMESTAMP, updated_at TIMESTAMP, tags ARRAY<STRING>, phone STRING",
    "orders": "order_id STRING, customer_id BIGINT, status STRING, placed_at TIMESTAMP_NTZ, total DECIMAL(38, 10), "
    "note STRING, channel STRING",
    "order_items": "order_id STRING, line_no INT, sku STRING, qty BIGINT, price DECIMAL(10, 2)",
    "products": "sku STRING, title STRING, price DECIMAL(10, 2), photo BINARY, description STRING",
    "t": "id INT, v STRING",
}
KEYS = {
    "customers": ["id"],
    "orders": ["order_id"],
    "order_items": ["order_id", "line_no"],
    "products": ["sku"],
    "t": ["id"],
}

HEADERS = "headers ARRAY<ARRAY<STRING>>"
EVENT_SCHEMA = f"topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING, {HEADERS}"


def read_records(spark: SparkSession, directory: Path, table: str) -> DataFrame:
    """Return the records of one table as Spark's Kafka source gives them."""
    events = spark.read.schema(EVENT_SCHEMA).json(str(directory / "events.jsonl.gz"))
    return as_records(events.where(F.col("topic").endswith(f".{table}")))


def as_records(events: DataFrame) -> DataFrame:
    """Return captured events as Spark's Kafka source gives them."""
    headers = F.expr("transform(headers, pair -> named_struct('key', pair[0], 'value', CAST(pair[1] AS BINARY)))")
    return events.select(
        F.col("key").cast("binary"),
        F.col("value").cast("binary"),
        "topic",
        "partition",
        "offset",
        F.expr("timestamp_millis(timestamp)").alias("timestamp"),
        F.lit(0).alias("timestampType"),
        headers.alias("headers"),
    )


def read_expected(directory: Path, table: str) -> Counter[str]:
    """Return the rows that the database itself had in the end."""
    with gzip.open(directory / "expected" / f"{table}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        return Counter(_canonical_text(json.loads(line)) for line in lines)


def fold(rows: Iterable[Row], keys: list[str]) -> list[dict[str, Any]]:
    """Return the table that the changes make, in the order of `_change.sequence`."""
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    gone: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: tuple(row["_change"]["sequence"])):
        values, change = row.asDict(), row["_change"]
        assert change["error"] is None, change["error"]
        del values["_change"]
        key = _hashable(values[name] for name in keys)
        if change["op"] == "t":
            gone.update(table)
            table.clear()
        elif change["op"] == "d":
            assert change["key_only"]
            if key in table:
                gone[key] = table.pop(key)
        else:
            before = table.get(key)
            if change["old_key"] is not None:
                old = _hashable(change["old_key"])
                before = gone.get(old) or table.get(old)
            for name in change["unavailable"]:
                assert values[name] is None
                assert before is not None, f"no earlier value of {name} for {key}"
                values[name] = before[name]
            table[key] = values
    return list(table.values())


def _hashable(key: Iterable[Any]) -> tuple[Any, ...]:
    # PySpark 4.0 gives binary values as bytearray.
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in key)


def canonical_rows(rows: Iterable[dict[str, Any]], **converters: Callable[[Any], Any]) -> Counter[str]:
    """Return rows in the form that the database's contents have."""
    return Counter(
        _canonical_text({name: converters.get(name, _canonical)(value) for name, value in row.items()}) for row in rows
    )


def zoned(value: datetime | None) -> str | None:
    return None if value is None else value.strftime("%04Y-%m-%dT%H:%M:%S.%fZ")


def canonical_json(value: str | None) -> str | None:
    if value is None:
        return None
    return json.dumps(json.loads(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


SHOP = {"created_at": zoned, "updated_at": zoned, "address": canonical_json}


def _canonical(value: Any) -> Any:
    match value:
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime():
            return value.strftime("%04Y-%m-%dT%H:%M:%S.%f")
        case _:
            return value


def _canonical_text(row: dict[str, Any]) -> str:
    if row.get("total") is not None:  # Debezium drops the zeros at the end of a numeric without a scale
        row["total"] = format(Decimal(row["total"]).normalize(), "f")
    return json.dumps(row, sort_keys=True, ensure_ascii=False)
