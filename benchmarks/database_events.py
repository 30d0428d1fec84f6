"""A made-up database of many tables: its changes as Debezium's records, and the rows that the tables must then have.

The tables take turns in their keys (one number, two columns, a text), and each has other types of columns, whose names
are no plain identifiers. Records have a schema part, so that one section of a pipeline with a pattern is enough.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TOPIC = "shop.public."
PATTERN = r"re:shop\.public\.(?P<table>\w+)"
"""The source of the one section that takes all tables."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", _HEADERS),
    ]
)
_KEYS: Sequence[dict[str, str]] = (
    {"id": "int64"},
    {"order id": "int64", "line`no": "int32"},
    {"Kürzel": "string"},
)
_NAMES = ("name", "Größe in m²", "note.text", 'say "hi"', "qty", "line`s", "Straße", "SELECT")
_KINDS = ("string", "int32", "double", "boolean")
_MAX_KEYS = 500
_DELETED = 0.05
_NULL = 0.1


@dataclass(slots=True)
class Table:
    """A table of the database.

    Attributes:
        name: Its name; the topic has a prefix.
        keys: Types of its key columns by name, as Debezium calls them.
        columns: Types of all columns by name.
        rows: Its rows by the values of the key.
    """

    name: str
    keys: dict[str, str]
    columns: dict[str, str]
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic of its changes."""
        return TOPIC + self.name


class Database:
    """The database, which is changed at random and remembers its rows.

    Args:
        num_tables: How many tables it has.
        seed: Of the changes.
    """

    def __init__(self, num_tables: int, seed: int = 1) -> None:
        self.tables = [_table(number) for number in range(num_tables)]
        self._random = random.Random(seed)
        self._position = 1000

    def change(self, tables: Iterable[Table], num_changes: int) -> list[tuple[Any, ...]]:
        """Change rows of each of some tables, and return the records in the order of `RECORD`."""
        return [self._change(table) for _ in range(num_changes) for table in tables]

    def _change(self, table: Table) -> tuple[Any, ...]:
        key = tuple(self._key(name, kind) for name, kind in table.keys.items())
        before = table.rows.get(key)
        self._position += 1
        if before is not None and self._random.random() < _DELETED:
            del table.rows[key]
            return record(table, self._position, key, "d", None)
        others = [kind for name, kind in table.columns.items() if name not in table.keys]
        row = (*key, *(None if self._random.random() < _NULL else self._value(kind) for kind in others))
        table.rows[key] = row
        return record(table, self._position, key, "c" if before is None else "u", row)

    def _key(self, name: str, kind: str) -> Any:
        number = self._random.randrange(_MAX_KEYS)
        if kind == "string":
            return f"ä{number:03d}"
        return number % 7 if name == "line`no" else number

    def _value(self, kind: str) -> Any:
        number = self._random.randrange(1_000_000)
        values = {"int32": number, "boolean": number % 2 == 0, "double": number / 8}
        return values.get(kind, f'it\'s "{number}",\nsaid Zoë')


def record(
    table: Table, position: int, key: tuple[Any, ...], operation: str, row: tuple[Any, ...] | None
) -> tuple[Any, ...]:
    """Return the record of a change, in the order of `RECORD`."""
    fields = [_field(name, kind) for name, kind in table.columns.items()]
    source = {"connector": "postgresql", "snapshot": "false", "lsn": position, "txId": position}
    source |= {"sequence": f'["{position}","{position}"]', "schema": "public", "table": table.name}
    parts = [
        {"type": "struct", "field": "after", "optional": True, "fields": fields},
        {"type": "string", "field": "op"},
        {"type": "struct", "field": "source", "fields": []},
    ]
    after = None if row is None else dict(zip(table.columns, row, strict=True))
    message = {"before": None, "after": after, "source": source, "op": operation, "ts_ms": position}
    key_fields = [_field(name, kind) for name, kind in table.keys.items()]
    return (
        _with_schema(key_fields, dict(zip(table.keys, key, strict=True))),
        _with_schema(parts, message),
        table.topic,
        0,
        position,
        position * 1_000_000,
        None,
    )


def write_file(path: Path, records: Sequence[tuple[Any, ...]], place: int) -> None:
    """Write records into a file that the file source takes in its place: it takes the oldest first."""
    columns = [pa.array(values, kind) for values, kind in zip(zip(*records, strict=True), _ARROW.types, strict=True)]
    made = path.with_name(f".{path.name}")
    pq.write_table(pa.Table.from_arrays(columns, schema=_ARROW), made)
    os.utime(made, (1_700_000_000 + place, 1_700_000_000 + place))
    made.rename(path)


def _table(number: int) -> Table:
    keys = _KEYS[number % len(_KEYS)]
    # The digits of the number choose the types, so that no two tables are alike, and need the same compiled code.
    digits = [number // len(_KINDS) ** place % len(_KINDS) for place in range(4)]
    kinds = ["string", *(_KINDS[digit] for digit in digits), *["double"] * (number % 4)]
    return Table(name=f"t{number:03d}", keys=keys, columns={**keys, **dict(zip(_NAMES, kinds, strict=False))})


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"type": kind, "field": name, "optional": True}


def _with_schema(fields: list[dict[str, Any]], payload: Any) -> bytes:
    schema = {"type": "struct", "fields": fields, "optional": False}
    return json.dumps({"schema": schema, "payload": payload}, ensure_ascii=False).encode()
