"""PySpark notes for each operation on a Column which line of code asked for it: a dozen calls to the JVM each.

Of a sink's own expressions that is thousands of calls a batch, a quarter of the batch's time, and the lines would be those of
this library, which say nothing to the reader of an error.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import utils

_thread = threading.local()


@functools.cache
def _let_threads_choose() -> None:
    """Make PySpark ask the thread first; all others are answered as before.

    Its own switch, `spark.python.sql.dataFrameDebugging.enabled`, is read once for the whole process, the user's code included.
    """
    original: Any = getattr(utils, "is_debugging_enabled", None)
    if original is None:
        return

    @functools.wraps(original)
    def is_debugging_enabled() -> bool:
        return not getattr(_thread, "is_quiet", False) and bool(original())

    utils.is_debugging_enabled = is_debugging_enabled


@contextmanager
def without_call_sites() -> Iterator[None]:
    """Keep PySpark from noting where this thread's Columns are made, for the block."""
    _let_threads_choose()
    before = getattr(_thread, "is_quiet", False)
    _thread.is_quiet = True
    try:
        yield
    finally:
        _thread.is_quiet = before
