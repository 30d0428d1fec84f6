"""Knows the file and the position of each key in the files of a table: the key index.

New entries are in memory, in a few sorted segments. From a million on they move to runs: files on the driver's disk,
mapped into memory, which are also stored in the table's folder for the next start. Like those of a log-structured merge
tree, segments of similar size are merged, the large ones by a thread of their own beside the batches.

If order counts, the index also keeps the newest sequence of each file. Rows that a deletion vector marks stay until
their file goes, since a RESTORE brings them back; the caller subtracts the vector.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from stream_merge.key_index.runs import RunContent, map_run, write_run
from stream_merge.key_index.segment import Chunk, FileNumbers, Hashes, Positions, Segment, merged

logger: logging.Logger = logging.getLogger("stream_merge")

MAX_ROWS_OF_ALL = 500_000_000
"""Limits the rows in the indexes of all sinks of a process; a sink that would exceed it keeps no index (12 GB)."""

ENTRY_BYTES = 24
"""The size of an entry; 16 if the keys are numbers."""

RUN_ROWS = 1_000_000
"""From so many entries on, what is in memory moves to a run."""

MEMORY_ROWS = 5_000_000
"""So many entries of an index are in memory at most: whoever adds more waits for runs to be written, or finds no room.
"""

MEMORY_ROWS_OF_ALL = 10_000_000
"""If the indexes of all sinks have more in memory, each moves to runs what it has from `SMALL_RUN_ROWS` entries on."""

SMALL_RUN_ROWS = 50_000

MAX_SEGMENTS = 12
"""With more segments in memory, those that are not much larger than those after them are merged."""

RUNS_OF_A_SIZE = 4
"""So many runs of about one size, up to this factor, are merged into one."""


class Store(Protocol):
    """Where runs are kept for the next start."""

    def save(self, local: Path) -> str | None:
        """Store a file and return its name; None if that fails."""

    def remove(self, name: str) -> None:
        """Remove a stored file."""


@dataclass(slots=True, eq=False)
class _Run:
    """A segment in a file.

    Attributes:
        segment: The segment, mapped.
        local: The file, until it is stored; None afterwards.
        stored: Its name in the store; None if it is not there.
        replaces: The names of stored runs that go when this one is stored.
    """

    segment: Segment
    local: Path | None = None
    stored: str | None = None
    replaces: tuple[str, ...] = ()


@dataclass(eq=False)
class KeyIndex:
    """The keys of some files of one table.

    Attributes:
        fingerprint: What the hashes are made from: the table and the key columns.
        place: Where its runs are: the Spark application, on whose disk they are, and the folder of the table.
        is_in_use: Whether the last batch was looked up, so that the next one probably will be.
        writes_in_order: Whether a file that a merge writes has the rows in the order in which they were given; None if
            that is not known yet.
        expected: The hashes of the rows of files that merges have written, in the order in which they were given, until
            it is known.
    """

    fingerprint: str = ""
    place: tuple[str, ...] = ()
    is_in_use: bool = False
    writes_in_order: bool | None = None
    expected: dict[str, tuple[Hashes, Hashes | None]] = field(default_factory=dict)
    _asked: frozenset[str] = frozenset()
    _numbers: dict[str, int] = field(default_factory=dict)
    _next_number: int = 0
    _newest: dict[str, Any] = field(default_factory=dict)
    _segments: list[Segment] = field(default_factory=list)
    _runs: list[_Run] = field(default_factory=list)
    _moving: tuple[Segment, ...] = ()
    _folder: Path | None = None
    _store: Store | None = None
    _worker: Thread | None = None
    _is_failing: bool = False
    _generation: int = 0
    _lock: Any = field(default_factory=RLock)

    def __post_init__(self) -> None:
        with _lock:
            _indexes.add(self)

    def reset(self, fingerprint: str, place: tuple[str, ...] = ()) -> None:
        """Forget everything if the fingerprint differs, or the place of the runs."""
        if (fingerprint, place) != (self.fingerprint, self.place):
            self.clear()
            self.fingerprint, self.place, self._asked = fingerprint, place, frozenset()
            self._folder = self._store = None
            self.is_in_use, self.writes_in_order = False, None
            self.expected.clear()

    @property
    def is_open(self) -> bool:
        """Whether `open` was called since the last reset."""
        return self._folder is not None

    def open(self, folder: Path, store: Store | None, known: Iterable[tuple[str, RunContent]] = ()) -> None:
        """Say where runs are kept, and take over those of earlier processes.

        Args:
            folder: Where to keep them on the driver's disk.
            store: Where to keep them for the next start; None if they are not.
            known: The runs that are in the store, by name.
        """
        self._folder, self._store = folder, store
        for name, content in sorted(known, key=lambda run: -sum(map(len, run[1].chunks))):
            if not content.chunks:
                continue
            # A file that two runs have counts once: its entries in the other one have a number that no path has.
            numbers = [
                self._number(path, newest) if path not in self._numbers else -1
                for path, newest in zip(content.paths, content.newest, strict=True)
            ]
            segment = Segment(tuple(content.chunks), np.array(numbers, dtype=np.int32))
            self._runs.append(_Run(segment, stored=name))
        self._maintain_in_background()

    def _number(self, path: str, newest: Any) -> int:
        number = self._numbers[path] = self._next_number
        self._next_number += 1
        if newest is not None:
            self._newest[path] = newest
        return number

    def clear(self) -> None:
        """Forget all files."""
        with self._lock:
            self._generation += 1
            self._numbers.clear()
            self._newest.clear()
            self._segments.clear()
            for run in self._runs:
                if run.local is not None:
                    with suppress(OSError):  # as the disk is; it goes with the application
                        run.local.unlink(missing_ok=True)
            self._runs.clear()
            self._moving = ()

    def note_asked(self, paths: Collection[str]) -> set[str]:
        """Note the files that a batch may match; return those neither indexed nor asked for by the last batch."""
        asked = frozenset(paths)
        unfamiliar = {path for path in asked - self._asked if path not in self._numbers}
        self._asked = asked
        return unfamiliar

    def __len__(self) -> int:
        return sum(map(len, self._all()))

    @property
    def disk_bytes(self) -> int:
        """The size of the runs."""
        with self._lock:
            return sum(run.segment.num_bytes for run in self._runs)

    def _all(self) -> list[Segment]:
        with self._lock:
            return [*(run.segment for run in self._runs), *self._segments]

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
        with self._lock:
            for path in [path for path in self._numbers if path not in paths]:
                del self._numbers[path]
                self._newest.pop(path, None)

    def make_room(self, num_rows: int, paths: Collection[str]) -> None:
        """Forget all files but these, with their entries, if `num_rows` more rows would be too many."""
        if len(self) + num_rows <= MAX_ROWS_OF_ALL:
            return
        self.retain(paths)
        self.wait()
        with self._lock:
            self._merge_from(0)
            try:
                if self._runs:
                    self._in_one_run([run.segment for run in self._runs], self._runs)
            except (OSError, ValueError) as error:
                logger.warning(
                    "the key index begins anew, since it could not be written to %s: %s", self._folder, error
                )
                self.clear()

    def has_room(self, num_rows: int) -> bool:
        """Whether the indexes of all sinks together, and the disk, leave room for `num_rows` more rows."""
        indexes = _all_indexes()
        num_in_memory = sum(index.num_in_memory for index in indexes)
        if sum(map(len, indexes)) + num_rows > MAX_ROWS_OF_ALL or num_in_memory > 2 * MEMORY_ROWS_OF_ALL:
            return False
        # What cannot be written would be read into memory in vain, batch after batch.
        if self.num_in_memory >= MEMORY_ROWS or (self._is_failing and num_rows >= RUN_ROWS):
            return False
        # A merge has its input and its output on the disk.
        if num_rows < RUN_ROWS or self._folder is None:
            return True
        try:
            return shutil.disk_usage(self._folder).free >= 3 * ENTRY_BYTES * num_rows
        except OSError:  # somebody has tidied up temporary folders
            return False

    def add(
        self,
        path_numbers: Mapping[int, str],
        files: NDArray[np.int64],
        rows: NDArray[np.int64],
        high: Hashes,
        low: Hashes | None,
        newest: Mapping[int, Any] | None = None,
        active: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Add the keys of files.

        Args:
            path_numbers: Path of each file, by a number of the caller's. Files without entries count as indexed from
                now on, too.
            files: The caller's number of each entry's file.
            rows: Position of each entry.
            high: First half of each hash.
            low: Second half; None if the keys are numbers.
            newest: The newest sequence in each file, by the caller's number, if the order of changes counts.
            active: Returns the paths that the table has; others are forgotten before segments are merged.
        """
        with self._lock:
            # Memory may run out while the entries are sorted: a file counts as indexed only after that.
            theirs, places = np.unique(files, return_inverse=True)
            chunk = None
            if len(files):
                chunk = Chunk.sorted_from(high, low, places.astype(np.int32), rows.astype(np.uint32))
            own = {number: self._number(path, (newest or {}).get(number)) for number, path in path_numbers.items()}
            if chunk is not None:
                numbers = np.array([own[int(number)] for number in theirs], dtype=np.int32)
                self._segments.append(Segment((chunk,), numbers))
            is_due = len(self._segments) - len(self._moving) > MAX_SEGMENTS or self._is_large()
            if is_due and active is not None:
                self.retain(active())
            if len(self._segments) - len(self._moving) > MAX_SEGMENTS:
                self._merge()
        self._maintain_in_background()
        if self.num_in_memory >= MEMORY_ROWS:
            self.wait()

    @property
    def num_in_memory(self) -> int:
        """The number of entries that are in no run."""
        return sum(map(len, self._segments))

    def _is_large(self) -> bool:
        num_rows = self.num_in_memory
        if self._moving or num_rows < min(RUN_ROWS, SMALL_RUN_ROWS):
            return False
        return num_rows >= RUN_ROWS or sum(index.num_in_memory for index in _all_indexes()) > MEMORY_ROWS_OF_ALL

    def _merge(self) -> None:
        """Merge the segments that are not much larger than those after them, dropping entries of forgotten files."""
        self._segments.sort(key=lambda segment: (segment not in self._moving, -len(segment)))
        keep = len(self._moving)
        while keep < len(self._segments) - 1 and len(self._segments[keep]) > 4 * sum(
            map(len, self._segments[keep + 1 :])
        ):
            keep += 1
        self._merge_from(keep)

    def _merge_from(self, keep: int) -> None:
        inputs = self._segments[keep:]
        if not inputs:
            return
        alive = self._alive_in(inputs)
        chunks = tuple(merged(inputs, alive))
        self._segments[keep:] = [Segment(chunks, np.array(alive, dtype=np.int32))] if chunks else []

    def _alive_in(self, segments: Sequence[Segment]) -> list[int]:
        present: set[int] = set().union(*(segment.numbers.tolist() for segment in segments))
        return sorted(present & {*self._numbers.values()})

    def _maintain_in_background(self) -> None:
        with self._lock:
            if self._folder is None or self._worker is not None or self._due() is None:
                return
            self._worker = Thread(target=self._maintain, name="stream_merge key index", daemon=True)
            self._worker.start()

    def wait(self) -> None:
        """Wait until what is due is merged and stored."""
        worker = self._worker
        if worker is not None:
            worker.join()

    def _maintain(self) -> None:
        while True:
            with self._lock:
                work = self._due()
                if work is None:
                    self._worker = None
                    return
            try:
                work()
            except Exception:  # the index is a cache: a merge never fails for it
                logger.warning("the key index could not be written to %s", self._folder, exc_info=True)
                with self._lock:
                    self._moving, self._worker, self._is_failing = (), None, True
                return

    def _due(self) -> Callable[[], None] | None:
        """Return what to do next: move what is in memory to a run, merge runs, or store one."""
        if self._is_large():
            return self._move
        by_size: dict[int, list[_Run]] = {}
        for run in self._runs:
            size = int(np.log(max(len(run.segment) / RUN_ROWS, 1)) / np.log(RUNS_OF_A_SIZE))
            by_size.setdefault(size, []).append(run)
        for _, runs in sorted(by_size.items()):
            if len(runs) >= RUNS_OF_A_SIZE:
                return lambda: self._in_one_run([run.segment for run in runs], runs)
        unsaved = next((run for run in self._runs if run.local is not None), None)
        return None if unsaved is None else lambda: self._save(unsaved)

    def _move(self) -> None:
        with self._lock:
            self._moving = tuple(self._segments)
        self._in_one_run(self._moving, [])

    def _in_one_run(self, segments: Sequence[Segment], runs: Sequence[_Run]) -> None:
        """Merge segments into a run, which takes their place."""
        assert self._folder is not None
        with self._lock:
            generation, alive, by_number = self._generation, self._alive_in(segments), self.paths()
            paths = [by_number[number] for number in alive]
            newest = [self._newest.get(path) for path in paths]
        local = self._folder / f"index-{uuid.uuid4().hex}.arrow"
        try:
            num_rows = write_run(local, self.fingerprint, paths, newest, merged(segments, alive))
            content = map_run(local) if num_rows else None
            self._is_failing = False
        except BaseException:
            local.unlink(missing_ok=True)
            raise
        with self._lock:
            is_kept = content is not None and generation == self._generation and self._store is not None
            if not is_kept:
                local.unlink(missing_ok=True)
            if generation != self._generation:
                return
            self._segments = [segment for segment in self._segments if segment not in segments]
            self._moving = ()
            self._runs = [run for run in self._runs if run not in runs]
            replaced = tuple(name for run in runs for name in (run.stored, *run.replaces) if name is not None)
            for run in runs:
                if run.local is not None:
                    run.local.unlink(missing_ok=True)
            if content is not None:
                segment = Segment(tuple(content.chunks), np.array(alive, dtype=np.int32))
                self._runs.append(_Run(segment, local if is_kept else None, replaces=replaced))

    def _save(self, run: _Run) -> None:
        store, local = self._store, run.local
        if store is not None and local is not None:
            run.stored = store.save(local)
            for name in run.replaces if run.stored is not None else ():
                store.remove(name)
            local.unlink(missing_ok=True)
        with self._lock:
            run.local, run.replaces = None, () if run.stored is not None else run.replaces

    def look_up(self, high: Hashes, low: Hashes | None) -> tuple[NDArray[np.int64], FileNumbers, Positions]:
        """Return the entries with one of these hashes.

        Returns:
            For each entry: the position of its hash among those given, the number of its file, its row in the file. It
            includes entries of forgotten files, whose numbers are not in `paths`.
        """
        order = np.argsort(high, kind="stable")
        high, low = high[order], None if low is None else low[order]
        found = [part for segment in self._all() for part in segment.look_up(high, low)]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint32)
        probes, files, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return order[probes], files, rows


def _all_indexes() -> list[KeyIndex]:
    with _lock:
        return list(_indexes)


_lock = RLock()
_indexes: WeakSet[KeyIndex] = WeakSet()
"""The indexes of all sinks of the process."""
