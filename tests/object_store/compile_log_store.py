"""Compile the LogStore for S3 and put it into its jar: `python -m tests.object_store.compile_log_store`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pyspark

from stream_merge.packages import log_store_jar
from tests.services.maven import copy_jars

SOURCE = Path(log_store_jar()).parent / "ConditionalCreateLogStore.java"
CLASS_FILE = "streammerge/ConditionalCreateLogStore.class"


def compile_log_store() -> bytes:
    """Return the class.

    Raises:
        Unavailable: Maven could not get what it is compiled against.
    """
    storage = copy_jars("delta-storage", [f"io.delta:delta-storage:{version('delta-spark')}"], alone=True)
    classpath = os.pathsep.join([f"{storage}/*", f"{Path(pyspark.__file__).parent}/jars/*"])
    with tempfile.TemporaryDirectory() as folder:
        command = ["javac", "--release", "17", "-g:none", "-cp", classpath, "-d", folder, str(SOURCE)]
        subprocess.run(command, check=True)
        return Path(folder, CLASS_FILE).read_bytes()


def read_class() -> bytes:
    """Return the class that is in the jar."""
    with zipfile.ZipFile(log_store_jar()) as jar:
        return jar.read(CLASS_FILE)


def main() -> None:
    """Make the jar anew; the same class makes the same jar."""
    new = Path(f"{log_store_jar()}.new")
    entry = zipfile.ZipInfo(CLASS_FILE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(new, "w") as jar:
        jar.writestr(entry, compile_log_store())
    new.replace(log_store_jar())
    sys.stdout.write(f"{log_store_jar()}\n")


if __name__ == "__main__":
    main()
