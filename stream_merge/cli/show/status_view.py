"""Shows `stream-merge status` on a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_merge.cli.show.formats import in_seconds, short, utc
from stream_merge.cli.show.status import Status
from stream_merge.cli.show.status_facts import (
    NUM_COMMITS,
    Fact,
    batch_rows,
    commit_name,
    head_line,
    last_batch,
    table_facts,
)

WIDE = 116
"""From this width on there is room for two panels side by side and for more columns."""

ATTENTION = "yellow"


def print_status(console: Console, status: Status, mask: Callable[[str], str] = lambda text: text) -> None:
    """Print the state of a table.

    Args:
        console: The terminal; its width determines the layout.
        status: What `read_status` returned.
        mask: Masks secrets.
    """
    console.print(render_status(status, console.width, mask))


def render_status(
    status: Status,
    width: int,
    mask: Callable[[str], str] = lambda text: text,
    num_commits: int = NUM_COMMITS,
) -> RenderableType:
    """Return the state of a table for a terminal.

    Args:
        status: What `read_status` returned.
        width: The columns of the terminal, which determine the layout.
        mask: Masks secrets.
        num_commits: How many of the last commits to list.
    """
    is_wide = width >= WIDE
    last, table = _panel("Last batch", last_batch(status), mask), _panel("Table", table_facts(status), mask)
    panels: list[RenderableType] = [last, table]
    if is_wide:
        pair = Table.grid(expand=True, padding=(0, 1, 0, 0), pad_edge=False)
        pair.add_column(ratio=1)
        pair.add_column(ratio=1)
        pair.add_row(last, table)
        panels = [pair]
    commits: list[RenderableType] = [Text(), _commits(status, num_commits, is_wide=is_wide)] if num_commits else []
    return Group(_head(status, mask), *panels, _batches(status), *commits)


def _head(status: Status, mask: Callable[[str], str]) -> Table:
    head = Table.grid(expand=True, padding=(0, 2, 0, 0))
    head.add_column(overflow="fold")
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(mask(status.table), style="bold"), Text(f"version {status.version}", style="bold"))
    head.add_row(Text(head_line(status), style="dim"), Text(utc(status.now), style="dim"))
    return head


def _panel(title: str, facts: Sequence[Fact], mask: Callable[[str], str]) -> Panel:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for fact in facts:
        # As Text: values from the table are not markup.
        grid.add_row(fact.name, Text(mask(fact.value), style=ATTENTION if fact.needs_attention else ""))
    return Panel(grid, title=f"[bold not dim]{title}[/]", title_align="left", border_style="dim", box=box.ROUNDED)


def _batches(status: Status) -> Table:
    headings, rows = batch_rows(status)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", border_style="dim")
    table.add_column("Batches", style="cyan", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, min_width=9)
    for row in rows:
        table.add_row(row.name, *row.values, style=ATTENTION if row.needs_attention else None)
    return table


def _commits(status: Status, number: int, *, is_wide: bool) -> Table:
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
    for commit in reversed(status.commits[-number:]):
        moment = f"{commit.time:%Y-%m-%d %H:%M:%S}" if is_wide else f"{commit.time:%m-%d %H:%M:%S}"
        if commit.is_merge:
            numbers = [commit.num_source_rows, commit.num_inserted, commit.num_updated, commit.num_deleted]
            numbers += [commit.num_left_out, commit.num_quarantined] if is_wide else []
            shown = [short(each) for each in numbers]
            table.add_row(f"{commit.version}", moment, commit_name(commit), *shown, in_seconds(commit.duration_ms))
        else:
            table.add_row(f"{commit.version}", moment, Text(commit_name(commit)), style="dim")
    return table
