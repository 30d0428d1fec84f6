"""The process of tests/streaming/test_lost_answer.py: merges into tables whose log store loses the answer to a commit.

Its argument is JSON: the `conf` of its session and the `root` folder. It writes `report.json` into the root: for
each scenario of SCENARIOS what the table, its log and the results were.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge import MergeResult, MergeSink, merge_sink
from tests.spark.delta_log import actions_of, latest_version, read_actions
from tests.streaming.child_session import start_session
from tests.streaming.streams import SCHEMA, ChangeFiles, counting_sink, recorded_batches, rows, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALREADY_EXISTS = "file already exists"
BROKEN = "broken connection"
NOT_WRITTEN = "not written"
UNREADABLE = "unreadable"


@dataclass
class Scenario:
    """A table with one row (1, 1), and what was done to it."""

    spark: SparkSession
    root: Path
    results: list[MergeResult] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The path of the table."""
        return str(self.root / "target")

    def create_table(self) -> None:
        """Create a table with deletion vectors and the row (1, 1)."""
        properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        self.spark.sql(f"CREATE TABLE delta.`{self.target}` ({SCHEMA}) USING delta {properties}")
        self.source((1, 1)).write.format("delta").mode("append").save(self.target)

    def source(self, *changes: tuple[int, int]) -> DataFrame:
        """Return rows in one partition."""
        return self.spark.createDataFrame(list(changes), SCHEMA).coalesce(1)

    def break_next_commit(self, fault: str, *, other_commit: str | None = None) -> None:
        """Make the next commit to the table go wrong; `other_commit` is one that follows it at once."""
        lines = [fault, other_commit] if other_commit else [fault]
        Path(self.target, "_fault").write_text("\n".join(lines))

    def prepare_append(self, *changes: tuple[int, int]) -> str:
        """Write a data file as another writer would, and return the path of the commit that will add it."""
        elsewhere = str(self.root / "elsewhere")
        self.source(*changes).write.format("delta").save(elsewhere)
        [add] = [action for action in read_actions(elsewhere, 0) if "add" in action]
        shutil.copy(Path(elsewhere, add["add"]["path"]), self.target)
        commit = self.root / "other_commit.json"
        info = {"timestamp": add["add"]["modificationTime"], "operation": "WRITE", "operationParameters": {}}
        commit.write_text("".join(json.dumps(action) + "\n" for action in ({"commitInfo": info}, add)))
        return str(commit)

    def sink(self, **options: Any) -> MergeSink:
        """Return the counting merge into the table."""
        return counting_sink(self.target, on_result=self.results.append, **options)

    @cached_property
    def changes(self) -> ChangeFiles:
        """The folder of changes of the scenario's stream."""
        return ChangeFiles(self.root / "changes")

    def stream(self, *batches: list[tuple[int, int]], **options: Any) -> None:
        """Add batches and run the stream to its end, or to its failure."""
        self.changes.add(*batches)
        self.attempt(lambda: run(self.changes.stream(self.spark), self.sink(**options), self.root / "checkpoint"))

    def merge(self, *changes: tuple[int, int], sink: MergeSink | None = None) -> None:
        """Merge once, outside a stream."""
        self.attempt(lambda: (sink or self.sink()).merge(self.source(*changes)))

    def attempt(self, action: Callable[[], Any]) -> None:
        """Do it, and keep what it raises."""
        try:
            action()
        except Exception:  # noqa: BLE001 - whatever it is, the test reads it
            self.errors.append(traceback.format_exc())

    def report(self) -> dict[str, Any]:
        """Return the state of the table and of its log, and what became of the merges."""
        versions = range(latest_version(self.target) + 1)
        return {
            "rows": rows(self.spark, self.target),
            "operations": [actions_of(self.target, version, "commitInfo")[0]["operation"] for version in versions],
            "batch_ids": [batch_id for _, batch_id in recorded_batches(self.target)],
            "results": [
                {"batch_id": r.batch_id, "skipped": r.skipped, "version": r.version, "attempts": r.num_commit_attempts}
                for r in self.results
            ],
            "errors": self.errors,
            "was_faulty": not Path(self.target, "_fault").exists(),
        }


