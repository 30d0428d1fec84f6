"""CloudEvents are what the envelopes are that they were made of: a real log, and each part by itself."""

import json

import pytest

from stream_merge import debezium
from stream_merge.debezium.cloud_events import from_cloud_events
from tests.debezium.captures import fold
from tests.debezium.cloud_events import (
    COLUMNS,
    KEYS,
    canonical,
    compact,
    comparable,
    event_of,
    expected_rows,
    read_events,
)
from tests.debezium.records import POSTGRES, decode, envelope, frame_of, record, with_schema

KEY = {"id": 1}
ROW = {"id": 1, "name": 'a "quoted" \\ ","data":{"before":', "price": "AQ=="}
SCHEMA = "id BIGINT, name STRING, price DECIMAL(5, 2)"


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("table", ["customers", "lines"])
@pytest.mark.parametrize("layout", ["json", "json-with-schema"])
def test_the_fold_of_a_real_log_is_the_database_s_own_table(spark, layout, table):
    changes = debezium.changes(read_events(spark, layout, table), COLUMNS[table], KEYS[table])
    rows = comparable(changes).collect()
    ops = {row["_change"]["op"] for row in rows}
    assert ops == ({"r", "c", "u", "d", "t"} if table == "lines" else {"r", "c", "u", "d"})
    events = {row["_change"]["sequence"]["event"] for row in rows}
    # The order within a transaction is sent by the connector that was told to.
    assert (len(events) > 1) == (layout == "json")
    if table == "customers":
        assert sum(bool(row["_change"]["unavailable"]) for row in rows) >= 4
        assert sum(row["_change"]["old_key"] is not None for row in rows) == 3
    assert canonical(fold(rows, KEYS[table])) == expected_rows(table)


@pytest.mark.parametrize(
    "source",
    [
        {**POSTGRES, "sequence": '["90","100"]'},
        {"connector": "mysql", "snapshot": "false", "file": "binlog.000009", "pos": 500, "row": 3, "ts_ms": 7},
        {
            "connector": "sqlserver",
            "snapshot": "false",
            "change_lsn": "00000027:00000758:0003",
            "commit_lsn": "00000027:00000758:0005",
            "event_serial_no": 2,
        },
        {"connector": "oracle", "snapshot": "false", "scn": "1234567", "commit_scn": "1234570", "ssn": 4},
        {"connector": "postgresql", "snapshot": "incremental", "lsn": 100},
        {"connector": "mongodb", "snapshot": "false", "ord": 3},
    ],
    ids=lambda source: f"{source['connector']}-{source['snapshot']}",
)
def test_an_event_is_what_its_envelope_is(spark, source):
    members = [{"field": "id", "type": "int64"}, {"field": "name", "type": "string", "optional": True}]
    images = [{"field": name, "type": "struct", "fields": members, "optional": True} for name in ("before", "after")]
    parts = [*images, {"field": "source", "type": "struct", "fields": []}, {"field": "op", "type": "string"}]
    row = {"id": 1, "name": ROW["name"]}
    messages = [
        {**envelope("r", row, **source), "transaction": {"id": "7", "total_order": 9}},
        envelope("u", {**row, "name": None}, row, **source),
        envelope("d", None, row, **source),
        envelope("t", **source),
    ]
    messages += [with_schema(parts, message) for message in messages]
    keys = [None if message.get("payload", message)["op"] == "t" else KEY for message in messages]
    events = [event_of(message) for message in messages]
    spaced = [json.dumps(_backwards(event), indent=1) + "\n" for event in events]
    for columns in ("id BIGINT, name STRING", None):
        some = slice(None) if columns else slice(4, None)
        given = [
            [record(key, value, n) for n, (key, value) in enumerate(zip(keys, values, strict=True))][some]
            for values in (messages, map(compact, events), [each.encode() for each in spaced])
        ]
        options = {"columns": columns, "keys": ["id"] if columns else None, "before": True}
        expected, *found = [decode(spark, *records, **options) for records in given]
        assert [row["_change"]["error"] for row in expected] == [None] * len(expected)
        assert found == [expected, expected]


def _backwards(event):
    """Return an event with its members, and those of its data and schema, the last first, as no converter has them."""
    data = dict(reversed(event["data"].items()))
    if "schema" in data:
        data["schema"] = dict(reversed(data["schema"].items()))
    return dict(reversed({**event, "data": data}.items()))


