"""Caches the file and position of each key in the driver's memory: the key index.

An entry has 128 bits for the key, its file and its position: 24 bytes a row, sorted, in a few segments like those of a
log-structured merge tree. If order counts, the index also keeps the newest sequence of each file. Rows that a deletion
vector marks stay until their file goes; the caller subtracts the vector. The bits are the key itself if it is one
number, else a cryptographic hash, so that nobody can construct two keys with the same bits; among a billion keys the
chance of a collision is below 10^-20.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 5_000_000
"""No index is kept if the files that a batch may match have more rows than this, deleted ones included (120 MB)."""

MAX_ROWS_OF_ALL = 20_000_000
"""Limits the rows in the indexes of all sinks of a process; a sink that would exceed it keeps no index (480 MB)."""

MAX_SEGMENTS = 12

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries sorted by `high`.

    Attributes:
        high: First half of each hash.
        low: Second half.
        files: Number of the file of each entry.
        rows: Position in the file.
    """

    high: Hashes
    low: Hashes
    files: NDArray[np.int32]
    rows: NDArray[np.uint32]

    @classmethod
    def sorted_from(cls, high: Hashes, low: Hashes, files: NDArray[np.int32], rows: NDArray[np.uint32]) -> Segment:
        """Return a segment of entries in any order."""
        order = np.argsort(high, kind="stable")
        return cls(high[order], low[order], files[order], rows[order])

    def __len__(self) -> int:
        return len(self.high)


@dataclass(eq=False)
class KeyIndex:
    """The keys of some files of one table.

    Attributes:
        fingerprint: What the hashes are made from: the table and the key columns.
    """

    fingerprint: tuple[object, ...] = ()
    _asked: frozenset[str] = frozenset()
    _numbers: dict[str, int] = field(default_factory=dict)
    _next_number: int = 0
    _newest: dict[str, Any] = field(default_factory=dict)
    _segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        with _lock:
            _indexes.add(self)

    def reset(self, fingerprint: tuple[object, ...]) -> None:
        """Forget everything if the fingerprint differs."""
        if fingerprint != self.fingerprint:
            self.fingerprint = fingerprint
            self.clear()
            self._asked = frozenset()

    def clear(self) -> None:
        """Forget all files."""
        self._numbers.clear()
        self._newest.clear()
        self._segments.clear()

    def note_asked(self, paths: Collection[str]) -> set[str]:
        """Note the files that a batch may match; return those neither indexed nor asked for by the last batch."""
        asked = frozenset(paths)
        unfamiliar = {path for path in asked - self._asked if path not in self._numbers}
        self._asked = asked
        return unfamiliar

    def __len__(self) -> int:
        return sum(len(segment) for segment in self._segments)

    def has(self, path: str) -> bool:
        """Whether the index has the keys of a file."""
        return path in self._numbers

    def paths(self) -> Mapping[int, str]:
        """Return the path of each file by its number."""
        return {number: path for path, number in self._numbers.items()}

    def newest(self, path: str) -> Any:
        """Return the newest sequence added with a file's keys; None if there was none."""
        return self._newest.get(path)

    def retain(self, paths: Collection[str]) -> None:
        """Forget all other files; their entries are dropped when segments are merged."""
        for path in [path for path in self._numbers if path not in paths]:
            del self._numbers[path]
            self._newest.pop(path, None)

    def make_room(self, num_rows: int, paths: Collection[str]) -> None:
        """Forget all files but these, with their entries, if `num_rows` more rows would be too many."""
        if len(self) + num_rows > MAX_ROWS:
            self.retain(paths)
            self._merge_from(0)

    def has_room(self, num_rows: int) -> bool:
        """Whether the indexes of all sinks together leave room for `num_rows` more rows."""
        with _lock:
            indexes = list(_indexes)
        return sum(map(len, indexes)) + num_rows <= MAX_ROWS_OF_ALL

    def add(
        self,
        path_numbers: Mapping[int, str],
        files: NDArray[np.int64],
        rows: NDArray[np.int64],
        high: Hashes,
        low: Hashes,
        newest: Mapping[int, Any] | None = None,
    ) -> None:
        """Add the keys of files.

        Args:
            path_numbers: Path of each file, by a number of the caller's. Files without entries count as indexed from
                now on, too.
            files: The caller's number of each entry's file.
            rows: Position of each entry.
            high: First half of each hash.
            low: Second half.
            newest: The newest sequence in each file, by the caller's number, if the order of changes counts.
        """
        own = {}
        for number, path in path_numbers.items():
            if newest is not None and number in newest:
                self._newest[path] = newest[number]
            own[number] = self._numbers[path] = self._next_number
            self._next_number += 1
        if not len(files):
            return
        theirs, inverse = np.unique(files, return_inverse=True)
        numbers = np.array([own[int(number)] for number in theirs], dtype=np.int32)[inverse]
        self._segments.append(Segment.sorted_from(high, low, numbers, rows.astype(np.uint32)))
        if len(self._segments) > MAX_SEGMENTS:
            self._merge()

    def _merge(self) -> None:
        """Merge the segments that are not much larger than those after them, dropping entries of forgotten files."""
        self._segments.sort(key=len, reverse=True)
        keep = 0
        while keep < len(self._segments) - 1 and len(self._segments[keep]) > 4 * sum(
            map(len, self._segments[keep + 1 :])
        ):
            keep += 1
        self._merge_from(keep)

    def _merge_from(self, keep: int) -> None:
        merged = self._segments[keep:]
        if not merged:
            return
        alive = np.array(sorted(self._numbers.values()), dtype=np.int32)
        masks = [np.isin(segment.files, alive) for segment in merged]
        self._segments[keep:] = [
            Segment.sorted_from(
                np.concatenate([s.high[m] for s, m in zip(merged, masks, strict=True)]),
                np.concatenate([s.low[m] for s, m in zip(merged, masks, strict=True)]),
                np.concatenate([s.files[m] for s, m in zip(merged, masks, strict=True)]),
                np.concatenate([s.rows[m] for s, m in zip(merged, masks, strict=True)]),
            )
        ]

    def look_up(self, high: Hashes, low: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32]]:
        """Return the entries with one of these hashes.

        Returns:
            For each entry: the position of its hash among those given, the number of its file, its row in the file. It
            includes entries of forgotten files, whose numbers are not in `paths`.
        """
        probes, files, rows = [], [], []
        for segment in self._segments:
            first = np.searchsorted(segment.high, high, side="left")
            counts = np.searchsorted(segment.high, high, side="right") - first
            probe = np.repeat(np.arange(len(high)), counts)
            # Entry numbers: each run counts up from the first entry of its hash.
            offsets = np.arange(len(probe)) - np.repeat(np.cumsum(counts) - counts, counts)
            entry = np.repeat(first, counts) + offsets
            is_same = segment.low[entry] == low[probe]
            probes.append(probe[is_same])
            files.append(segment.files[entry[is_same]])
            rows.append(segment.rows[entry[is_same]])
        if not probes:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint32)
        return np.concatenate(probes), np.concatenate(files), np.concatenate(rows)


_lock = Lock()
_indexes: WeakSet[KeyIndex] = WeakSet()
"""The indexes of all sinks of the process."""
