"""Finds the matching rows of the candidate files by one join with the batch, executed once.

The target is always the streamed side and the batch the broadcast side. Delta's MERGE needs an outer join that keeps
unmatched source rows, and so shuffles the table; here they are found afterwards by an anti join of two small frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.expressions import bitmap
from stream_merge.bridge.statement import ResolvedClause
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, COMPLETED, FILE, ROW, SOURCE_ID
from stream_merge.errors import AmbiguousMatchError
from stream_merge.merge.job import UNCHANGED, MergeJob, first_applying, without_matches
from stream_merge.merge.unchanged import unchanged_rows
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.deletion_vectors import deserialize
from stream_merge.table.files import DataFile

HASHED_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "date", "timestamp")
"""Types whose equal values have equal hashes, whatever their representation; not floats (-0.0), not collated
strings."""


@dataclass(frozen=True, slots=True)
class FileMatches:
    """The matches in one file.

    Attributes:
        file: The file.
        num_matches: Pairs of a target row and a source row.
        num_matched_rows: Distinct target rows among them.
        num_changed_rows: Distinct target rows that a clause applies to.
        changed_rows: Their positions; None if not collected.
        num_by_clause: Rows by number of the clause; pairs if a row matches several times.
        num_unchanged_rows: Rows that an update applies to but would not change; they do not count as changed.
        sources: Numbers of the source rows that match; None if not collected.
        completed: Numbers of the source rows that take a value from the target which their change did not send; None if
            no source row lacks a value.
    """

    file: DataFile
    num_matches: int
    num_matched_rows: int
    num_changed_rows: int
    changed_rows: BitMap64 | None
    num_by_clause: Mapping[int, int]
    num_unchanged_rows: int = 0
    sources: BitMap64 | None = None
    completed: BitMap64 | None = None


def joined_rows(
    job: MergeJob, target: DataFrame, columns: Sequence[str | Column] = ("*",), *, keep_unmatched: bool = False
) -> DataFrame:
    """Join target rows with the batch, and number the clause that applies to each pair in `ACTION`.

    Target rows without a match are kept only on request, or if NOT MATCHED BY SOURCE clauses need them.

    Args:
        job: The merge.
        target: The target rows.
        columns: The columns of a pair to keep, before `ACTION`.
        keep_unmatched: Whether to keep target rows without a match.
    """
    by_source = job.clauses(When.NOT_MATCHED_BY_SOURCE)
    is_outer = keep_unmatched or bool(by_source)
    source = job.bound_source
    condition = join_condition(job, target, source)
    if not by_source and not job.clauses(When.NOT_MATCHED):
        condition = job.resolved.once("decided", lambda: _is_decided(job.clauses(When.MATCHED))) & condition
    joined = target.join(job.broadcast(source), condition, "left_outer" if is_outer else "inner")

    def action() -> Column:
        unchanged = unchanged_rows(job)
        number = first_applying(job.clauses(When.MATCHED), unchanged)
        if is_outer:
            number = F.when(F.col(SOURCE_ID).isNotNull(), number).otherwise(first_applying(by_source, unchanged))
        return number.alias(ACTION)

    return joined.select(*columns, job.resolved.once(f"action of outer join: {is_outer}", action))


def _is_decided(matched: Sequence[tuple[int, ResolvedClause]]) -> Column:
    """Return whether some clause's condition is true, or all are false.

    If all clauses are MATCHED ones, Delta's MERGE ignores a match whose conditions are undecided because of NULLs:
    several such matches are not ambiguous, just as several matches that no clause takes are not.
    """
    conditions = [clause.condition for _, clause in matched if clause.condition is not None]
    return reduce(Column.__or__, conditions).isNotNull() if len(conditions) == len(matched) else F.lit(True)


def join_condition(job: MergeJob, target: DataFrame, source: DataFrame) -> Column:
    """Return the merge condition in the form that Spark joins fastest.

    To look up a string, Spark builds and compares a row for each row of the table; to look up a long, it compares
    longs. So the hash of the keys becomes the join key, and the condition decides among the few rows with equal hashes.
    `coalesce` hides the condition's equalities, which Spark would otherwise use as join keys.
    """
    pairs = job.resolved.key_pairs
    is_hashable = all(pair.type_name in HASHED_TYPES and not pair.is_null_safe for pair in pairs)
    if not is_hashable or not any(pair.type_name == "string" for pair in pairs):
        return job.resolved.condition
    sides = (
        F.xxhash64(*[frame[quote(name)] for name in names])
        for frame, names in ((target, [p.target for p in pairs]), (source, [p.source for p in pairs]))
    )
    hash_of_target, hash_of_source = sides
    return (hash_of_target == hash_of_source) & F.coalesce(job.resolved.condition, F.lit(False))


def find_matches(
    job: MergeJob, rows: DataFrame, *, with_positions: bool, with_sources: bool = False
) -> list[FileMatches]:
    """Run the join and return the matches in each file.

    Args:
        job: The merge.
        rows: Frame with `FILE`, `ROW`, `SOURCE_ID` (NULL without a match), `ACTION`, and what `completed_row` returns.
        with_positions: Whether to collect a bitmap of changed rows for each touched file.
        with_sources: Whether to collect bitmaps of source rows as well.

    Raises:
        AmbiguousMatchError: Several source rows match one target row.
    """
    spark = rows.sparkSession
    existing = [n for n, clause in enumerate(job.resolved.clauses) if not clause.clause.is_insert]
    all_change = _every_match_changes(job)
    is_match = F.col(SOURCE_ID).isNotNull()
    changed = _collected(bitmap(spark, F.when(F.col(ACTION) != UNCHANGED, F.col(ROW))), with_positions=with_positions)
    aggregates: list[Column] = [F.count(SOURCE_ID).alias("matches"), changed.alias("changed")]
    if not all_change:
        matched = F.when(is_match, F.col(ROW))
        aggregates.append(_collected(bitmap(spark, matched), with_positions=False).alias("matched"))
    aggregates += [F.count(F.when(F.col(ACTION) == n, 1)).alias(f"clause_{n}") for n in existing]
    aggregates.append(F.count(F.when(F.col(ACTION) == UNCHANGED, 1)).alias("unchanged"))
    if with_sources:
        aggregates.append(_collected(bitmap(spark, F.col(SOURCE_ID)), with_positions=True).alias("sources"))
    with_completed = COMPLETED in rows.columns
    if with_completed:
        aggregates.append(_collected(bitmap(spark, F.col(COMPLETED)), with_positions=True).alias("completed"))
    reached("locating")
    collected = job.unshuffled(rows.groupBy(FILE).agg(*aggregates)).collect()
    root = job.transaction.table.root
    found = [
        FileMatches(
            file=job.files.find(row[FILE], root),
            num_matches=row["matches"],
            num_matched_rows=(row["changed"] if all_change else row["matched"])["cardinality"],
            num_changed_rows=row["changed"]["cardinality"],
            changed_rows=deserialize(bytes(row["changed"]["bitmap"])) if with_positions else None,
            num_by_clause={n: row[f"clause_{n}"] for n in existing},
            num_unchanged_rows=row["unchanged"],
            sources=deserialize(bytes(row["sources"]["bitmap"])) if with_sources else None,
            completed=deserialize(bytes(row["completed"]["bitmap"])) if with_completed else None,
        )
        for row in collected
    ]
    if job.check_cardinality and not _is_single_unconditional_delete(job):
        _check_cardinality(job, rows, found)
    return found


def _collected(bitmap_column: Column, *, with_positions: bool) -> Column:
    fields = [bitmap_column.getField("cardinality").alias("cardinality")]
    if with_positions:
        fields.append(bitmap_column.getField("bitmap").alias("bitmap"))
    return F.struct(*fields)


def _every_match_changes(job: MergeJob) -> bool:
    """Whether the changed rows are the matched ones, so that one bitmap serves both."""
    matched = job.clauses(When.MATCHED)
    ends_unconditional = bool(matched) and matched[-1][1].condition is None
    return ends_unconditional and not job.clauses(When.NOT_MATCHED_BY_SOURCE) and not job.skip_unchanged


def _is_single_unconditional_delete(job: MergeJob) -> bool:
    """Whether several matches cannot be ambiguous, since each of them deletes the row (Delta's rule)."""
    matched = job.clauses(When.MATCHED)
    return len(matched) == 1 and matched[0][1].clause.is_delete and matched[0][1].condition is None


def _check_cardinality(job: MergeJob, rows: DataFrame, found: Sequence[FileMatches]) -> None:
    if all(matches.num_matches == matches.num_matched_rows for matches in found):
        return
    ambiguous = (
        rows.where(F.col(SOURCE_ID).isNotNull())
        .groupBy(FILE, ROW)
        .agg(F.count(F.lit(1)).alias("matches"), *[F.first(quote(name)).alias(name) for name in _example_columns(rows)])
        .where(F.col("matches") > 1)
    )
    count, example = ambiguous.count(), ambiguous.first()
    values: dict[str, Any] = {}
    if example is not None:
        values = {name.removeprefix("_stream_merge_key_"): example[name] for name in _example_columns(rows)}
    raise AmbiguousMatchError(job.batch, count, values)


def _example_columns(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name.startswith("_stream_merge_key_")]


def key_columns(job: MergeJob, target: DataFrame) -> list[Column]:
    """Return the target columns that the merge condition names, renamed for the error about multiple matches."""
    return [target[quote(name)].alias(f"_stream_merge_key_{name}") for name in job.resolved.condition_target_columns]


def sum_by_clause(job: MergeJob, found: Sequence[FileMatches]) -> dict[str, int]:
    """Return Delta's row metrics of updates and deletes, and the library's own metrics that the matches give.

    A row that several source rows delete counts once. A row is unresolved if neither batch nor target has a value that
    its change did not send.
    """
    counts = dict.fromkeys(
        (
            "num_target_rows_matched_updated",
            "num_target_rows_matched_deleted",
            "num_target_rows_not_matched_by_source_updated",
            "num_target_rows_not_matched_by_source_deleted",
        ),
        0,
    )
    for number, clause in enumerate(job.resolved.clauses):
        if clause.clause.is_insert:
            continue
        kind = "matched" if clause.clause.when is When.MATCHED else "not_matched_by_source"
        verb = "deleted" if clause.clause.is_delete else "updated"
        counts[f"num_target_rows_{kind}_{verb}"] += sum(matches.num_by_clause[number] for matches in found)
    if _is_single_unconditional_delete(job):
        overcount = sum(matches.num_matches - matches.num_matched_rows for matches in found)
        counts["num_target_rows_matched_deleted"] -= overcount
    for verb in ("updated", "deleted"):
        counts[f"num_target_rows_{verb}"] = (
            counts[f"num_target_rows_matched_{verb}"] + counts[f"num_target_rows_not_matched_by_source_{verb}"]
        )
    completed = BitMap64().union(*[matches.completed for matches in found if matches.completed is not None])
    counts["num_unresolved_rows"] = job.source.num_unresolved - len(completed)
    counts["num_unchanged_rows"] = unchanged = sum(matches.num_unchanged_rows for matches in found)
    # With the default clauses and a sequence, a match that no clause takes is a change older than its row.
    applied = sum(matches.num_by_clause[number] for matches in found for number, _ in job.clauses(When.MATCHED))
    num_matches = sum(matches.num_matches for matches in found)
    counts["num_stale_rows"] = num_matches - applied - unchanged if job.keeps_order else 0
    return counts


def has_unmatched_rows(job: MergeJob, rows: DataFrame, found: Sequence[FileMatches]) -> bool:
    """Whether a source row matches nothing; writing no rows would leave an empty file behind.

    Args:
        job: The merge.
        rows: The kept rows that `find_matches` read.
        found: What it found. With at least as many matches as source rows, only a join can tell.
    """
    if sum(matches.num_matches for matches in found) < job.source.num_rows:
        return True
    return not without_matches(job, rows.where(F.col(SOURCE_ID).isNotNull())).isEmpty()


def count_source_rows(job: MergeJob, *, has_touched_files: bool, is_rewrite: bool) -> int:
    """Return the number of source rows as Delta's MERGE reports it.

    Where Delta's second join is a full outer join without equality, a nested loop evaluates the source twice, and Delta
    reports each source row twice. The result follows Delta, so that the histories agree.
    """
    has_inserts, by_source = bool(job.clauses(When.NOT_MATCHED)), bool(job.clauses(When.NOT_MATCHED_BY_SOURCE))
    is_full_outer = (has_inserts or by_source) if is_rewrite else (has_inserts and by_source)
    is_twice = has_touched_files and is_full_outer and not job.resolved.has_equality
    return job.source.num_rows * (2 if is_twice else 1)
