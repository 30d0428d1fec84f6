"""Reads the state of a stream from its table: commits, files and remembered deletes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.show.commits import Commit, Window, commits_of, time_of
from stream_merge.errors import StreamMergeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.bridge.table import Table

_COMMIT_FILE = r"^\d{20}\.json$"


class StatusError(PipelineError):
    """There is nothing to report: no such table, not a Delta table, or no commit of stream_merge in its history.

    Attributes:
        in_short: The same in a few words, for a list of tables; None if it takes the sentence.
    """

    def __init__(
        self, message: str, exit_code: ExitCode = ExitCode.CANNOT_START, *, in_short: str | None = None
    ) -> None:
        super().__init__(message, exit_code)
        self.in_short: str | None = in_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The data files of the newest version; sizes in bytes.

    Attributes:
        num_files: Number of files.
        num_bytes: Their total size.
        smallest: Size of the smallest.
        largest: Size of the largest.
        num_rows: Rows that a reader sees; None if the statistics of a file lack the number.
        num_deleted_rows: Rows in the files that are marked as deleted.
    """

    num_files: int
    num_bytes: int
    smallest: int
    largest: int
    num_rows: int | None
    num_deleted_rows: int

    @property
    def average(self) -> float:
        """Average size."""
        return self.num_bytes / self.num_files if self.num_files else 0.0

    @property
    def deleted_share(self) -> float | None:
        """Share of the rows in the files that is marked as deleted, 0 to 1; None if their number is unknown."""
        if self.num_rows is None:
            return None
        physical = self.num_rows + self.num_deleted_rows
        return self.num_deleted_rows / physical if physical else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedDeletes:
    """The tombstones of the newest version.

    Attributes:
        num_rows: Number of tombstones.
        oldest: When the oldest was written; None if there are none.
    """

    num_rows: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a table.

    Attributes:
        table: The table as the user named it.
        version: The newest version.
        now: When it was read.
        commits: The commits that were read, of all writers, the oldest first.
        is_complete: Whether these are the whole history.
        files: The data files of the newest version.
        tombstones: The remembered deletes; None if the table remembers none.
    """

    table: str
    version: int
    now: datetime
    commits: tuple[Commit, ...]
    is_complete: bool
    files: Files
    tombstones: RememberedDeletes | None

    @property
    def merges(self) -> tuple[Commit, ...]:
        """The commits of stream_merge, the oldest first."""
        return tuple(commit for commit in self.commits if commit.is_merge)

    @property
    def compactions(self) -> tuple[Commit, ...]:
        """The compactions of stream_merge, the oldest first."""
        return tuple(commit for commit in self.commits if commit.is_maintenance)

    @property
    def last(self) -> Commit:
        """The last commit of stream_merge."""
        return self.merges[-1]

    @property
    def others(self) -> list[tuple[str, int, datetime]]:
        """The commits of others: operation, number and time of the last, the most frequent operation first."""
        others = [commit for commit in self.commits if not commit.is_merge and not commit.is_maintenance]
        last = {commit.operation: commit.time for commit in others}
        return [(name, count, last[name]) for name, count in Counter(c.operation for c in others).most_common()]

    def window(self, size: int | None = None) -> Window:
        """Return the last `size` merges, or all."""
        merges = self.merges
        first = 0 if size is None else max(0, len(merges) - size)
        return Window(merges=merges[first:], since=merges[first - 1] if first else None)


def read_status(spark: SparkSession, table: str, limit: int = 1000) -> Status:
    """Read the state of a table from its commits; writes nothing.

    Args:
        spark: A classic session with Delta's extension.
        table: Path (anything with a `/`) or catalog name of a Delta table that stream_merge writes to.
        limit: How many of the newest commits to read.

    Raises:
        StatusError: There is no such table, it is not a Delta table, it cannot be read, or stream_merge made none of
            the commits.
    """
    from stream_merge.bridge.jvm import JVM_ERRORS, translate

    try:
        opened = _open(spark, table)
        transaction = opened.begin()
        rows = _history_rows(spark, table, limit)
        commits = commits_of(rows, _recorded_batches(opened, [int(row["version"]) for row in rows]))
        state = transaction.domain_metadata("stream_merge")
        tombstones = None if state is None else remembered_deletes(state)
        files = measure_files(transaction.all_files())
    except JVM_ERRORS as error:
        raise StatusError(f"{table} can't be read: {translate(error)}") from error
    except StreamMergeError as error:
        raise StatusError(f"{table} can't be read: {error}.") from error
    if not any(commit.is_merge for commit in commits):
        read = f"{len(commits):,} commit(s) read"
        raise StatusError(
            f"{table} was never written by stream_merge: its history has no merge ({read}). Name a table of a sink.",
            in_short="no merge in its history",
        )
    return Status(
        table=table,
        version=transaction.version,
        now=datetime.now(timezone.utc),
        commits=commits,
        is_complete=len(rows) < limit,
        files=files,
        tombstones=tombstones,
    )


def _open(spark: SparkSession, table: str) -> Table:
    from stream_merge.bridge.table import location, open_table
    from stream_merge.errors import TargetNotFoundError, UnsupportedTableError

    path = location(spark, table)
    try:
        opened = open_table(spark, table)
        opened.begin()
    except UnsupportedTableError as error:
        raise StatusError(str(error), in_short="not a Delta table") from error
    except TargetNotFoundError as error:
        if path is not None and opened.exists("."):
            raise StatusError(
                f"{table} is not a Delta table: the folder has no _delta_log.", in_short="not a Delta table"
            ) from error
        hint = "Check the path." if path is not None else "Check the name; a path needs a slash, as in ./customers."
        raise StatusError(f"There is no table {table}. {hint}", in_short="not there yet") from error
    return opened


def _history_rows(spark: SparkSession, table: str, limit: int) -> list[dict[str, Any]]:
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F

    from stream_merge.bridge.table import location

    path = location(spark, table)
    delta_table = DeltaTable.forName(spark, table) if path is None else DeltaTable.forPath(spark, path)
    history = delta_table.history(limit).select(
        "version", F.unix_millis("timestamp").alias("ms"), "operation", "operationMetrics", "userMetadata"
    )
    return [row.asDict() for row in history.collect()]


def _recorded_batches(table: Table, versions: Sequence[int]) -> list[tuple[int, str, int]]:
    """Return version, application id and number of each SetTransaction in these versions, in one Spark job.

    DESCRIBE HISTORY does not show them. Commits without a file in the log's folder are missing.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    reader = table.spark.read.schema("txn STRUCT<appId: STRING, version: BIGINT>").option("pathGlobFilter", "*.json")
    name = F.col("_metadata.file_name")
    is_wanted = name.rlike(_COMMIT_FILE) & name.between(f"{min(versions):020d}.json", f"{max(versions):020d}.json")
    try:
        recorded = reader.json(table.path("_delta_log")).where(is_wanted).where("txn IS NOT NULL")
        rows = recorded.select(name.substr(1, 20).cast("bigint"), "txn.appId", "txn.version").collect()
    except AnalysisException:  # a folder that Spark takes for a pattern
        return []
    return [(int(version), str(app_id), int(number)) for version, app_id, number in rows]


