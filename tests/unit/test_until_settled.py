"""Which attempts of a commit follow one another, and how they end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import PySparkException

from stream_merge.errors import CommitConflictError, StreamMergeError
from stream_merge.table import exactly_once
from stream_merge.table.exactly_once import Outcome, Retries, until_settled

CONFLICT = Outcome(conflict="ConcurrentAppendException")
FAILED = Outcome()


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[int]:
    """Return the numbers of the attempts after which the loop waited; it does not wait in these tests."""
    found: list[int] = []
    monkeypatch.setattr(exactly_once, "back_off", found.append)
    return found


def settled(outcomes: Sequence[Outcome | int], retries: Retries, last: int = 9) -> tuple[int, int | None]:
    """Run attempts 0, 1, ... up to `last`, with these outcomes: a version, or that of a commit that raised."""

    def commit(attempt: int) -> int:
        outcome = outcomes[attempt]
        if isinstance(outcome, Outcome):
            raise PySparkException("the commit failed")
        return outcome

    def settle(attempt: int, _: BaseException) -> Outcome:
        outcome = outcomes[attempt]
        assert isinstance(outcome, Outcome)
        return outcome

    def again(attempt: int) -> int | None:
        return attempt + 1 if attempt < last else None

    return until_settled(0, commit=commit, settle=settle, again=again, retries=retries)


def retries(**options) -> Retries:
    return Retries(**{"name": "t", "max_retries": 2, **options})


def test_a_commit_that_lands_is_the_only_one(waits):
    counted = retries()
    assert settled([7], counted) == (0, 7)
    assert (counted.num_attempts, counted.conflicts, waits) == (1, [], [])


@pytest.mark.parametrize(
    ("outcome", "version"),
    [(Outcome(version=7), 7), (Outcome(is_landed=True), None)],
    ids=["own", "of another process"],
)
def test_a_commit_that_raised_and_landed_is_not_repeated(outcome, version, caplog):
    assert settled([outcome], retries(where=" in the quarantine q")) == (0, version)
    assert "t: a commit raised an error but landed in the quarantine q: the commit failed" in caplog.text


def test_after_a_conflict_another_attempt_is_committed(waits):
    counted = retries()
    assert settled([CONFLICT, CONFLICT, 9], counted) == (2, 9)
    assert (counted.num_attempts, counted.conflicts, waits) == (3, [CONFLICT.conflict] * 2, [1, 2])


def test_no_attempt_follows_where_another_process_has_committed():
    counted = retries()
    assert settled([CONFLICT], counted, last=0) == (0, None)
    assert counted.num_attempts == 1


def test_too_many_conflicts_are_an_error(waits):
    with pytest.raises(CommitConflictError, match="ConcurrentAppendException in q") as raised:
        settled([CONFLICT] * 4, retries(where=" in q"))
    assert (raised.value.attempts, waits) == (3, [1, 2])


def test_what_was_computed_from_the_target_has_one_attempt(waits):
    with pytest.raises(CommitConflictError, match="the batch reads its own target") as raised:
        settled([CONFLICT, 1], retries(is_static=True))
    assert (raised.value.attempts, waits) == (1, [])


def test_another_failure_is_not_repeated(waits):
    counted = retries()
    with pytest.raises(StreamMergeError, match="the commit failed") as raised:
        settled([FAILED, 1], counted)
    assert not isinstance(raised.value, CommitConflictError)
    assert (counted.num_attempts, counted.conflicts, waits) == (1, [], [])
