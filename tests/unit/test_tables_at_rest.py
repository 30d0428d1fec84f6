"""Tests when a table at rest is tried again, and what it says of itself."""

from __future__ import annotations

from datetime import datetime, timezone

from stream_merge.routing.parking_table import Owner
from stream_merge.routing.tables_at_rest import CATCHING_UP, FIRST_DELAY, TableAtRest


def test_a_table_that_can_be_merged_again_shows_no_error_and_forgets_its_delay():
    table = TableAtRest(owner=Owner("app", "/items"), since=datetime.now(timezone.utc), error="")
    assert [table.failed(ValueError("no  such\ncolumn")) for _ in range(3)] == [60.0, 120.0, 240.0]
    assert table.shown().error == "ValueError: no such column"
    assert not table.is_due
    table.recovered()
    assert table.shown().error == CATCHING_UP
    assert table.error == "ValueError: no such column", "it is parked with further records"
    assert table.failed(ValueError("again")) == FIRST_DELAY
    assert table.shown().error == "ValueError: again"
