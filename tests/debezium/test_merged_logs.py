"""Real logs through a sink, in batches that have nothing to do with their order: the table is the database's own."""

import pytest
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.sequence import SEQUENCE
from tests.debezium.captures import CAPTURES, COLUMNS, DEMO, KEYS, canonical_rows, read_expected
from tests.debezium.test_captured_logs import decode

NUM_BATCHES = 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("directory", "table"),
    [(CAPTURES / "small-schema", "orders"), (CAPTURES / "edge", "t"), (DEMO, "orders")],
    ids=["small", "edge", "redelivered"],
)
def test_changes_that_come_late_and_twice_make_the_database_s_own_table(
    spark, create_table, directory, table, deletion_vectors
):
    path = create_table(COLUMNS[table], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=KEYS[table], sequence_by="_change.sequence", delete_when="_change.op = 'd'")
    changes = decode(spark, directory, table).persist()
    number_of_batch = F.pmod(F.xxhash64("_change.partition", "_change.offset"), F.lit(NUM_BATCHES))
    results = [sink.merge(changes.where(number_of_batch == number)) for number in (2, 0, 3, 1, 2)]
    changes.unpersist()
    rows = spark.read.format("delta").load(path).drop(SEQUENCE).collect()
    assert canonical_rows(row.asDict() for row in rows) == read_expected(directory, table)
    # Where the order matters: late changes met newer rows, and late upserts of deleted keys.
    assert sum(result.num_stale_rows for result in results) > 0
    if table == "orders":
        assert sum(result.num_outdated_rows for result in results) > 0
        assert sum(result.num_superseded_rows for result in results) > 0