def stream_with(fault: str, *, other_commit: bool = False, **options: Any) -> Callable[[Scenario], None]:
    """Return a scenario: three batches, of which the second one's commit goes wrong; started again with a fourth."""

    def scenario(s: Scenario) -> None:
        s.create_table()
        s.stream([(1, 10)], **options)
        s.break_next_commit(fault, other_commit=s.prepare_append((7, 7)) if other_commit else None)
        s.stream([(1, 100), (2, 2)], [(1, 1000)], **options)
        Path(s.target, "_unreadable").unlink(missing_ok=True)
        s.stream([(1, 10_000)], **options)

    return scenario


def merge_with(fault: str, *, other_commit: bool = False, **options: Any) -> Callable[[Scenario], None]:
    """Return a scenario: one merge whose commit goes wrong."""

    def scenario(s: Scenario) -> None:
        s.create_table()
        s.break_next_commit(fault, other_commit=s.prepare_append((7, 7)) if other_commit else None)
        s.merge((1, 10), (2, 2), sink=s.sink(**options))

    return scenario


def insert_only(s: Scenario) -> None:
    """Append by an insert-only merge."""
    s.create_table()
    s.break_next_commit(ALREADY_EXISTS)
    sink = merge_sink(s.target, on="target.id = source.id", on_result=s.results.append).when_not_matched_insert()
    s.merge((1, 10), (2, 2), sink=sink)


def complete_mode(s: Scenario) -> None:
    """Overwrite the table with the second of two complete results, whose answer is lost."""
    s.create_table()
    sink = merge_sink(s.target, keys="id", on_result=s.results.append)
    for batch in ([(1, 10)], [(2, 2)]):
        s.changes.add(batch)
        totals = s.changes.stream(s.spark).groupBy("id").agg({"n": "sum"}).selectExpr("id", "INT(`sum(n)`) n")
        s.attempt(lambda totals=totals: run(totals, sink, s.root / "checkpoint", output_mode="complete"))
        if not s.errors:
            s.break_next_commit(ALREADY_EXISTS)
    Path(s.target, "_fault").unlink(missing_ok=True)


SCENARIOS: dict[str, Callable[[Scenario], None]] = {
    "stream, file already exists": stream_with(ALREADY_EXISTS),
    "stream, broken connection": stream_with(BROKEN),
    "stream, no retries": stream_with(ALREADY_EXISTS, max_commit_retries=0),
    "stream, another commit, file already exists": stream_with(ALREADY_EXISTS, other_commit=True),
    "stream, another commit, broken connection": stream_with(BROKEN, other_commit=True),
    "stream, not written": stream_with(NOT_WRITTEN),
    "stream, unreadable": stream_with(UNREADABLE),
    "merge, file already exists": merge_with(ALREADY_EXISTS),
    "merge, broken connection": merge_with(BROKEN),
    "merge, another commit": merge_with(ALREADY_EXISTS, other_commit=True),
    "merge, not written": merge_with(NOT_WRITTEN),
    "merge, insert only": insert_only,
    "complete mode": complete_mode,
}


def main() -> None:
    """Run the scenarios that are asked for, each on a table of its own."""
    options = json.loads(sys.argv[1])
    root = Path(options["root"])
    spark = start_session(options["conf"], root / "warehouse")
    report = {}
    for number, name in enumerate(dict.fromkeys(options["scenarios"])):
        folder = root / f"{number:02d}"
        folder.mkdir()
        case = Scenario(spark, folder)
        SCENARIOS[name](case)
        report[name] = case.report()
    (root / "report.json").write_text(json.dumps(report, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
