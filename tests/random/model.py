"""What a Delta table must hold: a plain model of its rows, its tombstones and the batches that it records."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_merge.column_names import COLUMN_SEQUENCES, SEQUENCE
from tests.random.column_types import converted

Row = dict[str, Any]
Place = tuple[Any, ...]

OWN = (SEQUENCE, COLUMN_SEQUENCES)
"""The columns that the sink adds."""


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
    if isinstance(value, dict):
        # The sequence of a row of another writer is NULL, or a struct of NULL.
        value = sorted((name, at if at is None else at or (place(None),)) for name, at in value.items())
    return f"{type(value).__name__} {value!r}"


def plain(value: Any) -> Any:
    """Return a value of Spark, a struct as a tuple; of the sequences of single columns their places."""
    if isinstance(value, dict):
        return {name: None if sequence is None else _places(sequence) for name, sequence in value.items()}
    return tuple(value) if isinstance(value, tuple) else value


def _places(sequence: Sequence[Any]) -> Place:
    """Return the place of a sequence, be it of columns or of the sink's column, a struct in a struct."""
    if len(sequence) == 1 and isinstance(sequence[0], tuple):
        return _places(sequence[0])
    return tuple(place(value) for value in sequence)


def exact_rows(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Return rows as texts, in an order of their own."""
    return sorted(tuple(exact(value) for value in row.values()) for row in rows)


@dataclass(frozen=True)
class Fold:
    """What the changes of a key in a batch come to.

    Attributes:
        newest: The newest change.
        at: Its place.
        deleted: The place of the newest delete among them, or of a TRUNCATE that comes with them.
        sets: The values that they set, each with its place.
    """

    newest: Row
    at: Place
    deleted: Place | None
    sets: Mapping[str, tuple[Place, Any]]

    @property
    def is_delete(self) -> bool:
        """Whether the newest change deletes the row."""
        return bool(self.newest["op"] == "d")

    @property
    def is_fill(self) -> bool:
        """Whether the newest change gives values alone, which the row had under another key."""
        return bool(self.newest.get("fills"))

    @property
    def is_upsert(self) -> bool:
        """Whether the newest change says that there is a row."""
        return not self.is_delete and not self.is_fill


@dataclass(frozen=True)
class Handed:
    """The values that a row took along when it left a key.

    Attributes:
        left: The key that it left.
        to: The key that it gets.
        at: When it left.
        change: The change of its new key that gives the values.
    """

    left: Place
    to: Place
    at: Place
    change: Row


@dataclass
class TableModel:
    """A version of the table.

    Attributes:
        keys: The key columns.
        sequence: The columns of the source that make the sequence.
        columns: Names and SQL types of the table's columns.
        has_sequence: Whether the table keeps the sequence in its own columns.
        has_own: Whether the sink's column for it is there.
        has_registers: Whether the sink's column for the sequences of single columns is there.
        older: The columns that may be older than their row, in some row.
        rows: The rows.
        tombstones: Keys that were deleted, and the newest sequence of that.
        truncated: The sequence of the newest TRUNCATE.
        moved: The values that wait for rows which got another key.
        remembered: The columns that batches had, of sinks that follow the columns of their source.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    columns: dict[str, str]
    has_sequence: bool
    has_own: bool = False
    has_registers: bool = False
    older: frozenset[str] = frozenset()
    rows: list[Row] = field(default_factory=list)
    tombstones: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    truncated: Place | None = None
    moved: list[Handed] = field(default_factory=list)
    remembered: frozenset[str] = frozenset()

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

    def add_registers(self) -> None:
        """Add the sink's column for the sequences of single columns: of each that is older than its row."""
        if not self.has_registers:
            self.has_registers = True
            self.columns[COLUMN_SEQUENCES] = "map"
            for row in self.rows:
                row[COLUMN_SEQUENCES] = None

    def merge_in_order(self, changes: Sequence[Row], *, sets_columns: bool = False) -> bool:
        """Merge changes of which the newest one counts: what `keys`, `sequence_by` and `delete_when` do.

        It counts of each key; where changes left columns alone, of each column.

        Args:
            changes: The changes; in `unset` the columns that each leaves alone.
            sets_columns: Whether the sink is one of such changes.

        Returns:
            Whether a change says that there is a row, and nothing that was there before outdates it.
        """
        self.add_own()
        if sets_columns:
            self.add_registers()
        truncates = [self.place_of_change(change) for change in changes if change["op"] == "t"]
        is_truncated = bool(truncates) and (self.truncated is None or max(truncates) > self.truncated)
        if is_truncated:
            self.truncated = max(truncates)
        of_keys: dict[Place, list[Row]] = {}
        for change in changes:
            if change["op"] != "t":
                of_keys.setdefault(self.key(change), []).append(change)
        older = self.older.union(*(change.get("unset", ()) for change in changes))
        sent = set(changes[0])
        is_handed_on = self._hand_on(of_keys, sent)
        if self.has_registers and not sent.issuperset(self.registers):
            older = older.union(self.registers)
        if (older or is_handed_on) and self.has_registers:
            self.older = older
            return self._merge_columns(of_keys, is_truncated=is_truncated)
        return self._merge_rows(of_keys, is_truncated=is_truncated)

    def _merge_rows(self, of_keys: Mapping[Place, Sequence[Row]], *, is_truncated: bool) -> bool:
        if is_truncated and self.truncated is not None:
            self.rows = [row for row in self.rows if not self.place_of(row) < self.truncated]
        before = dict(self.tombstones)
        has_upserts = False
        for key, changes in of_keys.items():
            change = max(changes, key=self.place_of_change)
            at, is_delete = self.place_of_change(change), change["op"] == "d"
            if self.truncated is not None and at < self.truncated:
                continue
            if is_delete:
                self.tombstones[key] = max(at, self.tombstones.get(key, at))
            if key in before and at < before[key]:
                continue
            has_upserts |= not is_delete
            self._apply(key, change, at, is_delete=is_delete)
        return has_upserts

    def _apply(self, key: tuple[Any, ...], change: Row, at: tuple[Any, ...], *, is_delete: bool) -> None:
        is_matched, rows = False, []
        for row in self.rows:
            is_match = self.key(row) == key
            is_matched |= is_match
            if not is_match or at < self.place_of(row):
                rows.append(row)
            elif not is_delete:
                # What the source does not send stays.
                rows.append({**row, **{name: value for name, value in self._new_row(change).items() if name in change}})
                if self.has_own:
                    rows[-1][SEQUENCE] = tuple(change[name] for name in self.sequence)
        if not is_matched and not is_delete:
            rows.append(self._new_row(change))
        self.rows = rows

    def _merge_columns(self, of_keys: Mapping[Place, Sequence[Row]], *, is_truncated: bool) -> bool:
        folds = {key: self._folded(key, changes, is_truncated=is_truncated) for key, changes in of_keys.items()}
        found = {key: fold for key, fold in folds.items() if fold is not None}
        rows, matched = [], set()
        for row in self.rows:
            key = self.key(row)
            if key in found:
                matched.add(key)
                new = self._with_columns(row, found[key])
            elif is_truncated and self.truncated is not None:
                is_gone = self.place_of(row) < self.truncated
                new = None if is_gone else self._without_older(row, self.truncated)
            else:
                new = row
            rows += [new] if new is not None else []
        for key, fold in found.items():
            if fold.deleted is not None:
                self.tombstones[key] = max(fold.deleted, self.tombstones.get(key, fold.deleted))
            if key not in matched and fold.is_upsert:
                row = self._new_row(fold.newest)
                row |= {name: fold.sets[name][1] if name in fold.sets else None for name in self.registers}
                sequences = {name: fold.sets[name][0] if name in fold.sets else None for name in self.registers}
                rows.append(row | {COLUMN_SEQUENCES: self._older(sequences, fold.at)})
        self.rows = rows
        return any(fold.is_upsert for fold in found.values())

    def _hand_on(self, of_keys: dict[Place, list[Row]], sent: Collection[str]) -> bool:
        """Add the changes that give values of rows to their new keys; return whether any had to be looked for.

        Args:
            of_keys: The changes of each key.
            sent: The columns of the batch, whose values alone follow their rows.
        """
        every = [change for changes in of_keys.values() for change in changes]
        arrivals = [change for change in every if change["op"] == "u" and change.get("old") is not None]
        known = {(handed.left, handed.to, handed.at) for handed in self.moved}
        departures = []
        for change in every:
            if change["op"] != "d" or change.get("new") is None:
                continue
            way, at = (self.key(change), self.key(change["new"])), self.place_of_change(change)
            # A row that takes all its values along needs none, and what has left is not there any more.
            is_whole = any(
                not other["unset"]
                and (self.key(other["old"]), self.key(other)) == way
                and not self.place_of_change(other) < at
                for other in arrivals
            )
            if not is_whole and (*way, at) not in known:
                departures.append(change)
        needy = [change for change in arrivals if change["unset"]]
        awaited = [
            handed
            for handed in self.moved
            if any(
                (self.key(change["old"]), self.key(change)) == (handed.left, handed.to)
                and not self.place_of_change(change) < handed.at
                for change in needy
            )
        ]
        own = [self._left(change, of_keys[self.key(change)]) for change in departures]
        self.moved = [*self.moved, *own]
        own_names = {*sent, "fills"}
        for handed in (*awaited, *own):
            there = [self.place_of(row) for row in self.rows if self.key(row) == handed.to]
            real = [change for change in of_keys.get(handed.to, ()) if change["op"] == "u" and "fills" not in change]
            there += map(self.place_of_change, real)
            # Until its row has come the key may be another's.
            if any(not at < handed.at for at in there):
                of_keys.setdefault(handed.to, []).append({n: v for n, v in handed.change.items() if n in own_names})
        return bool(departures or needy)

    def _left(self, departure: Row, changes: Sequence[Row]) -> Handed:
        """Return what a row has when it leaves its key, of which these are the changes."""
        key, left_at = self.key(departure), self.place_of_change(departure)
        sets: dict[str, tuple[Place, Any]] = {}
        for row in self.rows:
            if self.key(row) == key and self.place_of(row) < left_at:
                known = {name: at for name, at in self.sequences(row).items() if name in departure}
                sets |= {name: (at, row[name]) for name, at in known.items() if at is not None}
        resets = [self.tombstones[key]] if key in self.tombstones else []
        for change in sorted(changes, key=self.place_of_change):
            at = self.place_of_change(change)
            if change["op"] == "d" and at < left_at:
                resets.append(at)
            elif change["op"] == "u" and at < left_at:
                for name in self.registers:
                    if name in change and name not in change["unset"] and not (name in sets and at < sets[name][0]):
                        sets[name] = (at, change[name])
        sets = {name: (at, value) for name, (at, value) in sets.items() if not at < max(resets, default=at)}
        change = {**departure, **departure["new"], "op": "u", "old": None, "new": None, "fills": True}
        change |= {name: sets[name][1] if name in sets else None for name in self.registers if name in departure}
        change["unset"] = [name for name in self.registers if name not in sets]
        return Handed(left=key, to=self.key(departure["new"]), at=left_at, change=change)

    @property
    def registers(self) -> list[str]:
        """The columns that have a sequence each."""
        return [name for name in self.columns if name not in {*self.keys, *self.sequence, *OWN}]

    def sequences(self, row: Row) -> dict[str, Place | None]:
        """Return the sequence of each column of a row; None if no change has set it."""
        older = row[COLUMN_SEQUENCES] or {}
        return {name: older.get(name, self.place_of(row)) for name in self.registers}

    @staticmethod
    def _older(sequences: Mapping[str, Place | None], at: Place) -> dict[str, Place | None] | None:
        return {name: sequence for name, sequence in sequences.items() if sequence != at} or None

    def _folded(self, key: Place, changes: Sequence[Row], *, is_truncated: bool) -> Fold | None:
        """Return what the changes of a key come to; None if they are older than what deleted it."""
        newest = max(changes, key=lambda change: (self.place_of_change(change), not change.get("fills")))
        bounds = [bound for bound in (self.truncated, self.tombstones.get(key)) if bound is not None]
        at = self.place_of_change(newest)
        if any(at < bound for bound in bounds):
            return None
        deletes = [self.place_of_change(change) for change in changes if change["op"] == "d"]
        bounds += deletes
        if is_truncated and self.truncated is not None:
            deletes.append(self.truncated)
        sets: dict[str, tuple[Place, Any]] = {}
        for change in sorted(changes, key=lambda change: (self.place_of_change(change), not change.get("fills"))):
            if change["op"] == "d" or newest["op"] == "d":
                continue
            place_of_value = self.place_of_change(change)
            for name in self.registers:
                if name in change and name not in change.get("unset", ()):
                    sets[name] = (place_of_value, change[name])
        sets = {
            name: (of_value, value)
            for name, (of_value, value) in sets.items()
            if not of_value < max(bounds, default=of_value)
        }
        return Fold(newest=newest, at=at, deleted=max(deletes, default=None), sets=sets)

    def _with_columns(self, row: Row, fold: Fold) -> Row | None:
        """Return a row after the changes of its key; None if they delete it."""
        of_row = self.place_of(row)
        is_newer = fold.is_upsert and not fold.at < of_row
        if fold.is_delete and not fold.at < of_row:
            return None
        if not is_newer and row[COLUMN_SEQUENCES] is None:
            return row
        new = dict(row)
        if is_newer:
            whole = self._new_row(fold.newest)
            new |= {name: whole[name] for name in self.columns if name not in self.registers}
        known = self.sequences(row)
        for name, ours in known.items():
            is_reset = fold.deleted is not None and ours is not None and not fold.deleted < ours
            theirs, value = fold.sets.get(name, (None, None))
            if theirs is not None and (
                ours is None or is_reset or (ours < theirs if fold.is_fill else not theirs < ours)
            ):
                new[name], known[name] = value, theirs
            elif is_reset:
                new[name], known[name] = None, None
        return new | {COLUMN_SEQUENCES: self._older(known, fold.at if is_newer else of_row)}

    def _without_older(self, row: Row, truncated: Place) -> Row:
        """Return a row that is newer than a TRUNCATE without the values that are older."""
        known = self.sequences(row)
        older = [name for name, ours in known.items() if ours is not None and ours < truncated]
        if not older:
            return row
        sequences = self._older({**known, **dict.fromkeys(older)}, self.place_of(row))
        return {**row, **dict.fromkeys(older), COLUMN_SEQUENCES: sequences}

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

    def drop_column(self, name: str) -> None:
        """Drop a column."""
        for one in (self.columns, *self.rows):
            del one[name]

    def widen(self, name: str, sql_type: str) -> None:
        """Give a column a wider type."""
        self.columns[name] = sql_type
        if name in self.registers:
            for row in (*self.rows, *(handed.change for handed in self.moved)):
                row |= {name: converted(row[name], sql_type)} if name in row else {}

    def swap(self, one: str, other: str) -> None:
        """Give each of two columns the name of the other, where it stands."""
        names = {one: other, other: one}
        self.columns = {names.get(name, name): sql_type for name, sql_type in self.columns.items()}
        self.rows = [{names.get(name, name): value for name, value in row.items()} for row in self.rows]

    def rename(self, old: str, new: str) -> None:
        """Give a column another name, where it stands."""
        self.columns = {(new if name == old else name): sql_type for name, sql_type in self.columns.items()}
        self.rows = [{(new if name == old else name): value for name, value in row.items()} for row in self.rows]
