"""Stores a row's registers in the target, and joins them with those of a batch.

Columns of a row may be older than the row. `COLUMN_SEQUENCES` in the target says which ones, and how old they are, so
that a late change still sets the columns that no newer change has set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StringType, StructType

from stream_merge.bridge.statement import ResolvedClause, ResolvedMerge
from stream_merge.clauses import When
from stream_merge.column_names import (
    COLUMN_SEQUENCES,
    IS_CARRIED_OVER,
    IS_DELETE,
    IS_UNRESOLVED,
    NEWEST_DELETE,
    UNSET,
)
from stream_merge.config import SinkConfig
from stream_merge.errors import UnsupportedTableError
from stream_merge.merge.key_and_sequence import columns_of, sequence_struct
from stream_merge.partial_updates.last_writer_wins import Register, is_reset
from stream_merge.sql import sql_type
from stream_merge.table.features import GENERATED

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from stream_merge.bridge.transaction import Transaction


def has_column_sequences(transaction: Transaction) -> bool:
    """Return whether the target has the column for the sequences of single columns."""
    return any(field["name"] == COLUMN_SEQUENCES for field in transaction.schema["fields"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialUpdates:
    """How the changes of a sink set single columns.

    Attributes:
        columns: The batch's columns that a change may set or leave alone: all written columns except keys and sequence.
        unwritten: The target's columns that the sink never writes.
        unsent: Those of `columns` that a change may declare as not sent. The sink counts rows that lack their values.
        sequence: The type of the sequence in the target; None for a sink without a sequence.
        is_always: Whether every change leaves columns alone, whatever it holds.
    """

    columns: tuple[str, ...]
    unwritten: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    sequence: StructType | None = None
    is_always: bool = False

    def narrowed(self, names: Collection[str]) -> PartialUpdates:
        """Limit the columns to those, in lower case, that may differ in age from their row in this batch."""
        columns = tuple(name for name in self.columns if name.lower() in names)
        unsent = tuple(name for name in self.unsent if name.lower() in names)
        return replace(self, columns=columns, unsent=unsent)

    @property
    def sequences_type(self) -> MapType:
        """The type of `COLUMN_SEQUENCES`."""
        assert self.sequence is not None
        return MapType(StringType(), self.sequence)

    def own_columns(self) -> dict[str, str]:
        """Return name and type of the columns that the sink adds to a batch so as to merge single columns."""
        if self.sequence is None:
            return {UNSET: "array<string>", IS_UNRESOLVED: "boolean"}
        return {
            IS_DELETE: "boolean",
            IS_CARRIED_OVER: "boolean",
            NEWEST_DELETE: sql_type(self.sequence),
            IS_UNRESOLVED: "boolean",
        }


def column_sequences(sequences: Mapping[str, Column], of_row: Column, partial: PartialUpdates) -> Column:
    """Return the map from columns to their sequences, without those that have the row's; NULL if it is empty."""
    if not sequences:
        return F.lit(None).cast(partial.sequences_type)
    entries = [
        F.when(~sequence.eqNullSafe(of_row), F.struct(F.lit(name.lower()).alias("key"), sequence.alias("value")))
        for name, sequence in sequences.items()
    ]
    others = F.array_compact(F.array(*entries))
    return F.when(F.size(others) > 0, F.map_from_entries(others))


def partial_clauses(resolved: ResolvedMerge, config: SinkConfig, partial: PartialUpdates) -> tuple[ResolvedClause, ...]:
    """Return the default clauses with values that set the columns of a matched row one by one."""
    if partial.sequence is None:
        return tuple(_keeping_unset(c, resolved, partial) for c in resolved.clauses)
    return tuple(_Registers(resolved, config, partial).clause(c) for c in resolved.clauses)


