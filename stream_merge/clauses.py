"""The clauses of a MERGE as values, and the rules that need no table to be checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from pyspark.sql import Column

Expression = Union[str, "Column"]
"""An SQL expression as text, or a `Column`; names may be qualified by the aliases of target and source."""


class When(str, Enum):
    """Which rows a clause looks at."""

    MATCHED = "matched"
    NOT_MATCHED = "not_matched"
    NOT_MATCHED_BY_SOURCE = "not_matched_by_source"


class Action(str, Enum):
    """What a clause does with a row that its condition holds for."""

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
        condition: Holds for the rows the clause applies to; None for all that no earlier clause of its kind took.
        assignments: Target column (an SQL name, possibly a path into a struct) to its new value, for UPDATE and INSERT.
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
    """Return what is wrong with the list as a whole, in Delta's terms; empty when nothing is.

    Only the last clause of each kind may omit its condition, since a clause after one without could never apply.
    """
    faults = []
    for when in When:
        of_kind = [clause for clause in clauses if clause.when is when]
        if any(clause.condition is None for clause in of_kind[:-1]):
            kind = when.value.replace("_", " ").upper()
            faults.append(
                f"[DELTA_NON_LAST_{when.value.upper()}_CLAUSE_OMIT_CONDITION] "
                f"only the last WHEN {kind} clause may omit its condition"
            )
    return faults
