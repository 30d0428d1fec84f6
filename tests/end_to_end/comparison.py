"""A table of PostgreSQL and a Delta table, row for row, as text."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.services.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ROWS_SHOWN = 3
MAX_CHARACTERS_SHOWN = 400
OWN_COLUMNS = "_stream_merge_"
"""Beginning of the names of the columns that the sink adds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows that are in one of two tables alone, shortened, and how many are in the first."""

    num_rows: int
    missing: list[str]
    unexpected: list[str]

    @property
    def is_equal(self) -> bool:
        """Whether the tables have the same rows, each as often."""
        return not self.missing and not self.unexpected


def compare(expected: Counter[str], found: Counter[str]) -> Comparison:
    """Return how rows differ from those that are expected."""
    return Comparison(expected.total(), _shown(expected - found), _shown(found - expected))


def assert_equal_tables(spark: SparkSession, database: Database, folder: Path, tables: Iterable[str]) -> None:
    """Fail unless each table of the database has rows, and the Delta table of its name in the folder the same."""
    for table in tables:
        found = delta_rows(spark, str(folder / table), column_types(database, table))
        comparison = compare(database_rows(database, table), found)
        assert comparison.is_equal, f"{table} differs from the database: {comparison}"
        assert comparison.num_rows > 0, table


def _shown(rows: Counter[str]) -> list[str]:
    texts = sorted(rows.elements())
    more = [f"and {len(texts) - MAX_ROWS_SHOWN} more"] if len(texts) > MAX_ROWS_SHOWN else []
    return [text[:MAX_CHARACTERS_SHOWN] for text in texts[:MAX_ROWS_SHOWN]] + more


def column_types(database: Database, table: str) -> dict[str, str]:
    """Return PostgreSQL's types of a table's columns, in their order."""
    with database.connect() as connection:
        found = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (table,),
        )
        return dict(found.fetchall())


def database_rows(database: Database, table: str) -> Counter[str]:
    """Return the rows of a table of PostgreSQL."""
    types = column_types(database, table)
    with database.connect() as connection:
        rows = connection.execute(f'SELECT {", ".join(types)} FROM "{table}"').fetchall()
    return Counter(row_text(dict(zip(types, row, strict=True)), types) for row in rows)


def delta_rows(spark: SparkSession, path: str, types: dict[str, str]) -> Counter[str]:
    """Return the rows of a Delta table that was merged from a table of PostgreSQL with columns of these types.

    Raises:
        AssertionError: Its columns are other ones, beside those that the sink adds.
    """
    frame = spark.read.format("delta").load(path)
    names = [name for name in frame.columns if not name.startswith(OWN_COLUMNS)]
    assert sorted(names) == sorted(types)
    return Counter(row_text(row.asDict(), types) for row in frame.select(*types).collect())


def row_text(row: dict[str, Any], types: dict[str, str]) -> str:
    """Return a row as text that is the same for PostgreSQL's and for Spark's values."""
    return json.dumps({name: canonical(row[name], types[name]) for name in types}, ensure_ascii=False)


def canonical(value: Any, type_name: str) -> Any:
    """Return a value of a column of PostgreSQL, from there or from Spark, in the one form that stands for both."""
    if value is not None and type_name in ("json", "jsonb"):
        # Spark has the text.
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True, ensure_ascii=False)
    match value:
        case Decimal() | UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime():
            # Spark's have no zone, and the test session's is UTC.
            return (
                value.astimezone(timezone.utc).replace(tzinfo=None).isoformat() if value.tzinfo else value.isoformat()
            )
        case list():
            return [canonical(each, type_name) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
