"""Generates the reference documents from the code: `python -m stream_merge.cli.file.reference docs`."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from stream_merge import merge_router, merge_sink
from stream_merge.cli.file.model_faults import SECTIONS, SOURCES

PIPELINE_REFERENCE = "pipeline-reference.md"
CONFIGURATION_REFERENCE = "configuration-reference.md"

_WIDTH = 120
_MADE = "<!-- Generated from the code by `python -m stream_merge.cli.file.reference docs`; edit the code. -->"
_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    types.NoneType: "none",
}
_PIPELINE_INTRODUCTION = f"""\
# Pipeline files

{_MADE}

`stream-merge run` reads a pipeline file: [TOML](https://toml.io), in UTF-8. `stream-merge init` writes a commented
example, and `stream-merge validate` reports all faults of a file with their lines.

- An unknown option is a fault, never ignored.
- Relative paths start from the folder in which the command runs.
- `${{NAME}}` in a text is the value of an environment variable; `${{NAME:-default}}` gives a default for a missing or
  empty one; `$${{` is a plain `${{`. Numbers may come from the environment as well: `prometheus_port = "${{PORT}}"`.
  Names of options and sections are not substituted.
- Values from the environment, and values of options whose names contain password, passwd, passphrase, secret, token,
  JAAS or credential, appear as `***` in everything that the command writes. Values of fewer than four characters
  cannot be masked.
- Durations are a number and a unit: `"30 seconds"`, `"1.5 hours"`, `"7 days"`.
"""
_CONFIGURATION_INTRODUCTION = f"""\
# Options in Python

{_MADE}

The options of `merge_sink` and `merge_router`. The [guide](guide.md) shows how they work together; the options of a
pipeline file are in the [reference of pipeline files](pipeline-reference.md).
"""
_HEADS = {
    "pipeline": "[pipeline]",
    "source": "[source]",
    "decode": "[decode]",
    "registry": "[registry]",
    "tables": "[[tables]]",
    "spark": "[spark]",
    "metrics": "[metrics]",
}


def pipeline_reference() -> str:
    """Return the reference of pipeline files, generated from the models."""
    parts = [_PIPELINE_INTRODUCTION]
    for section, models in SECTIONS.items():
        for model in models:
            kinds = [f', format = "{kind}"' for kind, source in SOURCES.items() if source is model]
            parts.append(f"## `{_HEADS[section]}`{''.join(kinds)}\n")
            parts.append(f"{_paragraph(inspect.getdoc(model) or '')}\n")
            rows = [_option_row(field.alias or name, field) for name, field in model.model_fields.items()]
            parts.append(_table(("option", "value", "default", "meaning"), rows))
    return "\n".join(parts)


def configuration_reference() -> str:
    """Return the reference of the library's options, generated from signatures and docstrings."""
    parts = [_CONFIGURATION_INTRODUCTION]
    for function in (merge_sink, merge_router):
        doc = inspect.getdoc(function) or ""
        sections = _docstring_sections(doc)
        parts.append(f"## `{function.__name__}`\n")
        parts.append(f"{sections['']}\n")
        parts.append(_table(("option", "default", "meaning"), _argument_rows(function, sections["Args"])))
        parts += [
            f"{_paragraph(f'**{name}:** {sections[name]}')}\n" for name in ("Returns", "Raises") if name in sections
        ]
    return "\n".join(parts)


def write_references(folder: Path) -> None:
    """Write both documents into a folder."""
    for name, text in (
        (PIPELINE_REFERENCE, pipeline_reference()),
        (CONFIGURATION_REFERENCE, configuration_reference()),
    ):
        (folder / name).write_text(text, encoding="utf-8")


def _option_row(name: str, field: FieldInfo) -> tuple[str, ...]:
    annotation = field.annotation
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True), annotation)
    bounds = [
        f"{word} {getattr(bound, attribute):g}"
        for bound in field.metadata
        for attribute, word in (("ge", "from"), ("le", "to"))
        if getattr(bound, attribute, None) is not None
    ]
    words = type_in_words(annotation)
    return f"`{name}`", f"{words} {' '.join(bounds)}".strip(), default, _one_line(field.description or "")


def type_in_words(annotation: Any) -> str:
    """Return an annotation in the words of the reference: `text or list of texts`."""
    if get_origin(annotation) is Annotated:
        return type_in_words(get_args(annotation)[0])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if origin in (Union, types.UnionType):
        return " or ".join(type_in_words(each) for each in arguments if each is not types.NoneType)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin is list:
        return f"list of {_plural(arguments[0])}"
    if origin is dict:
        return f"table of {_plural(arguments[1])}"
    raise TypeError(f"no words for {annotation}")


def _plural(annotation: Any) -> str:
    return " or ".join(word if word == _WORDS[bool] else f"{word}s" for word in _each_in_words(annotation))


def _each_in_words(annotation: Any) -> list[str]:
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return [type_in_words(each) for each in (get_args(annotation) if is_union else (annotation,))]


def _default(value: object, annotation: Any) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{json.dumps(name)} = {json.dumps(each)}" for name, each in value.items())
        return f"`{{ {pairs} }}`"
    if isinstance(value, float) and annotation is float:
        return f"`{value}`"
    return f"`{json.dumps(value)}`"


def _argument_rows(function: Callable[..., object], text: str) -> list[tuple[str, ...]]:
    descriptions = _descriptions(text)
    return [
        (f"`{name}`", _python_default(parameter), descriptions[name])
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def _python_default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return f"`timedelta(days={value.days})`"
    return f"`{json.dumps(value) if isinstance(value, str) else value}`"


def _docstring_sections(doc: str) -> dict[str, str]:
    """Return the sections of a Google-style docstring by heading; the text before them has an empty heading."""
    sections: dict[str, list[str]] = {"": []}
    head = ""
    for line in doc.splitlines():
        if found := re.fullmatch(r"(Args|Returns|Raises):", line):
            head = found[1]
            sections[head] = []
        else:
            sections[head].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in sections.items()}


def _descriptions(text: str) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if found := re.fullmatch(r" {4}(\w+): (.*)", line):
            name = found[1]
            entries[name] = [found[2]]
        else:
            entries[name].append(line)
    return {name: _one_line("\n".join(lines)) for name, lines in entries.items()}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _paragraph(text: str) -> str:
    return textwrap.fill(_one_line(text), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]
    return "".join(f"{line}\n".replace("|  |", "| |") for line in lines)


def _cell(text: str) -> str:
    """Return a text as a cell of a Markdown table; outside code, < would begin a tag."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m stream_merge.cli.file.reference FOLDER")
    write_references(Path(sys.argv[1]))


if __name__ == "__main__":
    _main()
