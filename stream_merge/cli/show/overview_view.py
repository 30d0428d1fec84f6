"""Shows the tables of a pipeline on a terminal, a line for each."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stream_merge.cli.show.formats import end_of, plural, utc
from stream_merge.cli.show.overview import Overview
from stream_merge.cli.show.parked_view import render_at_rest
from stream_merge.cli.show.status_facts import SUMMARY, Fact, summary
from stream_merge.cli.show.status_view import ATTENTION

_GAP = 2
_MIN_NAME = 12


def render_overview(overview: Overview, width: int, mask: Callable[[str], str] = lambda text: text) -> RenderableType:
    """Return the tables of a pipeline for a terminal.

    Args:
        overview: What `read_overview` returned.
        width: The columns of the terminal.
        mask: Masks secrets.
    """
    head = Table.grid(expand=True, padding=(0, 2, 0, 0))
    head.add_column(overflow="fold")
    head.add_column(justify="right", no_wrap=True)
    title = Text(mask(overview.name), style="bold")
    title.append(f"  {plural(len(overview.tables), 'table')}", style="default not bold")
    head.add_row(title, Text(utc(overview.now), style="dim"))
    notes = [
        Text(
            f"{mask(target)}: its tables are not listed, since their sources are not known here",
            style="dim",
        )
        for target in overview.unlisted
    ]
    tables = [_tables(overview, width, mask)] if any(state.status for state in overview.tables) else []
    return Group(head, *tables, *_problems(overview, mask), *render_at_rest(overview.at_rest, mask), *notes)


def _tables(overview: Overview, width: int, mask: Callable[[str], str]) -> Table:
    rows = [(state, summary(state.status)) for state in overview.tables if state.status is not None]
    columns = [[name, *(facts[i].value for _, facts in rows)] for i, name in enumerate(SUMMARY)]
    room = max(_MIN_NAME, width - sum(max(map(len, column)) + _GAP for column in columns))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", expand=True)
    table.add_column("table", ratio=1, no_wrap=True)
    for name in SUMMARY:
        table.add_column(name, justify="right", no_wrap=True)
    for state, facts in rows:
        # As Text: a path may have square brackets.
        table.add_row(Text(end_of(mask(state.target), room)), *map(_cell, facts))
    return table


def _cell(fact: Fact) -> Text:
    return Text(fact.value, style=ATTENTION if fact.needs_attention else "")


def _problems(overview: Overview, mask: Callable[[str], str]) -> list[Text]:
    problems = [(state.target, state.problem) for state in overview.tables if state.problem is not None]
    return [
        Text(mask(f"{target}: {problem.in_short}" if problem.in_short else str(problem)), style=ATTENTION)
        for target, problem in problems
    ]
