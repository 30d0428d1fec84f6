"""Measures the progress of a running pipeline from merge results and the query's own progress.

Needs no Spark. Results arrive in the threads of the tables, so one lock guards every access, and readers get copies.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from stream_merge.cli.query.newest import ALL_ROWS, NEWEST_METRIC, TABLE_PREFIX
from stream_merge.cli.run.offsets import records_behind
from stream_merge.metrics import MergeResult, ParkedTable

RATE_SECONDS = 60
"""A table's rate covers the last minute."""

_MAX_RATE_POINTS = 600


class State(Enum):
    """The state of the pipeline."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class TableProgress:
    """The progress of one table; numbers of rows count from the start of the command.

    Attributes:
        target: Path or name of the table.
        num_batches: Micro-batches that were merged.
        num_skipped: Micro-batches that the table had already.
        num_source_rows: Rows that were merged.
        num_inserted: Inserted rows.
        num_updated: Updated rows.
        num_deleted: Deleted rows.
        num_quarantined: Quarantined rows.
        num_conflicts: Commits that lost against other writers.
        batch_id: The last micro-batch.
        version: The table version that it committed.
        seconds: How long it took.
        committed_at: When it was committed, in seconds since the epoch.
        newest_at: Time of the newest merged change, likewise; None if the source has no times.
        committed_delay: The age of that change at its commit, in seconds.
        rows_per_second: Rows merged per second in the last minute.
        merged: Times and numbers of merged rows; empty in copies.
    """

    target: str
    num_batches: int = 0
    num_skipped: int = 0
    num_source_rows: int = 0
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0
    num_quarantined: int = 0
    num_conflicts: int = 0
    batch_id: int | None = None
    version: int | None = None
    seconds: float | None = None
    committed_at: float | None = None
    newest_at: float | None = None
    committed_delay: float | None = None
    rows_per_second: float = 0.0
    merged: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MAX_RATE_POINTS), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of the progress, for display.

    Attributes:
        name: The pipeline's name.
        state: The pipeline's state.
        seconds: How long it has been running.
        batch_id: The last micro-batch that Spark has finished.
        num_batches: How many it has finished.
        num_failures: How often the query failed.
        input_rows_per_second: Rate at which rows arrived before the last micro-batch.
        processed_rows_per_second: Rate at which they were merged.
        offset_lag: Records behind the newest offset, by topic, as Spark saw them when it planned the last micro-batch.
        tables: The tables by target.
        notice: The last error or retry, or what the pipeline is waiting for.
        retry_at: When the query restarts, in seconds since the epoch.
        now: When the copy was made, likewise.
        parked: The tables at rest.
    """

    name: str
    state: State
    seconds: float
    batch_id: int | None
    num_batches: int
    num_failures: int
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    offset_lag: Mapping[str, int]
    tables: Mapping[str, TableProgress]
    notice: str | None
    retry_at: float | None
    now: float
    parked: tuple[ParkedTable, ...] = ()

    @property
    def total_offset_lag(self) -> int | None:
        """Records behind the newest offset, summed over topics; None if the source has no offsets."""
        return _total(self.offset_lag)

    def sequence_lag(self, table: TableProgress) -> float | None:
        """Return how many seconds a table is behind its source; see `Progress.sequence_lag`."""
        if table.newest_at is None:
            return None
        is_behind = bool(self.total_offset_lag) or self.state is State.RETRYING
        if is_behind or table.committed_delay is None:
            return max(0.0, self.now - table.newest_at)
        return table.committed_delay


