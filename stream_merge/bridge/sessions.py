"""Provides the sessions of a batch and of its merge, and finds the streaming query that runs it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from stream_merge.bridge.jvm import java_class, optional
from stream_merge.errors import ConnectNotSupportedError

ADAPTIVE = "spark.sql.adaptive.enabled"
_COALESCE_CACHED = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
_COMPRESS_CACHED = "spark.sql.inMemoryColumnarStorage.compressed"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_MAX_LISTING_TASKS = 10_000
_LISTING_TASKS_PER_CORE = 16
_CHECKPOINT_BYTES_PER_TASK = 2 * 1024 * 1024
_MAX_SNAPSHOT_PARTITIONS = 50
_MAX_CLONES = 16
_PLAN_TEXTS = "spark.sql.ui.explainMode"


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query whose micro-batch is being merged.

    Attributes:
        query_id: The id that the checkpoint keeps.
        output_mode: append, update or complete.
        planned_ms: When the running batch was planned, in milliseconds since the epoch; the checkpoint keeps it for a
            replay.
        execution: Handle of the query's StreamExecution.
    """

    query_id: str
    output_mode: str
    planned_ms: int
    execution: Any

    @property
    def run_id(self) -> str:
        """The id of this run, which changes with every start of the query."""
        return str(self.execution.runId())

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint."""
        return str(self.execution.resolvedCheckpointRoot())

    @property
    def is_active(self) -> bool:
        """Whether the query is active: nobody has stopped it."""
        return bool(self.execution.isActive())


def classic_session(frame: Any) -> SparkSession:
    """Return the session of a frame.

    Raises:
        ConnectNotSupportedError: The frame belongs to Spark Connect.
        TypeError: It is not a DataFrame.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise ConnectNotSupportedError
    if not isinstance(frame, DataFrame):
        raise TypeError(f"expected a Spark DataFrame, got {type(frame).__name__}")
    return frame.sparkSession


@dataclass(frozen=True, slots=True)
class _Known:
    """What a session never changes: its id, and the handle of its settings. A batch asks for both a dozen times."""

    id: str
    settings: Any


_KNOWN: WeakKeyDictionary[SparkSession, _Known] = WeakKeyDictionary()


def _known(spark: SparkSession) -> _Known:
    known = _KNOWN.get(spark)
    if known is None:
        session = spark._jsparkSession
        _KNOWN[spark] = known = _Known(str(session.sessionUUID()), session.sessionState().conf())
    return known


def session_id(spark: SparkSession) -> str:
    """Return the id that Spark gives each session."""
    return _known(spark).id


