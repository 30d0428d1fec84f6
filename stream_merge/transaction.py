"""Exactly once: whether a batch is in the table already, and what came of a commit that failed."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from stream_merge.bridge.jvm import conflict_name
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.errors import BatchIdRegressionError, CommitStateUnknownError

MAX_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """Under which ids a batch is recorded in the table.

    Attributes:
        app_id: Application id of the SetTransaction.
        batch_id: The micro-batch's number.
        planned_ms: When the query planned the batch, in milliseconds since the epoch; None when that is not known. The
            checkpoint keeps it, so it tells a replay from another batch of the same number: that of a new checkpoint under a
            fixed `app_id`, or of an older copy of the checkpoint.
    """

    app_id: str
    batch_id: int
    planned_ms: int | None = None

    @property
    def _planned_app_id(self) -> str:
        return f"{self.app_id}/planned-ms"

    def set_transactions(self) -> dict[str, int]:
        """Return what the commit records: application id to version."""
        planned = {} if self.planned_ms is None else {self._planned_app_id: self.planned_ms}
        return {self.app_id: self.batch_id} | planned

    def is_applied(self, transaction: Transaction) -> bool:
        """Return whether the table holds this batch.

        Raises:
            BatchIdRegressionError: The table holds a later batch, or another one of this number.
        """
        recorded = transaction.last_batches(list(self.set_transactions()))
        last = recorded.get(self.app_id)
        if last is None or last < self.batch_id:
            return False
        planned = recorded.get(self._planned_app_id)
        is_replay = planned is None or self.planned_ms is None or planned == self.planned_ms
        if last == self.batch_id and is_replay:
            return True
        raise BatchIdRegressionError(self.app_id, self.batch_id, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a commit that raised.

    Attributes:
        version: The version at which it landed, or None.
        is_applied_elsewhere: Whether another process committed the same batch.
        conflict: Delta's name of the conflict, when it was one.
    """

    version: int | None = None
    is_applied_elsewhere: bool = False
    conflict: str | None = None


def settle(table: Table, transaction: Transaction, identity: BatchIdentity | None, error: BaseException) -> Outcome:
    """Find out whether a commit landed that raised an error.

    The exception does not tell: a store may write the commit and lose the answer, and Delta then reports a conflict of the
    commit with itself. What the log holds decides.

    Raises:
        CommitStateUnknownError: The log can't be read.
    """
    try:
        now = table.begin()
        version = transaction.find_own_commit(now.version)
        if version is not None:
            return Outcome(version=version)
        if identity is not None and identity.is_applied(now):
            return Outcome(is_applied_elsewhere=True)
    except (BatchIdRegressionError, CommitStateUnknownError):
        raise
    except Exception as unreadable:  # noqa: BLE001 - whatever hinders the reading, the state is unknown
        raise CommitStateUnknownError(
            f"{table.name}: the commit failed ({error}), and the log can't be read to see whether it landed ({unreadable}). "
            "Nothing was cleaned up. Restart the query: the batch is skipped if it is in the table."
        ) from error
    return Outcome(conflict=conflict_name(error))


def back_off(attempt: int) -> None:
    """Wait before another attempt: twice as long each time, jittered, so that writers do not meet again."""
    time.sleep(min(MAX_BACKOFF_SECONDS, 0.05 * 2**attempt) * random.uniform(0.5, 1.5))
