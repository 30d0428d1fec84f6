"""Implements merge-on-read: marks changed rows in deletion vectors and appends their new versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.sessions import job_description
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.bridge.transaction import Transaction, file_actions
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, FILE, ROW, SOURCE_ID
from stream_merge.merge import change_feed
from stream_merge.merge.independence import independence_of
from stream_merge.merge.job import (
    MergeJob,
    NewFiles,
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
from stream_merge.merge.locate.index_additions import note_written
from stream_merge.merge.locate.index_lookup import find_matches_by_index, is_indexable, is_worthwhile
from stream_merge.merge.locate.pairs import MAX_SOURCE_ROWS, Integers, Located, find_pairs
from stream_merge.merge.locate.scan import (
    FileMatches,
    count_source_rows,
    find_matches,
    has_unmatched_rows,
    joined_rows,
    key_columns,
    sum_by_clause,
)
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.deletion_vectors import VectorWriter, delete_rows, remove_file
from stream_merge.table.features import has_change_feed
from stream_merge.table.files import DataFile, now_ms

NEW = "_stream_merge_new_{}"
OLD = "_stream_merge_old_{}"

MAX_LATE_ROWS = 20_000
"""So many changes that are older than their rows are left out by their numbers; with more, the table is joined."""


def stage(job: MergeJob) -> Staged:
    """Stage a merge on a table with deletion vectors."""
    reads_old = needs_old_rows(job.transaction, has_change_feed=job.has_change_feed, skip_unchanged=job.skip_unchanged)
    is_independent = job.source.is_independent and not reads_old
    if job.written is not None or (is_independent and not job.expects_newer_rows):
        return _stage_independent(job)
    return _stage_late(job) if is_independent else _stage_dependent(job)


def may_write_ahead(
    resolved: ResolvedMerge, transaction: Transaction, *, keeps_order: bool, skip_unchanged: bool
) -> bool:
    """Whether new rows can be written before the matches are known, unless the batch's rows turn out otherwise."""
    has_feed = has_change_feed(transaction.properties)
    return independence_of(resolved, keeps_order=keeps_order) is not None and not needs_old_rows(
        transaction, has_change_feed=has_feed, skip_unchanged=skip_unchanged
    )


def needs_old_rows(transaction: Transaction, *, has_change_feed: bool, skip_unchanged: bool) -> bool:
    """Whether the engine must read old rows whatever the clauses are, and so cannot write before it has found them."""
    return has_change_feed or transaction.row_tracking_columns is not None or skip_unchanged


def _stage_independent(job: MergeJob) -> Staged:
    """Write the new rows while the old ones are looked up: they are the same whether a row matches or not.

    Only the key columns of the target are read, and its sequence if order is kept. The written files suit every attempt
    to commit. They are discarded if several target rows have one key, since each would become a new row, or if a target
    row is newer than its change: then the other rows are written once more.
    """
    spark = job.source.rows.sparkSession
    reusable = job.written
    with ExitStack() as stack:
        new_files: NewFiles | None = job.ahead
        if reusable is None and new_files is None:
            rows = _independent_rows(job)
            reached("writing")
            new_files = BackgroundTask(spark, f"{job.batch}: write", lambda: job.transaction.write(rows))
            stack.enter_context(new_files)
        with job.timer.phase("locate"), job_description(spark, f"{job.batch}: locate"):
            located = _located(job)
        if reusable is None and new_files is not None:
            with job.timer.phase("stage"):
                reusable = new_files.result()
    is_late = job.keeps_order and located.num_idle
    if is_late or not _is_usable(job, located):
        job.transaction.delete_new_files(reusable)
        return _stage_located(job, located) if is_late else _stage_dependent(job)
    with job.timer.phase("stage"):
        staged = _staged(job, located, reusable, lambda: job.source.num_independent_rows)
        staged.reusable = reusable
    return staged


