"""Checks the local folders that a pipeline will write to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def local_path(text: str) -> Path | None:
    """Return the path if it is local, None for other storage."""
    if not _SCHEME.match(text):
        return Path(text)
    url = urlsplit(text)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def find_folder_fault(path: Path) -> str | None:
    """Return why a folder cannot be created or written to, or None if it can."""
    if path.is_dir():
        return None if os.access(path, os.W_OK | os.X_OK) else f"the folder {path} is not writable"
    for parent in (path, *path.absolute().parents):
        if parent.is_dir():
            is_writable = os.access(parent, os.W_OK | os.X_OK)
            return None if is_writable else f"the folder {path} cannot be created: {parent} is not writable"
        if parent.exists():
            return f"{parent} is a file, not a folder"
    return None
