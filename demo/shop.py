"""The captured database: its tables, and the Spark SQL that turns Debezium's records into rows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

RECORD_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, "
    "key STRING, value STRING, headers ARRAY<ARRAY<STRING>>"
)
"""What Spark's Kafka source gives, with text in place of bytes."""

UNAVAILABLE = "__debezium_unavailable_value"
"""What PostgreSQL's log has in place of a large value that an update left as it was."""

OLD_KEY = "get(filter(headers, header -> header[0] = '__debezium.oldkey'), 0)[1]"
"""SQL for the old primary key in the record that creates a row anew under another one."""


def decimal_of_bytes(value: str, *, scale: str) -> str:
    """Return SQL for the text of a decimal: base64 of a big-endian integer of up to 16 bytes, signed, and its scale."""
    digits = f"hex(unbase64({value}))"
    sign = f"IF({digits} >= '8', 'F', '0')"
    high = f"CAST(conv(left(lpad({digits}, 32, {sign}), 16), 16, -10) AS DECIMAL(20))"
    low = f"CAST(conv(right(lpad({digits}, 32, {sign}), 16), 16, 10) AS DECIMAL(20))"
    return f"CAST({high} * 18446744073709551616BD + {low} AS STRING) || 'E-' || {scale}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTable:
    """One table of the captured database.

    Attributes:
        name: Its name, the last part of its topic's.
        keys: The columns of its primary key, with the types of the Delta table.
        image: Schema of a row as Debezium's JSON has it.
        columns: The other columns of the Delta table: type, and SQL over `image` and `key`.
        placeholders: SQL of what stands for an unavailable value, for the columns whose values may be.
        has_deletion_vectors: Whether the Delta table is made with deletion vectors.
    """

    name: str
    keys: Mapping[str, str]
    image: str
    columns: Mapping[str, tuple[str, str]]
    placeholders: Mapping[str, str]
    has_deletion_vectors: bool

    @property
    def schema(self) -> str:
        """Schema of the Delta table; `lsn` is the position in PostgreSQL's log of the change that made the row."""
        types = {**self.keys, **{name: sql_type for name, (sql_type, _) in self.columns.items()}, "lsn": "BIGINT"}
        return ", ".join(f"{name} {sql_type}" for name, sql_type in types.items())


CUSTOMERS = CapturedTable(
    name="customers",
    keys={"id": "BIGINT"},
    image=(
        "name STRING, email STRING, address STRING, balance STRING, active BOOLEAN, "
        "created_at STRING, updated_at STRING, tags ARRAY<STRING>, phone STRING"
    ),
    columns={
        "name": ("STRING", "image.name"),
        "email": ("STRING", "image.email"),
        # A delete sends no values beside the key.
        "address": ("STRING", f"IF(op = 'd', '{UNAVAILABLE}', image.address)"),
        "balance": ("DECIMAL(12, 2)", decimal_of_bytes("image.balance", scale="2")),
        "active": ("BOOLEAN", "image.active"),
        "created_at": ("TIMESTAMP", "image.created_at"),
        "updated_at": ("TIMESTAMP", "image.updated_at"),
        "tags": ("ARRAY<STRING>", f"IF(op = 'd', array('{UNAVAILABLE}'), image.tags)"),
        "phone": ("STRING", "image.phone"),
    },
    placeholders={"address": f"'{UNAVAILABLE}'", "tags": f"array('{UNAVAILABLE}')"},
    has_deletion_vectors=True,
)
ORDERS = CapturedTable(
    name="orders",
    keys={"order_id": "STRING"},
    image=(
        "customer_id BIGINT, status STRING, placed_at BIGINT, total STRUCT<scale INT, value STRING>, "
        "note STRING, channel STRING"
    ),
    columns={
        "customer_id": ("BIGINT", "image.customer_id"),
        "status": ("STRING", "image.status"),
        "placed_at": ("TIMESTAMP_NTZ", "timestamp_micros(image.placed_at)"),
        "total": ("DECIMAL(38, 10)", decimal_of_bytes("image.total.value", scale="image.total.scale")),
        "note": ("STRING", "image.note"),
        # ADD COLUMN channel text NOT NULL DEFAULT 'web' sends no changes for the rows that are there.
        "channel": ("STRING", "IF(image IS NULL, NULL, coalesce(image.channel, 'web'))"),
    },
    placeholders={},
    has_deletion_vectors=True,
)
ORDER_ITEMS = CapturedTable(
    name="order_items",
    keys={"order_id": "STRING", "line_no": "INT"},
    image="sku STRING, qty BIGINT, price STRING",
    columns={
        "sku": ("STRING", "image.sku"),
        "qty": ("BIGINT", "image.qty"),
        "price": ("DECIMAL(10, 2)", decimal_of_bytes("image.price", scale="2")),
    },
    placeholders={},
    has_deletion_vectors=False,
)
CAPTURED_TABLES = {table.name: table for table in (CUSTOMERS, ORDER_ITEMS, ORDERS)}


def decode_changes(records: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes of one table: its columns, `op`, `lsn`, and `old_key` where a row got another primary key.

    `op` is Debezium's: r (snapshot), c, u, d, t (truncate). Snapshot rows get lsn 0: theirs may be higher than that of
    a later change, since the snapshot is taken while the log goes on. Tombstones, which follow deletes for Kafka's
    sake, are left out.
    """
    key = ", ".join(f"{name} {sql_type}" for name, sql_type in table.keys.items())
    value = f"op STRING, source STRUCT<lsn BIGINT>, after STRUCT<{table.image}>"
    return (
        records.where((F.col("topic") == f"shop.public.{table.name}") & F.col("value").isNotNull())
        .select(
            F.from_json("key", f"STRUCT<{key}>").alias("key"),
            F.from_json("value", value).alias("change"),
            F.from_json(F.expr(OLD_KEY), f"STRUCT<{key}>").alias("old_key"),
        )
        .select("key", "old_key", "change.op", "change.source.lsn", F.col("change.after").alias("image"))
        .select(
            *(F.col(f"key.{name}") for name in table.keys),
            *(F.expr(sql).cast(sql_type).alias(name) for name, (sql_type, sql) in table.columns.items()),
            F.expr("IF(op = 'r', 0, lsn)").alias("lsn"),
            "op",
            "old_key",
        )
    )
