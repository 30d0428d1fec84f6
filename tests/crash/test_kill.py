"""Kill -9, Python and its JVM at once, at each named step of a micro-batch; the restarted query finishes exactly once.

Each process dies in the micro-batch after the one in which its predecessor died, so that every start is both the
recovery from one kill and the way to the next.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge.steps import MAINTENANCE_STEPS, STEPS
from stream_merge.tombstones.manifest import FOLDER
from tests.conftest import CreateTable
from tests.crash.counting_stream import BEFORE_CHECKPOINT_COMMIT, DURING, RECORDS
from tests.debezium.records import PLACEHOLDER, envelope
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.tables import recorded_state
from tests.streaming.child_session import child_conf, last_lines, run_child
from tests.streaming.streams import Batch, ChangeFiles, count, query_id, recorded_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.always]

ALL_STEPS = (*STEPS[1:], BEFORE_CHECKPOINT_COMMIT)
"""All but the first, at which no more has happened than at the second."""
LANDED = ("after_commit", BEFORE_CHECKPOINT_COMMIT)
"""The steps after which the micro-batch is in the table."""


Record = tuple[str | None, str, int, str | None, str | None]
"""Key and value of a record of Debezium's, its offset, and the headers of a key change."""

UNDECODABLE: Record = (None, '{"op": ', -1, None, None)


def make_batches(number: int) -> list[list[tuple[int, int]]]:
    """Return batches that change old rows and bring new ones, with values that tell the batches apart."""
    return [[(0, 2**batch_id), (batch_id + 1, 1), (100 + batch_id, batch_id)] for batch_id in range(number)]


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


def check_kills(
    stream: KilledStream,
    kills: tuple[str, ...],
    batches: list[Any],
    fold: Any,
    strategy: str,
    setup: Sequence[str] = (),
) -> None:
    """Kill a process at each step, one micro-batch further each time, then run one to the end.

    Before that, processes are killed in the first micro-batch, at the steps of `setup`, each after a commit that leaves
    no batch.
    """
    for step in setup:
        assert stream.run(step, 0) == -signal.SIGKILL, f"at {step}:\n{last_lines(stream.log)}"
        assert (stream.rows("found"), recorded_batches(stream.target)) == ([], []), f"at {step}"
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
def kills_of(request: pytest.FixtureRequest):
    """Return a function that leaves steps to the long tier: each starts a process. But for those of maintenance, the
    crash matrix has all of them, too."""

    def kills(steps: Sequence[str], left_out: Sequence[str]) -> tuple[str, ...]:
        assert {*left_out} < {*steps}
        return tuple(step for step in steps if request.config.getoption("--long") or step not in left_out)

    return kills


@pytest.fixture
def start_stream(spark: SparkSession, tmp_path: Path, create_table: CreateTable):
    """Return a function that prepares the table and the changes for a stream of children."""

    def prepare(sink: str, batches: list[Any], *, deletion_vectors: bool) -> KilledStream:
        create_table("id INT, n INT", deletion_vectors=deletion_vectors)
        ChangeFiles(tmp_path / "changes").add(*batches)
        return KilledStream(child_conf(spark), tmp_path, sink)

    return prepare


def test_kill_at_the_steps_of_maintenance(start_stream, kills_of):
    """The batch is in the table by then. What was compacted is in it, too, or is left for VACUUM."""
    kills = kills_of(MAINTENANCE_STEPS, left_out=("compacting", "vacuuming"))
    batches = make_batches(len(kills) + 2)
    stream = start_stream("maintained", batches, deletion_vectors=True)
    for batch_id, step in enumerate(kills, start=1):
        assert stream.run(step, batch_id) == -signal.SIGKILL, f"at {step}:\n{last_lines(stream.log)}"
        assert stream.rows("found") == (count(*batches[:batch_id]) if batch_id > 1 else []), f"before {step}"
    assert stream.run(None, None) == 0, last_lines(stream.log)
    assert stream.rows("found") == count(*batches[: len(kills) + 1])
    assert stream.rows("rows") == count(*batches)
    assert [result["skipped"] for result in stream.results()] == [True, False]
    assert [batch_id for _, batch_id in recorded_batches(stream.target)] == [*range(len(batches))]
    found = [actions_of(stream.target, version, "commitInfo") for version in range(latest_version(stream.target) + 1)]
    operations = [info[0]["operation"] for info in found]
    assert operations.count("MERGE") == len(batches)
    assert operations.count("OPTIMIZE") >= len(batches) - len(kills)


def test_kill_at_the_steps_of_merge_on_read(start_stream, kills_of):
    kills = kills_of(ALL_STEPS, left_out=("after_open", "after_persist", "locating", "writing"))
    batches = make_batches(len(kills) + 2)
    stream = start_stream("counting", batches, deletion_vectors=True)
    check_kills(stream, kills, batches, count, "merge_on_read")


