"""Logs captured from a real MariaDB and a real MySQL: columns of each table, rows in the form of the database's
contents."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from stream_merge import debezium
from stream_merge.debezium import Field
from tests.debezium.captures import CAPTURES, EVENT_SCHEMA, as_records, canonical_rows, read_expected, zoned

PLAIN = CAPTURES / "mariadb"
WITH_SCHEMA = CAPTURES / "mariadb-schema"
SECOND_SNAPSHOT = CAPTURES / "mariadb-second-snapshot"
MYSQL = CAPTURES / "mysql"

MILLIS = "io.debezium.time.Timestamp"
MICROS = "io.debezium.time.MicroTimestamp"
SHAPE = "STRUCT<wkb: BINARY, srid: INT>"

COLUMNS: dict[str, dict[str, Any]] = {
    "zoo": {
        **dict.fromkeys(("id", "mi", "ii", "mu", "su"), "INT"),
        **dict.fromkeys(("flag", "b", "si", "tu"), "SMALLINT"),
        "ti": "TINYINT",
        **dict.fromkeys(("iu", "bi", "bu", "zf", "gv"), "BIGINT"),
        "d1": "DECIMAL(12, 2)",
        "d2": Field("STRING", "org.apache.kafka.connect.data.Decimal", scale=30),
        "d3": "DECIMAL(20, 0)",
        "f": "FLOAT",
        "f2": "FLOAT",
        "db": "DOUBLE",
        "bit1": "BOOLEAN",
        **{f"bit{length}": Field("STRING", "io.debezium.data.Bits", length=length) for length in (5, 12, 64)},
        **dict.fromkeys(("c", "vc", "l1", "u2", "sj", "vb", "tx", "tt", "mt", "lt", "se", "js", "gs", "nn"), "STRING"),
        **dict.fromkeys(("bin", "vbin", "bl", "tbl", "lbl"), "BINARY"),
        "da": "DATE",
        "dann": "DATE",
        **dict.fromkeys(("t0", "t3", "t6"), Field("STRING", "io.debezium.time.MicroTime")),
        **dict.fromkeys(("dt0", "dt3", "dtnn"), Field("TIMESTAMP_NTZ", MILLIS)),
        "dt6": Field("TIMESTAMP_NTZ", MICROS),
        **dict.fromkeys(("ts0", "ts3", "ts6", "tsnn"), "TIMESTAMP"),
        "y": "INT",
        "en": Field("STRING", "io.debezium.data.Enum"),
        "pt": SHAPE,
        "ge": SHAPE,
    },
    "lossy": {
        "id": "INT",
        "f": "FLOAT",
        "bu": "BIGINT",
        "da": "DATE",
        "dann": "DATE",
        "dt": Field("TIMESTAMP_NTZ", MILLIS),
        "dtnn": Field("TIMESTAMP_NTZ", MILLIS),
        "ts": "TIMESTAMP",
        "tsnn": "TIMESTAMP",
        "y": "INT",
        "old": "DATE",
        "nd": "INT",
    },
    "accounts": {
        "id": "INT",
        "name": "STRING",
        "balance": "DECIMAL(12, 2)",
        "note": "STRING",
        "seen": Field("TIMESTAMP_NTZ", MILLIS),
        "changed": "TIMESTAMP",
    },
    "lines": {"line": "INT", "order_no": "STRING", "sku": "STRING", "qty": "BIGINT"},
    "odd_keys": {
        "a": "BINARY",
        "b": "DATE",
        "c": "DECIMAL(8, 2)",
        "d": "STRING",
        "e": Field("TIMESTAMP_NTZ", MICROS),
        "f": Field("STRING", "io.debezium.data.Bits", length=3),
        "v": "INT",
    },
    "odd_names": {
        "the.key": "INT",
        "select": "STRING",
        "a b": "INT",
        "tick`s": "INT",
        "ü": "STRING",
        "CamelCase": "INT",
        "quote'\"": "INT",
        "op": "STRING",
        "before": "STRING",
    },
    "nokey": {
        "name": "STRING",
        "n": "INT",
        "at": Field("TIMESTAMP_NTZ", MILLIS),
        "bits": Field("STRING", "io.debezium.data.Bits", length=4),
        "amount": "DECIMAL(6, 2)",
        "blobby": "BINARY",
    },
    "big_keys": {"id": "DECIMAL(20, 0)", "v": "STRING"},
    "altered": {
        "first_one": "INT",
        "id": "INT",
        "a": "STRING",
        "renamed": "STRING",
        "b": "BIGINT",
        "added": "STRING",
    },
    "wiped": {"id": "INT", "v": "STRING"},
    "ci_keys": {"name": "STRING", "v": "INT"},
    "child": {"id": "INT", "parent": "INT"},
    # Of MySQL; those above are of MariaDB.
    "t": {
        **dict.fromkeys(("id", "y"), "INT"),
        "tu": "SMALLINT",
        "bu": "BIGINT",
        "d": "DECIMAL(12, 2)",
        "f": "FLOAT",
        "b5": Field("STRING", "io.debezium.data.Bits", length=5),
        "da": "DATE",
        "ti": Field("STRING", "io.debezium.time.MicroTime"),
        "dt": Field("TIMESTAMP_NTZ", MILLIS),
        "ts": "TIMESTAMP",
        "e": Field("STRING", "io.debezium.data.Enum"),
        **dict.fromkeys(("s", "v"), "STRING"),
        "bl": "BINARY",
        "g": SHAPE,
    },
    "k": {"a": "DECIMAL(8, 2)", "b": "BINARY", "v": "INT"},
}
KEYS = {
    **{table: ["id"] for table in ("zoo", "lossy", "accounts", "altered", "wiped", "child", "big_keys", "t")},
    "lines": ["order_no", "line"],
    "odd_keys": ["a", "b", "c", "d", "e", "f"],
    "odd_names": ["the.key", "select"],
    "nokey": [],
    "ci_keys": ["name"],
    "k": ["a", "b"],
}
TOPICS = {"odd_names": "we.ird_t_ble__"}
"""What Debezium makes of names that no topic can have: every other letter is an underscore."""


def read_records(spark: SparkSession, directory: Path, table: str) -> DataFrame:
    """Return the records of one table as Spark's Kafka source gives them."""
    events = spark.read.schema(EVENT_SCHEMA).json(str(directory / "events.jsonl.gz"))
    return as_records(events.where(F.col("topic").endswith(f".shop.{TOPICS.get(table, table)}")))


