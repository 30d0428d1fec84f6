"""Decides whether what a merge writes depends on the target, or can be written before the matches are known."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.clauses import When
from stream_merge.merge.job import first_applying


def independence_of(resolved: ResolvedMerge, *, keeps_order: bool) -> tuple[Column, Column] | None:
    """Return whether a source row's output depends on a match, and whether it has any; None if all rows may depend.

    Nothing depends on a match if the conditions use only the source, updates and inserts write the same values, and a
    row that is updated if it matches is inserted if it does not.

    Args:
        resolved: The statement.
        keeps_order: Whether it has the default clauses of a sink with a sequence. Their conditions also ask whether
            the target row is newer, which is rare.
    """
    return resolved.once("independence", lambda: _independence(resolved, keeps_order=keeps_order))


def _independence(resolved: ResolvedMerge, *, keeps_order: bool) -> tuple[Column, Column] | None:
    clauses = resolved.clauses
    updates = [c for c in clauses if c.clause.is_update]
    inserts = [c for c in clauses if c.clause.is_insert]
    if not updates or not inserts:
        return None
    if any(c.clause.when is When.NOT_MATCHED_BY_SOURCE for c in clauses):
        return None
    if not all(c.are_values_source_only for c in updates):
        return None
    if not all(update.has_same_values(insert) for update in updates for insert in inserts):
        return None
    if keeps_order:
        (insert,) = inserts
        return F.lit(False), F.lit(True) if insert.condition is None else F.coalesce(insert.condition, F.lit(False))
    if not all(c.is_condition_source_only for c in clauses):
        return None
    numbered = list(enumerate(clauses))
    matched = first_applying([(n, c) for n, c in numbered if c.clause.when is When.MATCHED])
    unmatched = first_applying([(n, c) for n, c in numbered if c.clause.is_insert])
    update_numbers = [n for n, c in numbered if c.clause.is_update]
    would_update = F.coalesce(matched.isin(*update_numbers), F.lit(False))
    return would_update != unmatched.isNotNull(), unmatched.isNotNull()
