"""Decides which tombstone files a batch has to read: mostly none, since changes come nearly in order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stream_merge.tombstones.manifest import TombstoneFile


@dataclass(slots=True)
class Reach:
    """Which files of tombstones the last batch of a sink reached, which the next one is likely to reach, too.

    A change reaches a file if it is no newer than the newest tombstone there. Whether one does, and the deletes of the files that
    are likely reached are looked up in one job; without this there would be one for each.
    """

    _is_any: bool = True
    _beyond: frozenset[str] = frozenset()

    def likely(self, files: Sequence[TombstoneFile]) -> list[TombstoneFile]:
        """Return the files that the next batch will probably reach: new ones as well, if it is no batch in order."""
        return [file for file in files if file.path not in self._beyond] if self._is_any else []

    def note(self, files: Sequence[TombstoneFile], reached: Collection[TombstoneFile]) -> None:
        """Note which of the files a batch reached."""
        self._is_any = bool(reached)
        self._beyond = frozenset(file.path for file in files if file not in reached)
