"""The load and the comparison that the end-to-end test relies on, with PostgreSQL alone."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from tests.end_to_end.comparison import column_types, compare, database_rows, row_text
from tests.end_to_end.shop import ACTIONS, TABLES, Client, Load, create_shop
from tests.services.postgres import Postgres
from tests.services.processes import wait_until

SEED = 7


def test_clients_do_everything_and_leave_nothing_of_what_they_rolled_back(postgres: Postgres):
    with postgres.database("shop") as database:
        load = Load(database, create_shop(database, seed=SEED, publication="shop"), seed=SEED, pause=0.005)
        with load.running():
            wait_until("100 transactions", lambda: load.done.total() > 100, timeout=60)
            load.change_schema()
            wait_until("all actions", lambda: load.done.total() > 600 and set(ACTIONS) <= set(load.done), timeout=60)
        rows = {table: database_rows(database, table) for table in TABLES}
        assert {table for table in TABLES if not rows[table]} == set()
        assert [text for table in TABLES for text in rows[table] if "ROLLED BACK" in text] == []
        assert column_types(database, "customers")["phone"] == "text"
        assert max(rows["visits"].values()) > 1, "no two equal rows in the table without a key"
        # Values that a change of another column does not send.
        with database.connect() as connection:
            sizes = connection.execute("SELECT max(length(body)) > 8000, max(length(photo)) > 8000 FROM notes")
            assert sizes.fetchall() == [(True, True)]


def test_one_client_does_the_same_for_the_same_seed(postgres: Postgres):
    found = []
    for _ in range(2):
        with postgres.database("shop") as database:
            orders = create_shop(database, seed=SEED, publication="shop")
            with database.connect() as connection:
                client = Client(1, connection, orders, SEED)
                done = Counter(client.act() for _ in range(60))
            found.append((done, [database_rows(database, table) for table in TABLES[:4]]))
    assert found[0] == found[1]


def test_a_client_that_fails_fails_the_load(postgres: Postgres):
    with postgres.database("shop") as database:
        load = Load(database, create_shop(database, seed=SEED, publication="shop"), seed=SEED, pause=0.001)
        database.execute("DROP TABLE visits")
        with (
            pytest.raises(Exception, match='relation "visits" does not exist'),
            load.running(),
        ):
            wait_until("a client ended", lambda: bool(load._faults), timeout=60)


def test_rows_of_spark_have_the_text_of_the_databases():
    types = {
        "a": "uuid",
        "b": "numeric",
        "c": "timestamp with time zone",
        "d": "jsonb",
        "e": "bytea",
        "f": "text[]",
        "g": "date",
        "h": "double precision",
        "i": "text",
    }
    moment = datetime(2020, 2, 29, 12, 30, 0, 1, tzinfo=timezone.utc)
    of_database = {
        "a": UUID(int=5),
        "b": Decimal("1.50"),
        "c": moment,
        "d": {"b": [1, None], "a": "é"},
        "e": b"\x00\xff",
        "f": ["x", None],
        "g": date(1969, 12, 31),
        "h": float("inf"),
        "i": None,
    }
    of_spark = {
        **of_database,
        "a": str(UUID(int=5)),
        "c": moment.replace(tzinfo=None),
        "d": '{"a": "é", "b": [1, null]}',
        "e": bytearray(b"\x00\xff"),
    }
    text = (
        '{"a": "00000000-0000-0000-0000-000000000005", "b": "1.50", "c": "2020-02-29T12:30:00.000001", '
        '"d": "{\\"a\\": \\"é\\", \\"b\\": [1, null]}", "e": "AP8=", "f": ["x", null], "g": "1969-12-31", '
        '"h": Infinity, "i": null}'
    )
    assert row_text(of_database, types) == text
    assert row_text(of_spark, types) == text


def test_a_comparison_counts_equal_rows():
    comparison = compare(Counter({"a": 2, "b": 1}), Counter({"a": 1, "c": 5}))
    assert (comparison.num_rows, comparison.is_equal) == (3, False)
    assert comparison.missing == ["a", "b"]
    assert comparison.unexpected == ["c", "c", "c", "and 2 more"]
    assert compare(Counter({"a": 2}), Counter({"a": 2})).is_equal
