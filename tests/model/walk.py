"""Walks the real sink along a trace of the model: each process in a thread of its own, of which one runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import MergeSink, merge_sink, steps
from stream_merge.bridge.transaction import Transaction
from stream_merge.errors import BatchIdRegressionError, StreamMergeError
from stream_merge.table import exactly_once
from tests.conftest import CreateTable
from tests.model.protocol import Change, Model, State, Step, Version
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.statistics_oracle import held_files
from tests.streaming.streams import counting_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 180
COUNTING, ORDERED = "id INT, n INT", "id INT, n INT, seq INT"
STATEMENTS = {
    "optimize": "OPTIMIZE delta.`{path}`",
    "delete": "DELETE FROM delta.`{path}` WHERE id = 1",
    "update": "UPDATE delta.`{path}` SET n = n + 5 WHERE id = 1",
}
PLACES = {"before_commit": "staged", "after_commit": "landed"}
"""Where the model's process is when the sink announces a step."""


class KilledError(BaseException):
    """The process dies here; no code of the sink may catch it."""


@dataclass(kw_only=True, eq=False)
class Actor:
    """A process of the model, as a thread that stops at each place of the model until it is told to go on.

    Attributes:
        batches: What its query merges.
        new_sink: Makes a sink, as the start of the query does.
        merge: Merges a batch by a sink.
        misfortune: What befalls its next commit: "lose answer", "fail commit" or nothing.
        place: Where it is.
    """

    batches: Sequence[Sequence[Change]]
    new_sink: Callable[[], MergeSink]
    merge: Callable[[MergeSink, int], None]
    misfortune: str = ""
    place: str = ""
    errors: list[BaseException] = field(default_factory=list)
    _is_killed: bool = False
    _is_over: bool = False
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def start(self) -> int:
        """Start the thread, wait until it stands at its first batch, and return the thread's id."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        self._wait()
        assert thread.ident is not None
        return thread.ident

    def stop_at(self, place: str) -> None:
        """Wait at a place, in the actor's own thread."""
        self.place = place
        self._stopped.release()
        self._go.acquire()
        if self._is_killed:
            self._is_killed = False
            raise KilledError

    def go_on(self, *, is_killed: bool = False) -> None:
        """Let it go to its next place."""
        self._is_killed = is_killed
        self._go.release()
        self._wait()

    def end(self) -> None:
        """Let the thread end where it is."""
        if self.place != "ended":
            self._is_over = True
            self.go_on(is_killed=True)

    def _wait(self) -> None:
        assert self._stopped.acquire(timeout=PATIENCE_SECONDS), f"still running after {self.place}"
        if self.errors:
            raise self.errors[0]

    def _work(self) -> None:
        try:
            for number in range(len(self.batches)):
                if not self._is_over:
                    self._merge_at_last(number)
        except BatchIdRegressionError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the test's thread
            self.errors.append(error)
        self.place = "ended"
        self._stopped.release()

    def _merge_at_last(self, number: int) -> None:
        """Merge a batch, again and again as a query that is started again does, until it is done."""
        sink = self.new_sink()
        while True:
            try:
                self.stop_at("idle")
                self.merge(sink, number)
                if self.place != "landed":
                    self.stop_at("landed")
                break
            except KilledError:
                if self._is_over:
                    return
                sink = self.new_sink()
            except BatchIdRegressionError:
                raise
            except StreamMergeError as error:
                if "no answer" not in str(error):
                    raise
                sink = self.new_sink()


