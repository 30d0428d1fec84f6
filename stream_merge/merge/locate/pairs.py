"""Collects the matches of a small batch on the driver, as pairs of a target row and a source row."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import When
from stream_merge.column_names import ACTION, FILE, ROW, SOURCE_ID
from stream_merge.merge.job import MergeJob
from stream_merge.merge.locate.scan import FileMatches, joined_rows
from stream_merge.steps import reached
from stream_merge.table.files import DataFile

MAX_SOURCE_ROWS = 250_000
"""Pairs are collected for at most this many source rows: about 20 MB with a few dead versions of each row."""

Integers: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of a target row and a source row, as one array for each attribute.

    Attributes:
        files: Number of the target row's file.
        rows: Position of the target row in the file.
        sources: Number of the source row.
        actions: Number of the clause that applies; negative if none does.
    """

    files: Integers
    rows: Integers
    sources: Integers
    actions: Integers


@dataclass(frozen=True, slots=True)
class Located:
    """The matches of a batch.

    Attributes:
        found: The matches in each file that changes.
        is_one_to_one: Whether no source row matches several target rows.
        num_idle: Matches to which no clause applies.
        locator: How they were found.
        sources: Numbers of the source rows that match; None if not collected.
        idle: Numbers of the source rows of `num_idle`; None if not collected.
    """

    found: Sequence[FileMatches]
    is_one_to_one: bool
    num_idle: int
    locator: str
    sources: Integers | None = None
    idle: Integers | None = None


def checksum_column() -> Column:
    """Return a checksum of the name of a row's file, which is shorter than the name; see `by_checksum`."""
    return F.crc32(F.col(FILE)).alias("file")


def by_checksum(transaction: Transaction, files: Sequence[DataFile]) -> dict[int, DataFile] | None:
    """Return files by the value of `checksum_column` for their rows; None if two files share one."""
    root = transaction.table.root.rstrip("/")
    # The log of a shallow clone names the files of its source by absolute URIs.
    uris = [file.path if ":/" in file.path else f"{root}/{file.path}" for file in files]
    named = {zlib.crc32(uri.encode()): file for uri, file in zip(uris, files, strict=True)}
    return named if len(named) == len(files) else None


def find_pairs(job: MergeJob) -> Located | None:
    """Find the matches by joining the candidate files with the batch.

    Args:
        job: The merge; its clauses are MATCHED clauses and inserts only.

    Returns:
        None if a target row matches several times, since only a join can name the keys, or if two files share a
        checksum.
    """
    joined = pairs_in(job, job.candidates)
    return None if joined is None else matches_of(job, *joined, "scan")


def pairs_in(job: MergeJob, candidates: Sequence[DataFile]) -> tuple[Pairs, Mapping[int, DataFile]] | None:
    """Join some files with the batch, including deleted rows, which `matches_of` drops.

    Reading a file without its deletion vector takes half the time, and `matches_of` needs the vector anyway.

    Args:
        job: The merge; its clauses are MATCHED clauses and inserts only.
        candidates: The files.

    Returns:
        The pairs, and the files by number; None if two files share a checksum.
    """
    files = by_checksum(job.transaction, candidates)
    if files is None:
        return None
    target = job.resolved.target(job.transaction, [file.undeleted for file in candidates], with_rows=True)
    columns = job.resolved.once(
        "pairs", lambda: [checksum_column(), F.col(ROW).alias("row"), F.col(SOURCE_ID).alias("source")]
    )
    reached("locating")
    table = _with_action(planned_at_once(joined_rows(job, target, columns))).toArrow()
    numbers = table["file"].to_numpy()
    if not set(np.unique(numbers).tolist()) <= files.keys():
        return None
    rows, sources, actions = (table[name].to_numpy() for name in ("row", "source", "action"))
    return Pairs(numbers, rows, sources, actions), files


def joined_pairs(
    one: tuple[Pairs, Mapping[int, DataFile]], other: tuple[Pairs, Mapping[int, DataFile]]
) -> tuple[Pairs, dict[int, DataFile]]:
    """Return two results of `pairs_in` or of the index as one, without pairs whose file is not in its mapping."""
    parts = []
    named: dict[int, DataFile] = {}
    for pairs, files in (one, other):
        own = {number: len(named) + place for place, number in enumerate(files)}
        named |= {own[number]: file for number, file in files.items()}
        is_named = np.isin(pairs.files, list(files))
        numbers = np.array([own[number] for number in pairs.files[is_named].tolist()], dtype=np.int64)
        parts.append((numbers, *(values[is_named] for values in (pairs.rows, pairs.sources, pairs.actions))))
    return Pairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), named


def _with_action(rows: DataFrame) -> DataFrame:
    return rows.select("file", "row", "source", F.coalesce(ACTION, F.lit(-1)).cast("int").alias("action"))


def matches_of(job: MergeJob, pairs: Pairs, files: Mapping[int, DataFile], locator: str) -> Located | None:
    """Group pairs by file, without pairs of rows that are already deleted.

    Args:
        job: The merge.
        pairs: The pairs; those whose file is not in `files` do not count.
        files: The files by number.
        locator: How the pairs were found.

    Returns:
        None if a target row matches several times.
    """
    found = []
    live_sources, idle_sources = [], []
    for number in np.unique(pairs.files).tolist():
        file = files.get(number)
        if file is None:
            continue
        in_file = pairs.files == number
        rows, sources, actions = pairs.rows[in_file], pairs.sources[in_file], pairs.actions[in_file]
        deleted = job.deleted_rows(file)
        if deleted:
            live = BitMap64(rows.astype(np.uint64)) - deleted
            is_live = np.isin(rows, np.fromiter(live, dtype=np.int64, count=len(live)))
            rows, sources, actions = rows[is_live], sources[is_live], actions[is_live]
        positions = BitMap64(rows.astype(np.uint64))
        if len(positions) != len(rows):
            return None
        live_sources.append(sources)
        idle_sources.append(sources[actions < 0])
        matches = _matches_in_file(job, file, rows, actions)
        if matches.num_changed_rows:
            found.append(matches)
    all_sources, idle = (
        np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in (live_sources, idle_sources)
    )
    return Located(found, len(np.unique(all_sources)) == len(all_sources), len(idle), locator, all_sources, idle)


def _matches_in_file(job: MergeJob, file: DataFile, rows: Any, actions: Any) -> FileMatches:
    by_clause = {n: BitMap64(rows[actions == n].astype(np.uint64)) for n, _ in job.clauses(When.MATCHED)}
    changed = BitMap64().union(*by_clause.values())
    # The cardinality check counts all matches, whether a clause applies or not.
    return FileMatches(
        file=file,
        num_matches=len(rows),
        num_matched_rows=len(rows),
        num_changed_rows=len(changed),
        changed_rows=changed,
        num_by_clause={number: len(positions) for number, positions in by_clause.items()},
    )
