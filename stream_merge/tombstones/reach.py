"""Chooses the tombstone files that a batch has to read: usually none, since changes arrive nearly in order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stream_merge.tombstones.manifest import TombstoneFile


@dataclass(slots=True)
class Reach:
    """Remembers which tombstone files the last batch of a sink reached, as a guess for the next one.

    A change reaches a file if it is not newer than the file's newest tombstone. One job checks that, and looks up the
    deletes of the files that the batch likely reaches; without the guess it would take two jobs.

    Attributes:
        whole: The paths of the files of which it is known that they have content.
    """

    whole: frozenset[str] = frozenset()
    _is_any: bool = True
    _beyond: frozenset[str] = frozenset()

    def likely(self, files: Sequence[TombstoneFile]) -> list[TombstoneFile]:
        """Return the files that the next batch will probably reach, new ones too; none if the last reached none."""
        return [file for file in files if file.path not in self._beyond] if self._is_any else []

    def note(self, files: Sequence[TombstoneFile], reached: Collection[TombstoneFile]) -> None:
        """Note which of the files a batch reached."""
        self._is_any = bool(reached)
        self._beyond = frozenset(file.path for file in files if file not in reached)
