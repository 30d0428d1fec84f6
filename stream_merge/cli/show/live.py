"""Shows a running pipeline on a terminal: totals, a row for each target, the last trouble; or as log lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stream_merge.cli.run.progress import Progress, Snapshot, State, TableProgress
from stream_merge.cli.show.formats import UNKNOWN, count, duration, end_of, plural
from stream_merge.cli.show.parked_view import fitting
from stream_merge.metrics import MergeResult

WIDE = 100
"""From this terminal width on, the table shows batch and version too."""

_REFRESHES_PER_SECOND = 1
"""With forty tables each takes 60 to 80 ms, in which Python merges nothing."""
_LINES_AROUND = 6
_HEADINGS = ("inserts", "updates", "deletes", "rows/s", "behind", "commit", "aside")
_HEADINGS_OF_WIDE = ("batch", "version", "took")
_GAP = 2
_MIN_NAME = 8
_STATE_STYLES = {
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.RETRYING: "yellow",
    State.STOPPING: "yellow",
    State.ENDED: "dim",
}


class LiveView:
    """Shows a pipeline while the block runs, and leaves the last state on the terminal.

    Args:
        console: The terminal.
        progress: The progress to show.
        mask: Masks secrets.
    """

    def __init__(self, console: Console, progress: Progress, mask: Callable[[str], str]) -> None:
        self._progress = progress
        self._mask = mask
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        size = self._console.size
        return render(self._progress.snapshot(), size.width, size.height, self._mask)


def render(
    snapshot: Snapshot, width: int, height: int = 40, mask: Callable[[str], str] = lambda text: text
) -> RenderableType:
    """Return the contents of the terminal.

    Args:
        snapshot: The pipeline's progress.
        width: Columns of the terminal.
        height: Lines of the terminal; tables that do not fit are counted.
        mask: Masks secrets.
    """
    parts: list[RenderableType] = [_headline(snapshot)]
    tables = sorted(snapshot.tables.values(), key=lambda table: -(table.committed_at or 0))
    now = datetime.fromtimestamp(snapshot.now, timezone.utc)
    at_rest = fitting(snapshot.parked, now, width, height // 2, mask)
    room = max(3, height - _LINES_AROUND - len(at_rest))
    if tables:
        shown = sorted(tables[:room], key=lambda table: table.target)
        parts.append(_table(snapshot, shown, mask, width))
    if len(tables) > room:
        parts.append(Text(f"and {len(tables) - room} more tables", style="dim"))
    parts += at_rest
    if snapshot.notice:
        parts.append(_notice(snapshot, mask))
    return Group(*parts)


def _headline(snapshot: Snapshot) -> Text:
    text = Text()
    text.append(snapshot.name, style="bold")
    text.append("  ")
    text.append(snapshot.state.value, style=_STATE_STYLES[snapshot.state])
    facts = [f"up {duration(snapshot.seconds)}"]
    if snapshot.batch_id is not None:
        facts.append(f"batch {snapshot.batch_id}")
    if snapshot.processed_rows_per_second is not None:
        facts.append(f"{count(snapshot.processed_rows_per_second)} rows/s")
    if snapshot.total_offset_lag is not None:
        facts.append(f"{count(snapshot.total_offset_lag)} records behind")
    if snapshot.num_failures:
        facts.append(f"{snapshot.num_failures} failure{'s' if snapshot.num_failures > 1 else ''}")
    text.append(f"  {' · '.join(facts)}", style="default")
    if snapshot.parked:
        text.append(f" · {plural(len(snapshot.parked), 'table')} at rest", style="yellow")
    return text


def _table(snapshot: Snapshot, tables: list[TableProgress], mask: Callable[[str], str], width: int) -> Table:
    is_wide = width >= WIDE
    headings = [*_HEADINGS_OF_WIDE, *_HEADINGS] if is_wide else list(_HEADINGS)
    rows = [_cells(snapshot, each, is_wide=is_wide) for each in tables]
    taken = sum(max(map(len, column)) + _GAP for column in zip(headings, *rows, strict=True))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", expand=True)
    table.add_column("table", ratio=1, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    resting = {parked.target for parked in snapshot.parked}
    for each, cells in zip(tables, rows, strict=True):
        name = end_of(mask(each.target), max(_MIN_NAME, width - taken))
        # As Text: a path may have square brackets.
        table.add_row(
            Text(name, style="yellow" if each.target in resting else ""),
            *cells[:-1],
            Text(cells[-1], style="yellow" if each.num_quarantined else ""),
        )
    return table


def _cells(snapshot: Snapshot, table: TableProgress, *, is_wide: bool) -> list[str]:
    lag = snapshot.sequence_lag(table)
    cells = [
        count(table.num_inserted),
        count(table.num_updated),
        count(table.num_deleted),
        count(table.rows_per_second),
        UNKNOWN if lag is None else duration(lag),
        UNKNOWN if table.committed_at is None else duration(snapshot.now - table.committed_at),
        count(table.num_quarantined),
    ]
    if not is_wide:
        return cells
    took = UNKNOWN if table.seconds is None else duration(table.seconds)
    return [*(UNKNOWN if value is None else str(value) for value in (table.batch_id, table.version)), took, *cells]


def _notice(snapshot: Snapshot, mask: Callable[[str], str]) -> Text:
    notice = mask(snapshot.notice or "")
    if snapshot.retry_at is not None:
        left = max(0.0, snapshot.retry_at - snapshot.now)
        notice = f"{notice.rstrip('.')}; next attempt in {duration(left)}"
    return Text(notice, style="yellow", overflow="fold")


def result_line(result: MergeResult, total_offset_lag: int | None) -> str:
    """Return one log line for a table and micro-batch.

    Args:
        result: The result of the merge.
        total_offset_lag: Records that wait to be read, of all tables; None if that is not known.
    """
    head = f"{result.target}: batch {result.batch_id}"
    if result.skipped:
        return f"{head} skipped: the table has it already"
    version = "" if result.version is None else f", version {result.version}"
    parts = [
        f"{result.num_source_rows:,} rows",
        f"{result.num_target_rows_inserted:,} inserted",
        f"{result.num_target_rows_updated:,} updated",
        f"{result.num_target_rows_deleted:,} deleted",
    ]
    if result.num_quarantined_rows:
        parts.append(f"{result.num_quarantined_rows:,} set aside")
    if result.conflicts:
        parts.append(f"{len(result.conflicts)} conflict{'s' if len(result.conflicts) > 1 else ''}")
    line = f"{head}{version}: {', '.join(parts)} in {result.execution_time_ms / 1000:.1f} s"
    if total_offset_lag is not None:
        line += f"; {total_offset_lag:,} records behind"
    return line
