"""Counts the pipeline's metrics for Prometheus, in a registry of its own.

Every metric has the label `pipeline`. Counters count from the start of the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stream_merge.cli.run.progress import Progress, Snapshot, State, TableProgress
from stream_merge.metrics import MAINTENANCE_OUTCOMES, PHASES, MergeResult

PREFIX = "stream_merge"
BATCH_SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300, 600)
"""Bounds of the histogram of batch times."""


class Metrics:
    """The metrics of one pipeline.

    Args:
        progress: The pipeline's progress, from which the gauges are read on request.
        name: The pipeline's name.
        mask: Masks secrets in the names of tables.
    """

    def __init__(self, progress: Progress, name: str, mask: Callable[[str], str] = lambda text: text) -> None:
        # They would add two series for each counter that nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: CollectorRegistry = CollectorRegistry()
        self._name = name
        self._mask = mask
        self._batches = self._counter("batches", "Micro-batches of a table.", "table", "outcome")
        self._failures = self._counter("batch_failures", "Times that the query failed.")
        self._seconds = Histogram(
            f"{PREFIX}_batch_seconds",
            "Time that a micro-batch of a table took.",
            ["pipeline", "table"],
            buckets=BATCH_SECONDS,
            registry=self.registry,
        )
        self._phases = self._counter("phase_seconds", "Time in the phases of merges.", "table", "phase")
        self._source_rows = self._counter("source_rows", "Rows that were merged.", "table")
        self._rows = self._counter("rows", "Rows that merges have changed.", "table", "change")
        self._left_out = self._counter("changes_left_out", "Changes that were not applied.", "table", "reason")
        self._undecidable = self._counter(
            "undecidable_changes", "Changes older than deletes that are forgotten.", "table"
        )
        self._unresolved = self._counter("unresolved_rows", "Rows written without a value that was not sent.", "table")
        self._tied = self._counter("tied_keys", "Keys whose newest changes have one sequence.", "table")
        self._quarantined = self._counter("quarantined_rows", "Rows that were set aside.", "table")
        self._conflicts = self._counter("commit_conflicts", "Commits that lost against other writers.", "table")
        self._files = self._counter("files", "Files that merges have added and removed.", "table", "change")
        self._bytes = self._counter("bytes", "Size of these files.", "table", "change")
        self._tombstones = self._gauge("tombstones", "Deletes that a table remembers.", "table")
        self._oldest_tombstone = self._gauge("oldest_tombstone_seconds", "Age of the oldest of them.", "table")
        self._index_rows = self._gauge("index_rows", "Keys in the key index of a table.", "table")
        self._index_bytes = self._gauge("index_disk_bytes", "Size of its part on the driver's disk.", "table")
        self._maintenance = self._counter("maintenance", "Maintenance of a table.", "table", "outcome")
        self._compacted_files = self._counter("compacted_files", "Files that compactions rewrote.", "table")
        self._compacted_bytes = self._counter("compacted_bytes", "Size of these files.", "table")
        self._purged_rows = self._counter("purged_rows", "Deleted rows that compactions removed.", "table")
        self._table_files = self._gauge("table_files", "Files of a table.", "table")
        self._deleted_share = self._gauge("deleted_rows_share", "Share of deleted rows in these files.", "table")
        self._failures.labels(name)
        self.registry.register(_Standing(progress, name, mask))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, ["pipeline", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, ["pipeline", *labels], registry=self.registry)

    def on_failure(self) -> None:
        """Count a failure of the query."""
        self._failures.labels(self._name).inc()

    def expect(self, targets: Iterable[str]) -> None:
        """Start the counters of tables at 0 before their first micro-batch; `increase` ignores a first value."""
        for target in targets:
            self._conflicts.labels(self._name, self._mask(target))
            for outcome in ("merged", "skipped"):
                self._batches.labels(self._name, self._mask(target), outcome)
            for counter, labels, _ in self._amounts(MergeResult(target=target)):
                counter.labels(self._name, self._mask(target), *labels)

    def on_result(self, result: MergeResult) -> None:
        """Count the result of one table and micro-batch; called in the threads of the tables."""
        table = (self._name, self._mask(result.target))
        self._batches.labels(*table, "skipped" if result.skipped else "merged").inc()
        self._conflicts.labels(*table).inc(len(result.conflicts))
        if result.skipped:
            return
        self._seconds.labels(*table).observe(result.execution_time_ms / 1000)
        for counter, labels, amount in self._amounts(result):
            counter.labels(*table, *labels).inc(amount)
        self._tombstones.labels(*table).set(result.num_tombstones)
        self._oldest_tombstone.labels(*table).set(result.oldest_tombstone_ms / 1000)
        self._index_rows.labels(*table).set(result.index_rows)
        self._index_bytes.labels(*table).set(result.index_disk_bytes)
        if result.table_files is not None:
            self._table_files.labels(*table).set(result.table_files)
        if result.deleted_rows is not None and result.table_rows is not None:
            self._deleted_share.labels(*table).set(result.deleted_rows / max(1, result.table_rows))

    def _amounts(self, result: MergeResult) -> Iterator[tuple[Counter, tuple[str, ...], float]]:
        """Iterate over what a merge adds to the counters of its table, with their further labels."""
        for phase in PHASES:
            yield self._phases, (phase,), result.phase_ms.get(phase, 0) / 1000
        yield self._source_rows, (), result.num_source_rows
        yield self._rows, ("inserted",), result.num_target_rows_inserted
        yield self._rows, ("updated",), result.num_target_rows_updated
        yield self._rows, ("deleted",), result.num_target_rows_deleted
        yield self._left_out, ("superseded",), result.num_superseded_rows
        yield self._left_out, ("stale",), result.num_stale_rows
        yield self._left_out, ("outdated",), result.num_outdated_rows
        yield self._left_out, ("unchanged",), result.num_unchanged_rows
        yield self._undecidable, (), result.num_undecidable_rows
        yield self._unresolved, (), result.num_unresolved_rows
        yield self._tied, (), result.num_tied_keys
        yield self._quarantined, (), result.num_quarantined_rows
        yield self._files, ("added",), result.num_added_files
        yield self._files, ("removed",), result.num_removed_files
        yield self._bytes, ("added",), result.num_target_bytes_added
        yield self._bytes, ("removed",), result.num_target_bytes_removed
        for outcome in MAINTENANCE_OUTCOMES:
            yield self._maintenance, (outcome,), float(result.maintenance == outcome)
        yield self._compacted_files, (), result.compacted_files
        yield self._compacted_bytes, (), result.compacted_bytes
        yield self._purged_rows, (), result.purged_rows


class _Standing(Collector):
    """Computes the gauges on request, since a lag grows while nothing happens."""

    def __init__(self, progress: Progress, name: str, mask: Callable[[str], str]) -> None:
        self._progress = progress
        self._name = name
        self._mask = mask

    def collect(self) -> Iterator[Metric]:
        now = self._progress.snapshot()
        yield self._single(
            "up",
            "Whether the query runs; not while it fails and is started again.",
            float(now.state in (State.RUNNING, State.STOPPING)),
        )
        yield self._single("last_batch_id", "Number of the last micro-batch.", now.batch_id)
        yield self._single("input_rows_per_second", "Rate at which rows arrive.", now.input_rows_per_second)
        yield self._single("processed_rows_per_second", "Rate at which rows are merged.", now.processed_rows_per_second)
        lag = self._family("offset_lag_records", "Records behind the newest offset.", "topic")
        for topic, records in now.offset_lag.items():
            lag.add_metric([self._name, topic], records)
        yield lag
        yield self._per_table(
            now, "sequence_lag_seconds", "Age of the newest change that was merged.", now.sequence_lag
        )
        yield self._per_table(
            now, "last_commit_timestamp_seconds", "Time of a table's last commit.", lambda table: table.committed_at
        )
        yield self._per_table(now, "last_version", "Version of a table after it.", lambda table: table.version)
        yield self._single("parked_tables", "Tables at rest, whose records are parked.", len(now.parked))
        rows = self._family("parked_rows", "Records that are parked for a table.", "table")
        for table in now.parked:
            rows.add_metric([self._name, self._mask(table.target)], table.num_rows)
        yield rows

    def _family(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["pipeline", *labels])

    def _single(self, name: str, text: str, value: float | None) -> GaugeMetricFamily:
        family = self._family(name, text)
        if value is not None:
            family.add_metric([self._name], value)
        return family

    def _per_table(
        self, now: Snapshot, name: str, text: str, value_of: Callable[[TableProgress], float | None]
    ) -> GaugeMetricFamily:
        family = self._family(name, text, "table")
        for table in now.tables.values():
            value = value_of(table)
            if value is not None:
                family.add_metric([self._name, self._mask(table.target)], value)
        return family
