"""Errors that the library raises on purpose.

All derive from `StreamMergeError`. `retriable` tells whether the same micro-batch may succeed when it runs again
unchanged, as it does when the query restarts. Where Delta or Spark has a name for the condition, `condition` holds it,
and the message starts with it in square brackets, so that users can search for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_merge.metrics import MergeResult

__all__ = [
    "AmbiguousMatchError",
    "BatchIdRegressionError",
    "ClauseError",
    "CommitConflictError",
    "CommitLostError",
    "CommitStateUnknownError",
    "ConfigError",
    "ConfigurationChangedError",
    "ConnectNotSupportedError",
    "ConstraintViolationError",
    "MergeExecutionError",
    "MergedTwiceError",
    "NullKeyError",
    "ParkingError",
    "QuarantineLimitError",
    "RouterError",
    "SchemaChangedError",
    "SchemaMismatchError",
    "SchemaRegistryError",
    "SourceLostError",
    "StreamMergeError",
    "TargetNotFoundError",
    "UnknownSourceError",
    "UnresolvedColumnError",
    "UnsupportedTableError",
]


LOSS = "cannot hold without a loss. Widen the column, or cast in the source if the value may be changed."
"""Ends the message about a value that the target could not store exactly."""


class StreamMergeError(Exception):
    """Base of all errors of this library.

    Attributes:
        condition: Delta's or Spark's name of the error condition; None if there is none.
    """

    retriable: bool = False

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        self.condition = condition
        prefix = f"[{condition}] " if condition and not message.startswith("[") else ""
        super().__init__(prefix + message)


class ConfigError(StreamMergeError, ValueError):
    """The options of a sink contradict each other or are out of range.

    Attributes:
        faults: One sentence for each fault; the error lists all of them.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class MergedTwiceError(ConfigError):
    """Two calls in one micro-batch merge into one table under one application id; the second would be skipped."""


class ConfigurationChangedError(StreamMergeError):
    """The table was written with other keys or another sequence, so the sink cannot compare its rows.

    Attributes:
        option: The option of the sink that has changed, "keys" or "sequence_by"; None if it is something else.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class ConnectNotSupportedError(StreamMergeError):
    """The micro-batch belongs to a Spark Connect session, which cannot reach Delta's transaction."""

    def __init__(self) -> None:
        super().__init__(
            "stream_merge works inside Delta's own transaction, which Spark Connect cannot reach. Run the query from "
            "a classic session: SparkSession.builder.master(...) or spark-submit, without .remote(...)."
        )


class TargetNotFoundError(StreamMergeError):
    """The target is not a Delta table, or does not exist."""


class UnsupportedTableError(StreamMergeError):
    """The library does not maintain a feature of the target; nothing was written."""


class ClauseError(StreamMergeError):
    """A clause, or the list of clauses, is not a valid MERGE."""


class UnresolvedColumnError(StreamMergeError):
    """A condition or an assignment names a column that is unknown or ambiguous."""


class SchemaMismatchError(StreamMergeError):
    """A value cannot be stored in its target column: the types do not match, or the value would change."""


class SchemaChangedError(StreamMergeError):
    """The columns of the source have changed, and the sink has `schema_changes="error"`; nothing was written.

    Attributes:
        changes: What has changed, in words.
    """

    def __init__(self, target: str, changes: tuple[str, ...]) -> None:
        super().__init__(
            f"{target}: the columns of the source have changed: {'; '.join(changes)}. Change the table to fit, or set "
            'schema_changes to "evolve", "lenient" or "ignore".'
        )
        self.changes = changes


class ConstraintViolationError(StreamMergeError):
    """A row breaks a constraint of the target: CHECK, NOT NULL, generated column, length, append-only."""


class MergeExecutionError(StreamMergeError):
    """An expression of the merge failed on the data: a cast, an overflow, a division by zero."""


class SourceLostError(StreamMergeError):
    """Rows of the micro-batch were lost with an executor at every attempt; the target has nothing of the batch."""

    retriable = True


