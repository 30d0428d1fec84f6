"""Tracks the active files of a table from version to version, and skips those that a batch cannot match.

Delta does both with Spark jobs over the table's state, whose cost grows with the table. A stream asks after every
batch, when almost nothing has changed, so the commits since the last version are enough.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

MAX_REPLAYED_COMMITS = 50
"""After more commits by others, the list is loaded again instead."""

_LAST_LOCAL_MEAN_TIME = datetime(1973, 1, 1, tzinfo=timezone.utc)
"""From here on, the offset of every time zone is a whole number of minutes; Liberia's was the last that was not."""

_REPLACEMENT = "\ufffd"

_CUT_OFFSET = timedelta(minutes=1)

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_NO_AUTHORITY = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):///")

INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")


@dataclass(slots=True)
class DataFile:
    """An active file.

    Attributes:
        add: The AddFile as in the log.
    """

    add: dict[str, Any]
    _stats: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """The path as in the log, URL-encoded."""
        return str(self.add["path"])

    @property
    def undeleted(self) -> dict[str, Any]:
        """The AddFile without its deletion vector, for reading deleted rows as well."""
        return {name: value for name, value in self.add.items() if name != "deletionVector"}

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self.add["size"])

    @property
    def partition_values(self) -> dict[str, str | None]:
        """Value of each partition column as text, by physical name."""
        return dict(self.add.get("partitionValues") or {})

    @property
    def num_deleted_rows(self) -> int:
        """Number of rows that the deletion vector marks."""
        vector = self.add.get("deletionVector")
        return int(vector["cardinality"]) if vector else 0

    @property
    def stats(self) -> dict[str, Any]:
        """The statistics; empty if there are none."""
        if self._stats is None:
            # A float would round decimals of more than about 15 digits.
            self._stats = json.loads(self.add["stats"], parse_float=Decimal) if self.add.get("stats") else {}
        return self._stats

    @property
    def num_physical_rows(self) -> int | None:
        """Rows in the file, including deleted ones; None if the statistics lack the number."""
        value = self.stats.get("numRecords")
        return None if value is None else int(value)

    @property
    def num_rows(self) -> int | None:
        """Rows that a reader sees; None if the statistics lack the number."""
        physical = self.num_physical_rows
        return None if physical is None else physical - self.num_deleted_rows

    def highest_number(self, physical_path: str) -> int | None:
        """Return a number that no value of a top-level column of whole numbers exceeds; None if it is not known.

        Values of rows that the deletion vector marks count as well, since a RESTORE brings them back. Statistics that
        are tight beside a vector leave them out.
        """
        if self.num_deleted_rows and self.stats.get("tightBounds", True):
            return None
        highest = self.stats.get("maxValues", {}).get(physical_path)
        return None if highest is None else int(highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The values of one target column that a batch can match.

    Attributes:
        physical_path: Name in statistics and partition values.
        type_name: Spark's name of the type.
        low: Smallest value in the batch; None if the batch has only NULLs.
        high: Largest value.
        has_null: Whether a NULL of the batch matches a NULL of the table.
        values: All values, if they are few; used for partition columns.
    """

    physical_path: str
    type_name: str
    low: Any
    high: Any
    has_null: bool = False
    values: frozenset[Any] | None = None

    def may_match(self, file: DataFile) -> bool:
        """Whether a row of the file can have one of the batch's values."""
        partition_values = file.add.get("partitionValues") or {}
        if self.physical_path in partition_values:
            return self._may_match_partition(partition_values[self.physical_path])
        stats = file.stats
        if self.has_null and stats.get("nullCount", {}).get(self.physical_path, 1):
            return True
        if self.low is None:
            return False
        low = parse_stat(stats.get("minValues", {}).get(self.physical_path), self.type_name)
        high = parse_stat(stats.get("maxValues", {}).get(self.physical_path), self.type_name, is_upper=True)
        if low is None or high is None:
            return bool(stats.get("nullCount", {}).get(self.physical_path) != stats.get("numRecords", -1))
        return bool(low <= self.high and high >= self.low)

    def _may_match_partition(self, text: str | None) -> bool:
        if text is None or text == "":
            return self.has_null
        value = parse_partition_value(text, self.type_name)
        if value is None:
            return True
        if self.values is not None:
            return value in self.values
        return bool(self.low is not None and self.low <= value <= self.high)


def is_prunable(type_name: str) -> bool:
    """Whether the driver can compare bounds of this type as Spark compares values."""
    return type_name in (*INTEGER_TYPES, "string", "date", "timestamp") or type_name.startswith("decimal")


def parse_stat(value: Any, type_name: str, *, is_upper: bool = False) -> Any:
    """Return a bound of a file's statistics as a comparable value, or None if it is unusable."""
    if value is None:
        return None
    if type_name in INTEGER_TYPES:
        return int(value)
    if type_name == "string":
        # Bytes that are not UTF-8 stand in the log as this character, but sort elsewhere.
        return None if _REPLACEMENT in value else str(value)
    if type_name.startswith("decimal"):
        return Decimal(str(value))
    try:
        if type_name == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if moment.tzinfo is None:
            return None
        # Delta truncates timestamps in statistics to milliseconds, and the offsets of local mean time to minutes.
        slack = _CUT_OFFSET if moment < _LAST_LOCAL_MEAN_TIME else timedelta()
        moment += slack + timedelta(milliseconds=1) if is_upper else -slack
    except (ValueError, OverflowError):
        return None
    return moment


def parse_partition_value(text: str, type_name: str) -> Any:
    """Return a partition value as a comparable value; None if unknown, so that the file is kept."""
    try:
        if type_name in INTEGER_TYPES:
            return int(text)
        if type_name == "string":
            return None if _REPLACEMENT in text else text
        if type_name == "date":
            return date.fromisoformat(text)
        if type_name.startswith("decimal"):
            return Decimal(text)
    except (ValueError, ArithmeticError):
        return None
    # The time zone of a timestamp as partition value depends on the writer.
    return None


FIRST_MICROS = -62_135_596_800_000_000
LAST_MICROS = 253_402_300_799_999_999
"""The first and the last instant of Python's years, 1 to 9999."""


def comparable(value: Any, type_name: str = "") -> Any:
    """Return a value collected by Spark so that it compares with a parsed bound; timestamps may be microseconds."""
    if type_name == "timestamp" and isinstance(value, int):
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(timezone.utc)
    return value


def physical_name(schema: Mapping[str, Any], column: str) -> str:
    """Return the name of a top-level column in files and statistics, which column mapping may have changed."""
    for column_field in schema["fields"]:
        if column_field["name"].lower() == column.lower():
            mapped = column_field.get("metadata", {}).get("delta.columnMapping.physicalName")
            return str(mapped or column_field["name"])
    raise KeyError(column)


@dataclass(slots=True)
class TableFiles:
    """The active files of one version of one table.

    Attributes:
        table: The table's folder, and Delta's id of the table.
        version: The version; -1 before the first load.
    """

    table: tuple[str, str] = ("", "")
    version: int = -1
    _committed_ms: int | None = None
    _files: dict[str, DataFile] = field(default_factory=dict)
    _by_name: dict[str, DataFile] | None = None

    def advance(
        self,
        table: tuple[str, str],
        version: int,
        *,
        committed_ms: Callable[[int], int | None],
        read_commit: Callable[[int], Iterable[Mapping[str, Any]]],
        load: Callable[[], Sequence[dict[str, Any]]],
    ) -> None:
        """Bring the list to a version: by the commits since, or from scratch if these are too many or gone.

        Args:
            table: The table's folder, and Delta's id of the table; another one means that the table was replaced.
            version: The version to reach.
            committed_ms: Returns when a version's commit was written, in milliseconds since the epoch; None if it is
                gone. A backup that was put back has the table's id, and from then on other commits of the same numbers.
            read_commit: Returns the actions of a version's commit; raises FileNotFoundError if it is gone.
            load: Returns all AddFiles of the version.
        """
        behind = version - self.version
        if (
            table == self.table
            and self.version >= 0
            and 0 <= behind <= MAX_REPLAYED_COMMITS
            and self._is_known(committed_ms(self.version))
        ):
            if not behind:
                return
            self._by_name = None
            try:
                for number in range(self.version + 1, version + 1):
                    self._apply(read_commit(number))
                    self.version = number
            except FileNotFoundError:
                pass
            else:
                self._committed_ms = committed_ms(version)
                return
        self._files = {add["path"]: DataFile(add) for add in load()}
        self._by_name = None
        self.table, self.version, self._committed_ms = table, version, committed_ms(version)

    def _is_known(self, committed_ms: int | None) -> bool:
        """Whether the commit of the list's version is still the one that the list was made of."""
        known = self._committed_ms
        if committed_ms is None or known is None:
            return False
        # An object store may tell milliseconds where files are listed, and whole seconds where one is asked for.
        is_rounded = 0 in (committed_ms % 1000, known % 1000) and committed_ms // 1000 == known // 1000
        return committed_ms == known or is_rounded

    def _apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        adds = []
        for action in actions:
            if "remove" in action:
                self._files.pop(action["remove"]["path"], None)
            elif "add" in action:
                adds.append(action["add"])
        # A commit may remove a file with its old deletion vector and add it with a new one, in any order.
        for add in adds:
            self._files[add["path"]] = DataFile(add)

    def all(self) -> list[DataFile]:
        """Return every active file."""
        return list(self._files.values())

    def may_match(self, ranges: Sequence[KeyRange], paths: set[str] | None = None) -> list[DataFile]:
        """Return the candidate files: those in which a row can match.

        Args:
            ranges: The values that the batch can match; a row must be in each of them.
            paths: If given, only these files are considered.
        """
        files = self._files.values() if paths is None else [f for p, f in self._files.items() if p in paths]
        return [file for file in files if all(key_range.may_match(file) for key_range in ranges)]

    def find(self, uri: str, root: str) -> DataFile:
        """Return the file that Spark read under a URI.

        Args:
            uri: `_metadata.file_path`.
            root: The table's folder as a URI.

        Raises:
            KeyError: No active file has the URI.
        """
        for path in _log_paths(uri, root):
            if path in self._files:
                return self._files[path]
        # Other writers escape other characters than Spark does: + as %2B, and everything that is not ASCII.
        if self._by_name is None:
            self._by_name = {_full_name(path, root): file for path, file in self._files.items()}
        return self._by_name[_full_name(uri, root)]


def _full_name(path: str, root: str) -> str:
    """Return the full, unescaped name of a file.

    Args:
        path: The file's path as in the log, or a URI.
        root: The table's folder as a URI.
    """
    if path.startswith("/"):
        scheme, authority, *_ = urlsplit(root)
        path = f"{scheme}://{authority}{path}"
    elif not _HAS_SCHEME.match(path):
        path = f"{root.rstrip('/')}/{path}"
    return unquote(_NO_AUTHORITY.sub(r"\1:/", path))


def _log_paths(uri: str, root: str) -> Iterable[str]:
    """Yield the forms in which the log may name a file: relative to the table, or absolute (after a shallow clone)."""
    for base in (root, root.replace(":///", ":/"), root.replace(":/", ":///", 1)):
        prefix = base.rstrip("/") + "/"
        if uri.startswith(prefix):
            yield uri[len(prefix) :]
    yield uri
    yield uri.replace(":///", ":/", 1)
    if ":///" not in uri:
        yield uri.replace(":/", ":///", 1)


def num_rows(files: Sequence[DataFile], *, unknown: int) -> int:
    """Return the number of rows of some files, deleted ones included.

    Args:
        files: The files.
        unknown: How many rows a file counts for whose statistics lack the number.
    """
    counts = [file.num_physical_rows for file in files]
    return sum(unknown if count is None else count for count in counts)


def now_ms() -> int:
    """Return the current time for deletion timestamps, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
