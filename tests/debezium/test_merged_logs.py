"""Real logs through a sink, in batches that have nothing to do with their order: the table is the database's own."""

import re
import shutil

import pytest
from pyspark.sql import functions as F

from stream_merge import debezium, merge_router, merge_sink
from stream_merge.sequence import SEQUENCE
from tests.debezium.captures import (
    CAPTURES,
    COLUMNS,
    DEMO,
    EVENT_SCHEMA,
    KEYS,
    as_records,
    canonical_rows,
    read_expected,
)
from tests.debezium.test_captured_logs import columns_of, decode

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


def test_the_topics_of_a_stream_make_the_database_s_own_tables(spark, create_table, tmp_path):
    """The records of all tables in one stream, decoded by the router table by table."""
    sources = {"orders": CAPTURES / "small-schema", "t": CAPTURES / "edge"}
    (tmp_path / "events").mkdir()
    for table, directory in sources.items():
        create_table(COLUMNS[table], deletion_vectors=True, path=str(tmp_path / "lake" / table))
        shutil.copy(directory / "events.jsonl.gz", tmp_path / "events" / f"{table}.jsonl.gz")

    def sink_of(topic):
        table = re.fullmatch(r"\w+\.public\.(orders|t)", topic)
        return table and merge_sink(
            str(tmp_path / "lake" / table[1]),
            keys=KEYS[table[1]],
            sequence_by="_change.sequence",
            delete_when="_change.op = 'd'",
        )

    def decode_topic(topic, records):
        table = topic.rpartition(".")[2]
        return debezium.changes(records, columns_of(table), KEYS[table])

    events = spark.readStream.schema(EVENT_SCHEMA).json(str(tmp_path / "events"))
    router = merge_router(sink_of, prepare=decode_topic, unknown="ignore")  # the capture has other tables, too
    query = (
        as_records(events)
        .writeStream.foreachBatch(router)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for table, directory in sources.items():
        rows = spark.read.format("delta").load(str(tmp_path / "lake" / table)).drop(SEQUENCE).collect()
        assert canonical_rows(row.asDict() for row in rows) == read_expected(directory, table)
