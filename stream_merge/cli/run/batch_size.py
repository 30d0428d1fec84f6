"""Finds how many records of Kafka a micro-batch may have.

Each micro-batch has fixed costs, so a backlog is worked off faster in large ones. But nothing of a micro-batch is
visible before it ends, and all of it is done again if the process dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stream_merge.cli.run.offsets import records_behind, records_read

SMALLEST = 50_000
"""Where it starts; a smaller micro-batch would mostly be fixed costs."""
LARGEST = 1_000_000
SHORTEST_TARGET = timedelta(seconds=10)

_STEP = 2
_LONGEST = 3
"""In targets. More than a step, so that a size that has just been left behind is not taken again."""


class BatchSize:
    """The largest number of records in a micro-batch, adapted to how long micro-batches take.

    It doubles after a micro-batch that left records behind and took less than the target, and halves after one that
    took more than three times the target.

    Args:
        trigger: The interval at which micro-batches start. It is the target, or 10 seconds if it is shorter: after a
            micro-batch that takes less, a pipeline that is behind waits for the next one to start.
    """

    def __init__(self, trigger: timedelta) -> None:
        self.num_records: int = SMALLEST
        self._target = max(trigger, SHORTEST_TARGET).total_seconds()

    def adapt(self, progress: Mapping[str, Any]) -> bool:
        """Take the report of a micro-batch into account, and return whether the size has changed.

        Args:
            progress: Spark's `StreamingQueryProgress` in its JSON form.
        """
        milliseconds = (progress.get("durationMs") or {}).get("triggerExecution")
        num_records = records_read(progress)
        # Of larger micro-batches it says nothing if there were no more records.
        if milliseconds is None or not num_records or not any(records_behind(progress).values()):
            return False
        before, seconds = self.num_records, milliseconds / 1000
        # By the records that it had: several reports of the same size change it once.
        if seconds < self._target:
            self.num_records = min(LARGEST, max(before, num_records * _STEP))
        elif seconds > self._target * _LONGEST:
            self.num_records = max(SMALLEST, min(before, num_records // _STEP))
        return self.num_records != before
