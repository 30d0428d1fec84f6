"""Look the batch's keys up in the index instead of in the files; only files the index has not seen are read.

Where the order of changes counts, a row of the table may be newer than its change. The index has the newest sequence of each
file: matches in files whose newest is no newer than the change are settled, and the other files are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.statement import ROW, SOURCE_ID
from stream_merge.clauses import When
from stream_merge.engines.index_order import is_comparable, place_of, sequence_of
from stream_merge.engines.job import MergeJob, first_applying
from stream_merge.engines.locate import HASHED_TYPES
from stream_merge.engines.pairs import (
    MAX_SOURCE_ROWS,
    Located,
    Pairs,
    by_checksum,
    checksum_column,
    joined_pairs,
    matches_of,
    pairs_in,
)
from stream_merge.files import DataFile
from stream_merge.key_index import MAX_ROWS
from stream_merge.side_by_side import Alongside
from stream_merge.source import deletes
from stream_merge.statement import quote
from stream_merge.steps import reached

MIN_CANDIDATE_ROWS = 100_000
"""Where fewer rows can match, reading them is as fast as two small jobs of the index."""

MIN_ORDERED_CANDIDATE_ROWS = 750_000
"""The same where the order of changes counts, which takes the index a job more."""

MAX_UNFAMILIAR_ROWS = 100_000
"""Files of more rows that the batch before did not look into are read for this batch alone: the next one may look elsewhere."""


def is_indexable(job: MergeJob) -> bool:
    """Whether the index can answer: all it takes of the target are columns that are equal, whose hashes are comparable.

    And, where the order of changes counts, their sequences.
    """
    pairs = job.resolved.key_pairs
    return (
        bool(pairs)
        and len(pairs) == job.resolved.num_conjuncts
        and all(pair.type_name in HASHED_TYPES and not pair.is_null_safe for pair in pairs)
        and (_can_tell_order(job) or all(clause.is_condition_source_only for _, clause in job.clauses(When.MATCHED)))
        and job.is_broadcast
        and _num_rows(job.candidates) <= MAX_ROWS
    )


def _can_tell_order(job: MergeJob) -> bool:
    """Whether the order of changes counts, and the sequences of batch and target can be compared here."""
    return job.keeps_order and job.source.num_rows <= MAX_SOURCE_ROWS and is_comparable(job)


def is_worthwhile(job: MergeJob) -> bool:
    """Whether the files that skipping leaves are much to read, and mostly those that the batch before left.

    Batches with recent keys ask for the same few files again and again, whatever the size of the table; so do batches
    with random keys, for all of them.
    """
    _reset(job)
    candidates = {file.path: file for file in job.candidates}
    unfamiliar = job.index.note_asked(candidates.keys())
    return (
        _num_rows(job.candidates) >= (MIN_ORDERED_CANDIDATE_ROWS if job.order_by else MIN_CANDIDATE_ROWS)
        and _num_rows([candidates[path] for path in unfamiliar]) <= MAX_UNFAMILIAR_ROWS
    )


def _num_rows(files: Sequence[DataFile]) -> int:
    # Where a file does not say how many rows it has, there may be too many.
    return sum(MAX_ROWS + 1 if file.num_physical_rows is None else file.num_physical_rows for file in files)


def _reset(job: MergeJob) -> None:
    job.index.reset((job.transaction.metadata["id"], job.resolved.key_pairs, job.order_by))


def find_matches_by_index(job: MergeJob) -> Located | None:
    """Do what `find_pairs` does, by the index.

    Returns:
        None when a target row matches several times, where it takes a join to tell the keys, when files can't be told apart, or
        when the indexes of other sinks leave no room.
    """
    index = job.index
    _reset(job)
    # Others may be known: they hold no row that can match, or no longer belong to the table.
    files = {file.path: file for file in job.candidates}
    unknown = [file for path, file in files.items() if not index.has(path)]
    index.make_room(_num_rows(unknown), files.keys())
    if unknown and not index.has_room(_num_rows(unknown)):
        index.clear()
        return None
    reached("locating")
    if not _add_files(job, unknown):
        return None
    batch = _hashes_of_batch(job)
    probes, numbers, rows = index.look_up(_unsigned(batch["high"]), _unsigned(batch["low"]))
    sources, actions = (batch[name].to_numpy()[probes] for name in ("source", "action"))
    pairs = Pairs(numbers.astype(np.int64), rows.astype(np.int64), sources, actions)
    by_number = {number: files[path] for number, path in index.paths().items() if path in files}
    unsettled = _unsettled(job, batch, probes, pairs, by_number)
    if unsettled:
        read = pairs_in(job, [by_number.pop(number) for number in unsettled])
        if read is None:
            return None
        pairs, by_number = joined_pairs((pairs, by_number), read)
    return matches_of(job, pairs, by_number, "index")


def _unsettled(
    job: MergeJob, batch: Any, probes: NDArray[np.int64], pairs: Pairs, files: Mapping[int, DataFile]
) -> list[int]:
    """Return the numbers of the files in which a row that matches may be newer than its change."""
    if not job.order_by:
        return []
    places = [place_of(sequence) for sequence in batch["sequence"].to_pylist()]
    found = []
    for number in np.unique(pairs.files).tolist():
        if number not in files:
            continue
        newest = place_of(job.index.newest(files[number].path))
        if any(places[probe] < newest for probe in probes[pairs.files == number].tolist()):
            found.append(number)
    return found


def _hash_columns(frame: DataFrame, names: Sequence[str]) -> tuple[Column, Column]:
    """Return two hashes of the key columns that have nothing to do with each other."""
    columns = [frame[quote(name)] for name in names]
    return F.xxhash64(*columns), F.xxhash64(F.lit(1), *columns)


def _has_key(frame: DataFrame, names: Sequence[str]) -> Column:
    has_key = F.lit(True)
    for name in names:
        has_key = has_key & frame[quote(name)].isNotNull()
    return has_key


def _add_files(job: MergeJob, unknown: Sequence[DataFile]) -> bool:
    if not unknown:
        return True
    files = by_checksum(job, unknown)
    if files is None:
        return False
    names = [pair.target for pair in job.resolved.key_pairs]
    target = job.resolved.target(job.transaction, [file.undeleted for file in unknown], with_rows=True)
    target = target.where(_has_key(target, names))
    high, low = _hash_columns(target, names)
    entries = target.select(checksum_column(), F.col(ROW).alias("row"), high.alias("high"), low.alias("low"))
    newest: dict[int, Any] = {}
    if job.order_by:
        sequences = target.groupBy(checksum_column()).agg(F.max(sequence_of(job, target)).alias("sequence"))
        with Alongside(
            target.sparkSession, f"{job.batch}: locate", lambda: planned_at_once(sequences).toArrow()
        ) as looking:
            table = entries.toArrow()
            newest = {row["file"]: row["sequence"] for row in looking.result().to_pylist()}
    else:
        table = entries.toArrow()
    checksums = table["file"].to_numpy()
    if not set(np.unique(checksums).tolist()) <= files.keys():
        return False
    high_values, low_values = _unsigned(table["high"]), _unsigned(table["low"])
    paths = {number: file.path for number, file in files.items()}
    job.index.add(paths, checksums, table["row"].to_numpy(), high_values, low_values, newest)
    return True


def _hashes_of_batch(job: MergeJob) -> Any:
    names = [pair.source for pair in job.resolved.key_pairs]
    source = job.bound_source
    high, low = _hash_columns(source, names)
    action = F.coalesce(_action(job), F.lit(-1)).cast("int")
    sequence = [sequence_of(job, source).alias("sequence")] if job.order_by else []
    rows = source.where(_has_key(source, names)).select(
        high.alias("high"), low.alias("low"), F.col(SOURCE_ID).alias("source"), action.alias("action"), *sequence
    )
    return rows.toArrow()


def _action(job: MergeJob) -> Column:
    """Return the number of the clause that applies to a match; where the order of changes counts, if the change is not older."""
    matched = job.clauses(When.MATCHED)
    if not job.order_by:
        return first_applying(matched)
    update = next(number for number, clause in matched if clause.clause.is_update)
    delete = next((number for number, clause in matched if clause.clause.is_delete), None)
    return F.when(deletes(job.resolved), F.lit(delete)).otherwise(F.lit(update))


def _unsigned(column: Any) -> Any:
    return column.to_numpy().view(np.uint64)
