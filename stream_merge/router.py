"""Provides `merge_router` and `MergeRouter`, which merge one stream into many tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stream_merge.clauses import Expression
from stream_merge.metrics import MergeResult, ParkedTable
from stream_merge.routing.config import Prepare, RouterConfig
from stream_merge.routing.routes import Sinks, copied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stream_merge.routing.routed_batch import RouterState


def merge_router(
    sinks: Sinks,
    *,
    by: Expression = "topic",
    prepare: Prepare | None = None,
    max_parallel: int = 4,
    unknown: str = "error",
    parking: str | None = None,
) -> MergeRouter:
    r"""Make a sink that merges the rows of each source of a stream into a table of its own, each exactly once.

    Each table has its own transaction, in which its sink records the micro-batch. When a table fails, the others still
    finish; a restarted query merges the micro-batch into the missing tables only.

    Args:
        sinks: The sink of each source: a mapping or a function. Keys of the mapping are source names or compiled
            patterns, which must match the whole name. Named groups of a pattern fill the placeholders in its sink's
            `target` and `quarantine`: `{re.compile(r"shop\.public\.(?P<table>\w+)"): merge_sink("lake.{table}",
            keys="id")}`. An exact name takes precedence over patterns; a name that matches two patterns is an error. A
            function takes the source name and returns its sink, or None if there is none; the router keeps its sinks
            and calls it once for each name. Sources with the same sink are merged together.
        by: The name of a row's source: a column or an expression.
        prepare: Turns the rows of one source into the rows to merge. It is called with the name and the rows, in the
            thread of that table. By default the sink gets the rows unchanged. If it returns None, there is nothing to
            merge: the table has no result, as if the source had no rows in the micro-batch.
        max_parallel: How many tables are merged at a time. Each is merged in one thread; the callbacks (`prepare`,
            `on_result`) of different tables may run at the same time.
        unknown: What to do with rows whose source is NULL or has no sink: "error" refuses the micro-batch before
            anything is merged; "ignore" drops them and logs their number as a warning.
        parking: Path or name of a Delta table in which the records of a table that fails are parked; it is created when
            the first table fails. The table then is at rest, and the micro-batch counts as done: the other tables go
            on. Further records of the table are parked as well, in order. It is tried again after a minute, then after
            2, 4 and so on up to 30, and always at the start of a run; once it can be merged, it catches up, exactly
            once. Without this option, a table that fails ends the query.

    Returns:
        A router to pass to `foreachBatch`. It is immutable and holds no SparkSession; it can be pickled if `sinks` and
        `prepare` can.

    Raises:
        ConfigError: Options contradict each other or are out of range; one error lists all faults.
    """
    return MergeRouter(
        RouterConfig(
            sinks=copied(sinks),
            by=by,
            prepare=prepare,
            max_parallel=max_parallel,
            unknown=unknown,
            parking=parking,
        )
    )


class MergeRouter:
    """An immutable merge into many Delta tables; pass it to `foreachBatch`, or call `merge` once."""

    def __init__(self, config: RouterConfig) -> None:
        config.check()
        self._config = config
        self._cache: RouterState | None = None

    def __str__(self) -> str:
        sinks = self._config.sinks
        return f"MergeRouter[{len(sinks) if isinstance(sinks, Mapping) else 'function'}]"

    def __repr__(self) -> str:
        return str(self)

    @property
    def config(self) -> RouterConfig:
        """The options of this router."""
        return self._config

    @property
    def parked(self) -> tuple[ParkedTable, ...]:
        """The tables at rest, as this process knows them: none before the first micro-batch of a run."""
        if self._cache is None:
            return ()
        with self._cache.lock:
            runs = list(self._cache.at_rest.values())
        return tuple(sorted((table.shown() for run in runs for table in run.own), key=lambda table: table.target))

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge one micro-batch; `foreachBatch` calls this.

        Raises:
            RouterError: Some tables lack the micro-batch; the error names each with its cause. The others have it.
            StreamMergeError: No table has anything of the batch.
        """
        self._run(batch_df, batch_id)

    def merge(self, batch_df: DataFrame) -> dict[str, MergeResult]:
        """Run the merges once, outside a stream, and return their results by source name.

        There is no batch id to recognize a repeated call: a second call merges again. After a `RouterError`, its
        `failures` name what is missing.

        Raises:
            RouterError: Some tables lack the rows; the error names each with its cause. The others have them.
            StreamMergeError: No table has the rows.
        """
        return self._run(batch_df, None)

    def _run(self, batch_df: DataFrame, batch_id: int | None) -> dict[str, MergeResult]:
        from stream_merge.routing.routed_batch import RouterState, run_routed_batch

        # Not in __init__: importing the package must start nothing and need no pyspark.
        if self._cache is None:
            self._cache = RouterState()
        return run_routed_batch(self._config, self._cache, batch_df, batch_id)

    def __getstate__(self) -> RouterConfig:
        return self._config

    def __setstate__(self, config: RouterConfig) -> None:
        self._config = config
        self._cache = None
