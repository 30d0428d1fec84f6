"""Named points of a micro-batch at which tests stop or kill the process.

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

OPTIONAL_STEPS = (
    "created",
    "columns_added",
    "feature_added",
    "quarantining",
    "quarantined",
    "truncating",
    "handing_on",
    "handed_on",
    "remembering",
    "remembered",
    "forgetting",
    "forgotten",
)
"""In order, each in some batches only. Up to `after_persist`: after the commits that make a target and give it what order needs,
around the commit to the quarantine table, before a TRUNCATE is merged, and around the writing of values that follow a row to
another key. Then around the writing of tombstones, beside `locating` and `writing`, and around their expiry and the merging of
their files."""

observer: Callable[[str], None] | None = None


def reached(step: str) -> None:
    """Announce that the current micro-batch is at `step`."""
    if observer is not None:
        observer(step)
