"""Shows `stream-merge status` on a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from rich import box, filesize
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_merge.cli.show.commits import Window
from stream_merge.cli.show.status import Status
from stream_merge.metrics import MAINTENANCE_TIME

_WIDE = 116
"""From this width on there is room for two panels side by side and for more columns."""

_NUM_COMMITS = 10
_MANY_DELETED = 0.2
"""Share of deleted rows that slows readers noticeably, so that an OPTIMIZE is due."""

_UNKNOWN = "-"
_LEFT_OUT = (
    ("superseded", "numSupersededRows"),
    ("stale", "numStaleRows"),
    ("outdated", "numOutdatedRows"),
    ("unchanged", "numUnchangedRows"),
)


def print_status(console: Console, status: Status) -> None:
    """Print the state of a table.

    Args:
        console: The terminal; its width determines the layout.
        status: What `read_status` returned.
    """
    console.print(_head(status))
    last_batch = _panel("Last batch", _last_batch(status))
    table = _panel("Table", _table(status))
    if console.width >= _WIDE:
        pair = Table.grid(expand=True, padding=(0, 1, 0, 0), pad_edge=False)
        pair.add_column(ratio=1)
        pair.add_column(ratio=1)
        pair.add_row(last_batch, table)
        console.print(pair)
    else:
        console.print(last_batch, table)
    console.print(_batches(status))
    console.print()
    console.print(_commits(status, is_wide=console.width >= _WIDE))


def _head(status: Status) -> Table:
    merges = len(status.merges)
    others = len(status.commits) - merges - len(status.compactions)
    read = f"{_plural(merges, 'merge')}, {_plural(others, 'commit')} of other writers"
    head = Table.grid(expand=True, padding=(0, 2, 0, 0))
    head.add_column(overflow="fold")
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(status.table, style="bold"), Text(f"version {status.version}", style="bold"))
    head.add_row(
        Text(read if status.is_complete else f"the newest {read}", style="dim"), Text(_moment(status.now), style="dim")
    )
    return head


def _panel(title: str, facts: list[tuple[str, Text | str]]) -> Panel:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        # As Text: values from the table are not markup.
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return Panel(grid, title=f"[bold not dim]{title}[/]", title_align="left", border_style="dim", box=box.ROUNDED)


def _last_batch(status: Status) -> list[tuple[str, Text | str]]:
    last = status.last
    phases = ", ".join(f"{name} {_seconds(ms)}" for name, ms in last.phases_ms.items())
    facts: list[tuple[str, Text | str]] = [
        ("Batch", "outside a stream" if last.batch_id is None else f"{last.batch_id}"),
        ("Committed", f"{_span(status.now - last.time)} ago, {_moment(last.time)}"),
        ("Version", f"{last.version}, {last.how}"),
        ("Seconds", f"{_seconds(last.duration_ms)}: {phases}"),
        ("Rows", f"{last.num_source_rows:,} of the source"),
        ("Changes", f"{last.num_inserted:,} inserted, {last.num_updated:,} updated, {last.num_deleted:,} deleted"),
    ]
    if last.app_id is not None:
        facts.insert(1, ("Of query", last.app_id))
    if last.num_left_out:
        parts = [f"{last.count(name):,} {word}" for word, name in _LEFT_OUT if last.count(name)]
        facts.append(("Left out", ", ".join(parts)))
    if last.num_quarantined:
        facts.append(("Quarantined", Text(f"{last.num_quarantined:,}", style="yellow")))
    if last.delay is not None:
        facts.append(("Delay", f"{_span(last.delay)} from planning to commit"))
    if last.user_metadata:
        facts.append(("Metadata", Text(last.user_metadata)))
    return facts


def _table(status: Status) -> list[tuple[str, Text | str]]:
    files, tombstones = status.files, status.tombstones
    share = files.deleted_share
    style = "yellow" if share is not None and share >= _MANY_DELETED else ""
    dead = f"{files.num_deleted_rows:,} still in the files" + ("" if share is None else f", {share:.1%}")
    facts: list[tuple[str, Text | str]] = [
        ("Rows", "not known: files without statistics" if files.num_rows is None else f"{files.num_rows:,}"),
        ("Deleted rows", Text(dead, style=style)),
        ("Files", f"{files.num_files:,}, {filesize.decimal(files.num_bytes)}"),
    ]
    if files.num_files:
        sizes = [filesize.decimal(round(size)) for size in (files.average, files.smallest, files.largest)]
        facts.append(("File size", f"{sizes[0]} on average, {sizes[1]} to {sizes[2]}"))
    if tombstones is None or tombstones.oldest is None:
        facts.append(("Tombstones", "none"))
    else:
        facts.append(
            ("Tombstones", f"{tombstones.num_rows:,}, the oldest of {_span(status.now - tombstones.oldest)} ago")
        )
    compactions = status.compactions
    if compactions:
        files_before = sum(commit.count("numRemovedFiles") for commit in compactions)
        files_after = sum(commit.count("numAddedFiles") for commit in compactions)
        seconds = _seconds(sum(commit.count(MAINTENANCE_TIME) for commit in compactions))
        done = f"{_plural(len(compactions), 'compaction')} of {files_before:,} files to {files_after:,} in {seconds} s"
        facts.append(("Maintenance", f"{done}, the last {_span(status.now - compactions[-1].time)} ago"))
    others = [f"{name} {count:,} ({_span(status.now - last)} ago)" for name, count, last in status.others]
    facts.append(("Other writers", "\n".join(others) or "none"))
    return facts


def _batches(status: Status) -> Table:
    total = len(status.merges)
    sizes = [size for size in (1, 10, 100) if size < total] + [total]
    windows = [status.window(size) for size in sizes]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", border_style="dim")
    table.add_column("Batches", style="cyan", no_wrap=True)
    for size in sizes:
        name = "last" if size == 1 and total > 1 else f"all {total:,}" if size == total else f"last {size}"
        table.add_column(name, justify="right", no_wrap=True, min_width=9)

    def add(name: str, value: Callable[[Window], str], style: str | None = None) -> None:
        table.add_row(name, *(value(window) for window in windows), style=style)

    def counted(name: str, *metrics: str, style: str | None = None) -> None:
        add(name, lambda window: f"{window.count(*metrics):,}", style)

    counted("Rows of the source", "numSourceRows")
    counted("  inserted", "numTargetRowsInserted")
    counted("  updated", "numTargetRowsUpdated")
    counted("  deleted", "numTargetRowsDeleted")
    counted("  left out", *(metric for _, metric in _LEFT_OUT))
    quarantined = status.window().count("numQuarantinedRows")
    counted("  quarantined", "numQuarantinedRows", style="yellow" if quarantined else None)
    add("Rows a second", lambda window: _rate(window.rows_per_second))
    add("Rows a second of merging", lambda window: _rate(window.rows_per_busy_second))
    add("Seconds a batch, median", lambda window: _seconds(window.median_ms))
    add("Seconds a batch, longest", lambda window: _seconds(window.longest_ms))
    add("Longest time between commits", lambda window: _span(max(window.gaps)) if window.gaps else _UNKNOWN)
    add("Conflicts with other writers", lambda window: _number(window.num_conflicts))
    return table


def _commits(status: Status, *, is_wide: bool) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1 if is_wide else 0, 0, 0),
        show_edge=False,
        header_style="bold",
        border_style="dim",
    )
    table.add_column("Version", justify="right", style="cyan", no_wrap=True)
    table.add_column("Time (UTC)", no_wrap=True)
    table.add_column("Commit", no_wrap=True, max_width=24)
    more = ("Left out", "Quarantined") if is_wide else ()
    for name in ("Source", "Inserted", "Updated", "Deleted", *more, "Seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for commit in reversed(status.commits[-_NUM_COMMITS:]):
        moment = f"{commit.time:%Y-%m-%d %H:%M:%S}" if is_wide else f"{commit.time:%m-%d %H:%M:%S}"
        if commit.is_merge:
            name = "merge" if commit.batch_id is None else f"batch {commit.batch_id}"
            numbers = [commit.num_source_rows, commit.num_inserted, commit.num_updated, commit.num_deleted]
            numbers += [commit.num_left_out, commit.num_quarantined] if is_wide else []
            shown = [_short(number) for number in numbers]
            table.add_row(f"{commit.version}", moment, name, *shown, _seconds(commit.duration_ms))
        else:
            name = "compaction" if commit.is_maintenance else commit.operation
            table.add_row(f"{commit.version}", moment, Text(name), style="dim")
    return table


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _short(number: int) -> str:
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.1f}M"


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.2f}"


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _span(time: timedelta) -> str:
    """Return a duration in its two largest units."""
    seconds = max(0.0, time.total_seconds())
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
