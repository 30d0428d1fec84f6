"""Look the batch's keys up in the index instead of in the files; only files the index has not seen are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.statement import ROW
from stream_merge.clauses import When
from stream_merge.engines.job import ACTION, MergeJob, first_applying
from stream_merge.engines.locate import HASHED_TYPES
from stream_merge.engines.pairs import Located, Pairs, by_checksum, checksum_column, matches_of
from stream_merge.files import DataFile
from stream_merge.key_index import MAX_ROWS
from stream_merge.statement import quote
from stream_merge.steps import reached

MIN_CANDIDATE_ROWS = 100_000
"""Where fewer rows can match, reading them is as fast as two small jobs of the index."""

MAX_UNFAMILIAR_ROWS = 100_000
"""Files of more rows that the batch before did not look into are read for this batch alone: the next one may look elsewhere."""


def is_indexable(job: MergeJob) -> bool:
    """Whether the index can answer: all it takes of the target are columns that are equal, whose hashes are comparable."""
    pairs = job.resolved.key_pairs
    return (
        bool(pairs)
        and len(pairs) == job.resolved.num_conjuncts
        and all(pair.type_name in HASHED_TYPES and not pair.is_null_safe for pair in pairs)
        and all(clause.is_condition_source_only for _, clause in job.clauses(When.MATCHED))
        and job.is_broadcast
        and _num_rows(job.candidates) <= MAX_ROWS
    )


def is_worthwhile(job: MergeJob) -> bool:
    """Whether the files that skipping leaves are much to read, and mostly those that the batch before left.

    Batches with recent keys ask for the same few files again and again, whatever the size of the table; so do batches
    with random keys, for all of them.
    """
    _reset(job)
    candidates = {file.path: file for file in job.candidates}
    unfamiliar = job.index.note_asked(candidates.keys())
    return (
        _num_rows(job.candidates) >= MIN_CANDIDATE_ROWS
        and _num_rows([candidates[path] for path in unfamiliar]) <= MAX_UNFAMILIAR_ROWS
    )


def _num_rows(files: Sequence[DataFile]) -> int:
    # Where a file does not say how many rows it has, there may be too many.
    return sum(MAX_ROWS + 1 if file.num_physical_rows is None else file.num_physical_rows for file in files)


def _reset(job: MergeJob) -> None:
    job.index.reset((job.transaction.metadata["id"], job.resolved.key_pairs))


def find_matches_by_index(job: MergeJob) -> Located | None:
    """Do what `find_pairs` does, by the index.

    Returns:
        None when a target row matches several times, where it takes a join to tell the keys, or when files can't be told apart.
    """
    index = job.index
    _reset(job)
    # Others may be known: they hold no row that can match, or no longer belong to the table.
    files = {file.path: file for file in job.candidates}
    unknown = [file for path, file in files.items() if not index.has(path)]
    index.make_room(_num_rows(unknown), files.keys())
    reached("locating")
    if not _add_files(job, unknown):
        return None
    batch = _hashes_of_batch(job)
    probes, numbers, rows = index.look_up(_unsigned(batch["high"]), _unsigned(batch["low"]))
    pairs = Pairs(numbers.astype(np.int64), rows.astype(np.int64), probes, batch["action"].to_numpy()[probes])
    by_number = {number: files[path] for number, path in index.paths().items() if path in files}
    return matches_of(job, pairs, by_number, "index")


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
    high, low = _hash_columns(target, names)
    entries = target.where(_has_key(target, names)).select(
        checksum_column(), F.col(ROW).alias("row"), high.alias("high"), low.alias("low")
    )
    table = entries.toArrow()
    checksums = table["file"].to_numpy()
    if not set(np.unique(checksums).tolist()) <= files.keys():
        return False
    high_values, low_values = _unsigned(table["high"]), _unsigned(table["low"])
    paths = {number: file.path for number, file in files.items()}
    job.index.add(paths, checksums, table["row"].to_numpy(), high_values, low_values)
    return True


def _hashes_of_batch(job: MergeJob) -> Any:
    names = [pair.source for pair in job.resolved.key_pairs]
    source = job.bound_source
    high, low = _hash_columns(source, names)
    action = F.coalesce(first_applying(job.clauses(When.MATCHED)), F.lit(-1)).cast("int")
    rows = source.where(_has_key(source, names)).select(high.alias("high"), low.alias("low"), action.alias(ACTION))
    return rows.withColumnRenamed(ACTION, "action").toArrow()


def _unsigned(column: Any) -> Any:
    return column.to_numpy().view(np.uint64)
