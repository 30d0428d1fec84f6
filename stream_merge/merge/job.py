"""Defines the input and output of an engine, and the expressions that all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.statement import ResolvedClause, ResolvedMerge
from stream_merge.bridge.transaction import CommitActions, Transaction, file_actions
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, COMPLETED, IS_UNRESOLVED, NEWEST_DELETE, SOURCE_ID
from stream_merge.key_index.index import KeyIndex
from stream_merge.merge.source import Source
from stream_merge.metrics import PhaseTimer
from stream_merge.table.deletion_vectors import StoredVector, VectorCache
from stream_merge.table.files import DataFile, TableFiles

UNCHANGED = -1
"""The value of `ACTION` for an update that would not change its row."""

TARGET_FILE_BYTES = 128 * 1024 * 1024
ROWS_PER_TASK = 100_000
MAX_BROADCAST_ROWS = 1_000_000


class NewFiles(Protocol):
    """New files that are being written."""

    def result(self) -> Any:
        """Wait for the files, and return their actions: from now on they are the caller's."""


@dataclass(slots=True, kw_only=True)
class MergeJob:
    """One merge on one version of the table.

    Attributes:
        resolved: The statement as Delta resolved it.
        by_column: The statement that merges column by column, where `resolved` merges whole rows; else None.
        transaction: The open transaction.
        source: The persisted batch.
        files: The active files of the version that is read.
        candidates: The active files in which a row can match.
        vectors: Deletion vectors known from earlier batches.
        index: Keys known from earlier batches.
        locator: The user's choice of how to find matches; None if there is none.
        check_cardinality: Whether several matches of one target row are an error.
        skip_unchanged: Whether to skip updates that change nothing.
        order_by: The columns that hold the sequence; empty unless the sink has a sequence and the default clauses.
        expects_newer_rows: Whether the last batch found target rows newer than their changes.
        has_change_feed: Whether the table records its change data feed.
        batch: The batch's name in messages.
        timer: Measures the phases.
        written: File actions from an earlier attempt that do not depend on the target; None if there are none.
        ahead: The same files, whose writing began before the batch was measured; None if it did not.
    """

    resolved: ResolvedMerge
    transaction: Transaction
    source: Source
    files: TableFiles
    candidates: Sequence[DataFile]
    vectors: VectorCache
    index: KeyIndex
    locator: str | None
    check_cardinality: bool
    skip_unchanged: bool
    order_by: Sequence[str]
    expects_newer_rows: bool
    has_change_feed: bool
    batch: str
    timer: PhaseTimer
    written: Any = None
    ahead: NewFiles | None = None
    by_column: ResolvedMerge | None = None

    def reading_old_rows(self) -> MergeJob:
        """Return the job for matches of which the old rows are read."""
        return self if self.by_column is None else replace(self, resolved=self.by_column, by_column=None)

    @property
    def keeps_order(self) -> bool:
        """Whether the sink has a sequence and the default clauses."""
        return bool(self.order_by)

    @property
    def bound_source(self) -> DataFrame:
        """The batch with the attribute ids that the resolved expressions refer to."""
        return self.resolved.source(self.source.rows)

    def clauses(self, when: When) -> list[tuple[int, ResolvedClause]]:
        """Return the clauses of one kind with their numbers."""
        return self.resolved.clauses_when(when)

    def deleted_rows(self, file: DataFile) -> BitMap64:
        """Return the rows of a file that its deletion vector marks."""
        descriptor = file.add.get("deletionVector")
        if not descriptor:
            return BitMap64()
        return self.vectors.load(StoredVector.of(descriptor), self.transaction.table.read_range)

    @property
    def is_broadcast(self) -> bool:
        """Whether the batch is small enough to broadcast, so that the table is not shuffled."""
        return self.source.num_rows <= MAX_BROADCAST_ROWS

    def broadcast(self, frame: DataFrame) -> DataFrame:
        """Ask Spark to broadcast the frame, unless the batch is too large."""
        return F.broadcast(frame) if self.is_broadcast else frame

    def unshuffled(self, frame: DataFrame) -> DataFrame:
        """Plan the frame without adaptive execution, except after a shuffled join, whose tasks Spark should number."""
        return planned_at_once(frame) if self.is_broadcast else frame


