"""Delta's own MERGE as the oracle: the clauses of a sink, run by `DeltaTable.merge` on a copy of the table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable

from stream_merge import MergeSink
from stream_merge.clauses import Action, Clause, When

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def copy_table(path: str, copy: str) -> str:
    """Copy a table with its history and return the path of the copy."""
    shutil.copytree(path, copy)
    return copy


def merge_with_delta(sink: MergeSink, path: str, source: DataFrame) -> None:
    """Run the sink's condition and clauses with Delta's MERGE on the table at `path`."""
    config = sink.config
    target = DeltaTable.forPath(source.sparkSession, path).alias(config.target_alias)
    merge = target.merge(source.alias(config.source_alias), config.on)
    if config.merge_schema:
        merge = merge.withSchemaEvolution()
    for clause in config.clauses:
        merge = _add_clause(merge, clause)
    merge.execute()


def _add_clause(merge: Any, clause: Clause) -> Any:
    condition, assignments = clause.condition, dict(clause.assignments)
    match clause.when, clause.action:
        case When.MATCHED, Action.UPDATE:
            return merge.whenMatchedUpdate(condition, assignments)
        case When.MATCHED, Action.UPDATE_ALL:
            return merge.whenMatchedUpdateAll(condition)
        case When.MATCHED, Action.DELETE:
            return merge.whenMatchedDelete(condition)
        case When.NOT_MATCHED, Action.INSERT:
            return merge.whenNotMatchedInsert(condition, assignments)
        case When.NOT_MATCHED, Action.INSERT_ALL:
            return merge.whenNotMatchedInsertAll(condition)
        case When.NOT_MATCHED_BY_SOURCE, Action.UPDATE:
            return merge.whenNotMatchedBySourceUpdate(condition, assignments)
        case When.NOT_MATCHED_BY_SOURCE, Action.DELETE:
            return merge.whenNotMatchedBySourceDelete(condition)
        case unknown:
            raise ValueError(unknown)
