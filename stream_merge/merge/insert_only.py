"""Implements insert-only: appends the source rows that match nothing."""

from __future__ import annotations

from pyspark.sql import DataFrame

from stream_merge.bridge.sessions import job_description
from stream_merge.column_names import SOURCE_ID
from stream_merge.merge.job import (
    MergeJob,
    Staged,
    compact,
    count_written,
    inserted_rows,
    without_matches,
)
from stream_merge.steps import reached


def stage(job: MergeJob) -> Staged:
    """Stage a merge with NOT MATCHED clauses only: one job finds, filters and writes.

    Several matches of one row are not an error, as in Delta, since no clause acts on them.
    """
    spark = job.source.rows.sparkSession
    with job.timer.phase("stage"), job_description(spark, f"{job.batch}: write new rows"):
        reached("locating")
        rows = compact(job, inserted_rows(job.resolved, _unmatched(job)), job.source.num_rows)
        reached("writing")
        new_files = job.transaction.write(rows)
        counts, num_rows = count_written(job, new_files)
        if num_rows is None:
            num_rows = rows.count()
    staged = Staged(counts=counts)
    staged.changes.new_files.append(new_files)
    staged.counts["num_target_rows_inserted"] = num_rows
    return staged


def _unmatched(job: MergeJob) -> DataFrame:
    if not job.candidates:
        return job.bound_source
    target = job.resolved.target(job.transaction, [file.add for file in job.candidates], with_rows=False)
    if not job.is_broadcast:
        return job.bound_source.join(target, job.resolved.condition, "left_anti")
    # The small side has to be the broadcast one, which an anti join allows only for its right side: hence two steps.
    matched = target.join(job.broadcast(job.bound_source), job.resolved.condition, "inner")
    return without_matches(job, matched.select(SOURCE_ID).distinct())
