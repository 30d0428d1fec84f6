"""Describes the batch's rows as the key index is asked for them: key, number, clause and sequence.

They come to the driver as an Arrow table. If the index will probably be asked, the job that measures the batch brings
them along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.clauses import When
from stream_merge.column_names import SOURCE_ID
from stream_merge.merge.independence import independence_of
from stream_merge.merge.job import first_applying
from stream_merge.merge.locate.index_sequence import sequence_of
from stream_merge.merge.locate.scan import HASHED_TYPES
from stream_merge.merge.source import deletes
from stream_merge.sql import all_of, quote

IDENTITY_BYTES = 16

MAX_COLLECTED = 50_000
"""The first partition of a batch brings so many probes along, the second half as many, the third a third, and so on:
however large a batch is, it brings some ten times as many at most. Those of a larger one take a job of their own."""

ROW_BITS = 33
"""Spark numbers the rows of a partition by the lower bits of `monotonically_increasing_id`."""


def has_probes(resolved: ResolvedMerge) -> bool:
    """Whether the merge compares target columns by equality only, and equal values of their types are identical."""
    pairs = resolved.key_pairs
    return (
        bool(pairs)
        and len(pairs) == resolved.num_conjuncts
        and all(pair.type_name in HASHED_TYPES and not pair.is_null_safe for pair in pairs)
    )


def probes_of(resolved: ResolvedMerge, order_by: Sequence[str], source: DataFrame) -> DataFrame:
    """Return the probes of a batch: `identity`, `source`, `action`, `is_written` and, if order counts, `sequence`.

    Args:
        resolved: The statement.
        order_by: The columns that hold the sequence; empty if order does not count.
        source: The batch, bound to the statement.
    """
    names = [pair.source for pair in resolved.key_pairs]
    return source.where(has_key(source, names)).select(*_columns(resolved, order_by, source))


def collected_probes(resolved: ResolvedMerge, order_by: Sequence[str], source: DataFrame) -> list[Column]:
    """Return aggregates of a batch: `probes`, a list of its probes, and `num_probes`, how many there are.

    The list is shorter than that if there are too many.
    """
    is_probe = has_key(source, [pair.source for pair in resolved.key_pairs])
    probes = collected(is_probe, _columns(resolved, order_by, source)).alias("probes")
    return [probes, F.count(F.when(is_probe, 1)).alias("num_probes")]


def collected(is_wanted: Column, columns: Sequence[Column]) -> Column:
    """Return an aggregate of a batch: a list of structs, one for each wanted row, for `collected_table`.

    The list is shorter if there are too many.
    """
    return F.collect_list(F.when(is_wanted & is_near(), F.struct(*columns)))


def is_near() -> Column:
    """Return whether a row is among the first of its partition, so that a list of such rows is bounded."""
    row = F.col(SOURCE_ID).bitwiseAND(F.lit(2**ROW_BITS - 1))
    return row * (F.shiftright(SOURCE_ID, ROW_BITS) + 1) < MAX_COLLECTED


def collected_table(found: Any, number: int) -> Any:
    """Return what was collected as a table; None if it is not all of a number of rows."""
    structs = found.values
    if len(structs) != number:
        return None
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])


def _columns(resolved: ResolvedMerge, order_by: Sequence[str], source: DataFrame) -> list[Column]:
    names = [pair.source for pair in resolved.key_pairs]
    types = [pair.type_name for pair in resolved.key_pairs]
    action = F.coalesce(_action(resolved, order_by), F.lit(-1)).cast("int")
    columns = [identity(source, names, types), F.col(SOURCE_ID).alias("source"), action.alias("action")]
    independence = independence_of(resolved, keeps_order=bool(order_by))
    if independence is not None:
        columns.append(independence[1].alias("is_written"))
    return [*columns, sequence_of(resolved, order_by, source).alias("sequence")] if order_by else columns


def _action(resolved: ResolvedMerge, order_by: Sequence[str]) -> Column:
    """Return the number of the clause that applies to a match; with a sequence, if the change is not older."""
    matched = [(n, clause) for n, clause in enumerate(resolved.clauses) if clause.clause.when is When.MATCHED]
    if not order_by:
        return first_applying(matched)
    update = next(number for number, clause in matched if clause.clause.is_update)
    delete = next((number for number, clause in matched if clause.clause.is_delete), None)
    return F.when(deletes(resolved), F.lit(delete)).otherwise(F.lit(update))


def identity(frame: DataFrame, names: Sequence[str], type_names: Sequence[str]) -> Column:
    """Return the identity of a key: the number itself for a single numeric key, else 128 bits of a SHA-256.

    Anybody may choose the keys, and collisions of a non-cryptographic hash are easy to find.
    """
    values = [
        _number(frame[quote(name)], type_name) if type_name != "string" else frame[quote(name)]
        for name, type_name in zip(names, type_names, strict=True)
    ]
    if len(values) == 1 and type_names[0] != "string":
        return values[0].alias("identity")
    # Lengths and separators keep the texts of different keys different. Bytes that are not UTF-8 have no length in
    # characters.
    parts = [
        F.concat(F.octet_length(value).cast("string"), F.lit(":"), value)
        if type_name == "string"
        else F.concat(value.cast("string"), F.lit(";"))
        for value, type_name in zip(values, type_names, strict=True)
    ]
    text = values[0] if len(values) == 1 else F.concat(*parts)
    return F.unhex(F.left(F.sha2(text, 256), F.lit(2 * IDENTITY_BYTES))).alias("identity")


def _number(value: Column, type_name: str) -> Column:
    match type_name:
        case "date":
            return F.unix_date(value).cast("bigint")
        case "timestamp":
            return F.unix_micros(value)
        case _:
            return value.cast("bigint")


def halves(identities: Any) -> tuple[Any, Any]:
    """Return an Arrow column of identities as two arrays of unsigned numbers; of numbers there is no second one."""
    if pa.types.is_int64(identities.type):
        return identities.to_numpy().view(np.uint64), None
    pieces = [_bytes_of(chunk) for chunk in identities.chunks]
    pairs = np.frombuffer(b"".join(pieces), dtype=np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _bytes_of(chunk: Any) -> bytes:
    """Return the concatenated values of an Arrow array of binary values."""
    if not len(chunk):
        return b""
    values = chunk.cast(pa.large_binary())
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    return bytes(memoryview(content)[ends[0] : ends[-1]])


def has_key(frame: DataFrame, names: Sequence[str]) -> Column:
    """Return whether no key column of a row is NULL."""
    return all_of([frame[quote(name)].isNotNull() for name in names])
