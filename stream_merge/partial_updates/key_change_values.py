"""Hands the values of a row's old key to its new key if the change of the key does not send them.

A departure hands on values in two ways: with a change of the new key that gives values but makes no row
(`IS_CARRIED_OVER`), and with its own tombstone, for an arrival that is yet to come. `carried_values` computes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.statement import Once
from stream_merge.config import SinkConfig
from stream_merge.partial_updates.carried_values import CarriedValues
from stream_merge.partial_updates.key_changes import Moves, next_steps
from stream_merge.partial_updates.registers import PartialUpdates

_MAX_HOPS = 32
"""How often a row may change its key in one batch. After further changes it lacks values, and the sink counts it."""


class Keep(Protocol):
    """Writes tombstones that hold values."""

    def __call__(self, rows: DataFrame, *, at_once: bool) -> DataFrame | None:
        """Write tombstones, and return them as they are read afterwards; None if there are none.

        Args:
            rows: The tombstones.
            at_once: Whether they are few.
        """


@contextmanager
def followed_moves(
    moves: Moves,
    config: SinkConfig,
    partial: PartialUpdates,
    *,
    read_target: Callable[[DataFrame, Sequence[tuple[Any, Any, int]] | None], DataFrame],
    moved: Callable[[], DataFrame | None],
    incomplete: Callable[[], DataFrame | None],
    deletes: Callable[[], DataFrame | None],
    keep: Keep,
    once: Once,
) -> Iterator[DataFrame]:
    """Give the batch with the changes that hand values on to new keys.

    Args:
        moves: The moves whose values have to be handed on.
        config: The sink, its sequence in columns.
        partial: What changes may set.
        read_target: Gives the target's rows whose keys are among the structs `key` of a frame. Bounds, if given, limit
            the keys.
        moved: Gives the tombstones of earlier batches that hold values; None if there are none.
        incomplete: Gives the departures of earlier batches some of whose values no tombstone holds; None if there are
            none.
        deletes: Gives all tombstones of earlier batches; None if there are none.
        keep: Writes the batch's own tombstones.
        once: Keeps the expressions for other batches.
    """
    carried = CarriedValues(moves, config, partial, once)
    remembered = moved() if moves.num_lacking else None
    handed = [] if remembered is None else [carried.awaited(remembered)]
    with ExitStack() as stack:
        there: list[DataFrame] = []
        own: list[DataFrame] = []
        if moves.num_departures:
            target = read_target(moves.ends, moves.bounds)
            target = stack.enter_context(persisted(target, at_once=moves.is_small))
            there.append(target)
            known = carried.known(target, deletes())
            own = _kept(_left_behind(carried, moves, known, handed, stack), moves, keep)
            handed += own
        for passed in _passed_on(carried, moves, handed, incomplete(), own, keep):
            handed.append(passed)
            there.append(read_target(passed.select(F.col("moved.to").alias("key")), None))
        yield moves.changes.unionByName(carried.given(handed, there)) if handed else moves.changes


def _kept(rows: DataFrame, moves: Moves, keep: Keep) -> list[DataFrame]:
    """Write tombstones, and return them in a list; an empty one if there are none."""
    kept = keep(rows, at_once=moves.is_small)
    return [] if kept is None else [kept]


def _left_behind(
    carried: CarriedValues, moves: Moves, known: DataFrame, handed: Sequence[DataFrame], stack: ExitStack
) -> DataFrame:
    """Return the tombstones of the batch's departures; a row that leaves several keys does so one after the other."""
    hops = _hops(moves, stack)
    if hops > 1:
        known = stack.enter_context(persisted(known, at_once=moves.is_small))
    states: list[DataFrame] = []
    for _ in range(hops - 1):
        # Each state is kept at once, or the plan would grow with each key of a row.
        state = carried.states(known, [*handed, *states])
        states = [stack.enter_context(persisted(state, at_once=moves.is_small))]
    return carried.states(known, [*handed, *states])


def _hops(moves: Moves, stack: ExitStack) -> int:
    """Return the largest number of keys that a row leaves in the batch."""
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
    carried: CarriedValues,
    moves: Moves,
    handed: Sequence[DataFrame],
    incomplete: DataFrame | None,
    own: Sequence[DataFrame],
    keep: Keep,
) -> Iterator[DataFrame]:
    """Give the tombstones that pass values on after rows which left their new key before the values came.

    Args:
        carried: What rows of the batch carry to their new keys.
        moves: The moves of the batch.
        handed: The tombstones that hand values on in this batch.
        incomplete: The departures of earlier batches that lack values.
        own: The tombstones of the batch's own departures.
        keep: Writes what is passed on.
    """
    passed, followed = list(handed), [] if incomplete is None else [incomplete]
    for _ in range(_MAX_HOPS):
        if not passed or not followed:
            return
        given = reduce(DataFrame.unionByName, passed)
        rows = reduce(DataFrame.unionByName, [carried.passed_on(given, left) for left in followed])
        passed = _kept(rows, moves, keep)
        yield from passed
        # Values may also have come to keys that rows leave in this batch.
        followed = [*followed[:1], *own]
