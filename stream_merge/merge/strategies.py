"""Runs the engine of a strategy."""

from __future__ import annotations

from stream_merge.merge import copy_on_write, insert_only, merge_on_read
from stream_merge.merge.job import MergeJob, Staged
from stream_merge.plan import Strategy


def run_engine(strategy: Strategy, job: MergeJob) -> Staged:
    """Carry out the merge up to the commit.

    When it returns, all new files exist and no reader can see them.
    """
    match strategy:
        case Strategy.INSERT_ONLY:
            return insert_only.stage(job)
        case Strategy.MERGE_ON_READ:
            return merge_on_read.stage(job)
        case Strategy.COPY_ON_WRITE:
            return copy_on_write.stage(job)
        case Strategy.OVERWRITE:
            raise AssertionError("output mode Complete has nothing to match and does not use a MergeJob")
