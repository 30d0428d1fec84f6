"""Real logs through a sink, in batches of any size: the table is the database's own."""

import re
import shutil

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge import debezium, merge_router, merge_sink
from stream_merge.column_names import COLUMN_SEQUENCES, SEQUENCE
from tests.debezium.captures import (
    CAPTURES,
    COLUMNS,
    DEMO,
    EVENT_SCHEMA,
    KEYS,
    SHOP,
    as_records,
    canonical_rows,
    read_expected,
)
from tests.debezium.test_captured_logs import columns_of, decode

pytestmark = pytest.mark.one_in(3)

NUM_BATCHES = 4


def batches_of(changes, number):
    """Cut a log into batches as partitions are read: each in order, at its own speed; a part of each batch comes
    twice."""
    by_partition = changes.groupBy("_change.partition").agg(F.max("_change.offset").alias("last"))
    ends = {row["partition"]: row["last"] + 1 for row in by_partition.collect()}
    place = F.lit(0)
    for partition, end in ends.items():
        # The first partition is read evenly, the next ones later and faster.
        share = F.col("_change.offset") / end
        delayed = F.pow(share, F.lit(1 / (1 + partition)))
        place = F.when(F.col("_change.partition") == partition, F.floor(delayed * number).cast("int")).otherwise(place)
    is_again = F.pmod(F.xxhash64("_change.partition", "_change.offset"), F.lit(5)) == 0
    for batch in range(number):
        yield changes.where((place == batch) | ((place == batch - 1) & is_again))


def rows_of(spark, path):
    table = spark.read.format("delta").load(path)
    plain = table.drop(SEQUENCE, COLUMN_SEQUENCES)
    # Python has no date that far away.
    times = [field.name for field in plain.schema if isinstance(field.dataType, (T.TimestampType, T.DateType))]
    assert not times or plain.where(" OR ".join(f"`{name}` > '9999-12-31'" for name in times)).isEmpty()
    return canonical_rows((row.asDict() for row in plain.collect()), **SHOP)


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize(
    ("directory", "table", "number", "deletion_vectors"),
    [
        (CAPTURES / "edge", "t", 3, True),
        (CAPTURES / "small-schema", "customers", 3, True),
        (CAPTURES / "small-schema", "customers", 1, False),
        (CAPTURES / "small-schema", "order_items", 3, False),
        # The largest: a minute.
        pytest.param(CAPTURES / "shop", "products", 3, True, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_log_makes_the_database_s_own_table(spark, create_table, directory, table, number, deletion_vectors):
    path = create_table(COLUMNS[table], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=KEYS[table], **debezium.MERGE_OPTIONS)
    changes = decode(spark, directory, table).persist()
    try:
        results = [sink.merge(batch) for batch in batches_of(changes, number)]
        again = sink.merge(changes)
    finally:
        changes.unpersist()
    assert rows_of(spark, path) == read_expected(directory, table)
    # The whole log once more changed nothing: not a row is another one.
    assert (again.num_target_rows_inserted, again.num_target_rows_deleted) == (0, 0)
    assert sum(result.num_superseded_rows for result in results) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("directory", "table", "deletion_vectors"),
    [(CAPTURES / "small-schema", "orders", False), (DEMO, "orders", True)],
    ids=["small", "redelivered"],
)
def test_changes_that_come_late_and_twice_make_the_database_s_own_table(
    spark, create_table, directory, table, deletion_vectors
):
    path = create_table(COLUMNS[table], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=KEYS[table], **debezium.MERGE_OPTIONS)
    changes = decode(spark, directory, table).persist()
    # Without any order: a later batch may hold the older changes of a key.
    number_of_batch = F.pmod(F.xxhash64("_change.partition", "_change.offset"), F.lit(NUM_BATCHES))
    results = [sink.merge(changes.where(number_of_batch == number)) for number in (2, 0, 3, 1, 2)]
    changes.unpersist()
    assert rows_of(spark, path) == read_expected(directory, table)
    # Where the order matters: late changes met newer rows, and late upserts of deleted keys.
    assert sum(result.num_stale_rows for result in results) > 0
    assert sum(result.num_outdated_rows for result in results) > 0
    assert sum(result.num_superseded_rows for result in results) > 0


def test_the_topics_of_a_stream_make_the_database_s_own_tables(spark, create_table, tmp_path):
    """The records of all tables in one stream, decoded by the router table by table."""
    small = CAPTURES / "small-schema"
    sources = {"customers": small, "orders": small, "order_items": small, "t": CAPTURES / "edge"}
    (tmp_path / "events").mkdir()
    for table, directory in sources.items():
        create_table(COLUMNS[table], deletion_vectors=True, path=str(tmp_path / "lake" / table))
        shutil.copy(directory / "events.jsonl.gz", tmp_path / "events" / f"{directory.name}.jsonl.gz")

    def sink_of(topic):
        table = re.fullmatch(r"\w+\.public\.(customers|orders|order_items|t)", topic)
        return table and merge_sink(
            str(tmp_path / "lake" / table[1]),
            keys=KEYS[table[1]],
            **debezium.MERGE_OPTIONS,
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
        assert rows_of(spark, str(tmp_path / "lake" / table)) == read_expected(directory, table)