def _keeping_unset(clause: ResolvedClause, resolved: ResolvedMerge, partial: PartialUpdates) -> ResolvedClause:
    if not clause.clause.is_update:
        return clause
    settable = {name.lower() for name in partial.columns}
    values = tuple(
        F.when(F.array_contains(UNSET, name.lower()), old).otherwise(new) if name.lower() in settable else new
        for name, new, old in zip(resolved.columns, clause.values, resolved.old_values, strict=True)
    )
    return replace(clause, values=values, are_values_source_only=False)


def reset_clause(
    clause: ResolvedClause, resolved: ResolvedMerge, config: SinkConfig, partial: PartialUpdates, truncated: Column
) -> ResolvedClause:
    """Return an UPDATE that resets the registers older than a TRUNCATE in the rows that are newer."""
    return _Registers(resolved, config, partial).reset(clause, truncated)


class _Registers:
    """The columns of a matched row as registers, each with the sequence of its value."""

    def __init__(self, resolved: ResolvedMerge, config: SinkConfig, partial: PartialUpdates) -> None:
        self._resolved = resolved
        self._partial = partial
        self._places = {name.lower(): place for place, name in enumerate(resolved.columns)}
        self._of_sequence = [self._places[name.lower()] for name in config.sequence_columns]
        self._of_sequences = self._places[COLUMN_SEQUENCES]
        fixed = {*self._of_sequence, self._of_sequences, *(self._places[key.lower()] for key in config.keys)}
        settable = {name.lower() for name in partial.columns}
        self._registers = {
            name.lower(): place
            for place, name in enumerate(resolved.columns)
            if place not in fixed and (name.lower() in settable or name in partial.unwritten)
        }
        # What a new row has in the columns that the sink never writes: NULL or their default.
        inserts = [clause for clause in resolved.clauses if clause.clause.is_insert]
        self._of_new_row = {
            name.lower(): inserts[0].values[self._places[name.lower()]] for name in partial.unwritten if inserts
        }

    def clause(self, clause: ResolvedClause) -> ResolvedClause:
        """Return the clause with condition and values for single columns."""
        if clause.clause.when is When.NOT_MATCHED_BY_SOURCE:
            return clause
        condition = F.lit(True) if clause.condition is None else clause.condition
        condition = condition & ~F.col(IS_CARRIED_OVER)
        if not clause.clause.is_update:
            return replace(clause, condition=condition)
        # A change that is older than the row may still be newer than the row's older columns.
        has_older = self._resolved.old_values[self._of_sequences].isNotNull()
        return replace(
            clause,
            condition=condition | has_older,
            values=self._merged(clause.values),
            is_condition_source_only=False,
            are_values_source_only=False,
        )

    def reset(self, clause: ResolvedClause, truncated: Column) -> ResolvedClause:
        """Return the UPDATE that resets the registers older than a TRUNCATE."""
        old = self._resolved.old_values
        of_row = self._sequence(old)
        values = list(old)
        sequences: dict[str, Column] = {}
        is_any_older = F.lit(False)
        for name, place in self._registers.items():
            ours = self._register(old, name, of_row)
            is_older = is_reset(ours.sequence, truncated, comes_later=False)
            is_any_older = is_any_older | is_older
            left = ours.without(is_older, empty=self._of_new_row.get(name))
            values[place], sequences[name] = left.value, left.sequence
        values[self._of_sequences] = column_sequences(sequences, of_row, self._partial)
        return replace(clause, condition=is_any_older, values=tuple(values), are_values_source_only=False)

    def _register(self, values: Sequence[Column], name: str, of_row: Column) -> Register:
        """Return one register of a row, given the row's values and sequence."""
        return Register(values[self._registers[name]], register_sequence(values[self._of_sequences], name, of_row))

    def _sequence(self, values: Sequence[Column]) -> Column:
        return sequence_struct(values[place] for place in self._of_sequence).cast(self._type)

    @property
    def _type(self) -> DataType:
        assert self._partial.sequence is not None
        return self._partial.sequence

    def _merged(self, new: Sequence[Column]) -> tuple[Column, ...]:
        old = self._resolved.old_values
        of_change, of_row = self._sequence(new), self._sequence(old)
        is_upsert = ~F.col(IS_DELETE) & ~F.col(IS_CARRIED_OVER)
        is_newer = is_upsert & ~(of_change < of_row)
        newest = F.when(is_newer, of_change).otherwise(of_row)
        reset = F.col(NEWEST_DELETE).cast(self._type)

        # Columns that are no registers are as new as their row.
        merged = [F.when(is_newer, value).otherwise(known) for value, known in zip(new, old, strict=True)]
        sequences: dict[str, Column] = {}
        for name, place in self._registers.items():
            theirs, ours = self._register(new, name, of_change), self._register(old, name, of_row)
            # No change has set a register without a sequence: another writer may have, and its value goes with the row.
            is_gone = is_reset(F.coalesce(ours.sequence, of_row), reset, comes_later=True)
            joined = ours.joined(
                theirs, is_gone=is_gone, gives_way=F.col(IS_CARRIED_OVER), empty=self._of_new_row.get(name)
            )
            merged[place], sequences[name] = joined.value, joined.sequence
        merged[self._of_sequences] = column_sequences(sequences, newest, self._partial)
        return tuple(merged)


