"""Adds files to the key index: those of other writers are read, those that the merge has written are known.

A written file has the batch's rows in their order, unless something between the merge and the file changes it. So the
first file that a process writes is read like any other, and compared with what it is expected to hold. If it holds
that, the next ones are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.sessions import planned_at_once
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import ROW
from stream_merge.key_index.index import MAX_ROWS_OF_ALL, KeyIndex
from stream_merge.merge.job import MergeJob
from stream_merge.merge.key_and_sequence import sequence_names
from stream_merge.merge.locate.index_sequence import newest_of, sequence_of
from stream_merge.merge.locate.pairs import by_checksum, checksum_column
from stream_merge.merge.locate.probes import ROW_BITS, halves, has_key, identity
from stream_merge.table.files import DataFile, TableFiles, num_rows, physical_name

MAX_ADDED_ROWS = 100_000_000
"""So many rows one batch reads for the index, for a minute or two. It scans the rest of a larger table, which the next
batches read: with less at a time, all of them together would scan more than they read."""

MAX_READ_ROWS = 2_000_000
"""So many rows one job reads for the index: up to 80 MB go through the driver."""

MAX_READ_FILES = 2_000
"""So many files one job reads for the index; of many more, two may well have names with one checksum."""

_SHUFFLING = ("delta.autoOptimize.optimizeWrite", "spark.databricks.delta.optimizeWrite.enabled")
"""With this property or setting Delta shuffles what it writes."""


class IndexedTable(Protocol):
    """What files are added to the index from: a merge, or what is left of one after its commit."""

    @property
    def resolved(self) -> ResolvedMerge:
        """The statement as Delta resolved it."""

    @property
    def transaction(self) -> Transaction:
        """A transaction on a version that has the files."""

    @property
    def files(self) -> TableFiles:
        """The active files of that version."""

    @property
    def index(self) -> KeyIndex:
        """The index."""

    @property
    def order_by(self) -> Sequence[str]:
        """The columns that hold the sequence; empty if order does not count."""

    @property
    def batch(self) -> str:
        """The batch's name in messages."""


def num_indexed_rows(files: Sequence[DataFile]) -> int:
    """Return how many rows the index would have of some files. One without statistics may have too many."""
    return num_rows(files, unknown=MAX_ROWS_OF_ALL + 1)


def add_files(job: IndexedTable, unknown: Sequence[DataFile]) -> bool:
    """Read the keys of files into the index, as many as one batch may wait for; return whether that has worked."""
    num_added = 0
    for part in _parts(unknown):
        if num_added >= MAX_ADDED_ROWS:
            break
        num_added += num_indexed_rows(part)
        if not _add_some(job, part):
            return False
    return True


