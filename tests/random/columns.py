"""Tables that follow the columns of their source: a model of what `schema_changes` makes of a table and a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.random.column_types import converted, is_number, value_of, wider
from tests.random.model import Row, TableModel

EVOLVE, LENIENT = "evolve", "lenient"


def can_send(model: TableModel, mode: str, name: str, sql_type: str) -> bool:
    """Whether the sink takes values of a type for a column, at least those that the table's type holds."""
    kept = model.columns.get(name)
    if kept is None or wider(kept, sql_type) is not None or sql_type == "STRING":
        return True
    if is_number(kept) and is_number(sql_type):
        return True
    return mode == LENIENT and _takes_over(model, name, sql_type) is not None


def sent_value(model: TableModel, mode: str, name: str, sql_type: str, text: str | None, number: int) -> Any:
    """Return a value that the source sends in a type, which the table can take."""
    kept = model.columns.get(name)
    has_place = kept is None or wider(kept, sql_type) is not None
    if kept is None or has_place or (mode == LENIENT and _takes_over(model, name, sql_type) is not None):
        return value_of(sql_type, text, number)
    # No column can take another value than one that the table's type holds.
    value = value_of(kept, text, number)
    return converted(int(value) if value is not None and sql_type in ("INT", "BIGINT") else value, sql_type)


def _takes_over(model: TableModel, name: str, sql_type: str) -> str | None:
    """Return the column that takes the values for which a column has the wrong type; None if it is another's."""
    other = f"{name}__{re.sub(r'[^a-z0-9_]+', '_', sql_type.lower()).strip('_')}"
    return other if model.columns.get(other, sql_type) == sql_type else None


def followed(model: TableModel, mode: str, sent: Mapping[str, str], changes: Sequence[Row]) -> list[Row]:
    """Give the table the columns and types of a batch, and return the changes in terms of them.

    Args:
        model: The table.
        mode: The sink's `schema_changes`.
        sent: Name and type of the columns that are written.
        changes: The changes of the batch.
    """
    fixed = {*model.keys, *model.sequence}
    replaced: dict[str, str] = {}
    for name, sql_type in sent.items():
        kept = model.columns.get(name, sql_type)
        kind = wider(kept, sql_type)
        if kind is not None and kind != kept:
            model.widen(name, kind)
        other = _takes_over(model, name, sql_type) if mode == LENIENT and name not in fixed and kind is None else None
        if other is not None:
            replaced[name] = other
    before = [*model.columns]
    for name, sql_type in sent.items():
        for new in (name, replaced.get(name, name)):
            if new not in model.columns:
                model.add_column(new, sql_type)
    given = {*sent, *replaced.values(), *fixed, *changes[0]}
    dropped = [name for name in before if name in model.remembered and name not in given]

    def bound(change: Row) -> Row:
        row = change | dict.fromkeys(dropped)
        for name, other in replaced.items():
            row |= {other: change[name], name: None}
        row |= {name: converted(row[name], model.columns[name]) for name in row if name in sent and name not in fixed}
        if "unset" in change:
            row["unset"] = [*change["unset"], *(replaced[name] for name in change["unset"] if name in replaced)]
        return row

    return [bound(change) for change in changes]
