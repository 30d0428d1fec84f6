"""Starts the Spark session of a pipeline, and keeps Spark's own output off the terminal.

The JVM writes Ivy's downloads and its log to the output streams that it was started with. Here these are a pipe, which
a thread reads into Python's logging (logger `spark`, level DEBUG). So nothing of it disturbs a live display, all of it
passes the filter for secrets, `--log-level debug` shows it, and its last lines tell why a start failed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stream_merge.cli.errors import ExitCode, PipelineError, StopNow, missing_package
from stream_merge.cli.file.pipeline import Pipeline, Source, SparkSettings
from stream_merge.cli.file.secrets import MASK
from stream_merge.cli.query.packages import find_packages
from stream_merge.cli.run.spark_process import starting_jvm
from stream_merge.java import find_java_fault
from stream_merge.packages import AVRO_LIMITS, log_store_jar
from stream_merge.table.log_stores import CONDITIONAL_CREATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.cli.file.secrets import Secrets

logger: logging.Logger = logging.getLogger("stream_merge.cli")
spark_logger: logging.Logger = logging.getLogger("spark")

DEFAULT_CONF = {
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    # Otherwise, stopping the pipeline could wait forever for a query that waits for a broker or a storage; no
    # micro-batch is being merged then.
    "spark.sql.streaming.stopTimeout": "10s",
    # A pipeline runs for months, and the UI's history of old batches takes the driver's memory.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark allocates a page of memory for every hash table, even for three rows: without this up to 64 MB, depending on
    # the heap.
    "spark.buffer.pageSize": "2m",
    # Spark caches compiled code, by default 100 classes for the whole process. A batch of change data needs nearly as
    # many, so most would be compiled again for each batch.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Defaults that the pipeline file can override."""

_KEPT_LINES = 400
_SECONDS_BETWEEN_WARNINGS = 60
_EXTENSIONS = "spark.sql.extensions"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_PACKAGES = "spark.jars.packages"
_JARS = "spark.jars"
_LOG_STORE = "spark.delta.logStore."
_REPOSITORIES = "spark.jars.repositories"
_REDACTION = "spark.redaction.regex"
_SPARK_REDACTION = "(?i)secret|password|token|access[.]?key"
"""Spark's own default."""
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_DEFAULT_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
# A part of a value, such as a folder in a path, may be a text that is a secret elsewhere.
_SECRET_PROPERTY = re.compile(
    rf"=[\"']?{re.escape(MASK)}(?:[\"'\s]|$)|(?:pass|secret|token|credential)[\w.-]*=\S*{re.escape(MASK)}",
    re.IGNORECASE,
)
# For the second kind, the repository has the description but not the package.
_UNRESOLVED = re.compile(r"unresolved dependency: ([^\s:]+):|download failed: ([^\s!]+)!")
_NO_BROKER = re.compile(
    r"NetworkClient: .*(?:Connection to node \S+ \((?P<address>[^)]*)\) could not be established"
    r"|Error connecting to node (?P<unknown>\S+) \()"
)


def start_session(pipeline: Pipeline, secrets: Secrets) -> SparkSession:
    """Start Spark for a pipeline, or return the running session.

    Args:
        pipeline: Its section `[spark]` overrides the defaults, and its source determines the packages.
        secrets: See `start_spark`.

    Raises:
        PipelineError: There is no suitable Java, packages cannot be fetched, or Spark does not start.
    """
    return start_spark(
        pipeline.spark,
        secrets,
        name=pipeline.pipeline.name,
        source=pipeline.source,
        has_registry=pipeline.registry is not None,
    )


