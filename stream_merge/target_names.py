"""Compares the spellings of a table's path or name, without asking Spark."""

from __future__ import annotations

import posixpath


def table_key(target: str) -> str:
    """Return the same text for all spellings of one table's path or name."""
    return posixpath.normpath(target.strip()) if "/" in target else target.strip().lower()
