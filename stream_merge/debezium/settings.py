"""Holds the settings that all steps of the decoding share, and the merge options for their result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stream_merge.debezium.fields import Field
from stream_merge.debezium.values import Handling

CHANGE_COL = "_change"
"""The struct that describes a change, besides the data columns."""

MERGE_OPTIONS: Mapping[str, Any] = {
    "sequence_by": f"{CHANGE_COL}.sequence",
    "delete_when": f"{CHANGE_COL}.op = 'd'",
    "truncate_when": f"{CHANGE_COL}.op = 't'",
    "unchanged_columns": f"{CHANGE_COL}.unavailable",
    "old_key": f"{CHANGE_COL}.old_key",
    "new_key": f"{CHANGE_COL}.new_key",
    "error_column": f"{CHANGE_COL}.error",
    "except_columns": (CHANGE_COL,),
}
"""Options of `merge_sink` for changes of a table with a key: order, deletes, TRUNCATE, unsent values, errors."""

KEYLESS_MERGE_OPTIONS: Mapping[str, Any] = {
    "before": f"{CHANGE_COL}.before",
    "sequence_by": (
        f"{CHANGE_COL}.sequence",
        # All rows of a snapshot share one position in the log, but each has its own record.
        f"IF({CHANGE_COL}.op = 'r', {CHANGE_COL}.partition, 0)",
        f"IF({CHANGE_COL}.op = 'r', {CHANGE_COL}.offset, 0L)",
    ),
    "delete_when": f"{CHANGE_COL}.op = 'd'",
    "truncate_when": f"{CHANGE_COL}.op = 't'",
    "error_column": f"{CHANGE_COL}.error",
    "except_columns": (CHANGE_COL,),
}
"""Options of `merge_sink` for changes of a table without a key: the removed row, order, deletes, TRUNCATE, errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `changes`, which documents them.

    Attributes:
        schemas: The sums of the learnt schemas; None if the columns are given.
    """

    fields: Mapping[str, Field]
    keys: tuple[str, ...]
    layout: str | None
    placeholder: str
    meta_prefix: str
    keep_tombstones: bool
    keep_messages: bool
    keep_raw: bool
    before: bool
    order: str
    snapshot_first: bool | None
    handling: Handling
    schemas: tuple[int, ...] | None = None

    @property
    def is_by_contents(self) -> bool:
        """Whether rows are identified by their contents, for lack of a key."""
        return self.before and not self.keys

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.fields)

    @property
    def key_positions(self) -> list[int]:
        """The positions of the key columns among the columns, in the order of the key."""
        return [self.names.index(key) for key in self.keys]
