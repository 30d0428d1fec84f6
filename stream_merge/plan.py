"""Chooses the strategy of a merge, a pure function of clauses, table and output mode, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stream_merge.clauses import Clause
from stream_merge.errors import UnsupportedTableError


class Strategy(str, Enum):
    """How the changes of a batch get into the table, in the terms of Iceberg and Hudi."""

    INSERT_ONLY = "insert_only"
    MERGE_ON_READ = "merge_on_read"
    COPY_ON_WRITE = "copy_on_write"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """The strategy of a merge and the reason for it."""

    strategy: Strategy
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy.value}: {self.reason}"


def choose_strategy(
    clauses: Sequence[Clause],
    *,
    is_complete_mode: bool,
    has_deletion_vectors: bool,
    requested: Strategy | None = None,
) -> MergePlan:
    """Choose the strategy.

    Args:
        clauses: The clauses of the merge, in order.
        is_complete_mode: Whether each batch is the query's whole result.
        has_deletion_vectors: Whether the target may get new deletion vectors.
        requested: The user's choice; it takes precedence if it is possible.

    Raises:
        UnsupportedTableError: The requested strategy does not fit the clauses or the table.
    """
    if is_complete_mode:
        if requested not in (None, Strategy.OVERWRITE):
            raise UnsupportedTableError(
                f"strategy={requested.value!r} cannot serve output mode Complete, where each batch is the whole table; "
                "leave strategy out, or use output mode Update"
            )
        return MergePlan(strategy=Strategy.OVERWRITE, reason="output mode Complete: each batch is the whole table")
    if requested is Strategy.OVERWRITE:
        raise UnsupportedTableError(
            'strategy="overwrite" replaces the whole table with each batch, which needs output mode Complete; '
            'set output_mode="complete" if you want that'
        )
    is_insert_only = all(clause.is_insert for clause in clauses)
    if requested is Strategy.INSERT_ONLY and not is_insert_only:
        raise UnsupportedTableError(
            'strategy="insert_only" cannot carry out update or delete clauses; leave strategy out, or drop the clauses'
        )
    if is_insert_only:
        return MergePlan(
            strategy=Strategy.INSERT_ONLY, reason="all clauses are NOT MATCHED: no row of the target changes"
        )
    if requested is Strategy.MERGE_ON_READ and not has_deletion_vectors:
        raise UnsupportedTableError(
            'strategy="merge_on_read" needs deletion vectors: ALTER TABLE ... SET TBLPROPERTIES '
            "('delta.enableDeletionVectors' = 'true')"
        )
    if requested is not None:
        return MergePlan(strategy=requested, reason="requested by the option strategy")
    if has_deletion_vectors:
        return MergePlan(
            strategy=Strategy.MERGE_ON_READ,
            reason="the target has deletion vectors: unchanged rows stay where they are",
        )
    return MergePlan(
        strategy=Strategy.COPY_ON_WRITE, reason="the target gets no deletion vectors: touched files are rewritten"
    )