def start_spark(
    spark_settings: SparkSettings,
    secrets: Secrets,
    *,
    name: str,
    source: Source | None = None,
    has_registry: bool = False,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Start Spark with the section `[spark]` of a pipeline file, or return the running session.

    Args:
        spark_settings: The section.
        secrets: See `launch_settings`.
        name: The name of the pipeline or command.
        source: The source to read, if it needs packages.
        has_registry: Whether its records are in Avro, with schemas in a registry.
        defaults: Additional defaults.

    Raises:
        PipelineError: There is no suitable Java, packages cannot be fetched, or Spark does not start.
    """
    fault = find_java_fault()
    if fault is not None:
        raise PipelineError(fault, ExitCode.CANNOT_START)
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineError(missing_package(error), ExitCode.CANNOT_START) from None
    settings = find_settings(spark_settings, name=name, source=source, has_registry=has_registry, defaults=defaults)
    settings[_REDACTION] = _redaction(settings.get(_REDACTION), settings, secrets)
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way to ask
        return SparkSession.builder.getOrCreate()
    launched = SparkConf(loadDefaults=False).setAll(list(launch_settings(settings, secrets).items()))
    output = JvmOutput()
    try:
        with output.captured() as streams, starting_jvm():
            gateway = launch_gateway(conf=launched, popen_kwargs=streams)  # type: ignore[no-untyped-call]
        context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=gateway)
    except PySparkException as error:
        output.wait()
        raise explain_start_failure(output.lines, settings.get(_PACKAGES, ""), str(error)) from error
    except Exception as error:
        # Errors of py4j, which only the library's bridge may import.
        raise explain_start_failure(output.lines, settings.get(_PACKAGES, ""), str(error)) from error
    spark = SparkSession.builder.getOrCreate()
    if (context.master or "").startswith("local") and not context.getConf().contains(_SHUFFLE_PARTITIONS):
        # Spark's own default, 200, is for clusters.
        spark.conf.set(_SHUFFLE_PARTITIONS, str(max(2, context.defaultParallelism)))
    return spark


def stop_session(spark: SparkSession) -> None:
    """Stop Spark; if its JVM is gone, there is nothing to stop."""
    try:
        spark.stop()
    except Exception as error:
        logger.debug("Spark did not stop", exc_info=error)


@contextmanager
def stopped_after(spark: SparkSession) -> Iterator[None]:
    """Stop Spark after the block, unless a second signal ends the process, and the JVM with it, at once."""
    try:
        yield
    except StopNow:
        raise
    except BaseException:
        stop_session(spark)
        raise
    stop_session(spark)


def find_settings(
    spark_settings: SparkSettings,
    *,
    name: str,
    source: Source | None = None,
    has_registry: bool = False,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return Spark's settings: defaults, then the file's; packages and extensions of both; the LogStore's jar.

    Raises:
        PipelineError: pyspark or delta-spark is not installed.
    """
    given = {
        option: str(value).lower() if isinstance(value, bool) else str(value)
        for option, value in spark_settings.conf.items()
    }
    if spark_settings.master is not None:
        given["spark.master"] = spark_settings.master
    settings = {"spark.app.name": f"stream-merge {name}", **DEFAULT_CONF, **defaults, **given}
    if has_registry:
        limits = " ".join(f"-D{limit}={value}" for limit, value in AVRO_LIMITS.items())
        for option in _DEFAULT_JAVA_OPTIONS:
            settings[option] = f"{limits} {settings.get(option, '')}".rstrip()
    settings[_EXTENSIONS] = ",".join(dict.fromkeys([DEFAULT_CONF[_EXTENSIONS], *_listed(given.get(_EXTENSIONS, ""))]))
    found = find_packages(spark_settings, source, has_registry=has_registry)
    packages = list(dict.fromkeys([*found, *_listed(given.get(_PACKAGES, ""))]))
    if packages:
        settings[_PACKAGES] = ",".join(packages)
    if any(name.startswith(_LOG_STORE) and value == CONDITIONAL_CREATE for name, value in given.items()):
        settings[_JARS] = ",".join([*_listed(given.get(_JARS, "")), log_store_jar()])
    return settings


def launch_settings(settings: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    """Return the settings to start the JVM with: all except those with a secret, which Spark gets afterwards.

    Other users of the machine can see the JVM's command line. `spark.driver.*` and `spark.jars.*` have no effect later,
    so they must be there; a user name such as `kafka` also occurs in the packages' names.

    Raises:
        PipelineError: A repository's address has a password, or a Java option has a secret value.
    """
    for name in _JAVA_OPTIONS:
        options = settings.get(name, "")
        if secrets.mask(options) != options and _SECRET_PROPERTY.search(secrets.mask(options)):
            raise PipelineError(
                f'"{name}" in [spark.conf] has a value of the environment or a secret, which every user of this '
                "machine could see among the arguments of Spark's process: write the options into a file that only "
                'the pipeline may read, and "@/path/of/the/file" in their place.',
                ExitCode.USAGE,
            )
    repositories = settings.get(_REPOSITORIES, "")
    if "@" in repositories and secrets.mask(repositories) != repositories:
        raise PipelineError(
            f'"{_REPOSITORIES}" in [spark.conf] has a secret, which every user of this machine could see among the '
            "arguments of Spark's process: write repository and password into a file of Ivy, and its path into "
            '"spark.jars.ivySettings".',
            ExitCode.USAGE,
        )
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(("spark.driver.", "spark.jars")) or secrets.mask(value) == value
    }


def _redaction(given: str | None, settings: Mapping[str, str], secrets: Secrets) -> str:
    """Return the pattern of setting names whose values Spark hides in its UI and log, including those with a secret."""
    names = [re.escape(name) for name, value in settings.items() if secrets.mask(value) != value]
    return "|".join([given or _SPARK_REDACTION, *names])


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class JvmOutput:
    """The lines that the JVM writes, read by a thread that ends with the JVM.

    Attributes:
        lines: The last of them.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread: threading.Thread | None = None
        self._warned_at: float | None = None

    @contextmanager
    def captured(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments for the process that the block starts."""
        read_end, write_end = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(read_end,), name="jvm-output", daemon=True)
        self._thread.start()
        try:
            yield {"stdout": write_end, "stderr": write_end}
        finally:
            os.close(write_end)

    def wait(self, timeout: float = 5) -> None:
        """Wait until all output of an ended JVM has been read."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))
                spark_logger.debug("%s", line.rstrip("\n"))
                self._warn(line)

    def _warn(self, line: str) -> None:
        """Warn of a broker that is unreachable, or that redirects its clients to an unknown name.

        Kafka's client reports this every second, and Spark itself only after minutes.
        """
        no_broker = _NO_BROKER.search(line)
        now = time.monotonic()
        if no_broker is None or (self._warned_at is not None and now - self._warned_at < _SECONDS_BETWEEN_WARNINGS):
            return
        self._warned_at = now
        if no_broker["unknown"] is not None:
            logger.warning(
                "the Kafka broker advertises the address %s, which this machine cannot resolve; still trying. Correct "
                "its advertised.listeners, or make the name known here",
                no_broker["unknown"],
            )
            return
        logger.warning("no Kafka broker answers at %s; still trying", no_broker["address"].lstrip("/"))


def explain_start_failure(lines: Sequence[str], packages: str, error: str) -> PipelineError:
    """Return the error for a failed start of Spark, from the JVM's output.

    Args:
        lines: The last lines of the JVM.
        packages: The coordinates to fetch.
        error: PySpark's message.
    """
    text = "\n".join(lines)
    unresolved = list(dict.fromkeys(match[1] or match[2] for match in _UNRESOLVED.finditer(text)))
    if unresolved:
        names = ", ".join(coordinate.replace("#", ":").replace(";", ":") for coordinate in unresolved)
        unreachable = any(
            mark in text for mark in ("Server access error", "UnknownHostException", "Connection refused")
        )
        reason = "no repository can be reached" if unreachable else "no repository has them"
        return PipelineError(
            f"Spark could not fetch the packages {names}: {reason}. Check the names and the network; "
            '"spark.jars.ivySettings" and "spark.jars.repositories" in [spark.conf] set other repositories.',
            ExitCode.CANNOT_START,
        )
    if "requirement failed: Provided Maven Coordinates" in text:
        return PipelineError(
            f"A package is not written as group:artifact:version: {packages}. Correct packages in [spark].",
            ExitCode.CANNOT_START,
        )
    reason = _find_reason(lines) or error.strip().split("\n")[0]
    return PipelineError(
        f"Spark did not start: {reason.rstrip('.')}. --log-level debug shows its output.", ExitCode.CANNOT_START
    )


def _find_reason(lines: Sequence[str]) -> str | None:
    """Return the JVM's line that most likely says what is wrong."""
    for mark in (
        "Exception in thread",
        "Error: ",
        "Error occurred",
        "Invalid maximum heap size",
        "Unrecognized option",
    ):
        for line in lines:
            if mark in line:
                return re.sub(r'^Exception in thread "\S+" ', "", line.strip())
    return None
