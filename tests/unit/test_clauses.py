"""Clauses as values, and the rules that need no table."""

import dataclasses

import pytest

from stream_merge.clauses import Action, Clause, When, find_clause_faults


def clause(when=When.MATCHED, action=Action.DELETE, condition=None):
    return Clause(when=when, action=action, condition=condition)


@pytest.mark.parametrize(
    ("when", "action", "is_insert", "is_delete", "is_update"),
    [
        (When.MATCHED, Action.UPDATE, False, False, True),
        (When.MATCHED, Action.UPDATE_ALL, False, False, True),
        (When.MATCHED, Action.DELETE, False, True, False),
        (When.NOT_MATCHED, Action.INSERT, True, False, False),
        (When.NOT_MATCHED, Action.INSERT_ALL, True, False, False),
        (When.NOT_MATCHED_BY_SOURCE, Action.UPDATE, False, False, True),
        (When.NOT_MATCHED_BY_SOURCE, Action.DELETE, False, True, False),
    ],
)
def test_a_clause_says_what_it_does_to_rows(when, action, is_insert, is_delete, is_update):
    made = clause(when, action)
    assert (made.is_insert, made.is_delete, made.is_update) == (is_insert, is_delete, is_update)


def test_a_clause_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        clause().condition = "source.id > 0"


def test_only_the_last_clause_of_a_kind_may_omit_its_condition():
    assert find_clause_faults([]) == []
    assert find_clause_faults([clause(condition="source.op = 'd'"), clause(action=Action.UPDATE_ALL)]) == []
    assert find_clause_faults([clause(), clause(action=Action.UPDATE_ALL)]) == [
        "[DELTA_NON_LAST_MATCHED_CLAUSE_OMIT_CONDITION] "
        "only the last WHEN MATCHED clause may omit its condition; add one to the others"
    ]


def test_each_kind_of_clause_is_judged_by_itself():
    unconditional = [
        clause(),
        clause(When.NOT_MATCHED, Action.INSERT_ALL),
        clause(When.NOT_MATCHED_BY_SOURCE, Action.DELETE),
    ]
    assert find_clause_faults(unconditional) == []
    assert find_clause_faults(unconditional * 2) == [
        "[DELTA_NON_LAST_MATCHED_CLAUSE_OMIT_CONDITION] "
        "only the last WHEN MATCHED clause may omit its condition; add one to the others",
        "[DELTA_NON_LAST_NOT_MATCHED_CLAUSE_OMIT_CONDITION] "
        "only the last WHEN NOT MATCHED clause may omit its condition; add one to the others",
        "[DELTA_NON_LAST_NOT_MATCHED_BY_SOURCE_CLAUSE_OMIT_CONDITION] "
        "only the last WHEN NOT MATCHED BY SOURCE clause may omit its condition; add one to the others",
    ]
