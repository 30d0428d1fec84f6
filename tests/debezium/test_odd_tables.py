"""A real log of all types, odd names, keys of any type, changed keys and changed columns makes the database's own
contents."""

import gzip
import json
import re

import pytest
from pyspark.sql import functions as F

from stream_merge import debezium, merge_router, merge_sink
from stream_merge.column_names import COLUMN_SEQUENCES, SEQUENCE
from tests.debezium.captures import CAPTURES, EVENT_SCHEMA, as_records, fold
from tests.debezium.postgres_values import field_of, rows_of_database, rows_of_spark, with_times_as_text
from tests.debezium.test_merged_logs import batches_of

OPTIONS = {"odd": {}, "odd-schema": {}, "odd-text": {"decimals": "string", "binary": "hex"}}


def tables_of(capture):
    return json.loads((CAPTURES / capture / "capture.json").read_text())["tables"]


def cases(capture, *, with_key=True):
    return [
        pytest.param(capture, topic, id=f"{capture}-{table['table']}")
        for topic, table in sorted(tables_of(capture).items())
        if bool(table["key"]) == with_key and (capture, table["table"]) != ("odd", "evolving")
    ]


def columns_of(capture, table):
    if capture == "odd-schema":
        return None
    return {name: field_of(declared, as_text=capture == "odd-text") for name, declared in table["columns"].items()}


def decode(events, capture, topic):
    table = tables_of(capture)[topic]
    records = as_records(events.where(F.col("topic") == topic))
    keys = table["key"] if table["key"] == [] or capture != "odd-schema" else None
    return debezium.changes(records, columns_of(capture, table), keys, **OPTIONS[capture])


def expected_rows(capture, topic):
    table = tables_of(capture)[topic]
    with gzip.open(CAPTURES / "odd" / "expected" / f"{table['expected']}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return rows_of_database(map(json.loads, lines), table["columns"], as_text=capture == "odd-text")


@pytest.fixture(scope="module")
def events_of(spark):
    """Return the events of each capture, read once."""
    frames = {
        capture: spark.read.schema(EVENT_SCHEMA).json(str(CAPTURES / capture / "events.jsonl.gz")).persist()
        for capture in OPTIONS
    }
    yield frames
    for frame in frames.values():
        frame.unpersist()


@pytest.mark.parametrize(("capture", "topic"), [case for capture in OPTIONS for case in cases(capture)])
def test_a_log_makes_the_database_s_own_rows(events_of, capture, topic):
    table = tables_of(capture)[topic]
    rows = with_times_as_text(decode(events_of[capture], capture, topic)).collect()
    assert rows_of_spark(fold(rows, table["key"]), table["columns"]) == expected_rows(capture, topic)


# Not `moves`: late changes of a key that moved away are left out.
MERGED = {
    "odd": [
        "zoo",
        "k_numeric",
        "k_float",
        "k_text",
        "q`uo\"te's",
        "envelope",
        "pairs",
        "k uuid date",
    ],
    "odd-schema": ["evolving", "payload", "pairs"],
}


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.any_strategy
@pytest.mark.parametrize("capture", MERGED)
def test_tables_that_the_router_creates_are_the_database_s_own(spark, events_of, tmp_path, capture, deletion_vectors):
    """In batches without any order, a part of which comes twice."""
    topics = {topic: table for topic, table in tables_of(capture).items() if table["table"] in MERGED[capture]}
    properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": str(deletion_vectors).lower()}
    paths = {topic: str(tmp_path / re.sub(r"\W", "_", topic)) for topic in topics}

    def sink_of(topic):
        keys = topics[topic]["key"]
        options = {"keys": keys, **debezium.MERGE_OPTIONS} if keys else debezium.KEYLESS_MERGE_OPTIONS
        return merge_sink(paths[topic], create_if_missing=True, table_properties=properties, **options)

    decoded = {topic: decode(events_of[capture], capture, topic).persist() for topic in topics}
    number = F.pmod(F.xxhash64("partition", "offset"), F.lit(3))
    router = merge_router(
        sink_of,
        prepare=lambda topic, rows: decoded[topic].join(
            rows.select(F.struct("partition", "offset").alias("place")),
            F.struct("_change.partition", "_change.offset") == F.col("place"),
            "left_semi",
        ),
    )
    events = events_of[capture].where(F.col("topic").isin(*topics))
    for batch in ((1, 2), (0, 2)):
        router.merge(events.where(number.isin(*batch)))
    for topic, table in topics.items():
        decoded[topic].unpersist()
        rows = spark.read.format("delta").load(paths[topic]).drop(SEQUENCE, COLUMN_SEQUENCES)
        merged = rows_of_spark((row.asDict() for row in with_times_as_text(rows).collect()), table["columns"])
        assert merged == expected_rows(capture, topic), topic


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.any_strategy
def test_values_that_are_not_sent_follow_rows_through_chains_and_swaps_of_keys(
    spark, events_of, tmp_path, deletion_vectors
):
    topic = next(topic for topic, table in tables_of("odd").items() if table["table"] == "moves")
    table = tables_of("odd")[topic]
    changes = decode(events_of["odd"], "odd", topic).persist()
    path, properties = str(tmp_path / "moves"), {"delta.enableDeletionVectors": str(deletion_vectors).lower()}
    sink = merge_sink(
        path, keys=table["key"], create_if_missing=True, table_properties=properties, **debezium.MERGE_OPTIONS
    )
    for batch in batches_of(changes, 2):
        sink.merge(batch)
    changes.unpersist()
    rows = spark.read.format("delta").load(path).drop(SEQUENCE, COLUMN_SEQUENCES)
    merged = rows_of_spark((row.asDict() for row in with_times_as_text(rows).collect()), table["columns"])
    assert merged == expected_rows("odd", topic)
