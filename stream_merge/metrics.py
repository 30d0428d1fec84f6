"""The result of one merge: its metrics and the duration of its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

PHASES = ("open", "source", "locate", "stage", "commit", "maintenance")
"""The phases of a micro-batch in order; stage can overlap locate, and maintenance follows some commits."""

MAINTENANCE_TIME = "maintenanceTimeMs"
"""An operation metric that only this library's compactions write: the milliseconds until the commit."""

MAINTENANCE_OUTCOMES = ("compacted", "vacuumed", "conflict", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The outcome of one micro-batch.

    The counters have the names, in snake case, and the meaning of Delta's MERGE metrics in DESCRIBE HISTORY. Sizes are
    in bytes, times in milliseconds.

    Attributes:
        target: The target as configured.
        query_id: The streaming query's id, which outlives restarts; None outside a stream.
        batch_id: The micro-batch's number; None outside a stream.
        version: The table version that the merge committed; None if it committed nothing.
        strategy: insert_only, merge_on_read, copy_on_write or overwrite; None if the batch was skipped.
        reason: Why this strategy, or why the batch was skipped.
        skipped: Whether the table held this batch already.
        locator: How matching rows were found: scan (the candidate files were read) or index; None if nothing was looked
            up.
        num_commit_attempts: How often a commit was tried; more than one after conflicts.
        conflicts: Delta's name of the conflict for each attempt that failed.
        phase_ms: Duration of each phase of `PHASES`.
        num_superseded_rows: Changes that a newer change of the same key in the batch replaced.
        num_tied_keys: Keys whose newest changes in the batch have the same sequence and write different rows.
        num_stale_rows: Changes skipped because they are older than the row that they match.
        num_unchanged_rows: Rows not written because their update would not change them; 0 unless the sink has
            `skip_unchanged`.
        num_outdated_rows: Changes skipped because they are older than a remembered delete of their key.
        num_unresolved_rows: Rows written without a value that their change did not send and no other change gave.
        num_undecidable_rows: Changes older than a forgotten delete, which may have been one of their key.
        num_quarantined_rows: Rows that could not be merged and went to the quarantine table.
        num_tombstones: Deletes that the table remembers after the commit.
        num_tombstones_added: Deletes of this batch.
        num_tombstones_removed: Deletes that were forgotten, or replaced by later deletes of the same key.
        oldest_tombstone_ms: Age of the oldest remembered delete.
        index_rows: Keys in the sink's key index, those of old versions of rows included.
        index_disk_bytes: Size of its part on the driver's disk. The rest, fewer than five million keys, is in memory.
        maintenance: What the sink did for the table after the commit: compacted; vacuumed; conflict if another writer
            came first and a compaction was given up; failed; None if nothing was due.
        compacted_files: Files that the compaction rewrote.
        compacted_bytes: Their size.
        purged_rows: Deleted rows that it removed from them.
        table_files: The table's files when maintenance last looked; None if it has not.
        table_rows: The rows in these files, deleted ones included; None if not known.
        deleted_rows: Those of them that are marked as deleted; None if not known.
    """

    target: str
    query_id: str | None = None
    batch_id: int | None = None
    version: int | None = None
    strategy: str | None = None
    reason: str = ""
    skipped: bool = False
    locator: str | None = None
    num_commit_attempts: int = 0
    conflicts: tuple[str, ...] = ()
    phase_ms: Mapping[str, int] = field(default_factory=dict)
    num_source_rows: int = 0
    num_output_rows: int = 0
    num_target_rows_copied: int = 0
    num_target_rows_inserted: int = 0
    num_target_rows_updated: int = 0
    num_target_rows_matched_updated: int = 0
    num_target_rows_not_matched_by_source_updated: int = 0
    num_target_rows_deleted: int = 0
    num_target_rows_matched_deleted: int = 0
    num_target_rows_not_matched_by_source_deleted: int = 0
    num_target_files_before_skipping: int = 0
    num_target_files_after_skipping: int = 0
    num_target_files_removed: int = 0
    num_target_files_added: int = 0
    num_target_change_files_added: int = 0
    num_target_change_file_bytes: int = 0
    num_target_bytes_before_skipping: int = 0
    num_target_bytes_after_skipping: int = 0
    num_target_bytes_removed: int = 0
    num_target_bytes_added: int = 0
    num_target_partitions_after_skipping: int = 0
    num_target_partitions_removed_from: int = 0
    num_target_partitions_added_to: int = 0
    num_target_deletion_vectors_added: int = 0
    num_target_deletion_vectors_updated: int = 0
    num_target_deletion_vectors_removed: int = 0
    num_added_files: int = 0
    num_removed_files: int = 0
    num_superseded_rows: int = 0
    num_tied_keys: int = 0
    num_stale_rows: int = 0
    num_unchanged_rows: int = 0
    num_outdated_rows: int = 0
    num_undecidable_rows: int = 0
    num_unresolved_rows: int = 0
    num_quarantined_rows: int = 0
    num_tombstones: int = 0
    num_tombstones_added: int = 0
    num_tombstones_removed: int = 0
    oldest_tombstone_ms: int = 0
    index_rows: int = 0
    index_disk_bytes: int = 0
    maintenance: str | None = None
    compacted_files: int = 0
    compacted_bytes: int = 0
    purged_rows: int = 0
    table_files: int | None = None
    table_rows: int | None = None
    deleted_rows: int | None = None
    execution_time_ms: int = 0
    scan_time_ms: int = 0
    rewrite_time_ms: int = 0
    materialize_source_time_ms: int = 0

    def line(self, batch: str) -> str:
        """Return the result as one log line; `batch` is the batch's name in messages."""
        if self.skipped:
            return f"{batch}: skipped, {self.reason}"
        phases = ", ".join(f"{phase} {ms}" for phase, ms in self.phase_ms.items())
        maintained = f"; {self.maintenance}" if self.maintenance else ""
        quarantined = f", {self.num_quarantined_rows} quarantined" if self.num_quarantined_rows else ""
        return (
            f"{batch} (query {self.query_id}): version {self.version}, {self.strategy} ({self.reason}); "
            f"{self.num_source_rows} source rows: {self.num_target_rows_inserted} inserted, "
            f"{self.num_target_rows_updated} updated, {self.num_target_rows_deleted} deleted{quarantined}; "
            f"files: {self.num_target_files_after_skipping} of {self.num_target_files_before_skipping} read, "
            f"{self.num_added_files} added, {self.num_removed_files} removed; "
            f"{self.num_commit_attempts} attempt(s); {self.execution_time_ms} ms ({phases}){maintained}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for logs and listeners."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTable:
    """A table at rest: a router parks its records until it can be merged again.

    Attributes:
        target: The target as configured.
        sources: The sources of the parked records.
        since: When the first of them was parked, in UTC.
        num_batches: The micro-batches they come from.
        num_rows: Their number.
        error: Why the table cannot be merged. While it catches up, the router that merges it says so instead; what is
            read from the parking table is the last failure.
        next_attempt: When it is tried again, in UTC; None if with the next micro-batch, or if it is read from the
            parking table, which does not tell.
    """

    target: str
    sources: tuple[str, ...]
    since: datetime
    num_batches: int
    num_rows: int
    error: str
    next_attempt: datetime | None = None


def delta_name(field_name: str) -> str:
    """Return Delta's name of a counter: `num_source_rows` is `numSourceRows`."""
    head, *rest = field_name.split("_")
    return head + "".join(word.capitalize() for word in rest)


COUNTERS = (
    *(f.name for f in fields(MergeResult) if f.name.startswith("num_")),
    "oldest_tombstone_ms",
    "execution_time_ms",
    "scan_time_ms",
    "rewrite_time_ms",
    "materialize_source_time_ms",
)
"""The fields that the commit records as operation metrics."""


def as_in_history(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the counters as DESCRIBE HISTORY shows them: an updated deletion vector counts as removed and as added."""
    shown = dict(counts)
    updated = shown.get("num_target_deletion_vectors_updated", 0)
    for verb in ("added", "removed"):
        name = f"num_target_deletion_vectors_{verb}"
        shown[name] = shown.get(name, 0) + updated
    return shown


@dataclass(slots=True)
class PhaseTimer:
    """Wall-clock milliseconds of each phase; a phase that runs again after a conflict adds up."""

    _ns: dict[str, int] = field(default_factory=dict)
    _start: int = field(default_factory=time.monotonic_ns)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as part of phase `name`."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self._ns[name] = self._ns.get(name, 0) + time.monotonic_ns() - start

    def ms(self, name: str) -> int:
        """Return the milliseconds of a phase, at least 1 if it ran, as Delta reports its times."""
        ns = self._ns.get(name)
        return 0 if ns is None else max(1, ns // 1_000_000)

    def phases(self) -> dict[str, int]:
        """Return the milliseconds of every phase that ran."""
        return {name: self.ms(name) for name in self._ns}

    def elapsed_ms(self) -> int:
        """Return the milliseconds since the timer was created."""
        return max(1, (time.monotonic_ns() - self._start) // 1_000_000)
