"""Finds out who runs a micro-batch (session, query, batch id), and begins again when an executor loses its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import DataFrame

from stream_merge.batch.caches import SinkCaches
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.batch.run import run
from stream_merge.bridge import sessions
from stream_merge.bridge.call_sites import without_call_sites
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, StreamMergeError, is_source_lost
from stream_merge.metrics import MergeResult
from stream_merge.table.exactly_once import BatchIdentity

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("stream_merge")

MAX_ATTEMPTS = 3
"""How often a micro-batch is begun whose kept rows are lost with the executors that have them."""


def batch_identity(config: SinkConfig, query: sessions.RunningQuery | None, batch_id: int) -> BatchIdentity:
    """Return under which ids a micro-batch is recorded in the sink's table.

    Raises:
        ConfigError: The sink has no `app_id`, and no query is known.
    """
    app_id = config.app_id or (query.query_id if query else None)
    if app_id is None:
        raise ConfigError(
            ["no streaming query is known to run this batch; set app_id, or use merge() outside a stream"]
        )
    return BatchIdentity(app_id=app_id, batch_id=batch_id, planned_ms=query.planned_ms if query else None)


def output_mode(config: SinkConfig, query: sessions.RunningQuery | None) -> str:
    """Return the output mode that the sink goes by: append, update or complete."""
    return config.output_mode or (query.output_mode if query else "update")


def run_micro_batch(
    config: SinkConfig,
    state: SinkCaches,
    batch: DataFrame,
    batch_id: int | None,
    query: sessions.RunningQuery | None = None,
    identity: BatchIdentity | None = None,
) -> MergeResult:
    """Merge a frame: a micro-batch of the running query, or outside a stream when there is no batch id.

    Args:
        config: The sink.
        state: The sink's caches.
        batch: The frame.
        batch_id: The micro-batch's number.
        query: The running query, where the caller knows it; it is looked for otherwise.
        identity: Under which ids the batch is recorded; by default those of the sink and the query.

    Raises:
        StreamMergeError: Nothing of the batch is in the table.
    """
    session = sessions.classic_session(batch)
    if query is None and batch_id is not None:
        query = sessions.running_query(session)
    if identity is None and batch_id is not None:
        identity = batch_identity(config, query, batch_id)
    with state.lock, without_call_sites(), sessions.active(spark := state.execution_session(session)):

        def merge() -> MergeResult:
            micro_batch = MicroBatch(
                config=config,
                caches=state,
                frame=sessions.moved(batch, spark),
                query=query,
                identity=identity,
                is_complete=output_mode(config, query) == "complete",
            )
            try:
                return run(micro_batch)
            except JVM_ERRORS as error:
                raise _named(translate(error), micro_batch) from error
            except StreamMergeError as error:
                _named(error, micro_batch)
                raise

        result = begun_again(merge, config.target)
    _tell(config, result)
    return result


def _named(error: StreamMergeError, micro_batch: MicroBatch) -> StreamMergeError:
    """Let an error say of which table and batch it is, unless it does, or is of the sink's options."""
    if not isinstance(error, ConfigError) and micro_batch.config.target not in str(error):
        error.args = (f"{micro_batch.name}: {error}",)
    return error


def begun_again(merge: Callable[[], T], name: str, max_attempts: int = MAX_ATTEMPTS) -> T:
    """Return what a call returns, which is made again where rows that it kept are lost with an executor.

    Args:
        merge: The call. What it has committed when it raises, it does not commit again.
        name: What is merged, for the log.
        max_attempts: How often the call is made at most.

    Raises:
        StreamMergeError: The call raised it, for the loss of rows `max_attempts` times.
    """
    try:
        return merge()
    except StreamMergeError as error:
        if max_attempts <= 1 or not is_source_lost(error):
            raise
        logger.warning("%s: the micro-batch begins again: %s", name, error)
    return begun_again(merge, name, max_attempts - 1)


def _tell(config: SinkConfig, result: MergeResult) -> None:
    if config.on_result is None:
        return
    try:
        config.on_result(result)
    except Exception:
        # The listener is the user's code, and the batch is in the table.
        logger.exception("%s: on_result raised; the batch is committed all the same", config.target)
