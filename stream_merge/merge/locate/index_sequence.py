"""Compares sequences on the driver as Spark compares them, for the key index."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the sequence of a row of batch or target, in the form that `place_of` takes on the driver."""
    types = {field.name.lower(): field.dataType for field in resolved.types}
    return sequence_struct(sent(frame[quote(name)], types[name.lower()]) for name in order_by)


def are_older(sequences: Any, newest: Any) -> NDArray[np.bool_]:
    """Return for each of some sequences whether it comes before another one.

    Args:
        sequences: An Arrow column, as `sequence_of` makes it.
        newest: The other sequence; None comes before all.
    """
    if newest is None:
        return np.zeros(len(sequences), dtype=np.bool_)
    number = _only_number(sequences)
    if number is None:
        place = place_of(newest)
        return np.array([place_of(sequence) < place for sequence in sequences.to_pylist()], dtype=np.bool_)
    (limit,) = newest.values()
    if limit is None:
        return np.zeros(len(sequences), dtype=np.bool_)
    return np.array(pc.less(number, pa.scalar(limit, number.type)).fill_null(True), dtype=np.bool_)


def newest_of(sequences: Any) -> Any:
    """Return the newest of some sequences in an Arrow column, as Python has it; None if there are none."""
    if not len(sequences):
        return None
    number = _only_number(sequences)
    if number is None:
        return max(sequences.to_pylist(), key=place_of)
    return {sequences.type.field(0).name: pc.max(number).as_py()}


def _only_number(sequences: Any) -> Any:
    """Return the values of sequences that consist of one whole number, or None: they need not become Python objects."""
    kind = sequences.type
    if kind.num_fields != 1 or not pa.types.is_integer(kind.field(0).type) or sequences.null_count:
        return None
    return pc.struct_field(sequences, [0])


def place_of(sequence: Any) -> tuple[Any, ...]:
    """Return a sort key for a sequence that came from Spark; NULL sorts first."""
    if sequence is None:
        return (0,)
    if isinstance(sequence, dict):
        return (1, *[place_of(part) for part in sequence.values()])
    return (1, sequence)


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
