"""Sessions of child processes: set like the test run's own, without asking a repository for the jars again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import SESSION_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JARS = ("spark.jars", "spark.jars.packages")
LAST_LINES = 40


def child_conf(spark: SparkSession, **conf: str) -> dict[str, str]:
    """Return the settings for a child's session; the arguments go over those of the test run."""
    inherited = {key: spark.sparkContext.getConf().get(key) for key in SESSION_CONF}
    # spark-submit has resolved the packages to files; a cluster's own Spark may need neither.
    jars = next(((key, value) for key in JARS if (value := spark.sparkContext.getConf().get(key))), None)
    # A child runs for seconds: the second compiler would only take time from it.
    java_options = f"{inherited['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1"
    return {
        **{key: value for key, value in inherited.items() if value is not None},
        **dict([jars] if jars else []),
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.memory": "1g",
        **conf,
    }


def start_session(conf: dict[str, str], warehouse: Path) -> SparkSession:
    """Start the session of a child process."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("stream_merge child").config("spark.sql.warehouse.dir", str(warehouse))
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def run_child(module: str, argument: str, output: Path, *, timeout: float = 300) -> int:
    """Run a module in a process group of its own, with its JVM, and return the exit code: -9 when it was killed."""
    with output.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", module, argument],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(timeout)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def last_lines(output: Path) -> str:
    """Return the end of what a child printed."""
    return "\n".join(output.read_text().splitlines()[-LAST_LINES:])
