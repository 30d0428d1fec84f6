"""Checks that this machine has a Java that Spark 4 can run on.

It needs only the standard library, so it can run before anything is installed: `python3 -I stream_merge/java.py` prints
nothing and exits with 0, or prints one sentence and exits with 1. Its optional argument is the version of Spark to be
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
FIRST_SPARK_WITH_VECTORS = (4, 2)

_REMEDY = f"install a JDK {OLDEST_JAVA} or newer and put its java on PATH, or point JAVA_HOME to it"


def find_java_fault(environ: Mapping[str, str] = os.environ, spark_version: str | None = None) -> str | None:
    """Return one sentence about the fault of the Java that Spark would start, or None if there is none.

    It looks for Java as Spark's launcher does: JAVA_HOME/bin/java if JAVA_HOME is set, else java on PATH.

    Args:
        environ: The environment to look in.
        spark_version: Version of Spark; by default that of the installed pyspark, or the newest if none is installed.
    """
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH", ""))
    if java is None:
        return f"Spark needs Java {OLDEST_JAVA} or newer, and there is no java on PATH: {_REMEDY}."
    version = _read_major_version(_run(java, "-version", environ=environ))
    if version is None:
        origin = ", where JAVA_HOME points," if home else ""
        return f"Spark needs Java {OLDEST_JAVA} or newer, and {java}{origin} does not run: {_REMEDY}."
    if version < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is Java {version}: {_REMEDY}."
    if _needs_vectors(spark_version) and VECTOR_MODULE not in _run(java, "--list-modules", environ=environ):
        return f"Spark 4.2 needs Java's module {VECTOR_MODULE}, which {java} was built without: {_REMEDY}."
    return None


def _needs_vectors(spark_version: str | None) -> bool:
    if spark_version is None:
        try:
            spark_version = installed_version("pyspark")
        except PackageNotFoundError:
            return True
    found = re.match(r"(\d+)\.(\d+)", spark_version)
    return found is None or (int(found.group(1)), int(found.group(2))) >= FIRST_SPARK_WITH_VECTORS


def _run(java: str, argument: str, *, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [java, argument], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(environ), check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout


def _read_major_version(output: str) -> int | None:
    # Up to Java 8 the major version is the second number: "1.8.0_392".
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else None


def main() -> int:
    """Print the fault, if there is one, and return the exit code."""
    fault = find_java_fault(spark_version=sys.argv[1] if len(sys.argv) > 1 else None)
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
