"""The whole captured logs in fifty batches, each of which comes twice: hours of a stream, so only when asked for."""

import os

import pytest

from stream_merge import debezium, merge_sink
from tests.debezium.captures import CAPTURES, COLUMNS, DEMO, KEYS, read_expected
from tests.debezium.test_captured_logs import decode
from tests.debezium.test_merged_logs import batches_of, rows_of

ASKED_FOR = "STREAM_MERGE_TEST_WHOLE_LOGS"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get(ASKED_FOR), reason=f"some 50 minutes: only with {ASKED_FOR}=1"),
]


@pytest.mark.parametrize("strategy", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("table", ["orders", "order_items", "customers", "t"])
def test_fifty_batches_that_come_twice_make_the_database_s_own_table(spark, create_table, table, strategy):
    directory = CAPTURES / "edge" if table == "t" else DEMO
    path = create_table(COLUMNS[table], deletion_vectors=strategy == "merge_on_read")
    sink = merge_sink(path, keys=KEYS[table], **debezium.MERGE_OPTIONS)
    changes = decode(spark, directory, table).persist()
    strategies = set()
    try:
        for batch in batches_of(changes, 50):
            strategies.add(sink.merge(batch).strategy)
            again = sink.merge(batch)
            # It may delete or outdate nothing any more; updates to the same values are no inserts.
            assert (again.num_target_rows_inserted, again.num_target_rows_deleted) == (0, 0)
    finally:
        changes.unpersist()
    assert rows_of(spark, path) == read_expected(directory, table)
    assert strategies == {strategy}
