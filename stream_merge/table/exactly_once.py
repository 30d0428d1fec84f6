"""Decides whether a batch is in the table, also after a failed commit, so that it is merged exactly once."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stream_merge.bridge.jvm import JVM_ERRORS, conflict_name, translate
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.errors import (
    BatchIdRegressionError,
    CommitConflictError,
    CommitLostError,
    CommitStateUnknownError,
    ParkingError,
    UnsupportedTableError,
)
from stream_merge.metrics import PhaseTimer

A = TypeVar("A")

logger: logging.Logger = logging.getLogger("stream_merge")

MAX_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """The ids under which the table records a batch.

    Attributes:
        app_id: Application id of the SetTransaction.
        batch_id: The micro-batch's number.
        planned_ms: When the query planned the batch, in milliseconds since the epoch; None if unknown. The checkpoint
            keeps it, so it tells a replay from another batch with the same number, which comes from a new checkpoint
            under a fixed `app_id` or from an older copy of the checkpoint.
        is_parked: Whether the batch was parked when it arrived, and is merged later than that. The commit then says so:
            a number beyond that of the batch would not prove that the table has it, since the query may have gone on
            without its parked batches.
        holder: What the table is, in messages.
    """

    app_id: str
    batch_id: int
    planned_ms: int | None = None
    is_parked: bool = False
    holder: str = "the target"

    @property
    def _planned_app_id(self) -> str:
        return f"{self.app_id}/planned-ms"

    def set_transactions(self) -> dict[str, int]:
        """Return the version that the commit records for each application id."""
        planned = {} if self.planned_ms is None else {self._planned_app_id: self.planned_ms}
        parked = {_parked_app_id(self.app_id): self.batch_id} if self.is_parked else {}
        return {self.app_id: self.batch_id} | planned | parked

    def is_applied(self, transaction: Transaction, last_committed: int | None = None) -> bool:
        """Return whether the table holds this batch.

        Args:
            transaction: The version that is read.
            last_committed: The last batch known to be committed to the table under this application id; None if
                unknown.

        Raises:
            BatchIdRegressionError: The table holds a later batch, or another batch with this number.
            CommitLostError: The table does not hold `last_committed`.
            ParkingError: The batch was parked, and the table holds a later one that was not.
        """
        recorded = transaction.last_batches(list(self.set_transactions()))
        last = recorded.get(self.app_id)
        if last_committed is not None and (last is None or last < last_committed):
            raise CommitLostError(
                f"{transaction.table.name}: a commit was overwritten. Batch {last_committed} of application "
                f"{self.app_id!r} was committed, but the table at version {transaction.version} knows of "
                f"{'none' if last is None else f'none after batch {last}'}. Either another writer wrote the same "
                "version, which some LogStores allow (Delta's default on S3), or the table was replaced by an older "
                "copy. Let only one driver write, or set a LogStore for several, then restart from a checkpoint from "
                "before the lost batch. If the table does not need the batch, delete the folder stream_merge in the "
                "checkpoint and restart the query"
            )
        if self.is_parked and recorded.get(_parked_app_id(self.app_id), -1) >= self.batch_id:
            return True
        if last is None:
            self._check_retention(transaction)
        if last is None or last < self.batch_id:
            return False
        planned = recorded.get(self._planned_app_id)
        is_replay = planned is None or self.planned_ms is None or planned == self.planned_ms
        if last == self.batch_id and is_replay:
            return True
        if self.is_parked:
            raise ParkingError(
                f"{transaction.table.name}: batch {self.batch_id} of application {self.app_id!r} is parked and was not "
                f"merged, but the table has batch {last}: the query ran without its parking table meanwhile. What is "
                "parked is older than what the table has. Merge it by hand if a sequence decides the order of changes, "
                "or if their order does not matter, and delete it from the parking table"
            )
        raise BatchIdRegressionError(self.app_id, self.batch_id, last, self.holder)

    def _check_retention(self, transaction: Transaction) -> None:
        """Refuse a batch that was planned longer ago than the table keeps its records.

        Raises:
            UnsupportedTableError: The table cannot tell whether it holds the batch.
        """
        retention_ms = transaction.record_retention_ms
        if retention_ms is None or self.planned_ms is None:
            return
        if time.time_ns() // 1_000_000 - self.planned_ms >= retention_ms:
            raise UnsupportedTableError(
                f"{transaction.table.name}: batch {self.batch_id} of application {self.app_id!r} was planned longer "
                "ago than delta.setTransactionRetentionDuration, after which the table forgets which batches it holds. "
                "Look in DESCRIBE HISTORY whether a MERGE has committed it since. Then unset the property and restart "
                "the query, with a new checkpoint if the batch was committed"
            )


def last_unparked(transaction: Transaction, app_id: str) -> int | None:
    """Return the last parked batch that the table has got by now, under this application id; None if none."""
    parked_app_id = _parked_app_id(app_id)
    return transaction.last_batches([parked_app_id]).get(parked_app_id)


def _parked_app_id(app_id: str) -> str:
    return f"{app_id}/parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a commit that raised an error.

    Attributes:
        version: The version at which it landed; None if it did not, or if that is not known.
        is_landed: Whether the table holds the batch, in a commit of unknown version: this one, or that of another
            process.
        conflict: Delta's name of the conflict; None if it was none.
    """

    version: int | None = None
    is_landed: bool = False
    conflict: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the table holds what was to be committed."""
        return self.version is not None or self.is_landed


def settle(table: Table, transaction: Transaction, identity: BatchIdentity | None, error: BaseException) -> Outcome:
    """Find out whether a commit that raised an error landed.

    The exception does not tell: a store may write the commit and lose the answer, and Delta then reports a conflict of
    the commit with itself. Only the log tells.

    Raises:
        CommitStateUnknownError: The log cannot be read.
    """
    try:
        now = table.begin()
        version = transaction.find_own_commit(now.version)
        if version is not None:
            return Outcome(version=version)
        if identity is not None and identity.is_applied(now):
            return Outcome(is_landed=True)
    except (BatchIdRegressionError, CommitStateUnknownError):
        raise
    except Exception as unreadable:  # noqa: BLE001 - whatever hinders the reading, the state is unknown
        raise CommitStateUnknownError(
            f"{table.name}: the commit failed ({error}), and the log cannot be read to see whether it landed "
            f"({unreadable}). Nothing was cleaned up. Restart the query: it skips the batch if the table has it."
        ) from error
    return Outcome(conflict=conflict_name(error))


@dataclass(slots=True, kw_only=True)
class Retries:
    """Counts the attempts of a commit, and says whether another one may follow.

    Attributes:
        name: The name of what is committed, in messages.
        max_retries: How many attempts may follow the first one.
        is_static: Whether what is committed was computed from the target, so that no attempt may follow a conflict.
        where: The table in messages, if it is not the target.
        num_attempts: How many attempts there were.
        conflicts: Delta's names of the conflicts that they met.
        timer: Takes the time that is waited for, as part of the phase `commit`.
    """

    name: str
    max_retries: int
    is_static: bool = False
    where: str = ""
    num_attempts: int = 0
    conflicts: list[str] = field(default_factory=list)
    timer: PhaseTimer = field(default_factory=PhaseTimer)

    def wait(self, error: BaseException, conflict: str | None) -> None:
        """Wait before the next attempt.

        Args:
            error: What the commit raised.
            conflict: Delta's name of the conflict, if it was one.

        Raises:
            CommitConflictError: There were too many conflicts, or one where no other attempt may follow.
            StreamMergeError: The commit failed for another reason, in the terms of this library.
        """
        if conflict is None:
            raise translate(error) from error
        self.conflicts.append(conflict)
        if self.is_static:
            reason = f"{conflict}; the batch reads its own target"
            raise CommitConflictError(self.name, self.num_attempts, reason) from error
        if self.num_attempts > self.max_retries:
            raise CommitConflictError(self.name, self.num_attempts, conflict + self.where) from error
        logger.info("%s: %s%s, attempt %d", self.name, conflict, self.where, self.num_attempts)
        with self.timer.phase("commit"):
            back_off(self.num_attempts)


def back_off(attempt: int) -> None:
    """Wait before another attempt: twice as long each time, with jitter, so that writers do not collide again."""
    time.sleep(min(MAX_BACKOFF_SECONDS, 0.05 * 2**attempt) * random.uniform(0.5, 1.5))


def until_settled(
    first: A,
    *,
    commit: Callable[[A], int | None],
    settle: Callable[[A, BaseException], Outcome],
    again: Callable[[A], A | None],
    retries: Retries,
) -> tuple[A, int | None]:
    """Commit an attempt, and another one after each conflict, until the table holds what they write.

    Args:
        first: The first attempt.
        commit: Commits an attempt; returns the version where that is known.
        settle: Finds out what became of a commit that raised.
        again: Makes another attempt after a conflict; gives None if another process has committed meanwhile.
        retries: Counts the attempts.

    Returns:
        The last attempt and its version; None where another process has committed what it writes.

    Raises:
        CommitConflictError: Other writers came first too often.
        StreamMergeError: The commit failed.
    """
    attempt: A | None = first
    while attempt is not None:
        last = attempt
        retries.num_attempts += 1
        try:
            return last, commit(last)
        except JVM_ERRORS as error:
            outcome = settle(last, error)
            if outcome.is_settled:
                logger.warning("%s: a commit raised an error but landed%s: %s", retries.name, retries.where, error)
                return last, outcome.version
            retries.wait(error, outcome.conflict)
        attempt = again(last)
    return last, None
