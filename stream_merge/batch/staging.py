"""Stages an attempt: writes its files and its tombstones, which no reader sees before the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.batch.attempt import Attempt
from stream_merge.batch.caches import SinkCaches
from stream_merge.batch.preparation import Preparation
from stream_merge.bridge import sessions
from stream_merge.bridge.self_read import SelfRead
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import SinkConfig
from stream_merge.merge.job import MergeJob, Staged, count_skipping
from stream_merge.merge.source import Source, deletes
from stream_merge.merge.strategies import run_engine
from stream_merge.metrics import PhaseTimer
from stream_merge.table.features import has_change_feed
from stream_merge.table.files import DataFile, TableFiles
from stream_merge.tombstones.manifest import DOMAIN, TombstoneManifest
from stream_merge.tombstones.store import TombstoneStore


@dataclass(slots=True, kw_only=True)
class Staging:
    """Stages the attempts of one micro-batch.

    Attributes:
        config: The sink.
        state: The sink's caches.
        preparation: What became of the batch before it is merged.
        name: How messages name the batch.
        is_recorded: Whether the commit records the batch, so that there is one even when nothing changes.
        timer: Takes the times of the phases.
    """

    config: SinkConfig
    state: SinkCaches
    preparation: Preparation
    name: str
    is_recorded: bool
    timer: PhaseTimer

    def stage(self, attempt: Attempt, self_read: SelfRead, written: Any) -> tuple[Staged, TombstoneManifest | None]:
        """Write the files of an attempt, which no reader sees, and its tombstones beside them.

        Returns:
            What the commit will hold, and what the table will remember after it, if the sink keeps tombstones.
        """
        resolved, transaction, source = attempt.resolved, attempt.transaction, attempt.source
        with self.timer.phase("open"):
            files = self.active_files(transaction)
            resolved.evolve_schema(transaction)
            needs_all = any(c.clause.when.value == "not_matched_by_source" for c in resolved.clauses)
            candidates = files.all() if needs_all else self._candidates(resolved, transaction, source)
            if self_read.is_read:
                transaction.read_whole_table()
            limits = {} if needs_all else source.partition_values(transaction.partition_columns)
            transaction.track_read([file.add for file in candidates], limits)
        with self._remembering(attempt):
            if source.num_rows == 0 and not needs_all:
                staged = Staged()
            else:
                staged = run_engine(
                    attempt.plan.strategy,
                    MergeJob(
                        resolved=resolved,
                        transaction=transaction,
                        source=source,
                        files=files,
                        candidates=candidates,
                        vectors=self.state.vectors,
                        index=self.state.index,
                        locator=self.config.locator,
                        check_cardinality=self.config.check_cardinality,
                        skip_unchanged=self.config.skip_unchanged,
                        order_by=self.preparation.ordered.sequence_columns if self.config.keeps_order else (),
                        expects_newer_rows=self.state.had_newer_rows,
                        has_change_feed=has_change_feed(transaction.properties),
                        batch=self.name,
                        timer=self.timer,
                        written=written,
                    ),
                )
        staged.counts |= count_skipping(files.all(), candidates)
        staged.counts |= source.counts
        self.state.had_newer_rows = bool(staged.counts.get("num_stale_rows"))
        if attempt.store is None:
            return staged, None
        return staged, self._remember(attempt.store, staged, attempt)

    @contextmanager
    def _remembering(self, attempt: Attempt) -> Iterator[None]:
        """Write the batch's tombstones, if it has any, beside what the block does."""
        resolved, source = attempt.resolved, attempt.source
        with ExitStack() as stack:
            if attempt.store is not None:

                def deleted() -> DataFrame:
                    return resolved.source(source.rows).where(deletes(resolved, source.rows.columns))

                stack.enter_context(
                    attempt.store.remembering(deleted, source.num_deletes, source.highest_delete, self.name)
                )
            yield
            with self.timer.phase("stage"):
                stack.close()

    def _remember(self, store: TombstoneStore, staged: Staged, attempt: Attempt) -> TombstoneManifest:
        """Stage what the table remembers. A merge outside a stream that changes nothing commits nothing."""
        with (
            self.timer.phase("stage"),
            sessions.job_description(attempt.rows.sparkSession, f"{self.name}: remember deletes"),
        ):
            remembered, counts = store.next_state(
                attempt.source.num_deletes, attempt.transaction.version, partial=self.preparation.partial
            )
        staged.counts |= counts
        changes = staged.changes
        has_files = bool(staged.counts.get("num_target_files_added") or changes.removes)
        is_new = store.is_truncated or remembered.files != store.state.files
        if self.is_recorded or has_files or is_new:
            changes.domain_metadata[DOMAIN] = remembered.to_json()
        return remembered

    def active_files(self, transaction: Transaction) -> TableFiles:
        """Return the active files of the version that is read, kept up to date from commit to commit."""
        self.state.files.advance(
            str(transaction.metadata["id"]),
            transaction.version,
            read_commit=transaction.table.read_commit,
            load=transaction.all_files,
        )
        return self.state.files

    def _candidates(self, resolved: ResolvedMerge, transaction: Transaction, source: Source) -> list[DataFile]:
        if source.num_rows == 0:
            return []
        predicates = resolved.target_predicates
        paths = transaction.skip_files(predicates) if predicates is not None else None
        return self.state.files.may_match(source.key_ranges(transaction.schema), paths)
