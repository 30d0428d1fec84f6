"""Looks up the batch's keys in the key index, and reads only files that the index has not seen.

If the order of changes counts, a target row may be newer than its change. The index has the newest sequence of each
file: matches in files whose newest sequence is not newer than the change are settled; other files with matches are
read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import local_folder
from stream_merge.clauses import When
from stream_merge.key_index.index import MAX_ROWS_OF_ALL
from stream_merge.key_index.stored import StoredRuns, fingerprint_of
from stream_merge.merge.job import MergeJob
from stream_merge.merge.locate.index_additions import MAX_ADDED_ROWS, active_paths, add_files, num_indexed_rows
from stream_merge.merge.locate.index_sequence import are_older, is_comparable
from stream_merge.merge.locate.pairs import (
    MAX_SOURCE_ROWS,
    Located,
    Pairs,
    joined_pairs,
    matches_of,
    pairs_in,
)
from stream_merge.merge.locate.probes import halves, has_probes, probes_of
from stream_merge.steps import reached
from stream_merge.table.files import DataFile, physical_name

logger: logging.Logger = logging.getLogger("stream_merge")

MIN_CANDIDATE_ROWS = 20_000
"""With fewer rows that can match, reading them is as fast as adding them to the index."""

MAX_UNFAMILIAR_ROWS = 100_000
"""If files that the last batch did not look into have more rows than this, they are scanned and not indexed, since the
next batch may look elsewhere."""

KNOWN_PER_UNFAMILIAR = 4
"""Unless the index knows so many times as many rows: to scan them all takes longer than to index the others."""


def is_indexable(job: MergeJob) -> bool:
    """Whether the index can answer: the merge compares target columns by equality only, and sequences if order counts.

    Equal values of these columns' types are identical.
    """
    return (
        has_probes(job.resolved)
        and (_can_tell_order(job) or all(clause.is_condition_source_only for _, clause in job.clauses(When.MATCHED)))
        and job.is_broadcast
        and num_indexed_rows(job.candidates) <= MAX_ROWS_OF_ALL
    )


def _can_tell_order(job: MergeJob) -> bool:
    """Whether the order of changes counts, and the driver can compare the sequences of batch and target."""
    return job.keeps_order and job.source.num_rows <= MAX_SOURCE_ROWS and is_comparable(job)


def is_worthwhile(job: MergeJob) -> bool:
    """Whether file skipping leaves much to read, and mostly files that it left for the last batch too.

    Batches with recent keys ask for the same few files again and again, whatever the size of the table; batches with
    random keys ask for all files.
    """
    _reset(job)
    is_large = num_indexed_rows(job.candidates) >= MIN_CANDIDATE_ROWS
    if is_large and is_indexable(job):
        _open(job)
    candidates = {file.path: file for file in job.candidates}
    unfamiliar = job.index.note_asked(candidates.keys())
    num_known = num_indexed_rows([file for path, file in candidates.items() if job.index.has(path)])
    allowed = max(MAX_UNFAMILIAR_ROWS, num_known // KNOWN_PER_UNFAMILIAR)
    return is_large and num_indexed_rows([candidates[path] for path in unfamiliar]) <= allowed


def _reset(job: MergeJob) -> None:
    schema, types = job.transaction.schema, {field.name.lower(): field.dataType for field in job.resolved.types}
    # By physical names: a column may get the name of an earlier one.
    keys = [[physical_name(schema, pair.target), pair.type_name] for pair in job.resolved.key_pairs]
    order = [[physical_name(schema, name), types[name.lower()].simpleString()] for name in job.order_by]
    spark = job.source.rows.sparkSession
    # Versions before counted the characters of texts, by which keys that are not UTF-8 could be mistaken for others.
    counts = ["octets"] if len(keys) > 1 and any(kind == "string" for _, kind in keys) else []
    # Where a partition's name has no zone, which Delta leaves to a setting, a time is another moment in another zone.
    partitions = {name.lower() for name in job.transaction.partition_columns}
    if any(pair.type_name == "timestamp" and pair.target.lower() in partitions for pair in job.resolved.key_pairs):
        counts.append(str(spark.conf.get("spark.sql.session.timeZone")))
    fingerprint = fingerprint_of(job.transaction.table_id, keys, order, *counts)
    job.index.reset(fingerprint, (spark.sparkContext.applicationId, job.transaction.table.root))


def _open(job: MergeJob) -> None:
    """Take over what earlier processes have stored of the index."""
    index, table = job.index, job.transaction.table
    if index.is_open:
        return
    try:
        folder = Path(local_folder(job.source.rows.sparkSession))
    except JVM_ERRORS as error:  # a full disk, say: a small index does without
        logger.warning("%s: no folder for the key index: %s", job.batch, error)
        return
    store = StoredRuns(table, index.fingerprint)
    index.open(folder, store, store.load(folder, active_paths(job)))


def find_matches_by_index(job: MergeJob) -> Located | None:
    """Find the matches by the index, with the same result as `find_pairs`.

    Returns:
        None if a target row matches several times, since only a join can name the keys; if two files share a checksum;
        or if the indexes of other sinks leave no room.
    """
    index = job.index
    _reset(job)
    _open(job)
    # The index may know other files: they hold no row that can match, or have left the table.
    files = {file.path: file for file in job.candidates}
    unknown = [file for path, file in files.items() if not index.has(path)]
    num_unknown = min(num_indexed_rows(unknown), MAX_ADDED_ROWS)
    index.make_room(num_unknown, files.keys())
    if unknown and not index.has_room(num_unknown):
        index.clear()
        return None
    reached("locating")
    if not add_files(job, unknown):
        return None
    batch = job.source.probes
    if batch is None:
        batch = probes_of(job.resolved, job.order_by, job.bound_source).toArrow()
    probes, numbers, rows = index.look_up(*halves(batch["identity"]))
    sources, actions = (batch[name].to_numpy()[probes] for name in ("source", "action"))
    pairs = Pairs(numbers.astype(np.int64), rows.astype(np.int64), sources, actions)
    by_number = {number: files[path] for number, path in index.paths().items() if path in files}
    unsettled = _unsettled(job, batch, probes, pairs, by_number)
    to_read = [by_number.pop(number) for number in unsettled]
    to_read += [file for path, file in files.items() if not index.has(path)]
    if to_read:
        read = pairs_in(job, to_read)
        if read is None:
            return None
        pairs, by_number = joined_pairs((pairs, by_number), read)
    located = matches_of(job, pairs, by_number, "index")
    index.is_in_use = located is not None
    return located


def _unsettled(
    job: MergeJob, batch: Any, probes: NDArray[np.int64], pairs: Pairs, files: Mapping[int, DataFile]
) -> list[int]:
    """Return the numbers of the files in which a matching row may be newer than its change."""
    if not job.order_by:
        return []
    found = []
    for number in np.unique(pairs.files).tolist():
        if number not in files:
            continue
        asked = batch["sequence"].take(pa.array(probes[pairs.files == number]))
        if are_older(asked, job.index.newest(files[number].path)).any():
            found.append(number)
    return found
