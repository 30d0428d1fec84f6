"""A model of how micro-batches get into a Delta table, small enough to visit every state that it can come to.

Two sinks, an OPTIMIZE and a statement of SQL share a table. Each goes through its steps one at a time, in every order.
The answer to a commit is lost, a commit fails, a process dies, at every moment at which it can. What a version holds is
compared with the same batches and statements done one after the other in the order of the log, on a plain dictionary.

The steps are those of `stream_merge.steps` and of `stream_merge.table.exactly_once`; test_traces.py walks the real sink
through them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

Row = tuple[int, int, int]
"""Key, n and sequence."""

Change = tuple[int, int, int, str]
"""Key, n, sequence, and u or d."""

Fault = Literal[
    "",
    "no read-back",
    "no check at open",
    "no check at reopen",
    "records nothing",
    "records apart",
    "stale vectors",
    "no file conflict",
    "no append conflict",
    "no record conflict",
    "no tombstones",
    "forgets the vector",
]
"""What is left out of the protocol, so that the model has to find it."""


class File(NamedTuple):
    """An active file, with the positions that its deletion vector marks."""

    name: str
    rows: tuple[Row, ...]
    vector: frozenset[int] = frozenset()

    def visible(self) -> list[Row]:
        """Return the rows that a reader sees."""
        return [row for place, row in enumerate(self.rows) if place not in self.vector]


@dataclass(frozen=True, eq=False, slots=True)
class Version:
    """A version of the table; `version_of` makes it, so that equal ones are the same object, and states are compared
    fast.

    Attributes:
        author: Whose commit it is: a process and its batch, or the name of a statement.
        files: The active files.
        recorded: Application id and last batch id of each SetTransaction.
        tombstones: Key and sequence of each remembered delete.
        txn: Application id and batch id of the commit's own SetTransaction.
        writer: The process, as the transaction's id tells it.
    """

    author: str
    files: frozenset[File]
    recorded: frozenset[tuple[str, int]]
    tombstones: frozenset[tuple[int, int]]
    txn: tuple[str, int] | None
    writer: str

    def visible(self) -> list[Row]:
        """Return the rows that a reader sees, in order."""
        return sorted(row for file in self.files for row in file.visible())


@cache
def version_of(
    author: str,
    files: frozenset[File],
    recorded: frozenset[tuple[str, int]] = frozenset(),
    tombstones: frozenset[tuple[int, int]] = frozenset(),
    txn: tuple[str, int] | None = None,
    writer: str = "",
) -> Version:
    """Return the version with these contents."""
    return Version(author, files, recorded, tombstones, txn, writer)


class Staged(NamedTuple):
    """What a commit will hold."""

    removes: frozenset[File]
    adds: frozenset[File]
    deletes: frozenset[tuple[int, int]]


class Process(NamedTuple):
    """A sink, or a statement, on its way.

    Attributes:
        place: idle, staged, unknown, conflicted, landed, recording or ended.
        batch: The number of the batch.
        version: The version that the transaction reads.
        staged_on: The version that what is staged was computed from: the same one, if nothing is wrong.
        is_conflict: In `unknown`, whether the error is one that names a conflict.
        attempt: Which attempt of the batch this is; files are named by it.
    """

    place: str = "idle"
    batch: int = 0
    version: int = -1
    staged_on: int = -1
    is_conflict: bool = False
    attempt: int = 0


class State(NamedTuple):
    """A state of the whole: the table's log, the processes, and the misfortunes that may still come."""

    log: tuple[Version, ...]
    processes: tuple[Process, ...]
    lost_answers: int
    failed_commits: int
    crashes: int