class Progress:
    """The progress of a running pipeline.

    Args:
        name: The pipeline's name.
        clock: Returns seconds since the epoch.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.RLock()
        self._started_at = clock()
        self._state = State.STARTING
        self._tables: dict[str, TableProgress] = {}
        self._offset_lag: dict[str, int] = {}
        self._batch_id: int | None = None
        self._num_batches = 0
        self._num_failures = 0
        self._input_rate: float | None = None
        self._processed_rate: float | None = None
        self._notice: str | None = None
        self._retry_at: float | None = None
        self._parked: Callable[[], tuple[ParkedTable, ...]] = tuple

    def watch_parked(self, parked: Callable[[], tuple[ParkedTable, ...]]) -> None:
        """Ask a router for its tables at rest whenever a copy is made."""
        self._parked = parked

    def snapshot(self) -> Snapshot:
        """Return a copy of the progress."""
        parked = self._parked()
        with self._lock:
            now = self._clock()
            return Snapshot(
                name=self._name,
                state=self._state,
                seconds=max(0.0, now - self._started_at),
                batch_id=self._batch_id,
                num_batches=self._num_batches,
                num_failures=self._num_failures,
                input_rows_per_second=self._input_rate,
                processed_rows_per_second=self._processed_rate,
                offset_lag=dict(self._offset_lag),
                tables={name: _copy(table, now, self._started_at) for name, table in sorted(self._tables.items())},
                notice=self._notice,
                retry_at=self._retry_at,
                now=now,
                parked=parked,
            )

    def total_offset_lag(self) -> int | None:
        """Return what a copy has as `total_offset_lag`, without the copy, which grows with the number of tables."""
        with self._lock:
            return _total(self._offset_lag)

    def sequence_lag(self, target: str) -> float | None:
        """Return how many seconds a table is behind its source; None if the source has no times.

        It is the age that the newest merged change had at its commit. While records wait to be read, or the query does
        not run, it is the current age of this change: a pipeline that stands still falls behind.
        """
        snapshot = self.snapshot()
        table = snapshot.tables.get(target)
        return None if table is None else snapshot.sequence_lag(table)

    def set_state(self, state: State, notice: str | None = None, retry_at: float | None = None) -> None:
        """Set the state of the pipeline, with a notice for the user."""
        with self._lock:
            self._state = state
            self._retry_at = retry_at
            if notice is not None:
                self._notice = notice

    def on_failure(self) -> None:
        """Count a failure of the query."""
        with self._lock:
            self._num_failures += 1

    def on_result(self, result: MergeResult) -> None:
        """Record the result of one table and micro-batch."""
        with self._lock:
            now = self._clock()
            table = self._tables.setdefault(result.target, TableProgress(target=result.target))
            table.batch_id = result.batch_id
            table.num_conflicts += len(result.conflicts)
            if result.skipped:
                table.num_skipped += 1
                return
            table.num_batches += 1
            table.num_source_rows += result.num_source_rows
            table.num_inserted += result.num_target_rows_inserted
            table.num_updated += result.num_target_rows_updated
            table.num_deleted += result.num_target_rows_deleted
            table.num_quarantined += result.num_quarantined_rows
            table.version = result.version if result.version is not None else table.version
            table.seconds = result.execution_time_ms / 1000
            table.committed_at = now
            table.merged.append((now, result.num_source_rows))

    def on_query_progress(self, progress: Mapping[str, Any]) -> bool:
        """Record the progress of a micro-batch, in the JSON form of Spark's `StreamingQueryProgress`.

        Returns:
            Whether it reports a micro-batch, rather than that there was nothing to do.
        """
        with self._lock:
            self._take_rates_and_lag(progress)
            if "addBatch" not in (progress.get("durationMs") or {}):
                return False
            self._batch_id = int(progress["batchId"])
            self._num_batches += 1
            self._take_newest(progress, self._batch_id)
            if self._state is State.RUNNING:
                self._notice = None
            return True

    def _take_rates_and_lag(self, progress: Mapping[str, Any]) -> None:
        self._input_rate = _number(progress.get("inputRowsPerSecond"))
        self._processed_rate = _number(progress.get("processedRowsPerSecond"))
        lag = records_behind(progress)
        if lag:
            self._offset_lag = lag

    def _take_newest(self, progress: Mapping[str, Any], batch_id: int) -> None:
        observed = (progress.get("observedMetrics") or {}).get(NEWEST_METRIC) or {}
        for target, table in self._tables.items():
            own = f"{TABLE_PREFIX}{target}"
            newest = observed.get(own) if own in observed else observed.get(ALL_ROWS)
            if newest is None or table.batch_id != batch_id:
                continue
            seconds = float(newest) / 1000
            table.newest_at = seconds if table.newest_at is None else max(table.newest_at, seconds)
            if table.committed_at is not None:
                table.committed_delay = max(0.0, table.committed_at - seconds)


def _copy(table: TableProgress, now: float, started_at: float) -> TableProgress:
    merged = table.merged
    while merged and now - merged[0][0] > RATE_SECONDS:
        merged.popleft()
    seconds = min(RATE_SECONDS, max(1.0, now - started_at))
    return replace(table, rows_per_second=sum(rows for _, rows in merged) / seconds, merged=deque())


def _total(offset_lag: Mapping[str, int]) -> int | None:
    return sum(offset_lag.values()) if offset_lag else None


def _number(value: object) -> float | None:
    # Spark omits a rate that it cannot compute, and writes some as text.
    if not isinstance(value, (int, float, str)):
        return None
    number = float(value)
    return number if abs(number) < float("inf") else None
