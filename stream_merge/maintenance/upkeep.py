"""What a sink knows of the maintenance of its table, and how the account of earlier processes is found in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_merge.maintenance.account import Account
from stream_merge.metrics import MAINTENANCE_TIME
from stream_merge.table.files import DataFile

HISTORY_COMMITS = 30
"""A process that starts looks at so many commits for the time of earlier merges; more than a piece takes to save up."""

WAIT_BATCHES = 4
"""So many batches pass after a look at the table that found nothing to do, or nothing that there was time for."""

VACUUM_LOOKED_MS = 3600 * 1000
"""A process looks once in an hour whether VACUUM is due."""


@dataclass(slots=True)
class Upkeep:
    """What is known of one table from batch to batch.

    Attributes:
        table_id: Delta's id of the table.
        account: The time that merges and maintenance have taken.
        num_waiting: How many batches pass before the next look at the table.
        vacuum_looked_ms: When was looked last whether VACUUM is due, in milliseconds since the epoch.
        num_files: The table's files when maintenance last looked; None before that.
        num_rows: The rows in them, deleted ones included; None if not known.
        num_deleted_rows: Those that are marked as deleted.
    """

    table_id: str = ""
    account: Account = field(default_factory=Account)
    num_waiting: int = 0
    vacuum_looked_ms: int = 0
    num_files: int | None = None
    num_rows: int | None = None
    num_deleted_rows: int | None = None

    def merged(self, seconds: float) -> None:
        """Take in a batch that took so long."""
        self.account.merged(seconds)
        self.num_waiting -= 1

    @property
    def is_due(self) -> bool:
        """Whether to look for something to compact."""
        return self.num_waiting < 0 and self.account.is_due

    def note_files(self, files: Sequence[DataFile]) -> None:
        """Count the files, and the rows in them."""
        rows = [file.num_physical_rows for file in files]
        self.num_files = len(files)
        self.num_rows = None if None in rows else sum(number for number in rows if number is not None)
        self.num_deleted_rows = sum(file.num_deleted_rows for file in files)


def account_from_log(read_commit: Callable[[int], Iterable[Mapping[str, Any]]], version: int) -> Account:
    """Return the account as earlier merges left it, as far as the newest commits tell.

    So a pipeline that is started again and again for a few batches saves up, too.

    Args:
        read_commit: Returns the actions of a version's commit; raises FileNotFoundError if it is gone.
        version: The newest version to look at.
    """
    seconds: list[float] = []
    for number in range(version, max(version - HISTORY_COMMITS, -1), -1):
        try:
            infos = [action["commitInfo"] for action in read_commit(number) if "commitInfo" in action]
        except FileNotFoundError:
            break
        metrics = (infos[0].get("operationMetrics") or {}) if infos else {}
        if MAINTENANCE_TIME in metrics:
            break
        # Only this library's merges have the second one.
        if "executionTimeMs" in metrics and "numSupersededRows" in metrics:
            seconds.append(int(metrics["executionTimeMs"]) / 1000)
    account = Account()
    for one in reversed(seconds):
        account.merged(one)
    return account
