"""Knows which tables of a query are at rest, what is parked for them, and when each is tried again."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from threading import RLock
from typing import Any

from stream_merge.errors import BatchIdRegressionError, StreamMergeError
from stream_merge.metrics import ParkedTable
from stream_merge.routing.parking_table import Owner, Parked, ParkedBatch, ParkingTable
from stream_merge.sink import MergeSink
from stream_merge.target_names import table_key

logger: logging.Logger = logging.getLogger("stream_merge")

FIRST_DELAY = 60.0
"""Seconds until a table at rest is tried again; doubled after each further failure."""
LONGEST_DELAY = 1800.0
SECONDS_BETWEEN_WARNINGS = 60.0
CATCHING_UP = "it can be merged again, and is catching up with what is parked"


@dataclass(slots=True, kw_only=True)
class TableAtRest:
    """A table at rest, in one run of its query. Only the thread that merges the table changes it.

    Attributes:
        owner: The table.
        since: When its first record was parked.
        error: What it failed with.
        batches: What is parked for it, by micro-batch, the oldest first.
        delay: How long to wait after the next failure, in seconds.
        due: When it is tried again, on the monotonic clock; at the start of a run at once.
        is_catching_up: Whether it could be merged when it was last tried.
    """

    owner: Owner
    since: datetime
    error: str
    batches: dict[int, ParkedBatch] = field(default_factory=dict)
    delay: float = FIRST_DELAY
    due: float = 0.0
    is_catching_up: bool = False

    @property
    def is_due(self) -> bool:
        """Whether it is to be tried again."""
        return time.monotonic() >= self.due

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the parked records."""
        return tuple(sorted({source for batch in list(self.batches.values()) for source in batch.sources}))

    def failed(self, error: Exception) -> float:
        """Take note of a failure; return in how many seconds the table is tried again."""
        self.error, self.is_catching_up = describe(error), False
        self.due, waits = time.monotonic() + self.delay, self.delay
        self.delay = min(LONGEST_DELAY, 2 * self.delay)
        return waits

    def check_replay(self, batch_id: int, planned_ms: int | None) -> None:
        """Refuse a micro-batch that has the number of a parked one, and is another one.

        Args:
            batch_id: Its number.
            planned_ms: When the query planned it, in milliseconds since the epoch; None if unknown.

        Raises:
            BatchIdRegressionError: It would be taken for a replay, and its records would be lost.
        """
        parked = self.batches.get(batch_id)
        times = () if parked is None else (planned_ms, parked.planned_ms)
        if None not in times and len(set(times)) > 1:
            holder = f"what is parked for {self.owner.target}"
            raise BatchIdRegressionError(self.owner.app_id, batch_id, batch_id, holder)

    def recovered(self) -> None:
        """Take note that the table can be merged again, though something may still be parked for it.

        The parking table keeps the error: nobody would correct it there if the table failed once more.
        """
        self.is_catching_up, self.delay = True, FIRST_DELAY

    def shown(self) -> ParkedTable:
        """Return a copy for users."""
        batches = list(self.batches.values())
        left = self.due - time.monotonic()
        return ParkedTable(
            target=self.owner.target,
            sources=self.sources,
            since=self.since,
            num_batches=len(batches),
            num_rows=sum(batch.num_rows for batch in batches),
            error=CATCHING_UP if self.is_catching_up else self.error,
            next_attempt=datetime.now(timezone.utc) + timedelta(seconds=left) if left > 0 else None,
        )

    def __str__(self) -> str:
        shown = self.shown()
        since = shown.since.strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{shown.target}: {shown.num_rows} record(s) of {shown.num_batches} micro-batch(es) since {since}"


