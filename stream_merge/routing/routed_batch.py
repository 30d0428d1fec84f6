"""Merges one micro-batch into many tables: evaluates it once, merges table by table, reports failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from threading import RLock
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegralType, MapType, NullType, StructType

from stream_merge.batch.context import batch_identity, begun_again, output_mode
from stream_merge.batch.learning import learnt_options
from stream_merge.bridge import sessions
from stream_merge.bridge.execution_session import ExecutionSessions
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.self_read import find_self_read
from stream_merge.bridge.table import open_table, table_root
from stream_merge.bridge.threads import Outcomes, run_side_by_side
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, RouterError, TargetNotFoundError, UnknownSourceError, describe_sources
from stream_merge.metrics import MergeResult
from stream_merge.routing.config import RouterConfig
from stream_merge.routing.parking import Parking, may_park
from stream_merge.routing.parking_table import SOURCE_NAME, ParkingTable
from stream_merge.routing.routes import MAX_SOURCES, MadeSinks, Route, exact_sinks, find_sinks, routes_to
from stream_merge.routing.tables_at_rest import TablesAtRest
from stream_merge.sink import MergeSink
from stream_merge.sql import quote

logger: logging.Logger = logging.getLogger("stream_merge")


@dataclass(slots=True)
class RouterState:
    """The caches of one router in one process.

    Attributes:
        lock: Guards the caches, since a router may serve several queries.
        made: Sinks made from patterns or by a function.
        sessions: The sessions that execute the merges.
        checked_runs: By query id, the run in which the tables without rows were checked.
        at_rest: By query id, the tables at rest.
        quarantine_roots: The folders of quarantines, by path or name.
    """

    lock: Any = field(default_factory=RLock)
    made: MadeSinks = field(default_factory=MadeSinks)
    sessions: ExecutionSessions = field(default_factory=ExecutionSessions)
    checked_runs: dict[str, str] = field(default_factory=dict)
    at_rest: dict[str, TablesAtRest] = field(default_factory=dict)
    quarantine_roots: dict[str, str] = field(default_factory=dict)


def run_routed_batch(
    config: RouterConfig, state: RouterState, batch: DataFrame, batch_id: int | None
) -> dict[str, MergeResult]:
    """Merge a frame into the tables of its sources; with a batch id, as a micro-batch of the running query.

    Raises:
        RouterError: Some tables lack the batch.
        StreamMergeError: No table has it.
    """
    session = sessions.classic_session(batch)
    query = sessions.running_query(session) if batch_id is not None else None
    with state.lock:
        spark = state.sessions.session_for(session)
    with sessions.active(spark):
        received = sessions.moved(batch, spark)
        finished: dict[int, MergeResult | None] = {}

        def merge() -> dict[str, MergeResult]:
            try:
                with _named(received, config) as rows:
                    routed = RoutedBatch(
                        config=config,
                        state=state,
                        received=received,
                        rows=rows,
                        query=query,
                        batch_id=batch_id,
                        finished=finished,
                    )
                    return routed.run()
            except JVM_ERRORS as error:
                raise translate(error) from error

        return begun_again(merge, "router")


@contextmanager
def _named(batch: DataFrame, config: RouterConfig) -> Iterator[DataFrame]:
    """Evaluate the batch once and keep it for the block, with the name of each row's source as its last column."""
    if SOURCE_NAME in batch.columns:
        raise ConfigError([f"the column name {SOURCE_NAME} is reserved; rename the column"])
    by = config.by
    if isinstance(by, str):
        by = F.col(quote(by)) if by in batch.columns else F.expr(by)
    # A name that is not UTF-8 is another one in Python, and is nobody's.
    name = F.try_validate_utf8(by.cast("string"))
    with materialized(batch.select("*", name.alias(SOURCE_NAME))) as rows:
        yield rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedBatch:
    """A batch to merge into its tables.

    Attributes:
        config: The router.
        state: The router's caches.
        received: The batch as it arrived.
        rows: The evaluated batch, with the name of each row's source.
        query: The running query, or None.
        batch_id: The micro-batch's number; None outside a stream.
        finished: Results of the tables for which nothing is left to do, by the id of the sink object. When rows of the
            batch are lost, the merge begins again for the other tables.
    """

    config: RouterConfig
    state: RouterState
    received: DataFrame
    rows: DataFrame
    query: sessions.RunningQuery | None
    batch_id: int | None
    finished: dict[int, MergeResult | None]

    @property
    def spark(self) -> SparkSession:
        """The session that executes the merges."""
        return self.rows.sparkSession

    @property
    def name(self) -> str:
        """The batch's name in messages."""
        return "router" if self.batch_id is None else f"router: batch {self.batch_id}"

    def run(self) -> dict[str, MergeResult]:
        """Merge the batch into all tables.

        Raises:
            RouterError: Some tables lack the batch.
            StreamMergeError: No table has it.
        """
        with sessions.job_description(self.spark, f"{self.name}: find the sources"):
            num_rows = self._count_by_source()
        with self.state.lock:
            found = find_sinks(self.config.sinks, [name for name in num_rows if name is not None], self.state.made)
        self._check_unknown({name: count for name, count in num_rows.items() if name is None or found[name] is None})
        routes = routes_to({name: sink for name, sink in found.items() if sink is not None}, num_rows)
        parking = self._parking(found)
        if parking is not None:
            routes += parking.due(routes)
        idle = self._idle_sinks(routes)
        self._check_targets([*routes, *idle])
        if idle and self.batch_id is not None:
            self._check_not_behind(idle, self.batch_id)
        self.state.checked_runs |= self._run()
        outcomes = self._side_by_side({route: self._merging(route, parking) for route in routes})
        if parking is not None:
            parking.warn()
        self._raise_failures(routes, outcomes)
        return self._by_source(routes, outcomes.results)

    def _parking(self, found: Mapping[str, MergeSink | None]) -> Parking | None:
        """Return what merges or parks the tables of a micro-batch; None if failures are not parked.

        The parking table is read in the first micro-batch of a run.
        """
        if self.config.parking is None or self.batch_id is None:
            return None
        ((query_id, run_id),) = self._run().items()
        with self.state.lock:
            at_rest = self.state.at_rest.get(query_id)
            if at_rest is None or at_rest.run_id != run_id:
                table = ParkingTable(self.spark, self.config.parking)
                with sessions.job_description(self.spark, f"{self.name}: read {table.name}"):
                    at_rest = self.state.at_rest[query_id] = TablesAtRest(table, run_id, table.read())
                # Only the sink of a source may tell under which application id its records were parked.
                at_rest.app_ids |= self._app_ids(map(self._sink_if_any, sorted(at_rest.sources)))
            named = self.config.sinks.values() if isinstance(self.config.sinks, Mapping) else ()
            at_rest.app_ids |= {query_id, *self._app_ids([*found.values(), *named])}
            parked = {source for table in at_rest.own for source in table.sources} - found.keys()
            found = {**found, **{name: self._sink_if_any(name) for name in sorted(parked)}}
        return Parking(
            name=self.name,
            at_rest=at_rest,
            sinks=found,
            rows=self.rows,
            query=self.query,
            batch_id=self.batch_id,
            prepared=self._prepared,
        )

    @staticmethod
    def _app_ids(sinks: Iterable[MergeSink | None]) -> set[str]:
        return {sink.config.app_id for sink in sinks if sink is not None and sink.config.app_id}

    def _sink_if_any(self, name: str) -> MergeSink | None:
        """Return the sink of a source whose records were parked; what it leads to by now is no fault of this batch."""
        try:
            return find_sinks(self.config.sinks, [name], self.state.made)[name]
        except ConfigError:
            return None

    def _count_by_source(self) -> dict[str | None, int]:
        counts = self.rows.groupBy(SOURCE_NAME).count().limit(MAX_SOURCES + 1).collect()
        if len(counts) > MAX_SOURCES:
            raise ConfigError(
                [f"{self.name}: more than {MAX_SOURCES} sources have rows in it; is `by` the right column?"]
            )
        return {row[0]: row[1] for row in sorted(counts, key=lambda row: (row[0] is None, row[0]))}

    def _check_unknown(self, unknown: Mapping[str | None, int]) -> None:
        if not unknown:
            return
        if self.config.unknown == "error":
            raise UnknownSourceError(self.name, unknown)
        logger.warning("%s: no sink for %s; their rows were dropped", self.name, describe_sources(unknown))

    def _run(self) -> dict[str, str]:
        return {"": ""} if self.query is None else {self.query.query_id: self.query.run_id}

    def _idle_sinks(self, routes: Sequence[Route]) -> list[Route]:
        """Return the sinks without rows, only in the first batch of a run of the query."""
        if self._run().items() <= self.state.checked_runs.items():
            return []
        used = {id(route.sink) for route in routes}
        exact = {name: sink for name, sink in exact_sinks(self.config.sinks).items() if id(sink) not in used}
        return routes_to(exact, dict.fromkeys(exact, 0))

    def _check_targets(self, routes: Sequence[Route]) -> None:
        """Refuse what a router cannot merge correctly: one table with two sinks, and output mode Complete.

        Two sinks would record one batch id under one application id, and the second would be skipped.
        """
        owners: dict[str, Route] = {}
        faults = []
        for route in routes:
            config = route.sink.config
            if output_mode(config, self.query) == "complete":
                faults.append(
                    f"{route.name}: in output mode Complete a table without rows would keep its old ones; use update"
                )
            owner = owners.setdefault(self._root(config.target), route)
            if owner is not route:
                faults.append(
                    f"{owner.name} and {route.name} have different sinks for one table, {config.target}; "
                    "give sources of one table the same sink object, or one of them another target"
                )
            if self.batch_id is None and route.num_rows and self._reads(config.target):
                faults.append(f"{route.name}: the frame reads {config.target}; merge it with that table's own sink")
        for route in routes:
            quarantine = route.sink.config.quarantine
            taken = None if quarantine is None else owners.get(self._quarantine_root(quarantine))
            if taken is not None:
                faults.append(
                    f"{route.name}: the quarantine {quarantine} is the target of {taken.name}, too; "
                    "it needs a table of its own"
                )
        if faults:
            raise ConfigError(faults)

    def _quarantine_root(self, quarantine: str) -> str:
        """Return the folder of a quarantine; each is looked at once."""
        with self.state.lock:
            if quarantine not in self.state.quarantine_roots:
                self.state.quarantine_roots[quarantine] = self._root(quarantine)
            return self.state.quarantine_roots[quarantine]

    def _root(self, target: str) -> str:
        try:
            return table_root(self.spark, target)
        except JVM_ERRORS:
            if self.config.parking is None:
                raise
            return target  # Its log cannot be read, so that it will be at rest.

    def _reads(self, target: str) -> bool:
        """Whether the evaluated frame reads the target; its transaction would begin too late to see other writers."""
        try:
            return find_self_read(open_table(self.spark, target), self.received, None).is_read
        except TargetNotFoundError:
            return False

    def _check_not_behind(self, idle: Sequence[Route], batch_id: int) -> None:
        """Refuse a batch id that went backwards, also for the tables without rows in this batch.

        A lost or old checkpoint shows in the first batch of a run, but only in tables that were written recently.
        """

        def check(route: Route) -> None:
            identity = batch_identity(route.sink.config, self.query, batch_id)
            with sessions.active(self.spark):
                try:
                    identity.is_applied(open_table(self.spark, route.sink.config.target).begin())
                except TargetNotFoundError:
                    return
                except JVM_ERRORS as error:
                    raise translate(error) from error

        outcomes = self._side_by_side({route: partial(check, route) for route in idle})
        if self.config.parking is not None:
            # What else is wrong with a table without rows is no matter before it has some.
            broken = {route: error for route, error in outcomes.failures.items() if may_park(error, self.query)}
            outcomes.failures = {route: error for route, error in outcomes.failures.items() if route not in broken}
            for route, error in broken.items():
                logger.warning("%s: the table of %s cannot be looked at: %s", self.name, route.name, error)
        self._raise_failures(idle, replace(outcomes, results={}))

    def _merging(self, route: Route, parking: Parking | None) -> Callable[[], MergeResult | None]:
        def merge() -> MergeResult | None:
            if id(route.sink) not in self.finished:
                with sessions.active(self.spark):
                    own = partial(self._merge, route)
                    self.finished[id(route.sink)] = own() if parking is None else parking.merge_or_park(route, own)
            return self.finished[id(route.sink)]

        return merge

    def _merge(self, route: Route) -> MergeResult | None:
        rows = self._prepared(route.sink, route.names, self.rows)
        if rows is None:
            return None
        if self.batch_id is None:
            return route.sink.merge(rows)
        return route.sink.merge_micro_batch(rows, self.batch_id, self.query)

    def _prepared(self, sink: MergeSink, names: Sequence[str], rows: DataFrame) -> DataFrame | None:
        """Return the rows to merge of some sources, which are those of one sink; None if there are none."""
        prepare = self.config.prepare
        try:
            if prepare is None:
                return rows.where(F.col(SOURCE_NAME).isin(*names)).drop(SOURCE_NAME)
            prepared = [prepare(name, rows.where(F.col(SOURCE_NAME) == name).drop(SOURCE_NAME)) for name in names]
            frames = [frame for frame in prepared if frame is not None]
            _check_alike(sink.config, names, frames)
            _check_columns(names, frames)
            return reduce(DataFrame.unionByName, frames) if frames else None
        except JVM_ERRORS as error:
            raise translate(error) from error

    def _side_by_side(self, tasks: Mapping[Route, Callable[[], Any]]) -> Outcomes[Route, Any]:
        query = self.query
        return run_side_by_side(
            self.spark,
            tasks,
            max_parallel=self.config.max_parallel,
            may_begin=lambda: query is None or query.is_active,
        )

    def _raise_failures(self, routes: Sequence[Route], outcomes: Outcomes[Route, Any]) -> None:
        failures = outcomes.failures
        if not failures and not outcomes.pending:
            return
        for route in routes:
            if route in failures:
                logger.error("%s: %s failed", self.name, route.described, exc_info=failures[route])
        raise RouterError(
            self.name,
            {name: failures[route] for route in routes if route in failures for name in route.names},
            [f"{r.described}: {type(error).__name__}: {error}" for r in routes if (error := failures.get(r))],
            pending=[name for route in routes if route in outcomes.pending for name in route.names],
            results=self._by_source(routes, outcomes.results),
        ) from next(iter(failures.values()), None)

    def _by_source(
        self, routes: Sequence[Route], results: Mapping[Route, MergeResult | None]
    ) -> dict[str, MergeResult]:
        found = {name: result for route in routes if (result := results.get(route)) is not None for name in route.names}
        return dict(sorted(found.items()))


