"""Brings options as users give them into the form of a `SinkConfig`, and adds those that the rows bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from stream_merge.clauses import Expression
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError

LEARNABLE = (
    "keys",
    "on",
    "before",
    "sequence_by",
    "tie_break_by",
    "delete_when",
    "truncate_when",
    "columns",
    "except_columns",
    "unchanged_columns",
    "ignore_null_updates",
    "old_key",
    "new_key",
    "error_column",
)
"""The options that say what the rows mean. All others belong to the table, whatever rows come."""


def expressions(parts: Expression | Sequence[Expression] | None) -> tuple[Expression, ...]:
    """Return one expression, several or none as a tuple."""
    if parts is None:
        return ()
    if isinstance(parts, (list, tuple)):
        return tuple(parts)
    return (cast("Expression", parts),)


def names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def with_learnt(config: SinkConfig, learnt: Mapping[str, Any]) -> SinkConfig:
    """Return a sink with the options that the rows of a micro-batch bring.

    Both may have `except_columns`, which add up.

    Raises:
        ConfigError: An option cannot be learnt, the sink has it already, or the options contradict each other.
    """
    faults = [f"learn returned {name!r}; it can return {', '.join(LEARNABLE)}" for name in {*learnt} - {*LEARNABLE}]
    faults += [
        f"learn returned {name}, which the sink has already; leave one of them out"
        for name in LEARNABLE
        if name in learnt and name != "except_columns" and _is_given(getattr(config, name))
    ]
    if faults:
        raise ConfigError(faults)
    completed = replace(config, learn=None, **{name: _in_form(name, value) for name, value in learnt.items()})
    # Columns that are not among those to write then need no exclusion.
    excepted = () if config.columns else tuple(dict.fromkeys((*config.except_columns, *completed.except_columns)))
    completed = replace(completed, except_columns=excepted)
    completed.check()
    return completed


def _is_given(value: Any) -> bool:
    # A Column compares with nothing.
    return not (value is None or value is False or (isinstance(value, tuple) and not value))


def _in_form(name: str, value: Any) -> Any:
    if name in ("keys", "columns", "except_columns"):
        return names(value)
    if name in ("sequence_by", "tie_break_by"):
        return expressions(value)
    return tuple(value) if isinstance(value, list) else value
