"""What of an attempt holds for the next one, after a conflict with another writer."""

from __future__ import annotations

import pytest

from stream_merge.batch.attempt import Kept, what_can_be_kept

NOTHING = Kept(evaluated=False, measured=False, written=False)
ROWS = Kept(evaluated=True, measured=False, written=False)
SOURCE = Kept(evaluated=True, measured=True, written=False)
ALL = Kept(evaluated=True, measured=True, written=True)


@pytest.mark.parametrize(
    ("differs", "kept"),
    [
        ({}, ALL),
        # Columns or features of the table changed, and the sink does not go by them.
        ({"is_same_table": False}, SOURCE),
        # Another sink has deleted keys: which changes are outdated must be looked up anew.
        ({"has_same_deletes": False}, ROWS),
        ({"is_same_table": False, "has_same_deletes": False}, ROWS),
        # Values were taken from rows that may be others now.
        ({"has_moved_rows": True, "has_same_deletes": False}, NOTHING),
        ({"is_refolded": True, "has_same_deletes": False}, NOTHING),
        ({"is_refolded": True, "is_rearranged": True}, NOTHING),
        # A sink without state, whose deletes cannot differ.
        ({"is_refolded": True}, SOURCE),
    ],
)
def test_what_can_be_kept(differs: dict[str, bool], kept: Kept):
    facts = {"is_same_table": True, "is_rearranged": False, "is_refolded": False, "has_moved_rows": False}
    assert what_can_be_kept(**{**facts, "has_same_deletes": True, **differs}) == kept
