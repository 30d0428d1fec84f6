"""The real sink goes where the model goes: traces that have every kind of step, on a table, with both strategies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import CreateTable
from tests.model.protocol import Change, Explored, Model, State, Step, explore
from tests.model.walk import Walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.any_strategy, pytest.mark.slow, pytest.mark.always]

NUM_TRACES = 1
"""How many traces of each model are walked without --long: the richest are the first, and each takes Spark seconds."""

COUNTED: dict[str, list[list[Change]]] = {
    "a": [[(1, 1, 0, "u"), (2, 10, 0, "u")]],
    "b": [[(1, 1000, 0, "u"), (3, 2, 0, "u")]],
}
ORDERED: dict[str, list[list[Change]]] = {
    "a": [[(1, 1, 5, "u"), (2, 2, 1, "u")]],
    "b": [[(1, 3, 7, "d"), (2, 4, 0, "u")]],
}
TWICE = {"a": "a", "z": "a"}

MODELS: dict[str, dict[str, Any]] = {
    "counting": {"kind": "counting", "batches": COUNTED, "statement": "", "failed_commits": 1},
    "counting, UPDATE": {
        "kind": "counting",
        "batches": COUNTED,
        "statement": "update",
        "crashes": 0,
        "lost_answers": 0,
    },
    "ordered, DELETE": {"kind": "ordered", "batches": ORDERED, "optimizes": False, "lost_answers": 0},
    "twice": {"kind": "counting", "sinks": TWICE, "batches": {"a": [*COUNTED["a"], *COUNTED["b"]]}, "statement": ""}
    | {"lost_answers": 0, "crashes": 0},
}

Kind = tuple[Any, ...]
Trace = list[tuple[Step, State]]


def kind_of(model: Model, before: State, step: Step, state: State) -> Kind:
    """Return what kind of step it is: from where to where, and of a refused commit what came between."""
    number = model.names.index(step.process)
    old, new = before.processes[number], state.processes[number]
    is_refused = step.name == "commit" and new.place == "unknown"
    others = {version.author.rstrip("0123456789") for version in before.log[old.version + 1 :]} if is_refused else set()
    return (step.name, old.place, new.place, *sorted(others))


def to_its_end(model: Model, explored: Explored, before: State, step: Step, state: State) -> Trace:
    """Return the shortest way to a step, the step, and a way on to the end."""
    trace = [*explored.trace(before), (step, state)]
    while following := next(model.next_states(trace[-1][1]), None):
        trace.append(following)
    return [*with_work(model, trace)]


def with_work(model: Model, trace: Trace) -> Iterator[tuple[Step, State]]:
    """Yield the steps before an OPTIMIZE with nothing to do: Spark may write several files where the model writes
    one."""
    before = model.start()
    for step, state in trace:
        if step.process == "optimize" and state.log == before.log:
            return
        yield step, state
        before = state


def chosen(model: Model) -> list[Trace]:
    """Return traces, to where they add nothing more, that together have every kind of step; the richest first."""
    explored = explore(model)
    first: dict[Kind, tuple[State, Step, State]] = {}
    for before in explored.parents:
        for step, state in model.next_states(before):
            first.setdefault(kind_of(model, before, step, state), (before, step, state))
    traces = [to_its_end(model, explored, *edge) for edge in first.values()]
    kinds = []
    for trace in traces:
        states = [model.start(), *[state for _, state in trace]]
        kinds.append([kind_of(model, states[place], step, state) for place, (step, state) in enumerate(trace)])
    left, found = set[Kind]().union(*kinds), []
    while left:
        best = max(range(len(traces)), key=lambda number: (len(set(kinds[number]) & left), -len(traces[number])))
        last = max(place for place, kind in enumerate(kinds[best]) if kind in left)
        found.append(traces[best][: last + 1])
        left -= set(kinds[best])
    return found


@pytest.mark.every_case
@pytest.mark.parametrize("name", MODELS)
def test_the_sink_goes_where_the_model_goes(
    spark: SparkSession,
    create_table: CreateTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    strategy: str,
    deletion_vectors: bool,
    name: str,
):
    model = Model(**MODELS[name], is_merge_on_read=deletion_vectors)
    traces = chosen(model)
    for number, trace in enumerate(traces if request.config.getoption("--long") else traces[:NUM_TRACES]):
        with monkeypatch.context() as patch:
            walk = Walk(spark=spark, model=model, path=str(tmp_path / f"trace_{number}"))
            walk.run(trace, create_table, patch)
