"""Turns pydantic's validation errors into plain sentences with their place in the file."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from stream_merge.cli.file.pipeline import (
    DecodeSettings,
    DeltaSource,
    FilesSource,
    KafkaSource,
    MetricsSettings,
    PipelineSettings,
    RegistrySettings,
    SparkSettings,
    TableSettings,
)
from stream_merge.cli.file.positions import Location

SOURCES: Mapping[str, type[BaseModel]] = {"kafka": KafkaSource, "files": FilesSource, "delta": DeltaSource}
SECTIONS: Mapping[str, Sequence[type[BaseModel]]] = {
    "pipeline": (PipelineSettings,),
    "source": tuple(SOURCES.values()),
    "decode": (DecodeSettings,),
    "registry": (RegistrySettings,),
    "tables": (TableSettings,),
    "spark": (SparkSettings,),
    "metrics": (MetricsSettings,),
}

_TYPES = {
    "string": "text in quotes",
    "int": "a whole number",
    "bool": "true or false",
    "float": "a number",
    "number": "a number",
    "list": "a list",
    "dict": 'a table: { name = "value" }',
}


def find_model_faults(errors: Sequence[ErrorDetails], data: Mapping[str, Any]) -> list[tuple[Location, str]]:
    """Return the location and the sentence of each fault that the models found.

    Args:
        errors: The errors of pydantic's `ValidationError`.
        data: The file's values as written; sentences show these, never values of the environment.
    """
    by_location: dict[Location, list[ErrorDetails]] = {}
    for error in errors:
        by_location.setdefault(_location_in(data, error), []).append(error)
    # For a union with lists, the fault of an element says more than a wrong type of the whole value.
    outer = {location[:end] for location in by_location for end in range(len(location))}
    return [
        (
            location,
            _unknown(location, data) if found[0]["type"] == "extra_forbidden" else _sentence(location, found, data),
        )
        for location, found in by_location.items()
        if location not in outer
    ]


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean x?" for the closest of the names, or an empty text."""
    close = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def option_names(location: Location, data: Mapping[str, Any]) -> list[str]:
    """Return the options of the section at a location."""
    if not location:
        return list(SECTIONS)
    models = SECTIONS.get(str(location[0]), ())
    if location[0] == "source":
        source = data.get("source")
        kind = source.get("format") if isinstance(source, Mapping) else None
        models = (SOURCES[kind],) if isinstance(kind, str) and kind in SOURCES else models
    return option_names_of(models)


def option_names_of(models: Iterable[type[BaseModel]]) -> list[str]:
    """Return the names of the models' options as written in a file."""
    return list(dict.fromkeys(field.alias or name for model in models for name, field in model.model_fields.items()))


def _location_in(data: Any, error: ErrorDetails) -> Location:
    """Return the error's location without the parts that pydantic adds for the members of a union."""
    location: list[str | int] = []
    value = data
    parts = error["loc"]
    for part in parts:
        if _has(value, part):
            value = value[part]
        elif not (error["type"] == "missing" and part is parts[-1]):
            continue
        location.append(part)
    if error["type"].startswith("union_tag"):
        location.append("format")
    return tuple(location)


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _value_at(data: Any, location: Location) -> Any:
    value = data
    for part in location:
        value = value.get(part) if isinstance(value, Mapping) else value[part]
    return value


def _unknown(location: Location, data: Mapping[str, Any]) -> str:
    name = str(location[-1])
    names = option_names(location[:-1], data)
    if name in SECTIONS:
        return f"is a section of its own: {_header(name)}"
    remedy = suggestion(name, names) or f"; choose from {', '.join(names)}"
    if len(location) == 1 and isinstance(data[name], (Mapping, list)):
        return f"there is no such section{remedy}"
    for section, models in SECTIONS.items():
        owners = [model for model in models if name in option_names_of([model])]
        if owners and section == location[0]:
            return f"is an option of format = {_listed([kind for kind, model in SOURCES.items() if model in owners])}"
        if owners:
            return f"is an option of {_header(section)}"
    if len(location) == 1:
        return "is outside the sections; move it into one of them"
    return f"there is no such option{remedy}"


