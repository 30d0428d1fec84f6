"""The process that tests/crash/test_kill.py kills: a stream into a Delta table, up to a named step of one micro-batch.

Its argument is JSON: `conf` of the session, `root` folder, `sink` (a name in SINKS), and `step` and `batch_id` to die at, or
null to run to the end. It appends a line of JSON to `reports.jsonl` in the root for the rows that it found at its
start, for each result, and for the rows at the end.
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

from stream_merge import MergeResult, MergeSink, merge_sink, steps
from tests.streaming.child_session import start_session
from tests.streaming.streams import SCHEMA, counting_sink, rows, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DURING_A_JOB = ("locating", "writing")
DURING = " (during its job)"
"""Ending of a step at which the process dies in the job that the step announces, not before it."""
BEFORE_CHECKPOINT_COMMIT = "before_checkpoint_commit"
"""The sink has returned, and Spark has not yet written `commits/<batch id>`."""
MISSED = 3
"""Exit code when the step went by without a job to be killed in."""


def upsert_sink(path: str, **options: Any) -> MergeSink:
    """Return the default merge by key, which needs no old value."""
    return merge_sink(path, keys="id", **options)


def ordered_sink(path: str, **options: Any) -> MergeSink:
    """Return a sink with order and tombstones: an odd number is a delete, and a higher one the newer change."""
    return merge_sink(path, keys="id", sequence_by="n", delete_when="n % 2 = 1", **options)


def quarantining_sink(path: str, **options: Any) -> MergeSink:
    """Return the ordered sink, which sets rows with a negative number aside, next to the target."""
    return ordered_sink(path, quarantine=f"{path}_rejected", expect={"not negative": "n >= 0"}, **options)


def keyless_sink(path: str, **options: Any) -> MergeSink:
    """Return the sink of a table of ids without a key: n adds a row at sequence n, -n removes an equal one at sequence n."""
    is_removal = "n < 0"
    before = f"CASE WHEN {is_removal} THEN named_struct('id', id) END"
    return merge_sink(
        path, before=before, sequence_by="abs(n)", delete_when=is_removal, except_columns=["n"], **options
    )


SINKS = {
    "counting": counting_sink,
    "upsert": upsert_sink,
    "ordered": ordered_sink,
    "ordered, quarantining": quarantining_sink,
    "keyless": keyless_sink,
}


@dataclass(slots=True)
class Killer:
    """Kills this process and its JVM at one step of one micro-batch."""

    spark: SparkSession
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
        if step in DURING_A_JOB or is_during:
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

    report(found=rows(spark, target, "id", "n"))
    sink = SINKS[options["sink"]](target, on_result=report_result)
    killer = Killer(spark, options["step"], options["batch_id"])
    steps.observer = killer.observe

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        killer.current_batch = batch_id
        sink(batch_df, batch_id)
        killer.observe(BEFORE_CHECKPOINT_COMMIT)

    changes = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "changes"))
    run(changes, merge, root / "checkpoint")
    report(rows=rows(spark, target, "id", "n"))
    spark.stop()


if __name__ == "__main__":
    main()
