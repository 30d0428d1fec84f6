"""How the tests' JVMs get Delta Lake: from their class path, where `python -m tests.class_archive` has prepared one.

Else as users do, by the package, which each JVM resolves anew, and copies all jars of. What is on the class path from
the start can be in the archive of classes, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from stream_merge.packages import delta_package

FILE_SYSTEM = "ProcessFreeFileSystem"
FILE_CONTEXT = "ProcessFreeFileContext"


def jar_conf() -> dict[str, str]:
    """Return the settings; STREAM_MERGE_TEST_CLASSES names the archive beside which the class path is described."""
    package = delta_package()
    archive = os.environ.get("STREAM_MERGE_TEST_CLASSES")
    described = description(Path(archive)) if archive else None
    if described is None or not described.exists():
        return {"spark.jars.packages": package}
    found = json.loads(described.read_text())
    if found["package"] != package or not all(Path(jar).exists() for jar in found["jars"]):
        return {"spark.jars.packages": package}
    return class_path_conf(found["jars"])


def class_path_conf(jars: list[str]) -> dict[str, str]:
    """Return the settings by which JVMs have these jars on their class path."""
    class_path = os.pathsep.join(jars)
    conf = {"spark.driver.extraClassPath": class_path, "spark.executor.extraClassPath": class_path}
    if any(Path(jar).stem == FILE_SYSTEM for jar in jars):
        conf["spark.hadoop.fs.file.impl"] = FILE_SYSTEM
        conf["spark.hadoop.fs.AbstractFileSystem.file.impl"] = FILE_CONTEXT
    return conf


def description(archive: Path) -> Path:
    """Return the file that says what the class path is."""
    return archive.with_suffix(".json")