def settings_fingerprint(spark: SparkSession) -> int:
    """Return a number that changes with the session's settings, on which analysis depends."""
    # A copy: a merge in another thread of the session may commit, and Delta then changes the settings.
    settings = _known(spark).settings.getAllConfs()
    # Without Delta's note of the session's own last commit, which analysis ignores. The hash of a Scala map depends
    # only on its entries.
    return int(settings.removed("spark.databricks.delta.lastCommitVersionInSession").hashCode())


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make the session the thread's active one, where Delta looks for settings, and restore the old one afterwards."""
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
def snapshot_partitions(spark: SparkSession, checkpoint_bytes: int | None) -> Iterator[None]:
    """Let Delta compute a table's state in a number of tasks that suits its log, unless the user has set one.

    Delta's default is 50, whatever the size of the log. For each checkpoint, every tenth commit, that makes 150 tasks,
    which for most tables take longer than the nine batches before.

    Args:
        spark: The session that executes the merge.
        checkpoint_bytes: Size of the table's newest checkpoint; None if unknown, which leaves the number to Delta.
    """
    if checkpoint_bytes is None or spark.conf.get(_SNAPSHOT_PARTITIONS, None) is not None:
        yield
        return
    num_partitions = min(_MAX_SNAPSHOT_PARTITIONS, 1 + checkpoint_bytes // _CHECKPOINT_BYTES_PER_TASK)
    session = _log_sessions.session_for(spark)
    session.conf.set(_SNAPSHOT_PARTITIONS, str(num_partitions))
    with active(session):
        yield


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the Spark jobs of the block in the UI, and restore the old description afterwards."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setLocalProperty("spark.job.description", text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


def running_query(spark: SparkSession) -> RunningQuery | None:
    """Return the streaming query that called with a frame of this session, or None outside `foreachBatch`."""
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
    """Return the StreamExecution that runs in this thread, or None."""
    return _owner(java_class(spark._jvm, "java.lang.Thread").currentThread())


def _execution_of_session(spark: SparkSession) -> Any:
    """Return the running query that made this session, for a sink called in a thread of the user's own.

    The query registries do not help: each session has its own, and the frame's session is a clone that none knows.
    """
    threads = java_class(spark._jvm, "java.lang.Thread").getAllStackTraces().keySet()
    for thread in threads:
        execution = _owner(thread)
        if execution is not None and execution.sparkSessionForStream().equals(spark._jsparkSession):
            return execution
    return None


def _owner(thread: Any) -> Any:
    """Return the StreamExecution of a query's thread, whose class is an inner class of it; None for other threads."""
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


def caching_session(spark: SparkSession, *, at_once: bool, in_one_task: bool) -> SparkSession:
    """Return the session in which rows are planned that are kept; see `kept_rows.persisted`."""
    sessions = _one_task_caching_sessions if in_one_task else _caching_sessions
    if at_once and not in_one_task:
        sessions = _immediate_caching_sessions
    return sessions.session_for(spark)


def planned_at_once(frame: DataFrame) -> DataFrame:
    """Move a frame with a small result to a session that plans everything before it runs, without adaptive execution.

    Adaptive execution runs each stage as a job and plans the rest again after it, which takes longer than such stages
    do. Without it, a shuffle is spread over as many tasks as run at a time.
    """
    return moved(frame, immediate_session(frame.sparkSession))


def immediate_session(spark: SparkSession) -> SparkSession:
    """Return the session for frames with a small result; see `planned_at_once`."""
    return _immediate_sessions.session_for(spark)


def plan(frame: DataFrame) -> DataFrame:
    """Plan a frame, so that its action need not, and return it."""
    frame._jdf.queryExecution().executedPlan()
    return frame


def vacuum_session(spark: SparkSession) -> SparkSession:
    """Return a session for VACUUM, which lists folders in a number of tasks that suits the cluster.

    The default is 10,000 tasks, half a minute on two cores, however small the table.
    """
    return _listing_sessions.session_for(spark)


def summary(frame: DataFrame, *aggregates: Column) -> Row:
    """Return aggregates over all rows of a frame."""
    return summaries(frame.agg(*aggregates))[0]


def summaries(*frames: DataFrame) -> list[Row]:
    """Return the rows of frames with one row each, in one job."""
    if len(frames) == 1:
        return planned_at_once(frames[0]).collect()
    parts = [
        frame.select(
            *[
                (F.struct("*") if other is frame else F.lit(None).cast(other.schema)).alias(f"part_{number}")
                for number, other in enumerate(frames)
            ]
        )
        for frame in frames
    ]
    rows = planned_at_once(reduce(DataFrame.union, parts)).collect()
    return [row[number] for number, row in enumerate(rows)]


class _Clones:
    """Clones of sessions with some settings changed; the rest follows the session, whose settings may change."""

    def __init__(self, settings: Callable[[SparkSession], Mapping[str, str]]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made: OrderedDict[str, tuple[int, SparkSession]] = OrderedDict()

    def session_for(self, spark: SparkSession) -> SparkSession:
        """Return the clone of a session, or the session itself if it has the settings."""
        settings = self._settings(spark)
        if all(spark.conf.get(name) == value for name, value in settings.items()):
            return spark
        key, fingerprint = session_id(spark), settings_fingerprint(spark)
        with self._lock:
            known = self._made.get(key)
            if known is None or known[0] != fingerprint:
                self._made[key] = known = (fingerprint, clone_of(spark, settings))
            self._made.move_to_end(key)
            if len(self._made) > _MAX_CLONES:
                self._made.popitem(last=False)
            return known[1]


def clone_of(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a clone of a session with some settings changed."""
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        clone.conf.set(name, value)
    if clone.conf.get(_PLAN_TEXTS) == "formatted":
        # Spark writes the plan of each job for its UI. In the default format, which lists it twice, that is a twentieth
        # of the time of a batch of changes.
        clone.conf.set(_PLAN_TEXTS, "simple")
    return clone


ADAPTIVE_CACHE = {ADAPTIVE: "true", _COALESCE_CACHED: "true"}
"""By default Spark caches the result of a shuffle in as many partitions as the shuffle has, 200, however few its rows,
and each job that reads them runs as many tasks. The setting that lets adaptive execution coalesce them is not ours to
change in the user's session."""


def _at_once(spark: SparkSession) -> Mapping[str, str]:
    num_tasks = min(int(spark.conf.get(_SHUFFLE_PARTITIONS) or 200), spark.sparkContext.defaultParallelism)
    return {ADAPTIVE: "false", _SHUFFLE_PARTITIONS: str(num_tasks)}


def _listing_tasks(spark: SparkSession) -> int:
    given = int(spark.conf.get(_LISTING_TASKS) or _MAX_LISTING_TASKS)
    return min(given, _LISTING_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)


_CACHE = ADAPTIVE_CACHE | {_COMPRESS_CACHED: "false"}
"""A batch is kept for a second and read once or twice: finding out how each column compresses best takes a third of the
time of the job that evaluates it. What does not fit into memory goes to disk."""

_caching_sessions = _Clones(lambda _: _CACHE)
_immediate_sessions = _Clones(_at_once)
_immediate_caching_sessions = _Clones(lambda spark: {**_at_once(spark), _COMPRESS_CACHED: "false"})
_one_task_caching_sessions = _Clones(lambda _: {ADAPTIVE: "false", _SHUFFLE_PARTITIONS: "1", _COMPRESS_CACHED: "false"})
_listing_sessions = _Clones(lambda spark: {_LISTING_TASKS: str(_listing_tasks(spark))})
_log_sessions = _Clones(lambda _: {_SNAPSHOT_PARTITIONS: "1"})
