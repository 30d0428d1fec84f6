"""Merges the tables of a micro-batch, and parks the records of those that fail until they can be merged again.

A table at rest gets nothing but what was parked for it, in the order in which it came. Its commits say for each parked
micro-batch that it was parked. So whatever process is killed, the table itself tells what it has, and the deletion of
merged records from the parking table may come late, or twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.batch.context import batch_identity
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.bridge.sessions import RunningQuery
from stream_merge.bridge.table import open_table
from stream_merge.errors import (
    BatchIdRegressionError,
    CommitLostError,
    ConnectNotSupportedError,
    MergedTwiceError,
    ParkingError,
    SourceLostError,
    TargetNotFoundError,
)
from stream_merge.metrics import MergeResult
from stream_merge.routing.parking_table import SOURCE_NAME, Owner, ParkedBatch, record_columns
from stream_merge.routing.routes import Route
from stream_merge.routing.tables_at_rest import TableAtRest, TablesAtRest, sink_of
from stream_merge.sink import MergeSink
from stream_merge.table.exactly_once import last_unparked

logger: logging.Logger = logging.getLogger("stream_merge")

CATCH_UP_SECONDS = 10.0
"""How long a table catches up in one micro-batch, for which the other tables of the next one have to wait."""
MIN_BATCHES = 2
"""How many parked micro-batches are merged in one at least: with one, a slow table would never catch up."""

_OF_THE_QUERY = (
    BatchIdRegressionError,
    CommitLostError,
    ConnectNotSupportedError,
    MergedTwiceError,
    SourceLostError,
)
"""Not a fault of one table: the checkpoint, what calls the sinks, or the rows of the micro-batch."""


def may_park(error: Exception, query: RunningQuery | None) -> bool:
    """Return whether an error is a matter of its table alone; not if the query is being stopped, which fails jobs."""
    return not isinstance(error, _OF_THE_QUERY) and (query is None or query.is_active)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """Merges or parks the tables of one micro-batch.

    Attributes:
        name: The micro-batch's name in messages.
        at_rest: The tables at rest.
        sinks: The sinks of the sources, also of those of what is parked.
        rows: The records, with the column `SOURCE_NAME`.
        query: The running query, or None.
        batch_id: The micro-batch's number.
        prepared: Returns the rows to merge of some sources of a sink, of records; None if there are none.
    """

    name: str
    at_rest: TablesAtRest
    sinks: Mapping[str, MergeSink | None]
    rows: DataFrame
    query: RunningQuery | None
    batch_id: int
    prepared: Callable[[MergeSink, Sequence[str], DataFrame], DataFrame | None]

    def due(self, routes: Sequence[Route]) -> list[Route]:
        """Return the tables at rest that are to be tried again, and have no records in the micro-batch."""
        taken = {self._owner(route.sink) for route in routes}
        found = [(table, sink_of(table, self.sinks)) for table in self.at_rest.own if table.owner not in taken]
        return [
            Route(sink=sink, names=table.sources, num_rows=0)
            for table, sink in found
            if sink is not None and table.is_due and self._owner(sink) == table.owner
        ]

    def warn(self) -> None:
        """Warn of the tables at rest."""
        self.at_rest.warn(self.name, self.sinks)

    def merge_or_park(self, route: Route, merge: Callable[[], MergeResult | None]) -> MergeResult | None:
        """Merge a table, or park its records. When this returns, nothing of the micro-batch is left to do for it.

        Args:
            route: The table.
            merge: Merges its records of this micro-batch.

        Returns:
            The result of the merge; None if the records are parked, or if there are none.

        Raises:
            BatchIdRegressionError: The micro-batch is another one than the parked one of its number.
            StreamMergeError: The records are neither merged nor parked.
        """
        owner = self._owner(route.sink)
        at_rest = self.at_rest.get(owner)
        if at_rest is not None:
            at_rest.check_replay(self.batch_id, self._planned_ms)
            merged = self._caught_up(at_rest) if at_rest.is_due else {}
            if self.at_rest.get(owner) is not None:
                self._park(route, owner, None)
                return None
            if self.batch_id in merged:
                # It is a replay: the first time, its records were parked.
                return merged[self.batch_id]
        if not route.num_rows:
            return None
        try:
            return merge()
        except Exception as error:
            if not may_park(error, self.query):
                raise
            self._park(route, owner, error)
            return None

    @property
    def _planned_ms(self) -> int | None:
        return self.query.planned_ms if self.query is not None else None

    def _owner(self, sink: MergeSink) -> Owner:
        identity = batch_identity(sink.config, self.query, self.batch_id)
        return self.at_rest.owner_of(identity.app_id, sink.config.target)

    def _park(self, route: Route, owner: Owner, error: Exception | None) -> None:
        if not route.num_rows:
            return
        batch = ParkedBatch(
            batch_id=self.batch_id,
            planned_ms=self._planned_ms,
            sources=route.names,
            columns=record_columns(self.rows),
            num_rows=route.num_rows,
        )
        self.at_rest.park(owner, batch, self.rows.where(F.col(SOURCE_NAME).isin(*route.names)), route.sink, error)

    def _caught_up(self, at_rest: TableAtRest) -> dict[int, MergeResult | None]:
        """Merge what is parked for a table, the oldest first, as far as there is time; return what the table has now.

        What was merged before a failure stays merged.
        """
        merged: dict[int, MergeResult | None] = {}
        try:
            last = self._last_unparked(at_rest.owner)
            for batch in self._begun(at_rest):
                is_there = batch.batch_id <= last
                merged[batch.batch_id] = None if is_there else self._merge_one(at_rest.owner, batch)
        except Exception as error:
            if not may_park(error, self.query):
                raise
            waits = at_rest.failed(error)
            logger.exception("%s cannot be merged yet; next attempt in %.0f s", at_rest, waits)
        else:
            if merged:
                at_rest.recovered()
        self.at_rest.merged(at_rest, [*merged])
        return merged

    def _begun(self, at_rest: TableAtRest) -> Iterator[ParkedBatch]:
        """Iterate over the parked micro-batches of a table, the oldest first, as long as there is time."""
        begun = time.monotonic()
        for number, batch in enumerate(list(at_rest.batches.values())):
            has_time = number < MIN_BATCHES or time.monotonic() - begun < CATCH_UP_SECONDS
            if not has_time or not (self.query is None or self.query.is_active):
                return
            yield batch

    def _last_unparked(self, owner: Owner) -> int:
        """Return the last parked micro-batch that a table has, merged by whatever process; -1 if it has none."""
        try:
            last = last_unparked(open_table(self.rows.sparkSession, owner.target).begin(), owner.app_id)
        except TargetNotFoundError:
            return -1
        except JVM_ERRORS as error:
            raise translate(error) from error
        return -1 if last is None else last

    def _merge_one(self, owner: Owner, batch: ParkedBatch) -> MergeResult | None:
        """Merge the records of one micro-batch by the sink of their sources, as it would have been merged then."""
        sinks = {source: self.sinks.get(source) for source in batch.sources}
        strange = [source for source, sink in sinks.items() if sink is None or self._owner(sink) != owner]
        if strange:
            raise ParkingError(
                f"{owner.target}: records of {', '.join(strange)} are parked for it, which its sink does not take any "
                "more. Let it take them until they are merged, or delete them from the parking table"
            )
        sink, *others = {id(sink): sink for sink in sinks.values() if sink is not None}.values()
        if others:
            raise ParkingError(
                f"{owner.target}: records of {', '.join(batch.sources)} are parked for it together, which have "
                "different sinks by now. Give sources of one table the same sink object"
            )
        rows = self.prepared(sink, batch.sources, self.at_rest.table.rows(owner, batch))
        if rows is None:
            return None
        return sink.merge_micro_batch(rows, batch.batch_id, self.query, owner.identity(batch))
