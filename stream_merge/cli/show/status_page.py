"""Makes the page of tables whose commits were read, and writes it to a file."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

from stream_merge.cli.errors import ExitCode
from stream_merge.cli.show.commits import Commit
from stream_merge.cli.show.formats import UNKNOWN, or_dash, percent, plural, rate, span, utc
from stream_merge.cli.show.overview import Overview, TableState
from stream_merge.cli.show.page import CommitLine, Page, Resting, Section
from stream_merge.cli.show.parked import AtRest, reason, waiting
from stream_merge.cli.show.status import Status, StatusError
from stream_merge.cli.show.status_facts import (
    MANY_DELETED,
    NUM_COMMITS,
    SUMMARY,
    Fact,
    batch_rows,
    commit_name,
    head_line,
    last_batch,
    summary,
    table_facts,
)
from stream_merge.metrics import ParkedTable
from stream_merge.target_names import table_key

NOT_RUNNING = "by the running pipeline"
"""What a page that reads tables knows of the next attempt."""
RECENT = 100
"""Conflicts and quarantined rows are counted over so many of the last merges."""


def status_page(overview: Overview, refresh_seconds: int | None = None) -> Page:
    """Return the page of tables whose commits were read.

    Args:
        overview: The tables.
        refresh_seconds: How often a browser is to load the page anew.
    """
    return Page(
        title=overview.name,
        now=utc(overview.now),
        columns=SUMMARY,
        sections=tuple(_section(state, overview.at_rest.of(table_key(state.target))) for state in overview.tables),
        notes=(
            *(
                f"{target}: its tables are not listed, since their sources are not known here."
                for target in overview.unlisted
            ),
        ),
        at_rest=tuple(resting_line(table, NOT_RUNNING) for table in overview.at_rest.tables),
        at_rest_problem=overview.at_rest.problem,
        refresh_seconds=refresh_seconds,
    )


def resting_line(table: ParkedTable, next_attempt: str) -> Resting:
    """Return a table at rest as a line of the page."""
    return Resting(
        target=table.target,
        since=utc(table.since),
        numbers=(f"{table.num_rows:,}", f"{table.num_batches:,}"),
        next_attempt=next_attempt,
        reason=reason(table),
    )


def _section(state: TableState, at_rest: AtRest) -> Section:
    status, resting = state.status, "".join(f"; {waiting(table)}" for table in at_rest.tables)
    if status is None:
        assert state.problem is not None
        problem = f"{state.problem.in_short or state.problem}{resting}"
        return Section(target=state.target, problem=problem, quarantined=state.quarantined)
    return Section(
        target=state.target,
        note=f"version {status.version}, {head_line(status)}{resting}",
        summary=tuple(summary(status)),
        tiles=_tiles(status),
        phases=tuple(status.last.phases_ms.items()),
        panels=(("Last batch", tuple(last_batch(status))), ("Table", tuple(table_facts(status)))),
        batches=batch_rows(status),
        commits=tuple(commit_line(commit) for commit in reversed(status.commits[-NUM_COMMITS:])),
        quarantined=state.quarantined,
    )


def _tiles(status: Status) -> tuple[Fact, ...]:
    last, share = status.last, status.files.deleted_share
    ten, recent = status.window(10), status.window(RECENT)
    quarantined = recent.count("numQuarantinedRows")
    merges = plural(len(recent.merges), "merge")
    maintained = span(status.now - status.compactions[-1].time) + " ago" if status.compactions else UNKNOWN
    return (
        Fact("Last commit", f"{span(status.now - last.time)} ago"),
        Fact("Delay of its batch", UNKNOWN if last.delay is None else span(last.delay)),
        Fact("Rows a second", rate(ten.rows_per_second)),
        Fact("Rows a second of merging", rate(ten.rows_per_busy_second)),
        Fact("Files", f"{status.files.num_files:,}"),
        Fact("Deleted rows", percent(share), share is not None and share >= MANY_DELETED),
        Fact("Last compaction", maintained),
        Fact(f"Conflicts in {merges}", or_dash(recent.num_conflicts)),
        Fact(f"Quarantined in {merges}", f"{quarantined:,}", quarantined > 0),
    )


def commit_line(commit: Commit) -> CommitLine:
    """Return a commit as a line of the page."""
    numbers = (
        commit.num_source_rows,
        commit.num_inserted,
        commit.num_updated,
        commit.num_deleted,
        commit.num_left_out,
        commit.num_quarantined,
    )
    return CommitLine(
        version=f"{commit.version}",
        time=f"{commit.time:%Y-%m-%d %H:%M:%S}",
        name=commit_name(commit),
        is_merge=commit.is_merge,
        numbers=tuple(f"{number:,}" for number in numbers) if commit.is_merge else (),
        phases=tuple(commit.phases_ms.items()) if commit.is_merge else (),
    )


def check_page_file(file: Path) -> None:
    """Refuse a file that `write_page` cannot write, before anything is read for it.

    Raises:
        StatusError: The ending is not .html, or the folder does not exist.
    """
    if file.suffix.lower() != ".html":
        raise StatusError(f"{file}: the name of a page must end with .html.", ExitCode.USAGE)
    if not file.parent.is_dir():
        raise StatusError(
            f"{file}: the page cannot be written: there is no folder {file.parent}; create it.", ExitCode.USAGE
        )


def write_page(file: Path, text: str) -> None:
    """Write a page in one step: who reads the file sees the old page or the new one, never a part.

    Raises:
        StatusError: It cannot be written.
    """
    made = file.with_name(f".{file.name}.{token_hex(4)}")
    try:
        try:
            with made.open("xb") as target:
                target.write(text.encode("utf-8", "replace"))
            made.replace(file)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise StatusError(f"{file}: the page cannot be written: {error.strerror or error}.", ExitCode.FAILED) from error
