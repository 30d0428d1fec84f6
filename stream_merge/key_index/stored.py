"""Stores the runs of a key index in the table's folder, so that the next start need not read the table's keys again.

They lie under the table's `_stream_merge/`, which VACUUM ignores. Nothing depends on them: a run describes data files,
which never change, and what is missing is read from the data files. So several processes may share the folder without
talking to each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
import uuid
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import Table
from stream_merge.key_index.runs import RunContent, map_run

logger: logging.Logger = logging.getLogger("stream_merge")

FOLDER = "_stream_merge/index"
FORMAT = 1
KEPT_MS = 30 * 24 * 3600 * 1000
"""How long runs stay that nobody has added to: longer than a sink is likely to be away."""
DAMAGED_KEPT_MS = 3600 * 1000
"""The longest that storing a run is likely to take."""

_READ_BYTES = 1 << 20
_UNREADABLE: tuple[type[Exception], ...] = (OSError, *JVM_ERRORS)


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """The stored runs of the indexes that make the same hashes of a table.

    Attributes:
        table: The table.
        fingerprint: What the hashes are made from.
    """

    table: Table
    fingerprint: str

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self.fingerprint}"

    def load(self, folder: Path, active: Collection[str]) -> Iterator[tuple[str, RunContent]]:
        """Return the runs with files that are active, and their names; remove the others, and those left by old sinks.

        Args:
            folder: A folder on the driver's disk for what is loaded; nothing remains in it.
            active: The paths of the table's files.
        """
        for name in self._names():
            # Under a name of its own: other sinks of the process load the same runs.
            content = self._fetch(name, folder / f"{uuid.uuid4().hex}.arrow")
            if content is None:
                continue
            if content.fingerprint == self.fingerprint and not {*content.paths}.isdisjoint(active):
                yield name, content
            else:
                self.remove(name)
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Remove the runs of other hashes that nobody has added to for long: the table's keys or types have changed."""
        try:
            for name in self.table.list_folder(FOLDER):
                path = f"{FOLDER}/{name}"
                if name != self.fingerprint and self.table.modified_ms(path) < time.time() * 1000 - KEPT_MS:
                    self.table.delete(path)
        except JVM_ERRORS as error:
            logger.warning("%s: old parts of the stored key index cannot be removed: %s", self.table.name, error)

    def _fetch(self, name: str, local: Path) -> RunContent | None:
        try:
            self.table.download(f"{self._folder}/{name}", str(local))
            return _checked(local, name)
        except _UNREADABLE as error:  # maybe another process has just merged it into a larger one
            logger.info("%s: a stored part of the key index cannot be read: %s", self.table.name, error)
            return None
        except ValueError as error:
            logger.warning("%s: a stored part of the key index is not used: %s", self.table.name, error)
            self._remove_damaged(name)
            return None
        finally:
            _unlinked(local)

    def _remove_damaged(self, name: str) -> None:
        """Remove a damaged run, unless another process may still be writing it."""
        try:
            is_new = self.table.modified_ms(f"{self._folder}/{name}") > time.time() * 1000 - DAMAGED_KEPT_MS
        except JVM_ERRORS:  # it is gone
            return
        if not is_new:
            self.remove(name)

    def _names(self) -> list[str]:
        try:
            return [name for name in self.table.list_folder(self._folder) if name.endswith(".arrow")]
        except JVM_ERRORS as error:
            logger.warning("%s: the stored key index cannot be listed: %s", self.table.name, error)
            return []

    def save(self, local: Path) -> str | None:
        """Store a run and return its name; None if that fails, which costs the next start time and nothing else."""
        name = f"{uuid.uuid4().hex}-{_checksum(local):08x}.arrow"
        try:
            self.table.upload(str(local), f"{self._folder}/{name}")
        except JVM_ERRORS as error:
            logger.warning("%s: a part of the key index cannot be stored: %s", self.table.name, error)
            return None
        return name

    def remove(self, name: str) -> None:
        """Remove a run."""
        try:
            self.table.delete(f"{self._folder}/{name}")
        except JVM_ERRORS as error:
            logger.warning("%s: %s cannot be removed from the stored key index: %s", self.table.name, name, error)


def fingerprint_of(*facts: object) -> str:
    """Return a name for what hashes are made from."""
    return hashlib.sha256(json.dumps([FORMAT, *facts], default=str).encode()).hexdigest()[:32]


def _unlinked(path: Path) -> None:
    """Remove what was loaded. What is left there costs room on the disk until the application ends."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _checked(path: Path, name: str) -> RunContent:
    if f"{_checksum(path):08x}" != name.removesuffix(".arrow").rpartition("-")[2]:
        raise ValueError(f"{name} is damaged")
    return map_run(path)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum
