"""The choice of strategy: every branch of it, and what it says."""

import pytest

from stream_merge import UnsupportedTableError
from stream_merge.clauses import Action, Clause, When
from stream_merge.plan import MergePlan, Strategy, choose_strategy

INSERT = Clause(when=When.NOT_MATCHED, action=Action.INSERT_ALL)
UPDATE = Clause(when=When.MATCHED, action=Action.UPDATE_ALL)
DELETE = Clause(when=When.MATCHED, action=Action.DELETE)
DELETE_BY_SOURCE = Clause(when=When.NOT_MATCHED_BY_SOURCE, action=Action.DELETE)


def choose(*clauses, complete=False, vectors=True, requested=None):
    return choose_strategy(clauses, is_complete_mode=complete, has_deletion_vectors=vectors, requested=requested)


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("requested", [None, Strategy.OVERWRITE])
@pytest.mark.parametrize("clauses", [(INSERT,), (UPDATE, INSERT)])
def test_complete_mode_overwrites(clauses, requested, vectors):
    assert choose(*clauses, complete=True, vectors=vectors, requested=requested) == MergePlan(
        strategy=Strategy.OVERWRITE, reason="output mode Complete: each batch is the whole table"
    )


@pytest.mark.parametrize("requested", [Strategy.INSERT_ONLY, Strategy.MERGE_ON_READ, Strategy.COPY_ON_WRITE])
def test_complete_mode_refuses_every_other_strategy(requested):
    with pytest.raises(UnsupportedTableError) as refused:
        choose(UPDATE, INSERT, complete=True, requested=requested)
    assert str(refused.value) == (
        f"strategy={requested.value!r} cannot serve output mode Complete, where each batch is the whole table; "
        "leave strategy out, or use output mode Update"
    )


def test_overwrite_is_refused_outside_complete_mode():
    with pytest.raises(UnsupportedTableError) as refused:
        choose(UPDATE, INSERT, requested=Strategy.OVERWRITE)
    assert str(refused.value) == (
        'strategy="overwrite" replaces the whole table with each batch, which needs output mode Complete; '
        'set output_mode="complete" if you want that'
    )


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("requested", [None, Strategy.INSERT_ONLY, Strategy.COPY_ON_WRITE, Strategy.MERGE_ON_READ])
def test_inserts_alone_append(requested, vectors):
    assert choose(INSERT, INSERT, vectors=vectors, requested=requested) == MergePlan(
        strategy=Strategy.INSERT_ONLY, reason="all clauses are NOT MATCHED: no row of the target changes"
    )


@pytest.mark.parametrize("clause", [UPDATE, DELETE, DELETE_BY_SOURCE])
def test_insert_only_is_refused_for_clauses_that_change_rows(clause):
    with pytest.raises(UnsupportedTableError) as refused:
        choose(clause, INSERT, requested=Strategy.INSERT_ONLY)
    assert str(refused.value) == (
        'strategy="insert_only" cannot carry out update or delete clauses; leave strategy out, or drop the clauses'
    )


def test_merge_on_read_is_refused_without_deletion_vectors():
    with pytest.raises(UnsupportedTableError) as refused:
        choose(UPDATE, vectors=False, requested=Strategy.MERGE_ON_READ)
    assert str(refused.value) == (
        'strategy="merge_on_read" needs deletion vectors: '
        "ALTER TABLE ... SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )


@pytest.mark.parametrize("clause", [UPDATE, DELETE, DELETE_BY_SOURCE])
@pytest.mark.parametrize(
    ("vectors", "requested", "strategy", "reason"),
    [
        (
            True,
            None,
            Strategy.MERGE_ON_READ,
            "the target has deletion vectors: unchanged rows stay where they are",
        ),
        (
            False,
            None,
            Strategy.COPY_ON_WRITE,
            "the target gets no deletion vectors: touched files are rewritten",
        ),
        (True, Strategy.MERGE_ON_READ, Strategy.MERGE_ON_READ, "requested by the option strategy"),
        (True, Strategy.COPY_ON_WRITE, Strategy.COPY_ON_WRITE, "requested by the option strategy"),
        (False, Strategy.COPY_ON_WRITE, Strategy.COPY_ON_WRITE, "requested by the option strategy"),
    ],
)
def test_changes_of_rows_follow_the_request_and_then_the_table(clause, vectors, requested, strategy, reason):
    plan = choose(clause, INSERT, vectors=vectors, requested=requested)
    assert plan == MergePlan(strategy=strategy, reason=reason)
    assert str(plan) == f"{strategy.value}: {reason}"