def _stage_late(job: MergeJob) -> Staged:
    """Look the rows up first, since the last batch had changes that were older than their rows, if the index can."""
    located = None
    if job.keeps_order and job.candidates:
        with job.timer.phase("locate"), job_description(job.source.rows.sparkSession, f"{job.batch}: locate"):
            located = _located_by_index(job)
    return _stage_dependent(job) if located is None else _stage_located(job, located)


def _stage_located(job: MergeJob, located: Located) -> Staged:
    """Write the new rows of all changes but those that are older than the row that they match, which stays.

    The others do not depend on the target. Which ones they are does, so that another attempt writes them anew.
    """
    idle = located.idle
    # Of single columns, some may be newer than those of a newer row.
    if idle is None or len(idle) > MAX_LATE_ROWS or job.by_column is not None or not _is_usable(job, located):
        return _stage_dependent(job)
    source, spark = job.bound_source, job.source.rows.sparkSession
    if len(idle):
        # More than ten values: Spark would compile fewer into its code, anew for each batch. No row has these.
        numbers = ", ".join(map(str, (*range(-11, 0), *idle.tolist())))
        source = source.where(F.expr(f"{quote(SOURCE_ID)} NOT IN ({numbers})"))
    rows = inserted_rows(job.resolved, source)
    with job.timer.phase("stage"), job_description(spark, f"{job.batch}: write"):
        reached("writing")
        # Writing no rows would leave an empty file behind.
        if job.source.num_independent_rows <= len(idle) and rows.isEmpty():
            staged = _delete_changed(job, located.found)
        else:
            new_files = job.transaction.write(compact(job, rows, job.source.num_independent_rows))
            staged = _staged(job, located, new_files, rows.count, without=idle)
            staged.reusable = None if len(idle) else new_files
        staged.counts["num_stale_rows"] = len(idle)
        staged.locator = located.locator
    return staged


def _is_usable(job: MergeJob, located: Located) -> bool:
    """Return whether the new rows can be written without the rows that they match."""
    is_incomplete = bool(job.candidates) and job.source.is_incomplete_among(located.sources)
    return located.is_one_to_one and not is_incomplete


def _staged(
    job: MergeJob, located: Located, new_files: Any, num_rows: Callable[[], int], without: Integers | None = None
) -> Staged:
    """Mark the changed rows, and count them and the new ones.

    Args:
        job: The merge.
        located: The matches.
        new_files: The files with the new rows.
        num_rows: Returns how many there are, where the session collects no statistics.
        without: Numbers of the source rows that were left out of them.
    """
    staged = _delete_changed(job, located.found)
    written, total = count_written(job, new_files)
    if located.locator == "index":
        files = [DataFile(each["add"]) for each in file_actions(job.transaction.jvm, new_files) if "add" in each]
        note_written(job, files, without)
    staged.counts |= written
    total = num_rows() if total is None else total
    staged.counts["num_target_rows_inserted"] = total - staged.counts["num_target_rows_updated"]
    staged.changes.new_files.append(new_files)
    staged.locator = located.locator
    return staged


def _located(job: MergeJob) -> Located:
    """Return the matches and how they were found."""
    if not job.candidates:
        return Located([], is_one_to_one=True, num_idle=0, locator="scan")
    located = _located_by_index(job)
    if located is None and job.source.num_rows <= MAX_SOURCE_ROWS:
        located = find_pairs(job)
    if located is not None:
        return located
    target = _target(job, job.candidates)
    rows = joined_rows(job, target, [FILE, ROW, SOURCE_ID, *key_columns(job, target)])
    found = find_matches(job, rows, with_positions=True, with_sources=True)
    sources = BitMap64().union(*[matches.sources for matches in found if matches.sources is not None])
    num_matches = sum(matches.num_matches for matches in found)
    num_idle = num_matches - sum(sum(matches.num_by_clause.values()) for matches in found)
    return Located(found, num_matches == len(sources), num_idle, "scan")


def _located_by_index(job: MergeJob) -> Located | None:
    """Return the matches if the key index is to be asked and can answer, else None."""
    is_wanted = is_worthwhile(job) if job.locator is None else job.locator == "index"
    return find_matches_by_index(job) if is_wanted and is_indexable(job) else None


