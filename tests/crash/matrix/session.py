"""The process that runs cases of the crash matrix, and is killed in some of them.

Its argument is JSON: the `conf` of its session, the `root` folder, the `cases`, and whether it `resumes` the first of
them, in which its predecessor was killed. For each case that it ends it appends a line of JSON to `reports.jsonl` in
the root.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge import steps
from stream_merge.batch import maintain
from stream_merge.maintenance import account, policy
from stream_merge.routing import tables_at_rest
from stream_merge.tombstones import files
from tests.crash.cluster_session import Cluster
from tests.crash.matrix.workloads import (
    APP_ID,
    FAULTED,
    NEW_KEY,
    NEW_N,
    NUM_BATCHES,
    OTHER_KEY,
    OTHER_N,
    TABLE,
    WORKLOADS,
    Damage,
    Ordered,
    Resting,
    Sink,
    damage,
    damage_of_quarantine,
    frame,
)
from tests.random.faulty import FaultyFileSystem
from tests.streaming.child_session import start_session
from tests.streaming.streams import recorded_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREPARING = ("created", "columns_added", "feature_added")
"""The steps of the first batch only."""
FILE_FAULTS = ("answer lost", "files fail before", "files fail after")
CALLS = (1, 3, 7, 15)
"""Which call of the file system fails, counted from the step; each round takes the next."""
EAGER = (
    # So that files of tombstones are merged in each batch that writes some, and files of rows after each.
    (files, "MAX_FILES", 1),
    (account, "SHARE", 1000.0),
    (policy, "MIN_FILES", 2),
    (policy, "TIER_FACTOR", 1e9),
    (maintain, "WAIT_BATCHES", 0),
    (tables_at_rest.TableAtRest, "is_due", True),
)
"""What to set in the library."""
DELAYS_SECONDS = (0.0, 0.03, 0.1, 0.3)
"""How long after the step the process is killed; each round takes the next."""


@dataclass(kw_only=True)
class Case:
    """A fault at a step of a merge, by one strategy, of one of the `WORKLOADS`."""

    number: int
    step: str
    fault: str
    strategy: str
    workload: str
    round: int

    @property
    def faulted(self) -> int:
        """The batch in which the fault comes."""
        return 0 if self.step in PREPARING else FAULTED

    @property
    def refused(self) -> int:
        """The batch that the table refuses if it goes to rest: so that the steps come in the batch of the fault."""
        return FAULTED if self.step in ("parking", "parked") else FAULTED - 1

    @property
    def options(self) -> dict[str, Any]:
        """The options without which a sink does not come to the step."""
        if self.step == "created":
            return {"create_if_missing": True, "table_properties": self.properties}
        if self.step in steps.ALTERING_STEPS:
            return {"schema_changes": "evolve"}
        return {"maintenance": self.step in steps.MAINTENANCE_STEPS}

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return {"delta.enableDeletionVectors": str(self.strategy == "merge_on_read").lower()}

    def batch(self, spark: SparkSession, batch_id: int) -> DataFrame:
        """Return a batch; from the one of the fault on, with wider keys if the step is one of altering the table."""
        has_wide_keys = self.step in steps.ALTERING_STEPS and batch_id >= self.faulted
        return frame(spark, WORKLOADS[self.workload], batch_id, has_wide_keys=has_wide_keys)


@dataclass
class Runner:
    """Runs cases in one session."""

    spark: SparkSession
    root: Path
    files: FaultyFileSystem | None = None
    cluster: Cluster | None = None
    num_faults: int = 0
    killer: threading.Thread | None = None
    filler: list[Path] = field(default_factory=list)

    def run(self, case: Case, *, resumes: bool) -> dict[str, Any]:
        """Run a case, or what is left of it after a kill, and return what was found."""
        folder = self.root / ("disk" if case.fault == "disk full" else "cases") / str(case.number)
        path, target = folder / "target", self._target(case, folder / "target")
        workload = WORKLOADS[case.workload]
        error = "killed"
        if resumes:
            self.num_faults = 1
        else:
            if case.step != "created":
                properties = ", ".join(f"'{name}' = '{value}'" for name, value in case.properties.items())
                self.spark.sql(f"CREATE TABLE delta.`{target}` ({TABLE}) USING delta TBLPROPERTIES ({properties})")
            sink = workload.sink(target, **case.options)
            for batch_id in range(case.faulted):
                self._merge(case, target, sink, batch_id)
            self.num_faults = 0
            self._prepare(case, target, case.faulted)
            error = ""
            batch = case.batch(self.spark, case.faulted)
            with self._fault(case, path, target):
                try:
                    sink(batch, case.faulted)
                except Exception as raised:  # noqa: BLE001 - whatever it is, the log decides
                    error = type(raised).__name__
        landed = self._landed(path, case)
        # Half of the repeated batches come to a sink that knows nothing.
        if resumes or case.number % 2:
            sink = workload.sink(target, **case.options)
            self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        sink(case.batch(self.spark, case.faulted), case.faulted)
        for batch_id in range(case.faulted + 1, NUM_BATCHES):
            self._merge(case, target, sink, batch_id)
        if isinstance(workload, Resting):
            workload.start_again(self.spark, target)
        found = self._damage(case, target)
        ids = [batch_id for app_id, batch_id in recorded_batches(str(path)) if app_id == APP_ID]
        found += Damage(doubled=len(ids) - len({*ids}), lost=NUM_BATCHES - len({*ids}))
        shutil.rmtree(folder)
        report = {"number": case.number, "faults": self.num_faults, "error": error, "landed": landed}
        return {**report, "lost": found.lost, "doubled": found.doubled, "revived": found.revived}

    def _target(self, case: Case, path: Path) -> str:
        if case.fault in FILE_FAULTS:
            return FaultyFileSystem.url(str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def _merge(self, case: Case, target: str, sink: Sink, batch_id: int) -> None:
        self._prepare(case, target, batch_id)
        sink(case.batch(self.spark, batch_id), batch_id)

    def _prepare(self, case: Case, target: str, batch_id: int) -> None:
        workload = WORKLOADS[case.workload]
        if isinstance(workload, Resting):
            workload.prepare(self.spark, target, batch_id, refused=case.refused)

    def _landed(self, path: Path, case: Case) -> bool:
        """Return whether the batch of the fault is in the table, or parked for it."""
        there = (path / "_delta_log").exists() and recorded_batches(str(path))
        if there and (APP_ID, case.faulted) in there:
            return True
        workload = WORKLOADS[case.workload]
        return isinstance(workload, Resting) and case.faulted in workload.parked(self.spark, str(path))

    def _damage(self, case: Case, target: str) -> Damage:
        workload = WORKLOADS[case.workload]
        expected = workload.rows()
        if case.fault == "conflict" and self.num_faults:
            if case.faulted:
                n, m = expected[OTHER_KEY]
                expected[OTHER_KEY] = ((n or 0) + OTHER_N, m)
            elif not isinstance(workload, Ordered):
                expected[NEW_KEY] = (NEW_N, None)
        rows = self.spark.read.format("delta").load(target).select("id", "n", "m").collect()
        found = damage([(row[0], row[1], row[2]) for row in rows], expected)
        if isinstance(workload, Resting):
            num_others = self.num_faults if case.fault == "conflict" else 0
            found += workload.damage(self.spark, target, num_others=num_others)
        if isinstance(workload, Ordered):
            quarantine = self.spark.read.format("delta").load(f"{target}_rejected")
            ids = quarantine.selectExpr("batch_id", "CAST(get_json_object(row, '$.id') AS INT)").collect()
            found += damage_of_quarantine(Counter((row[0], row[1]) for row in ids), workload.rejected)
        return found

    # The faults.

    @contextmanager
    def _fault(self, case: Case, path: Path, target: str) -> Iterator[None]:
        """Let the fault come when the step is reached, in the block."""

        def observe(step: str) -> None:
            if step != case.step:
                return
            steps.observer = None
            self._begin(case, path, target)

        steps.observer = observe
        try:
            yield
        finally:
            steps.observer = None
            if self.killer is not None:
                self.killer.join()
            if case.fault in FILE_FAULTS and self.files is not None:
                self.num_faults = int(bool(self.files.failed()))
                self.files.arm(0, "", carried_out=False)
            for file in self.filler:
                file.unlink()
            self.filler.clear()

    def _begin(self, case: Case, path: Path, target: str) -> None:
        call = CALLS[case.round % len(CALLS)]
        match case.fault:
            case "process killed":
                self._kill(DELAYS_SECONDS[case.round % len(DELAYS_SECONDS)])
            case "executor killed":
                assert self.cluster is not None
                self.cluster.kill_one()
                self.num_faults = 1
            case "answer lost":
                assert self.files is not None
                self.files.arm(1, "rename", carried_out=True, within="/_delta_log/0")
            case "files fail before" | "files fail after":
                assert self.files is not None
                self.files.arm(call, "", carried_out=case.fault == "files fail after", within=str(path))
            case "conflict":
                self._conflict(case, target)
                self.num_faults = 1
            case "disk full":
                self._fill(self.root / "disk")
                self.num_faults = 1

    def _kill(self, delay: float) -> None:
        if not delay:
            os.killpg(os.getpgrp(), signal.SIGKILL)

        def kill() -> None:
            time.sleep(delay)
            os.killpg(os.getpgrp(), signal.SIGKILL)

        self.killer = threading.Thread(target=kill, daemon=True)
        self.killer.start()

    def _conflict(self, case: Case, target: str) -> None:
        """Let another writer change the file that the batch changes, or the table that is being prepared."""
        session = self.spark.newSession()
        if case.faulted:
            session.sql(f"UPDATE delta.`{target}` SET n = n + {OTHER_N} WHERE id = {OTHER_KEY}")
            workload = WORKLOADS[case.workload]
            if isinstance(workload, Resting):
                workload.park_another(session, target)
        else:
            session.sql(f"INSERT INTO delta.`{target}` (id, n, m) VALUES ({NEW_KEY}, {NEW_N}, NULL)")

    def _fill(self, disk: Path) -> None:
        file = disk / "filler"
        self.filler.append(file)
        with file.open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(2**16)) == 2**16:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def main() -> None:
    """Run the cases of the argument."""
    argument = json.loads(sys.argv[1])
    root = Path(argument["root"])
    spark = start_session(argument["conf"], root / "warehouse")
    for owner, name, value in EAGER:
        setattr(owner, name, value)
    runner = Runner(spark, root)
    if argument["conf"]["spark.master"].startswith("local-cluster"):
        runner.cluster = Cluster(spark)
    if any(case["fault"] in FILE_FAULTS for case in argument["cases"]):
        runner.files = FaultyFileSystem(spark, root / "filesystem")
    resumes = argument["resumes"]
    for fields in argument["cases"]:
        if runner.cluster is not None:
            runner.cluster.wait_until_whole()
        report = runner.run(Case(**fields), resumes=resumes)
        resumes = False
        with (root / "reports.jsonl").open("a") as reports:
            reports.write(json.dumps(report) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
