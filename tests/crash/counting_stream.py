"""The process that tests/crash/test_kill.py kills: a stream into a Delta table, up to a named step of one micro-batch.

Its argument is JSON: `conf` of the session, `root` folder, `sink` (a name in SINKS), and `step` and `batch_id` to die
at, or null to run to the end. It appends a line of JSON to `reports.jsonl` in the root for the rows that it found at
its start, for each result, and for the rows at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import functions as F

from stream_merge import MergeResult, MergeSink, debezium, merge_sink, steps
from stream_merge.batch import maintain
from stream_merge.maintenance import account, policy, vacuum
from stream_merge.tombstones import files, manifest
from tests.streaming.child_session import start_session
from tests.streaming.streams import SCHEMA, counting_sink, rows, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DURING_A_JOB = ("locating", "writing")
WRITING_TOMBSTONES = {"handing_on": "handed_on", "remembering": "remembered", "forgetting": "forgotten"}
"""The steps that announce the writing of a file of tombstones, and those after it."""
DURING = " (during its job)"
"""Ending of a step at which the process dies in the job that the step announces, not before it."""
BEFORE_CHECKPOINT_COMMIT = "before_checkpoint_commit"
"""The sink has returned, and Spark has not yet written `commits/<batch id>`."""
MISSED = 3
"""Exit code when the step went by without a job to be killed in."""


MAX_FILES = 3
"""So many files of tombstones the Debezium sink may have before it merges some."""
RECORDS = "key STRING, value STRING, offset BIGINT, oldkey STRING, newkey STRING"


def changes_of(records: DataFrame) -> DataFrame:
    """Return what Debezium's records say, which the files have as text; the other key of a key change is in a
    header."""
    headers = [
        F.when(
            F.col(name).isNotNull(),
            F.struct(F.lit(f"__debezium.{name}").alias("key"), F.col(name).cast("binary").alias("value")),
        )
        for name in ("oldkey", "newkey")
    ]
    as_in_kafka = records.select(
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        F.lit("shop.public.t").alias("topic"),
        F.lit(0).alias("partition"),
        "offset",
        F.lit(None).cast("timestamp").alias("timestamp"),
        F.lit(0).alias("timestampType"),
        F.array_compact(F.array(*headers)).alias("headers"),
    )
    return debezium.changes(as_in_kafka, "id INT, n STRING", ["id"])


def debezium_sink(path: str, **options: Any) -> MergeSink:
    """Return the sink of Debezium's changes, which creates its table and sets records aside that cannot be decoded."""
    return merge_sink(
        path,
        keys="id",
        null_keys="quarantine",
        quarantine=f"{path}_rejected",
        create_if_missing=True,
        **debezium.MERGE_OPTIONS,
        **options,
    )


def keyless_sink(path: str, **options: Any) -> MergeSink:
    """Return the sink of a table of ids without a key: n adds a row at sequence n, -n removes an equal one at sequence
    n."""
    is_removal = "n < 0"
    before = f"CASE WHEN {is_removal} THEN named_struct('id', id) END"
    return merge_sink(
        path, before=before, sequence_by="abs(n)", delete_when=is_removal, except_columns=["n"], **options
    )


def maintained_sink(path: str, **options: Any) -> MergeSink:
    """Return the counting sink with maintenance after every batch."""
    account.SHARE, policy.MIN_FILES, policy.TIER_FACTOR, maintain.WAIT_BATCHES = 1000.0, 2, 1_000_000_000, 0
    maintain.VACUUM_LOOKED_MS = vacuum.INTERVAL_MS = 0
    return counting_sink(path, maintenance=True, **options)


SINKS = {
    "maintained": maintained_sink,
    "counting": counting_sink,
    "debezium": debezium_sink,
    "keyless": keyless_sink,
}


@dataclass(slots=True)
class Killer:
    """Kills this process and its JVM at one step of one micro-batch."""

    spark: SparkSession
    tombstones: Path
    step: str | None
    batch_id: int | None
    current_batch: int | None = None
    last_step: str | None = None

    def observe(self, step: str) -> None:
        """Take note of a step, and die if it is the one."""
        self.last_step = step
        is_during = self.step == step + DURING
        if not (step == self.step or is_during) or self.current_batch != self.batch_id:
            return
        if is_during and step in WRITING_TOMBSTONES:
            threading.Thread(target=self._kill_during_write, args=(self._unfinished(), step), daemon=True).start()
        elif step in DURING_A_JOB or is_during:
            threading.Thread(target=self._kill_during_job, daemon=True).start()
        else:
            self._kill()

    def _kill_during_job(self) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds():
            if self.last_step not in (*DURING_A_JOB, (self.step or "").removesuffix(DURING)):
                os._exit(MISSED)
            time.sleep(0.001)
        self._kill()

    def _kill_during_write(self, before: set[Path], step: str) -> None:
        while not self._unfinished() - before:
            if self.last_step == WRITING_TOMBSTONES[step]:
                os._exit(MISSED)
            time.sleep(0.001)
        self._kill()

    def _unfinished(self) -> set[Path]:
        """Return the files of tombstones whose writing has begun and not ended."""
        return {folder for folder in self.tombstones.glob("*") if not (folder / "_SUCCESS").exists()}

    @staticmethod
    def _kill() -> NoReturn:
        os.killpg(os.getpgrp(), signal.SIGKILL)
        raise AssertionError("survived SIGKILL")


def main() -> None:
    """Run the stream."""
    options = json.loads(sys.argv[1])
    root = Path(options["root"])
    target = str(root / "target")
    spark = start_session(options["conf"], root / "warehouse")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert os.getpgid(java) == os.getpgrp(), "the JVM would outlive this process"

    def report(**fields: Any) -> None:
        with (root / "reports.jsonl").open("a") as reports:
            reports.write(json.dumps(fields) + "\n")

    def report_result(result: MergeResult) -> None:
        report(batch_id=result.batch_id, skipped=result.skipped, version=result.version, strategy=result.strategy)

    report(found=rows(spark, target, "id", "n") if (root / "target" / "_delta_log").exists() else [])
    is_debezium = options["sink"] == "debezium"
    files.MAX_FILES = MAX_FILES if is_debezium else files.MAX_FILES
    sink = SINKS[options["sink"]](target, on_result=report_result)
    killer = Killer(spark, root / "target" / manifest.FOLDER, options["step"], options["batch_id"])
    steps.observer = killer.observe

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        killer.current_batch = batch_id
        sink(changes_of(batch_df) if is_debezium else batch_df, batch_id)
        killer.observe(BEFORE_CHECKPOINT_COMMIT)

    changes = (
        spark.readStream.schema(RECORDS if is_debezium else SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(root / "changes"))
    )
    run(changes, merge, root / "checkpoint")
    report(rows=rows(spark, target, "id", "n"))
    spark.stop()


if __name__ == "__main__":
    main()
