"""The algebra of registers: its laws, and that any cut into batches gives what playing the log gives.

Each test computes many random registers in one job.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Column
from pyspark.sql import functions as F

from stream_merge.partial_updates.last_writer_wins import Origin, Register, is_reset, write_of, write_order
from tests.random.model import place
from tests.spark.drawing import drawn

pytestmark = [pytest.mark.core, pytest.mark.always]

SEEDS = st.integers(0, 2**32)
SEQUENCES = (None, 1, 2, 3, 4)
SEQUENCE = "STRUCT<s0: INT>"


def same(one: Register, other: Register) -> Column:
    """Return whether two registers are the same."""
    return one.value.eqNullSafe(other.value) & one.sequence.eqNullSafe(other.sequence)


@drawn(2)
@given(seed=SEEDS)
def test_the_laws_hold(spark: Any, seed: int) -> None:
    draw, yes, no = random.Random(seed), F.lit(True), F.lit(False)

    def register(value: str, sequences: tuple[Any, ...] = SEQUENCES) -> tuple[Any, ...] | None:
        return None if draw.random() < 0.2 else (value, (draw.choice(sequences),))

    kind = f"STRUCT<value: STRING, sequence: {SEQUENCE}>"
    rows = [
        (
            *(register(name) for name in "abc"),
            *(register(name, own) for name, own in zip("xyz", ((1, 4), (2, None), (3, 5)), strict=True)),
            (draw.choice(SEQUENCES),) if draw.random() < 0.8 else None,
        )
        for _ in range(500)
    ]
    columns = ", ".join(f"{name} {kind}" for name in "abcxyz")
    frame = spark.createDataFrame(rows, f"{columns}, reset {SEQUENCE}").coalesce(1)
    a, b, c, x, y, z = (Register.of(F.col(name)) for name in "abcxyz")

    def join(one: Register, other: Register) -> Register:
        return one.joined(other, is_gone=no, gives_way=no)

    def newest(one: Register, other: Register, origin: Origin) -> Register:
        """Return the newer of two writes in their order."""
        both = [(one, Origin.IN_TARGET), (other, origin)]
        placed = [
            F.when(
                register.sequence.isNotNull(),
                F.struct(
                    write_order(register.sequence, F.lit(its.value), F.lit(0)).alias("order"),
                    write_of(register.value, register.sequence).alias("write"),
                ),
            )
            for register, its in both
        ]
        return Register.of(F.greatest(*placed)["write"])

    def since(one: Register) -> Register:
        return one.without(is_reset(one.sequence, F.col("reset"), comes_later=False))

    is_gone = is_reset(a.sequence, F.col("reset"), comes_later=True)
    laws = {
        "idempotent": same(join(a, a), a),
        "associative, ties too": same(join(join(a, b), c), join(a, join(b, c))),
        "commutative without ties": same(join(join(x, y), z), join(z, join(y, x))),
        "nothing changes nothing": same(join(a, a.without(yes)), a) & same(join(a.without(yes), a), a),
        "the join is the newest in the order of writes": same(join(a, b), newest(a, b, Origin.IN_BATCH)),
        "also of what is handed on": same(a.joined(b, is_gone=no, gives_way=yes), newest(a, b, Origin.HANDED_ON)),
        "a reset before the join is one in it": same(
            a.joined(b, is_gone=is_gone, gives_way=no), join(a.without(is_gone), b)
        ),
        "a reset of the join is one of its parts": same(since(join(a, b)), join(since(a), since(b))),
        "a reset is idempotent": same(since(since(a)), since(a)),
        "a later delete takes at least as much": ~is_reset(a.sequence, F.col("reset"), comes_later=False) | is_gone,
    }
    broken = frame.agg(*[F.count_if(~law).alias(name) for name, law in laws.items()]).first()
    assert broken is not None
    assert {name: number for name, number in broken.asDict().items() if number} == {}


HISTORIES, BATCHES = 300, 3

Event = tuple[int, int, str, int | None, int]
"""History, batch, kind, sequence, and contents, which are the value of a write."""


def random_history(draw: random.Random, number: int) -> list[Event]:
    """Draw writes and deletes of one register in some batches, with ties."""
    return [
        (number, draw.randrange(BATCHES), draw.choice("wwd"), draw.choice(SEQUENCES), contents)
        for contents in draw.sample(range(1000), draw.randint(0, 8))
    ]


def played(events: list[Event]) -> tuple[int | None, int | None]:
    """Return value and sequence after the events in their order.

    Of one sequence that is the order of the batches, and in one batch deletes come before writes.
    """
    value = at = None
    for _, _, kind, sequence, contents in sorted(events, key=lambda e: (place(e[3]), e[1], e[2] == "w", e[4])):
        value, at = (contents, sequence) if kind == "w" else (None, None)
    return value, at


@drawn(2)
@given(seed=SEEDS)
def test_any_cut_into_batches_gives_the_log(spark: Any, seed: int) -> None:
    """A batch is folded, then joined with the target; deletes are remembered for changes that come late."""
    draw = random.Random(seed)
    histories = defaultdict(list)
    for number in range(HISTORIES):
        histories[number] += random_history(draw, number)
    events = list(itertools.chain.from_iterable(histories.values()))
    frame = spark.createDataFrame(events, "history INT, batch INT, kind STRING, s0 INT, contents INT").coalesce(1)
    sequence, is_write = F.struct("s0"), F.col("kind") == "w"
    order = write_order(sequence, F.lit(Origin.IN_BATCH.value), F.col("contents"))
    folds = frame.groupBy("history").agg(
        *itertools.chain.from_iterable(
            (
                F.max_by(
                    write_of(F.col("contents"), sequence), F.when(is_write & (F.col("batch") == number), order)
                ).alias(f"write_{number}"),
                F.max(F.when(~is_write & (F.col("batch") == number), sequence)).alias(f"delete_{number}"),
            )
            for number in range(BATCHES)
        )
    )
    nothing = F.lit(None).cast(SEQUENCE)
    folds = folds.select("*", F.lit(None).cast("int").alias("value"), nothing.alias("at"), nothing.alias("deleted"))
    state, remembered = Register(F.col("value"), F.col("at")), F.col("deleted")
    for number in range(BATCHES):
        fold, delete = Register.of(F.col(f"write_{number}")), F.col(f"delete_{number}")
        older = [is_reset(fold.sequence, before, comes_later=False) for before in (delete, remembered)]
        joined = state.joined(
            fold.without(reduce(Column.__or__, older)),
            is_gone=is_reset(state.sequence, delete, comes_later=True),
            gives_way=F.lit(False),
        )
        newest = F.greatest(remembered, delete)
        folds = folds.withColumns({"value": joined.value, "at": joined.sequence, "deleted": newest})
    found = {row["history"]: (row["value"], row["s0"]) for row in folds.select("history", "value", "at.s0").collect()}
    assert found == {number: played(own) for number, own in histories.items() if own}
