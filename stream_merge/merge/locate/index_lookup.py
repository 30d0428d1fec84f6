"""Looks up the batch's keys in the key index, and reads only files that the index has not seen.

If the order of changes counts, a target row may be newer than its change. The index has the newest sequence of each
file: matches in files whose newest sequence is not newer than the change are settled; other files with matches are
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.table import local_folder
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.clauses import When
from stream_merge.column_names import ROW
from stream_merge.key_index.index import MAX_ROWS_OF_ALL
from stream_merge.key_index.stored import StoredRuns, fingerprint_of
from stream_merge.merge.job import MergeJob
from stream_merge.merge.locate.index_sequence import is_comparable, place_of, sequence_of
from stream_merge.merge.locate.pairs import (
    MAX_SOURCE_ROWS,
    Located,
    Pairs,
    by_checksum,
    checksum_column,
    joined_pairs,
    matches_of,
    pairs_in,
)
from stream_merge.merge.locate.probes import halves, has_key, has_probes, identity, probes_of
from stream_merge.steps import reached
from stream_merge.table.files import DataFile, physical_name

MIN_CANDIDATE_ROWS = 100_000
"""With fewer rows that can match, reading them is as fast as the two small jobs of the index."""

MIN_ORDERED_CANDIDATE_ROWS = 750_000
"""The same if the order of changes counts, for which the index needs one more job."""

MAX_ADDED_ROWS = 20_000_000
"""So many rows one batch reads for the index. It scans the rest of a larger table, which the next batches read."""

MAX_READ_ROWS = 2_000_000
"""So many rows one job reads for the index: up to 80 MB go through the driver."""

MAX_UNFAMILIAR_ROWS = 100_000
"""If files that the last batch did not look into have more rows than this, they are scanned and not indexed, since the
next batch may look elsewhere."""


def is_indexable(job: MergeJob) -> bool:
    """Whether the index can answer: the merge compares target columns by equality only, and sequences if order counts.

    Equal values of these columns' types are identical.
    """
    return (
        has_probes(job.resolved)
        and (_can_tell_order(job) or all(clause.is_condition_source_only for _, clause in job.clauses(When.MATCHED)))
        and job.is_broadcast
        and _num_rows(job.candidates) <= MAX_ROWS_OF_ALL
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
    is_large = _num_rows(job.candidates) >= (MIN_ORDERED_CANDIDATE_ROWS if job.order_by else MIN_CANDIDATE_ROWS)
    if is_large and is_indexable(job):
        _open(job)
    candidates = {file.path: file for file in job.candidates}
    unfamiliar = job.index.note_asked(candidates.keys())
    return is_large and _num_rows([candidates[path] for path in unfamiliar]) <= MAX_UNFAMILIAR_ROWS


def _num_rows(files: Sequence[DataFile]) -> int:
    # A file without statistics may have too many rows.
    return sum(MAX_ROWS_OF_ALL + 1 if file.num_physical_rows is None else file.num_physical_rows for file in files)


def _reset(job: MergeJob) -> None:
    schema, types = job.transaction.schema, {field.name.lower(): field.dataType for field in job.resolved.types}
    # By physical names: a column may get the name of an earlier one.
    keys = [[physical_name(schema, pair.target), pair.type_name] for pair in job.resolved.key_pairs]
    order = [[physical_name(schema, name), types[name.lower()].simpleString()] for name in job.order_by]
    spark = job.source.rows.sparkSession
    fingerprint = fingerprint_of(job.transaction.table_id, keys, order)
    job.index.reset(fingerprint, spark.sparkContext.applicationId)


def _open(job: MergeJob) -> None:
    """Take over what earlier processes have stored of the index."""
    index, table = job.index, job.transaction.table
    if index.is_open:
        return
    folder = Path(local_folder(job.source.rows.sparkSession))
    store = StoredRuns(table, index.fingerprint)
    index.open(folder, store, store.load(folder, _active_paths(job)))


def _active_paths(job: MergeJob) -> set[str]:
    return {file.path for file in job.files.all()}


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
    num_unknown = min(_num_rows(unknown), MAX_ADDED_ROWS)
    index.make_room(num_unknown, files.keys())
    if unknown and not index.has_room(num_unknown):
        index.clear()
        return None
    reached("locating")
    if not _add_files(job, unknown):
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
    places = [place_of(sequence) for sequence in batch["sequence"].to_pylist()]
    found = []
    for number in np.unique(pairs.files).tolist():
        if number not in files:
            continue
        newest = place_of(job.index.newest(files[number].path))
        if any(places[probe] < newest for probe in probes[pairs.files == number].tolist()):
            found.append(number)
    return found


def _add_files(job: MergeJob, unknown: Sequence[DataFile]) -> bool:
    """Read the keys of files into the index, as many as one batch may wait for; return whether that has worked."""
    waiting, num_added = list(unknown), 0
    while waiting and num_added < MAX_ADDED_ROWS:
        part = [waiting.pop()]
        while waiting and _num_rows([*part, waiting[-1]]) <= MAX_READ_ROWS:
            part.append(waiting.pop())
        num_added += _num_rows(part)
        if not _add_some(job, part):
            return False
    return True


def _add_some(job: MergeJob, unknown: Sequence[DataFile]) -> bool:
    files = by_checksum(job, unknown)
    if files is None:
        return False
    names = [pair.target for pair in job.resolved.key_pairs]
    types = [pair.type_name for pair in job.resolved.key_pairs]
    target = job.resolved.target(job.transaction, [file.undeleted for file in unknown], with_rows=True)
    target = target.where(has_key(target, names))
    entries = target.select(checksum_column(), F.col(ROW).alias("row"), identity(target, names, types))
    newest: dict[int, Any] = {}
    if job.order_by:
        sequences = target.groupBy(checksum_column()).agg(
            F.max(sequence_of(job.resolved, job.order_by, target)).alias("sequence")
        )
        with BackgroundTask(
            target.sparkSession, f"{job.batch}: locate", lambda: planned_at_once(sequences).toArrow()
        ) as looking:
            table = entries.toArrow()
            newest = {row["file"]: row["sequence"] for row in looking.result().to_pylist()}
    else:
        table = entries.toArrow()
    checksums = table["file"].to_numpy()
    if not set(np.unique(checksums).tolist()) <= files.keys():
        return False
    high, low = halves(table["identity"])
    paths = {number: file.path for number, file in files.items()}
    job.index.add(paths, checksums, table["row"].to_numpy(), high, low, newest, lambda: _active_paths(job))
    return True
