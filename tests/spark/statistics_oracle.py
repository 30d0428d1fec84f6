"""What the statistics of a table's files say, held against what the files hold.

The log is read from its JSON and the files by pyarrow, so that no code of Spark or Delta stands between: bounds are
compared at the full precision of the text in the log.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from stream_merge.table.deletion_vectors import StoredVector, VectorCache
from tests.spark.delta_log import latest_version, read_actions

MILLISECOND = 1000
MAX_CHARACTERS = 32
"""Of the bounds of strings: longer values are cut."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_INTEGERS = ("byte", "short", "integer", "long")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a field of a struct, that files hold.

    Attributes:
        path: Its physical name, after those of the structs around it.
        type_name: Its type as the log writes it; of a nested type other than a struct the type's kind.
    """

    path: tuple[str, ...]
    type_name: str

    @property
    def has_bounds(self) -> bool:
        """Whether Delta collects the smallest and the largest value."""
        return self.type_name in (*_INTEGERS, "double", "float", "date", "timestamp", "timestamp_ntz", "string") or (
            self.type_name.startswith("decimal")
        )

    def raw(self, row: dict[str, Any]) -> Any:
        """Return the value of a row; null in a struct that is null."""
        value: Any = row
        for name in self.path:
            value = None if value is None else value[name]
        return value

    def value(self, row: dict[str, Any]) -> Any:
        """Return the value of a row as `bound` gives bounds."""
        return self.ordered(self.raw(row))

    def ordered(self, value: Any) -> Any:
        """Return a raw value so that it compares as in Spark."""
        if self.type_name in ("timestamp", "timestamp_ntz") and value is not None:
            return micros(value)
        return _ordered(value) if self.type_name in ("double", "float") else value

    def bound(self, found: Any) -> Any:
        """Return a bound of the log so that it compares with the values; `found` was parsed with its digits kept."""
        if found is None:
            return None
        if self.type_name.startswith("decimal"):
            return Decimal(found)
        if self.type_name in ("double", "float"):
            number = float(found)
            return _ordered(struct.unpack("f", struct.pack("f", number))[0] if self.type_name == "float" else number)
        if self.type_name == "date":
            return dt.date.fromisoformat(found)
        if self.type_name in ("timestamp", "timestamp_ntz"):
            return micros(dt.datetime.fromisoformat(found.replace("Z", "+00:00")))
        return found

    def in_stats(self, stats: dict[str, Any], kind: str) -> Any:
        """Return what the statistics say of the leaf, or None."""
        found: Any = stats.get(kind)
        for name in self.path:
            found = None if found is None else found.get(name)
        return found


def micros(moment: dt.datetime) -> int:
    """Return a moment in microseconds since the epoch."""
    aware = moment.replace(tzinfo=dt.timezone.utc) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def _ordered(number: float | None) -> tuple[bool, float] | None:
    """Return a number that compares as in Spark: NaN is the largest, and both zeros are the same."""
    if number is None:
        return None
    return (True, 0.0) if number != number else (False, number + 0.0)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """An active file and its rows.

    Attributes:
        add: The AddFile.
        rows: The rows that no vector marks, by physical name.
        num_physical: How many rows there are with those that it marks.
    """

    add: dict[str, Any]
    rows: list[dict[str, Any]]
    num_physical: int

    @property
    def stats(self) -> dict[str, Any]:
        """The statistics, the numbers with all their digits."""
        return dict(json.loads(self.add["stats"], parse_float=Decimal))


def active_files(path: str) -> list[dict[str, Any]]:
    """Return the AddFiles of the newest version, by playing the log from its beginning."""
    files: dict[str, dict[str, Any]] = {}
    for version in range(latest_version(path) + 1):
        actions = read_actions(path, version)
        for action in actions:
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
        files |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    return list(files.values())


def held_files(path: str) -> list[HeldFile]:
    """Return the active files with their rows."""
    return [_held_file(path, add) for add in active_files(path)]


def _held_file(path: str, add: dict[str, Any]) -> HeldFile:
    # Of a file like id=1/part-….parquet the folders are no columns of it.
    file = pq.ParquetFile(Path(path, unquote(add["path"])), coerce_int96_timestamp_unit="us")
    rows = file.read().to_pylist()
    marked = set()
    if add.get("deletionVector"):

        def read_range(name: str, offset: int, length: int) -> bytes:
            return Path(path, name).read_bytes()[offset : offset + length]

        vector = StoredVector.of(add["deletionVector"])
        marked = set(VectorCache().load(vector, read_range))
        assert len(marked) == vector.cardinality, f"{add['path']}: {len(marked)} rows are marked"
    return HeldFile(add, [row for number, row in enumerate(rows) if number not in marked], len(rows))


def leaves(path: str) -> list[Leaf]:
    """Return the leaves of the table's newest schema, without partition columns."""
    metadata = [
        action["metaData"]
        for version in range(latest_version(path) + 1)
        for action in read_actions(path, version)
        if "metaData" in action
    ][-1]
    fields = json.loads(metadata["schemaString"])["fields"]
    return list(_leaves([field for field in fields if field["name"] not in metadata["partitionColumns"]], ()))


