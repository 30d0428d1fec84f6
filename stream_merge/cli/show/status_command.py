"""Implements `stream-merge status`: chooses what to read, shows it once or again and again, and writes the files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType

from stream_merge.cli.errors import ExitCode
from stream_merge.cli.show.overview import AskedTable, Overview, asked_table, asked_tables, read_overview, read_table
from stream_merge.cli.show.overview_view import render_overview
from stream_merge.cli.show.page import render
from stream_merge.cli.show.parked import AtRest, read_at_rest
from stream_merge.cli.show.parked_view import render_at_rest
from stream_merge.cli.show.status import Status, StatusError
from stream_merge.cli.show.status_facts import NUM_COMMITS
from stream_merge.cli.show.status_page import check_page_file, status_page, write_page
from stream_merge.cli.show.status_view import render_status
from stream_merge.cli.show.watch import watch
from stream_merge.target_names import table_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.cli.file.load import LoadedPipeline

LIMIT = 1000
"""How many commits of a table are read."""

LIMIT_OF_MANY = 200
"""How many commits of each table are read if there are several: enough for what an overview tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `stream-merge status` is asked for.

    Attributes:
        table: Path or name of a table; None for all tables of the pipeline.
        loaded: The pipeline file.
        plot: The file to plot to.
        html: The file to write the page to.
        limit: How many of the newest commits to read.
        interval: Seconds between two readings; None to read once.
    """

    table: str | None
    loaded: LoadedPipeline | None
    plot: Path | None
    html: Path | None
    limit: int | None
    interval: float | None

    def check(self) -> None:
        """Refuse what cannot be shown or written, before Spark is started for it.

        Raises:
            StatusError: There is neither a table nor a pipeline, a plot is to show many tables, or a file cannot be
                written.
        """
        if self.table is None and self.loaded is None:
            raise StatusError(
                "There is nothing to show: name a table, or a pipeline file for all of its tables "
                "(--pipeline pipeline.toml).",
                ExitCode.USAGE,
            )
        if self.plot is not None:
            from stream_merge.cli.show.plots import check_plot_file

            if self.table is None:
                raise StatusError(
                    "A plot shows one table: name it. For all tables of a pipeline there is --html.", ExitCode.USAGE
                )
            check_plot_file(self.plot)
        if self.html is not None:
            check_page_file(self.html)


def show_status(
    spark: SparkSession,
    request: Request,
    console: Console,
    tell: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Do what `stream-merge status` is asked for.

    Args:
        spark: The session.
        request: What to show.
        console: The terminal, or what standard output is instead.
        tell: Prints a line.
        wait: Waits for some seconds between two readings; Ctrl-C interrupts it.

    Raises:
        StatusError: The table cannot be read, or a file cannot be written.
    """
    command = _StatusCommand(spark, request, console)
    if request.interval is not None:
        watch(console, command.read, command.view, request.interval, command.mask, wait)
        return
    found = command.read()
    console.print(command.view(found, None))
    for file in (request.plot, request.html):
        if file is not None:
            tell(f"{file} is written.")


class _StatusCommand:
    def __init__(self, spark: SparkSession, request: Request, console: Console) -> None:
        self._spark = spark
        self._request = request
        self._console = console
        self._at_rest = AtRest()
        self._table = None if request.table is None else self._asked(request.table)

    def mask(self, text: str) -> str:
        """Mask the secrets of the pipeline file."""
        loaded = self._request.loaded
        return text if loaded is None else loaded.secrets.mask(text)

    def _asked(self, name: str) -> AskedTable:
        loaded = self._request.loaded
        return asked_table([] if loaded is None else asked_tables(self._spark, loaded.pipeline)[0], name)

    def read(self) -> Overview | Status:
        """Read what is asked for, and write the files: with each reading anew."""
        request = self._request
        if self._table is None:
            assert request.loaded is not None
            overview = read_overview(
                self._spark,
                request.loaded.pipeline,
                request.limit or LIMIT_OF_MANY,
                with_quarantine=request.html is not None,
            )
            self._write(overview)
            return overview
        if request.loaded is not None:
            at_rest = read_at_rest(self._spark, request.loaded.pipeline.pipeline.parking)
            self._at_rest = at_rest.of(table_key(self._table.target))
        state = read_table(self._spark, self._table, request.limit or LIMIT, with_quarantine=request.html is not None)
        if state.problem is not None:
            raise state.problem
        assert state.status is not None
        if request.plot is not None:
            from stream_merge.cli.show.plots import plot

            plot(state.status, request.plot)
        overview = Overview(
            name=self._table.target, now=datetime.now(timezone.utc), tables=(state,), at_rest=self._at_rest
        )
        self._write(overview)
        return state.status

    def _write(self, overview: Overview) -> None:
        request = self._request
        if request.html is not None:
            refresh = None if request.interval is None else max(1, round(request.interval))
            write_page(request.html, render(status_page(overview, refresh), self.mask))

    def view(self, found: Overview | Status, lines: int | None) -> RenderableType:
        """Return what was read, with fewer commits if a terminal has too few lines for ten."""
        width = self._console.width
        if isinstance(found, Overview):
            return render_overview(found, width, self.mask)
        at_rest = render_at_rest(self._at_rest, self.mask)
        whole = Group(render_status(found, width, self.mask), *at_rest)
        if lines is None:
            return whole
        missing = len(self._console.render_lines(whole)) - (lines - 1)
        num_commits = max(0, NUM_COMMITS - max(0, missing))
        return Group(render_status(found, width, self.mask, num_commits), *at_rest)
