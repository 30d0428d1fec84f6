"""Reads the commits of a table from DESCRIBE HISTORY, and sums up several merges."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

from stream_merge.metrics import MAINTENANCE_TIME

_OWN_METRIC = "numSupersededRows"
"""An operation metric that only this library writes, into each of its commits."""

# exactly_once.BatchIdentity records when the query planned a batch under the application id with this suffix.
_PLANNED = "/planned-ms"
# And with this one, that the batch had been parked.
_PARKED = "/parked"
_LEFT_OUT = ("numSupersededRows", "numStaleRows", "numOutdatedRows", "numUnchangedRows")
_PHASES = (("source", "materializeSourceTimeMs"), ("locate", "scanTimeMs"), ("stage", "rewriteTimeMs"))


def split_phases(total_ms: int, phase_ms: Mapping[str, int]) -> dict[str, int]:
    """Return the milliseconds of source, locate, stage and the rest, whose sum is the total.

    Stage can overlap locate; the overlap counts as locate.
    """
    left, phases = total_ms, {}
    for phase, _ in _PHASES:
        phases[phase] = min(left, phase_ms.get(phase, 0))
        left -= phases[phase]
    return {**phases, "rest": left}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of the table, whoever wrote it.

    Attributes:
        version: The table version.
        time: When it was committed.
        operation: Delta's name of the operation.
        metrics: The operation metrics that are whole numbers, by Delta's names.
        user_metadata: The text that the writer gave the commit.
        app_id: The application id under which the batch is recorded: the streaming query's id by default.
        batch_id: The micro-batch's number; None outside a stream.
        planned: When the query planned the micro-batch.
    """

    version: int
    time: datetime
    operation: str
    metrics: Mapping[str, int] = field(default_factory=dict)
    user_metadata: str | None = None
    app_id: str | None = None
    batch_id: int | None = None
    planned: datetime | None = None

    @property
    def is_merge(self) -> bool:
        """Whether stream_merge wrote it."""
        return _OWN_METRIC in self.metrics

    @property
    def is_maintenance(self) -> bool:
        """Whether it is a compaction by stream_merge."""
        return MAINTENANCE_TIME in self.metrics

    def count(self, *names: str) -> int:
        """Return the sum of operation metrics; missing ones count as 0."""
        return sum(self.metrics.get(name, 0) for name in names)

    @property
    def num_source_rows(self) -> int:
        """Rows of the micro-batch that were merged; with keys and a sequence, the newest change of each key."""
        return self.count("numSourceRows")

    @property
    def num_inserted(self) -> int:
        """Rows that the commit inserted."""
        return self.count("numTargetRowsInserted")

    @property
    def num_updated(self) -> int:
        """Rows that the commit updated."""
        return self.count("numTargetRowsUpdated")

    @property
    def num_deleted(self) -> int:
        """Rows that the commit deleted."""
        return self.count("numTargetRowsDeleted")

    @property
    def num_left_out(self) -> int:
        """Changes that a newer one in the batch or the table replaced, and updates that would change nothing."""
        return self.count(*_LEFT_OUT)

    @property
    def num_quarantined(self) -> int:
        """Rows that went to the quarantine table."""
        return self.count("numQuarantinedRows")

    @property
    def num_conflicts(self) -> int | None:
        """How often the commit conflicted with another writer before it landed; None if the commit does not say."""
        attempts = self.metrics.get("numCommitAttempts")
        return None if attempts is None else max(0, attempts - 1)

    @property
    def duration_ms(self) -> int:
        """Milliseconds of the merge, without the commit itself."""
        return self.count("executionTimeMs")

    @property
    def phases_ms(self) -> dict[str, int]:
        """Milliseconds of source, locate, stage and the rest; their sum is `duration_ms`.

        Stage can overlap locate; the overlap counts as locate.
        """
        return split_phases(self.duration_ms, {phase: self.count(name) for phase, name in _PHASES})

    @property
    def how(self) -> str:
        """How the changes were written, according to the metrics."""
        if self.operation == "STREAMING UPDATE":
            return "overwrite"
        if self.count("numTargetDeletionVectorsAdded", "numTargetDeletionVectorsUpdated"):
            return "deletion vectors"
        if self.count("numTargetFilesRemoved", "numRemovedFiles"):
            return "rewritten files"
        return "new files" if self.count("numTargetFilesAdded", "numAddedFiles") else "nothing to write"

    @property
    def delay(self) -> timedelta | None:
        """Time from the planning of the micro-batch to its commit; None if the commit lacks the time of planning."""
        return None if self.planned is None else self.time - self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Several merges in a row.

    Attributes:
        merges: The merges, the oldest first.
        since: The merge before them; None if the history begins with them.
    """

    merges: tuple[Commit, ...]
    since: Commit | None

    def count(self, *names: str) -> int:
        """Return the sum of operation metrics over all merges."""
        return sum(merge.count(*names) for merge in self.merges)

    @property
    def num_conflicts(self) -> int | None:
        """Conflicts of all merges; None if a commit does not say."""
        numbers = [merge.num_conflicts for merge in self.merges]
        known = [number for number in numbers if number is not None]
        return sum(known) if known and len(known) == len(numbers) else None

    @property
    def gaps(self) -> list[timedelta]:
        """Time from each merge to the next."""
        times = [merge.time for merge in ((self.since,) if self.since else ()) + self.merges]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def rows_per_second(self) -> float | None:
        """Source rows per second, from the commit before the window, or its first, to its last; None without a gap."""
        merges = self.merges if self.since else self.merges[1:]
        seconds = sum((gap.total_seconds() for gap in self.gaps), 0.0)
        return sum(merge.num_source_rows for merge in merges) / seconds if seconds > 0 else None

    @property
    def rows_per_busy_second(self) -> float | None:
        """Source rows per second of merging."""
        ms = self.count("executionTimeMs")
        return 1000 * self.count("numSourceRows") / ms if ms else None

    @property
    def median_ms(self) -> float:
        """Median milliseconds of a merge."""
        return statistics.median(merge.duration_ms for merge in self.merges)

    @property
    def longest_ms(self) -> int:
        """Milliseconds of the longest merge."""
        return max(merge.duration_ms for merge in self.merges)


def commits_of(
    history: Iterable[Mapping[str, Any]], recorded: Iterable[tuple[int, str, int]] = ()
) -> tuple[Commit, ...]:
    """Return the commits in rows of DESCRIBE HISTORY, the oldest first.

    Args:
        history: Rows with version, ms (of the commit, since the epoch), operation, operationMetrics and userMetadata.
        recorded: Version, application id and number of each SetTransaction.
    """
    batches: dict[int, dict[str, Any]] = {}
    for version, app_id, number in recorded:
        batch = batches.setdefault(version, {})
        if app_id.endswith(_PLANNED):
            batch["planned"] = time_of(number)
        elif not app_id.endswith(_PARKED):
            batch |= {"app_id": app_id, "batch_id": number}
    commits = [
        Commit(
            version=int(row["version"]),
            time=time_of(row["ms"]),
            operation=row["operation"],
            metrics=_whole_numbers(row["operationMetrics"] or {}),
            user_metadata=row["userMetadata"],
            **batches.get(int(row["version"]), {}),
        )
        for row in history
    ]
    return tuple(sorted(commits, key=lambda commit: commit.version))


def _whole_numbers(metrics: Mapping[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in metrics.items() if value.removeprefix("-").isdecimal()}


def time_of(ms: int) -> datetime:
    """Return the time, in UTC, of milliseconds since the epoch."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
