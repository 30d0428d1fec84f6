"""Chooses what is told of a table's status and in which words, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stream_merge.cli.show.commits import Commit, Window
from stream_merge.cli.show.formats import (
    UNKNOWN,
    count,
    duration,
    in_seconds,
    or_dash,
    percent,
    plural,
    rate,
    size,
    span,
    utc,
)
from stream_merge.cli.show.status import Status
from stream_merge.metrics import MAINTENANCE_TIME

MANY_DELETED = 0.2
"""Share of deleted rows that slows readers noticeably, so that an OPTIMIZE is due."""

NUM_COMMITS = 10

SUMMARY = ("version", "batch", "commit", "delay", "rows/s", "files", "deleted", "aside")
"""The names of what `summary` tells."""

_LEFT_OUT = (
    ("superseded", "numSupersededRows"),
    ("stale", "numStaleRows"),
    ("outdated", "numOutdatedRows"),
    ("unchanged", "numUnchangedRows"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value.

    Attributes:
        name: What it is.
        value: Its value as text, not escaped for any output.
        needs_attention: Whether it is to be shown in yellow.
    """

    name: str
    value: str
    needs_attention: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A number over the last batches.

    Attributes:
        name: What it is; parts of the row above begin with two spaces.
        values: Its values, as many as there are headings.
        needs_attention: Whether it is to be shown in yellow.
    """

    name: str
    values: tuple[str, ...]
    needs_attention: bool = False


def head_line(status: Status) -> str:
    """Return how many commits were read, and whose they are."""
    merges = len(status.merges)
    others = len(status.commits) - merges - len(status.compactions)
    read = f"{plural(merges, 'merge')}, {plural(others, 'commit')} of other writers"
    return read if status.is_complete else f"the newest {read}"


def last_batch(status: Status) -> list[Fact]:
    """Return the facts of the last batch."""
    last = status.last
    phases = ", ".join(f"{name} {in_seconds(ms)}" for name, ms in last.phases_ms.items())
    facts = [
        Fact("Batch", "outside a stream" if last.batch_id is None else f"{last.batch_id}"),
        Fact("Committed", f"{span(status.now - last.time)} ago, {utc(last.time)}"),
        Fact("Version", f"{last.version}, {last.how}"),
        Fact("Seconds", f"{in_seconds(last.duration_ms)}: {phases}"),
        Fact("Rows", f"{last.num_source_rows:,} of the source"),
        Fact("Changes", f"{last.num_inserted:,} inserted, {last.num_updated:,} updated, {last.num_deleted:,} deleted"),
    ]
    if last.app_id is not None:
        facts.insert(1, Fact("Of query", last.app_id))
    if last.num_left_out:
        parts = [f"{last.count(name):,} {word}" for word, name in _LEFT_OUT if last.count(name)]
        facts.append(Fact("Left out", ", ".join(parts)))
    if last.num_quarantined:
        facts.append(Fact("Quarantined", f"{last.num_quarantined:,}", needs_attention=True))
    if last.delay is not None:
        facts.append(Fact("Delay", f"{span(last.delay)} from planning to commit"))
    if last.user_metadata:
        facts.append(Fact("Metadata", last.user_metadata))
    return facts


def table_facts(status: Status) -> list[Fact]:
    """Return the facts of the newest version, of maintenance, and of other writers."""
    files, tombstones = status.files, status.tombstones
    share = files.deleted_share
    dead = f"{files.num_deleted_rows:,} still in the files" + ("" if share is None else f", {share:.1%}")
    facts = [
        Fact("Rows", "not known: files without statistics" if files.num_rows is None else f"{files.num_rows:,}"),
        Fact("Deleted rows", dead, share is not None and share >= MANY_DELETED),
        Fact("Files", f"{files.num_files:,}, {size(files.num_bytes)}"),
    ]
    if files.num_files:
        average, smallest, largest = (size(each) for each in (files.average, files.smallest, files.largest))
        facts.append(Fact("File size", f"{average} on average, {smallest} to {largest}"))
    if tombstones is None or tombstones.oldest is None:
        facts.append(Fact("Tombstones", "none"))
    else:
        age = span(status.now - tombstones.oldest)
        facts.append(Fact("Tombstones", f"{tombstones.num_rows:,}, the oldest of {age} ago"))
    if status.compactions:
        facts.append(Fact("Maintenance", _maintenance(status)))
    others = [f"{name} {count:,} ({span(status.now - last)} ago)" for name, count, last in status.others]
    facts.append(Fact("Other writers", "\n".join(others) or "none"))
    return facts


def _maintenance(status: Status) -> str:
    compactions = status.compactions
    before = sum(commit.count("numRemovedFiles") for commit in compactions)
    after = sum(commit.count("numAddedFiles") for commit in compactions)
    took = in_seconds(sum(commit.count(MAINTENANCE_TIME) for commit in compactions))
    done = f"{plural(len(compactions), 'compaction')} of {before:,} files to {after:,} in {took} s"
    return f"{done}, the last {span(status.now - compactions[-1].time)} ago"


def batch_rows(status: Status) -> tuple[list[str], list[BatchRow]]:
    """Return rows, rates, times and conflicts of the last batch, the last 10, the last 100 and all.

    Returns:
        The headings of the values, and the rows.
    """
    total = len(status.merges)
    sizes = [number for number in (1, 10, 100) if number < total] + [total]
    windows = [status.window(number) for number in sizes]
    headings = [
        "last" if number == 1 and total > 1 else f"all {total:,}" if number == total else f"last {number}"
        for number in sizes
    ]

    def row(name: str, value: Callable[[Window], str], *, needs_attention: bool = False) -> BatchRow:
        return BatchRow(name=name, values=tuple(value(window) for window in windows), needs_attention=needs_attention)

    def counted(name: str, *metrics: str, needs_attention: bool = False) -> BatchRow:
        return row(name, lambda window: f"{window.count(*metrics):,}", needs_attention=needs_attention)

    has_quarantined = windows[-1].count("numQuarantinedRows") > 0
    return headings, [
        counted("Rows of the source", "numSourceRows"),
        counted("  inserted", "numTargetRowsInserted"),
        counted("  updated", "numTargetRowsUpdated"),
        counted("  deleted", "numTargetRowsDeleted"),
        counted("  left out", *(metric for _, metric in _LEFT_OUT)),
        counted("  quarantined", "numQuarantinedRows", needs_attention=has_quarantined),
        row("Rows a second", lambda window: rate(window.rows_per_second)),
        row("Rows a second of merging", lambda window: rate(window.rows_per_busy_second)),
        row("Seconds a batch, median", lambda window: in_seconds(window.median_ms)),
        row("Seconds a batch, longest", lambda window: in_seconds(window.longest_ms)),
        row("Longest time between commits", lambda window: span(max(window.gaps)) if window.gaps else UNKNOWN),
        row("Conflicts with other writers", lambda window: or_dash(window.num_conflicts)),
    ]


def summary(status: Status) -> list[Fact]:
    """Return what a line among other tables tells, with the names of the columns."""
    last, share = status.last, status.files.deleted_share
    quarantined = status.window(100).count("numQuarantinedRows")
    speed = status.window(10).rows_per_second
    return [
        Fact("version", f"{status.version}"),
        Fact("batch", UNKNOWN if last.batch_id is None else f"{last.batch_id}"),
        Fact("commit", duration((status.now - last.time).total_seconds())),
        Fact("delay", UNKNOWN if last.delay is None else duration(last.delay.total_seconds())),
        Fact("rows/s", UNKNOWN if speed is None else count(speed)),
        Fact("files", count(status.files.num_files)),
        Fact("deleted", percent(share), share is not None and share >= MANY_DELETED),
        Fact("aside", count(quarantined), quarantined > 0),
    ]


def commit_name(commit: Commit) -> str:
    """Return what a commit is, in a word or two."""
    if commit.is_merge:
        return "merge" if commit.batch_id is None else f"batch {commit.batch_id}"
    return "compaction" if commit.is_maintenance else commit.operation
