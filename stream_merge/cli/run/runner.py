"""Runs a pipeline's query: starts it, watches it, restarts it after transient failures, stops it between batches."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stream_merge.bridge.read_limit import limit_rows
from stream_merge.cli.checks.removed_tables import read_before, warn_of_removed_tables
from stream_merge.cli.checks.source_checks import find_missing_topics, find_topics, is_missing_topic
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.durations import parse_interval
from stream_merge.cli.file.pipeline import KafkaSource, Pipeline
from stream_merge.cli.query.failures import Failure, describe
from stream_merge.cli.query.newest import observe_newest
from stream_merge.cli.query.sources import limits_batches, read_stream
from stream_merge.cli.query.topics import ReadTopics, refuse, watched_topics
from stream_merge.cli.run.batch_size import BatchSize
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.run.stopping import BatchGate, StopSignals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger: logging.Logger = logging.getLogger("stream_merge.cli")

FIRST_DELAY = 1.0
"""Seconds before a failed query restarts; doubled after each further failure, until a micro-batch is merged."""
LONGEST_DELAY = 60.0
MAX_RETRIES_ONCE = 5
"""The number of retries with `--once`, whose scheduler waits for it to end."""

_POLL_SECONDS = 1
_SETTLE_SECONDS = 10.0


class Runner:
    """One run of a pipeline.

    Args:
        spark: The session.
        pipeline: The pipeline.
        merge: The function for `foreachBatch` to call.
        progress: Receives the progress.
        signals: The signals that stop it.
        once: Whether to merge what is available and end.
        on_failure: Called when the query has failed.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        merge: Callable[[DataFrame, int], None],
        progress: Progress,
        signals: StopSignals,
        *,
        once: bool = False,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._progress = progress
        self._signals = signals
        self._once = once
        self._on_failure = on_failure
        self._merge = merge
        self._topics: ReadTopics | None = None
        self._gate = BatchGate(self._merge_checked)
        self._seen: tuple[int, str] | None = None
        self._has_looked_for_topics = False
        self._has_looked_for_tables = False
        source = pipeline.source
        is_adaptive = isinstance(source, KafkaSource) and not limits_batches(source)
        self._batch_size = BatchSize(parse_interval(pipeline.pipeline.trigger) or timedelta(0)) if is_adaptive else None

    def run(self) -> ExitCode:
        """Run until everything available is merged (`once`), a signal comes, or the query fails for good.

        A signal lets the running micro-batch finish, for up to `stop_timeout` seconds. Then the query is stopped
        anyway, and the exit code tells which signal it was.

        Returns:
            `OK`, or the exit code of the signal if a micro-batch was interrupted.

        Raises:
            PipelineError: The query failed; `failures` lists what is retried instead.
            StopNow: A second signal came.
        """
        delay = FIRST_DELAY
        num_retries = 0
        while True:
            merged_before = self._gate.num_merged
            try:
                return self._run_query()
            except Exception as error:
                logger.debug("the query failed", exc_info=error)
                failure = self._describe(self._gate.failure or error)
            self._progress.on_failure()
            self._on_failure()
            if self._gate.num_merged > merged_before:
                delay, num_retries = FIRST_DELAY, 0
            num_retries += 1
            gives_up = self._once and num_retries > MAX_RETRIES_ONCE
            if gives_up or not failure.is_retriable or self._gate.is_closed:
                raise PipelineError(failure.sentence, self._exit_code(failure))
            if not self._wait_for_retry(failure, delay):
                return ExitCode.OK
            delay = min(LONGEST_DELAY, delay * 2)

    def _describe(self, error: Exception) -> Failure:
        failure = describe(error)
        source = self._pipeline.source
        if isinstance(source, KafkaSource) and not failure.is_retriable and is_missing_topic(error):
            # Kafka's client does not name them.
            missing = find_missing_topics(self._spark, source)
            if missing:
                sentence = (
                    f"Kafka has no topic {', '.join(missing)} at {source.bootstrap_servers}: create it, or correct "
                    "topics in [source]."
                )
                return replace(failure, sentence=sentence)
        return failure

    def _exit_code(self, failure: Failure) -> ExitCode:
        # Once a micro-batch was merged, the start had succeeded.
        return failure.exit_code if self._gate.num_merged == 0 else ExitCode.FAILED

    def _wait_for_retry(self, failure: Failure, delay: float) -> bool:
        """Wait, and return whether to restart the query; False means that the pipeline should end."""
        logger.warning("%s Next attempt in %.0f seconds.", failure.sentence, delay)
        self._progress.set_state(State.RETRYING, failure.sentence, time.time() + delay)
        until = time.monotonic() + delay
        while time.monotonic() < until:
            if self._signals.received is not None:
                logger.info("stopping: no micro-batch is running")
                return False
            time.sleep(min(0.2, delay))
        return True

    def _merge_checked(self, batch_df: DataFrame, batch_id: int) -> None:
        if self._topics is not None:
            self._topics.check_batch(batch_id)
        if not self._has_looked_for_tables:
            self._has_looked_for_tables = True
            sources = read_before(self._pipeline, batch_id, self._topics)
            warn_of_removed_tables(self._spark, self._pipeline, sources)
        self._merge(batch_df, batch_id)

    def _run_query(self) -> ExitCode:
        self._gate.failure = None
        with watched_topics(self._spark, self._pipeline) as self._topics:
            source = self._pipeline.source
            if self._topics is not None and isinstance(source, KafkaSource):
                refuse(self._topics.made_anew(source.topics))
            return self._watch(self._start())

    def _watch(self, query: StreamingQuery) -> ExitCode:
        is_retried = self._progress.snapshot().state is State.RETRYING
        self._progress.set_state(State.RETRYING if is_retried else State.RUNNING)
        while not query.awaitTermination(_POLL_SECONDS):
            self._poll(query)
            if self._signals.received is not None:
                return self._stop(query)
            if self._seen is not None:
                self._tell_of_no_topic()
        self._poll(query)
        self._tell_of_no_topic()
        return ExitCode.OK

    def _tell_of_no_topic(self) -> None:
        """Warn once that a pattern matches no topic yet: it may be misspelt, or the topic may still come."""
        source = self._pipeline.source
        if self._has_looked_for_topics or self._gate.batch_id is not None or not isinstance(source, KafkaSource):
            return
        self._has_looked_for_topics = True
        if source.topic_pattern is not None and find_topics(self._spark, source) == []:
            logger.warning(
                "no topic at %s matches %s, so there is nothing to merge; create one, or correct topic_pattern in "
                "[source]",
                source.bootstrap_servers,
                source.topic_pattern,
            )

    def _start(self) -> StreamingQuery:
        settings = self._pipeline.pipeline
        max_offsets = self._batch_size.num_records if self._batch_size is not None else None
        stream = observe_newest(read_stream(self._spark, self._pipeline.source, max_offsets), self._pipeline)
        writer = stream.writeStream.foreachBatch(self._gate).queryName(settings.name)
        writer = writer.option("checkpointLocation", settings.checkpoint)
        writer = writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=settings.trigger)
        return writer.start()

    def _poll(self, query: StreamingQuery) -> None:
        """Record what the query has reported since the last call."""
        latest = _plain(query.lastProgress)
        if latest is None or (latest["batchId"], latest["timestamp"]) == self._seen:
            return
        reports, seen = [latest], self._seen or (-1, "")
        if latest["batchId"] > seen[0] + 1:
            # Several micro-batches since the last call, or before the first.
            recent = [report for each in query.recentProgress if (report := _plain(each)) is not None]
            reports = [report for report in recent if (report["batchId"], report["timestamp"]) > seen] or reports
        if self._progress.snapshot().state is State.RETRYING:
            # The restart alone proves nothing; a report shows that the query has reached the source and the tables.
            self._progress.set_state(State.RUNNING)
        for report in reports:
            if self._progress.on_query_progress(report):
                self._adapt_batch_size(query, report)
        self._seen = (latest["batchId"], latest["timestamp"])

    def _adapt_batch_size(self, query: StreamingQuery, report: dict[str, Any]) -> None:
        """Change the limit of the running query, if it can be; a query that is started later has it in any case."""
        size = self._batch_size
        if size is None or not size.adapt(report):
            return
        if limit_rows(self._spark, query, size.num_records):
            logger.info("micro-batches have at most %s records from now on", f"{size.num_records:,}")

    def _stop(self, query: StreamingQuery) -> ExitCode:
        """Let the running micro-batch finish, and end the query before the next one."""
        number = self._signals.received
        assert number is not None
        timeout = self._pipeline.pipeline.stop_timeout
        self._gate.close()
        waits = self._gate.is_merging
        notice = f"after batch {self._gate.batch_id}" if waits else "no micro-batch is running"
        logger.info("stopping on %s: %s", signal.Signals(number).name, notice)
        self._progress.set_state(State.STOPPING, f"stopping: {notice}; Ctrl-C again stops at once")
        until = time.monotonic() + timeout
        while self._gate.is_merging:
            if time.monotonic() > until:
                logger.warning(
                    "batch %s has not ended within stop_timeout = %d seconds and is interrupted; the next start merges "
                    "only the tables that lack it",
                    self._gate.batch_id,
                    timeout,
                )
                _end(query)
                return ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED
            time.sleep(0.1)
        if self._gate.failure is not None:
            failure = self._gate.failure
            _end(query)
            raise failure
        self._settle(query)
        _end(query)
        return ExitCode.OK

    def _settle(self, query: StreamingQuery) -> None:
        """Let Spark record that the last micro-batch is done; otherwise it would be planned again, and skipped."""
        until = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < until and query.isActive:
            latest = _plain(query.lastProgress)
            is_written = self._gate.batch_id is None or (
                latest is not None and latest["batchId"] >= self._gate.batch_id
            )
            if is_written and not query.status["isTriggerActive"]:
                break
            time.sleep(0.1)
        self._poll(query)


def _end(query: StreamingQuery) -> None:
    """Stop a query whose failure, if any, is known: it was refused a further micro-batch."""
    try:
        query.stop()
    except Exception as error:
        logger.debug("the query did not stop by itself", exc_info=error)


def _plain(progress: Any) -> dict[str, Any] | None:
    """Return the progress in Spark's JSON form, whose names do not differ between versions."""
    if progress is None:
        return None
    plain: dict[str, Any] = json.loads(progress.json)
    return plain