def decode(spark: SparkSession, table: str, directory: Path = PLAIN, **options: Any) -> DataFrame:
    """Return the changes of one table; a column that was renamed has what was sent under either name."""
    changes = debezium.changes(read_records(spark, directory, table), COLUMNS[table], KEYS[table], **options)
    return with_new_name(changes) if table == "altered" else changes


def with_new_name(changes: DataFrame) -> DataFrame:
    """Return the changes of `altered` with one column for the one that was renamed."""
    return changes.withColumn("renamed", F.coalesce("renamed", "a")).drop("a")


def read_own(directory: Path, table: str) -> Counter[str]:
    """Return the database's rows; zero dates, which Debezium sends as NULL, are NULL."""
    rows: Counter[str] = Counter()
    for text, times in read_expected(directory, table).items():
        row = {name: None if str(value).startswith("0000-00-00") else value for name, value in json.loads(text).items()}
        rows[json.dumps(row, sort_keys=True, ensure_ascii=False)] += times
    return rows


def own_rows(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return rows in the form that the database's contents have."""
    times = dict.fromkeys(("ts0", "ts3", "ts6", "tsnn", "ts", "changed"), zoned)
    return canonical_rows(({name: _canonical(value) for name, value in row.items()} for row in rows), **times)


def _canonical(value: Any) -> Any:
    match value:
        case Row():
            # A point is sent with its coordinates, too.
            return {name: _canonical(value[name]) for name in ("wkb", "srid")}
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case date() if type(value) is date:
            return value.isoformat()
        case _:
            return value
