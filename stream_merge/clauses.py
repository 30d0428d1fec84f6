"""Clauses of a MERGE, and the checks on them that need no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from pyspark.sql import Column

Expression = Union[str, "Column"]
"""SQL text or a `Column`; the aliases of target and source may qualify names."""


class When(str, Enum):
    """The kind of row that a clause applies to."""

    MATCHED = "matched"
    NOT_MATCHED = "not_matched"
    NOT_MATCHED_BY_SOURCE = "not_matched_by_source"


class Action(str, Enum):
    """The action of a clause."""

    UPDATE = "update"
    UPDATE_ALL = "update_all"
    DELETE = "delete"
    INSERT = "insert"
    INSERT_ALL = "insert_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One WHEN ... THEN ... of a merge.

    Attributes:
        when: The kind of row.
        action: What happens to it.
        condition: Selects the rows; None for all rows that no earlier clause of the kind took.
        assignments: New values by target column, for UPDATE and INSERT. A column is an SQL name or a path into a
            struct.
    """

    when: When
    action: Action
    condition: Expression | None = None
    assignments: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def is_insert(self) -> bool:
        """Whether the clause adds rows."""
        return self.when is When.NOT_MATCHED

    @property
    def is_delete(self) -> bool:
        """Whether the clause removes rows."""
        return self.action is Action.DELETE

    @property
    def is_update(self) -> bool:
        """Whether the clause changes rows in place."""
        return self.action in (Action.UPDATE, Action.UPDATE_ALL)


def find_clause_faults(clauses: Sequence[Clause]) -> list[str]:
    """Return the faults of the list as a whole, in Delta's terms.

    Only the last clause of each kind may omit its condition: a clause after it could never apply.
    """
    faults = []
    for when in When:
        of_kind = [clause for clause in clauses if clause.when is when]
        if any(clause.condition is None for clause in of_kind[:-1]):
            kind = when.value.replace("_", " ").upper()
            faults.append(
                f"[DELTA_NON_LAST_{when.value.upper()}_CLAUSE_OMIT_CONDITION] "
                f"only the last WHEN {kind} clause may omit its condition; add one to the others"
            )
    return faults