def _check_alike(config: SinkConfig, names: Sequence[str], frames: Sequence[DataFrame]) -> None:
    """Refuse sources of one table that bring different options: merged together, they would have those of one."""
    if config.learn is None or len(frames) < 2:
        return
    brought = {repr(sorted(learnt_options(config, frame).items())) for frame in frames}
    if len(brought) > 1:
        raise ConfigError([f"{', '.join(names)}: their rows have different keys and go to one table; separate them"])


def _check_columns(names: Sequence[str], frames: Sequence[DataFrame]) -> None:
    """Refuse sources of one table with other columns, or with types whose values a union would change in silence."""
    schemas = [{field.name.lower(): field for field in frame.schema.fields} for frame in frames]
    for schema in schemas[1:]:
        if schema.keys() != schemas[0].keys():
            lacking = ", ".join(sorted(schema.keys() ^ schemas[0].keys()))
            raise ConfigError(
                [f"{', '.join(names)}: their rows go to one table, and not all have the columns {lacking}; add them"]
            )
        for name, column in schema.items():
            kinds = [schemas[0][name].dataType, column.dataType]
            if not _is_exact_union(*kinds):
                shown = " and ".join(kind.simpleString() for kind in kinds)
                told = f"{', '.join(names)}: their rows go to one table, and column {column.name} is {shown}; cast it"
                raise ConfigError([told])


def _is_exact_union(one: DataType, other: DataType) -> bool:
    """Return whether a union leaves values of both types as they are, also as text: a FLOAT's 0.1 is no DOUBLE's."""
    match one, other:
        case (NullType(), _) | (_, NullType()) | (IntegralType(), IntegralType()):
            return True
        case DecimalType(), DecimalType():
            return one.scale == other.scale
        case StructType(), StructType():
            pairs = zip(one.fields, other.fields, strict=False)
            return one.names == other.names and all(_is_exact_union(a.dataType, b.dataType) for a, b in pairs)
        case ArrayType(), ArrayType():
            return _is_exact_union(one.elementType, other.elementType)
        case MapType(), MapType():
            return _is_exact_union(one.keyType, other.keyType) and _is_exact_union(one.valueType, other.valueType)
        case _:
            return one == other
