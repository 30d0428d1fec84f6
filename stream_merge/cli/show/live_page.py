"""Makes the page of a running pipeline from what its process knows; reads no table."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from stream_merge.cli.run.progress import Progress, Snapshot, TableProgress
from stream_merge.cli.show.commits import split_phases
from stream_merge.cli.show.formats import UNKNOWN, count, duration, percent, size, utc
from stream_merge.cli.show.page import CommitLine, Page, Section, render
from stream_merge.cli.show.page_style import REFRESH_SECONDS
from stream_merge.cli.show.parked import in_order, next_attempt, waiting
from stream_merge.cli.show.status_facts import MANY_DELETED, NUM_COMMITS, SUMMARY, Fact
from stream_merge.cli.show.status_page import resting_line
from stream_merge.metrics import MergeResult

COLUMNS = tuple("behind" if name == "delay" else name for name in SUMMARY)
_MAX_TOPICS = 20


@dataclass(slots=True)
class TableResults:
    """What the last merges of a table said.

    Attributes:
        merges: The last merges and when they came, in seconds since the epoch, the oldest first.
        measured: The last result that knows the table's files.
        maintained: The last maintenance: what was done, and when.
    """

    merges: deque[tuple[float, MergeResult]] = field(default_factory=lambda: deque(maxlen=NUM_COMMITS))
    measured: MergeResult | None = None
    maintained: tuple[str, float] | None = None


class RecentResults:
    """Keeps the last results of each table.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # Results arrive in the threads of the tables, requests in those of the server.
        self._lock = threading.Lock()
        self._tables: dict[str, TableResults] = {}

    def expect(self, targets: Iterable[str]) -> None:
        """Show tables before their first micro-batch."""
        with self._lock:
            for target in targets:
                self._tables.setdefault(target, TableResults())

    def on_result(self, result: MergeResult) -> None:
        """Keep the result of one table and micro-batch."""
        with self._lock:
            now = self._clock()
            table = self._tables.setdefault(result.target, TableResults())
            if result.skipped:
                return
            table.merges.append((now, result))
            if result.table_files is not None:
                table.measured = result
            if result.maintenance is not None:
                table.maintained = (result.maintenance, now)

    def tables(self) -> dict[str, TableResults]:
        """Return a copy of the results by target."""
        with self._lock:
            return {
                target: replace(table, merges=deque(table.merges)) for target, table in sorted(self._tables.items())
            }


def served_page(progress: Progress, results: RecentResults, mask: Callable[[str], str]) -> Callable[[], str]:
    """Return the function that makes the page for each request.

    Args:
        progress: The pipeline's progress.
        results: The last results of its tables.
        mask: Masks secrets.
    """
    return lambda: render(live_page(progress.snapshot(), results.tables()), mask)


def live_page(snapshot: Snapshot, tables: Mapping[str, TableResults]) -> Page:
    """Return the page of a running pipeline.

    Args:
        snapshot: Its progress.
        tables: The last results of each table.
    """
    targets = sorted({*tables, *snapshot.tables, *(table.target for table in snapshot.parked)})
    now = datetime.fromtimestamp(snapshot.now, timezone.utc)
    return Page(
        title=snapshot.name,
        now=_utc(snapshot.now),
        columns=COLUMNS,
        sections=tuple(
            _section(snapshot, snapshot.tables.get(target), target, tables.get(target) or TableResults())
            for target in targets
        ),
        state=snapshot.state.value,
        facts=_facts(snapshot),
        notice=_notice(snapshot),
        at_rest=tuple(resting_line(table, next_attempt(table, now)) for table in in_order(snapshot.parked)),
        refresh_seconds=REFRESH_SECONDS,
        is_served=True,
    )


def _utc(seconds: float) -> str:
    return utc(datetime.fromtimestamp(seconds, timezone.utc))


