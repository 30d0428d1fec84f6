"""Describes a fault of a pipeline file: the line, the option and a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_merge.cli.errors import ExitCode, PipelineError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SYNTAX_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TWICE = re.compile(r"Cannot declare \((.*)\) twice")
_QUOTED = r"'([^']*)'"
_SYNTAX = {
    "Invalid value": 'a value is missing or not valid; write text in quotes: name = "value"',
    "Invalid statement": "this is neither a section [name] nor an option: name = value",
    "Expected '=' after a key in a key/value pair": "an option is written name = value",
    "Expected newline or end of document after a statement": (
        "a value is followed by something else; write text in quotes"
    ),
    "Cannot overwrite a value": "this option or section appears twice",
    "Unclosed array": "the list is not closed: a ] or a comma is missing",
    "Unterminated string": "the text is not closed: a quote is missing",
    "Expected ']' at the end of a table declaration": "a section is written [name]",
    "Expected ']]' at the end of an array declaration": "a list of sections is written [[name]]",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a pipeline file.

    Attributes:
        line: Line of the file, from 1; None if there is none to point at.
        where: The option, as `tables[0].keys`; empty for the file as a whole.
        message: What is wrong and what to do.
    """

    line: int | None
    where: str
    message: str

    def text(self, path: Path) -> str:
        """Return the fault in one line, in the format of compilers: `pipeline.toml:12: tables[0].keys: ...`."""
        position = str(path) if self.line is None else f"{path}:{self.line}"
        return ": ".join(part for part in (position, self.where, self.message) if part)


class PipelineFileError(PipelineError):
    """A pipeline file cannot be used; the text has one line for each fault.

    Attributes:
        faults: All faults, in the order of the file.
        path: The file.
    """

    def __init__(self, faults: Sequence[Fault], path: Path = Path("pipeline.toml")) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.path = path
        super().__init__("\n".join(fault.text(path) for fault in self.faults), ExitCode.USAGE)


def where_of(location: Sequence[str | int]) -> str:
    """Return a location as text: `tables[0].keys`, `spark.conf."spark.driver.memory"`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        text += f".{key}" if text else key
    return text


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults in the order of the file, without duplicates; faults of the whole file come first."""
    return sorted(dict.fromkeys(faults), key=lambda fault: fault.line or 0)


def syntax_fault(error: ValueError, text: str) -> Fault:
    """Return the fault for an error of the TOML parser."""
    message = str(error)
    line: int | None = None
    if match := _SYNTAX_POSITION.search(message):
        message = message[: match.start()]
        line = int(match[1]) if match[1] else len(text.rstrip().splitlines()) or None
    if match := _TWICE.fullmatch(message):
        message = f"the section [{where_of(re.findall(_QUOTED, match[1]))}] appears twice"
    return Fault(line, "", f"this is not TOML: {_SYNTAX.get(message, message)}")
