"""Pairs the columns of a database's table with those of a Delta table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from stream_merge.cli.compare.kinds import Kind, SourceColumn
from stream_merge.cli.compare.values import fault_of
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.column_names import RESERVED_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """A column of both sides.

    Attributes:
        name: Its name in the Delta table.
        source: The database's column.
        kind: What its values are.
        data_type: Its type in the Delta table.
    """

    name: str
    source: SourceColumn
    kind: Kind
    data_type: T.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedColumns:
    """The columns of both sides.

    Attributes:
        compared: Those that are compared, the key's first.
        num_keys: How many of them are the key; all of them for a table without a key.
        has_key: Whether the table has a key.
        source_only: Names of those of the database alone.
        target_only: Names of those of the Delta table alone.
        faults: Why a column of both is not compared, by its name in the Delta table.
    """

    compared: tuple[ComparedColumn, ...]
    num_keys: int
    has_key: bool
    source_only: tuple[str, ...] = ()
    target_only: tuple[str, ...] = ()
    faults: Mapping[str, str]

    @property
    def keys(self) -> tuple[ComparedColumn, ...]:
        """The columns of the key."""
        return self.compared[: self.num_keys]


def pair_columns(
    source: Sequence[SourceColumn],
    target: T.StructType,
    keys: Sequence[str],
    *,
    renamed: Mapping[str, str],
    left_out: Collection[str] = (),
    written: Collection[str] = (),
) -> PairedColumns:
    """Pair columns by their names, exactly if possible, else whatever their upper and lower case.

    Args:
        source: The database's columns.
        target: The Delta table's.
        keys: The key's columns in the Delta table; none if it has no key.
        renamed: Columns of the Delta table by the name that they have in the database.
        left_out: Columns of the Delta table that the pipeline does not write.
        written: Those that it writes besides the key; all by default.

    Raises:
        PipelineError: No column is on both sides, or a column of the key cannot be compared.
    """
    fields = [field for field in target.fields if not field.name.lower().startswith(RESERVED_PREFIX)]
    excluded = {name.lower() for name in left_out}
    if written:
        kept = {name.lower() for name in (*written, *keys)}
        names = [*(field.name for field in fields), *(renamed.get(column.name, column.name) for column in source)]
        excluded |= {name.lower() for name in names} - kept
    by_target = _paired(source, [field.name for field in fields], renamed)
    compared, faults = [], {}
    for field in fields:
        column = by_target.get(field.name)
        if column is None or field.name.lower() in excluded:
            continue
        fault = fault_of(column.kind, field.dataType)
        if fault is not None or column.kind is None:
            faults[field.name] = f"{fault} ({column.type_name} and {field.dataType.simpleString()})"
            continue
        compared.append(ComparedColumn(name=field.name, source=column, kind=column.kind, data_type=field.dataType))
    ordered = _keys_first(compared, keys, faults)
    paired = {id(column) for column in by_target.values()}
    return PairedColumns(
        compared=ordered,
        num_keys=len(keys) or len(ordered),
        has_key=bool(keys),
        source_only=tuple(
            column.name
            for column in source
            if id(column) not in paired and renamed.get(column.name, column.name).lower() not in excluded
        ),
        target_only=tuple(
            field.name for field in fields if field.name not in by_target and field.name.lower() not in excluded
        ),
        faults=faults,
    )


def _paired(
    source: Sequence[SourceColumn], names: Sequence[str], renamed: Mapping[str, str]
) -> dict[str, SourceColumn]:
    """Return the database's columns by the names that they have in the Delta table."""
    found: dict[str, SourceColumn] = {}
    exact = set(names)
    by_lower = {name.lower(): name for name in names}
    for column in source:
        name = renamed.get(column.name, column.name)
        if name in exact:
            found[name] = column
    for column in source:
        alike = by_lower.get(renamed.get(column.name, column.name).lower())
        if alike is not None and column not in found.values():
            found.setdefault(alike, column)
    return found


def _keys_first(
    compared: Sequence[ComparedColumn], keys: Sequence[str], faults: Mapping[str, str]
) -> tuple[ComparedColumn, ...]:
    by_name = {column.name.lower(): column for column in compared}
    missing = [key for key in keys if key.lower() not in by_name]
    if missing:
        reasons = {name.lower(): reason for name, reason in faults.items()}
        said = "; ".join(f"{key} {reasons.get(key.lower(), 'is not on both sides')}" for key in missing)
        raise PipelineError(
            f"The tables cannot be compared by their key: {said}. Name the key with --keys.", ExitCode.USAGE
        )
    if not compared:
        raise PipelineError(
            "The tables have no column in common: check the name of the database's table.", ExitCode.USAGE
        )
    first = [by_name[key.lower()] for key in keys]
    return (*first, *(column for column in compared if column not in first))
