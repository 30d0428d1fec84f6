"""The process of tests/crash/test_executor_loss.py: merges on a cluster of two executor processes, one of which dies or
stalls.

Its argument is JSON: the `conf` of its session, the `root` folder and the `scenarios`, each with the name of its
`sink`, its `step`, its `fault` and whether the target has `deletion_vectors`. It writes `report.json` into the root:
for each scenario the rows of its tables, how often the fault came, when it began and ended, and the error if there was
one.

The source has two rows for each key, of which it takes one: which one, and in which order they come, differs each time
that it is computed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge import debezium, merge_router, merge_sink, steps
from tests.streaming.child_session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUM_KEYS = 400
NUM_OLD = 200
DEADLINE_SECONDS = 60
STALL_SECONDS = 5
RATIO = "IF(id % 5 = 0, double('NaN'), id / 2D)"
"""The number with a point of a change, by its id."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.5",
    # A stage of one task has no others that it could be slower than.
    "spark.speculation.task.duration.threshold": "1s",
    "spark.speculation.efficiency.enabled": "false",
}
"""The settings by which Spark runs a task a second time when the first attempt takes long."""


@dataclass
class Cluster:
    """The executors, and what happens to them."""

    spark: SparkSession
    num_faults: int = 0
    stalled: threading.Timer | None = None

    @property
    def _master(self) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.org.apache.spark.SparkEnv.get().blockManager().master()

    def _keepers(self) -> dict[str, Any]:
        """Return the kept blocks of each executor that has any, by its id."""
        found = {}
        for status in self._master.getStorageStatus():
            if int(status.rddBlocks().size()):
                found[str(status.blockManagerId().executorId())] = status.rddBlocks()
        return found

    def _processes(self) -> dict[str, int]:
        """Return the process of each executor, by its id."""
        application = str(self.spark.sparkContext.applicationId)
        lines = subprocess.run(
            ["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        found = {}
        for line in lines:
            words = line.split()
            if "--executor-id" in words and application in words:
                found[words[words.index("--executor-id") + 1]] = int(words[0])
        return found

    def kill_keeper(self) -> None:
        """Kill the executor that has most of the kept rows, and return when the driver knows."""
        keepers = self._keepers()
        if not keepers:
            return
        self._kill(max(keepers, key=lambda executor: int(keepers[executor].size())))

    def kill_one(self) -> None:
        """Kill the executor that has most of the kept rows, or the first where none has any."""
        if self._keepers():
            self.kill_keeper()
        else:
            self._kill(min(self._executors()))

    def _kill(self, executor: str) -> None:
        os.kill(self._processes()[executor], signal.SIGKILL)
        self.num_faults += 1
        self._wait(lambda: executor not in self._executors())

    def stall(self) -> None:
        """Stop the executor that has most of the kept rows for a while, so that the other runs its tasks a second
        time."""
        keepers = self._keepers()
        executor = max(keepers, key=lambda name: int(keepers[name].size())) if keepers else min(self._executors())
        process = self._processes()[executor]
        os.kill(process, signal.SIGSTOP)
        self.num_faults += 1
        self.stalled = threading.Timer(STALL_SECONDS, os.kill, (process, signal.SIGCONT))
        self.stalled.start()

    def drop_blocks(self) -> None:
        """Remove the kept rows from all executors, as if each had lost them."""
        blocks = [self._keepers()[executor] for executor in self._keepers()]
        ids = {int(rdd) for of_executor in blocks for rdd in _rdd_ids(of_executor)}
        for rdd in ids:
            self._master.removeRdd(rdd, True)
        self.num_faults += bool(ids)

    def _executors(self) -> set[str]:
        statuses = self._master.getStorageStatus()
        return {str(status.blockManagerId().executorId()) for status in statuses} - {"driver"}

    def wait_until_whole(self) -> None:
        """Wait until there are two executors again."""
        self._wait(lambda: len(self._executors()) == 2)

    @staticmethod
    def _wait(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.1)


def _rdd_ids(blocks: Any) -> list[int]:
    names = blocks.keySet().toSeq()
    return [int(names.apply(number).rddId()) for number in range(names.size())]


def changes(spark: SparkSession) -> DataFrame:
    """Return one of the two changes of each key: n is the key, or as much more as there are keys."""
    rows = spark.range(2 * NUM_KEYS).selectExpr(f"(id * 7919) % {NUM_KEYS} AS id", "id AS n", "id AS s")
    return rows.repartition(3).dropDuplicates(["id"])


def _by_keys(spark: SparkSession, root: Path) -> None:
    merge_sink(str(root / "target"), keys="id").merge(changes(spark).select("id", "n"))


def _by_clauses(spark: SparkSession, root: Path) -> None:
    sink = merge_sink(str(root / "target"), on="target.id = source.id")
    sink = sink.when_matched_update(set={"n": "target.n + source.n"}, condition="target.n < 0")
    sink.when_not_matched_insert().merge(changes(spark).select("id", "n"))


def _in_order(spark: SparkSession, root: Path) -> None:
    rows = spark.range(2 * NUM_KEYS).selectExpr(f"id % {NUM_KEYS} AS id", "id AS n", "id % 4 = 3 AS gone")
    sink = merge_sink(str(root / "target"), keys="id", sequence_by="n", delete_when="gone", except_columns="gone")
    sink.merge(rows.repartition(3))


def _in_parts(spark: SparkSession, root: Path) -> None:
    rows = changes(spark).selectExpr("id", "n", "s", "IF(n % 2 = 0, array('n'), array()) AS unset")
    target = str(root / "target")
    merge_sink(target, keys="id", sequence_by="s", unchanged_columns="unset", except_columns="unset").merge(rows)


def _with_quarantine(spark: SparkSession, root: Path) -> None:
    options = {"quarantine": str(root / "quarantine"), "expect": {"small": f"n < {NUM_KEYS}"}}
    merge_sink(str(root / "target"), keys="id", **options).merge(changes(spark).select("id", "n"))


def _routed(spark: SparkSession, root: Path) -> None:
    rows = changes(spark).selectExpr("id", "id AS n", "IF(id % 2 = 0, 'even', 'odd') AS name")
    tables = {"even": "target", "odd": "odd"}
    sinks = {name: merge_sink(str(root / table), keys="id", except_columns="name") for name, table in tables.items()}
    merge_router(sinks, by="name", max_parallel=1).merge(rows)


def _evolving(spark: SparkSession, root: Path) -> None:
    sink = merge_sink(str(root / "target"), keys="id", sequence_by="n", schema_changes="evolve")
    rows = spark.range(2 * NUM_KEYS).selectExpr(f"id % {NUM_KEYS} AS id", "id AS n", f"{RATIO} AS ratio")
    sink.merge(rows.repartition(3))
    # The source drops the column; these changes are late.
    sink.merge(spark.range(10).selectExpr("id", "CAST(-1 AS BIGINT) AS n"))


def _decoded(spark: SparkSession, root: Path) -> None:
    sink = merge_sink(str(root / "target"), keys="id", **debezium.MERGE_OPTIONS)
    # Both batches are decoded and merged by the same plans, which were made for the first.
    for first, last in ((0, 2 * NUM_KEYS), (2 * NUM_KEYS, 2 * NUM_KEYS + 10)):
        sink.merge(debezium.changes(_records(spark, first, last), "id BIGINT, n BIGINT", ["id"]))


MERGES: dict[str, Callable[[SparkSession, Path], None]] = {
    "keys": _by_keys,
    "clauses": _by_clauses,
    "ordered": _in_order,
    "partial": _in_parts,
    "quarantine": _with_quarantine,
    "router": _routed,
    "evolving": _evolving,
    "decoded": _decoded,
}
"""Merge the changes into the tables below a folder, by the name of the sink."""


def merge(spark: SparkSession, sink: str, root: Path) -> dict[str, Any]:
    """Merge the changes by the named sink, and return the rows of its tables."""
    MERGES[sink](spark, root)
    found = {name: _rows(spark, root / name) for name in ("target", "odd") if (root / name).exists()}
    if sink == "evolving":
        ratio = f"IF(n < 0, NULL, {RATIO.replace('id', 'n')})"
        wrong = spark.read.format("delta").load(str(root / "target")).where(f"NOT ratio <=> {ratio}")
        found["wrong_ratios"] = _collected(wrong.select("id", "n"))
    if (root / "quarantine").exists():
        found["quarantined"] = sorted(int(row[0]) for row in _column(spark, root / "quarantine"))
    return found


def _records(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Return records of updates of the keys in turn, in any order; every fourth is a delete, of another key each time
    that all have had their turn."""
    source = "named_struct('connector', 'postgresql', 'snapshot', 'false', 'lsn', id, 'txId', id)"
    row = f"named_struct('id', id % {NUM_KEYS}, 'n', id)"
    return (
        spark.range(first, last)
        .repartition(3)
        .selectExpr(
            f"CAST(to_json(named_struct('id', id % {NUM_KEYS})) AS BINARY) AS key",
            f"CAST(IF(id % 4 = 3, to_json(named_struct('op', 'd', 'before', {row}, 'source', {source})), "
            f"to_json(named_struct('op', 'u', 'after', {row}, 'source', {source}))) AS BINARY) AS value",
            "'shop.public.t' AS topic",
            "0 AS partition",
            "id AS offset",
            "CAST(NULL AS TIMESTAMP) AS timestamp",
            "0 AS timestampType",
        )
    )


def _rows(spark: SparkSession, path: Path) -> list[list[Any]]:
    return _collected(spark.read.format("delta").load(str(path)).select("id", "n"))


def _collected(rows: DataFrame) -> list[list[Any]]:
    return sorted([list(row) for row in rows.collect()])


def _column(spark: SparkSession, path: Path) -> list[Any]:
    return spark.read.format("delta").load(str(path)).selectExpr("get_json_object(row, '$.id')").collect()


def create_tables(spark: SparkSession, scenario: dict[str, Any], root: Path) -> None:
    """Create the targets of a scenario, with the older half of the keys."""
    schema = "id BIGINT, n BIGINT, s BIGINT" if scenario["sink"] == "partial" else "id BIGINT, n BIGINT"
    for name in ("target", "odd") if scenario["sink"] == "router" else ("target",):
        table = f"delta.`{root / name}`"
        vectors = str(scenario["deletion_vectors"]).lower()
        spark.sql(
            f"CREATE TABLE {table} ({schema}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')"
        )
        condition = {"target": "id % 2 = 0", "odd": "id % 2 = 1"}[name] if scenario["sink"] == "router" else "true"
        columns = ["id", "-1 - id", "CAST(-1 AS BIGINT)"][: schema.count(" ") // 2 + 1]
        spark.sql(f"INSERT INTO {table} SELECT {', '.join(columns)} FROM range({NUM_OLD}) WHERE {condition}")


def run_scenario(cluster: Cluster, scenario: dict[str, Any], root: Path) -> dict[str, Any]:
    """Merge once while the fault comes at the step, and return what was found afterwards."""
    root.mkdir()
    cluster.wait_until_whole()
    create_tables(cluster.spark, scenario, root)
    cluster.num_faults = 0
    faults = {"kill": cluster.kill_keeper, "drop": cluster.drop_blocks, "stall": cluster.stall}

    def observe(name: str) -> None:
        if name == scenario["step"] and not cluster.num_faults and scenario["fault"] in faults:
            faults[scenario["fault"]]()

    steps.observer = observe
    began = time.time()
    try:
        tables = merge(cluster.spark, scenario["sink"], root)
    except Exception as error:  # noqa: BLE001 - reported to the test
        return {"error": f"{type(error).__name__}: {error}", "num_faults": cluster.num_faults}
    finally:
        steps.observer = None
        if cluster.stalled is not None:
            cluster.stalled.join()
            cluster.stalled = None
    return {"tables": tables, "num_faults": cluster.num_faults, "began": began, "ended": time.time()}


def main() -> None:
    """Run the scenarios of the argument."""
    argument = json.loads(sys.argv[1])
    root = Path(argument["root"])
    cluster = Cluster(start_session(argument["conf"], root / "warehouse"))
    report = {
        name: run_scenario(cluster, scenario, root / f"scenario_{number}")
        for number, (name, scenario) in enumerate(argument["scenarios"].items())
    }
    cluster.spark.stop()
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
