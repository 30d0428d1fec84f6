"""Compares sequences on the driver as Spark compares them, for the key index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.merge.job import MergeJob
from stream_merge.merge.key_and_sequence import sequence_struct
from stream_merge.sql import quote


def is_comparable(job: MergeJob) -> bool:
    """Whether the driver can compare the sequences of batch and target."""
    given, kept = (
        {field.name.lower(): field.dataType for field in fields}
        for fields in (job.source.rows.schema, job.resolved.types)
    )
    names = [name.lower() for name in job.order_by]
    # Spark compares values of two types in a third one.
    is_same = all(name in kept and given[name].simpleString() == kept[name].simpleString() for name in names)
    return is_same and all(is_comparable_type(kept[name]) for name in names)


def sequence_of(resolved: ResolvedMerge, order_by: Sequence[str], frame: DataFrame) -> Column:
    """Return the sequence of a row of batch or target, in the form that the driver compares."""
    types = {field.name.lower(): field.dataType for field in resolved.types}
    return sequence_struct(sent(frame[quote(name)], types[name.lower()]) for name in order_by)


def are_older(sequences: Any, newest: Any) -> NDArray[np.bool_]:
    """Return for each of some sequences whether it comes before another one; NULL comes before all values.

    Args:
        sequences: An Arrow column, as `sequence_of` makes it.
        newest: The other sequence, as Python has it; None comes before all.
    """
    are_before, are_same = np.zeros(len(sequences), np.bool_), np.ones(len(sequences), np.bool_)
    for part, value in zip(_parts(sequences), _values(newest, sequences.type), strict=True):
        if value is None:
            # Whether there is a value was a part of its own, so those that still are the same have none either.
            continue
        limit = pa.scalar(value, part.type)
        are_before |= are_same & _as_bools(pc.less(part, limit))
        are_same &= _as_bools(pc.equal(part, limit))
    return are_before


def newest_of(sequences: Any) -> Any:
    """Return the newest of some sequences in an Arrow column, as Python has it; None if there are none."""
    if not len(sequences):
        return None
    are_newest = np.ones(len(sequences), np.bool_)
    for part in _parts(sequences):
        highest = pc.max(part.filter(pa.array(are_newest)))
        if highest.is_valid:
            are_newest &= _as_bools(pc.equal(part, highest))
    return sequences[int(are_newest.argmax())].as_py()


def _parts(sequences: Any) -> Iterator[Any]:
    """Yield the columns that order sequences, the most significant first: whether there is a value, then the value."""
    yield pc.is_valid(sequences)
    if not pa.types.is_struct(sequences.type):
        yield sequences
        return
    for field in sequences.flatten():
        yield from _parts(field)


def _values(sequence: Any, kind: Any) -> Iterator[Any]:
    """Yield what `_parts` yields, of one sequence."""
    yield sequence is not None
    if not pa.types.is_struct(kind):
        yield sequence
        return
    values = [None] * kind.num_fields if sequence is None else sequence.values()
    for value, field in zip(values, kind, strict=True):
        yield from _values(value, field.type)


def _as_bools(answers: Any) -> NDArray[np.bool_]:
    return np.array(answers.fill_null(False), dtype=np.bool_)


def is_comparable_type(kind: T.DataType) -> bool:
    """Whether Python orders values of a type as Spark does."""
    match kind:
        case T.StructType():
            return all(is_comparable_type(field.dataType) for field in kind.fields)
        case T.StringType():
            return kind.simpleString() == "string"  # and not one with a collation
        case T.IntegralType() | T.DecimalType() | T.BooleanType() | T.TimestampType() | T.DateType():
            return True
        case _:
            # FLOAT and DOUBLE too: Python orders NaN differently.
            return False


def sent(value: Column, kind: T.DataType) -> Column:
    """Return a value in a type whose values Python can all represent."""
    match kind:
        case T.StructType():
            parts = [sent(value.getField(f.name), f.dataType).alias(f"p{i}") for i, f in enumerate(kind.fields)]
            return F.when(value.isNotNull(), F.struct(*parts))
        case T.TimestampType():
            return F.unix_micros(value)
        case T.DateType():
            return F.unix_date(value)
        case _:
            return value
