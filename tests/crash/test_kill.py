"""Kill -9, Python and its JVM at once, at each named step of a micro-batch; the restarted query finishes exactly once.

Each process dies in the micro-batch after the one in which its predecessor died, so that every start is both the recovery from one
kill and the way to the next.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge.steps import STEPS
from stream_merge.tombstones import FOLDER
from tests.conftest import CreateTable
from tests.crash.counting_stream import BEFORE_CHECKPOINT_COMMIT, DURING, SINKS
from tests.spark.delta_log import latest_version
from tests.spark.tables import recorded_state
from tests.streaming.child_session import child_conf, last_lines, run_child
from tests.streaming.streams import Batch, ChangeFiles, count, query_id, recorded_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ALL_STEPS = (*STEPS, BEFORE_CHECKPOINT_COMMIT)
LANDED = ("after_commit", BEFORE_CHECKPOINT_COMMIT)
"""The steps after which the micro-batch is in the table."""


def make_batches(number: int) -> list[list[tuple[int, int]]]:
    """Return batches that change old rows and bring new ones, with values that tell the batches apart."""
    return [[(0, 2**batch_id), (batch_id + 1, 1), (100 + batch_id, batch_id)] for batch_id in range(number)]


def upserted(*batches: Batch) -> list[tuple[int, int]]:
    """Return the rows of a table that these batches were merged into by key."""
    return sorted({key: n for batch in batches for key, n in batch}.items())


class KilledStream:
    """A stream of change files into a table, run by one process after the other."""

    def __init__(self, conf: dict[str, str], root: Path, sink: str) -> None:
        self.conf = conf
        self.root = root
        self.sink = sink
        self.target = str(root / "target")
        self.log = root / "child.log"
        self.reports: list[dict[str, Any]] = []

    def run(self, step: str | None, batch_id: int | None) -> int:
        """Run a process until it is killed at the step, or to the end, and take in what it reported."""
        reports = self.root / "reports.jsonl"
        reports.write_text("")
        argument = {
            "conf": self.conf,
            "root": str(self.root),
            "sink": self.sink,
            "step": step,
            "batch_id": batch_id,
        }
        exit_code = run_child("tests.crash.counting_stream", json.dumps(argument), self.log)
        self.reports = [json.loads(line) for line in reports.read_text().splitlines()]
        return exit_code

    def rows(self, name: str) -> list[tuple[int, int]]:
        """Return the rows that the last process found at its start, or left at its end."""
        return next([tuple(row) for row in report[name]] for report in self.reports if name in report)

    def results(self) -> list[dict[str, Any]]:
        """Return the results of the micro-batches that the last process finished."""
        return [report for report in self.reports if "batch_id" in report]


def check_kills(stream: KilledStream, kills: tuple[str, ...], batches: list[Any], fold: Any, strategy: str) -> None:
    """Kill a process at each step, one micro-batch further each time, then run one to the end."""
    first_version = latest_version(stream.target)
    done, is_replay = 0, False
    for batch_id, step in [*enumerate(kills, start=1), (None, None)]:
        exit_code = stream.run(step, batch_id)
        expected_code = -signal.SIGKILL if step else 0
        assert exit_code == expected_code, f"at {step}:\n{last_lines(stream.log)}"
        assert stream.rows("found") == fold(*batches[:done]), f"before {step}"

        results = stream.results()
        if results:
            assert (results[0]["skipped"], results[0]["version"] is None) == (is_replay, is_replay), f"before {step}"
        assert {result["strategy"] for result in results if not result["skipped"]} <= {strategy}

        is_replay = step in LANDED
        done = len(batches) if batch_id is None else batch_id + is_replay
        app_id = query_id(stream.root / "checkpoint")
        assert recorded_batches(stream.target) == [(app_id, merged) for merged in range(done)], f"after {step}"
        assert latest_version(stream.target) == first_version + done, f"after {step}"
    assert stream.rows("rows") == fold(*batches)


@pytest.fixture
def start_stream(spark: SparkSession, tmp_path: Path, create_table: CreateTable):
    """Return a function that prepares the table and the changes for a stream of children."""

    def prepare(sink: str, batches: list[Any], *, deletion_vectors: bool) -> KilledStream:
        # The feature that a sink with tombstones would add in a commit of its own.
        properties = {"delta.feature.domainMetadata": "supported"}
        create_table("id INT, n INT", deletion_vectors=deletion_vectors, properties=properties)
        ChangeFiles(tmp_path / "changes").add(*batches)
        return KilledStream(child_conf(spark), tmp_path, sink)

    return prepare


def test_kill_at_every_step_of_merge_on_read(start_stream):
    batches = make_batches(len(ALL_STEPS) + 2)
    stream = start_stream("counting", batches, deletion_vectors=True)
    check_kills(stream, ALL_STEPS, batches, count, "merge_on_read")


def test_kill_around_the_commit_of_copy_on_write(start_stream):
    kills = ("after_commit",)
    batches = make_batches(len(kills) + 2)
    stream = start_stream("counting", batches, deletion_vectors=False)
    check_kills(stream, kills, batches, count, "copy_on_write")


@pytest.mark.core
def test_kill_around_the_commit_of_a_merge_by_key(start_stream):
    kills = ("after_commit",)
    batches = make_batches(len(kills) + 2)
    stream = start_stream("upsert", batches, deletion_vectors=True)
    check_kills(stream, kills, batches, upserted, "merge_on_read")


def folded(*batches: Batch) -> list[tuple[int, int]]:
    """Return the rows that changes in order give: of each key the one with the highest number, unless that is odd."""
    newest: dict[int, int] = {}
    for batch in batches:
        for key, n in batch:
            newest[key] = max(n, newest.get(key, n))
    return sorted((key, n) for key, n in newest.items() if n % 2 == 0)


def deletes_and_late_changes(number: int) -> list[list[tuple[int, int]]]:
    """Return batches each of which deletes a key, and brings an old change of the key that the one before deleted."""
    return [
        [(0, 2 * number), (number + 1, 51), (number, 2), (100 + number, 4), (99 + number, 2)]
        for number in range(1, number + 1)
    ]


def check_tombstones(stream: KilledStream) -> None:
    """Check that all files of tombstones that the table names are there."""
    left = {folder.name for folder in (Path(stream.target) / FOLDER).iterdir()}
    named = {file.path.rpartition("/")[2] for file in recorded_state(stream.target).files}
    assert named
    assert named <= left


def test_rows_and_tombstones_never_disagree(start_stream):
    """Copy-on-write; the next test has merge-on-read."""
    kills = ("remembered", "before_commit")
    batches = deletes_and_late_changes(len(kills) + 2)
    stream = start_stream("ordered", batches, deletion_vectors=False)
    check_kills(stream, kills, batches, folded, "copy_on_write")
    check_tombstones(stream)


def quarantined(spark: SparkSession, path: str) -> list[tuple[int, int, int]]:
    """Return batch id, id and n of everything in a quarantine table."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    found = spark.read.format("delta").load(path).select("batch_id", "row").collect()
    return sorted((batch_id, *(json.loads(row)[name] for name in ("id", "n"))) for batch_id, row in found)


