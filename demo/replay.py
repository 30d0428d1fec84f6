"""Cut the captured log into the files that the stream takes one at a time."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The log as files of one micro-batch each.

    Attributes:
        directory: Where the files are.
        num_micro_batches: How many there are.
        num_records: How many records they hold.
        num_redelivered: How many of the changes among them are delivered a second time.
    """

    directory: Path
    num_micro_batches: int
    num_records: int
    num_redelivered: int


@dataclass(frozen=True, slots=True)
class Position:
    """What tells where a record stands: the run of the Connect worker, PostgreSQL's log position, and the change."""

    run: str
    lsn: int
    change: tuple[object, ...]


def write_replay(log: Path, directory: Path, *, tables: Collection[str], num_micro_batches: int) -> Replay:
    """Write the log's records of some tables, in their order, to about equal files, unless the directory holds them
    already.

    A file ends only where every later change of the same worker run has a higher position in PostgreSQL's log. So a
    micro-batch has both halves of a changed primary key, and no change from before a TRUNCATE comes in a later
    micro-batch than it: a TRUNCATE becomes a delete of each row that the table has, and of no other key.
    """
    with gzip.open(log, "rt", encoding="utf-8", newline="\n") as lines:
        records = [line for line in lines if json.loads(line)["topic"].rpartition(".")[2] in tables]
    positions = [_read_position(record) for record in records]
    cuts = _choose_cuts(positions, num_micro_batches)
    changes = [position.change for position in positions if position is not None]
    if not directory.exists():
        unfinished = directory.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        for number, (start, end) in enumerate(pairwise(cuts), start=1):
            path = unfinished / f"{number:05d}.json"
            path.write_text("".join(records[start:end]), encoding="utf-8", newline="\n")
            # The file source takes the oldest file first.
            os.utime(path, (number, number))
        unfinished.rename(directory)
    return Replay(
        directory=directory,
        num_micro_batches=sum(1 for _ in directory.glob("*.json")),
        num_records=len(records),
        num_redelivered=len(changes) - len(set(changes)),
    )


def _read_position(record: str) -> Position | None:
    fields: dict[str, Any] = json.loads(record)
    if fields["value"] is None:
        return None
    change = json.loads(fields["value"])
    op, lsn = change["op"], change["source"]["lsn"]
    run = dict(fields["headers"])["__debezium.context.runId"]
    # The rows of the snapshot are older than any change, whatever their lsn says.
    return Position(run, 0 if op == "r" else lsn, (fields["topic"], fields["key"], lsn, op))


def _choose_cuts(positions: list[Position | None], num_micro_batches: int) -> list[int]:
    lowest_after: dict[str, int] = {}
    lowest: list[dict[str, int]] = []
    for position in reversed(positions):
        if position is not None:
            of_run = min(position.lsn, lowest_after.get(position.run, position.lsn))
            lowest_after = {**lowest_after, position.run: of_run}
        lowest.append(lowest_after)
    lowest.reverse()

    cuts = [0]
    highest: dict[str, int] = {}
    for index, position in enumerate(positions):
        is_clean = all(lsn < lowest[index].get(run, lsn + 1) for run, lsn in highest.items() if lsn)
        if is_clean and index >= len(cuts) * len(positions) / num_micro_batches:
            cuts.append(index)
        if position is not None:
            highest[position.run] = max(position.lsn, highest.get(position.run, 0))
    return [*cuts, len(positions)]
