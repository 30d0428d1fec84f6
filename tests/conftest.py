"""The Spark session and the table factories that all tests share; no JVM starts until a test asks for it."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from pyspark.logger import PySparkLogger

from stream_merge import steps
from stream_merge.sql import quote
from tests.jvm.jars import jar_conf
from tests.kept_jvm import kept_jvm
from tests.table_templates import TableTemplates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

# Rows come back as Python datetimes in the process's zone, which must be the session's.
os.environ["TZ"] = "UTC"
time.tzset()

SESSION_CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Hours of small plans of all kinds: methods that are thrown out as cold are soon compiled again, by half a core.
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:+UseSerialGC -XX:-UseCodeCacheFlushing "
    "-XX:ReservedCodeCacheSize=512m -XX:MetaspaceSize=512m",
    # For every hash table, be it of three rows, Spark takes a page of 64 MB from a heap of this size: a full collection
    # of garbage every few seconds, a quarter of all processor time.
    "spark.buffer.pageSize": "1m",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists the folders of a table in 10,000 tasks, be they three: half a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Every test has tables of its own: a thousand logs in the cache, an hour each, would fill the heap with their
    # snapshots.
    "spark.databricks.delta.delta.log.cacheSize": "20",
    "spark.sql.ui.retainedExecutions": "50",
    # Nobody looks at the texts of plans, which each execution writes.
    "spark.sql.ui.explainMode": "simple",
    # A dozen calls for each operation on a Column. The sink does without them whatever the setting is.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Over a dozen rows, compiling a plan and planning each stage anew take longer than running it.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""The environment's STREAM_MERGE_SPARK_CONF ("key=value key=value") goes over these, to test in other settings."""


class CreateTable(Protocol):
    """Create a Delta table with these rows and return its path."""

    def __call__(
        self,
        schema: str,
        rows: Sequence[Sequence[Any]] = (),
        *,
        deletion_vectors: bool = False,
        path: str | None = None,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        constraints: Mapping[str, str] | None = None,
    ) -> str: ...


def session_conf() -> dict[str, str]:
    """Return the settings of the test run's session, those of the environment over those above."""
    overrides = dict(pair.split("=", 1) for pair in os.environ.get("STREAM_MERGE_SPARK_CONF", "").split())
    return {**SESSION_CONF, **jar_conf(), **overrides}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the one session of the test run; a test that changes its settings restores them."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("stream_merge tests")
    conf = session_conf()
    for key, value in conf.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    kept = kept_jvm()
    with kept.used(conf) if kept else nullcontext():
        with (Path(tempfile.gettempdir()) / "stream_merge-tests.lock").open("w") as lock:
            # Two processes that fetch the same packages at the same time would write over each other's files.
            fcntl.flock(lock, fcntl.LOCK_EX)
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def avro_spark(spark: SparkSession) -> SparkSession:
    """Return the session with Spark's Avro package."""
    package = f"org.apache.spark:spark-avro_2.13:{spark.version}"
    with (Path(tempfile.gettempdir()) / "stream_merge-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'")
    return spark


@pytest.fixture
def table_path(tmp_path: Path) -> str:
    """Return the path of a table that does not exist yet."""
    return str(tmp_path / "target")


