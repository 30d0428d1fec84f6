"""Divides the keys of a table into ranges, for the database's conditions and for Spark.

The ranges of numbers and dates are the same for both sides, so that only ranges that differ need to be read again.
Those of text are for reading alone: the database orders text by a collation that Spark does not have. Their bounds are
put into order by the database itself, so that each row is in exactly one range under any collation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from stream_merge.cli.compare.kinds import KeyKind

MAX_RANGES = 64
ROWS_A_RANGE = 100_000

_LITERALS = {
    KeyKind.NUMBER: re.compile(r"-?[0-9]+(?:\.[0-9]+)?"),
    KeyKind.DATE: re.compile(r"(?!0000)[0-9]{4}-[0-9][0-9]-[0-9][0-9]"),
    # Nothing that any database takes for more than a character: no quotes, backslashes, placeholders or wildcards.
    KeyKind.TEXT: re.compile(r"[A-Za-z0-9_.:@/+-][A-Za-z0-9 _.:@/+-]*(?<! )"),
    KeyKind.UUID: re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}

EVERYWHERE = -1
"""The range of rows whose key has no place among the bounds: it is NULL, or does not fit the Delta table's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRanges:
    """Ranges of the key, in its order.

    Attributes:
        column: The key's column as the database's SQL.
        literals: The bounds as the database's SQL; the first range is below the first one.
        values: The bounds as text that Spark casts to the key's type; none if they are for reading alone.
    """

    column: str = ""
    literals: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def num_shared(self) -> int:
        """Number of ranges that Spark knows as well."""
        return len(self.values) + 1

    def conditions(self, numbers: Collection[int] | None = None) -> list[str]:
        """Return the conditions of ranges for the database: each of its rows meets exactly one of all.

        Args:
            numbers: The ranges to read, from 0; all of them by default, and if they are not known to Spark.
        """
        if not self.literals:
            return ["1 = 1"]
        bounds = [None, *self.literals, None]
        found = []
        for number, (low, high) in enumerate(pairwise(bounds)):
            if numbers is not None and self.values and EVERYWHERE not in numbers and number not in numbers:
                continue
            if low is None:
                found.append(f"({self.column} < {high} OR {self.column} IS NULL)")
            elif high is None:
                found.append(f"{self.column} >= {low}")
            else:
                found.append(f"{self.column} >= {low} AND {self.column} < {high}")
        return found

    def number_of(self, name: str, sql_type: str) -> str:
        """Return Spark's SQL for the range of a key; `EVERYWHERE` for NULL.

        Args:
            name: SQL for the key.
            sql_type: Its type.
        """
        if not self.values:
            return "0"
        bounds = [f"CAST('{value}' AS {sql_type})" for value in self.values]
        return f"CASE WHEN {name} IS NULL THEN {EVERYWHERE} ELSE {_found_by_halves(name, bounds, 0)} END"

    def condition_of_spark(self, name: str, sql_type: str, numbers: Collection[int]) -> str:
        """Return Spark's SQL for whether a key is in some of the ranges, by which Delta skips files.

        Args:
            name: SQL for the key.
            sql_type: Its type.
            numbers: The ranges, from 0.
        """
        if not self.values or EVERYWHERE in numbers:
            return "true"
        bounds = [None, *[f"CAST('{value}' AS {sql_type})" for value in self.values], None]
        parts = []
        for number in sorted(numbers):
            low, high = bounds[number], bounds[number + 1]
            limits = [*([f"{name} >= {low}"] if low else []), *([f"{name} < {high}"] if high else [])]
            parts.append(f"({' AND '.join(limits) or 'true'})")
        return " OR ".join(parts)


def _found_by_halves(name: str, bounds: Sequence[str], first: int) -> str:
    if not bounds:
        return str(first)
    middle = len(bounds) // 2
    below = _found_by_halves(name, bounds[:middle], first)
    above = _found_by_halves(name, bounds[middle + 1 :], first + middle + 1)
    return f"IF({name} < {bounds[middle]}, {below}, {above})"


def literal_of(value: str | None, kind: KeyKind) -> str | None:
    """Return a key's value as SQL that means the same to any database; None if there is none for it.

    Args:
        value: The value as text.
        kind: What it is.
    """
    if value is None or _LITERALS[kind].fullmatch(value) is None:
        return None
    match kind:
        case KeyKind.NUMBER:
            return f"({value})" if value.startswith("-") else value
        case KeyKind.DATE:
            return f"{{d '{value}'}}"
        case KeyKind.TEXT | KeyKind.UUID:
            return f"'{value}'"


def shared_ranges(column: str, kind: KeyKind, quantiles: Sequence[str]) -> KeyRanges:
    """Return the ranges between quantiles of a key of numbers or dates.

    Args:
        column: The key's column as the database's SQL.
        kind: What the key is.
        quantiles: Values of the Delta table's keys as text.
    """
    known = {value: literal for value in quantiles if (literal := literal_of(value, kind)) is not None}
    values = sorted(known, key=Decimal if kind is KeyKind.NUMBER else str)
    if kind is KeyKind.NUMBER:
        # 1.0 and 1.00 are one bound.
        values = [value for at, value in enumerate(values) if not at or Decimal(values[at - 1]) != Decimal(value)]
    return KeyRanges(column=column, literals=tuple(known[value] for value in values), values=tuple(values))


def reading_ranges(column: str, ordered: Sequence[str], num_ranges: int) -> KeyRanges:
    """Return ranges of text for reading.

    Args:
        column: The key's column as the database's SQL.
        ordered: Some keys in the database's order.
        num_ranges: How many ranges to make.
    """
    literals = list(dict.fromkeys(literal for key in ordered if (literal := literal_of(key, KeyKind.TEXT)) is not None))
    count = min(num_ranges - 1, len(literals))
    if count < 1:
        return KeyRanges()
    chosen = [literals[(number + 1) * len(literals) // (count + 1)] for number in range(count)]
    return KeyRanges(column=column, literals=tuple(dict.fromkeys(chosen)))


def num_ranges_for(num_rows: int) -> int:
    """Return into how many ranges a table of so many rows is divided."""
    return max(1, min(MAX_RANGES, num_rows // ROWS_A_RANGE))


def conditions_on_keys(
    columns: Sequence[str], kinds: Sequence[KeyKind | None], keys: Sequence[Sequence[str | None]], a_query: int = 100
) -> list[str] | None:
    """Return conditions that together select the rows of some keys; None if a key cannot be written as SQL.

    Args:
        columns: The key's columns as the database's SQL.
        kinds: What each of them is.
        keys: The keys' values as text.
        a_query: How many keys one condition has at most.
    """
    written: list[str] = []
    for key in keys:
        parts = []
        for column, kind, value in zip(columns, kinds, key, strict=True):
            literal = None if kind is None else literal_of(value, kind)
            if literal is None:
                return None
            parts.append(f"{column} = {literal}")
        written.append(f"({' AND '.join(parts)})")
    return [" OR ".join(written[at : at + a_query]) for at in range(0, len(written), a_query)]