class SchemaRegistryError(StreamMergeError):
    """A schema registry does not answer, refuses the login, or is none; nothing of the micro-batch was merged."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        self.retriable = retriable
        super().__init__(message)


class AmbiguousMatchError(StreamMergeError):
    """Several source rows match one target row, so the result would depend on their order.

    Attributes:
        count: How many target rows have more than one match.
        example: The values of one of them in the columns that the merge condition names.
    """

    def __init__(self, batch: str, count: int, example: dict[str, object]) -> None:
        self.count = count
        self.example = example
        row = ", ".join(f"{name}={value!r}" for name, value in example.items())
        super().__init__(
            f"{batch}: {count} target row(s) are matched by more than one source row, for example {row}. "
            "Set sequence_by so that the newest change of each key is taken, or make the merge condition unique.",
            condition="DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",
        )


class NullKeyError(StreamMergeError):
    """Source rows have NULL in a key column. NULL equals nothing, so each merge would insert them again."""

    def __init__(self, batch: str, keys: Sequence[str], count: int) -> None:
        self.count = count
        super().__init__(
            f"{batch}: {count} source row(s) have NULL in a key ({', '.join(keys)}). "
            'Choose null_keys="match" to let NULL equal NULL or null_keys="quarantine" to set such rows aside, '
            "or filter them out."
        )


class QuarantineLimitError(StreamMergeError):
    """More rows of a batch failed the checks than `max_quarantined_share` allows; neither table was written.

    Without a quarantine, one row that `error_column` or `expect` rejects is enough.

    Attributes:
        count: How many rows failed.
        num_rows: How many rows the batch has.
        reasons: Number of rows by kind of reason, the most frequent first; a row can have several.
        example: The reasons of one of the rows.
    """

    def __init__(
        self, batch: str, count: int, num_rows: int, limit: float | None, reasons: Mapping[str, int], example: str
    ) -> None:
        self.count = count
        self.num_rows = num_rows
        self.reasons: dict[str, int] = dict(reasons)
        self.example = example
        shown = ", ".join(f"{reason} {number}" for reason, number in self.reasons.items())
        above = "" if limit is None else f", a share above max_quarantined_share={limit}"
        way_out = "set quarantine to a table that takes such rows" if limit is None else "raise the limit"
        super().__init__(
            f"{batch}: {count} of {num_rows} rows cannot be merged{above}: {shown}; for example: {example}. "
            f"Nothing was written. Correct the source or the sink's expectations, or {way_out}, and restart the query."
        )


class BatchIdRegressionError(StreamMergeError):
    """The batch id went backwards: the checkpoint was lost, reset or restored from an older copy."""

    def __init__(self, app_id: str, batch_id: int, recorded: int, holder: str = "the target") -> None:
        self.app_id = app_id
        self.batch_id = batch_id
        self.recorded = recorded
        super().__init__(
            f"Batch {batch_id} of application {app_id!r} arrived, but {holder} holds "
            f"{'another batch of this number' if recorded == batch_id else f'batch {recorded} of it already'}. "
            "Either another process runs with the same checkpoint, which must be stopped, or the checkpoint was lost, "
            "reset or restored from an older copy. So this batch may hold rows the table has never seen; skipping it "
            "could lose data, merging it could repeat data. "
            "Restore the checkpoint that belongs to the table, or start a new one under a new app_id "
            "(a merge by key can safely take changes again)."
        )


class CommitConflictError(StreamMergeError):
    """Other writers changed the target during every attempt; the table has nothing of this batch."""

    retriable = True

    def __init__(self, batch: str, attempts: int, reason: str) -> None:
        self.attempts = attempts
        super().__init__(
            f"{batch}: the commit conflicted with other writers {attempts} time(s) ({reason}). Nothing was committed. "
            "Raise max_commit_retries, or run OPTIMIZE and other writers at other times."
        )


class CommitStateUnknownError(StreamMergeError):
    """The commit failed, and the table could not be read afterwards, so it is unknown whether the commit landed.

    A restarted query finds out: it skips the batch if the table has it, and merges it otherwise.
    """

    retriable = True


class CommitLostError(StreamMergeError):
    """The table no longer knows a committed micro-batch: another writer overwrote the commit."""


class UnknownSourceError(StreamMergeError):
    """The router has no sink for some sources of the micro-batch; no table was changed.

    Attributes:
        sources: Number of rows by source name; None stands for rows without a source.
    """

    def __init__(self, batch: str, sources: Mapping[str | None, int]) -> None:
        self.sources: dict[str | None, int] = dict(sources)
        super().__init__(
            f"{batch}: no sink for {describe_sources(sources)}. Nothing was merged. "
            'Add a sink, or choose unknown="ignore".'
        )


class ParkingError(StreamMergeError):
    """The parking table cannot take the records of a table that failed, or cannot give them back."""


class RouterError(StreamMergeError):
    """Some tables of a routed micro-batch failed. The others have it, and a replay merges only the rest.

    Attributes:
        failures: The error of each failed source.
        pending: Sources that were not merged yet when the query was stopped.
        results: Results of the sources that were merged, or skipped because their tables had the micro-batch.
    """

    def __init__(
        self,
        batch: str,
        failures: Mapping[str, Exception],
        described: Sequence[str],
        *,
        pending: Sequence[str] = (),
        results: Mapping[str, MergeResult] | None = None,
    ) -> None:
        self.failures: dict[str, Exception] = dict(failures)
        self.pending: tuple[str, ...] = tuple(pending)
        self.results: dict[str, MergeResult] = dict(results or {})
        errors = self.failures.values()
        self.retriable: bool = all(isinstance(error, StreamMergeError) and error.retriable for error in errors)
        num_sources = len(self.failures) + len(self.pending) + len(self.results)
        parts = [f"{len(self.failures)} of {num_sources} source(s) failed", *described]
        if pending:
            parts.append(f"the query was stopped before it merged {', '.join(pending)}")
        if self.results:
            parts.append(f"the tables of {', '.join(self.results)} have the batch; a replay merges only the others")
        super().__init__(f"{batch}: {'; '.join(parts)}")


def is_source_lost(error: StreamMergeError) -> bool:
    """Whether rows of the micro-batch were lost, for a router those of any table, so that the merge can begin again."""
    if isinstance(error, RouterError):
        return any(isinstance(failure, SourceLostError) for failure in error.failures.values())
    return isinstance(error, SourceLostError)


def describe_sources(sources: Mapping[str | None, int]) -> str:
    """Return the first ten sources with their numbers of rows, for a message."""
    shown = [f"{'NULL' if name is None else repr(name)} ({count} row(s))" for name, count in sources.items()]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")
