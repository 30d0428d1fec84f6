"""Substitutes values from the environment, and masks secrets in everything that is shown."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from stream_merge.cli.file.positions import Location

MASK = "***"
MIN_LENGTH = 4
"""Shorter values are not masked: they occur in any text."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|jaas|credential|keystore[.]key$|private[.]?key|access[.]?key",
    re.IGNORECASE,
)
_PASSWORD_IN_TEXT = re.compile(
    r"""(?:password|secret|token)\s*=\s*(?:"((?:\\.|[^"\\])+)"|'([^']+)'|([^"'\s;,&]+))""", re.IGNORECASE
)
_PLAIN_VALUE = re.compile(r"true|false|null|none|\d{1,5}", re.IGNORECASE)
_MIN_LINE_LENGTH = 8

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(slots=True)
class Secrets:
    """The values that must not be shown; kept only to find them in texts."""

    _values: set[str] = field(default_factory=set, repr=False)
    _pattern: re.Pattern[str] | None = field(default=None, repr=False)

    def add(self, value: str) -> None:
        """Mask a value from now on, also in the forms that JSON and URLs write; short values are ignored."""
        parts = [value]
        if "\n" in value:
            # A log shows the lines of a certificate or a JAAS file one by one.
            parts += [line for line in (line.strip() for line in value.splitlines()) if len(line) >= _MIN_LINE_LENGTH]
        for part in parts:
            for form in (
                part,
                json.dumps(part)[1:-1],
                json.dumps(part, ensure_ascii=False)[1:-1],
                quote(part, safe=""),
            ):
                if len(form) >= MIN_LENGTH:
                    self._values.add(form)
        self._pattern = None

    def mask(self, text: str) -> str:
        """Return the text with `***` in place of every secret of four characters or more."""
        if not self._values:
            return text
        if self._pattern is None:
            # The longest first: a value may begin with another one.
            by_length = sorted(self._values, key=len, reverse=True)
            self._pattern = re.compile("|".join(re.escape(value) for value in by_length))
        return self._pattern.sub(MASK, text)

    def filter(self) -> logging.Filter:
        """Return a filter that masks log records, their arguments, exceptions and extra fields.

        Add it to handlers: the filter of a logger does not apply to records of its child loggers.
        """
        return _MaskingFilter(self.mask)


class _MaskingFilter(logging.Filter):
    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            # The arguments do not fit the message; logging would print them unmasked.
            message = f"{record.msg} {record.args}"
        record.msg = self._mask(message)
        record.args = None
        if record.exc_info:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        for name, value in list(vars(record).items()):
            if isinstance(value, str) and (name in ("exc_text", "stack_info") or name not in _RECORD_FIELDS):
                setattr(record, name, self._mask(value))
        return True


def substitute(
    data: Mapping[str, Any], environ: Mapping[str, str], secrets: Secrets
) -> tuple[dict[str, Any], list[tuple[Location, str]]]:
    """Return a file's values with `${NAME}` and `${NAME:-default}` filled in, and the faults found.

    `$${` stands for `${`. Values from the environment are added to the secrets, defaults are not. An empty variable
    counts as missing if there is a default, as in a shell.

    Args:
        data: The file as the parser returns it. Names of options are not substituted.
        environ: The environment.
        secrets: Receives the values, and those of options whose name says that they are secret.
    """
    faults: list[tuple[Location, str]] = []

    def filled(value: Any, location: Location) -> Any:
        if isinstance(value, str):
            text = _filled_text(value, environ, secrets, lambda fault: faults.append((location, fault)))
            _learn_secret_option(location, text, secrets)
            return text
        if isinstance(value, Mapping):
            return {name: filled(item, (*location, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [filled(item, (*location, index)) for index, item in enumerate(value)]
        return value

    return filled(dict(data), ()), faults


def is_secret(name: str, value: str) -> bool:
    """Return whether an option is secret, by its name or by a password or private key in its value."""
    if _SECRET_NAME.search(name):
        return value.lower() not in ("true", "false")
    return _PASSWORD_IN_TEXT.search(value) is not None or "PRIVATE KEY-----" in value


def _filled_text(text: str, environ: Mapping[str, str], secrets: Secrets, report: Callable[[str], None]) -> str:
    def value_of(match: re.Match[str]) -> str:
        if match["body"] is None:
            return "${"
        variable = _VARIABLE.fullmatch(match["body"])
        if variable is None or not match["end"]:
            report(
                "${ begins the name of an environment variable, ${NAME} or ${NAME:-default}; write $${ for a plain ${"
            )
            return match[0]
        name, default = variable["name"], variable["default"]
        value = environ.get(name)
        if value is None or (not value and default is not None):
            if default is None:
                report(f"the environment has no variable {name}; set it, or give a default: ${{{name}:-default}}")
                return match[0]
            return str(default)
        secrets.add(value)
        return value

    return _REFERENCE.sub(value_of, text)


def _learn_secret_option(location: Location, text: str, secrets: Secrets) -> None:
    if not any(isinstance(part, str) and _SECRET_NAME.search(part) for part in location):
        return
    if not _PLAIN_VALUE.fullmatch(text):
        secrets.add(text)
    for value in _first_groups(_PASSWORD_IN_TEXT.finditer(text)):
        secrets.add(value)


def _first_groups(matches: Iterable[re.Match[str]]) -> Iterable[str]:
    return (group for match in matches for group in match.groups() if group)
