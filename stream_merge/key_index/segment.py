"""Holds sorted entries of the key index: the hash of a key, its file and its position there.

An entry has 128 bits for the key, or 64 if the key is one number: they are the number itself then. Of other keys they
are a cryptographic hash, so that nobody can construct two keys with the same bits; among a billion keys the chance of a
collision is below 10^-20.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 1 << 20
"""Segments are merged in pieces of about this many entries, which bounds the memory that it takes (some 100 MB)."""

_SAMPLE_STEP = 1 << 14
"""Every so many entries one is looked at, to find where to cut the pieces."""

Hashes: TypeAlias = "NDArray[np.uint64]"
FileNumbers: TypeAlias = "NDArray[np.int32]"
Positions: TypeAlias = "NDArray[np.uint32]"


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Entries sorted by `high`, in memory or in a mapped file.

    Attributes:
        high: First half of each hash.
        low: Second half; None if the keys are numbers.
        files: Number of the file of each entry.
        rows: Position in the file.
    """

    high: Hashes
    low: Hashes | None
    files: FileNumbers
    rows: Positions

    @classmethod
    def sorted_from(
        cls, high: Hashes, low: Hashes | None, files: FileNumbers, rows: Positions, *, are_runs: bool = False
    ) -> Chunk:
        """Return entries that come in any order.

        Args:
            high: First half of each hash.
            low: Second half; None if the keys are numbers.
            files: Number of the file of each entry.
            rows: Position in the file.
            are_runs: Whether they come in a few sorted runs, which a stable sort merges; it is slower for others.
        """
        order = np.argsort(high, kind="stable" if are_runs else None)
        return cls(high[order], None if low is None else low[order], files[order], rows[order])

    def __len__(self) -> int:
        return len(self.high)

    def cut(self, begin: int, end: int) -> Chunk:
        """Return the entries from one place to another."""
        low = None if self.low is None else self.low[begin:end]
        return Chunk(self.high[begin:end], low, self.files[begin:end], self.rows[begin:end])

    def find(self, high: Hashes, low: Hashes | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each pair of a hash and an entry that has it, as places in both.

        Args:
            high: First half of each hash; it is faster if they are sorted.
            low: Second half.
        """
        first = np.searchsorted(self.high, high, side="left")
        inside = np.flatnonzero(first < len(self.high))
        hits = inside[self.high[first[inside]] == high[inside]]
        first = first[hits]
        counts = np.searchsorted(self.high, high[hits], side="right") - first
        probes = np.repeat(hits, counts)
        # Entry numbers: each run counts up from the first entry of its hash.
        offsets = np.arange(len(probes)) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(first, counts) + offsets
        if self.low is None or low is None:
            return probes, entries
        is_same = self.low[entries] == low[probes]
        return probes[is_same], entries[is_same]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Chunks one after the other in the order of their hashes.

    Attributes:
        chunks: The chunks; none is empty.
        numbers: The index's number of each file, by the number that the entries give it.
    """

    chunks: tuple[Chunk, ...]
    numbers: FileNumbers

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def num_bytes(self) -> int:
        """The size of the entries."""
        columns = ((chunk.high, chunk.low, chunk.files, chunk.rows) for chunk in self.chunks)
        return sum(column.nbytes for chunk in columns for column in chunk if column is not None)

    def look_up(self, high: Hashes, low: Hashes | None) -> Iterator[tuple[NDArray[np.int64], FileNumbers, Positions]]:
        """Return the entries with one of these hashes, chunk by chunk.

        Args:
            high: First half of each hash, sorted.
            low: Second half.

        Returns:
            For each entry: the place of its hash among those given, the index's number of its file, its position.
        """
        for chunk in self.chunks:
            begin = int(np.searchsorted(high, chunk.high[0], side="left"))
            end = int(np.searchsorted(high, chunk.high[-1], side="right"))
            if begin == end:
                continue
            probes, entries = chunk.find(high[begin:end], None if low is None else low[begin:end])
            if len(probes):
                yield probes + begin, self.numbers[chunk.files[entries]], chunk.rows[entries]

    def between(self, begin: np.uint64 | None, end: np.uint64 | None) -> Iterator[Chunk]:
        """Return the entries with `begin <= high < end`; None stands for no limit."""
        for chunk in self.chunks:
            if (end is not None and chunk.high[0] >= end) or (begin is not None and chunk.high[-1] < begin):
                continue
            first = 0 if begin is None else int(np.searchsorted(chunk.high, begin, side="left"))
            last = len(chunk) if end is None else int(np.searchsorted(chunk.high, end, side="left"))
            if first < last:
                yield chunk.cut(first, last)


def merged(segments: Sequence[Segment], alive: Sequence[int]) -> Iterator[Chunk]:
    """Return the entries of several segments in one order, without those of files that are not alive.

    Args:
        segments: The segments.
        alive: The index's numbers of the files to keep; in the chunks their numbers are places in this sequence.
    """
    wanted = np.array(alive, dtype=np.int32)
    places = [_places(segment.numbers, wanted) for segment in segments]
    cuts = [None, *_cuts(segments), None]
    for begin, end in pairwise(cuts):
        parts = []
        for segment, place in zip(segments, places, strict=True):
            for chunk in segment.between(begin, end):
                files = place[chunk.files]
                kept = files >= 0
                low = None if chunk.low is None else chunk.low[kept]
                parts.append(Chunk(chunk.high[kept], low, files[kept], chunk.rows[kept]))
        if any(map(len, parts)):
            lows = [part.low for part in parts if part.low is not None]
            yield Chunk.sorted_from(
                np.concatenate([part.high for part in parts]),
                np.concatenate(lows) if lows else None,
                np.concatenate([part.files for part in parts]),
                np.concatenate([part.rows for part in parts]),
                are_runs=True,
            )


def _places(numbers: FileNumbers, wanted: FileNumbers) -> FileNumbers:
    """Return where each number is among the wanted ones, -1 where it is not."""
    order = np.argsort(wanted, kind="stable")
    if not len(order):
        return np.full(len(numbers), -1, dtype=np.int32)
    found = np.minimum(np.searchsorted(wanted, numbers, sorter=order), len(order) - 1)
    return np.where(wanted[order[found]] == numbers, order[found], -1).astype(np.int32)


def _cuts(segments: Sequence[Segment]) -> list[np.uint64]:
    """Return hashes between which the segments have about `CHUNK_ROWS` entries together."""
    samples = [chunk.high[::_SAMPLE_STEP] for segment in segments for chunk in segment.chunks]
    if not samples:
        return []
    ordered = np.unique(np.concatenate(samples))
    return list(ordered[CHUNK_ROWS // _SAMPLE_STEP :: CHUNK_ROWS // _SAMPLE_STEP])
