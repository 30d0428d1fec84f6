"""Hands the values of a row's old key to its new key, where the change does not send them.

A departure hands on the values of its row in two ways: as a change of the new key that gives values but no row
(`IS_CARRIED_OVER`), and with its own tombstone, for an arrival that is not there yet. `handover` computes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.sessions import persisted
from stream_merge.config import SinkConfig
from stream_merge.partial_updates.handover import Handover
from stream_merge.partial_updates.key_changes import Moves, next_steps
from stream_merge.partial_updates.registers import PartialUpdates

_MAX_HOPS = 32
"""How often a row may change its key within one batch; later changes of its key then lack values, and are counted."""


class Keep(Protocol):
    """Writes tombstones that hold values, and returns them as they are then read; None if there are none."""

    def __call__(self, rows: DataFrame, *, at_once: bool) -> DataFrame | None:
        """Write these, which are few if `at_once`."""


@contextmanager
def followed_moves(
    moves: Moves,
    config: SinkConfig,
    partial: PartialUpdates,
    *,
    read_target: Callable[[DataFrame, Sequence[tuple[Any, Any, int]] | None], DataFrame],
    left: Callable[[], DataFrame | None],
    lacking: Callable[[], DataFrame | None],
    dead: Callable[[], DataFrame | None],
    keep: Keep,
) -> Iterator[DataFrame]:
    """Give the batch with the values that key changes hand on.

    Args:
        moves: What has to be handed on.
        config: The sink, its sequence in columns.
        partial: What changes may set.
        read_target: Gives the target's rows whose keys are among the structs `key` of a frame; the bounds, if given, are theirs.
        left: Gives the tombstones of earlier batches that hold values; None if there are none.
        lacking: Gives those of them that hold some of the row's values only.
        dead: Gives all tombstones of earlier batches; None if there are none.
        keep: Keeps what is handed on.
    """
    handover = Handover(moves, config, partial)
    remembered = left() if moves.num_lacking else None
    handed = [] if remembered is None else [handover.awaited(remembered)]
    with ExitStack() as stack:
        there: list[DataFrame] = []
        own: list[DataFrame] = []
        if moves.num_departures:
            target = read_target(moves.ends, moves.bounds)
            target = stack.enter_context(persisted(target, at_once=moves.is_small))
            there.append(target)
            known = handover.known(target, dead())
            own = _kept(_left_behind(handover, moves, known, handed, stack), moves, keep)
            handed += own
        for passed in _passed_on(handover, moves, handed, lacking(), own, keep):
            handed.append(passed)
            there.append(read_target(passed.select(F.col("moved.to").alias("key")), None))
        yield moves.changes.unionByName(handover.given(handed, there)) if handed else moves.changes


def _kept(rows: DataFrame, moves: Moves, keep: Keep) -> list[DataFrame]:
    """Return tombstones as `keep` gives them, an empty list for none."""
    kept = keep(rows, at_once=moves.is_small)
    return [] if kept is None else [kept]


def _left_behind(
    handover: Handover, moves: Moves, known: DataFrame, handed: Sequence[DataFrame], stack: ExitStack
) -> DataFrame:
    """Return tombstones with the values that the batch's departures leave, once for each hop that a row makes in the batch."""
    hops = _hops(moves, stack)
    if hops > 1:
        known = stack.enter_context(persisted(known, at_once=moves.is_small))
    states: list[DataFrame] = []
    for _ in range(hops - 1):
        # Kept at once: a plan that computes one state from the other would grow with each key of a row.
        state = handover.states(known, [*handed, *states])
        states = [stack.enter_context(persisted(state, at_once=moves.is_small))]
    return handover.states(known, [*handed, *states])


def _hops(moves: Moves, stack: ExitStack) -> int:
    """Return how many departures of one row follow each other in the batch."""
    if not moves.num_steps:
        return 1
    last = next_steps(moves.departures, moves.departures, is_small=moves.is_small)
    for hops in range(2, _MAX_HOPS):
        last = stack.enter_context(persisted(last.distinct(), at_once=moves.is_small))
        last = next_steps(last, moves.departures, is_small=moves.is_small)
        if last.isEmpty():
            return hops
    return _MAX_HOPS


def _passed_on(
    handover: Handover,
    moves: Moves,
    handed: Sequence[DataFrame],
    incomplete: DataFrame | None,
    own: Sequence[DataFrame],
    keep: Keep,
) -> Iterator[DataFrame]:
    """Give the tombstones that pass values on to rows which left their new key before the values came.

    Args:
        handover: What hands values on.
        moves: The moves of the batch.
        handed: The tombstones that hand values on in this batch.
        incomplete: The tombstones of earlier batches that lack values.
        own: The tombstones of the batch's own departures.
        keep: Keeps what is passed on.
    """
    passed, followed = list(handed), [] if incomplete is None else [incomplete]
    for _ in range(_MAX_HOPS):
        if not passed or not followed:
            return
        given = reduce(DataFrame.unionByName, passed)
        rows = reduce(DataFrame.unionByName, [handover.passed_on(given, left) for left in followed])
        passed = _kept(rows, moves, keep)
        yield from passed
        # Rows that leave in this batch the key to which the values have come now took all else along themselves.
        followed = [*followed[:1], *own]
