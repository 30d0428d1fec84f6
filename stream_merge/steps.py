"""Names the points of a micro-batch at which tests stop or kill the process.

Delta has its `TransactionExecutionObserver` for the same purpose. Nothing happens unless `observer` is set.
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
"""In order. `locating` and `writing` are announced just before the Spark job of that name starts."""

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
"""In order; each occurs in some batches only.

`created` to `feature_added` follow the commits that create a target and give it what ordering needs, the last two the
same commit if a table lacks both. `quarantining` and `quarantined` surround the commit to the quarantine table.
`truncating` precedes the merge of a TRUNCATE. `handing_on` and `handed_on` surround the writing of values that move to
another key; all these come before `after_persist`.
`remembering` and `remembered` surround the writing of tombstones, beside `locating` and `writing`; `forgetting` and
`forgotten` surround their expiry and the merging of their files."""

ALTERING_STEPS = ("altered",)
"""Before `after_persist`, of a batch whose columns have changed: after each commit that alters the table before it."""

MAINTENANCE_STEPS = ("compacting", "compacted", "compaction_committed", "vacuuming")
"""After `after_commit`, of some batches: `compacting` and `compacted` surround the rewriting of files, and
`compaction_committed` follows its commit."""

PARKING_STEPS = ("parking", "parked", "unparking", "unparked")
"""Of a router, for a table that is at rest: `parking` and `parked` surround the commit of its records to the parking
table, `unparking` and `unparked` their deletion once they are merged."""

observer: Callable[[str], None] | None = None


def reached(step: str) -> None:
    """Announce that the current micro-batch is at `step`."""
    if observer is not None:
        observer(step)