class ChangeLog:
    """Batches of Debezium's records, and what the table has and remembers after them.

    In each batch a row comes, the one of the batch before gets another key and does not send its value, the one that
    had got its key then is deleted, and older changes of those keys come late. Two records are no changes. In one batch
    the table is truncated first.

    Attributes:
        batches: The records.
        contents: The rows before the first batch, and after each.
        deleted: The keys that were deleted, with the places in the log where they were last.
        moved: The rows that got another key: the old one, the new one and the value.
        truncated: Where the TRUNCATE was.
    """

    def __init__(self, number: int, *, truncated_in: int) -> None:
        self.batches: list[list[Record]] = []
        self.contents: list[list[tuple[int, str]]] = [[]]
        self.deleted: dict[int, int] = {}
        self.moved: set[tuple[int, int, str]] = set()
        self.truncated = 0
        self._rows: dict[int, str] = {}
        self._lsn = 0
        late: set[int] = set()
        for number_of_batch in range(number):
            places = {key: self.deleted.get(key, self.truncated) for key in late}
            before = set(self._rows)
            changes = self._changes(number_of_batch, is_truncated=number_of_batch == truncated_in)
            batch = [UNDECODABLE, UNDECODABLE, *changes]
            # Older than what ended the row in the batch before.
            self.batches.append([*batch, *[self._sent("u", key, "late", lsn - 5) for key, lsn in places.items()]])
            self.contents.append(sorted(self._rows.items()))
            late = before - set(self._rows)

    def _changes(self, number: int, *, is_truncated: bool) -> Iterator[Record]:
        if is_truncated:
            self.truncated = self._next()
            self._rows.clear()
            yield self._sent("t", 0, None, self.truncated)
        for key, n in ((0, f"v{number}"), (10 + number, f"w{number}")):
            self._rows[key] = n
            yield self._sent("c", key, n, self._next())
        gone, old, new = 99 + number, 9 + number, 100 + number
        if gone in self._rows:
            self._rows.pop(gone)
            self.deleted[gone] = self._next()
            yield self._sent("d", gone, None, self._lsn)
        if old in self._rows:
            self._rows[new] = self._rows.pop(old)
            self.moved.add((old, new, self._rows[new]))
            self.deleted[old] = self._next()
            yield self._sent("d", old, None, self._lsn, newkey=new)
            yield self._sent("c", new, PLACEHOLDER, self._lsn, oldkey=old)

    def _next(self) -> int:
        self._lsn += 10
        return self._lsn

    @staticmethod
    def _sent(op: str, key: int, n: str | None, lsn: int, **headers: int) -> Record:
        source = {"connector": "postgresql", "snapshot": "false", "lsn": lsn, "txId": lsn}
        images = (None, {"id": key}) if op == "d" else (None if op == "t" else {"id": key, "n": n}, None)
        others = [json.dumps({"id": headers[name]}) if name in headers else None for name in ("oldkey", "newkey")]
        return (json.dumps({"id": key}), json.dumps(envelope(op, *images, **source)), lsn, *others)


def test_rows_and_what_is_remembered_never_disagree(spark: SparkSession, tmp_path: Path, kills_of):
    """A table that the sink makes, killed while its state is written and around its commit: it is as if nothing had
    happened."""
    kills = tuple(f"{step}{DURING}" for step in ("quarantining", "handing_on", "remembering"))
    kills += ("truncating", f"forgetting{DURING}", "forgotten", "after_commit")
    left_out = (f"quarantining{DURING}", f"handing_on{DURING}", f"forgetting{DURING}", "forgotten")
    kills = kills_of(kills, left_out=left_out)
    log = ChangeLog(len(kills) + 2, truncated_in=1 + kills.index("truncating"))
    ChangeFiles(tmp_path / "changes", RECORDS).add(*log.batches)
    stream = KilledStream(child_conf(spark), tmp_path, "debezium")
    check_kills(stream, kills, log.batches, lambda *done: log.contents[len(done)], "copy_on_write", setup=["created"])

    state = recorded_state(stream.target)
    left = {folder.name for folder in (Path(stream.target) / FOLDER).iterdir()}
    assert {file.path.rpartition("/")[2] for file in state.files} <= left
    deletes = spark.read.option("mergeSchema", "true").parquet(
        *[f"{stream.target}/{file.path}" for file in state.files]
    )
    newest = deletes.groupBy("k0").agg(F.max("sequence.s0.s0.position")).collect()
    # Row 0 came with the TRUNCATE, which then is remembered as a delete of its key.
    assert dict(map(tuple, newest)) == {0: log.truncated, **log.deleted}
    moved = deletes.select("k0", "moved.to.k0", "moved.row.n").where("moved IS NOT NULL").collect()
    assert sorted(map(tuple, moved)) == sorted(log.moved)
    assert json.loads(state.truncated or "")["s0"]["s0"]["position"] == log.truncated

    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    rejected = spark.read.format("delta").load(f"{stream.target}_rejected").select("batch_id").collect()
    assert Counter(batch_id for (batch_id,) in rejected) == dict.fromkeys(range(len(log.batches)), 2)


def rows_left(*batches: Batch) -> list[tuple[int, None]]:
    """Return the rows that the keyless sink leaves: each event counts once, and takes away a row or adds one."""
    left: Counter[int] = Counter()
    for key, n in {event for batch in batches for event in batch}:
        left[key] += 1 if n > 0 else -1
    # Removals whose rows have not come yet leave nothing.
    return sorted((key, None) for key in left.elements())


@pytest.mark.long
def test_rows_without_a_key_are_counted_once(start_stream):
    kills = ("after_commit",)
    # Two equal rows; one of the batch before goes, another of it comes again; a removal whose row comes with the next
    # batch.
    batches = [
        [
            *[(number, 10 * number + 1), (number, 10 * number + 2)],
            *[(number - 1, -10 * number - 3), (number - 1, 10 * number - 9)],
            *[(100 + number, -10 * number - 9), (99 + number, 10 * number - 2)],
        ]
        for number in range(1, len(kills) + 3)
    ]
    stream = start_stream("keyless", batches, deletion_vectors=True)
    # The commit of its own by which the table gets what the sink needs.
    setup = ["columns_added"]
    check_kills(stream, kills, batches, rows_left, "merge_on_read", setup=setup)
