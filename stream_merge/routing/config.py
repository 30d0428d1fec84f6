"""Options of a router; the check reports all faults at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stream_merge.clauses import Expression
from stream_merge.errors import ConfigError
from stream_merge.routing.routes import SinkOf, SinksByKey, find_parking_faults, find_route_faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNKNOWN_POLICIES = ("error", "ignore")

Prepare: TypeAlias = "Callable[[str, DataFrame], DataFrame | None]"
"""Turns the name of a source and its rows into the rows to merge; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """All options of `merge_router`, which documents them."""

    sinks: SinksByKey | SinkOf
    by: Expression = "topic"
    prepare: Prepare | None = None
    max_parallel: int = 4
    unknown: str = "error"
    parking: str | None = None

    def check(self) -> None:
        """Raise `ConfigError` with all faults that show without a batch."""
        faults = find_route_faults(self.sinks)
        if isinstance(self.by, str) and not self.by.strip():
            faults.append("by is empty")
        if self.prepare is not None and not callable(self.prepare):
            faults.append(f"prepare is a {type(self.prepare).__name__}, not a function")
        if self.max_parallel < 1:
            faults.append(f"max_parallel={self.max_parallel} is less than 1")
        if self.unknown not in UNKNOWN_POLICIES:
            faults.append(f"unknown={self.unknown!r} is not one of {', '.join(UNKNOWN_POLICIES)}")
        if self.parking is not None:
            faults += find_parking_faults(self.parking, self.sinks)
        if faults:
            raise ConfigError(faults)
