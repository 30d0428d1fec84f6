"""The session a batch belongs to, the session it is executed in, and the streaming query that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from stream_merge.bridge.jvm import java_class, optional
from stream_merge.errors import ConnectNotSupportedError

ADAPTIVE = "spark.sql.adaptive.enabled"


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query whose micro-batch is being merged.

    Attributes:
        query_id: The id that the checkpoint keeps.
        output_mode: append, update or complete.
        planned_ms: When the running batch was planned, in milliseconds since the epoch; the checkpoint keeps it for a replay.
        execution: Handle of the query's StreamExecution.
    """

    query_id: str
    output_mode: str
    planned_ms: int
    execution: Any

    @property
    def run_id(self) -> str:
        """The id of this run; every start of the query has another one."""
        return str(self.execution.runId())

    @property
    def is_active(self) -> bool:
        """Whether nobody has stopped the query."""
        return bool(self.execution.isActive())


def classic_session(frame: Any) -> SparkSession:
    """Return the session of a frame.

    Raises:
        ConnectNotSupportedError: The frame belongs to Spark Connect.
        TypeError: It is no DataFrame.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise ConnectNotSupportedError
    if not isinstance(frame, DataFrame):
        raise TypeError(f"a Spark DataFrame is expected, not {type(frame).__name__}")
    return frame.sparkSession


def session_id(spark: SparkSession) -> str:
    """Return the id that Spark gives each session."""
    return str(spark._jsparkSession.sessionUUID())


def execution_session(spark: SparkSession) -> SparkSession:
    """Return a session for the merge's own jobs: the given one, or a clone of it that plans adaptively.

    Spark switches adaptive execution off in a streaming query's session (all of them in 4.0 and 4.1, stateful ones later),
    where every shuffle of the merge would run the default 200 tasks. The clone has the same settings, functions and views.
    """
    if spark.conf.get(ADAPTIVE) == "true":
        return spark
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    clone.conf.set(ADAPTIVE, "true")
    return clone


@dataclass(slots=True)
class ExecutionSessions:
    """The session to execute in, kept from batch to batch, since a new clone would have to analyse everything anew."""

    _made: dict[str, SparkSession] = field(default_factory=dict)

    def session_for(self, spark: SparkSession) -> SparkSession:
        """Return the session to execute in for frames of this session."""
        key = session_id(spark)
        if key not in self._made:
            self._made.clear()
            self._made[key] = execution_session(spark)
        return self._made[key]


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make the session the active one of this thread, where Delta looks for settings, and restore what was."""
    sessions = java_class(spark._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = optional(sessions.getActiveSession())
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before is None:
            sessions.clearActiveSession()
        else:
            sessions.setActiveSession(before)


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the Spark jobs of the block in the UI, and restore the description that was."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setLocalProperty("spark.job.description", text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


def running_query(spark: SparkSession) -> RunningQuery | None:
    """Return the streaming query that calls us with a frame of this session, or None outside `foreachBatch`."""
    execution = _execution_of_thread(spark) or _execution_of_session(spark)
    if execution is None:
        return None
    return RunningQuery(
        query_id=str(execution.id()),
        output_mode=str(execution.outputMode()).lower(),
        planned_ms=int(execution.lastExecution().offsetSeqMetadata().batchTimestampMs()),
        execution=execution,
    )


def _execution_of_thread(spark: SparkSession) -> Any:
    """Return the StreamExecution whose thread this is, or None."""
    return _owner(java_class(spark._jvm, "java.lang.Thread").currentThread())


def _execution_of_session(spark: SparkSession) -> Any:
    """Return the running query that made this session, for a sink that is called in a thread of the user's own.

    The registries of queries do not help: each session has its own, and the frame's session is a clone that none knows.
    """
    threads = java_class(spark._jvm, "java.lang.Thread").getAllStackTraces().keySet()
    for thread in threads:
        execution = _owner(thread)
        if execution is not None and execution.sparkSessionForStream().equals(spark._jsparkSession):
            return execution
    return None


def _owner(thread: Any) -> Any:
    """Return the StreamExecution of a query's thread: its class is an inner one, so the thread knows its owner."""
    if "StreamExecution" not in str(thread.getClass().getName()):
        return None
    owner = thread.getClass().getDeclaredField("$outer")
    owner.setAccessible(True)
    return owner.get(thread)


def moved(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the frame as one of another session, which plans and executes it."""
    if frame.sparkSession._jsparkSession.equals(spark._jsparkSession):
        return frame
    dataset = java_class(spark._jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, frame._jdf.queryExecution().analyzed()), spark)


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame's rows for the block, and give a frame of them whose plan ends there.

    With the frame itself, Spark would analyse all that led to it anew for every job, only to find it in its cache.
    """
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        spark = frame.sparkSession
        plan = frame._jdf.queryExecution().withCachedData()
        dataset = java_class(spark._jvm, "org.apache.spark.sql.classic.Dataset")
        yield DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)
    finally:
        frame.unpersist(blocking=True)
