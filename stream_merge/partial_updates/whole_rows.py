"""Merges a batch row by row, although its changes may set single columns: no old value is read.

A folded change that sets all columns replaces the row that it matches, unless that row is newer: none of the row's
columns can be newer than the row, so that each register takes the change's value. A change that lacks values needs the
old row, but only if there is one. So a batch can be merged as if all its rows were whole, and merged column by column
if this turns out to be wrong: a row that lacks values matches, or a matching row is newer than its change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from stream_merge.bridge.statement import ResolvedClause
from stream_merge.column_names import COLUMN_SEQUENCES, IS_CARRIED_OVER, IS_DELETE

MAX_INCOMPLETE = 1_000
"""With more rows that lack values, one of them probably matches."""


def whole_row_clauses(clauses: Sequence[ResolvedClause]) -> tuple[ResolvedClause, ...]:
    """Return the default clauses of a sink with a sequence for folded changes that set all columns."""
    return tuple(_without_carried_over(clause) if clause.clause.is_insert else clause for clause in clauses)


def _without_carried_over(insert: ResolvedClause) -> ResolvedClause:
    """Return an INSERT that makes no row of values that follow a row to another key."""
    condition = F.lit(True) if insert.condition is None else insert.condition
    return replace(insert, condition=condition & ~F.col(IS_CARRIED_OVER))


def needs_old_row() -> Column:
    """Return whether a folded change cannot replace the row that it matches."""
    lacks = F.col(COLUMN_SEQUENCES).isNotNull() | F.col(IS_CARRIED_OVER)
    return lacks & ~F.col(IS_DELETE)
