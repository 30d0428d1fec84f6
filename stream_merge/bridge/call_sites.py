"""Keeps PySpark from recording the call site of each Column operation, which costs a dozen JVM calls.

For a sink's own expressions these would be thousands of calls a batch and a quarter of the batch's time, to record
lines of this library that say nothing to the reader of an error.
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
    """Make PySpark ask the thread first; the answer for other threads does not change.

    PySpark reads its own switch, `spark.python.sql.dataFrameDebugging.enabled`, once for the whole process, including
    the user's code.
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
    """Keep PySpark from recording where this thread's Columns are made, for the block."""
    _let_threads_choose()
    before = getattr(_thread, "is_quiet", False)
    _thread.is_quiet = True
    try:
        yield
    finally:
        _thread.is_quiet = before
