"""The whole captured logs in fifty batches, each of which comes twice: hours of a stream, so only with --long."""

import pytest

from stream_merge import debezium, merge_sink
from stream_merge.column_names import COLUMN_SEQUENCES, SEQUENCE
from tests.debezium import test_odd_tables as odd
from tests.debezium.captures import CAPTURES, COLUMNS, DEMO, EVENT_SCHEMA, KEYS, read_expected
from tests.debezium.postgres_values import rows_of_spark, with_times_as_text
from tests.debezium.test_captured_logs import decode
from tests.debezium.test_merged_logs import batches_of, rows_of

pytestmark = pytest.mark.long


@pytest.mark.parametrize("strategy", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("table", ["orders", "order_items", "customers", "products", "t"])
def test_fifty_batches_that_come_twice_make_the_database_s_own_table(spark, create_table, table, strategy):
    directory = {"products": CAPTURES / "shop", "t": CAPTURES / "edge"}.get(table, DEMO)
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


@pytest.mark.parametrize("strategy", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("capture", odd.OPTIONS)
def test_each_odd_table_is_created_and_merged(spark, tmp_path, capture, strategy):
    """In four batches, each of which comes twice."""
    events = spark.read.schema(EVENT_SCHEMA).json(str(CAPTURES / capture / "events.jsonl.gz"))
    properties = {"delta.enableDeletionVectors": str(strategy == "merge_on_read").lower()}
    tables = {
        topic: table
        for topic, table in odd.tables_of(capture).items()
        if (capture, table["table"]) != ("odd", "evolving")
    }
    wrong = []
    for number, (topic, table) in enumerate(tables.items()):
        path = str(tmp_path / str(number))
        options = {"keys": table["key"], **debezium.MERGE_OPTIONS} if table["key"] else debezium.KEYLESS_MERGE_OPTIONS
        sink = merge_sink(path, create_if_missing=True, table_properties=properties, **options)
        changes = odd.decode(events, capture, topic).persist()
        try:
            for batch in batches_of(changes, 4):
                assert sink.merge(batch).strategy == strategy
                sink.merge(batch)
        finally:
            changes.unpersist()
        rows = spark.read.format("delta").load(path).drop(SEQUENCE, COLUMN_SEQUENCES)
        merged = rows_of_spark((row.asDict() for row in with_times_as_text(rows).collect()), table["columns"])
        if merged != odd.expected_rows(capture, topic):
            wrong.append(table["table"])
    assert wrong == []
