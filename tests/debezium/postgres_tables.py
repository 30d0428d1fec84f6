"""The tables of the log of odd tables in a real PostgreSQL: of all types, and with keys of all types."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.debezium.captures import CAPTURES
from tests.services.postgres import Database

CAPTURE = CAPTURES / "odd"
SETUP = (
    "CREATE EXTENSION IF NOT EXISTS hstore",
    "CREATE EXTENSION IF NOT EXISTS citext",
    "CREATE EXTENSION IF NOT EXISTS ltree",
    'CREATE SCHEMA IF NOT EXISTS "Odd Schema"',
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s \"happy\"', 'ü, {x}', '')",
    "CREATE DOMAIN text20 AS varchar(20)",
)
LEFT_OUT = ("hstore[]", "bytea[]")
"""Types of columns that are not created: nothing but their text tells their values."""


def odd_tables() -> dict[str, dict[str, Any]]:
    """Return the tables by their topics."""
    found: dict[str, dict[str, Any]] = json.loads((CAPTURE / "capture.json").read_text())["tables"]
    return found


def create(database: Database, table: Mapping[str, Any]) -> None:
    """Create a table and insert the rows that the database had in the end."""
    columns = {name: declared for name, declared in table["columns"].items() if declared not in LEFT_OUT}
    parts = [f"{quoted(name)} {declared}" for name, declared in columns.items()]
    if table["key"]:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, table['key']))})")
    name = f"{quoted(table['schema'])}.{quoted(table['table'])}"
    with gzip.open(CAPTURE / "expected" / f"{table['expected']}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    values = ", ".join(place(declared) for declared in columns.values())
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {name} ({', '.join(parts)})")
        for row in rows:
            connection.execute(f"INSERT INTO {name} VALUES ({values})", [given(row[column]) for column in columns])


def quoted(name: str) -> str:
    doubled = name.replace('"', '""').replace("%", "%%")
    return f'"{doubled}"'


def place(declared: str) -> str:
    """Return the SQL that makes a value of its text."""
    if declared == "bytea":
        return "decode(%s, 'base64')"
    if declared.endswith("[]"):
        return f"CAST(CAST(%s AS text[]) AS {declared})"
    return f"CAST(CAST(%s AS text) AS {declared})"


def given(value: Any) -> Any:
    """Return a value of the expected rows as a parameter."""
    if isinstance(value, dict):
        return ", ".join(f"{escaped(key)}=>{escaped(each)}" for key, each in value.items())
    return value


def escaped(text: str | None) -> str:
    """Return a text as hstore's."""
    return "NULL" if text is None else '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