def _facts(snapshot: Snapshot) -> tuple[Fact, ...]:
    lag, arriving, merged = (
        snapshot.total_offset_lag,
        snapshot.input_rows_per_second,
        snapshot.processed_rows_per_second,
    )
    facts = [
        Fact("Running for", duration(snapshot.seconds)),
        Fact("Last batch", UNKNOWN if snapshot.batch_id is None else f"{snapshot.batch_id}"),
        Fact("Rows/s, arriving", UNKNOWN if arriving is None else count(arriving)),
        Fact("Rows/s, merged", UNKNOWN if merged is None else count(merged)),
        Fact("Records behind", UNKNOWN if lag is None else f"{lag:,}"),
        Fact("Failures", f"{snapshot.num_failures:,}", snapshot.num_failures > 0),
    ]
    if snapshot.parked:
        facts.append(Fact("Tables at rest", f"{len(snapshot.parked):,}", needs_attention=True))
    if len(snapshot.offset_lag) > 1:
        most = sorted(snapshot.offset_lag.items(), key=lambda topic: (-topic[1], topic[0]))
        facts += [Fact(f"Behind in {topic}", f"{records:,}") for topic, records in most[:_MAX_TOPICS] if records]
    return tuple(facts)


def _notice(snapshot: Snapshot) -> str | None:
    if snapshot.notice is None or snapshot.retry_at is None:
        return snapshot.notice
    left = max(0.0, snapshot.retry_at - snapshot.now)
    return f"{snapshot.notice.rstrip('.')}; next attempt in {duration(left)}"


def _section(snapshot: Snapshot, table: TableProgress | None, target: str, results: TableResults) -> Section:
    resting = [waiting(parked) for parked in snapshot.parked if parked.target == target]
    if table is None:
        return Section(target=target, problem="; ".join(["no micro-batch since the start of the command", *resting]))
    last = results.merges[-1][1] if results.merges else None
    return Section(
        target=target,
        note="; ".join([*([] if table.version is None else [f"version {table.version}"]), *resting]),
        summary=_summary(snapshot, table, results),
        tiles=_tiles(snapshot, table, results),
        phases=() if last is None else phases(last),
        panels=(
            *(() if last is None else (("Last batch", _last_batch(last)),)),
            ("Since the start", _since_the_start(table)),
            ("Table", _table(snapshot, last, results)),
        ),
        commits=tuple(_commit(at, result) for at, result in reversed(results.merges)),
    )


def _commit_age(snapshot: Snapshot, table: TableProgress) -> str:
    return UNKNOWN if table.committed_at is None else duration(snapshot.now - table.committed_at)


def _behind(snapshot: Snapshot, table: TableProgress) -> str:
    lag = snapshot.sequence_lag(table)
    return UNKNOWN if lag is None else duration(lag)


def _files(results: TableResults) -> str:
    measured = results.measured
    return UNKNOWN if measured is None or measured.table_files is None else f"{measured.table_files:,}"


def _deleted(results: TableResults) -> tuple[str, bool]:
    """Return the share of deleted rows, and whether it is large."""
    measured = results.measured
    if measured is None or measured.deleted_rows is None or measured.table_rows is None:
        return UNKNOWN, False
    share = measured.deleted_rows / max(1, measured.table_rows)
    return percent(share), share >= MANY_DELETED


def _summary(snapshot: Snapshot, table: TableProgress, results: TableResults) -> tuple[Fact, ...]:
    values = {
        "version": Fact("version", UNKNOWN if table.version is None else f"{table.version}"),
        "batch": Fact("batch", UNKNOWN if table.batch_id is None else f"{table.batch_id}"),
        "commit": Fact("commit", _commit_age(snapshot, table)),
        "behind": Fact("behind", _behind(snapshot, table)),
        "rows/s": Fact("rows/s", count(table.rows_per_second)),
        "files": Fact("files", _files(results)),
        "deleted": Fact("deleted", *_deleted(results)),
        "aside": Fact("aside", count(table.num_quarantined), table.num_quarantined > 0),
    }
    return tuple(values[name] for name in COLUMNS)


