"""Finds the sink of a source by its name, by a pattern, or by a function, and the tables of a micro-batch."""

from __future__ import annotations

import re
import string
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError
from stream_merge.sink import MergeSink

MAX_SOURCES = 1000
"""Limits the sources with rows in one micro-batch, and the sinks that a router makes and keeps."""

SinkOf: TypeAlias = Callable[[str], "MergeSink | None"]
Sinks: TypeAlias = Mapping[Any, MergeSink] | SinkOf
"""Maps names or patterns of sources to sinks, or is a function from name to sink.

Keys are `Any` because a Mapping's keys are invariant: no narrower type accepts names, patterns and both."""

SinksByKey: TypeAlias = dict[str | re.Pattern[str], MergeSink]

_FILLED = ("target", "quarantine")
_PART_OF_A_NAME = re.compile(r"[\w-]+")


@dataclass(slots=True)
class MadeSinks:
    """The sinks that a router made itself and used last, kept for their caches."""

    _sinks: OrderedDict[tuple[Any, ...], MergeSink] = field(default_factory=OrderedDict)

    def get(self, key: tuple[Any, ...], make: Callable[[], MergeSink | None]) -> MergeSink | None:
        """Return the sink of this key; make it if it is missing."""
        if key not in self._sinks:
            sink = make()
            if sink is None:
                return None
            self._sinks[key] = sink
        self._sinks.move_to_end(key)
        return self._sinks[key]

    def forget_oldest(self) -> None:
        """Drop the sinks that were not used for longest, beyond `MAX_SOURCES`."""
        while len(self._sinks) > MAX_SOURCES:
            self._sinks.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A table of the micro-batch: its sink, the sources of its rows, and their number of rows."""

    sink: MergeSink
    names: tuple[str, ...]
    num_rows: int

    @property
    def name(self) -> str:
        """The names of the sources."""
        return ", ".join(self.names)

    @property
    def described(self) -> str:
        """Sources and table, for messages."""
        return f"{self.name} (table {self.sink.config.target})"


def copied(sinks: Sinks) -> SinksByKey | SinkOf:
    """Return a copy of a mapping, so that nobody else can change it."""
    return dict(sinks) if isinstance(sinks, Mapping) else sinks


def find_route_faults(sinks: object) -> list[str]:
    """Return the faults of a router's sinks that show without a source's name."""
    if not isinstance(sinks, Mapping):
        is_function = callable(sinks) and not isinstance(sinks, MergeSink)
        return [] if is_function else [f"sinks is a {type(sinks).__name__}; give a mapping or a function"]
    faults = [] if sinks else ["sinks is empty"]
    targets: dict[str, MergeSink] = {}
    for key, sink in sinks.items():
        if not isinstance(key, (str, re.Pattern)):
            faults.append(f"a key of sinks is a {type(key).__name__}; use strings or compiled patterns")
            continue
        shown = _shown(key)
        if not isinstance(sink, MergeSink):
            faults.append(f"the sink of {shown} is a {type(sink).__name__}; make it with merge_sink")
            continue
        if isinstance(key, re.Pattern) and key.groupindex:
            faults += [f"the sink of {shown}: {fault}" for fault in _placeholder_faults(key, sink.config)]
            if "{" in sink.config.target:
                # Each name has a target of its own; only the names tell whether two are the same.
                continue
        if targets.setdefault(sink.config.target.strip(), sink) is not sink:
            faults.append(
                f"{sink.config.target} is the target of two sinks; give sources of one table the same sink object"
            )
    return faults


def find_parking_faults(parking: str, sinks: object) -> list[str]:
    """Return why a table cannot take what is parked, as far as that shows without a source's name."""
    if not parking.strip():
        return ["parking is empty"]
    known = [sink for sink in sinks.values() if isinstance(sink, MergeSink)] if isinstance(sinks, Mapping) else []
    for option in _FILLED:
        if any(parking.strip() == (getattr(sink.config, option) or "").strip() for sink in known):
            return [f"parking={parking!r} is the {option} of a sink, too; it needs a table of its own"]
    return []