@pytest.fixture(scope="session", autouse=True)
def _plain_logs() -> Iterator[None]:
    """Keep `caplog.text` as it is: pytest adds its handler to loggers that do not propagate, as PySpark's for errors in
    SQL, and these would make it write JSON from then on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield


STRATEGIES = ("copy_on_write", "merge_on_read")
FOLDERS_OF_MANY = ("spark", "streaming", "debezium")
"""Where a test that needs Spark is one of many about the same rooms of the library."""
LONG_TIER = Path(__file__).with_name("long_tier.txt")
"""Names tests that the suite leaves to the long tier; `tests/choose_suite.py` writes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say how much is run."""
    parser.addoption(
        "--both-strategies", action="store_true", help="run the tests marked any_strategy with both strategies"
    )
    parser.addoption("--one-strategy", action="store_true", help="run all tests as if they were marked any_strategy")
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many; their names draw which")
    parser.addoption(
        "--all-drawn", action="store_true", help="run those too that tests/long_tier.txt names: to write it anew"
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="run those marked long too, all of those marked one_in, with both strategies",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests to the long tier by the markers `long`, `one_in` and `any_strategy`, half of what needs Spark, and
    what `LONG_TIER` names, unless one is asked for by its full name."""
    if config.getoption("--long") or any("::" in name for name in config.args):
        return
    is_one_enough = config.getoption("--one-strategy")
    both = config.getoption("--both-strategies")
    kept = [
        item
        for item in items
        if not item.get_closest_marker("long")
        and _is_in_sample(item, config.getoption("--one-in"))
        and (both or _is_drawn(item) or not (is_one_enough or item.get_closest_marker("any_strategy")))
    ]
    kept = kept if both else _without_half_of_those_on_spark(kept)
    if not (both or is_one_enough or config.getoption("--all-drawn")):
        left = {name for name in LONG_TIER.read_text(encoding="utf-8").splitlines() if not name.startswith("#")}
        kept = [item for item in kept if item.nodeid not in left]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    # Modules are handed to the workers in this order: a long one at the end would leave the other worker with nothing
    # to do.
    slow = {item.path for item in kept if item.get_closest_marker("slow")}
    items[:] = sorted(kept, key=lambda item: item.path not in slow)


def _without_half_of_those_on_spark(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests without half of those that need Spark: half of the cases of each that has several, and half of
    the others in the folders of many, unless they are the core or always run.

    The next case to be taken is the one with the most words in its name that no case has had yet. So of a table of
    cases (strategies and types, say) each strategy and each type stays, as far as half of them can. Among equals the
    names draw.
    """
    cases = defaultdict(list)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("every_case"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left = set[pytest.Item]()
    for name, same in cases.items():
        if len(same) == 1:
            is_kept = same[0].path.parent.name not in FOLDERS_OF_MANY or any(
                same[0].get_closest_marker(mark) for mark in ("always", "core", "slow", "one_in")
            )
            left.update(same if not is_kept and zlib.crc32(b"half" + name.encode()) % 2 else ())
            continue
        drawn = sorted(same, key=lambda item: zlib.crc32(b"case" + item.nodeid.encode()))
        words = {item: set(item.nodeid.partition("[")[2].rstrip("]").split("-")) for item in drawn}
        seen = set[str]()
        while len(drawn) > len(same) // 2:
            best = max(drawn, key=lambda item: len(words[item] - seen))
            drawn.remove(best)
            seen |= words[best]
        left.update(drawn)
    return [item for item in items if item not in left]


def _is_in_sample(item: pytest.Item, one_in: int) -> bool:
    """Tell whether the test is among those that its marker `one_in` and the option leave; the name draws."""
    marker = item.get_closest_marker("one_in")
    return zlib.crc32(b"sample" + item.nodeid.encode()) % (one_in * (marker.args[0] if marker else 1)) == 0


def _is_drawn(item: pytest.Item) -> bool:
    """Tell whether the test's strategy is the one that its name draws: half of a module's tests get each."""
    callspec = getattr(item, "callspec", None)
    strategy = callspec.params.get("strategy") if callspec else None
    if strategy is None:
        return True
    name = item.nodeid.replace(strategy, "")
    return STRATEGIES[zlib.crc32(name.encode()) % 2] == strategy


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    """Run the test once with each strategy that changes rows."""
    return str(request.param)


@pytest.fixture
def deletion_vectors(strategy: str) -> bool:
    """Tell whether the target needs deletion vectors for the test's strategy to be chosen."""
    return strategy == "merge_on_read"


@pytest.fixture
def create_source(spark: SparkSession) -> Callable[..., DataFrame]:
    """Return a function from rows and a schema ("id int, name string") to a DataFrame in one partition."""

    def create(schema: str, rows: Sequence[Sequence[Any]] = ()) -> DataFrame:
        return spark.createDataFrame([tuple(row) for row in rows], schema).coalesce(1)

    return create


@pytest.fixture
def append_rows(spark: SparkSession) -> Callable[..., None]:
    """Return a function that appends rows to a table by path, in one file for each partition of the table.

    The schema names the columns that are given, so that generated and default columns can be left out.
    """

    def append(path: str, schema: str | StructType, rows: Sequence[Sequence[Any]]) -> None:
        frame = spark.createDataFrame([tuple(row) for row in rows], schema).coalesce(1)
        frame.write.format("delta").mode("append").save(path)

    return append


@pytest.fixture(scope="session")
def table_templates(tmp_path_factory: pytest.TempPathFactory) -> TableTemplates:
    """Return the tables that were made in the test run."""
    return TableTemplates(tmp_path_factory.mktemp("templates"))


@pytest.fixture
def create_table(
    spark: SparkSession, tmp_path: Path, append_rows: Callable[..., None], table_templates: TableTemplates
) -> CreateTable:
    """Return a function that makes a Delta table by path: CREATE TABLE, then the rows in one append.

    The second time that the same table is asked for it is copied.

    `schema` is the column list of CREATE TABLE. Rows name the columns in order; a table with generated columns gets its
    rows by `append_rows`.
    """

    def create(
        schema: str,
        rows: Sequence[Sequence[Any]] = (),
        *,
        deletion_vectors: bool = False,
        path: str | None = None,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        constraints: Mapping[str, str] | None = None,
    ) -> str:
        path = path or str(tmp_path / "target")
        all_properties = {"delta.enableDeletionVectors": str(deletion_vectors).lower(), **(properties or {})}
        statement = f"CREATE TABLE delta.`{path}` ({schema}) USING delta"
        for words, columns in (("PARTITIONED BY", partition_by), ("CLUSTER BY", cluster_by)):
            if columns:
                statement += f" {words} ({', '.join(map(quote, columns))})"
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in all_properties.items())
        statement += f" TBLPROPERTIES ({pairs})"

        def create_anew() -> None:
            spark.sql(statement)
            if rows:
                append_rows(path, spark.read.format("delta").load(path).schema, rows)
            for name, check in (constraints or {}).items():
                spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT `{name}` CHECK ({check})")

        if Path(path).is_absolute() and not Path(path).exists() and len(rows) <= MAX_TEMPLATE_ROWS:
            # Tests change settings of Delta's and of SQL's, on which it depends what CREATE TABLE makes.
            settings = sorted(item for item in spark.conf.getAll.items() if item[0] != SET_BY_DELTA)
            key = repr((statement.replace(path, ""), rows, constraints, settings))
            table_templates.make(key, path, create_anew)
        else:
            create_anew()
        return path

    return create


