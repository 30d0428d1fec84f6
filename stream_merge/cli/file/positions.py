"""Finds the line of each value in a TOML text; the standard library's parser does not report it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Location: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of the file to a value: `("tables", 0, "keys")`."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANKS = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""{1,3}', re.DOTALL),
    re.compile(r"'''.*?'''{1,3}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def find_lines(text: str) -> dict[Location, int]:
    r"""Return the line, from 1, on which each key and each element of a list begins.

    Args:
        text: TOML that the parser has accepted, with `\n` between lines.
    """
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.lines


def line_of(lines: Mapping[Location, int], location: Sequence[str | int]) -> int | None:
    """Return the line of a location, or of the innermost table or list around it; None if the file has none of them."""
    for end in range(len(location), 0, -1):
        line = lines.get(tuple(location[:end]))
        if line is not None:
            return line
    return None


class _Scanner:
    """Scans a valid text once, following its structure; reads no values except quoted keys."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Location, int] = {}
        self._text = text
        self._at = 0
        self._line = 1
        self._lengths: dict[Location, int] = {}

    def scan(self) -> None:
        table: Location = ()
        self._take(_BETWEEN)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._take(_BETWEEN)

    def _header(self) -> Location:
        line = self._line
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        keys = self._keys()
        self._at += 2 if is_array else 1
        table = self._resolve(keys[:-1], line)
        if is_array:
            array = (*table, keys[-1])
            self.lines.setdefault(array, line)
            index = self._lengths.get(array, 0)
            self._lengths[array] = index + 1
            table = (*array, index)
            self.lines[table] = line
            return table
        table = self._resolve(keys[-1:], line, table)
        if isinstance(table[-1], str):
            # A dotted header may have named the table before its own header.
            self.lines[table] = line
        return table

    def _resolve(self, keys: Sequence[str], line: int, table: Location = ()) -> Location:
        """Return the table that the keys lead to; for an array of tables, its last one."""
        for key in keys:
            table = (*table, key)
            self.lines.setdefault(table, line)
            if table in self._lengths:
                table = (*table, self._lengths[table] - 1)
        return table

    def _pair(self, table: Location) -> None:
        line = self._line
        keys = self._keys()
        self._at += 1
        self._take(_BLANKS)
        for key in keys:
            table = (*table, key)
            self.lines.setdefault(table, line)
        self._value(table)

    def _keys(self) -> list[str]:
        """Read a dotted key and move behind it."""
        keys = []
        while True:
            self._take(_BLANKS)
            keys.append(self._key())
            self._take(_BLANKS)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _key(self) -> str:
        if self._text[self._at] not in "\"'":
            return self._take(_BARE_KEY)
        raw = self._string()
        return str(tomllib.loads(f"key = {raw}")["key"])

    def _value(self, location: Location) -> None:
        match self._text[self._at]:
            case "[":
                self._list(location)
            case "{":
                self._inline_table(location)
            case '"' | "'":
                self._string()
            case _:
                self._take(_SCALAR)

    def _list(self, location: Location) -> None:
        index = 0
        self._at += 1
        self._take(_BETWEEN)
        while self._text[self._at] != "]":
            element = (*location, index)
            self.lines[element] = self._line
            self._value(element)
            self._comma()
            index += 1
        self._at += 1

    def _inline_table(self, location: Location) -> None:
        self._at += 1
        self._take(_BETWEEN)
        while self._text[self._at] != "}":
            self._pair(location)
            self._comma()
        self._at += 1

    def _comma(self) -> None:
        self._take(_BETWEEN)
        if self._text[self._at] == ",":
            self._at += 1
            self._take(_BETWEEN)

    def _string(self) -> str:
        for pattern in _STRINGS:
            if pattern.match(self._text, self._at):
                return self._take(pattern)
        raise AssertionError(f"line {self._line}: no string")

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise AssertionError(f"line {self._line}: expected {pattern.pattern}")
        self._at = match.end()
        self._line += match[0].count("\n")
        return match[0]
