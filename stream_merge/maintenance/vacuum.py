"""Runs Delta's VACUUM once in a while, and remembers when in the table's folder."""

from __future__ import annotations

import logging

from stream_merge.bridge import maintenance
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.small_files import read_text, write_text
from stream_merge.bridge.table import Table
from stream_merge.steps import reached

logger: logging.Logger = logging.getLogger("stream_merge")

INTERVAL_MS = 24 * 3600 * 1000
"""At most once a day, whatever process and whichever sink of the table."""

_NOTE = "_stream_merge/vacuum"


def vacuum_if_due(table: Table, now_ms: int) -> bool:
    """Run VACUUM if the last one of any sink of the table was a day ago; return whether it ran.

    The first call for a table only notes the time: a new table has nothing to remove.

    Raises:
        Py4JJavaError: VACUUM failed. The next one is due after the interval all the same.
    """
    path = table.path(_NOTE)
    last = _noted(table, path)
    if last is not None and 0 <= now_ms - last < INTERVAL_MS:
        return False
    # Before it runs: if it fails, or the process is killed, the next batch does not try it again.
    write_text(table.spark, path, str(now_ms))
    if last is None:
        return False
    reached("vacuuming")
    maintenance.vacuum(table)
    return True


def _noted(table: Table, path: str) -> int | None:
    try:
        text = read_text(table.spark, path)
    except JVM_ERRORS as error:
        logger.warning("%s: the time of the last VACUUM cannot be read: %s", table.name, error)
        return None
    return int(text) if text is not None and text.isdecimal() else None