def find_sinks(sinks: SinksByKey | SinkOf, names: Sequence[str], made: MadeSinks) -> dict[str, MergeSink | None]:
    """Return the sink of each source; None for a source without one.

    Raises:
        ConfigError: Patterns are ambiguous or cannot be filled, or the function failed; one error lists all faults.
    """
    faults: list[str] = []
    if isinstance(sinks, Mapping):
        found = {name: _by_key(sinks, name, made, faults) for name in names}
    else:
        found = {name: _by_function(sinks, name, made, faults) for name in names}
    made.forget_oldest()
    if faults:
        raise ConfigError(faults)
    return found


def exact_sinks(sinks: SinksByKey | SinkOf) -> dict[str, MergeSink]:
    """Return the sinks known without a batch, by source name."""
    if not isinstance(sinks, Mapping):
        return {}
    return {key: sink for key, sink in sinks.items() if isinstance(key, str)}


def routes_to(sinks: Mapping[str, MergeSink], num_rows: Mapping[str | None, int]) -> list[Route]:
    """Return the tables, those with the most rows first, since they take longest."""
    names: dict[int, list[str]] = {}
    for name, sink in sinks.items():
        names.setdefault(id(sink), []).append(name)
    routes = [
        Route(sink=sinks[own[0]], names=tuple(own), num_rows=sum(num_rows[name] for name in own))
        for own in names.values()
    ]
    return sorted(routes, key=lambda route: -route.num_rows)


def _by_function(function: SinkOf, name: str, made: MadeSinks, faults: list[str]) -> MergeSink | None:
    def make() -> MergeSink | None:
        try:
            sink: object = function(name)
        except Exception as error:  # noqa: BLE001 - the user's code; reported with the other names' faults
            faults.append(f"the function of sinks raised {type(error).__name__} for {name!r}: {error}")
            return None
        if sink is None or isinstance(sink, MergeSink):
            return sink
        faults.append(f"the function of sinks returned a {type(sink).__name__} for {name!r}; return a sink or None")
        return None

    return made.get((name,), make)


def _by_key(sinks: SinksByKey, name: str, made: MadeSinks, faults: list[str]) -> MergeSink | None:
    if name in sinks:
        return sinks[name]
    patterns = [key for key in sinks if isinstance(key, re.Pattern)]
    matches = [(pattern, match) for pattern in patterns if (match := pattern.fullmatch(name))]
    if len(matches) > 1:
        shown = " and ".join(_shown(pattern) for pattern, _ in matches)
        faults.append(f"{name!r} matches {shown}; narrow a pattern, or name the source itself")
    if len(matches) != 1:
        return None
    pattern, match = matches[0]
    template = sinks[pattern]
    values: dict[str, str] = {}
    for group in sorted(_placeholders(template.config)) if pattern.groupindex else ():
        value = match[group]
        if value is None or not _PART_OF_A_NAME.fullmatch(value):
            faults.append(
                f"{name!r}: {value!r} cannot replace {{{group}}} in {template.config.target}; "
                "the pattern must match letters, digits, _ and - only; to take this source, too, name it itself"
            )
            return None
        values[group] = value
    if not values:
        return template
    # Patterns that share a sink lead to one table if their groups have the same values.
    return made.get((id(template), *values.values()), lambda: _fill(template, values))


def _fill(template: MergeSink, values: Mapping[str, str]) -> MergeSink:
    config = template.config
    texts = {name: getattr(config, name) for name in _FILLED}
    filled = {name: text.format_map(values) for name, text in texts.items() if text is not None}
    return MergeSink(replace(config, **filled))


def _placeholders(config: SinkConfig) -> set[str]:
    texts = [getattr(config, name) for name in _FILLED]
    return {name for text in texts if text is not None for _, name, _, _ in string.Formatter().parse(text) if name}


def _placeholder_faults(pattern: re.Pattern[str], config: SinkConfig) -> list[str]:
    faults = []
    for option in _FILLED:
        text = getattr(config, option)
        try:
            parts = list(string.Formatter().parse(text or ""))
        except ValueError as error:
            faults.append(f"{option}={text!r}: {error}")
            continue
        for _, name, spec, conversion in parts:
            if name is not None and (name not in pattern.groupindex or spec or conversion):
                faults.append(
                    f"{option}={text!r} has a placeholder that is not a named group of the pattern; add the group"
                )
    return faults


def _shown(key: str | re.Pattern[str]) -> str:
    return repr(key) if isinstance(key, str) else f"the pattern {key.pattern!r}"
