"""Holds the settings that all steps of the decoding share, and the merge options for their result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from stream_merge.debezium.fields import Field
from stream_merge.debezium.values import Handling
from stream_merge.errors import ConfigError
from stream_merge.sql import quote

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


_OF_KEYS = ("old_key", "new_key")


def tells_keys(changes: DataFrame) -> bool:
    """Return whether the rows of `changes` say what the key columns of their table are, or that it has none."""
    return not {*_OF_KEYS, "before"}.isdisjoint(_change_type(changes).names)


def learn_options(changes: DataFrame, remembered: Callable[[], tuple[str, ...] | None]) -> dict[str, Any]:
    """Return the options of `merge_sink` for changes of a table whose keys only they tell: for `merge_sink(learn=)`.

    They are `MERGE_OPTIONS` with the keys, or `KEYLESS_MERGE_OPTIONS`. The type of `_change` tells the keys, so nothing
    is read.

    Args:
        changes: What `debezium.changes` returned.
        remembered: Returns the keys that the target was written with, which count if the changes tell none.

    Raises:
        ConfigError: Neither the changes nor the target tell the keys.
    """
    change = _change_type(changes)
    if "old_key" in change.names:
        of_key = change["old_key"].dataType
        assert isinstance(of_key, T.StructType)
        return {**MERGE_OPTIONS, "keys": tuple(of_key.names)}
    if "before" in change.names:
        return dict(KEYLESS_MERGE_OPTIONS)
    keys = remembered()
    if keys is None:
        raise ConfigError(
            ["no record tells the keys, since a TRUNCATE has none, and the table does not remember any; name its keys"]
        )
    if not keys:
        columns = ", ".join(quote(name) for name in changes.columns if name != CHANGE_COL)
        # A TRUNCATE has no row before it.
        return {**KEYLESS_MERGE_OPTIONS, "before": f"CASE WHEN false THEN struct({columns}) END"}
    return {**{name: value for name, value in MERGE_OPTIONS.items() if name not in _OF_KEYS}, "keys": keys}


def _change_type(changes: DataFrame) -> T.StructType:
    kind = changes.schema[CHANGE_COL].dataType if CHANGE_COL in changes.columns else None
    if not isinstance(kind, T.StructType):
        raise ConfigError([f"the rows have no struct {CHANGE_COL}; learn_options is for what debezium.changes returns"])
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `changes`, which documents them.

    Attributes:
        is_untold: Whether nothing tells the keys, so that no record can be about a row.
        may_have_decode_errors: Whether the records come from `from_registry`.
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
    is_untold: bool = False
    may_have_decode_errors: bool = False
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
    def sent_names(self) -> tuple[str, ...]:
        """The names of the columns in the messages."""
        return tuple(field.sent_as or name for name, field in self.fields.items())

    @property
    def key_positions(self) -> list[int]:
        """The positions of the key columns among the columns, in the order of the key."""
        return [self.names.index(key) for key in self.keys]