def _parts(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Return the files in parts that one job reads."""
    part: list[DataFile] = []
    num_rows_of_part = 0
    for file in files:
        rows = num_indexed_rows([file])
        if part and (num_rows_of_part + rows > MAX_READ_ROWS or len(part) == MAX_READ_FILES):
            yield part
            part, num_rows_of_part = [], 0
        part.append(file)
        num_rows_of_part += rows
    if part:
        yield part


def _add_some(job: IndexedTable, unknown: Sequence[DataFile]) -> bool:
    files = by_checksum(job.transaction, unknown)
    if files is None:
        # The same files would come together in the next batch.
        return len(unknown) > 1 and all(_add_some(job, half) for half in (unknown[::2], unknown[1::2]))
    names = [pair.target for pair in job.resolved.key_pairs]
    types = [pair.type_name for pair in job.resolved.key_pairs]
    target = job.resolved.target(job.transaction, [file.undeleted for file in unknown], with_rows=True)
    target = target.where(has_key(target, names))
    entries = target.select(checksum_column(), F.col(ROW).alias("row"), identity(target, names, types))
    newest = _newest_in_statistics(job, files) if job.order_by else {}
    if newest is None:
        sequences = target.groupBy(checksum_column()).agg(
            F.max(sequence_of(job.resolved, job.order_by, target)).alias("sequence")
        )
        with BackgroundTask(
            target.sparkSession, f"{job.batch}: locate", lambda: planned_at_once(sequences).toArrow()
        ) as looking:
            table = entries.toArrow()
            try:
                newest = {row["file"]: row["sequence"] for row in looking.result().to_pylist()}
            except UnicodeDecodeError:
                # A row of another writer has a text as its sequence that Python cannot hold: the files are scanned.
                return False
    else:
        table = entries.toArrow()
    checksums = table["file"].to_numpy()
    if not set(np.unique(checksums).tolist()) <= files.keys():
        return False
    high, low = halves(table["identity"])
    rows = table["row"].to_numpy()
    paths = {number: file.path for number, file in files.items()}
    _compare_expected(job.index, paths, checksums, rows, high, low)
    job.index.add(paths, checksums, rows, high, low, newest, lambda: active_paths(job))
    return True


def _newest_in_statistics(job: IndexedTable, files: Mapping[int, DataFile]) -> dict[int, Any] | None:
    """Return a sequence for each file that none of its rows exceeds; None if the statistics do not have it.

    They have it of whole numbers. Times are rounded there, and strings are cut off.
    """
    types = {field.name.lower(): field.dataType for field in job.resolved.types}
    if not all(isinstance(types[name.lower()], T.IntegralType) for name in job.order_by):
        return None
    names = [physical_name(job.transaction.schema, name) for name in job.order_by]
    newest = {}
    for number, file in files.items():
        highest = [file.highest_number(name) for name in names]
        if None in highest:
            return None
        newest[number] = dict(zip(sequence_names(len(names)), highest, strict=True))
    return newest


def active_paths(job: IndexedTable) -> set[str]:
    """Return the paths of the table's files."""
    return {file.path for file in job.files.all()}


def note_written(job: MergeJob, written: Sequence[DataFile], without: NDArray[np.int64] | None = None) -> None:
    """Add what the merge has written to the index, if its order is known.

    Args:
        job: The merge. Its new rows do not depend on the target.
        written: The new files. It does not matter whether they are ever committed.
        without: Numbers of the source rows that were not written, since they are older than the row that they match.
    """
    index, probes = job.index, job.source.probes
    if probes is None or len(written) != 1 or index.has(written[0].path) or index.writes_in_order is False:
        return
    if job.transaction.partition_columns or not job.resolved.inserts_as_given(job.order_by):
        return
    if job.transaction.is_on(*_SHUFFLING):
        return
    sources = probes["source"].to_numpy()
    # Without keys there is no probe, and Spark may coalesce partitions in any order.
    is_one_partition = len(sources) == job.source.num_rows and not np.any(sources >> ROW_BITS)
    order = np.argsort(sources, kind="stable")
    is_written = np.array(probes["is_written"], dtype=np.bool_)
    if without is not None:
        is_written &= ~np.isin(sources, without)
    kept = order[is_written[order]]
    if not is_one_partition or written[0].num_physical_rows != len(kept):
        return
    high, low = halves(probes["identity"])
    high, low = high[kept], None if low is None else low[kept]
    if index.writes_in_order is None:
        index.expected = {written[0].path: (high, low)}
        return
    newest = {0: newest_of(probes["sequence"].take(pa.array(kept)))} if job.order_by else None
    files, rows = np.zeros(len(kept), dtype=np.int64), np.arange(len(kept))
    # The file is not active before the commit.
    index.add({0: written[0].path}, files, rows, high, low, newest, lambda: active_paths(job) | {written[0].path})


def _compare_expected(index: KeyIndex, paths: Mapping[int, str], files: Any, rows: Any, high: Any, low: Any) -> None:
    """Find out whether written files hold the rows in the order in which they were given."""
    for number, path in paths.items():
        expected = index.expected.pop(path, None)
        if expected is None:
            continue
        places = np.flatnonzero(files == number)
        places = places[np.argsort(rows[places], kind="stable")]
        found = [None if half is None else half[places] for half in (high, low)]
        is_same = np.array_equal(rows[places], np.arange(len(expected[0]))) and all(
            one is other or (one is not None and other is not None and np.array_equal(one, other))
            for one, other in zip(found, expected, strict=True)
        )
        index.writes_in_order = is_same and index.writes_in_order is not False
