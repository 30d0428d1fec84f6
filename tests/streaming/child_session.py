"""Sessions of child processes: set like the test run's own, without asking a repository for the jars again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import SESSION_CONF
from tests.jvm.jars import jar_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LAST_LINES = 40


def child_conf(spark: SparkSession, **conf: str) -> dict[str, str]:
    """Return the settings for a child's session; the arguments go over those of the test run."""
    of_session = spark.sparkContext.getConf()
    inherited = {key: of_session.get(key) for key in (*SESSION_CONF, *jar_conf(), "spark.jars")}
    if inherited["spark.jars"]:
        # spark-submit has resolved the packages to files; a cluster's own Spark may need neither.
        inherited.pop("spark.jars.packages", None)
    # A child runs for seconds: the second compiler would only take time from it.
    java_options = f"{inherited['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1"
    return {
        **{key: value for key, value in inherited.items() if value},
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