SET_BY_DELTA = "spark.databricks.delta.lastCommitVersionInSession"
"""A setting that each of Delta's commits leaves in its session."""
MAX_TEMPLATE_ROWS = 1000

SINGLE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"


@pytest.fixture
def single_driver_log_store(spark: SparkSession) -> Iterator[str]:
    """Let Delta use its default LogStore of S3 for files, too, in tables that are new to it; return the class."""
    conf, name = spark._jsc.sc().conf(), "spark.delta.logStore.file.impl"
    conf.set(name, SINGLE_DRIVER)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    yield SINGLE_DRIVER
    conf.remove(name)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture
def read_rows(spark: SparkSession) -> Callable[..., list[Row]]:
    """Return a function that gives a table's rows, as of a version if one is given, sorted by their text."""

    def read(path: str, *columns: str, version: int | None = None) -> list[Row]:
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        frame = reader.load(path)
        return sorted((frame.select(*columns) if columns else frame).collect(), key=repr)

    return read


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes something happen the next times that a merge reaches a step."""

    def interfere(step: str, action: Callable[[], object], *, after: int = 0, times: int = 1) -> None:
        reached = 0

        def observe(name: str) -> None:
            nonlocal reached
            if name == step:
                reached += 1
                if after < reached <= after + times:
                    action()

        monkeypatch.setattr(steps, "observer", observe)

    return interfere


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Return a function that changes the session's settings until the end of the test."""
    before: dict[str, str | None] = {}

    def change(values: Mapping[str, str]) -> None:
        for name, value in values.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
