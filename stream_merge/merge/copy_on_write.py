"""Implements copy-on-write: rewrites each touched file with its changed rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.sessions import job_description
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, FILE, RESERVED_PREFIX, ROW, SOURCE_ID
from stream_merge.merge import change_feed
from stream_merge.merge.job import (
    MergeJob,
    Staged,
    by_action,
    compact,
    completed_row,
    count_removed,
    count_written,
    inserted_rows,
    is_one_of,
    output_columns,
    tracked_values,
    with_tracking,
    without_matches,
    write,
)
from stream_merge.merge.locate.scan import (
    FileMatches,
    count_source_rows,
    find_matches,
    has_unmatched_rows,
    joined_rows,
    key_columns,
    sum_by_clause,
)
from stream_merge.steps import reached
from stream_merge.table.deletion_vectors import remove_file
from stream_merge.table.files import DataFile, now_ms


def stage(job: MergeJob) -> Staged:
    """Stage a merge on a table without deletion vectors."""
    spark = job.source.rows.sparkSession
    with persisted(_matches(job)) as matches:
        with job.timer.phase("locate"), job_description(spark, f"{job.batch}: locate"):
            found = find_matches(job, matches, with_positions=False) if job.candidates else []
        with job.timer.phase("stage"), job_description(spark, f"{job.batch}: rewrite"):
            return _rewrite(job, matches, found)


def _matches(job: MergeJob) -> DataFrame:
    target = _target(job, job.candidates)
    joined = joined_rows(job, target)
    relevant = joined.where(F.col(SOURCE_ID).isNotNull() | F.col(ACTION).isNotNull())
    return relevant.select(FILE, ROW, SOURCE_ID, ACTION, *completed_row(job), *key_columns(job, target))


def _target(job: MergeJob, files: Sequence[DataFile]) -> DataFrame:
    has_positions = "deletionVectors" in job.transaction.protocol.get("readerFeatures", [])
    return job.resolved.target(job.transaction, [file.add for file in files], with_rows=has_positions)


def touched_files(job: MergeJob, found: Sequence[FileMatches]) -> list[DataFile]:
    """Return the files to rewrite, the same that Delta's MERGE rewrites, so that the metrics agree.

    Any match touches a file, whether or not a clause applies to it; if all clauses are MATCHED ones, a clause must
    apply. A NOT MATCHED BY SOURCE clause touches every file with a row. With `skip_unchanged`, only a file with a
    changed row is touched.
    """
    if job.skip_unchanged:
        return [m.file for m in found if m.num_changed_rows]
    if job.clauses(When.NOT_MATCHED_BY_SOURCE):
        return [file for file in job.candidates if file.num_rows != 0]
    is_matched_only = not job.clauses(When.NOT_MATCHED)
    return [m.file for m in found if (m.num_changed_rows if is_matched_only else m.num_matches)]


def _rewrite(job: MergeJob, matches: DataFrame, found: Sequence[FileMatches]) -> Staged:
    staged = Staged(counts=sum_by_clause(job, found))
    touched = touched_files(job, found)
    staged.counts["num_source_rows"] = count_source_rows(job, has_touched_files=bool(touched), is_rewrite=True)
    parts = []
    if touched:
        parts.append(_rewritten_rows(job, touched, found))
    if job.clauses(When.NOT_MATCHED) and (touched or has_unmatched_rows(job, matches, found)):
        matched = matches.where(F.col(SOURCE_ID).isNotNull())
        inserted = inserted_rows(job.resolved, without_matches(job, matched) if found else job.bound_source)
        inserted = with_tracking(job, compact(job, inserted, job.source.num_rows))
        columns = output_columns(job)
        parts.append(change_feed.insert_images(inserted, columns) if _has_changes(job, touched) else inserted)
    reached("writing")
    if parts:
        new_files = write(job, reduce(DataFrame.union, parts), _target(job, []))
        written, num_rows = count_written(job, new_files)
        staged.changes.new_files.append(new_files)
        staged.counts |= written
        _count_rows(job, staged, touched, num_rows, parts)
    moment = now_ms()
    staged.changes.removes = [remove_file(file.add, now_ms=moment) for file in touched]
    staged.counts |= count_removed(touched)
    return staged


def _has_changes(job: MergeJob, touched: Sequence[DataFile]) -> bool:
    # Without rewritten files the commit only adds files, which the change feed reads as inserts.
    return job.has_change_feed and bool(touched)


def _count_rows(
    job: MergeJob, staged: Staged, touched: Sequence[DataFile], num_written: int | None, parts: Sequence[DataFrame]
) -> None:
    """Derive the numbers of copied and inserted rows from the rows before and the rows written."""
    rows_there = [file.num_rows for file in touched]
    there = sum(n for n in rows_there if n is not None)
    if None in rows_there:
        there = _target(job, touched).count()
    if num_written is None:
        rows = reduce(DataFrame.union, parts)
        if _has_changes(job, touched):
            rows = rows.where(F.col(change_feed.CHANGE_TYPE).isNull())
        num_written = rows.count()
    updated, deleted = staged.counts["num_target_rows_updated"], staged.counts["num_target_rows_deleted"]
    copied = there - updated - deleted
    staged.counts["num_target_rows_copied"] = copied
    staged.counts["num_target_rows_inserted"] = num_written - copied - updated


def _rewritten_rows(job: MergeJob, touched: Sequence[DataFile], found: Sequence[FileMatches]) -> DataFrame:
    """Return the rows of the touched files after the merge.

    It repeats the join that located the matches, on the touched files only and with all columns; keeping the first
    join's result would mean keeping the table's rows.
    """
    columns = output_columns(job)
    updates = [(n, c) for n, c in enumerate(job.resolved.clauses) if c.clause.is_update]
    deletes = [n for n, c in enumerate(job.resolved.clauses) if c.clause.is_delete]
    joined = joined_rows(job, _target(job, touched), keep_unmatched=True)
    if deletes and not updates and any(m.num_matches != m.num_matched_rows for m in found):
        joined = joined.dropDuplicates([FILE, ROW])
    old = list(job.resolved.old_values)
    is_update = is_one_of([n for n, _ in updates])
    if not job.has_change_feed:
        new = [by_action(updates, i, value) for i, value in enumerate(old)] + tracked_values(job, is_update=is_update)
        kept = joined.where(~is_one_of(deletes))
        return kept.select(*[value.alias(name) for value, name in zip(new, columns, strict=True)])
    before = old + tracked_values(job)
    # Computed once: a value such as uuid() stands in the row and in its change.
    names = [f"{RESERVED_PREFIX}new_{i}" for i in range(len(old))]
    joined = joined.select("*", *[by_action(updates, i).alias(name) for i, name in enumerate(names)])
    after = [*map(F.col, names), *tracked_values(job, is_update=F.lit(True))]
    images = F.when(is_one_of(deletes), change_feed.delete_image(before, columns))
    if updates:
        images = images.when(is_update, change_feed.update_images(before, after, columns))
    return change_feed.explode_images(joined, images.otherwise(change_feed.copied_image(before, columns)))