def _leaves(fields: Sequence[dict[str, Any]], around: tuple[str, ...]) -> Iterator[Leaf]:
    for field in fields:
        name = (*around, field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"]))
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _leaves(kind["fields"], name)
        else:
            yield Leaf(name, kind if isinstance(kind, str) else kind["type"])


def check_statistics(path: str) -> int:
    """Assert that the statistics of each active file are true of the rows in it.

    Returns:
        How many bounds were compared.
    """
    columns = leaves(path)
    compared = 0
    for file in held_files(path):
        stats = file.stats
        where = f"{file.add['path']}: {file.add['stats']}"
        assert stats["numRecords"] == file.num_physical, where
        is_tight = stats.get("tightBounds", True)
        assert is_tight == (len(file.rows) == file.num_physical), where
        for leaf in columns:
            if file.rows and leaf.path[0] not in file.rows[0]:
                continue  # the file is older than the column
            values = [leaf.value(row) for row in file.rows]
            held = [value for value in values if value is not None]
            try:
                _check_nulls(leaf, stats, len(file.rows) - len(held), len(file.rows), is_tight=is_tight)
                if leaf.has_bounds and held:
                    _check_bounds(leaf, stats, held, is_tight=is_tight)
                    compared += 2
            except AssertionError as error:
                raise AssertionError(f"{'.'.join(leaf.path)}: {error}; {where}") from error
    return compared


def _check_nulls(leaf: Leaf, stats: dict[str, Any], num_nulls: int, num_rows: int, *, is_tight: bool) -> None:
    """Assert what PROTOCOL.md says of nullCount: with wide bounds only "none" and "all" are told, and must be true."""
    told = leaf.in_stats(stats, "nullCount")
    if told is None:
        assert num_nulls == num_rows, "no nullCount"
    elif is_tight:
        assert told == num_nulls, f"{num_nulls} nulls"
    else:
        assert told or not num_nulls, f"{num_nulls} nulls"
        assert told < stats["numRecords"] or num_nulls == num_rows, f"{num_nulls} nulls of {num_rows}"


def _check_bounds(leaf: Leaf, stats: dict[str, Any], held: Sequence[Any], *, is_tight: bool) -> None:
    low, high = (leaf.bound(leaf.in_stats(stats, kind)) for kind in ("minValues", "maxValues"))
    smallest, largest = min(held), max(held)
    assert low is not None, "no minValues"
    assert high is not None, "no maxValues"
    least: Callable[[Any], Any] = lambda value: value  # noqa: E731 - what Delta makes of the smallest value
    slack = 0
    if leaf.type_name in ("timestamp", "timestamp_ntz"):
        least, slack = lambda value: value - value % MILLISECOND, MILLISECOND - 1
    elif leaf.type_name == "string":
        least = lambda value: value[:MAX_CHARACTERS]  # noqa: E731
    assert low <= smallest, f"{low!r} is above {smallest!r}"
    assert (high + slack if slack else high) >= largest, f"{high!r} is below {largest!r}"
    if is_tight and leaf.type_name != "string":
        assert (low, high) == (least(smallest), least(largest)), f"{smallest!r} to {largest!r}"
    elif is_tight:
        assert low in (smallest, least(smallest)), f"from {smallest!r}"
        assert high == largest or len(largest) > MAX_CHARACTERS // 2, f"to {largest!r}"
