"""Writes a sink's MERGE statement as SQL text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from stream_merge.clauses import Action, Clause, Expression, When, find_clause_faults
from stream_merge.config import SinkConfig
from stream_merge.errors import ClauseError
from stream_merge.sql import quote

_WHEN = {
    When.MATCHED: "MATCHED",
    When.NOT_MATCHED: "NOT MATCHED",
    When.NOT_MATCHED_BY_SOURCE: "NOT MATCHED BY SOURCE",
}


def effective_clauses(config: SinkConfig) -> tuple[Clause, ...]:
    """Return the sink's own clauses, or the default clauses that its keys, sequence and deletes imply.

    An UPDATE without assignments and condition does nothing and is the last of its kind, so it is dropped, as Delta's
    builder does.
    """
    if config.clauses:
        return tuple(
            clause
            for clause in config.clauses
            if clause.action is not Action.UPDATE or clause.assignments or clause.condition is not None
        )
    if not config.keys and config.before is None:
        return ()
    return _default_clauses(config)


def checked_clauses(config: SinkConfig) -> tuple[Clause, ...]:
    """Return the clauses that the sink carries out.

    Raises:
        ClauseError: The sink has no clause, or its clauses are not a valid MERGE; one error names all faults.
    """
    clauses = effective_clauses(config)
    if not clauses:
        raise ClauseError("the merge has no clause", condition="DELTA_MERGE_MISSING_WHEN")
    faults = find_clause_faults(config.clauses)
    if faults:
        raise ClauseError("; ".join(faults))
    return clauses


@dataclass(frozen=True, slots=True)
class _And:
    """A conjunction whose parts may be texts or Columns; `merge_sql` renders it."""

    parts: tuple[Expression | _OfSource | _Not, ...]


@dataclass(frozen=True, slots=True)
class _OfSource:
    """A condition whose unqualified names belong to the source, even if the target has the same names."""

    condition: Expression


@dataclass(frozen=True, slots=True)
class _Not:
    """The negation of a condition, in which NULL counts as false."""

    part: _OfSource


def _default_clauses(config: SinkConfig) -> tuple[Clause, ...]:
    newer = _not_older(config)
    guard: tuple[Expression, ...] = (newer,) if newer else ()
    is_delete = None if config.delete_when is None else _OfSource(config.delete_when)
    values = {quote(name): quote(config.source_alias, name) for name in config.columns}
    clauses = [
        Clause(
            when=When.MATCHED,
            action=Action.UPDATE if values else Action.UPDATE_ALL,
            condition=_conjunction(guard),
            assignments=values,
        ),
        Clause(
            when=When.NOT_MATCHED,
            action=Action.INSERT if values else Action.INSERT_ALL,
            condition=None if is_delete is None else _conjunction((_Not(is_delete),)),
            assignments=values,
        ),
    ]
    if is_delete is not None:
        clauses.insert(0, Clause(when=When.MATCHED, action=Action.DELETE, condition=_conjunction((is_delete, *guard))))
    return tuple(clauses)


def _conjunction(parts: tuple[Expression | _OfSource | _Not, ...]) -> Expression | None:
    return _And(parts) if parts else None  # type: ignore[return-value]


def _not_older(config: SinkConfig) -> str | None:
    """Return the condition that the change is at least as new as the target row, whose sequence may be NULL."""
    if not config.sequence_by:
        return None
    older = []
    equal: list[str] = []
    for name in config.sequence_columns:
        source, target = quote(config.source_alias, name), quote(config.target_alias, name)
        # As within a batch, a NULL sequence is older than any value.
        is_older = f"coalesce({source} < {target}, {source} IS NULL AND {target} IS NOT NULL)"
        older.append(" AND ".join([*equal, is_older]))
        equal.append(f"{source} <=> {target}")
    return f"NOT ({' OR '.join(f'({case})' for case in older)})"


def merge_condition(config: SinkConfig, padded: Collection[str]) -> Expression:
    """Return the ON condition: the user's, or equality of the keys.

    Args:
        config: The sink.
        padded: Lower-case names of the target's CHAR columns, in which blanks at the end do not count.
    """
    if config.on is not None:
        return config.on
    equals = "<=>" if config.null_keys == "match" else "="

    def compared(alias: str, key: str) -> str:
        column = quote(alias, key)
        return f"rtrim({column})" if key.lower() in padded else column

    return " AND ".join(
        f"{compared(config.target_alias, key)} {equals} {compared(config.source_alias, key)}" for key in config.keys
    )


def merge_sql(
    config: SinkConfig,
    clauses: Iterable[Clause],
    *,
    target: str,
    padded: Collection[str],
    untouched_column: str,
    to_sql: Callable[[Expression], str],
    to_source_sql: Callable[[Expression], str],
    to_name: Callable[[str], str],
) -> str:
    """Return the statement.

    Args:
        config: The sink.
        clauses: Its effective clauses.
        target: The target as written in SQL.
        padded: Lower-case names of the target's CHAR columns.
        untouched_column: A column of the target, in backticks, that an UPDATE without assignments sets to itself.
        to_sql: Returns an expression as SQL; raises this library's error if it is invalid.
        to_source_sql: The same, with every unqualified name qualified with the source.
        to_name: Returns the SQL of a target column name as the user wrote it.
    """

    def render(expression: Expression | _And | _OfSource | _Not) -> str:
        if isinstance(expression, _And):
            return " AND ".join(render(part) for part in expression.parts)
        if isinstance(expression, _OfSource):
            return f"({to_source_sql(expression.condition)})"
        if isinstance(expression, _Not):
            return f"NOT coalesce({render(expression.part)}, false)"
        # On separate lines, so that a trailing comment in the text does not swallow the parenthesis.
        return f"(\n{to_sql(expression)}\n)"

    evolution = "WITH SCHEMA EVOLUTION " if config.merge_schema else ""
    lines = [
        f"MERGE {evolution}INTO {target} AS {quote(config.target_alias)}",
        f"USING stream_merge_source AS {quote(config.source_alias)}",
        f"ON {render(merge_condition(config, padded))}",
    ]
    # SQL requires clauses grouped by kind; the order between kinds has no meaning.
    for clause in sorted(clauses, key=lambda clause: list(When).index(clause.when)):
        condition = f" AND {render(clause.condition)}" if clause.condition is not None else ""
        assignments = {to_name(name): render(value) for name, value in clause.assignments.items()}
        lines.append(
            f"WHEN {_WHEN[clause.when]}{condition} THEN {_then(config, clause, assignments, untouched_column)}"
        )
    return "\n".join(lines)


def _then(config: SinkConfig, clause: Clause, assignments: Mapping[str, str], untouched_column: str) -> str:
    match clause.action:
        case Action.DELETE:
            return "DELETE"
        case Action.UPDATE_ALL:
            return "UPDATE SET *"
        case Action.INSERT_ALL:
            return "INSERT *"
        case Action.UPDATE:
            pairs = [f"{name} = {value}" for name, value in assignments.items()]
            itself = f"{untouched_column} = {quote(config.target_alias)}.{untouched_column}"
            return f"UPDATE SET {', '.join(pairs) or itself}"
        case Action.INSERT:
            columns, values = ", ".join(assignments) or untouched_column, ", ".join(assignments.values()) or "DEFAULT"
            return f"INSERT ({columns}) VALUES ({values})"
