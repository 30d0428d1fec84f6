"""Sets up logging of a command: masks secrets, and shows stack traces only with `debug`."""

from __future__ import annotations

import copy
import logging
import sys
from enum import Enum

from rich.console import Console
from rich.logging import RichHandler

from stream_merge.cli.file.secrets import Secrets

COMMAND = "stream_merge.cli"
"""The logger of the command itself; no module of the library uses it."""


class LogLevel(str, Enum):
    """Log levels, from everything to errors only."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logging(level: LogLevel, secrets: Secrets, console: Console | None = None) -> None:
    """Send the process's log records to the terminal or to standard error.

    The command's own records are shown from `level` on. The library's records of each batch repeat the command's, so
    they are shown from WARNING on; the lines of Spark and py4j only with `debug`.

    Args:
        level: The lowest level to show.
        secrets: Masks secrets.
        console: The terminal of a live display, above which records are printed; None for standard error.
    """
    handler: logging.Handler
    if console is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s", debug=level is LogLevel.DEBUG))
    else:
        handler = RichHandler(console=console, show_path=False, markup=False, highlighter=None, log_time_format="%X")
        handler.setFormatter(_OneLine("%(message)s", debug=level is LogLevel.DEBUG))
    handler.addFilter(secrets.filter())
    if level is not LogLevel.DEBUG:
        handler.addFilter(_is_not_told_twice)
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    chosen = getattr(logging, level.value.upper())
    is_debug = level is LogLevel.DEBUG
    root.setLevel(chosen if is_debug else max(chosen, logging.WARNING))
    # The display shows what records of level INFO say.
    logging.getLogger(COMMAND).setLevel(max(chosen, logging.WARNING) if console and not is_debug else chosen)
    logging.getLogger("py4j").setLevel(logging.INFO if is_debug else logging.CRITICAL)
    # PySpark writes errors in SQL to standard error by a handler of its own, as JSON with all of the plan, in which no
    # secret is masked. The command says what went wrong.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    for noisy in ("matplotlib", "PIL", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _is_not_told_twice(record: logging.LogRecord) -> bool:
    """Drop the record of a router's failed table: the command reports it in a sentence of its own, with a remedy."""
    return not (record.name == "stream_merge" and record.module == "routed_batch" and record.levelno == logging.ERROR)


class _OneLine(logging.Formatter):
    """Omits stack traces, except with `debug`."""

    def __init__(self, text: str, *, debug: bool) -> None:
        super().__init__(text)
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        if not self._debug and (record.exc_info or record.exc_text or record.stack_info):
            record = copy.copy(record)
            record.exc_info = record.exc_text = record.stack_info = None
        return super().format(record)
