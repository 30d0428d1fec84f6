"""Which Python runs a system: each peer's JAR is built for one minor version of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYSPARK_VERSION = "from importlib.metadata import version; print(version('pyspark'))"
FOREIGN_SPARKS = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYTHONHOME")
"""Environment variables that would bring in a Spark that is installed elsewhere on the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An environment with one minor version of Spark.

    Attributes:
        spark: The version, such as `4.0`.
        folder: The virtual environment, in the repository.
        remedy: The command that makes it.
    """

    spark: str
    folder: str
    remedy: str


SPARK_4_2 = Interpreter(spark="4.2", folder=".venv", remedy="make .venv/.installed-test")
SPARK_4_0 = Interpreter(
    spark="4.0",
    folder=".venv-oldest",
    remedy="make VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt .venv-oldest/.installed-test",
)
SPARK_3_5 = Interpreter(
    spark="3.5",
    folder=".venv-spark3.5",
    remedy="python3 -m venv .venv-spark3.5 && "
    ".venv-spark3.5/bin/pip install pyspark==3.5.6 delta-spark==3.3.2 pyroaring",
)


class NoInterpreterError(RuntimeError):
    """There is no Python with the version of Spark that a system needs."""


def find_python(interpreter: Interpreter) -> str:
    """Return the path of a Python with that Spark: this one, or that of the virtual environment.

    Raises:
        NoInterpreterError: Neither has it; the message says how to make one.
    """
    for python in (sys.executable, str(ROOT / interpreter.folder / "bin" / "python")):
        if (_pyspark_of(python) or "").startswith(interpreter.spark + "."):
            return python
    raise NoInterpreterError(f"There is no Python with Spark {interpreter.spark}: make one by `{interpreter.remedy}`.")


def run_python(python: str, *arguments: str) -> int:
    """Run a Python from the root of the repository, with its own Spark, and return its exit status."""
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_SPARKS}
    environment |= {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}
    return subprocess.run([python, *arguments], cwd=ROOT, env=environment, check=False).returncode


def _pyspark_of(python: str) -> str | None:
    if not Path(python).exists():
        return None
    found = subprocess.run([python, "-c", PYSPARK_VERSION], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