@dataclass(slots=True)
class Staged:
    """The content of the commit, and what is known of it.

    Attributes:
        changes: The file actions.
        counts: Metrics by field name of `MergeResult`.
        locator: How matches were found.
        reusable: File actions that another attempt's commit may reuse; None if there are none.
    """

    changes: CommitActions = field(default_factory=CommitActions)
    counts: dict[str, int] = field(default_factory=dict)
    reusable: Any = None
    locator: str = "scan"


def first_applying(
    clauses: Sequence[tuple[int, ResolvedClause]], unchanged: Mapping[int, Column] | None = None
) -> Column:
    """Return the number of the first clause whose condition holds, or NULL if none does.

    Args:
        clauses: The clauses with their numbers.
        unchanged: For each clause whose updates may be skipped, whether its update changes nothing; the number is then
            `UNCHANGED`.
    """
    number: Column | None = None
    for index, clause in clauses:
        holds = F.lit(True) if clause.condition is None else clause.condition
        taken = F.lit(index)
        if unchanged is not None and index in unchanged:
            taken = F.when(unchanged[index], F.lit(UNCHANGED)).otherwise(taken)
        number = F.when(holds, taken) if number is None else number.when(holds, taken)
    return F.lit(None).cast("int") if number is None else number


def by_action(clauses: Sequence[tuple[int, ResolvedClause]], position: int, otherwise: Column | None = None) -> Column:
    """Return the new value of the column at `position`, by the number in `ACTION`."""
    value: Column | None = None
    for index, clause in clauses:
        applies = F.col(ACTION) == index
        new = clause.values[position]
        value = F.when(applies, new) if value is None else value.when(applies, new)
    if value is None:
        return F.lit(None) if otherwise is None else otherwise
    return value if otherwise is None else value.otherwise(otherwise)


def tracked_values(job: MergeJob, *, is_update: Column | None = None) -> list[Column]:
    """Return row id and row commit version of target rows that are rewritten; empty without row tracking.

    A row keeps its id. It keeps its commit version unless it is updated; NULL stands for the version of the new file.
    """
    names = job.transaction.row_tracking_columns
    if names is None:
        return []
    version = F.col(names[1])
    return [F.col(names[0]), version if is_update is None else F.when(~is_update, version)]


def output_columns(job: MergeJob) -> list[str]:
    """Return the names of the columns that an engine writes."""
    return [*job.resolved.columns, *(job.transaction.row_tracking_columns or ())]


def with_tracking(job: MergeJob, inserted: DataFrame) -> DataFrame:
    """Add NULL row tracking columns to new rows, which get their id and version from their file."""
    null = F.lit(None).cast("long")
    return inserted.select("*", *[null.alias(name) for name in job.transaction.row_tracking_columns or ()])


def write(job: MergeJob, rows: DataFrame, target: DataFrame | None = None) -> Any:
    """Write rows that have `output_columns`, and return the handle of their file actions.

    Args:
        job: The merge.
        rows: The rows.
        target: A frame of target rows whose metadata tells Delta which columns belong to row tracking.
    """
    names = job.transaction.row_tracking_columns
    if names is not None and target is not None:
        marked = {name: F.col(name).alias(name, metadata=target.schema[name].metadata) for name in names}
        rows = rows.withColumns(marked)
    return job.transaction.write(rows)


def is_one_of(numbers: Sequence[int]) -> Column:
    """Return whether `ACTION` is one of the clauses; false if there are none."""
    return F.coalesce(F.col(ACTION).isin(*numbers), F.lit(False)) if numbers else F.lit(False)


def inserted_rows(resolved: ResolvedMerge, unmatched: DataFrame) -> DataFrame:
    """Return the rows that the NOT MATCHED clauses insert for source rows that match nothing."""
    clauses = resolved.clauses_when(When.NOT_MATCHED)
    if len(clauses) == 1:
        # Each step is a JVM call that analyses the whole plan again; most merges have just one clause.
        condition = clauses[0][1].condition
        values = resolved.once(
            "inserted", lambda: [v.alias(n) for v, n in zip(clauses[0][1].values, resolved.columns, strict=True)]
        )
        return (unmatched if condition is None else unmatched.where(condition)).select(*values)
    action, values = resolved.once(
        "inserted",
        lambda: (
            first_applying(clauses).alias(ACTION),
            [by_action(clauses, i).alias(name) for i, name in enumerate(resolved.columns)],
        ),
    )
    return unmatched.select("*", action).where(F.col(ACTION).isNotNull()).select(*values)