def measure_files(adds: Iterable[Mapping[str, Any]]) -> Files:
    """Return the sizes and numbers of rows of AddFiles as in the log."""
    sizes = []
    num_physical: int | None = 0
    num_deleted = 0
    for add in adds:
        sizes.append(int(add["size"]))
        num_deleted += int((add.get("deletionVector") or {}).get("cardinality", 0))
        in_file = json.loads(add.get("stats") or "{}").get("numRecords")
        num_physical = None if num_physical is None or in_file is None else num_physical + int(in_file)
    return Files(
        num_files=len(sizes),
        num_bytes=sum(sizes),
        smallest=min(sizes, default=0),
        largest=max(sizes, default=0),
        num_rows=None if num_physical is None else num_physical - num_deleted,
        num_deleted_rows=num_deleted,
    )


def remembered_deletes(state: str) -> RememberedDeletes:
    """Return the tombstones in the configuration of the metadata domain `stream_merge`.

    Raises:
        ConfigurationChangedError: A newer version of this library wrote it.
    """
    from stream_merge.tombstones.manifest import TombstoneManifest

    tombstones = TombstoneManifest.from_json(state)
    oldest = min((file.oldest_ms for file in tombstones.files), default=None)
    return RememberedDeletes(num_rows=tombstones.num_rows, oldest=None if oldest is None else time_of(oldest))
