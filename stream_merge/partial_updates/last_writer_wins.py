"""The algebra of last-writer-wins registers.

A register is a value with the sequence of the change that wrote it. The sequence is NULL until a change writes the
register. Each column that changes may set by itself is a register. Two operations explain everything that happens to
it:

- A join keeps the newest of several writes. `write_order` sorts any number of them, `Register.joined` compares two.
- A reset empties the register. A delete or a TRUNCATE resets the writes that are older than it: `is_reset`,
  `Register.without`.

When a row gets another key, it hands on its registers: the new key receives each write with the sequence of the
departure, and the departure resets what the new key had before, since that belonged to another row. So does the
arrival, except what was handed on: its departure may come later, and so may the TRUNCATE that freed the key. Only the
table's row keeps what it has until either of them comes.

Three places use the algebra. The fold of a batch sorts the writes of a key by `write_order`. For a row that leaves its
key, an aggregate takes the greatest. The MERGE's UPDATE joins the target's register with that of the fold.

This module alone decides ties. If two writes have the same sequence, their origins decide, then their contents. If a
write and a delete have the same sequence, the delete counts only if it comes in a later batch than the write.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyspark.sql import Column
from pyspark.sql import functions as F


class Origin(IntEnum):
    """Where a write comes from. If two writes have the same sequence, the one with the greater origin is newer."""

    HANDED_ON = 0
    """The row had the value under another key. It gives way to a value that a change gave the row under this key."""

    IN_TARGET = 1
    """An earlier batch wrote the value."""

    IN_BATCH = 2
    """A change of this batch writes the value."""


def write_order(sequence: Column, origin: Column, contents: Column) -> Column:
    """Return the position of a write among all writes of its register. The greatest one counts.

    Args:
        sequence: The sequence of the write.
        origin: The write's `Origin`.
        contents: A hash of the change. It decides between changes that have the same sequence and come in the same
            batch, since a replay finds no other order again.
    """
    return F.struct(sequence.alias("sequence"), origin.alias("origin"), contents.alias("contents"))


def is_reset(sequence: Column, delete: Column, *, comes_later: bool) -> Column:
    """Return whether a delete resets a write. The result is false if either sequence is NULL.

    Args:
        sequence: The sequence of the write.
        delete: The sequence of the delete.
        comes_later: Whether the delete comes in a later batch than the write. If both have the same sequence, the later
            one counts, so the delete resets the write. A write that comes with the delete or after it stays. A TRUNCATE
            comes later only for the keys that its batch changes. It leaves other rows of its own sequence, and their
            values.
    """
    return F.coalesce(~(delete < sequence) if comes_later else sequence < delete, F.lit(False))


@dataclass(frozen=True, slots=True)
class Register:
    """A register as two columns.

    Attributes:
        value: The value.
        sequence: The sequence of the change that wrote the value, NULL if no change has.
    """

    value: Column
    sequence: Column

    @staticmethod
    def of(write: Column) -> Register:
        """Return the register that a `write_of` gives."""
        return Register(write["value"], write["sequence"])

    def without(self, is_gone: Column, *, empty: Column | None = None) -> Register:
        """Return the register; where the condition holds, empty, with the value `empty`, by default NULL."""
        return Register(F.when(~is_gone, self.value).otherwise(empty), F.when(~is_gone, self.sequence))

    def joined(self, theirs: Register, *, is_gone: Column, gives_way: Column, empty: Column | None = None) -> Register:
        """Return the target's register after a batch.

        The result is the same as resetting this register first, and taking the greater in `write_order` then. It is
        written as comparisons of sequences, which cost less than building a struct for each column of each row.

        Args:
            theirs: The newest write of the batch. Its sequence is NULL if the batch has none.
            is_gone: Whether a delete of the batch resets this register.
            gives_way: Whether the origin of the write is `HANDED_ON`. Otherwise it is `IN_BATCH`.
            empty: The value of an empty register; by default NULL.
        """
        is_newer = F.when(gives_way, self.sequence < theirs.sequence).otherwise(~(theirs.sequence < self.sequence))
        is_taken = theirs.sequence.isNotNull() & (self.sequence.isNull() | is_gone | is_newer)
        return Register(
            F.when(is_taken, theirs.value).when(~is_gone, self.value).otherwise(empty),
            F.when(is_taken, theirs.sequence).when(~is_gone, self.sequence),
        )


def write_of(value: Column, sequence: Column, *more: Column) -> Column:
    """Return a write as one struct: its value, its sequence and further fields."""
    return F.struct(value.alias("value"), sequence.alias("sequence"), *more)
