"""Shows the tables at rest on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from textwrap import wrap

from rich.text import Text

from stream_merge.cli.show.formats import plural
from stream_merge.cli.show.parked import HOW_TO_TAKE_UP, AtRest, in_order, next_attempt, short_reason, waiting
from stream_merge.cli.show.status_view import ATTENTION
from stream_merge.metrics import ParkedTable

_INDENT = "  "
_MIN_WIDTH = 20


def render_at_rest(found: AtRest, mask: Callable[[str], str]) -> list[Text]:
    """Return what waits for each table, the reason, and what to do, for a command that ends."""
    lines = []
    for table in found.tables:
        lines.append(Text(mask(f"{table.target}: {waiting(table)}"), style=ATTENTION))
        lines.append(Text(f"{_INDENT}{short_reason(table, mask)}", style=ATTENTION))
    if found.problem is not None:
        lines.append(Text(mask(found.problem), style=ATTENTION))
    if found.tables:
        lines.append(Text(HOW_TO_TAKE_UP))
    return lines


def fitting(
    tables: Sequence[ParkedTable], now: datetime, width: int, height: int, mask: Callable[[str], str]
) -> list[Text]:
    """Return the same of a running pipeline, in few lines, and when each table is tried again.

    Args:
        tables: The tables at rest.
        now: The time.
        width: Columns of the terminal.
        height: How many lines there are for it; one table is shown in any case.
        mask: Masks secrets.

    Returns:
        A text for each line.
    """
    if not tables:
        return []
    width = max(_MIN_WIDTH, width)
    advice = [Text(line) for line in wrap(HOW_TO_TAKE_UP, width)]
    shown: list[Text] = []
    ordered = in_order(tables)
    for number, table in enumerate(ordered):
        head = mask(f"{table.target}: {waiting(table)}; next attempt {next_attempt(table, now)}")
        lines = [
            *wrap(head, width),
            *wrap(
                short_reason(table, mask),
                width,
                max_lines=2,
                placeholder=" …",
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
            ),
        ]
        if shown and len(shown) + len(lines) + len(advice) >= height:
            left = plural(len(ordered) - number, "more table")
            shown.append(Text(f"and {left} at rest, which stream-merge status --pipeline shows", style=ATTENTION))
            break
        shown += [Text(line, style=ATTENTION) for line in lines]
    return [*shown, *advice]