def _independent_rows(job: MergeJob) -> DataFrame:
    rows = inserted_rows(job.resolved, job.bound_source)
    return compact(job, rows, job.source.num_independent_rows)


def _stage_dependent(job: MergeJob) -> Staged:
    """Compute the new rows from the result of the join, which is kept until they are written."""
    spark, job = job.source.rows.sparkSession, job.reading_old_rows()
    with persisted(_touched_rows(job), at_once=job.is_broadcast) as touched:
        found, new_rows = _matches_and_new_rows(job, touched)
        with job.timer.phase("stage"), job_description(spark, f"{job.batch}: write"):
            counts = sum_by_clause(job, found)
            if not _has_new_rows(job, touched, found, counts):
                reached("writing")
                staged = _delete_changed(job, found)
            else:
                num_updated = counts["num_target_rows_updated"]
                rows = compact(job, new_rows, num_updated + job.source.num_rows)
                reached("writing")
                with BackgroundTask(
                    spark, f"{job.batch}: write", lambda: write(job, rows, _target(job, []))
                ) as writing:
                    staged = _delete_changed(job, found)
                    new_files = writing.result()
                written, total = count_written(job, new_files)
                if total is None:
                    total = _new_rows(job, touched, found, with_changes=False).count()
                staged.changes.new_files.append(new_files)
                staged.counts |= written
                staged.counts["num_target_rows_inserted"] = total - num_updated
            # Delta touches any file with a match, or with a row that a NOT MATCHED BY SOURCE clause looks at.
            is_touched = bool(found) or any(file.num_rows != 0 for file in job.candidates)
            staged.counts["num_source_rows"] = count_source_rows(job, has_touched_files=is_touched, is_rewrite=False)
    return staged


def _matches_and_new_rows(job: MergeJob, touched: DataFrame) -> tuple[list[FileMatches], DataFrame]:
    """Return the matches and a frame of the rows to write, which is planned while the matches are looked up."""
    spark = job.source.rows.sparkSession
    with job.timer.phase("locate"), job_description(spark, f"{job.batch}: locate"):
        if not job.candidates:
            return [], _new_rows(job, touched, [])
        if job.has_change_feed:
            found = find_matches(job, touched, with_positions=True)
            return found, _new_rows(job, touched, found)
        with BackgroundTask(spark, f"{job.batch}: write", lambda: job.unshuffled(_new_rows(job, touched))) as planning:
            found = find_matches(job, touched, with_positions=True)
        return found, planning.result()


def _has_new_rows(job: MergeJob, touched: DataFrame, found: Sequence[FileMatches], counts: Mapping[str, int]) -> bool:
    if counts["num_target_rows_updated"] or (job.has_change_feed and counts["num_target_rows_deleted"]):
        return True
    return bool(job.clauses(When.NOT_MATCHED)) and has_unmatched_rows(job, touched, found)


def _target(job: MergeJob, files: Sequence[DataFile]) -> DataFrame:
    return job.resolved.target(job.transaction, [file.add for file in files], with_rows=True)


def _touched_rows(job: MergeJob) -> DataFrame:
    target = _target(job, job.candidates)
    joined = joined_rows(job, target)
    relevant = joined.where(F.col(SOURCE_ID).isNotNull() | F.col(ACTION).isNotNull())
    values = job.resolved.once("values of touched rows", lambda: _touched_values(job))
    return relevant.select(FILE, ROW, SOURCE_ID, ACTION, *completed_row(job), *key_columns(job, target), *values)


def _touched_values(job: MergeJob) -> list[Column]:
    updates = [(n, c) for n, c in enumerate(job.resolved.clauses) if c.clause.is_update]
    columns = range(len(job.resolved.columns))
    after = [*(by_action(updates, i) for i in columns), *tracked_values(job, is_update=F.lit(True))] if updates else []
    before = [*job.resolved.old_values, *tracked_values(job)] if job.has_change_feed else []
    new = [value.alias(NEW.format(i)) for i, value in enumerate(after)]
    old = [value.alias(OLD.format(i)) for i, value in enumerate(before)]
    return [*new, *old]