def _tiles(snapshot: Snapshot, table: TableProgress, results: TableResults) -> tuple[Fact, ...]:
    age = _commit_age(snapshot, table)
    maintained = Fact("Maintenance", UNKNOWN)
    if results.maintained is not None:
        outcome, at = results.maintained
        maintained = Fact(f"Maintenance: {outcome}", f"{duration(snapshot.now - at)} ago")
    return (
        Fact("Last commit", age if table.committed_at is None else f"{age} ago"),
        Fact("Behind the source", _behind(snapshot, table)),
        Fact("Rows a second", count(table.rows_per_second)),
        Fact("Time of the last batch", UNKNOWN if table.seconds is None else duration(table.seconds)),
        Fact("Files", _files(results)),
        Fact("Deleted rows", *_deleted(results)),
        maintained,
        Fact("Conflicts", f"{table.num_conflicts:,}"),
        Fact("Quarantined", f"{table.num_quarantined:,}", table.num_quarantined > 0),
    )


def phases(result: MergeResult) -> tuple[tuple[str, int], ...]:
    """Return names and milliseconds of the phases of a merge; see `split_phases`."""
    # The time of execution ends before the commit.
    after = ((name, result.phase_ms.get(name, 0)) for name in ("commit", "maintenance"))
    return (*split_phases(result.execution_time_ms, result.phase_ms).items(), *after)


def _last_batch(result: MergeResult) -> tuple[Fact, ...]:
    facts = [
        Fact("Batch", UNKNOWN if result.batch_id is None else f"{result.batch_id}"),
        Fact("Of query", result.query_id or UNKNOWN),
        Fact("Strategy", f"{result.strategy or UNKNOWN}: {result.reason}" if result.reason else f"{result.strategy}"),
        Fact("Rows", f"{result.num_source_rows:,} of the source"),
        Fact(
            "Changes",
            f"{result.num_target_rows_inserted:,} inserted, {result.num_target_rows_updated:,} updated, "
            f"{result.num_target_rows_deleted:,} deleted",
        ),
    ]
    if _left_out(result):
        facts.append(Fact("Left out", f"{_left_out(result):,}"))
    if result.num_quarantined_rows:
        facts.append(Fact("Quarantined", f"{result.num_quarantined_rows:,}", needs_attention=True))
    if result.conflicts:
        facts.append(Fact("Conflicts", ", ".join(result.conflicts)))
    return tuple(facts)


def _left_out(result: MergeResult) -> int:
    return result.num_superseded_rows + result.num_stale_rows + result.num_outdated_rows + result.num_unchanged_rows


def _since_the_start(table: TableProgress) -> tuple[Fact, ...]:
    return (
        Fact("Batches", f"{table.num_batches:,}, and {table.num_skipped:,} that the table had already"),
        Fact("Rows", f"{table.num_source_rows:,} of the source"),
        Fact(
            "Changes",
            f"{table.num_inserted:,} inserted, {table.num_updated:,} updated, {table.num_deleted:,} deleted",
        ),
    )


def _table(snapshot: Snapshot, last: MergeResult | None, results: TableResults) -> tuple[Fact, ...]:
    facts = [Fact("Files", _files(results)), Fact("Deleted rows", *_deleted(results))]
    if last is not None:
        age = f", the oldest of {duration(last.oldest_tombstone_ms / 1000)} ago" if last.num_tombstones else ""
        facts.append(Fact("Tombstones", f"{last.num_tombstones:,}{age}"))
        if last.index_rows:
            facts.append(Fact("Key index", f"{last.index_rows:,} keys, {size(last.index_disk_bytes)} on disk"))
    if results.maintained is not None:
        outcome, at = results.maintained
        facts.append(Fact("Maintenance", f"{outcome} {duration(snapshot.now - at)} ago"))
    return tuple(facts)


def _commit(at: float, result: MergeResult) -> CommitLine:
    numbers = (
        result.num_source_rows,
        result.num_target_rows_inserted,
        result.num_target_rows_updated,
        result.num_target_rows_deleted,
        _left_out(result),
        result.num_quarantined_rows,
    )
    return CommitLine(
        version=UNKNOWN if result.version is None else f"{result.version}",
        time=_utc(at).removesuffix(" UTC"),
        name="merge" if result.batch_id is None else f"batch {result.batch_id}",
        numbers=tuple(f"{number:,}" for number in numbers),
        phases=phases(result),
    )
