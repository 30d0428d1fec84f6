"""Logs of tables without a key, through a sink: the table has the database's rows, equal ones as often as the
database."""

import json

import pytest

from stream_merge import debezium, merge_sink
from stream_merge.errors import QuarantineLimitError
from tests.debezium.records import PLACEHOLDER, decode, envelope, frame_of, record

pytestmark = pytest.mark.one_in(3)

COLUMNS = "name STRING, n BIGINT, tags ARRAY<STRING>"
A = {"name": "a", "n": 1, "tags": ["x", None]}
B = {"name": None, "n": 2, "tags": None}
SNAPSHOT = {"connector": "postgresql", "snapshot": "true", "lsn": 50}


def event(op, lsn, *, after=None, before=None, order=None, **place):
    message = envelope(op, after, before, connector="postgresql", snapshot="false", lsn=lsn)
    if order is not None:
        message["transaction"] = {"id": "7", "total_order": order, "data_collection_order": order}
    return placed(record(None, message), **place)


def snapshot(row, partition, offset):
    return placed(record(None, envelope("r", row, **SNAPSHOT)), partition=partition, offset=offset)


def placed(row, partition=0, offset=0):
    return (*row[:3], partition, offset, *row[5:])


LOG = [
    snapshot(A, 0, 0),
    snapshot(A, 1, 0),
    snapshot(B, 0, 1),
    event("d", 60, before=A, offset=2),
    event("u", 70, after={**A, "n": 5}, before=A, offset=3),
    # Rows of one COPY have one place in the log.
    event("c", 80, after=A, order=1, offset=4),
    event("c", 80, after=A, order=2, offset=5),
    event("c", 80, after=B, order=3, offset=6),
    event("d", 90, before=B, offset=7),
]
ROWS = [("a", 1, ("x", None)), ("a", 1, ("x", None)), ("a", 5, ("x", None)), (None, 2, None)]


def merge(sink, spark, *records):
    return sink.merge(debezium.changes(frame_of(spark, *records), COLUMNS, keys=[]))


def rows_of(read_rows, path):
    rows = [(row["name"], row["n"], row["tags"] and tuple(row["tags"])) for row in read_rows(path, "name", "n", "tags")]
    return sorted(rows, key=repr)


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([range(9)], id="at once"),
        pytest.param([range(3), range(3, 6), range(6, 9)], id="in order"),
        pytest.param([(8, 4, 0), (3, 6, 5, 2), (1, 7, 3, 8), (4, 0)], id="late and twice", marks=pytest.mark.core),
    ],
)
def test_a_log_makes_the_database_s_own_rows(spark, create_table, read_rows, deletion_vectors, batches):
    path = create_table(COLUMNS, deletion_vectors=deletion_vectors)
    sink = merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS)
    for batch in batches:
        merge(sink, spark, *[LOG[number] for number in batch])
    assert rows_of(read_rows, path) == sorted(ROWS, key=repr)


def test_truncates_and_records_that_cannot_be_decoded(spark, create_table, read_rows, tmp_path):
    path = create_table(COLUMNS)
    bad = [record(None, b"{", offset=20), event("d", 75, offset=21), event("c", 76, after={**A, "n": "?"}, offset=22)]
    with pytest.raises(QuarantineLimitError, match="not the JSON of a change"):
        merge(merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS), spark, *LOG[:3], *bad[:1])
    assert rows_of(read_rows, path) == []
    rejected = str(tmp_path / "rejected")
    sink = merge_sink(path, quarantine=rejected, **debezium.KEYLESS_MERGE_OPTIONS)
    assert merge(sink, spark, *LOG[:5], event("t", 65, offset=9), *bad).num_quarantined_rows == 3
    # The row that 70 updates was added after the TRUNCATE, and comes late.
    assert rows_of(read_rows, path) == [("a", 5, ("x", None))]
    assert [(row["offset"]) for row in read_rows(rejected, "offset")] == [20, 21, 22]
    merge(sink, spark, event("c", 66, after=A, offset=10), event("c", 64, after=B, offset=8), *LOG[5:])
    expected = [("a", 1, ("x", None)), ("a", 1, ("x", None)), ("a", 5, ("x", None))]
    assert rows_of(read_rows, path) == expected


def test_values_that_were_not_sent_are_those_of_the_old_row(spark, create_table, read_rows):
    toasted = {**A, "n": 9, "name": PLACEHOLDER, "tags": [PLACEHOLDER]}
    (row,) = decode(spark, event("u", 70, after=toasted, before=A), columns=COLUMNS, keys=[])
    assert (row["name"], row["n"], row["tags"]) == ("a", 9, ["x", None])
    assert (row["_change"]["unavailable"], row["_change"]["error"]) == ([], None)
    path = create_table(COLUMNS)
    sink = merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS)
    merge(sink, spark, event("c", 60, after=A), event("u", 70, after=toasted, before=A))
    merge(sink, spark, event("d", 80, before={**A, "n": 9}))
    assert rows_of(read_rows, path) == []
    # With nothing to take them from, nobody knows the row.
    unknown = event("c", 70, after=toasted), event("u", 70, after=A, before=toasted)
    errors = [row["_change"]["error"] for row in decode(spark, *unknown, columns=COLUMNS, keys=[])]
    assert errors == ["name was not sent; tags was not sent", "before's name was not sent; before's tags was not sent"]


def test_times_that_python_does_not_have_are_values_as_any_other(spark, create_table):
    columns = "at TIMESTAMP, day DATE"
    path = create_table(columns)
    sink = merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS)
    far, early = {"at": "infinity", "day": 2146033979}, {"at": "-0043-03-15T12:00:00Z", "day": -2440550}
    for one in (
        [event("c", 60, after=far), event("c", 61, after=early), event("c", 62, after=early)],
        [event("d", 70, before=far), event("d", 71, before=early), event("c", 72, after=far)],
    ):
        sink.merge(debezium.changes(frame_of(spark, *one), columns, keys=[]))
    rows = spark.read.format("delta").load(path).selectExpr("CAST(at AS STRING)", "CAST(day AS STRING)").collect()
    assert sorted(map(tuple, rows)) == [
        ("+294247-01-10 04:00:54.775807", "+5881580-07-11"),
        ("-0043-03-15 12:00:00", "-4712-01-01"),
    ]


def test_the_default_of_an_added_column_is_in_both_images(spark, create_table, read_rows):
    columns = {"id": "BIGINT", "channel": debezium.Field("STRING", default="web")}
    path = create_table("id BIGINT, channel STRING")
    sink = merge_sink(path, **debezium.KEYLESS_MERGE_OPTIONS)
    for image, gone in (({"id": 1}, {"id": 1}), ({"id": 2}, {"id": 2, "channel": "web"})):
        records = event("c", 10 + image["id"], after=image), event("d", 20 + image["id"], before=gone)
        for one in records:
            sink.merge(debezium.changes(frame_of(spark, one), columns, keys=[]))
    assert read_rows(path) == []


def test_the_options_are_those_of_the_documentation():
    assert set(debezium.KEYLESS_MERGE_OPTIONS) == {
        "before",
        "sequence_by",
        "delete_when",
        "truncate_when",
        "error_column",
        "except_columns",
    }
    json.dumps(debezium.KEYLESS_MERGE_OPTIONS)
