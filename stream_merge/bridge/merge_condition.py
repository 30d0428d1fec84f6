"""Takes the condition of a resolved MERGE apart: which columns of target and source it equates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stream_merge.bridge.jvm import items


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An equality of a target column and a source column that the merge condition requires."""

    target: str
    source: str
    type_name: str
    is_null_safe: bool

    @property
    def is_exact(self) -> bool:
        """Whether equal values of the columns' type are identical."""
        return self.type_name in _EXACT or self.type_name.startswith("decimal(")


_EXACT = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "binary", "date", "timestamp", "timestamp_ntz")
"""Types whose equal values are identical; 0.0 equals -0.0, and many collated texts are equal."""


def equated_columns(command: Any) -> tuple[tuple[tuple[Any, Any], KeyPair], ...]:
    """Return the equalities of plain columns of one type among the conjuncts of the condition.

    Args:
        command: Delta's resolved MERGE.

    Returns:
        The key pairs, each with its two columns as Delta resolved them, the target's first.
    """
    target_output = command.target().outputSet()
    pairs = []
    for conjunct in _equalities(command):
        sides = [conjunct.left(), conjunct.right()]
        if not all(str(side.getClass().getSimpleName()) == "AttributeReference" for side in sides):
            continue
        if sides[0].references().subsetOf(target_output) == sides[1].references().subsetOf(target_output):
            continue
        if not sides[0].references().subsetOf(target_output):
            sides.reverse()
        types = {str(side.dataType().catalogString()) for side in sides}
        if len(types) == 1:
            target, source = (str(side.name()) for side in sides)
            null_safe = str(conjunct.getClass().getSimpleName()) == "EqualNullSafe"
            pair = KeyPair(target=target, source=source, type_name=types.pop(), is_null_safe=null_safe)
            pairs.append(((sides[0], sides[1]), pair))
    return tuple(pairs)


def has_equality(command: Any) -> bool:
    """Return whether a conjunct equates expressions of target and source, so that rows can be joined by hash."""
    outputs = command.target().outputSet(), command.source().outputSet()
    for conjunct in _equalities(command):
        sides = conjunct.left().references(), conjunct.right().references()
        if any(side.isEmpty() for side in sides):
            continue
        for target, source in (sides, sides[::-1]):
            if target.subsetOf(outputs[0]) and source.subsetOf(outputs[1]):
                return True
    return False


def _equalities(command: Any) -> Iterator[Any]:
    """Iterate over the conjuncts of the condition that are equalities."""
    for conjunct in items(command.splitConjunctivePredicates(command.condition())):
        if str(conjunct.getClass().getSimpleName()) in ("EqualTo", "EqualNullSafe"):
            yield conjunct