def order_of(columns: Sequence[str], partial: PartialUpdates) -> Column:
    """Return the sequence of a row of batch or target, cast to its type in the target."""
    assert partial.sequence is not None
    return sequence_struct(columns_of(columns)).cast(partial.sequence)


def register_sequence(sequences: Column, name: str, of_row: Column) -> Column:
    """Return the sequence of a column's value; NULL if no change has set the column.

    Args:
        sequences: The row's `COLUMN_SEQUENCES`.
        name: The column.
        of_row: The row's sequence.
    """
    name = name.lower()
    return F.when(F.map_contains_key(sequences, name), sequences[name]).otherwise(of_row)


def find_partial_updates(
    config: SinkConfig, batch: Sequence[StructField], target: Sequence[StructField], sequence: StructType | None
) -> PartialUpdates | None:
    """Decide how changes set single columns; None if every change sets all columns of the target.

    Args:
        config: The sink, with its written columns named if not all are.
        batch: The batch's columns.
        target: The target's.
        sequence: The type of the sequence in the target; None if the sink has none.

    Raises:
        UnsupportedTableError: The target has generated columns.
    """
    fixed = {name.lower() for name in (*config.keys, *config.sequence_columns, COLUMN_SEQUENCES)}
    written = {name.lower() for name in config.columns or [field.name for field in batch]}
    if not config.merge_schema:
        written &= {field.name.lower() for field in target}
    columns = tuple(f.name for f in batch if f.name.lower() in written - fixed)
    unwritten = tuple(f.name for f in target if f.name.lower() not in {*written, *fixed} and not _is_generated(f))
    is_kept_up = COLUMN_SEQUENCES in [field.name for field in target]
    # With schema evolution a batch may lack columns, whatever the options are.
    leaves_out = bool(unwritten and (config.columns or is_kept_up))
    is_partial = config.unchanged_columns is not None or bool(config.ignores_nulls_of(columns))
    if not is_partial and (sequence is None or not (leaves_out or is_kept_up)):
        return None
    generated = [field.name for field in target if _is_generated(field)]
    if generated:
        raise UnsupportedTableError(
            f"generated column {', '.join(generated)}: it would have to be computed anew from values that a change "
            "did not set. Make it a plain column that the source gives, or take the options away that leave columns as "
            "they are"
        )
    unsent = {*columns} - {*config.ignores_nulls_of(columns)} if config.unchanged_columns is not None else {*()}
    return PartialUpdates(
        columns=columns,
        unwritten=unwritten,
        unsent=tuple(name for name in columns if name in unsent),
        sequence=sequence,
        is_always=sequence is None or leaves_out,
    )


def _is_generated(field: StructField) -> bool:
    return GENERATED in (field.metadata or {})