class Step(NamedTuple):
    """A process and what it does next."""

    process: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """What takes part.

    Attributes:
        kind: counting, where n of the source is added to n of the target; or ordered, with a sequence and deletes.
        is_merge_on_read: Whether rows are marked in vectors; else files are rewritten.
        sinks: Name of each process to its application id.
        batches: Application id to the batches of the query.
        statement: The SQL that comes between: "delete" or "update" of key 1, or none.
        optimizes: Whether there is an OPTIMIZE.
        lost_answers: How many commits land and seem to have failed.
        failed_commits: How many commits fail.
        crashes: How many times a sink dies; its query is started again.
        fault: What is left out of the protocol.
        staged: What was staged before, by what it depends on.
    """

    kind: Literal["counting", "ordered"]
    is_merge_on_read: bool = True
    sinks: Mapping[str, str] = field(default_factory=lambda: {"a": "a", "b": "b"})
    batches: Mapping[str, Sequence[Sequence[Change]]]
    statement: str = "delete"
    optimizes: bool = True
    lost_answers: int = 1
    failed_commits: int = 0
    crashes: int = 1
    fault: Fault = ""
    staged: dict[tuple[Version, str, int, int], Staged] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The processes in the order in which a state has them."""
        return [*self.sinks, *(["optimize"] if self.optimizes else []), *([self.statement] if self.statement else [])]

    def start(self) -> State:
        """Return the first state: keys 1 and 2, each in a file of its own."""
        files = frozenset({File("f1", ((1, 0, 0),)), File("f2", ((2, 0, 0),))})
        processes = tuple(Process() for _ in self.names)
        return State((version_of("start", files),), processes, self.lost_answers, self.failed_commits, self.crashes)

    def next_states(self, state: State) -> Iterator[tuple[Step, State]]:
        """Yield every step that can come next, with the state after it."""
        for number, name in enumerate(self.names):
            process = state.processes[number]
            if process.place == "ended":
                continue
            if name not in self.sinks:
                yield from self._statement_steps(state, number, name)
                continue
            for step, changed in self._sink_steps(state, name, process):
                processes = list(state.processes)
                processes[number] = changed[0]
                yield Step(name, step), changed[1]._replace(processes=tuple(processes))
            if state.crashes and process.place != "idle":
                processes = list(state.processes)
                processes[number] = Process(batch=process.batch, attempt=process.attempt + 1)
                yield Step(name, "crash"), state._replace(processes=tuple(processes), crashes=state.crashes - 1)

    # The sink.

    def _sink_steps(self, state: State, name: str, process: Process) -> Iterator[tuple[str, tuple[Process, State]]]:
        match process.place:
            case "idle":
                yield "open", (self._opened(state, name, process), state)
            case "staged":
                yield from self._commits(state, name, process)
            case "unknown":
                yield "settle", (self._settled(state, name, process), state)
            case "conflicted":
                yield "reopen", (self._reopened(state, name, process), state)
            case "recording":
                last, txn = state.log[-1], self._txn(name, process)
                recorded = self._recorded(last, name, process)
                record = version_of("record", last.files, recorded, last.tombstones, txn)
                yield "record", (process._replace(place="landed"), state._replace(log=(*state.log, record)))
            case "landed":
                is_last = process.batch + 1 == len(self.batches[self.sinks[name]])
                yield "done", (Process("ended") if is_last else Process(batch=process.batch + 1), state)

    def _txn(self, name: str, process: Process) -> tuple[str, int]:
        return self.sinks[name], process.batch

    def _recorded(self, last: Version, name: str, process: Process) -> frozenset[tuple[str, int]]:
        app_id, batch = self._txn(name, process)
        return frozenset({*(entry for entry in last.recorded if entry[0] != app_id), (app_id, batch)})

    def _last_batch(self, version: Version, name: str) -> int:
        return dict(version.recorded).get(self.sinks[name], -1)

    def _opened(self, state: State, name: str, process: Process) -> Process:
        """Read the newest version; skip a batch that it holds, and refuse one that is older than what it holds."""
        last = -1 if self.fault == "no check at open" else self._last_batch(state.log[-1], name)
        newest = len(state.log) - 1
        return self._unless_applied(last, process, process._replace(place="staged", version=newest, staged_on=newest))

    def _unless_applied(self, last: int, process: Process, otherwise: Process) -> Process:
        if last > process.batch:
            return Process("ended")
        if last == process.batch:
            return self._at(process, "landed")
        return otherwise

    def _at(self, process: Process, place: str) -> Process:
        """Return the process at a place where it has nothing open."""
        return Process(place, process.batch, attempt=process.attempt)

    def _reopened(self, state: State, name: str, process: Process) -> Process:
        newest = len(state.log) - 1
        staged_on = process.staged_on if self.fault == "stale vectors" else newest
        again = Process("staged", process.batch, newest, staged_on, attempt=process.attempt + 1)
        if self.fault in ("no check at reopen", "no read-back"):
            return again
        return self._unless_applied(self._last_batch(state.log[-1], name), process, again)

    def _stage(self, read: Version, name: str, process: Process) -> Staged:
        """Find the rows that change, and make the files that hold what becomes of them."""
        changes = self.batches[self.sinks[name]][process.batch]
        remembered = {} if self.fault == "no tombstones" else dict(read.tombstones)
        new: list[Row] = []
        touched: dict[File, set[int]] = {}
        deletes = []
        for key, n, sequence, op in changes:
            if self.kind == "ordered" and sequence < remembered.get(key, sequence):
                continue
            found = [
                (file, place, row)
                for file in read.files
                for place, row in enumerate(file.rows)
                if row[0] == key and place not in file.vector
            ]
            if self.kind == "ordered" and any(row[2] > sequence for _, _, row in found):
                continue
            for file, place, _ in found:
                touched.setdefault(file, set()).add(place)
            if op == "d":
                deletes.append((key, sequence))
            else:
                total = n + sum(row[1] for _, _, row in found) if self.kind == "counting" else n
                new.append((key, total, sequence))
        return self._staged(touched, new, deletes, f"{name}{process.batch}.{process.attempt}")

    def _staged(
        self, touched: Mapping[File, set[int]], new: list[Row], deletes: Sequence[tuple[int, int]], file_name: str
    ) -> Staged:
        adds = []
        for file, places in touched.items():
            vector = frozenset(places) if self.fault == "forgets the vector" else file.vector | places
            left = file._replace(vector=vector)
            if not self.is_merge_on_read:
                new = [*new, *left.visible()]
            elif left.visible():
                adds.append(left)
        if new:
            adds.append(File(file_name, tuple(sorted(new))))
        return Staged(frozenset(touched), frozenset(adds), frozenset(deletes))

    def _commits(self, state: State, name: str, process: Process) -> Iterator[tuple[str, tuple[Process, State]]]:
        if self._conflicts(state, process, name):
            yield "commit", (process._replace(place="unknown", is_conflict=True), state)
            return
        key = (state.log[process.staged_on], name, process.batch, process.attempt)
        if key not in self.staged:
            self.staged[key] = self._stage(key[0], name, process)
        landed = self._landed(state, name, process, self.staged[key])
        yield "commit", (self._at(process, "recording" if self.fault == "records apart" else "landed"), landed)
        unknown = process._replace(place="unknown", is_conflict=False)
        if state.lost_answers:
            # A store that answers "there is such a file" makes Delta report a conflict of the commit with itself.
            seeming = unknown._replace(is_conflict=True)
            yield "lose answer", (seeming, landed._replace(lost_answers=state.lost_answers - 1))
        if state.failed_commits:
            yield "fail commit", (unknown, state._replace(failed_commits=state.failed_commits - 1))

    def _conflicts(self, state: State, process: Process, name: str) -> bool:
        """Tell whether Delta refuses the commit for what came since the version that it read."""
        read = state.log[process.version]
        for before, version in zip(state.log[process.version :], state.log[process.version + 1 :], strict=False):
            if self.fault != "no file conflict" and (before.files - version.files) & read.files:
                return True
            has_new_rows = version.author != "optimize" and version.files - before.files
            if self.fault != "no append conflict" and has_new_rows:
                return True
            if version.txn is None or self.fault == "no record conflict":
                continue
            # What is remembered of deletes is in each commit of a sink that has a sequence.
            if version.txn[0] == self.sinks[name] or self.kind == "ordered":
                return True
        return False

    def _landed(self, state: State, name: str, process: Process, staged: Staged) -> State:
        last = state.log[-1]
        removed = {file.name for file in staged.removes}
        files = frozenset({*(file for file in last.files if file.name not in removed), *staged.adds})
        has_record = self.fault not in ("records nothing", "records apart")
        newest = dict(last.tombstones)
        for key, sequence in staged.deletes:
            newest[key] = max(sequence, newest.get(key, sequence))
        version = version_of(
            author=f"{self.sinks[name]}{process.batch}",
            files=files,
            recorded=self._recorded(last, name, process) if has_record else last.recorded,
            tombstones=frozenset(newest.items()),
            txn=self._txn(name, process) if has_record else None,
            writer=f"{name}{process.batch}.{process.attempt}",
        )
        return state._replace(log=(*state.log, version))

    def _settled(self, state: State, name: str, process: Process) -> Process:
        """Find out what became of a commit that raised: its own version, the record of the batch, or nothing."""
        if self.fault != "no read-back":
            own = f"{name}{process.batch}.{process.attempt}"
            if any(version.writer == own for version in state.log[process.version + 1 :]):
                return self._at(process, "landed")
            last = self._last_batch(state.log[-1], name)
            if last >= process.batch:
                return self._unless_applied(last, process, process)
        if process.is_conflict:
            return self._at(process, "conflicted")._replace(staged_on=process.staged_on)
        return Process(batch=process.batch, attempt=process.attempt + 1)

    # OPTIMIZE and SQL, which are Delta's own.

    def _statement_steps(self, state: State, number: int, name: str) -> Iterator[tuple[Step, State]]:
        """Do all of it at once: had it read an older version, Delta would refuse it, or it would not matter."""
        processes, log = list(state.processes), state.log
        processes[number] = Process("ended")
        last = log[-1]
        staged = self._optimized(last) if name == "optimize" else self._of_statement(last, name)
        if staged.removes or staged.adds:
            removed = {file.name for file in staged.removes}
            files = frozenset({*(file for file in last.files if file.name not in removed), *staged.adds})
            log = (*log, version_of(name, files, last.recorded, last.tombstones))
        yield Step(name, "commit"), state._replace(processes=tuple(processes), log=log)

    def _optimized(self, read: Version) -> Staged:
        """Put all rows into one file, if there are several files or one with a vector."""
        if len(read.files) < 2 and not any(file.vector for file in read.files):
            return Staged(frozenset(), frozenset(), frozenset())
        return Staged(read.files, frozenset({File("o", tuple(read.visible()))}), frozenset())

    def _of_statement(self, read: Version, name: str) -> Staged:
        new, touched = [], {}
        for file in read.files:
            places = {place for place, row in enumerate(file.rows) if row[0] == 1 and place not in file.vector}
            if places:
                touched[file] = places
                new += [changed_by_update(file.rows[place]) for place in places if name == "update"]
        return self._staged(touched, new, (), "s")


def changed_by_update(row: Row) -> Row:
    """Return what the statement UPDATE makes of the row of key 1."""
    return (row[0], row[1] + 5, row[2])


class WrongTableError(AssertionError):
    """A state in which the table is wrong."""


def serially(model: Model) -> Callable[[tuple[str, ...]], dict[int, tuple[int, int]]]:
    """Return a function from the authors of a log to the rows that they give one after the other: key to n and
    sequence."""
    effects = {f"{app}{n}": batch for app, batches in model.batches.items() for n, batch in enumerate(batches)}

    @cache
    def after(authors: tuple[str, ...]) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
        if not authors:
            return {1: (0, 0), 2: (0, 0)}, {}
        rows, deleted = (dict(known) for known in after(authors[:-1]))
        author = authors[-1]
        if author == "delete":
            rows.pop(1, None)
        elif author == "update" and 1 in rows:
            rows[1] = (rows[1][0] + 5, rows[1][1])
        for key, n, sequence, op in effects.get(author, ()):
            if model.kind == "counting":
                rows[key] = (rows.get(key, (0, 0))[0] + n, sequence)
            elif sequence >= max(rows.get(key, (0, 0))[1], deleted.get(key, 0)):
                rows.pop(key, None)
                if op == "d":
                    deleted[key] = sequence
                else:
                    rows[key] = (n, sequence)
        return rows, deleted

    return lambda authors: after(authors)[0]


def check_newest(model: Model, log: tuple[Version, ...], serial: Callable[..., dict[int, tuple[int, int]]]) -> None:
    """Raise a WrongTableError unless the newest version is right, given that those before it are."""
    version = log[-1]
    rows = version.visible()
    keys = [row[0] for row in rows]
    if len(set(keys)) < len(keys):
        raise WrongTableError(f"a key has several rows: {rows}")
    authors = tuple(v.author for v in log[1:] if v.author not in ("optimize", "record"))
    of_sinks = [author for author in authors if author not in ("delete", "update")]
    if len(set(of_sinks)) < len(of_sinks):
        raise WrongTableError(f"a batch is in the table twice: {of_sinks}")
    for app in model.batches:
        own = [author for author in of_sinks if author[0] == app]
        if own != [f"{app}{number}" for number in range(len(own))]:
            raise WrongTableError(f"batches out of order: {own}")
    expected = serial(authors)
    if {key: (n, sequence) for key, n, sequence in rows} != expected:
        raise WrongTableError(f"{rows} where one after the other {authors} give {expected}")
    if len(log) > 1 and model.kind == "ordered" and version.author != "delete":
        before = {key: sequence for key, _, sequence in log[-2].visible()}
        for key, _, sequence in rows:
            if sequence < max(before.get(key, 0), dict(log[-2].tombstones).get(key, 0)):
                raise WrongTableError(f"key {key} went back to {sequence}: {log[-2].visible()}, {log[-2].tombstones}")


def check_end(model: Model, state: State) -> None:
    """Raise a WrongTableError unless every batch is in the table once, now that nobody has anything left to do."""
    if any(process.place != "ended" for process in state.processes):
        raise WrongTableError(f"nobody can go on: {state.processes}")
    authors = sorted(version.author for version in state.log if version.txn)
    expected = sorted(f"{app}{number}" for app, batches in model.batches.items() for number in range(len(batches)))
    if authors != expected:
        raise WrongTableError(f"{authors} are in the table in the end")


@dataclass(kw_only=True)
class Explored:
    """Every state that a model can come to.

    Attributes:
        parents: Each state to the one it was first reached from, and the step.
        num_steps: How many steps lead from a state to another.
        ends: The states in which nobody has anything left to do.
    """

    parents: dict[State, tuple[State, Step] | None]
    num_steps: int
    ends: list[State]

    def trace(self, state: State) -> list[tuple[Step, State]]:
        """Return the steps to a state, with the state after each."""
        steps = []
        while (parent := self.parents[state]) is not None:
            steps.append((parent[1], state))
            state = parent[0]
        return steps[::-1]


def explore(model: Model) -> Explored:
    """Visit every state, and check each.

    Raises:
        WrongTableError: With the shortest way to a state in which the table is wrong.
    """
    start = model.start()
    explored = Explored(parents={start: None}, num_steps=0, ends=[])
    serial = serially(model)
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        is_end = True
        for step, following in model.next_states(state):
            is_end = False
            explored.num_steps += 1
            if following in explored.parents:
                continue
            explored.parents[following] = (state, step)
            waiting.append(following)
            if len(following.log) > len(state.log):
                _checked(explored, following, lambda log=following.log: check_newest(model, log, serial))
        if is_end:
            explored.ends.append(state)
            _checked(explored, state, lambda state=state: check_end(model, state))
    return explored


def _checked(explored: Explored, state: State, check: Callable[[], None]) -> None:
    try:
        check()
    except WrongTableError as violation:
        steps = ", ".join(f"{step.process} {step.name}" for step, _ in explored.trace(state))
        raise WrongTableError(f"{violation}; after {steps}") from None
