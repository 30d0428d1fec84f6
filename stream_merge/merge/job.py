"""What an engine is given and returns, and the expressions that all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.statement import ResolvedClause, ResolvedMerge
from stream_merge.bridge.transaction import CommitActions, Transaction, file_actions
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, COMPLETED, IS_UNRESOLVED, NEWEST_DELETE, SOURCE_ID
from stream_merge.merge.locate.key_index import KeyIndex
from stream_merge.merge.source import Source
from stream_merge.metrics import PhaseTimer
from stream_merge.table.deletion_vectors import StoredVector, VectorCache
from stream_merge.table.files import DataFile, TableFiles

UNCHANGED = -1
"""What `ACTION` is where an update applies that would leave the row as it is."""

TARGET_FILE_BYTES = 128 * 1024 * 1024
ROWS_PER_TASK = 100_000
MAX_BROADCAST_ROWS = 1_000_000


@dataclass(slots=True, kw_only=True)
class MergeJob:
    """One merge on one version of the table.

    Attributes:
        resolved: The statement as Delta resolved it.
        transaction: The open transaction.
        source: The persisted batch.
        files: The active files of the version that is read.
        candidates: Those of them in which a row can match.
        vectors: Deletion vectors known from earlier batches.
        index: Keys known from earlier batches.
        locator: How matches are found, if the user chose.
        check_cardinality: Whether several matches of one target row are an error.
        skip_unchanged: Whether an update that changes nothing is left out.
        order_by: The columns that hold the sequence; empty unless the clauses are the default ones of a sink with one.
        expects_newer_rows: Whether rows of the target were newer than their changes in the batch before.
        has_change_feed: Whether the table records its change data feed.
        batch: How messages name the batch.
        timer: Takes the times of the phases.
        written: File actions that an earlier attempt wrote and that do not depend on the target, or None.
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

    @property
    def keeps_order(self) -> bool:
        """Whether the clauses are the default ones of a sink with a sequence."""
        return bool(self.order_by)

    @property
    def bound_source(self) -> DataFrame:
        """The batch under the identities that the resolved expressions refer to."""
        return self.resolved.source(self.source.rows)

    def clauses(self, when: When) -> list[tuple[int, ResolvedClause]]:
        """Return the clauses of one kind with their numbers."""
        return [(number, c) for number, c in enumerate(self.resolved.clauses) if c.clause.when is when]

    def deleted_rows(self, file: DataFile) -> BitMap64:
        """Return the rows of a file that its deletion vector marks."""
        descriptor = file.add.get("deletionVector")
        if not descriptor:
            return BitMap64()
        return self.vectors.load(StoredVector.of(descriptor), self.transaction.table.read_range)

    @property
    def is_broadcast(self) -> bool:
        """Whether the batch is small enough to go to every task, so that the table is not shuffled."""
        return self.source.num_rows <= MAX_BROADCAST_ROWS

    def broadcast(self, frame: DataFrame) -> DataFrame:
        """Ask for a broadcast of the batch, unless it is too large for one."""
        return F.broadcast(frame) if self.is_broadcast else frame

    def unshuffled(self, frame: DataFrame) -> DataFrame:
        """Plan what comes of the join at once; where the join itself is shuffled, its tasks are for Spark to number."""
        return planned_at_once(frame) if self.is_broadcast else frame


@dataclass(slots=True)
class Staged:
    """What the commit will hold, and what is known of it.

    Attributes:
        changes: The file actions.
        counts: Metrics by field name of `MergeResult`.
        locator: How matches were found.
        reusable: File actions that may go into another attempt's commit unchanged, or None.
    """

    changes: CommitActions = field(default_factory=CommitActions)
    counts: dict[str, int] = field(default_factory=dict)
    reusable: Any = None
    locator: str = "scan"


