"""Stops a pipeline: handles signals, and keeps further micro-batches from starting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from stream_merge.cli.errors import StopNow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handles SIGTERM and SIGINT in the block: records the first, and raises `StopNow` in the main thread on a second.

    Attributes:
        received: The first signal, once it has come.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # In other threads Python cannot handle signals; whoever runs a pipeline there stops it in another way.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Must not take a lock, since the main thread may hold any.
        if self.received is not None:
            raise StopNow(number)
        self.received = number


class StoppedError(Exception):
    """A micro-batch began after the gate was closed; it is not merged, and comes again at the next start."""


class BatchGate:
    """The function that `foreachBatch` calls: merges a micro-batch unless the pipeline is stopping.

    Attributes:
        failure: The error of the last micro-batch, if it failed.
        num_merged: How many micro-batches were merged.
        batch_id: The last micro-batch that began.
    """

    def __init__(self, merge: Callable[[DataFrame, int], None]) -> None:
        self.failure: Exception | None = None
        self.num_merged: int = 0
        self.batch_id: int | None = None
        self._merge = merge
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_merging = False

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch.

        Raises:
            StoppedError: The gate is closed.
        """
        with self._lock:
            if self._is_closed:
                raise StoppedError(f"batch {batch_id} was not started: the pipeline is stopping")
            self._is_merging = True
            self.failure = None
            self.batch_id = batch_id
        try:
            self._merge(batch_df, batch_id)
            self.num_merged += 1
        except Exception as error:
            # PySpark passes on only its text.
            self.failure = error
            raise
        finally:
            self._is_merging = False

    @property
    def is_merging(self) -> bool:
        """Whether a micro-batch is being merged."""
        return self._is_merging

    def close(self) -> None:
        """Let no further micro-batch begin."""
        with self._lock:
            self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether the gate is closed to further micro-batches."""
        return self._is_closed


def end_on_sigterm() -> None:
    """Let SIGTERM raise `StopNow` in the main thread while there is no micro-batch to wait for."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StopNow(number, may_cut_off=False)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
