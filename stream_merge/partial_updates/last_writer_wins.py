"""The algebra of last-writer-wins registers.

A register is a value and the sequence of the change that wrote it; the sequence is NULL as long as no change has. Each column
of a row that changes may set by itself is one. All that happens to it comes down to two operations:

- Joining: of several writes the newest counts. `write_order` orders any number of them, `Register.joined` takes two.
- Resetting: a delete or a TRUNCATE takes away the writes that are older than it: `is_reset`, `Register.without`.

A row that gets another key hands its registers on: each write goes to the new key with the sequence of the departure, and what
the key had before is reset, since it belonged to another row.

The fold within a batch sorts its writes by `write_order`, the values of a row that leaves its key are aggregated by it, and the
MERGE's UPDATE joins two registers, the target's and the fold's.

Ties are decided here and nowhere else. Writes of one sequence are in the order of their origins, then of their contents; a
delete takes a write of its own sequence if it comes later (see `is_reset`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyspark.sql import Column
from pyspark.sql import functions as F


class Origin(IntEnum):
    """Where a write comes from. Of two writes with one sequence that of the greater origin is the newer one."""

    HANDED_ON = 0
    """The row had the value under another key. It gives way to what the key has itself."""

    IN_TARGET = 1
    IN_BATCH = 2
    """A change of the batch comes later than what the table has."""


def write_order(sequence: Column, origin: Column, contents: Column) -> Column:
    """Return the place of a write among all of its register; the greatest counts.

    Args:
        sequence: The sequence of the write.
        origin: Its `Origin`.
        contents: A hash of its change. Changes of one sequence in one batch have no other order that a replay would find again.
    """
    return F.struct(sequence.alias("sequence"), origin.alias("origin"), contents.alias("contents"))


def is_reset(sequence: Column, delete: Column, *, comes_later: bool) -> Column:
    """Return whether a delete takes away a write; false where either is NULL.

    Args:
        sequence: The sequence of the write.
        delete: The sequence of the delete.
        comes_later: Whether the delete comes in a later batch than the write. Of one sequence the later one counts, so it takes
            the write. A write that comes with the delete or after it stays, and so does what has the sequence of a TRUNCATE.
    """
    return F.coalesce(~(delete < sequence) if comes_later else sequence < delete, F.lit(False))


@dataclass(frozen=True, slots=True)
class Register:
    """A register as two columns.

    Attributes:
        value: The value.
        sequence: The sequence of the change that wrote it, NULL if none has.
    """

    value: Column
    sequence: Column

    @staticmethod
    def of(write: Column) -> Register:
        """Return the register that holds a `write_of`."""
        return Register(write["value"], write["sequence"])

    def without(self, is_gone: Column) -> Register:
        """Return the register, empty where it was reset."""
        return Register(F.when(~is_gone, self.value), F.when(~is_gone, self.sequence))

    def joined(self, theirs: Register, *, is_gone: Column, gives_way: Column) -> Register:
        """Return the target's register after the newest write of a batch; `self.without(is_gone)` where the batch has none.

        It is the join in `write_order`, written as comparisons of the sequences alone: rows of the target have no contents.

        Args:
            theirs: The newest write of the batch.
            is_gone: Whether a delete of the batch takes away what the target has.
            gives_way: Whether the origin of the write is `HANDED_ON`, else it is `IN_BATCH`.
        """
        is_newer = F.when(gives_way, self.sequence < theirs.sequence).otherwise(~(theirs.sequence < self.sequence))
        is_taken = theirs.sequence.isNotNull() & (self.sequence.isNull() | is_gone | is_newer)
        return Register(
            F.when(is_taken, theirs.value).when(~is_gone, self.value),
            F.when(is_taken, theirs.sequence).when(~is_gone, self.sequence),
        )


def write_of(value: Column, sequence: Column, *more: Column) -> Column:
    """Return a write as one struct of value and sequence, and of what else is to be known of it."""
    return F.struct(value.alias("value"), sequence.alias("sequence"), *more)
