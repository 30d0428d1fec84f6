"""Keeps the account of maintenance: it takes a share of the time that merging takes, and saves up for a large piece.

Needs no Spark and no clock: the caller measures.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

SHARE = 0.1
"""Maintenance takes at most this share of the time of the merges."""

PIECE_BATCHES = 1.7
"""A piece of maintenance should take so many times as long as a usual batch. Less would be spent on its fixed costs,
and more would be a batch that stands out."""

OVERHEAD_BATCHES = 1.0
"""The fixed costs of a compaction are about those of a batch: its jobs are planned, and it has a commit."""

MAX_SAVED_SECONDS = 300.0
"""No more is saved up while there is nothing to do."""

FIRST_BYTES_PER_SECOND = 20e6
"""What a compaction reads and writes in a second, until one was measured."""

LEAST_BYTES_PER_SECOND = 4e6
"""What seems slower has larger fixed costs than was thought. Smaller pieces would consist of them alone."""

_RECENT_BATCHES = 25
_RECENT_PIECES = 5


@dataclass(slots=True)
class Account:
    """The time that merges and maintenance of one table have taken.

    Attributes:
        balance: The seconds that maintenance may take now; negative after a piece that took longer than estimated.
    """

    balance: float = 0.0
    _batches: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_BATCHES))
    _is_warm: bool = False
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_PIECES))

    def merged(self, seconds: float) -> None:
        """Take in a batch that took so long."""
        self._batches.append(seconds)
        self.balance = min(self.balance + SHARE * seconds, max(self.balance, MAX_SAVED_SECONDS))

    def maintained(self, seconds: float, work_bytes: float = 0.0) -> None:
        """Take in maintenance that took so long, and the bytes that it read and wrote."""
        self.balance -= seconds
        if not work_bytes:
            return
        if self._is_warm:
            rate = work_bytes / max(seconds - self._overhead_seconds, seconds / 4, 1e-6)
            self._rates.append(max(rate, LEAST_BYTES_PER_SECOND))
        # The first piece of a process compiles what all others use.
        self._is_warm = True

    @property
    def piece_seconds(self) -> float:
        """How long a piece of maintenance should take."""
        return PIECE_BATCHES * self._batch_seconds

    @property
    def is_due(self) -> bool:
        """Whether there is time for a piece."""
        return bool(self._batches) and self.balance >= self.piece_seconds

    @property
    def _batch_seconds(self) -> float:
        return statistics.median(self._batches) if self._batches else 0.0

    @property
    def _overhead_seconds(self) -> float:
        return OVERHEAD_BATCHES * self._batch_seconds

    @property
    def _bytes_per_second(self) -> float:
        return statistics.median(self._rates) if self._rates else FIRST_BYTES_PER_SECOND

    def cost(self, work_bytes: float) -> float:
        """Return the seconds that a compaction will take which reads and writes so many bytes."""
        return self._overhead_seconds + work_bytes / self._bytes_per_second

    def affordable_bytes(self, seconds: float) -> float:
        """Return the bytes that a compaction of so many seconds reads and writes."""
        return max(0.0, seconds - self._overhead_seconds) * self._bytes_per_second