def test_what_is_no_event_stays_as_it_is(spark):
    """Be it about CloudEvents, as the rows of an outbox are."""
    event = event_of(envelope("c", ROW))
    values = [
        None,
        b"null",
        b"\0\0\0\0\7" + compact(event),
        compact(event)[:-1],
        compact(event) + b" and more",
        compact(event).replace(b"quoted", b"\xff"),
        {**event, "data": {"id": 1}},
        {**event, "data": "AAAAAAQAAA=="},
        {name: value for name, value in event.items() if not name.startswith("iodebezium")},
        {**event, "iodebeziumop": None},
        {name: value for name, value in event.items() if name != "specversion"},
        envelope("c", {"id": 1, "name": json.dumps(event)}),
        {"op": "c", "after": event, "source": POSTGRES},
        {"id": 1, "name": compact(event).decode()},
    ]
    records = frame_of(spark, *[record(KEY, value, n) for n, value in enumerate(values)])
    assert [row["value"] for row in from_cloud_events(records).collect()] == [row["value"] for row in records.collect()]
    # Nor is anything made of an envelope that was an event.
    once = from_cloud_events(frame_of(spark, record(KEY, event)))
    assert from_cloud_events(once).collect() == once.collect()
    as_text = from_cloud_events(records.withColumn("value", records["value"].cast("string")))
    assert dict(as_text.dtypes)["value"] == "string"


@pytest.mark.core
def test_events_that_cannot_be_read_say_why_and_do_not_stop_the_batch(spark):
    event = event_of(envelope("c", ROW))
    bare = {name: value for name, value in event.items() if not name.startswith("iodebezium")}
    in_avro = {**event, "datacontenttype": "application/avro", "data": "AAAAAAQAAA=="}
    flattened = {**event, "data": ROW}
    reasons = {
        "data of the CloudEvent is in Avro": in_avro,
        "extension.attributes.enable=true": bare,
        "no ExtractNewRecordState": flattened,
        "the value is not the JSON of a change": compact(event)[:-4],
        "the value is not UTF-8": compact(event).replace(b"quoted", b"\xff"),
        # Spark's parser returns the first of several.
        "the value is not the JSON of a change: {": compact(event) + b"\n" + compact(event),
        "no image of the row after op c": event_of(envelope("c")),
        "unknown op: x": event_of(envelope("x", ROW)),
        "price is not a valid decimal(5,2)": event_of(envelope("c", {**ROW, "price": "AQIDBAUG"})),
    }
    good = record(KEY, event, 99)
    for layout in (None, "envelope"):
        rows = decode(
            spark,
            *[record(KEY, value) for value in reasons.values()],
            good,
            columns=SCHEMA,
            keys=["id"],
            format=layout,
        )
        for reason, row in zip(reasons, rows, strict=False):
            assert reason in row["_change"]["error"]
            assert row["_change"]["raw"] is not None
        assert [rows[-1][name] for name in ("id", "name")] == [1, ROW["name"]]
        assert rows[-1]["_change"]["error"] is None
    # Of an event that is said to be a row, the attribute `id` is not that of the row.
    rows = decode(
        spark,
        *[record(KEY, value) for value in (in_avro, bare, flattened, event)],
        columns=SCHEMA,
        keys=["id"],
        format="flattened",
    )
    for reason, row in zip([*list(reasons)[:3], "the message is an envelope, and not"], rows, strict=True):
        assert reason in row["_change"]["error"]
    outbox = {"id": 1, "specversion": "1.0", "type": "t", "source": "s", "data": "{}"}
    (row,) = decode(
        spark, record(KEY, outbox), columns="id BIGINT, specversion STRING", keys=["id"], format="flattened"
    )
    assert (row["specversion"], row["_change"]["error"]) == ("1.0", None)


def test_keys_are_learnt_of_events_with_a_place_in_the_log(spark):
    row = {"page": "/"}
    assert debezium.learn_keys(frame_of(spark, record(None, event_of(envelope("c", row))))) == ()
    assert debezium.learn_keys(frame_of(spark, record(KEY, event_of(envelope("c", ROW))))) == ("id",)
    assert debezium.learn_keys(frame_of(spark, record(None, event_of(envelope("t"))))) is None
