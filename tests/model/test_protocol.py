"""Every state of the model is right, and each part of the protocol is needed: without it the model goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.protocol import Change, Explored, Fault, Model, WrongTableError, explore

COUNTED: dict[str, list[list[Change]]] = {
    "a": [[(1, 1, 0, "u"), (2, 10, 0, "u")], [(1, 100, 0, "u")]],
    "b": [[(1, 1000, 0, "u")], [(2, 10_000, 0, "u")]],
}
ORDERED: dict[str, list[list[Change]]] = {
    "a": [[(1, 1, 5, "u"), (2, 2, 1, "u")], [(1, 3, 7, "d")]],
    "b": [[(1, 4, 6, "u")], [(2, 5, 3, "u"), (1, 6, 4, "u")]],
}
NEW: dict[str, list[list[Change]]] = {"a": [[(3, 1, 0, "u")]], "b": [[(3, 10, 0, "u")]]}
STALE: dict[str, list[list[Change]]] = {"a": [[(1, 1, 5, "u")], [(1, 2, 3, "u")]]}
"""The second batch changes nothing, so that its commit has no file."""

TWICE = {"a": "a", "z": "a"}
"""Two processes of one query: one was believed dead."""

MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "counting, merge on read": ({"kind": "counting", "batches": COUNTED, "statement": ""}, 50_000),
    "counting, copy on write": (
        {"kind": "counting", "batches": COUNTED, "statement": "", "is_merge_on_read": False},
        50_000,
    ),
    "counting, an UPDATE, a commit that fails": (
        {"kind": "counting", "batches": COUNTED, "statement": "update", "optimizes": False, "failed_commits": 1}
        | {"crashes": 0, "lost_answers": 0},
        10_000,
    ),
    "ordered, a DELETE": ({"kind": "ordered", "batches": ORDERED, "optimizes": False}, 50_000),
    "ordered, OPTIMIZE": ({"kind": "ordered", "batches": ORDERED, "statement": "", "crashes": 0}, 10_000),
    "both bring a new key": ({"kind": "counting", "batches": NEW, "statement": "", "crashes": 0}, 100),
    "the query runs twice": (
        {"kind": "counting", "sinks": TWICE, "batches": {"a": COUNTED["a"]}, "statement": ""},
        5_000,
    ),
    "the query runs twice, ordered": ({"kind": "ordered", "sinks": TWICE, "batches": STALE, "statement": ""}, 5_000),
}
"""What takes part, and how many states there are at least."""


@pytest.mark.parametrize("name", MODELS)
def test_the_table_is_right_in_every_state(name):
    parts, at_least = MODELS[name]
    explored = explore(Model(**parts))
    assert len(explored.parents) > at_least
    assert explored.num_steps > len(explored.parents)
    assert explored.ends
    print(f"{name}: {len(explored.parents)} states, {explored.num_steps} steps, {len(explored.ends)} ends")


NEEDED: list[tuple[Fault, str, str]] = [
    ("no read-back", "counting, merge on read", "in the table twice"),
    ("no check at open", "counting, merge on read", "in the table twice|one after the other"),
    ("no check at reopen", "the query runs twice", "in the table twice"),
    ("records nothing", "counting, merge on read", "in the table twice"),
    ("records apart", "counting, merge on read", "in the table twice"),
    ("stale vectors", "counting, merge on read", "several rows|one after the other"),
    ("no file conflict", "counting, merge on read", "several rows|one after the other"),
    ("no append conflict", "both bring a new key", "several rows|one after the other"),
    ("no record conflict", "the query runs twice, ordered", "in the table twice"),
    ("no tombstones", "ordered, a DELETE", "one after the other|went back"),
    ("forgets the vector", "counting, merge on read", "several rows|one after the other"),
]
"""What is left out of the protocol, where that matters, and how the table is wrong then."""


@pytest.mark.parametrize(("fault", "name", "wrong"), NEEDED, ids=[fault for fault, _, _ in NEEDED])
def test_each_part_of_the_protocol_is_needed(fault, name, wrong):
    with pytest.raises(WrongTableError, match=wrong):
        explore(Model(**MODELS[name][0], fault=fault))


def test_a_trace_leads_to_its_state():
    model = Model(**MODELS["the query runs twice"][0])
    explored: Explored = explore(model)
    end = explored.ends[-1]
    state = model.start()
    for step, expected in explored.trace(end):
        state = dict(model.next_states(state))[step]
        assert state == expected
    assert state == end
