"""Looks up the batch's keys in the index, and reads only files that the index has not seen.

If the order of changes counts, a target row may be newer than its change. The index has the newest sequence of each
file: matches in files whose newest sequence is not newer than the change are settled; other files with matches are
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.clauses import When
from stream_merge.column_names import ROW, SOURCE_ID
from stream_merge.merge.job import MergeJob, first_applying
from stream_merge.merge.locate.index_sequence import is_comparable, place_of, sequence_of
from stream_merge.merge.locate.key_index import MAX_ROWS
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
from stream_merge.merge.locate.scan import HASHED_TYPES
from stream_merge.merge.source import deletes
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.files import DataFile, physical_name

MIN_CANDIDATE_ROWS = 100_000
"""With fewer rows that can match, reading them is as fast as the two small jobs of the index."""

MIN_ORDERED_CANDIDATE_ROWS = 750_000
"""The same if the order of changes counts, for which the index needs one more job."""

IDENTITY_BYTES = 16

MAX_UNFAMILIAR_ROWS = 100_000
"""If files that the last batch did not look into have more rows than this, they are scanned and not indexed, since the
next batch may look elsewhere."""


def is_indexable(job: MergeJob) -> bool:
    """Whether the index can answer: the merge compares target columns by equality only, and sequences if order counts.

    Equal values of these columns' types are identical.
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
    """Whether the order of changes counts, and the driver can compare the sequences of batch and target."""
    return job.keeps_order and job.source.num_rows <= MAX_SOURCE_ROWS and is_comparable(job)


def is_worthwhile(job: MergeJob) -> bool:
    """Whether file skipping leaves much to read, and mostly files that it left for the last batch too.

    Batches with recent keys ask for the same few files again and again, whatever the size of the table; batches with
    random keys ask for all files.
    """
    _reset(job)
    candidates = {file.path: file for file in job.candidates}
    unfamiliar = job.index.note_asked(candidates.keys())
    return (
        _num_rows(job.candidates) >= (MIN_ORDERED_CANDIDATE_ROWS if job.order_by else MIN_CANDIDATE_ROWS)
        and _num_rows([candidates[path] for path in unfamiliar]) <= MAX_UNFAMILIAR_ROWS
    )


def _num_rows(files: Sequence[DataFile]) -> int:
    # A file without statistics may have too many rows.
    return sum(MAX_ROWS + 1 if file.num_physical_rows is None else file.num_physical_rows for file in files)


def _reset(job: MergeJob) -> None:
    schema = job.transaction.schema
    columns = [*(pair.target for pair in job.resolved.key_pairs), *job.order_by]
    # By physical names: a column may get the name of an earlier one.
    names = tuple(physical_name(schema, column) for column in columns)
    job.index.reset((job.transaction.table_id, job.resolved.key_pairs, job.order_by, names))


def find_matches_by_index(job: MergeJob) -> Located | None:
    """Find the matches by the index, with the same result as `find_pairs`.

    Returns:
        None if a target row matches several times, since only a join can name the keys; if two files share a checksum;
        or if the indexes of other sinks leave no room.
    """
    index = job.index
    _reset(job)
    # The index may know other files: they hold no row that can match, or have left the table.
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
    probes, numbers, rows = index.look_up(*_halves(batch["identity"]))
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


def _identity(frame: DataFrame, names: Sequence[str], type_names: Sequence[str]) -> Column:
    """Return the identity of a key: the number itself for a single numeric key, else 128 bits of a SHA-256.

    Anybody may choose the keys, and collisions of a non-cryptographic hash are easy to find.
    """
    values = [
        _number(frame[quote(name)], type_name) if type_name != "string" else frame[quote(name)]
        for name, type_name in zip(names, type_names, strict=True)
    ]
    if len(values) == 1 and type_names[0] != "string":
        return values[0].alias("identity")
    # Lengths and separators keep the texts of different keys different.
    parts = [
        F.concat(F.length(value).cast("string"), F.lit(":"), value)
        if type_name == "string"
        else F.concat(value.cast("string"), F.lit(";"))
        for value, type_name in zip(values, type_names, strict=True)
    ]
    text = values[0] if len(values) == 1 else F.concat(*parts)
    return F.unhex(F.left(F.sha2(text, 256), F.lit(2 * IDENTITY_BYTES))).alias("identity")


def _number(value: Column, type_name: str) -> Column:
    match type_name:
        case "date":
            return F.unix_date(value).cast("bigint")
        case "timestamp":
            return F.unix_micros(value)
        case _:
            return value.cast("bigint")


def _halves(identities: Any) -> tuple[Any, Any]:
    """Return an Arrow column of identities as two arrays of unsigned numbers."""
    if pa.types.is_int64(identities.type):
        numbers = identities.to_numpy().view(np.uint64)
        return numbers, np.zeros(len(numbers), np.uint64)
    pieces = [_bytes_of(chunk) for chunk in identities.chunks]
    pairs = np.frombuffer(b"".join(pieces), dtype=np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _bytes_of(chunk: Any) -> bytes:
    """Return the concatenated values of an Arrow array of binary values."""
    if not len(chunk):
        return b""
    values = chunk.cast(pa.large_binary())
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    return bytes(memoryview(content)[ends[0] : ends[-1]])


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
    types = [pair.type_name for pair in job.resolved.key_pairs]
    target = job.resolved.target(job.transaction, [file.undeleted for file in unknown], with_rows=True)
    target = target.where(_has_key(target, names))
    entries = target.select(checksum_column(), F.col(ROW).alias("row"), _identity(target, names, types))
    newest: dict[int, Any] = {}
    if job.order_by:
        sequences = target.groupBy(checksum_column()).agg(F.max(sequence_of(job, target)).alias("sequence"))
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
    high, low = _halves(table["identity"])
    paths = {number: file.path for number, file in files.items()}
    job.index.add(paths, checksums, table["row"].to_numpy(), high, low, newest)
    return True


def _hashes_of_batch(job: MergeJob) -> Any:
    names = [pair.source for pair in job.resolved.key_pairs]
    source = job.bound_source
    types = [pair.type_name for pair in job.resolved.key_pairs]
    action = F.coalesce(_action(job), F.lit(-1)).cast("int")
    sequence = [sequence_of(job, source).alias("sequence")] if job.order_by else []
    rows = source.where(_has_key(source, names)).select(
        _identity(source, names, types), F.col(SOURCE_ID).alias("source"), action.alias("action"), *sequence
    )
    return rows.toArrow()


def _action(job: MergeJob) -> Column:
    """Return the number of the clause that applies to a match; with a sequence, if the change is not older."""
    matched = job.clauses(When.MATCHED)
    if not job.order_by:
        return first_applying(matched)
    update = next(number for number, clause in matched if clause.clause.is_update)
    delete = next((number for number, clause in matched if clause.clause.is_delete), None)
    return F.when(deletes(job.resolved), F.lit(delete)).otherwise(F.lit(update))
