"""Describes the micro-batch as the source of a merge: which rows are deletes, and which files its keys can be in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.merge_condition import KeyPair
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.column_names import NEWEST_DELETE
from stream_merge.config import SinkConfig
from stream_merge.sql import column_of, quote
from stream_merge.table.files import FIRST_MICROS, LAST_MICROS, KeyRange, comparable, is_prunable, physical_name

MAX_UNSHUFFLED_ROWS = 50_000
"""Up to this many rows, one task chooses the newest changes: a shuffle would be another job and take longer."""

MAX_TRACKED_VALUES = 100
"""If a partition column has more values in a batch, changes of all partitions count as conflicts."""


HIGHEST_TEXT = chr(0x10FFFF) * 64
"""No text in the statistics of a file comes after it: they have 32 characters, and one to make up for the rest."""

Bounds: TypeAlias = "tuple[Any, Any, int, frozenset[Any] | None]"
"""Smallest and largest value, number of nulls, and the values if they are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A persisted micro-batch and the results of one pass over it.

    Attributes:
        rows: The rows, with `SOURCE_ID` as the last column.
        num_rows: How many.
        bounds: The bounds of each key pair.
        is_independent: Whether a row writes the same whether it matches or not.
        num_independent_rows: How many rows write something then.
        num_deletes: How many keys the batch deletes, for a sink with a sequence.
        num_upserts: How many rows are changes that say that there is a row, for a sink with a sequence that follows the
            columns of its source.
        highest_delete: The highest sequence of these deletes, as JSON.
        num_unresolved: How many rows lack a value that their change did not send.
        incomplete: Numbers of rows that write something else if they match, although the batch is independent.
        counts: Metrics of the order of changes, by field name of `MergeResult`.
        probes: What the key index is asked (`merge/locate/probes.py`), as an Arrow table; None if it was not collected.
        tombstones: Keys and sequences of the deletes, as an Arrow table; None if they were not collected.
    """

    rows: DataFrame
    num_rows: int
    bounds: Mapping[KeyPair, Bounds]
    is_independent: bool
    num_independent_rows: int
    num_deletes: int = 0
    num_upserts: int = 0
    highest_delete: str | None = None
    num_unresolved: int = 0
    incomplete: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    probes: Any = None
    tombstones: Any = None

    def is_incomplete_among(self, sources: Any) -> bool:
        """Whether one of the incomplete rows is among the rows with these numbers; None stands for all rows."""
        return bool(self.incomplete) and (sources is None or not self.incomplete.isdisjoint(sources.tolist()))

    def key_ranges(self, schema: Mapping[str, Any]) -> list[KeyRange]:
        """Return the ranges that the batch can match in a table with this schema, so that files can be skipped."""
        return [key_range(pair, bounds, schema) for pair, bounds in self.bounds.items()]

    def partition_values(self, partition_columns: Sequence[str]) -> dict[str, frozenset[Any]]:
        """Return the values of partition columns that rows can match, for columns that have few."""
        names = {name.lower(): name for name in partition_columns}
        found = {}
        for pair, (_, _, num_nulls, values) in self.bounds.items():
            is_limited = values is not None and not (pair.is_null_safe and num_nulls)
            if is_limited and values and len(values) <= MAX_TRACKED_VALUES and pair.target.lower() in names:
                found[names[pair.target.lower()]] = values
        return found


def bound_of(value: Column, type_name: str, *, is_upper: bool) -> Column:
    """Return the smallest or largest value of a batch, moved to the nearest one that Python has.

    These are dates in the years 1 to 9999, and texts in UTF-8. A file with other values has statistics that tell
    nothing, so it is read.

    Args:
        value: The value.
        type_name: Spark's name of the type.
        is_upper: Whether it is the largest.
    """
    if type_name == "date":
        nearest = F.greatest(F.least(value, F.expr("DATE'9999-12-31'")), F.expr("DATE'0001-01-01'"))
    elif type_name == "timestamp":
        # A datetime would go through the zone of this process, where the first and the last day may have no time.
        nearest = F.greatest(F.least(F.unix_micros(value), F.lit(LAST_MICROS)), F.lit(FIRST_MICROS))
    elif type_name == "string":
        nearest = F.coalesce(F.try_validate_utf8(value), F.lit(HIGHEST_TEXT if is_upper else ""))
    else:
        return value
    return F.when(value.isNotNull(), nearest)


def key_range(pair: KeyPair, bounds: Bounds, schema: Mapping[str, Any]) -> KeyRange:
    """Return the range that values between these bounds can match in a table with this schema."""
    low, high, num_nulls, values = bounds
    return KeyRange(
        physical_path=physical_name(schema, pair.target),
        type_name=pair.type_name,
        low=comparable(low, pair.type_name),
        high=comparable(high, pair.type_name),
        has_null=pair.is_null_safe and num_nulls > 0,
        values=values,
    )


def key_ranges_of(
    keys: Sequence[str], bounds: Sequence[tuple[Any, Any, int]], pairs: Sequence[KeyPair], schema: Mapping[str, Any]
) -> list[KeyRange]:
    """Return the ranges that some keys can match.

    Args:
        keys: The key columns.
        bounds: Smallest and largest value of each, and number of nulls.
        pairs: The equalities of the merge condition.
        schema: The table's schema.
    """
    of_key = dict(zip((key.lower() for key in keys), bounds, strict=True))
    return [
        key_range(pair, (*of_key[pair.source.lower()], None), schema)
        for pair in pairs
        if is_prunable(pair.type_name) and pair.source.lower() in of_key
    ]


def is_delete(config: SinkConfig) -> Column:
    """Return whether a row of the source deletes its key: `delete_when`, where NULL counts as false.

    The frame must have the source's alias. `deletes` is the same condition after Delta has resolved it, which reads it
    from the statement (`merge/statement.py`).
    """
    if config.delete_when is None:
        return F.lit(False)
    return F.coalesce(column_of(config.delete_when), F.lit(False))


def deletes(resolved: ResolvedMerge, columns: Collection[str] = ()) -> Column:
    """Return whether the table has to remember a delete because of a source row.

    Without single columns these are the rows for which `is_delete` holds: no INSERT takes them. A folded row says in
    `NEWEST_DELETE` whether it stands for a delete, be it an older change of its key.

    Args:
        resolved: The merge of a sink with a sequence.
        columns: The columns of the rows.
    """
    if NEWEST_DELETE in columns:
        return F.col(NEWEST_DELETE).isNotNull()
    insert = next((c for c in resolved.clauses if c.clause.is_insert), None)
    return F.lit(False) if insert is None or insert.condition is None else ~insert.condition


def null_key_condition(keys: Sequence[str]) -> Column:
    """Return whether a row has NULL in a key column."""
    condition = F.lit(False)
    for key in keys:
        condition = condition | F.col(quote(key)).isNull()
    return condition
