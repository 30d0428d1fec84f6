"""Named points that a micro-batch passes, for tests that stop or kill the process there.

Delta has its `TransactionExecutionObserver` for the same purpose. Nothing is observed unless `observer` is set.
"""

from __future__ import annotations

from collections.abc import Callable

STEPS = (
    "before_open",
    "after_open",
    "after_persist",
    "locating",
    "writing",
    "before_commit",
    "after_commit",
)
"""In order; `locating` and `writing` are announced just before the Spark job of that name starts."""

OPTIONAL_STEPS = ("quarantining", "quarantined", "remembering", "remembered")
"""Around the commit to the quarantine table, which only a batch with rejected rows does, between `after_open` and `after_persist`;
around the writing of tombstones, which only a batch with deletes does, beside `locating` and `writing`."""

observer: Callable[[str], None] | None = None


def reached(step: str) -> None:
    """Announce that the current micro-batch is at `step`."""
    if observer is not None:
        observer(step)
