"""Makes the page that shows a pipeline's tables: one HTML text that needs nothing else, from figures already read.

All texts, such as names of tables and of topics, come from outside. Each goes through one function, which masks secrets
and then escapes it, since an escaped secret would not be found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from stream_merge.cli.show.formats import in_seconds
from stream_merge.cli.show.page_style import FILE_POLICY, SCRIPT, STYLE
from stream_merge.cli.show.parked import HOW_TO_TAKE_UP
from stream_merge.cli.show.quarantined import NUM_REASONS, QuarantinedRows
from stream_merge.cli.show.status_facts import BatchRow, Fact

Text: TypeAlias = Callable[[str], str]
"""Masks and escapes a text."""

COMMIT_COLUMNS = ("Source", "Inserted", "Updated", "Deleted", "Left out", "Quarantined")
AT_REST_COLUMNS = ("Since", "Records that wait", "Batches", "Next attempt", "Reason")
PHASES = ("source", "locate", "stage", "rest", "commit", "maintenance")
"""The phases that have a colour."""

_MAX_TEXT = 500
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLine:
    """A commit, as a line of the page.

    Attributes:
        version: The table version.
        time: When it was committed.
        name: Its batch, or its operation.
        is_merge: Whether it is a merge of this library.
        numbers: The values of `COMMIT_COLUMNS`; none unless it is a merge.
        phases: Names and milliseconds of its phases.
    """

    version: str
    time: str
    name: str
    is_merge: bool = True
    numbers: tuple[str, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table, as a section of the page.

    Attributes:
        target: Path or name of the table.
        problem: Why nothing else is known of it.
        note: What stands beside its name, such as the version.
        summary: What stands in the list of all tables, as many as the page's `columns`.
        tiles: The figures to see first.
        phases: Names and milliseconds of the phases of the last batch.
        panels: Further facts under their titles.
        batches: Headings and rows of figures over the last batches.
        commits: The last commits, the newest first.
        quarantined: The rows in its quarantine table.
    """

    target: str
    problem: str | None = None
    note: str = ""
    summary: tuple[Fact, ...] = ()
    tiles: tuple[Fact, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    panels: tuple[tuple[str, tuple[Fact, ...]], ...] = ()
    batches: tuple[Sequence[str], Sequence[BatchRow]] | None = None
    commits: tuple[CommitLine, ...] = ()
    quarantined: QuarantinedRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """A table at rest, as a line of the page.

    Attributes:
        target: Path or name of the table.
        since: When its first record was parked.
        numbers: How many records wait, and of how many micro-batches.
        next_attempt: When it is tried again.
        reason: Why it is at rest.
    """

    target: str
    since: str
    numbers: tuple[str, str]
    next_attempt: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page.

    Attributes:
        title: Name of the pipeline or table.
        now: The time of which it tells.
        columns: The names of what the list of all tables tells.
        sections: The tables.
        state: The state of the pipeline, if it is known.
        facts: Facts of the pipeline as a whole.
        notice: What is wrong, or what the pipeline waits for.
        at_rest: The tables at rest.
        at_rest_problem: Why they are not known.
        notes: What the page does not show, and why.
        refresh_seconds: How often it is to be loaded anew; None for a page that stays as it is.
        is_served: Whether a server makes it, so that a script can replace what changes.
    """

    title: str
    now: str
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    state: str | None = None
    facts: tuple[Fact, ...] = ()
    notice: str | None = None
    at_rest: tuple[Resting, ...] = ()
    at_rest_problem: str | None = None
    notes: tuple[str, ...] = ()
    refresh_seconds: int | None = None
    is_served: bool = False


def render(page: Page, mask: Callable[[str], str] = lambda text: text) -> str:
    """Return the page as HTML.

    Args:
        page: What it shows.
        mask: Masks secrets.
    """

    def text(value: str) -> str:
        shown = _UNPRINTABLE.sub("\ufffd", mask(value))
        # Cut after masking: half a secret would not be found.
        return escape(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")

    sections = [_section(section, number, text) for number, section in enumerate(page.sections)]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            _head(page, text),
            "<body>",
            "<main>",
            _title(page, text),
            *([_at_rest(page, text)] if page.at_rest or page.at_rest_problem else []),
            *([_list(page, text)] if len(page.sections) > 1 else []),
            *sections,
            *(f'<p class="faint">{text(note)}</p>' for note in page.notes),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(page: Page, text: Text) -> str:
    lines = ['<meta charset="utf-8">']
    if not page.is_served:
        # A server says it in a header.
        lines.append(f'<meta http-equiv="Content-Security-Policy" content="{FILE_POLICY}">')
    lines += [
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text(page.title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    if page.refresh_seconds is not None:
        reload = f'<meta http-equiv="refresh" content="{page.refresh_seconds}">'
        lines += [f"<noscript>{reload}</noscript>", f"<script>{SCRIPT}</script>"] if page.is_served else [reload]
    return "\n".join(["<head>", *lines, "</head>"])


def _title(page: Page, text: Text) -> str:
    state = "" if page.state is None else f' <span class="state {_word(page.state)}">{text(page.state)}</span>'
    lines = [
        "<header>",
        f"<h1>{text(page.title)}{state}</h1>",
        f'<p class="faint">{text(page.now)}</p>',
        *([_tiles(page.facts, text)] if page.facts else []),
        *([f'<p class="notice">{text(page.notice)}</p>'] if page.notice else []),
        "</header>",
    ]
    return "\n".join(lines)


def _word(value: str) -> str:
    """Return the letters of a value, for the name of a class."""
    return re.sub(r"[^a-z]", "", value)


def _at_rest(page: Page, text: Text) -> str:
    """Return a line for each table at rest, and what to do."""
    lines = ['<section class="at-rest">', f"<h2>{text('Tables at rest')}</h2>"]
    if page.at_rest_problem is not None:
        lines.append(f'<p class="problem">{text(page.at_rest_problem)}</p>')
    if page.at_rest:
        rows = []
        for table in page.at_rest:
            cells = (table.since, *table.numbers, table.next_attempt, table.reason)
            name = f'<th scope="row">{text(table.target)}</th>'
            rows.append(f"<tr>{name}{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>")
        lines.append(_table("table", AT_REST_COLUMNS, rows, text, style="resting"))
        lines.append(f'<p class="notice">{text(HOW_TO_TAKE_UP)}</p>')
    return "\n".join([*lines, "</section>"])


def _list(page: Page, text: Text) -> str:
    """Return a line for each table."""
    rows = []
    for number, section in enumerate(page.sections):
        name = f'<th scope="row"><a href="#table-{number}">{text(section.target)}</a></th>'
        if section.problem is not None:
            rows.append(
                f'<tr>{name}<td class="problem" colspan="{len(page.columns)}">{text(section.problem)}</td></tr>'
            )
        else:
            rows.append(f"<tr>{name}{''.join(_cell(fact, text) for fact in section.summary)}</tr>")
    return _table("table", page.columns, rows, text, style="list")


def _cell(fact: Fact, text: Text) -> str:
    return f"<td{_attention(fact)}>{text(fact.value)}</td>"


def _attention(shown: Fact | BatchRow) -> str:
    return ' class="attention"' if shown.needs_attention else ""


def _table(first: str, headings: Iterable[str], rows: Iterable[str], text: Text, *, style: str) -> str:
    """Return a table that scrolls by itself where it is too wide for the page."""
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in (first, *headings))
    body = "\n".join(rows)
    return (
        f'<div class="wide {style}-frame"><table class="{style}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _section(section: Section, number: int, text: Text) -> str:
    note = f' <span class="faint">{text(section.note)}</span>' if section.note else ""
    lines = [f'<section id="table-{number}">', f"<h2>{text(section.target)}{note}</h2>"]
    if section.problem is not None:
        lines.append(f'<p class="problem">{text(section.problem)}</p>')
    if section.tiles:
        lines.append(_tiles(section.tiles, text))
    if section.phases:
        lines.append(_phases(section.phases, text))
    if section.panels:
        panels = "\n".join(_panel(title, facts, text) for title, facts in section.panels)
        lines.append(f'<div class="panels">\n{panels}\n</div>')
    if section.quarantined is not None:
        lines.append(_quarantined(section.quarantined, text))
    if section.batches is not None:
        lines.append(_batches(*section.batches, text))
    if section.commits:
        lines.append(_commits(section.commits, text))
    return "\n".join([*lines, "</section>"])


def _tiles(facts: Iterable[Fact], text: Text) -> str:
    tiles = [f"<div{_attention(fact)}><dt>{text(fact.name)}</dt><dd>{text(fact.value)}</dd></div>" for fact in facts]
    return '<dl class="tiles">\n{}\n</dl>'.format("\n".join(tiles))


def _phases(phases: Sequence[tuple[str, int]], text: Text) -> str:
    total = sum(ms for _, ms in phases)
    keys = [f'<span class="key {_phase(name)}">{text(name)} {in_seconds(ms)} s</span>' for name, ms in phases if ms > 0]
    return f'<div class="phases">{_bar(phases, total, text)}<p>{" ".join(keys)}</p></div>'


def _phase(name: str) -> str:
    return name if name in PHASES else "rest"


def _bar(phases: Sequence[tuple[str, int]], full: int, text: Text) -> str:
    """Return a bar of the phases, as long as the whole width if they take `full` milliseconds."""
    parts = []
    left = 0.0
    for name, ms in phases:
        width = 100 * max(0, ms) / max(1, full)
        if width > 0:
            title = f"<title>{text(name)} {in_seconds(ms)} s</title>"
            parts.append(f'<rect class="{_phase(name)}" x="{left:.2f}" width="{width:.2f}" height="1">{title}</rect>')
        left += width
    label = text(", ".join(f"{name} {in_seconds(ms)} s" for name, ms in phases if ms > 0))
    svg = f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label="{label}">'
    return f"{svg}{''.join(parts)}</svg>"


def _panel(title: str, facts: Iterable[Fact], text: Text) -> str:
    rows = [f"<div{_attention(fact)}><dt>{text(fact.name)}</dt><dd>{text(fact.value)}</dd></div>" for fact in facts]
    return '<div class="panel">\n<h3>{}</h3>\n<dl>\n{}\n</dl>\n</div>'.format(text(title), "\n".join(rows))


def _batches(headings: Sequence[str], rows: Sequence[BatchRow], text: Text) -> str:
    lines = []
    for row in rows:
        style = ' class="part"' if row.name.startswith(" ") else ""
        cells = "".join(f"<td>{text(value)}</td>" for value in row.values)
        name = f'<th scope="row"{style}>{text(row.name.strip())}</th>'
        lines.append(f"<tr{_attention(row)}>{name}{cells}</tr>")
    return _table("Batches", headings, lines, text, style="batches")


def _commits(commits: Sequence[CommitLine], text: Text) -> str:
    longest = max(sum(ms for _, ms in commit.phases) for commit in commits)
    rows = []
    for commit in commits:
        start = f"<td>{text(commit.version)}</td><td>{text(commit.time)}</td><td>{text(commit.name)}</td>"
        if commit.is_merge:
            numbers = "".join(f"<td>{text(number)}</td>" for number in commit.numbers)
            took = in_seconds(sum(ms for _, ms in commit.phases))
            rows.append(f"<tr>{start}{numbers}<td>{took}</td><td>{_bar(commit.phases, longest, text)}</td></tr>")
        else:
            rows.append(f'<tr class="other">{start}<td colspan="{len(COMMIT_COLUMNS) + 2}"></td></tr>')
    return _table(
        "Version", ("Time (UTC)", "Commit", *COMMIT_COLUMNS, "Seconds", "Phases"), rows, text, style="commits"
    )


def _quarantined(found: QuarantinedRows, text: Text) -> str:
    lines = ['<div class="panel quarantine">', f"<h3>Quarantine {text(found.table)}</h3>"]
    if found.problem is not None:
        lines.append(f'<p class="problem">{text(found.problem)}</p>')
    elif not found.num_rows:
        lines.append("<p>No rows of this table.</p>")
    else:
        lines += _reasons(found, text)
    return "\n".join([*lines, "</div>"])


def _reasons(found: QuarantinedRows, text: Text) -> list[str]:
    rows = [
        f'<tr><th scope="row">{text(reason.kind)}</th><td>{reason.num_rows:,}</td>'
        f"<td>{reason.last:%Y-%m-%d %H:%M:%S}</td></tr>"
        for reason in found.reasons[:NUM_REASONS]
    ]
    further = sum(reason.num_rows for reason in found.reasons[NUM_REASONS:])
    if further:
        rows.append(f'<tr><th scope="row">other reasons</th><td>{further:,}</td><td></td></tr>')
    samples = [
        f'<li><p>{text(sample.reason)} <span class="faint">{text(sample.origin)}</span></p>'
        f"<code>{text(sample.text)}</code></li>"
        for sample in found.samples
    ]
    starts = [f"<li>{text(topic)}, partition {part}, offset {first}</li>" for topic, part, first in found.starts]
    return [
        _table("Reason", ("Rows", "Last (UTC)"), rows, text, style="reasons"),
        f"<p>The newest of {found.num_rows:,} rows:</p>",
        f"<ul>{''.join(samples)}</ul>",
        "<p>To bring them into the table, correct the cause, then run <code>stream-merge quarantine replay</code> with "
        "the pipeline's file.</p>",
        *(["<p>The first of their records:</p>", f"<ul>{''.join(starts)}</ul>"] if starts else []),
    ]
