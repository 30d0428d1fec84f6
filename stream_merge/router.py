"""`merge_router`: merges one stream into many tables, each by a sink of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stream_merge.clauses import Expression
from stream_merge.metrics import MergeResult
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
) -> MergeRouter:
    r"""Make a sink that merges the rows of each source of a stream into a table of its own, each exactly once.

    Each table has its own transaction, in which its sink records the micro-batch. When one fails, the others finish all the
    same; a restarted query merges the micro-batch into the missing tables only.

    Args:
        sinks: Which sink takes the rows of which source. A mapping from names; its keys may be compiled patterns, too, which
            must match the whole name. The named groups of a pattern fill the placeholders of its sink's `target` and
            `quarantine`: `{re.compile(r"shop\.public\.(?P<table>\w+)"): merge_sink("lake.{table}", keys="id")}`. An
            exact name goes before patterns; a name that two patterns match is an error. Or a function from the name to its
            sink, or None where there is none; its sinks are kept, so that it is asked once for each name. Sources that have
            the same sink are merged together.
        by: The name of a row's source: a column or an expression.
        prepare: Makes of the rows of one source what its sink merges: called with the name and the rows, in the thread of that
            table. Without, the sink gets the rows as they are. None says that there is nothing to merge: the table is left as if
            the source had no rows in the micro-batch, and has no result.
        max_parallel: How many tables are merged at a time. Each is merged in one thread; callbacks (`prepare`, `on_result`) of
            different tables may run at the same time.
        unknown: What happens to rows whose source is NULL or has no sink: "error" refuses the micro-batch before anything is
            merged; "ignore" leaves them out and logs their number as a warning.

    Returns:
        A router to be passed to `foreachBatch`. It is immutable and holds no SparkSession, and can be pickled if `sinks` and
        `prepare` can.

    Raises:
        ConfigError: Options contradict each other or are out of range; all faults are in one error.
    """
    return MergeRouter(
        RouterConfig(
            sinks=copied(sinks),
            by=by,
            prepare=prepare,
            max_parallel=max_parallel,
            unknown=unknown,
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

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge one micro-batch; this is what `foreachBatch` calls.

        Raises:
            RouterError: Some tables do not have the micro-batch; the error names each with its cause. The others have it.
            StreamMergeError: Nothing of the batch is in any table.
        """
        self._run(batch_df, batch_id)

    def merge(self, batch_df: DataFrame) -> dict[str, MergeResult]:
        """Run the same merges once, outside a stream, and return their results by name of the source.

        Without a batch id nothing tells a second call from the first: it merges again. After a `RouterError`, its `failures`
        say what is missing.

        Raises:
            RouterError: Some tables do not have the rows; the error names each with its cause. The others have them.
            StreamMergeError: No table has them.
        """
        return self._run(batch_df, None)

    def _run(self, batch_df: DataFrame, batch_id: int | None) -> dict[str, MergeResult]:
        from stream_merge.routing.routed_batch import RouterState, run_routed_batch

        # Made here rather than in __init__: importing the package must start nothing and need no pyspark.
        if self._cache is None:
            self._cache = RouterState()
        return run_routed_batch(self._config, self._cache, batch_df, batch_id)

    def __getstate__(self) -> RouterConfig:
        return self._config

    def __setstate__(self, config: RouterConfig) -> None:
        self._config = config
        self._cache = None
