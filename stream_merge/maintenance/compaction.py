"""Rewrites files in a commit of its own that changes no data, as Delta's OPTIMIZE does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.maintenance import OPTIMIZE_METRICS, operation_metrics, optimize_operation, rewrite
from stream_merge.bridge.threads import run_side_by_side
from stream_merge.bridge.transaction import CommitActions, Transaction
from stream_merge.errors import StreamMergeError
from stream_merge.maintenance.policy import Bin, is_clustered
from stream_merge.metrics import MAINTENANCE_TIME
from stream_merge.steps import reached
from stream_merge.table.deletion_vectors import remove_file
from stream_merge.table.files import DataFile, now_ms

_FAILURES: tuple[type[Exception], ...] = (*JVM_ERRORS, StreamMergeError)
_UNREADABLE: tuple[type[Exception], ...] = (*_FAILURES, OSError)

_CLUSTERING = ("clusteringProvider", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction that was committed.

    Attributes:
        version: The version that it committed.
        removed: The files that it rewrote.
        added: The new files.
    """

    version: int
    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the files that were rewritten."""
        return sum(file.size for file in self.removed)

    @property
    def num_dead_rows(self) -> int:
        """Number of the deleted rows that went."""
        return sum(file.num_deleted_rows for file in self.removed)


class RowCountError(StreamMergeError):
    """A rewritten file has another number of rows than its originals; nothing was committed."""


def compact(
    transaction: Transaction,
    bins: Sequence[Bin],
    clock: Callable[[], float] = time.monotonic,
    *,
    max_parallel: int = 1,
) -> Compaction:
    """Rewrite each bin to one file, and commit all of them at once.

    A process that is killed before the commit leaves files that no version names, for VACUUM.

    Args:
        transaction: The version whose files are rewritten.
        bins: The files.
        clock: Returns the time in seconds.
        max_parallel: The number of bins that are rewritten at a time; each takes one task.

    Raises:
        Py4JJavaError: It failed, or conflicts with another writer; then the table is as the other one left it.
        RowCountError: Rows were lost or doubled on the way; nothing was committed.
    """
    started = clock()
    reached("compacting")
    added: list[dict[str, Any]] = []
    try:
        tasks = {number: partial(_rewritten, transaction, files) for number, files in enumerate(_jobs(bins))}
        # As Delta's OPTIMIZE: each takes one task, and leaves the other cores alone.
        outcomes = run_side_by_side(transaction.table.spark, tasks, max_parallel=max_parallel)
        added = [add for number in tasks for add in outcomes.results.get(number, ())]
        if outcomes.failures:
            raise next(iter(outcomes.failures.values()))
        reached("compacted")
        version = _commit(transaction, bins, added, started, clock)
    except _FAILURES as error:
        # After an error the commit may be there all the same; only its absence makes the files useless.
        if not _may_have_landed(transaction, error):
            transaction.delete_files([add["path"] for add in added])
        raise
    reached("compaction_committed")
    removed = tuple(file for one in bins for file in one.files)
    return Compaction(version=version, removed=removed, added=tuple(map(DataFile, added)))


def _may_have_landed(transaction: Transaction, error: BaseException) -> bool:
    if isinstance(error, StreamMergeError):
        return False
    try:
        return transaction.find_own_commit(transaction.table.begin().version) is not None
    except _UNREADABLE:
        return True


def _jobs(bins: Sequence[Bin]) -> list[list[DataFile]]:
    """Return the files that one job rewrites each: bins of different partitions, since it writes a file for each."""
    jobs: list[dict[str, Bin]] = []
    alone = [list(one.files) for one in bins if is_clustered(one.files[0])]
    for one in bins:
        if is_clustered(one.files[0]):
            continue
        partition = repr(sorted(one.files[0].partition_values.items()))
        job = next((job for job in jobs if partition not in job), None)
        if job is None:
            jobs.append(job := {})
        job[partition] = one
    return [*alone, *([file for one in job.values() for file in one.files] for job in jobs)]


def _rewritten(transaction: Transaction, files: Sequence[DataFile]) -> list[dict[str, Any]]:
    adds = rewrite(transaction, [file.add for file in files])
    before = [file.num_rows for file in files]
    after = [DataFile(add).num_rows for add in adds]
    if None not in before and None not in after and sum(filter(None, before)) != sum(filter(None, after)):
        transaction.delete_files([add["path"] for add in adds])
        raise RowCountError(
            f"{transaction.table.name}: a compaction of {sum(filter(None, before))} rows wrote "
            f"{sum(filter(None, after))}; it was given up"
        )
    if is_clustered(files[0]):
        # It was alone, and the rows that are left are where clustering has put them.
        kept = {name: files[0].add[name] for name in _CLUSTERING if files[0].add.get(name)}
        adds = [{**add, **kept, "tags": {**(add.get("tags") or {}), **kept.get("tags", {})}} for add in adds]
    return adds


def _commit(
    transaction: Transaction,
    bins: Sequence[Bin],
    added: Sequence[dict[str, Any]],
    started: float,
    clock: Callable[[], float],
) -> int:
    moment = now_ms()
    removed = [file for one in bins for file in one.files]
    removes = [{**remove_file(file.add, now_ms=moment), "dataChange": False} for file in removed]
    values = {
        "numAddedFiles": len(added),
        "numAddedBytes": sum(int(add["size"]) for add in added),
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(file.size for file in removed),
        "numDeletionVectorsRemoved": sum(bool(file.num_deleted_rows) for file in removed),
        MAINTENANCE_TIME: max(1, round(1000 * (clock() - started))),
    }
    assert {*OPTIMIZE_METRICS} <= {*values}
    spark = transaction.table.spark
    version = transaction.commit(
        {},
        CommitActions(adds=[{**add, "dataChange": False} for add in added], removes=removes),
        optimize_operation(spark, [MAINTENANCE_TIME]),
        operation_metrics(spark, values),
    )
    assert version is not None
    return version
