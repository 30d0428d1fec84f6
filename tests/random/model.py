"""What a Delta table must hold: a plain model of its rows, its tombstones and the batches that it records."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_merge.column_names import SEQUENCE

Row = dict[str, Any]


def place(value: Any) -> tuple[Any, ...]:
    """Return what orders a value as Spark does: NULL first, NaN last, text by its bytes."""
    match value:
        case None:
            return (0,)
        case float():
            return (1, math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
        case str():
            return (1, value.encode())
        case _:
            return (1, value)


def exact(value: Any) -> str:
    """Return a text of a value and its Python type, which tells -0.0 from 0.0 and not NaN from NaN."""
    return f"{type(value).__name__} {value!r}"


def plain(value: Any) -> Any:
    """Return a value of Spark, a struct as a tuple."""
    return tuple(value) if isinstance(value, tuple) else value


def exact_rows(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Return rows as texts, in an order of their own."""
    return sorted(tuple(exact(value) for value in row.values()) for row in rows)


@dataclass
class TableModel:
    """A version of the table.

    Attributes:
        keys: The key columns.
        sequence: The columns of the source that make the sequence.
        columns: Names and SQL types of the table's columns.
        has_sequence: Whether the table keeps the sequence in its own columns.
        has_own: Whether the sink's column for it is there.
        rows: The rows.
        tombstones: Keys that were deleted, and the newest sequence of that.
        truncated: The sequence of the newest TRUNCATE.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    columns: dict[str, str]
    has_sequence: bool
    has_own: bool = False
    rows: list[Row] = field(default_factory=list)
    tombstones: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    truncated: tuple[Any, ...] | None = None

    def snapshot(self) -> TableModel:
        """Return a copy."""
        return copy.deepcopy(self)

    @property
    def names(self) -> list[str]:
        """All columns in their order."""
        return list(self.columns)

    def key(self, row: Row) -> tuple[Any, ...]:
        """Return what a row is known by."""
        return tuple(place(row[name]) for name in self.keys)

    def place_of(self, row: Row) -> tuple[Any, ...]:
        """Return the place of a row of the table in the order of changes."""
        if self.has_sequence:
            return self.place_of_change(row)
        # A row of another writer has none, which is older than any, be it NULL.
        return tuple(place(value) for value in row.get(SEQUENCE) or ())

    def place_of_change(self, change: Row) -> tuple[Any, ...]:
        """Return the place of a change in the order of changes."""
        return tuple(place(change[name]) for name in self.sequence)

    def _new_row(self, change: Row) -> Row:
        row = {name: change.get(name) for name in self.columns}
        if self.has_own:
            row[SEQUENCE] = tuple(change[name] for name in self.sequence)
        return {name: row[name] for name in self.names}

    def add_own(self) -> None:
        """Add the sink's column for the sequence."""
        if not self.has_sequence and not self.has_own:
            self.has_own = True
            self.columns[SEQUENCE] = "struct"
            for row in self.rows:
                row[SEQUENCE] = None

    def merge_in_order(self, changes: Sequence[Row]) -> None:
        """Merge changes of which the newest one of each key counts: what `keys`, `sequence_by` and `delete_when` do."""
        self.add_own()
        truncates = [self.place_of_change(change) for change in changes if change["op"] == "t"]
        if truncates and (self.truncated is None or max(truncates) > self.truncated):
            self.truncated = max(truncates)
            self.rows = [row for row in self.rows if not self.place_of(row) < self.truncated]
        newest: dict[tuple[Any, ...], Row] = {}
        for change in changes:
            if change["op"] == "t":
                continue
            known = newest.get(self.key(change))
            if known is None or self.place_of_change(change) > self.place_of_change(known):
                newest[self.key(change)] = change
        before = dict(self.tombstones)
        for key, change in newest.items():
            at, is_delete = self.place_of_change(change), change["op"] == "d"
            if self.truncated is not None and at < self.truncated:
                continue
            if is_delete:
                self.tombstones[key] = max(at, self.tombstones.get(key, at))
            if key in before and at < before[key]:
                continue
            self._apply(key, change, at, is_delete=is_delete)

    def _apply(self, key: tuple[Any, ...], change: Row, at: tuple[Any, ...], *, is_delete: bool) -> None:
        is_matched, rows = False, []
        for row in self.rows:
            is_match = self.key(row) == key
            is_matched |= is_match
            if not is_match or at < self.place_of(row):
                rows.append(row)
            elif not is_delete:
                rows.append(self._new_row(change))
        if not is_matched and not is_delete:
            rows.append(self._new_row(change))
        self.rows = rows

    def upsert(self, changes: Sequence[Row]) -> None:
        """Merge changes in whatever order: what `keys` and `delete_when` do."""
        by_key = {self.key(change): change for change in changes}
        rows = []
        matched = set()
        for row in self.rows:
            change = by_key.get(self.key(row))
            if change is None:
                rows.append(row)
                continue
            matched.add(self.key(row))
            if change["op"] != "d":
                rows.append({name: change.get(name, row[name]) for name in self.names})
        for key, change in by_key.items():
            if key not in matched and change["op"] != "d":
                rows.append({name: change.get(name) for name in self.names})
        self.rows = rows

    def count(self, changes: Sequence[Row]) -> None:
        """Add the n of the changes to that of the rows: what the clauses of the tests do."""
        by_key = {self.key(change): change for change in changes}
        matched = set()
        for row in self.rows:
            change = by_key.get(self.key(row))
            if change is not None:
                matched.add(self.key(row))
                row["n"] = None if row["n"] is None or change["n"] is None else row["n"] + change["n"]
        for key, change in by_key.items():
            if key not in matched:
                given = {*self.keys, "n"}
                self.rows.append({name: change[name] if name in given else None for name in self.names})

    def add_column(self, name: str, sql_type: str) -> None:
        """Add a column, NULL in the rows that are there."""
        self.columns[name] = sql_type
        for row in self.rows:
            row[name] = None

    def swap(self, one: str, other: str) -> None:
        """Give each of two columns the name of the other, where it stands."""
        names = {one: other, other: one}
        self.columns = {names.get(name, name): sql_type for name, sql_type in self.columns.items()}
        self.rows = [{names.get(name, name): value for name, value in row.items()} for row in self.rows]

    def rename(self, old: str, new: str) -> None:
        """Give a column another name, where it stands."""
        self.columns = {(new if name == old else name): sql_type for name, sql_type in self.columns.items()}
        self.rows = [{(new if name == old else name): value for name, value in row.items()} for row in self.rows]
