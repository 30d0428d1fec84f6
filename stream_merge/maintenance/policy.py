"""Chooses the files that a compaction rewrites. Needs no Spark.

Small files are merged by size, as in a size-tiered log-structured merge tree: a tier has the files of about one size,
and `MIN_FILES` of a tier become one file, together with the smaller ones. So each time that a row is written again for
the sake of size, it moves up a tier, and it is written at most once for each tier.

A file with many deleted rows is rewritten whatever its size: a large one alone, small ones together. It has to have
`DEAD_SHARE` of them, so at most `(1 - DEAD_SHARE) / DEAD_SHARE` rows are written for each row that goes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stream_merge.table.files import DataFile

TARGET_BYTES = 128 * 1024 * 1024
"""The size of a file that is large enough, unless the table's `delta.targetFileSize` says another one."""

SMALL_SHARE = 0.5
"""A file with less than this share of the target size is small."""

MIN_FILES = 4
"""So many files of a tier are merged."""

TIER_FACTOR = 4
"""A tier has the files up to so many times as large as its smallest; no more than `MIN_FILES`, so that what is merged
is of a higher tier."""

DEAD_SHARE = 0.2
"""A file is rewritten for the deleted rows in it if they are at least this share of its rows."""

OPEN_BYTES = 1024 * 1024
"""Opening a file takes a reader as long as reading so many bytes."""

MAX_WAITING_FILES = 40
"""So many small files wait while time is saved up for a large one with deleted rows; more of them if opening them takes
no longer than reading `MAX_WAITING_SHARE` of the table."""

MAX_WAITING_SHARE = 0.1

MAX_FILES = 1000
"""So many files are merged into one at most."""

