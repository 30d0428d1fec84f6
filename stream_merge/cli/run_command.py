"""Implements `stream-merge run`: one run of a pipeline with its endpoint and its display."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from stream_merge import MergeResult
from stream_merge.cli.checks.catalog import find_catalog_faults
from stream_merge.cli.checks.validate import validate as validate_offline
from stream_merge.cli.errors import ExitCode
from stream_merge.cli.file.faults import PipelineFileError
from stream_merge.cli.query.sources import check_brokers
from stream_merge.cli.query.tables import build_sink, known_targets, router_of
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.run.runner import Runner
from stream_merge.cli.run.session import start_session, stopped_after
from stream_merge.cli.run.stopping import StopSignals
from stream_merge.cli.show.endpoint import Endpoint
from stream_merge.cli.show.live import LiveView, result_line
from stream_merge.cli.show.live_page import RecentResults, served_page
from stream_merge.cli.show.parked import lines_of, of_pipeline, read_at_rest
from stream_merge.cli.show.prometheus import Metrics

if TYPE_CHECKING:
    from rich.console import Console

    from stream_merge.cli.file.load import LoadedPipeline

logger: logging.Logger = logging.getLogger("stream_merge.cli")


def run_pipeline(loaded: LoadedPipeline, console: Console | None, *, once: bool) -> ExitCode:
    """Run a pipeline with its endpoint and its display.

    Args:
        loaded: The pipeline file.
        console: The terminal to show progress on, if any.
        once: Whether to merge what is available and end.

    Raises:
        PipelineError: The pipeline cannot start, or its query failed for good.
    """
    pipeline, mask = loaded.pipeline, loaded.secrets.mask
    progress, recent = Progress(pipeline.pipeline.name), RecentResults()
    metrics = Metrics(progress, pipeline.pipeline.name, mask)
    # Before Spark, which takes seconds to start, so that faults of the file, the broker or the port show at once.
    faults = validate_offline(loaded, None)
    if faults:
        raise PipelineFileError(faults, loaded.path)
    merge = build_sink(pipeline, _observer(progress, metrics.on_result, recent.on_result))
    targets = known_targets(pipeline)
    metrics.expect(targets)
    recent.expect(targets)
    router = router_of(merge)
    if router is not None:
        progress.watch_parked(lambda: router.parked)
    check_brokers(pipeline.source)
    with ExitStack() as stack:
        if pipeline.metrics.prometheus_port is not None:
            address, port = pipeline.metrics.prometheus_address, pipeline.metrics.prometheus_port
            stack.enter_context(Endpoint(metrics, address, port, served_page(progress, recent, mask)))
        if console is not None:
            stack.enter_context(LiveView(console, progress, mask))
        try:
            return _run_on_spark(loaded, merge, progress, metrics.on_failure, once=once)
        finally:
            progress.set_state(State.ENDED)


def _run_on_spark(
    loaded: LoadedPipeline,
    merge: Callable[..., None],
    progress: Progress,
    on_failure: Callable[[], None],
    *,
    once: bool,
) -> ExitCode:
    pipeline = loaded.pipeline
    logger.info("starting pipeline %s from %s", pipeline.pipeline.name, loaded.path)
    spark = start_session(pipeline, loaded.secrets)
    # After Spark has started, since PySpark installs its own handler for SIGINT.
    with stopped_after(spark), StopSignals() as signals:
        faults = list(find_catalog_faults(spark, loaded))
        if faults:
            raise PipelineFileError(faults, loaded.path)
        code = Runner(spark, pipeline, merge, progress, signals, once=once, on_failure=on_failure).run()
        parked = progress.snapshot().parked
        if once and not parked:
            # Without new records there was no micro-batch to try the tables at rest.
            at_rest = read_at_rest(spark, pipeline.pipeline.parking)
            parked = of_pipeline(at_rest.tables, pipeline)
            if at_rest.problem is not None:
                logger.warning("%s", loaded.secrets.mask(at_rest.problem))
        for line in lines_of(parked, loaded.secrets.mask):
            logger.error("%s", line)
        reason = "everything available is merged" + " or parked" * bool(parked)
        if signals.received is not None:
            reason = "stopped by a signal"
        logger.info("ended: %s", reason if code is ExitCode.OK else "a signal interrupted the running micro-batch")
        # A scheduler has to notice; who stops a pipeline by a signal does not ask for its state.
        return ExitCode.PARKED if once and code is ExitCode.OK and parked else code


def _observer(progress: Progress, *others: Callable[[MergeResult], None]) -> Callable[[MergeResult], None]:
    """Return the callback for the result of each table and micro-batch."""

    def observe(result: MergeResult) -> None:
        progress.on_result(result)
        for other in others:
            other(result)
        logger.info("%s", result_line(result, progress.total_offset_lag()))

    return observe
