"""Progress on the terminal: a table that updates in place, or a line a micro-batch where there is no terminal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TextIO

from demo.replay import Replay
from stream_merge import MergeResult

BAR_WIDTH = 24
HEADER = "table       changes inserted updated deleted version      last  strategy"
UP = "\x1b[{}A"
CLEAR_LINE = "\x1b[2K"


@dataclass(slots=True)
class TableProgress:
    """The sums of one table over the micro-batches so far, and its last merge."""

    num_changes: int = 0
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0
    last: MergeResult | None = None

    def add(self, result: MergeResult) -> None:
        """Count one merge."""
        self.num_inserted += result.num_target_rows_inserted
        self.num_updated += result.num_target_rows_updated
        self.num_deleted += result.num_target_rows_deleted
        self.last = result


@dataclass(slots=True)
class Progress:
    """Collects the results of the sinks and shows them."""

    out: TextIO
    replay: Replay
    tables: dict[str, TableProgress]
    _start: float = field(default_factory=time.monotonic)
    _num_lines_drawn: int = 0
    _merged: list[MergeResult] = field(default_factory=list)
    num_micro_batches: int = 0

    def on_result(self, result: MergeResult) -> None:
        """Take the result of one merge; `merge_sink` calls this after each commit."""
        self.tables[PurePath(result.target).name].add(result)
        self._merged.append(result)

    def on_micro_batch(self, batch_id: int, num_changes: Mapping[str, int]) -> None:
        """Show where the query stands after a micro-batch."""
        self.num_micro_batches += 1
        for name, number in num_changes.items():
            self.tables[name].num_changes += number
        if self.out.isatty():
            self._draw_table(batch_id + 1)
        else:
            self._print_line(batch_id + 1)
        self._merged.clear()

    def _print_line(self, number: int) -> None:
        merges = "; ".join(
            f"{PurePath(result.target).name} +{result.num_target_rows_inserted} ~{result.num_target_rows_updated} "
            f"-{result.num_target_rows_deleted} ({result.execution_time_ms} ms)"
            for result in self._merged
        )
        self.out.write(f"micro-batch {number}/{self.replay.num_micro_batches}: {merges}\n")
        self.out.flush()

    def _draw_table(self, number: int) -> None:
        filled = BAR_WIDTH * number // self.replay.num_micro_batches
        lines = [
            f"micro-batch {number}/{self.replay.num_micro_batches} [{'#' * filled:-<{BAR_WIDTH}}] "
            f"{time.monotonic() - self._start:.0f} s",
            HEADER,
            *(self._row(name, table) for name, table in self.tables.items()),
        ]
        width = shutil.get_terminal_size().columns
        up = UP.format(self._num_lines_drawn) if self._num_lines_drawn else ""
        self.out.write(up + "".join(f"{CLEAR_LINE}{line[: width - 1]}\n" for line in lines))
        self.out.flush()
        self._num_lines_drawn = len(lines)

    @staticmethod
    def _row(name: str, table: TableProgress) -> str:
        row = f"{name:<11} {table.num_changes:>7,} {table.num_inserted:>8,} {table.num_updated:>7,}"
        row += f" {table.num_deleted:>7,}"
        if table.last is None:
            return row
        version = "" if table.last.version is None else table.last.version
        return f"{row} {version:>7} {table.last.execution_time_ms:>6} ms  {table.last.strategy or 'skipped'}"