_SIZE = re.compile(r"\s*(?P<number>\d+)\s*(?P<unit>[kmgt]?)i?b?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition that become one file.

    Attributes:
        files: The files.
    """

    files: tuple[DataFile, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(file.size for file in self.files)

    @property
    def num_dead_rows(self) -> int:
        """Number of the deleted rows that go."""
        return sum(file.num_deleted_rows for file in self.files)

    @property
    def live_bytes(self) -> float:
        """About the size of the new file."""
        return sum(map(live_bytes, self.files))

    @property
    def work_bytes(self) -> float:
        """The bytes that are read and written."""
        return self.num_bytes + self.live_bytes

    @property
    def dead_bytes(self) -> float:
        """About the bytes that the deleted rows take."""
        return self.num_bytes - self.live_bytes

    @property
    def worth(self) -> float:
        """What each later reader of the table is spared, for each byte that is read and written now."""
        opened = OPEN_BYTES * (len(self.files) - 1)
        return (opened + self.dead_bytes) / (OPEN_BYTES + self.work_bytes)


def dead_share(file: DataFile) -> float:
    """Return the share of a file's rows that is deleted; 1 if it has deleted rows and their share is unknown."""
    if not file.num_deleted_rows:
        return 0.0
    return min(1.0, file.num_deleted_rows / file.num_physical_rows) if file.num_physical_rows else 1.0


def is_dead(file: DataFile) -> bool:
    """Whether a file is rewritten for its deleted rows."""
    return dead_share(file) >= DEAD_SHARE


def live_bytes(file: DataFile) -> float:
    """Return about how many bytes the rows of a file take that are not deleted."""
    return file.size * (1 - dead_share(file))


def bins(
    files: Sequence[DataFile], *, target_bytes: int = TARGET_BYTES, max_work_bytes: float, merges_small: bool = True
) -> list[Bin]:
    """Return what to rewrite, the worthiest first; no file is in two bins.

    While the table has more deleted rows than a file may have, the bin comes first that takes the least work for each:
    a large file would otherwise wait for ever, since there are always small ones to merge. A clustered file is not
    merged with others, which would mix what clustering has sorted.

    Args:
        files: The table's files.
        target_bytes: The size of a file that is large enough.
        max_work_bytes: The work that one bin should take at most. A bin takes more if it cannot be made smaller.
        merges_small: Whether to merge small files; someone else may do it.
    """
    found: list[Bin] = []
    num_waiting = 0
    for group in _groups(files):
        is_small = {
            file.path: merges_small and not is_clustered(file) and live_bytes(file) < SMALL_SHARE * target_bytes
            for file in group
        }
        small = [file for file in group if is_small[file.path]]
        tiered = _full_tier(small, max_work_bytes)
        num_waiting += len(tiered)
        found += [Bin(tuple(merged)) for merged in _merges_of(small, tiered, target_bytes, max_work_bytes)]
        found += [Bin((file,)) for file in group if is_dead(file) and not is_small[file.path]]
    deadest = _deadest(found, files, num_waiting)
    return sorted(found, key=lambda one: (one is not deadest, -one.worth))


def _deadest(found: Sequence[Bin], files: Sequence[DataFile], num_waiting: int) -> Bin | None:
    """Return the bin that comes before worthier ones, since too many rows are deleted; None if there is none."""
    num_bytes = sum(file.size for file in files)
    if sum(file.size - live_bytes(file) for file in files) <= DEAD_SHARE * num_bytes:
        return None
    if num_waiting > max(MAX_WAITING_FILES, MAX_WAITING_SHARE * num_bytes / OPEN_BYTES):
        return None
    # There may be none: the deleted rows may be in files that each have few.
    dead = [one for one in found if one.dead_bytes >= DEAD_SHARE * one.num_bytes]
    return max(dead, key=lambda one: one.dead_bytes / (OPEN_BYTES + one.work_bytes), default=None)


def within(found: Sequence[Bin], cost: Callable[[float], float], *, piece: float, balance: float) -> list[Bin]:
    """Return the bins for which there is time, in order.

    Args:
        found: The bins, the worthiest first.
        cost: The seconds that so many bytes take together.
        piece: The seconds that one compaction should take.
        balance: The seconds that there are. If the first bin alone takes longer than a piece, it waits until there are
            enough.
    """
    chosen: list[Bin] = []
    work = 0.0
    for one in found:
        limit = balance if not chosen else min(piece, balance)
        if cost(work + one.work_bytes) > limit:
            if not chosen:
                return []
            continue
        chosen.append(one)
        work += one.work_bytes
    return chosen


def is_clustered(file: DataFile) -> bool:
    """Whether a clustering has put the file's rows together."""
    return bool(file.add.get("clusteringProvider")) or any(name.startswith("ZCUBE") for name in _tags(file))


def _tags(file: DataFile) -> Mapping[str, Any]:
    return file.add.get("tags") or {}


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Return the files by partition."""
    by_partition: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    yield from by_partition.values()


def _tier(file: DataFile) -> int:
    return int(math.log(max(live_bytes(file), 1.0), TIER_FACTOR))


def _merges_of(
    small: Sequence[DataFile], tiered: Sequence[DataFile], target_bytes: int, max_work_bytes: float
) -> Iterator[list[DataFile]]:
    """Return which small files of a partition to merge: those of a tier that is full, and those of deleted rows."""
    taken = {file.path for file in tiered}
    # These are rewritten anyway, and need no file of their own.
    dead = [file for file in small if is_dead(file) and file.path not in taken]
    dead.sort(key=dead_share, reverse=True)
    left, at_least = [*tiered, *dead], MIN_FILES if tiered else 1
    while left:
        chosen = _cut(left, at_least, target_bytes, max_work_bytes)
        yield chosen
        left, at_least = [file for file in left[len(chosen) :] if is_dead(file)], 1


def _full_tier(small: Sequence[DataFile], max_work_bytes: float) -> list[DataFile]:
    """Return the files of the highest tier that has enough and takes no longer than it may, and of the tiers below."""
    tiers: dict[int, list[DataFile]] = {}
    for file in small:
        tiers.setdefault(_tier(file), []).append(file)
    full = sorted((tier for tier, members in tiers.items() if len(members) >= MIN_FILES), reverse=True)
    for tier in full:
        members = sorted(tiers[tier], key=live_bytes)
        if tier > full[-1] and sum(map(_work_bytes, members[:MIN_FILES])) > max_work_bytes:
            continue
        lower = [file for other, files in tiers.items() if other < tier for file in files]
        return [*members[:MIN_FILES], *lower, *members[MIN_FILES:]]
    return []


def _work_bytes(file: DataFile) -> float:
    return file.size + live_bytes(file)


def _cut(files: Sequence[DataFile], at_least: int, target_bytes: int, max_work_bytes: float) -> list[DataFile]:
    """Return the first of the files, as many as one file can hold and one compaction should rewrite."""
    chosen: list[DataFile] = []
    size = work = 0.0
    for file in files[:MAX_FILES]:
        size, work = size + live_bytes(file), work + _work_bytes(file)
        if len(chosen) >= at_least and (size > target_bytes or work > max_work_bytes):
            break
        chosen.append(file)
    return chosen


def target_bytes_of(properties: Mapping[str, str]) -> int:
    """Return the size of a file that is large enough for the table with these properties."""
    match = _SIZE.fullmatch(properties.get("delta.targetFileSize", ""))
    if match is None:
        return TARGET_BYTES
    factor = 1024 ** "_kmgt".index(match["unit"].lower() or "_")
    return max(1, int(match["number"]) * int(factor))
