"""Tables that are made once and copied: CREATE TABLE and an append take longer than most merges that are tested."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

LOG = "_delta_log"


class TableTemplates:
    """Keeps a copy of each table that was made, and copies it where one of the same kind is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: dict[str, Path] = {}

    def make(self, key: str, path: str, create: Callable[[], None]) -> None:
        """Make the table at a path that nothing is at yet; what `create` makes there depends on nothing but the key."""
        template = self._templates.get(key)
        if template is not None:
            copy_table(template, Path(path))
            return
        create()
        files = [file for file in Path(path, LOG).glob("[!.]*") if file.is_file()]
        if any(file.suffix not in (".json", ".crc") for file in files):
            # A checkpoint of the log has the id of the table, too.
            return
        template = self._folder / uuid.uuid4().hex
        shutil.copytree(path, template)
        self._templates[key] = template


def copy_table(source: Path, target: Path) -> None:
    """Copy a table with its log; the copy has an id of its own."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(LOG))
    log = target / LOG
    log.mkdir()
    text = "".join(file.read_text() for file in source.glob(f"{LOG}/*.json"))
    ids = re.findall(r'"metaData":\{"id":"([^"]+)"', text)
    own = str(uuid.uuid4())
    # In the order of the versions, since the time of a version is that of its file. Hadoop's checksums would no longer
    # fit.
    for file in sorted(source.glob(f"{LOG}/[!.]*")):
        if file.is_dir():
            shutil.copytree(file, log / file.name)
            continue
        written = file.read_text()
        for each in {*ids}:
            written = written.replace(each, own)
        (log / file.name).write_text(written)
