"""`stream-merge diff` between Delta tables and Derby, a real database without a service."""

from __future__ import annotations

from decimal import Decimal

import pytest

from stream_merge.cli.compare import rows as rows_module
from stream_merge.cli.compare.comparison import compare
from stream_merge.cli.compare.database import TableName
from stream_merge.cli.compare.pairs import Pair
from stream_merge.cli.compare.report import lines_of
from tests.cli.derby import derby


@pytest.fixture
def database(spark, tmp_path):
    with derby(spark, tmp_path / "derby.log") as made:
        yield made


def compared(spark, database, path, table, *, keys=None, seconds=0.0, wait=None, **pair):
    return compare(
        spark,
        database.access,
        Pair(target=path, source=TableName.parse(table), keys=keys, **pair),
        seconds=seconds,
        num_samples=10,
        wait=wait or (lambda seconds: None),
    )


def test_rows_that_differ_are_told_with_their_columns(spark, database, create_table):
    database.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10, 2))")
    database.execute(
        "INSERT INTO t VALUES (?, ?, ?)",
        rows=[(1, "same", None), (2, None, None), (3, "old", None), (4, "gone", None)],
    )
    database.execute("UPDATE t SET price = 1.50 WHERE id IN (1, 3)")
    path = create_table(
        "id BIGINT, name STRING, price DECIMAL(12, 4)",
        [(1, "same", Decimal("1.5")), (2, None, None), (3, "new", Decimal("1.25")), (5, "extra", None)],
    )
    found = compared(spark, database, path, "APP.T")
    assert not found.is_equal
    assert (found.num_source, found.num_target, found.num_equal) == (4, 4, 2)
    assert "\n".join(lines_of(found)) == ""
