"""A micro-batch as it arrives: the sink, the rows, and the ids under which it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from stream_merge.batch.caches import SinkCaches
from stream_merge.bridge.sessions import RunningQuery
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import SinkConfig
from stream_merge.metrics import PhaseTimer
from stream_merge.table.exactly_once import BatchIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch as it arrives. No step changes it.

    Attributes:
        config: The sink as the user configured it.
        caches: The sink's caches.
        frame: The rows, as a frame of the session that executes the merge.
        query: The running query, or None.
        identity: The ids under which the batch is recorded; None outside a stream.
        is_complete: Whether the rows are the query's whole result (output mode Complete).
        timer: Takes the times of the phases.
    """

    config: SinkConfig
    caches: SinkCaches
    frame: DataFrame
    query: RunningQuery | None
    identity: BatchIdentity | None
    is_complete: bool
    timer: PhaseTimer = field(default_factory=PhaseTimer)

    @property
    def spark(self) -> SparkSession:
        """The session that executes the merge."""
        return self.frame.sparkSession

    @property
    def name(self) -> str:
        """The name of the batch in messages."""
        return self.config.target if self.identity is None else f"{self.config.target}: batch {self.identity.batch_id}"

    def is_applied(self, transaction: Transaction) -> bool:
        """Return whether a version of the table holds the batch.

        From then on the transaction conflicts with any commit that records the batch.
        """
        return self.identity is not None and self.identity.is_applied(transaction)
