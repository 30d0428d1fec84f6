"""Numbers of PostgreSQL that are none, or infinite, in each of the ways in which Debezium sends decimals."""

from __future__ import annotations

from contextlib import ExitStack
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import debezium
from tests.debezium.records import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.services.connect import Connect
    from tests.services.kafka import Kafka
    from tests.services.postgres import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.long]

MODES = ("precise", "string", "double")
VALUES = ("1.5", "NaN", "Infinity", "-Infinity")
"""Row 1 to 4 of the snapshot, row 5 to 8 of the log."""


@pytest.fixture(scope="module")
def records(spark: SparkSession, postgres: Postgres, kafka: Kafka, connect: Connect) -> dict[str, DataFrame]:
    """Return the records of a table with such numbers, by `decimal.handling.mode`."""
    inserts = [f"INSERT INTO t (n, d) VALUES ('{value}', '{value}')" for value in VALUES]
    found = {}
    with postgres.database("special") as database:
        database.execute("CREATE TABLE t (id serial PRIMARY KEY, n numeric, d double precision)", *inserts)
        prefixes = {mode: f"{database.name}_{mode}" for mode in MODES}
        with ExitStack() as connectors:
            for mode, prefix in prefixes.items():
                database.execute(f"CREATE PUBLICATION {prefix} FOR ALL TABLES")
                config = connect.debezium_config(
                    database, prefix, decimal_handling_mode=mode, value_converter_schemas_enable="false"
                )
                config["key.converter.schemas.enable"] = "false"
                connectors.enter_context(connect.connector(prefix, config))
            database.execute(*inserts)
            for prefix in prefixes.values():
                database.wait_until_read(prefix, timeout=90)
        for mode, prefix in prefixes.items():
            topic = f"{prefix}.public.t"
            rows = [(r.key, r.value, topic, r.partition, r.offset, None, 0, None) for r in kafka.read(topic)]
            found[mode] = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        kafka.delete_topics(*[name for name in kafka.topics() if database.name in name])
    return found


def decoded(records: DataFrame, kind: str, decimals: Any) -> list[tuple[Any, ...]]:
    """Return number, double and error of the rows, as they are in the snapshot and, which must be the same, in the
    log."""
    rows = debezium.changes(records, f"id INT, n {kind}, d DOUBLE", ["id"], decimals=decimals).orderBy("id").collect()
    assert [(row["id"], row["_change"]["op"]) for row in rows] == [(i + 1, "rrrrcccc"[i]) for i in range(8)]
    found = [(row["n"], row["d"], row["_change"]["error"]) for row in rows]
    assert repr(found[:4]) == repr(found[4:])
    return found[:4]


def column(kind: str, rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return the numbers; where there is none, what is said of it."""
    assert repr([row[1] for row in rows]) == repr([1.5, nan, inf, -inf])
    prefix = f"n is not a valid {kind.lower()}: "
    return [row[0] if row[2] is None else row[2].replace(prefix, "? ") for row in rows]


@pytest.mark.parametrize(
    ("decimals", "kind", "expected"),
    [
        # The connector itself sends NULL.
        ("precise", "DECIMAL(10,2)", ["1.50", None, None, None]),
        ("string", "DECIMAL(10,2)", ["1.50", "? NAN", "? POSITIVE_INFINITY", "? NEGATIVE_INFINITY"]),
        ("string", "DOUBLE", [1.5, nan, inf, -inf]),
        ("string", "STRING", ["1.5", "NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY"]),
        ("string", "BIGINT", ["? 1.5", "? NAN", "? POSITIVE_INFINITY", "? NEGATIVE_INFINITY"]),
        ("double", "DECIMAL(10,2)", ["1.50", "? NaN", "? Infinity", "? -Infinity"]),
        ("double", "DOUBLE", [1.5, nan, inf, -inf]),
        ("double", "STRING", ["1.5", "NaN", "Infinity", "-Infinity"]),
    ],
)
def test_a_number_that_the_column_cannot_hold_is_reported(
    records: dict[str, DataFrame], decimals: str, kind: str, expected: list[Any]
) -> None:
    found = column(kind, decoded(records[decimals], kind, decimals))
    if kind.startswith("DECIMAL"):
        found = [None if value is None else str(value) for value in found]
    assert repr(found) == repr(expected)