def _header(section: str) -> str:
    return "[[tables]]" if section == "tables" else f"[{section}]"


def _sentence(location: Location, errors: Sequence[ErrorDetails], data: Mapping[str, Any]) -> str:
    value = _value_at(data, location)
    if len(errors) > 1:
        return _choice_of_types(errors, value)
    error = errors[0]
    if error["type"] == "missing":
        return _missing(location)
    if error["type"] in _SENTENCES:
        return _SENTENCES[error["type"]](error.get("ctx", {}), value)
    return _wrong_type(location, error, value)


def _missing(location: Location) -> str:
    if location == ("tables",):
        return "is missing; a file has a section [[tables]] for each target"
    if len(location) == 1:
        return f"is missing; a file has a section {_header(str(location[0]))}"
    return "is missing"


def _wrong_type(location: Location, error: ErrorDetails, value: object) -> str:
    if location == ("tables",) and isinstance(value, Mapping):
        return "is written in double brackets, [[tables]]: there may be several"
    if len(location) == 1 and isinstance(value, list):
        return f"is written in single brackets, [{location[0]}]: there is one"
    if len(location) == 1:
        return f"is a section: [{location[0]}]"
    if error["type"] == "list_type" and isinstance(value, str):
        return f"must be a list: [{_shown(value)}]"
    kind = error["type"].split("_")[0]
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, but is {_shown(value)}"
    if error["type"] in ("model_type", "model_attributes_type"):
        return f"must be a section, but is {_shown(value)}"
    return error["msg"].replace("Input should be", "must be")


def _choice_of_types(errors: Sequence[ErrorDetails], value: object) -> str:
    """Return the sentence for a value that fits no type of a union, which has one error for each type."""
    kinds = dict.fromkeys(error["type"].split("_")[0] for error in errors)
    words = [_TYPES[kind].split(":")[0] for kind in kinds if kind in _TYPES]
    literals = [
        word for error in errors if error["type"] == "literal_error" for word in _quoted_words(error["ctx"]["expected"])
    ]
    choices = [*words, *(f'"{word}"' for word in literals)]
    if not choices:
        return errors[0]["msg"].replace("Input should be", "must be")
    return f"must be {_or(choices)}, but is {_shown(value)}"


def _not_one_of(allowed: Sequence[str], value: object) -> str:
    close = suggestion(value, allowed) if isinstance(value, str) else ""
    return f"must be {_listed(allowed)}, but is {_shown(value)}{close}"


def _quoted_words(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _listed(words: Sequence[str]) -> str:
    return _or([f'"{word}"' for word in words])


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


_SENTENCES: Mapping[str, Callable[[Mapping[str, Any], object], str]] = {
    "union_tag_not_found": lambda *_: f"is missing; it can be {_listed(list(SOURCES))}",
    "union_tag_invalid": lambda _, value: _not_one_of(list(SOURCES), value),
    "literal_error": lambda context, value: _not_one_of(_quoted_words(context["expected"]), value),
    "value_error": lambda context, _: str(context["error"]),
    "string_too_short": lambda *_: "must not be empty",
    "too_short": lambda context, _: f"must have at least {context['min_length']}",
    "string_pattern_mismatch": lambda _, value: (
        f"must begin with a letter or digit and have only letters, digits, _ . -, but is {_shown(value)}"
    ),
    "greater_than_equal": lambda context, value: f"must be at least {context['ge']:g}, but is {_shown(value)}",
    "less_than_equal": lambda context, value: f"must be at most {context['le']:g}, but is {_shown(value)}",
}
"""Functions by pydantic's name of the error: they take its context and the value as written in the file."""
