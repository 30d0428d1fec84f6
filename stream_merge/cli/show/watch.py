"""Shows something again and again, until Ctrl-C: in its place on a terminal, one block below the other elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from stream_merge.cli.show.status import StatusError
from stream_merge.cli.show.status_view import ATTENTION

Shown = TypeVar("Shown")


def watch(
    console: Console,
    read: Callable[[], Shown],
    view: Callable[[Shown, int | None], RenderableType],
    interval: float,
    mask: Callable[[str], str] = lambda text: text,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Read something every few seconds and show it, until Ctrl-C; the last state stays on the terminal.

    Args:
        console: The terminal, or what standard output is instead.
        read: Reads what is shown.
        view: Returns it for a number of lines; for any number where there is no terminal.
        interval: Seconds between two readings.
        mask: Masks secrets in the sentence for a failure.
        wait: Waits for some seconds; Ctrl-C interrupts it.

    Raises:
        StatusError: It could not be read the first time. A later failure is shown above the last state, since a table
            may be away for a while.
    """
    try:
        last = read()
        with _display(console, view) as show:
            show(last, None)
            while True:
                wait(interval)
                problem = None
                try:
                    last = read()
                except StatusError as error:
                    problem = Text(mask(str(error)), style=ATTENTION)
                show(last, problem)
    except KeyboardInterrupt:
        return


@contextmanager
def _display(
    console: Console, view: Callable[[Shown, int | None], RenderableType]
) -> Iterator[Callable[[Shown, Text | None], None]]:
    """Yield a function that shows a state, and a problem if there is one."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

            def redraw(state: Shown, problem: Text | None) -> None:
                lines = console.height
                if problem is None:
                    live.update(view(state, lines), refresh=True)
                else:
                    live.update(Group(problem, view(state, lines - 1)), refresh=True)

            yield redraw
        return

    def write(state: Shown, problem: Text | None) -> None:
        # What was read before stands above already.
        console.print(view(state, None) if problem is None else problem)
        console.print()

    yield write