def first_applying(
    clauses: Sequence[tuple[int, ResolvedClause]], unchanged: Mapping[int, Column] | None = None
) -> Column:
    """Return the number of the first clause whose condition holds, or null when none does.

    Args:
        clauses: The clauses, with their numbers.
        unchanged: For each clause whose updates may be left out, whether one changes nothing: the number is `UNCHANGED` then.
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
    """Return row id and row commit version of target rows that are written again; empty without row tracking.

    A row keeps its id. It keeps its commit version unless it is updated: null stands for the version of the new file.
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
    """Add to new rows the row tracking columns of rewritten ones: null, since a new row gets both from its file."""
    null = F.lit(None).cast("long")
    return inserted.select("*", *[null.alias(name) for name in job.transaction.row_tracking_columns or ()])


def write(job: MergeJob, rows: DataFrame, target: DataFrame | None = None) -> Any:
    """Write rows that have `output_columns`, and return the handle of their file actions.

    Args:
        job: The merge.
        rows: The rows.
        target: A frame of target rows, whose metadata tells Delta which columns are row tracking's.
    """
    names = job.transaction.row_tracking_columns
    if names is not None and target is not None:
        marked = {name: F.col(name).alias(name, metadata=target.schema[name].metadata) for name in names}
        rows = rows.withColumns(marked)
    return job.transaction.write(rows)


def is_one_of(numbers: Sequence[int]) -> Column:
    """Return whether `ACTION` is one of the clauses; false when there is none."""
    return F.coalesce(F.col(ACTION).isin(*numbers), F.lit(False)) if numbers else F.lit(False)


def inserted_rows(job: MergeJob, unmatched: DataFrame) -> DataFrame:
    """Return the rows that the NOT MATCHED clauses make of source rows that match nothing."""
    resolved = job.resolved
    clauses = job.clauses(When.NOT_MATCHED)
    if len(clauses) == 1:
        # Each step is a call that analyses all that leads to it; most merges have this one clause.
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
    """Return `COMPLETED` of the matches; empty if no source row lacks a value."""
    if not job.source.num_unresolved:
        return []
    # What the target has from before a delete does not count.
    lacks = F.col(IS_UNRESOLVED)
    if NEWEST_DELETE in job.source.rows.columns:
        lacks = lacks & F.col(NEWEST_DELETE).isNull()
    return [F.when(lacks, F.col(SOURCE_ID)).alias(COMPLETED)]


def compact(job: MergeJob, frame: DataFrame, num_rows: int) -> DataFrame:
    """Limit the number of files that a batch of about `num_rows` new rows is written into."""
    known = [f for f in job.files.all() if f.num_physical_rows]
    physical = sum(f.num_physical_rows or 0 for f in known)
    row_bytes = sum(f.size for f in known) / physical if physical else 100.0
    cores = job.source.rows.sparkSession.sparkContext.defaultParallelism
    by_bytes = int(num_rows * row_bytes // TARGET_FILE_BYTES) + 1
    by_rows = min(cores, num_rows // ROWS_PER_TASK + 1)
    return frame.coalesce(max(by_bytes, by_rows))


def count_written(job: MergeJob, new_files: Any) -> tuple[dict[str, int], int | None]:
    """Count new files as Delta's MERGE does.

    Returns:
        The metrics, and the number of rows written, or None where the session collects no statistics.
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
    """Count files that leave the table, as Delta's MERGE does."""
    return {
        "num_target_files_removed": len(files),
        "num_target_bytes_removed": sum(file.size for file in files),
        "num_target_partitions_removed_from": count_partitions(files),
    }


def count_skipping(files: Sequence[DataFile], candidates: Sequence[DataFile]) -> dict[str, int]:
    """Count the files that are there and those of them that are read, as Delta's MERGE does."""
    return {
        "num_target_files_before_skipping": len(files),
        "num_target_bytes_before_skipping": sum(file.size for file in files),
        "num_target_files_after_skipping": len(candidates),
        "num_target_bytes_after_skipping": sum(file.size for file in candidates),
        "num_target_partitions_after_skipping": count_partitions(candidates),
    }