class TablesAtRest:
    """The tables at rest of one run of a query, read from the parking table once and kept in memory since.

    Args:
        table: The parking table.
        run_id: The run of the query.
        parked: What the parking table holds, for whatever application.

    Attributes:
        app_ids: The application ids under which the sinks of the query record their batches, as far as they are known.
            What is parked under others belongs to other queries.
    """

    def __init__(self, table: ParkingTable, run_id: str, parked: Sequence[Parked]) -> None:
        self.table = table
        self.run_id = run_id
        self.app_ids: set[str] = set()
        self._tables = {each.owner: at_rest(each) for each in parked}
        self._told: set[Owner] = set()
        self._warned_at = -SECONDS_BETWEEN_WARNINGS
        self._lock = RLock()

    def get(self, owner: Owner) -> TableAtRest | None:
        """Return a table if it is at rest."""
        return self._tables.get(owner)

    def owner_of(self, app_id: str, target: str) -> Owner:
        """Return a table, as it was spelled when it went to rest."""
        key = table_key(target)
        same = (each for each in list(self._tables) if each.app_id == app_id and table_key(each.target) == key)
        return next(same, Owner(app_id, target))

    @property
    def sources(self) -> set[str]:
        """The sources of all that is parked, by this query and by others."""
        return {source for table in list(self._tables.values()) for source in table.sources}

    @property
    def own(self) -> list[TableAtRest]:
        """The tables at rest of this query."""
        return [table for owner, table in list(self._tables.items()) if owner.app_id in self.app_ids]

    def park(self, owner: Owner, batch: ParkedBatch, rows: Any, sink: MergeSink, error: Exception | None) -> None:
        """Append the records of a micro-batch to the parking table, and keep them in mind.

        Args:
            owner: Their table.
            batch: The micro-batch.
            rows: The records.
            sink: The sink of the table.
            error: What it failed with; None if it was at rest already and was not tried.

        Raises:
            StreamMergeError: They could not be appended.
        """
        table = self._tables.get(owner)
        if table is not None and batch.batch_id in table.batches:
            return  # The micro-batch is a replay, and was parked the first time.
        if table is None:
            table = TableAtRest(owner=owner, since=datetime.now(timezone.utc), error="")
        if error is not None:
            waits = table.failed(error)
            logger.error(
                "%s failed and goes to rest: its records are parked in %s from batch %d on; next attempt in %.0f s",
                owner.target,
                self.table.name,
                batch.batch_id,
                waits,
                exc_info=error,
            )
        self.table.append(owner, batch, rows, table.error, sink.config)
        table.batches[batch.batch_id] = batch
        self._tables[owner] = table

    def merged(self, table: TableAtRest, batch_ids: Sequence[int]) -> None:
        """Forget micro-batches that a table at rest has got by now, and delete their records."""
        if not batch_ids:
            return
        for batch_id in batch_ids:
            table.batches.pop(batch_id, None)
        if not table.batches:
            self._tables.pop(table.owner, None)
            logger.warning("%s has caught up and is merged again", table.owner.target)
        try:
            self.table.remove(table.owner, max(batch_ids))
        except StreamMergeError:
            # The table's own record says that it has them, so nothing depends on their deletion.
            logger.warning(
                "%s: merged records are still in the parking table %s; the next attempt, or the next run, deletes them",
                table.owner.target,
                self.table.name,
                exc_info=True,
            )

    def warn(self, name: str, sinks: Mapping[str, MergeSink | None]) -> None:
        """Warn of the tables at rest, once a minute, and once of those that no sink has any more.

        Args:
            name: The name of the micro-batch in messages.
            sinks: The sinks of the sources of what is parked.
        """
        with self._lock:
            own = self.own
            for table in own:
                if sink_of(table, sinks) is None and table.owner not in self._told:
                    self._told.add(table.owner)
                    logger.warning(
                        "%s: no sink merges %s into %s any more, so what is parked stays in %s (%s)",
                        name,
                        ", ".join(table.sources),
                        table.owner.target,
                        self.table.name,
                        table,
                    )
            if own and time.monotonic() - self._warned_at >= SECONDS_BETWEEN_WARNINGS:
                self._warned_at = time.monotonic()
                logger.warning("%s: %d table(s) at rest: %s", name, len(own), "; ".join(map(str, own)))


def sink_of(table: TableAtRest, sinks: Mapping[str, MergeSink | None]) -> MergeSink | None:
    """Return the sink of a table at rest, found by the sources of what is parked; None if none has it as its target."""
    key = table_key(table.owner.target)
    found = [sinks.get(source) for source in table.sources]
    return next((sink for sink in found if sink is not None and table_key(sink.config.target) == key), None)


def describe(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def at_rest(parked: Parked) -> TableAtRest:
    """Return the table at rest for which something is parked."""
    return TableAtRest(
        owner=parked.owner,
        since=parked.since,
        error=parked.error,
        batches={batch.batch_id: batch for batch in parked.batches},
    )