@dataclass(kw_only=True)
class Walk:
    """The real table and its processes.

    Attributes:
        spark: The session.
        model: What the trace is of.
        path: The table.
    """

    spark: SparkSession
    model: Model
    path: str
    actors: dict[str, Actor] = field(default_factory=dict)
    by_thread: dict[int, Actor] = field(default_factory=dict)
    base: int = 0

    def run(self, trace: Sequence[tuple[Step, State]], create_table: CreateTable, patch: pytest.MonkeyPatch) -> None:
        """Walk along a trace, and compare places, rows and recorded batches after each step."""
        self._create(create_table)
        self._hook(patch)
        for name, app_id in self.model.sinks.items():
            actor = self._actor(app_id)
            self.actors[name] = actor
            self.by_thread[actor.start()] = actor
        done = []
        try:
            for step, state in trace:
                done.append(f"{step.process} {step.name}")
                self._do(step)
                self._compare(state, ", ".join(done))
        finally:
            for actor in self.actors.values():
                actor.end()

    def _create(self, create_table: CreateTable) -> None:
        is_ordered = self.model.kind == "ordered"
        schema = ORDERED if is_ordered else COUNTING
        rows = [(1, 0, 0), (2, 0, 0)] if is_ordered else [(1, 0), (2, 0)]
        features = {"delta.feature.domainMetadata": "supported"} if is_ordered else {}
        create_table(
            schema, rows[:1], path=self.path, deletion_vectors=self.model.is_merge_on_read, properties=features
        )
        frame = self.spark.createDataFrame(rows[1:], schema).coalesce(1)
        frame.write.format("delta").mode("append").save(self.path)
        self.base = latest_version(self.path)

    def _actor(self, app_id: str) -> Actor:
        batches = self.model.batches[app_id]

        def new_sink() -> MergeSink:
            if self.model.kind == "counting":
                return counting_sink(self.path, app_id=app_id)
            return merge_sink(self.path, keys="id", sequence_by="seq", delete_when="op = 'd'", app_id=app_id)

        def merge(sink: MergeSink, number: int) -> None:
            if self.model.kind == "counting":
                rows, schema = [change[:2] for change in batches[number]], COUNTING
            else:
                rows, schema = list(batches[number]), f"{ORDERED}, op STRING"
            sink(self.spark.createDataFrame(rows, schema).coalesce(1), number)

        return Actor(batches=batches, new_sink=new_sink, merge=merge)

    def _hook(self, patch: pytest.MonkeyPatch) -> None:
        """Stop the sinks where the model's processes stop, and let their commits go wrong; all else is the real
        sink."""
        real_commit, real_back_off = Transaction.commit, exactly_once.back_off

        def current() -> Actor | None:
            return self.by_thread.get(threading.get_ident())

        def observe(step: str) -> None:
            actor = current()
            if actor is not None and step in PLACES:
                actor.stop_at(PLACES[step])

        def commit_or_not(transaction: Transaction, *arguments: Any, **options: Any) -> int | None:
            actor = current()
            if actor is None:
                return real_commit(transaction, *arguments, **options)
            misfortune, actor.misfortune = actor.misfortune, ""
            try:
                version = None if misfortune == "fail commit" else real_commit(transaction, *arguments, **options)
                if misfortune:
                    # Any error of the JVM will do, one that says nothing of the commit.
                    transaction.jvm.java.lang.Integer.parseInt("no answer")
            except Exception:
                actor.stop_at("unknown")
                raise
            return version

        def back_off(attempt: int) -> None:
            actor = current()
            if actor is None:
                real_back_off(attempt)
            else:
                actor.stop_at("conflicted")

        patch.setattr(steps, "observer", observe)
        patch.setattr(Transaction, "commit", commit_or_not)
        patch.setattr(exactly_once, "back_off", back_off)

    def _do(self, step: Step) -> None:
        if step.process in STATEMENTS:
            self.spark.sql(STATEMENTS[step.process].format(path=self.path))
            return
        actor = self.actors[step.process]
        if step.name in ("lose answer", "fail commit"):
            actor.misfortune = step.name
        actor.go_on(is_killed=step.name == "crash")

    def _compare(self, state: State, done: str) -> None:
        expected = {name: state.processes[number].place for number, name in enumerate(self.model.sinks)}
        assert {name: actor.place for name, actor in self.actors.items()} == expected, done
        assert latest_version(self.path) == self.base + len(state.log) - 1, done
        assert self._rows() == self._modelled(state.log[-1]), done
        assert self._recorded() == dict(state.log[-1].recorded), done

    def _rows(self) -> list[tuple[Any, ...]]:
        names = ("id", "n", "seq") if self.model.kind == "ordered" else ("id", "n")
        return sorted(tuple(row[name] for name in names) for file in held_files(self.path) for row in file.rows)

    def _modelled(self, version: Version) -> list[tuple[Any, ...]]:
        return version.visible() if self.model.kind == "ordered" else [row[:2] for row in version.visible()]

    def _recorded(self) -> dict[str, int]:
        versions = range(self.base + 1, latest_version(self.path) + 1)
        return {txn["appId"]: txn["version"] for v in versions for txn in actions_of(self.path, v, "txn")}