def _new_rows(
    job: MergeJob, touched: DataFrame, found: Sequence[FileMatches] | None = None, *, with_changes: bool = True
) -> DataFrame:
    """Return the rows to write, including those of the change feed.

    Args:
        job: The merge.
        touched: What `_touched_rows` returned.
        found: The matches; None if not known yet. The change feed's rows need them.
        with_changes: Whether to include the change feed's rows, if the table has one.
    """
    columns = output_columns(job)
    clauses = job.resolved.clauses
    updates = [n for n, c in enumerate(clauses) if c.clause.is_update]
    deletes = [n for n, c in enumerate(clauses) if c.clause.is_delete]
    parts = []
    if updates:
        updated = touched.where(is_one_of(updates))
        parts.append(updated.select(*[F.col(NEW.format(i)).alias(name) for i, name in enumerate(columns)]))
    if job.clauses(When.NOT_MATCHED):
        unmatched = job.bound_source
        if found is None or found:
            unmatched = without_matches(job, touched.where(F.col(SOURCE_ID).isNotNull()))
        parts.append(with_tracking(job, inserted_rows(job.resolved, unmatched)))
    if not (job.has_change_feed and with_changes):
        return change_feed.union(parts, touched, columns)
    is_repeated = any(m.num_matches != m.num_matched_rows for m in found or ())
    return change_feed.with_changes(
        columns,
        inserted=parts.pop() if job.clauses(When.NOT_MATCHED) else None,
        changed=touched.dropDuplicates([FILE, ROW]) if is_repeated and not updates else touched,
        new=[NEW.format(i) for i in range(len(columns))],
        old=[OLD.format(i) for i in range(len(columns))],
        is_update=is_one_of(updates),
        is_delete=is_one_of(deletes),
        has_updates=bool(updates),
    )


def _delete_changed(job: MergeJob, found: Sequence[FileMatches]) -> Staged:
    """Mark the changed rows of each file; remove a file with no row left."""
    staged = Staged(counts=sum_by_clause(job, found))
    table = job.transaction.table
    writer = VectorWriter(job.vectors)
    emptied: list[DataFile] = []
    vectors = {"added": 0, "updated": 0, "removed": 0}
    moment = now_ms()
    num_rows = _rows_without_statistics(job, found)
    for matches in found:
        if not matches.num_changed_rows:
            continue
        assert matches.changed_rows is not None
        file = matches.file
        has_vector = bool(file.num_deleted_rows)
        rows = matches.changed_rows | job.deleted_rows(file)
        counted = num_rows.get(file.path)
        if len(rows) == (file.num_physical_rows if counted is None else counted):
            emptied.append(file)
            staged.changes.removes.append(remove_file(file.add, now_ms=moment))
            vectors["removed"] += has_vector
            continue
        rows.run_optimize()
        added, removed = delete_rows(file.add, writer.add(rows), now_ms=moment, num_rows=counted)
        staged.changes.adds.append(added)
        staged.changes.removes.append(removed)
        vectors["updated" if has_vector else "added"] += 1
    shared = writer.file()
    if shared is not None:
        table.write_file(*shared)
    staged.counts |= {f"num_target_deletion_vectors_{verb}": count for verb, count in vectors.items()}
    staged.counts |= count_removed(emptied)
    return staged


def _rows_without_statistics(job: MergeJob, found: Sequence[FileMatches]) -> dict[str, int]:
    """Return the number of rows, deleted ones included, of each changed file whose statistics lack it."""
    unknown = [matches.file for matches in found if matches.num_changed_rows and matches.file.num_physical_rows is None]
    if not unknown:
        return {}
    rows = job.resolved.target(job.transaction, [file.undeleted for file in unknown], with_rows=True)
    counts = rows.groupBy(FILE).agg(F.count(F.lit(1)).alias("rows")).collect()
    return {job.files.find(row[FILE], job.transaction.table.root).path: int(row["rows"]) for row in counts}
