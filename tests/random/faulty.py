"""A file system of which the n-th call fails; compiled here, and put into the session that runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent / "filesystem"


class FaultyFileSystem:
    """The tables under `url` lie on the local file system, whose n-th call can be made to fail."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        import pyspark

        classes = folder / "classes"
        classpath = f"{Path(pyspark.__file__).parent}/jars/*"
        sources = [str(source) for source in FOLDER.glob("*.java")]
        subprocess.run(["javac", "-cp", classpath, "-d", str(classes), *sources], check=True)
        jvm: Any = spark._jvm
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        # That of the thread may be one that an ADD JAR has made, which Hadoop does not ask.
        conf.getClassLoader().addURL(jvm.java.net.URI(f"file:{classes}/").toURL())
        conf.set("fs.faulty.impl", "FaultyFileSystem")
        conf.set("fs.AbstractFileSystem.faulty.impl", "FaultyFileContext")
        self._faults = jvm.FaultyFileSystem

    @staticmethod
    def is_possible() -> bool:
        """Whether there is a compiler."""
        return shutil.which("javac") is not None

    @staticmethod
    def url(path: str) -> str:
        """Return the path of a table with the scheme of this file system."""
        return f"faulty:{path}"

    def arm(self, number: int, name: str, *, carried_out: bool, within: str = "") -> None:
        """Let the n-th call from now fail, before it is carried out or after; 0 for none.

        Args:
            number: Which call.
            name: Of which name; empty for all.
            carried_out: Whether it is carried out.
            within: What the paths of the calls that count contain.
        """
        self._faults.arm(number, name, within, carried_out)

    def failed(self) -> str:
        """Return which call failed since the last `arm`; empty if none did."""
        return str(self._faults.failed())