def without_matches(job: MergeJob, matched_ids: DataFrame) -> DataFrame:
    """Return the source rows whose `SOURCE_ID` is not among the matched ones."""
    return job.bound_source.join(job.broadcast(matched_ids.select(SOURCE_ID)), SOURCE_ID, "left_anti")


def completed_row(job: MergeJob) -> list[Column]:
    """Return `COMPLETED` for the matches; empty if no source row lacks a value."""
    if not job.source.num_unresolved:
        return []
    # Values of the target from before a delete do not count.
    lacks = F.col(IS_UNRESOLVED)
    if NEWEST_DELETE in job.source.rows.columns:
        lacks = lacks & F.col(NEWEST_DELETE).isNull()
    return [F.when(lacks, F.col(SOURCE_ID)).alias(COMPLETED)]


def compact(job: MergeJob, frame: DataFrame, num_rows: int) -> DataFrame:
    """Limit the number of files for a batch of about `num_rows` new rows."""
    return frame.coalesce(num_new_files(job.files, frame.sparkSession, num_rows))


def num_new_files(files: TableFiles, spark: SparkSession, num_rows: int) -> int:
    """Return the number of files to write about `num_rows` rows to, in a table with these files."""
    known = [f for f in files.all() if f.num_physical_rows]
    physical = sum(f.num_physical_rows or 0 for f in known)
    row_bytes = sum(f.size for f in known) / physical if physical else 100.0
    by_bytes = int(num_rows * row_bytes // TARGET_FILE_BYTES) + 1
    by_rows = min(spark.sparkContext.defaultParallelism, num_rows // ROWS_PER_TASK + 1)
    return max(by_bytes, by_rows)


def count_written(job: MergeJob, new_files: Any) -> tuple[dict[str, int], int | None]:
    """Count new files as Delta's MERGE does.

    Returns:
        The metrics, and the number of rows written; None for the latter if the session collects no statistics.
    """
    written = file_actions(job.transaction.jvm, new_files)
    adds = [DataFile(action["add"]) for action in written if "add" in action]
    changes = [action["cdc"] for action in written if "cdc" in action]
    rows = [file.num_physical_rows for file in adds]
    counts = {
        "num_target_files_added": len(adds),
        "num_target_bytes_added": sum(file.size for file in adds),
        "num_target_partitions_added_to": count_partitions(adds),
        "num_target_change_files_added": len(changes),
        "num_target_change_file_bytes": sum(int(change["size"]) for change in changes),
    }
    return counts, None if None in rows else sum(n for n in rows if n is not None)


def count_partitions(files: Sequence[DataFile]) -> int:
    """Count partitions as Delta's MERGE does: 0 for an unpartitioned table."""
    distinct = {tuple(sorted(file.partition_values.items(), key=str)) for file in files}
    return 0 if distinct == {()} else len(distinct)


def count_removed(files: Sequence[DataFile]) -> dict[str, int]:
    """Count the files that leave the table, as Delta's MERGE does."""
    return {
        "num_target_files_removed": len(files),
        "num_target_bytes_removed": sum(file.size for file in files),
        "num_target_partitions_removed_from": count_partitions(files),
    }


def count_skipping(files: Sequence[DataFile], candidates: Sequence[DataFile]) -> dict[str, int]:
    """Count the table's files and those that are read, as Delta's MERGE does."""
    return {
        "num_target_files_before_skipping": len(files),
        "num_target_bytes_before_skipping": sum(file.size for file in files),
        "num_target_files_after_skipping": len(candidates),
        "num_target_bytes_after_skipping": sum(file.size for file in candidates),
        "num_target_partitions_after_skipping": count_partitions(candidates),
    }