def test_bad_rows_are_in_quarantine_once_and_good_rows_and_tombstones_in_the_target(spark: SparkSession, start_stream):
    """Killed inside and after the commit to the quarantine, around the writing of tombstones and after the commit."""
    kills = ("quarantining" + DURING, "quarantined", "remembering", "remembered", "after_commit")
    # The same bad row twice, and the same one in every batch: each is one of its own.
    batches = [
        [*batch, (0, -1), (0, -1), (200 + number, -number - 1)]
        for number, batch in enumerate(deletes_and_late_changes(len(kills) + 2))
    ]

    def good(*batches: Batch) -> list[tuple[int, int]]:
        return folded(*[[row for row in batch if row[1] >= 0] for batch in batches])

    stream = start_stream("ordered, quarantining", batches, deletion_vectors=True)
    check_kills(stream, kills, batches, good, "merge_on_read")
    check_tombstones(stream)
    bad = [(batch_id, *row) for batch_id, batch in enumerate(batches) for row in batch if row[1] < 0]
    assert quarantined(spark, f"{stream.target}_rejected") == sorted(bad)


def rows_left(*batches: Batch) -> list[tuple[int, None]]:
    """Return the rows that the keyless sink leaves: each event counts once, and takes away a row or adds one."""
    left: Counter[int] = Counter()
    for key, n in {event for batch in batches for event in batch}:
        left[key] += 1 if n > 0 else -1
    # Removals whose rows have not come yet leave nothing.
    return sorted((key, None) for key in left.elements())


def test_rows_without_a_key_are_counted_once(start_stream, create_source):
    kills = ("remembered",)
    # Two equal rows; one of the batch before goes, another of it comes again; a removal whose row comes with the next batch.
    batches = [
        [
            *[(number, 10 * number + 1), (number, 10 * number + 2)],
            *[(number - 1, -10 * number - 3), (number - 1, 10 * number - 9)],
            *[(100 + number, -10 * number - 9), (99 + number, 10 * number - 2)],
        ]
        for number in range(1, len(kills) + 3)
    ]
    stream = start_stream("keyless", batches, deletion_vectors=True)
    # The columns that the sink adds, in a commit of their own.
    SINKS["keyless"](stream.target).merge(create_source("id INT, n INT"))
    check_kills(stream, kills, batches, rows_left, "merge_on_read")
