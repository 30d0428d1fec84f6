"""The manifest of a table's tombstones: the files that hold them, and what else is remembered of deletes.

Tombstones lie in Parquet files under the table's `_stream_merge/`, which VACUUM ignores. The commit that deletes the
rows names the files in a metadata domain of the table, so that rows and tombstones cannot disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from stream_merge.column_names import ROW_ID
from stream_merge.errors import ConfigurationChangedError

DOMAIN = "stream_merge"
FOLDER = "_stream_merge/tombstones"
_NAME = re.compile(r"[\w\s`-]+")
"""A column's name, which need not be SQL. An expression that looks like one has no text and no key of a map either."""

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneFile:
    """Tombstones that were written together.

    Attributes:
        path: Folder of the Parquet files, relative to the table's.
        num_rows: Number of tombstones.
        oldest_ms: When the oldest was written, in milliseconds since the epoch.
        newest_ms: When the newest was written.
        num_moved: How many hold the values of a row that got another key.
        num_lacking: How many of these hold only some of the values.
        highest: The highest sequence, as JSON; None if unknown.
    """

    path: str
    num_rows: int
    oldest_ms: int
    newest_ms: int
    num_moved: int = 0
    num_lacking: int = 0
    highest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredFile:
    """A file that only older versions name.

    Attributes:
        path: As in `TombstoneFile`.
        since_ms: When it was retired, in milliseconds since the epoch.
    """

    path: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneManifest:
    """The tombstone files of a table version, and the configuration that they were written under.

    Attributes:
        keys: The key columns.
        sequence: The parts of the sequence as SQL.
        read_version: The version that the writing commit was based on.
        files: The tombstone files.
        retired: Files that a RESTORE may still need.
        horizon: The highest sequence of a forgotten tombstone, as JSON; None if none was forgotten.
        truncated: The sequence of the newest TRUNCATE, as JSON.
        older_columns: Lower-case names of the columns that may be older than their row; None if unknown.
        columns: Lower-case names of the columns that batches had, for a sink that follows the columns of its source.
        contents: Lower-case names of the columns by which rows without a key are compared, in the order in which their
            ids have them; none if it was not noted.
        holder: The columns that hold the sequence of a row; none if they were not noted.
        fields: The paths of the fields inside keys and sequence, as they are spelt; none if they were not noted.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    read_version: int = -1
    files: tuple[TombstoneFile, ...] = ()
    retired: tuple[RetiredFile, ...] = ()
    horizon: str | None = None
    truncated: str | None = None
    older_columns: tuple[str, ...] | None = ()
    columns: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    holder: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of tombstones; a key that was deleted several times may have several."""
        return sum(file.num_rows for file in self.files)

    def to_json(self) -> str:
        """Return the configuration of the metadata domain."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> TombstoneManifest:
        """Return the state that `to_json` wrote.

        Raises:
            ConfigurationChangedError: A newer version of this library wrote it.
        """
        values: dict[str, Any] = json.loads(text)
        if values.pop("format") != _FORMAT or not values.keys() <= {each.name for each in fields(TombstoneManifest)}:
            raise ConfigurationChangedError(
                "a newer version of stream_merge has written tombstones to this table that this version cannot read; "
                "upgrade stream_merge"
            )
        return TombstoneManifest(
            keys=tuple(values.pop("keys")),
            sequence=tuple(values.pop("sequence")),
            files=tuple(TombstoneFile(**file) for file in values.pop("files")),
            retired=tuple(RetiredFile(**file) for file in values.pop("retired", ())),
            older_columns=_names(values.pop("older_columns", ())),
            columns=tuple(values.pop("columns", ())),
            contents=tuple(values.pop("contents", ())),
            holder=tuple(values.pop("holder", ())),
            fields=tuple(values.pop("fields", ())),
            **values,
        )

    def check_options(self, name: str, expected: TombstoneManifest) -> None:
        """Raise if a sink has other keys or another sequence than the table was written with.

        Raises:
            ConfigurationChangedError: They differ.
        """
        check_keys(name, self.keys, expected.keys)
        if [*map(_spelt_alike, self.sequence)] != [*map(_spelt_alike, expected.sequence)]:
            raise _changed(name, "sequence_by", ", ".join(self.sequence), ", ".join(expected.sequence))

    def check(self, name: str, expected: TombstoneManifest) -> None:
        """Raise if the keys or the sequence differ from those that the table was written with, or a field in them does.

        Raises:
            ConfigurationChangedError: They differ.
        """
        self.check_options(name, expected)
        lost = [path for path in self.fields if path not in expected.fields]
        if lost:
            raise ConfigurationChangedError(
                f"{name} has no field {', '.join(lost)} any more, which its keys or its sequence had when deletes were "
                "remembered, so rows and deletes cannot be compared. Give the field its name back, or, if the order of "
                "the changes so far does not count, call reset_state() of the sink once."
            )


def check_keys(name: str, written: Sequence[str], now: Sequence[str]) -> None:
    """Raise if the keys differ from those that a table was written with, whatever their order and spelling.

    Raises:
        ConfigurationChangedError: They differ.
    """
    mine, theirs = (sorted(key.lower() for key in keys if key != ROW_ID) for keys in (now, written))
    if mine != theirs:
        raise _changed(name, "keys", ", ".join(theirs) or "none", ", ".join(mine) or "none")


def _spelt_alike(part: str) -> str:
    """Return a part of a sequence so that a column's name is the same in any case; other expressions stay as they are.

    In an expression the case may count: in a text, or in the key of a map, as `tags.At` may be.
    """
    return part.lower() if _NAME.fullmatch(part) else part


def _changed(name: str, what: str, theirs: str, mine: str) -> ConfigurationChangedError:
    return ConfigurationChangedError(
        f"{name} was written with {what} {theirs}, and the sink now has {mine}: "
        "rows and remembered deletes cannot be compared. Restore the old configuration, or write to a new "
        "table; if the table was made to fit (its rows re-keyed, its sequences rewritten), "
        "call reset_state() of the sink once.",
        option=what,
    )


def _names(names: list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
