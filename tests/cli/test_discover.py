"""`init --from kafka` without Kafka and Spark: which records are sampled, and what they tell of their topic."""

import json

import pytest

from stream_merge.cli.discover.columns import sent_columns
from stream_merge.cli.discover.findings import Family, examine
from stream_merge.cli.discover.sample import is_chosen, sample_ranges
from stream_merge.cli.query.messages import SampledRecord
from stream_merge.debezium.keys import ROUTED_FROM
from tests.cli.sampled_records import ID, ID_KEY, ROW, captured, described, envelope, record
from tests.debezium.captures import CAPTURES
from tests.debezium.cloud_events import event_of
from tests.debezium.records import with_schema


def found(*records):
    return examine("shop.public.t", records)


@pytest.mark.parametrize("name", ["odd", "odd-schema", "odd-text"])
def test_the_keys_of_captured_tables_are_told(name):
    tables = json.loads((CAPTURES / name / "capture.json").read_text())["tables"]
    findings = {topic: examine(topic, records) for topic, records in captured(name).items()}
    told = {topic: found for topic, found in findings.items() if topic in tables and not found.faults}
    assert {topic: sorted(finding.keys) for topic, finding in told.items()} == {
        topic: sorted(tables[topic]["key"]) for topic in told
    }
    assert len(told) >= len(tables) - 2
    assert {finding.family for finding in told.values()} == {Family.DETECTED}
    assert {finding.columns is not None for finding in told.values()} == {name == "odd-schema"}


def test_the_messages_of_all_shapes():
    plain = {"op": None, "id": 1}
    marked = {**ROW, "__op": "u", "__deleted": "false"}
    told = {
        "envelope": found(record({"id": 1}, envelope())),
        "described": found(record(ID_KEY, described([ID], after={"id": 1}))),
        "an event": found(record({"id": 1}, event_of(envelope()))),
        "a described event": found(record(ID_KEY, event_of(described([ID], after={"id": 1})))),
        "flattened": found(record({"id": 1}, marked)),
        "by a header": found(record({"id": 1}, ROW, __op=b"u")),
        "rows": found(record(ID_KEY, with_schema([ID], {"id": 1}))),
        "objects": found(record({"id": 1}, plain)),
    }
    assert {name: finding.faults for name, finding in told.items()} == dict.fromkeys(told, ())
    assert {name: finding.keys for name, finding in told.items()} == dict.fromkeys(told, ("id",))
    assert {name: finding.family for name, finding in told.items()} == {
        "envelope": Family.DETECTED,
        "described": Family.DETECTED,
        "an event": Family.DETECTED,
        "a described event": Family.DETECTED,
        "flattened": Family.DETECTED,
        "by a header": Family.DETECTED,
        "rows": Family.FLATTENED,
        "objects": Family.OBJECTS,
    }
    assert told["described"].columns == told["a described event"].columns == told["rows"].columns == {"id": "BIGINT"}
    assert told["an event"].summary == ("envelopes of Debezium as CloudEvents without a schema part of postgresql")
    assert list(told["an event"].sent) == ["id", "name"]
    assert list(told["flattened"].sent) == ["id", "name"]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "it has no records to tell by"),
        ([record({"id": 1}, None)], "it has only records without a value, which do not tell its columns"),
        ([record({"id": 1}, envelope()), record(None, b"\xff")], "1 of 2 records are no JSON objects"),
        ([record(None, b"a,b")], "1 of 1 records are no JSON objects"),
        ([record(None, [1])], "1 of 1 records are no JSON objects"),
        (
            [record(b"\0\0\0\0\7x", b"\0\0\0\0\7x")],
            "1 of 1 records are in Avro, whose schemas a registry has; name it with --registry, and run init again",
        ),
        (
            [record({"id": 1}, {**event_of(envelope()), "datacontenttype": "application/avro", "data": "AAAAAAQ="})],
            "1 of 1 records are in Avro, whose schemas a registry has; name it with --registry, and run init again",
        ),
        (
            [record({"id": 1}, {**event_of(envelope()), "data": ROW})],
            "1 of 1 records are CloudEvents that do not tell what was done to which row; let the converter send it",
        ),
        (
            [record({"id": 1}, {"id": "1", "specversion": "1.0", "type": "t", "source": "s", "data": ROW})],
            "1 of 1 records are CloudEvents that do not tell what was done to which row; let the converter send it",
        ),
        (
            [record(None, event_of(envelope(connector="x")))],
            "keys of shop.public.t are not sent, and its events have no place in the source's log, by which events of",
        ),
        (
            [record({"id": 1}, envelope()), record({"id": 1}, ROW)],
            "its records differ: 1 are envelopes of Debezium and 1 are plain JSON objects; let one pipeline take those "
            "of one kind, from a topic of their own",
        ),
        (
            [record(b"17", envelope())],
            "keys of the records of shop.public.t are not JSON objects of the key columns: 17; let the connector send "
            "such keys (key.converter JsonConverter, no ExtractField), or set keys=[] for a table without a key",
        ),
        (
            [record(None, envelope(connector="x"))],
            "keys of shop.public.t are not sent, and its events have no place in the source's log, by which events of "
            "a table without a key are told apart; let the connector send a key (message.key.columns)",
        ),
        (
            [record({"id": 1}, envelope()), record({"no": 1}, envelope())],
            "keys differ among the records of shop.public.t: id and no; name the keys of this table, or decode the "
            "records before and after the change separately",
        ),
        ([record({"x": 1}, envelope())], "its key has x, which is no column of its rows; give it keys"),
        ([record(None, ROW)], "keys of shop.public.t are not sent, and its messages are not envelopes with the row "),
        (
            [record({"id": 1}, envelope(after={"id": 1, "ID": 2}))],
            "its columns id and ID differ only in upper and lower case; let the connector leave one of them out "
            "(column.exclude.list)",
        ),
        (
            [record({"id": 1}, envelope(after={"id": 1, "${HOME}": 2}))],
            "Spark takes ${HOME} for a reference to a setting; let the connector rename the column",
        ),
        ([record({"id": 1}, envelope(after={"id": 1, "_CHANGE": 2}))], "a column is called _change, as the struct"),
        ([record(None, envelope("t", None))], "none of its records has a row, so its columns are not known"),
        (
            [record({"id": 1}, b'{"id": 1, "n": 0.12345678901234567890123}')],
            "its column n has numbers of more digits than are read from a number in JSON",
        ),
        (
            [record({"id": 1}, with_schema([{"field": "id", "type": "int63"}], {"id": 1}))],
            "its schema part cannot be read: field 'id' has Kafka Connect's unknown type 'int63'; give the columns",
        ),
        (
            [SampledRecord(topic="t", is_too_large=True)],
            "it has only records that are too large to be looked at, which do not tell its columns",
        ),
        (
            [
                SampledRecord(
                    topic="t", value=b"\0", decode_error="the value cannot be decoded: the registry has no schema 9"
                )
            ],
            "1 of 1 records are in Avro, and the value cannot be decoded: the registry has no schema 9",
        ),
    ],
)
def test_what_keeps_a_topic_from_being_taken(records, reason):
    finding = found(*records)
    assert not finding.is_taken
    assert any(fault.startswith(reason) for fault in finding.faults), finding.faults


@pytest.mark.parametrize("layout", ["json", "json-with-schema"])
def test_captured_cloud_events_are_told(layout):
    findings = {
        topic.rpartition(".")[2]: examine(topic, sent) for topic, sent in captured(f"cloud-events/{layout}").items()
    }
    assert {table: (finding.family, finding.keys) for table, finding in findings.items()} == {
        "customers": (Family.DETECTED, ("id",)),
        "lines": (Family.DETECTED, ("order_id", "line_no")),
        "visits": (Family.DETECTED, ()),
    }
    assert {finding.faults for finding in findings.values()} == {()}
    assert not any("have no old row" in note for finding in findings.values() for note in finding.notes)
    if layout == "json-with-schema":
        assert findings["customers"].columns["balance"] == "DECIMAL(12,2)"
        assert findings["customers"].modes["decimal.handling.mode"] == "precise"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("the configuration of Kafka Connect", b"connector-shop", {"properties": {"database.password": "secret"}}),
        ("the configuration of Kafka Connect", b"session-key", {"key": "x"}),
        ("the offsets of Kafka Connect", b'["shop",{"server":"shop"}]', {"lsn": 1}),
        ("the status of Kafka Connect", b"status-connector-shop", {"state": "RUNNING"}),
        ("the schemas of a registry", {"keytype": "SCHEMA", "subject": "x", "magic": 1}, {"schema": "{}"}),
        ("Debezium's changes of schemas", {"databaseName": "x"}, {"source": {}, "databaseName": "x", "ddl": "CREATE"}),
        ("Debezium's heartbeats", {"serverName": "x"}, {"ts_ms": 1}),
        ("Debezium's transactions", {"id": "1"}, {"status": "BEGIN", "id": "1", "event_count": None}),
        (
            "Debezium's notifications",
            None,
            {"id": "1", "aggregate_type": "Initial Snapshot", "type": "STARTED", "additional_data": {}, "timestamp": 1},
        ),
        ("signals to Debezium", b"shop", {"type": "execute-snapshot", "data": {}}),
    ],
)
def test_topics_without_rows_are_recognised_by_their_records(kind, key, value):
    finding = found(record(key, value))
    assert finding.foreign == kind
    assert not finding.is_taken
    in_connects_json = found(record(key, with_schema([], value)))
    assert in_connects_json.foreign == kind
    # One record that is a row, and it is a table.
    assert found(record(key, value), record({"id": 1}, envelope())).foreign is None


@pytest.mark.parametrize("key", [b"task-17", b"status-task-x", b"connector-a", {"serverName": "a"}])
def test_rows_with_such_keys_are_rows(key):
    assert found(record(key, {"id": 17, "state": "open"})).foreign is None


@pytest.mark.parametrize("has_schema", [True, False])
def test_shards_that_come_as_one_topic(has_schema):
    key = {"id": 1, ROUTED_FROM: "shop_1.public.t"}
    with_types = with_schema([ID, {"field": ROUTED_FROM, "type": "string"}], key)
    finding = found(record(with_types, described([ID])) if has_schema else record(key, envelope()))
    assert (finding.faults, finding.keys) == ((), ("id", ROUTED_FROM))
    if has_schema:
        assert finding.columns == {"id": "BIGINT", ROUTED_FROM: "STRING"}
        return
    sent = [(name, each.type) for name, each in finding.sent.items()]
    assert sent == [("id", "BIGINT"), ("name", "STRING"), (ROUTED_FROM, "STRING")]


def test_a_key_whose_schema_cannot_be_read():
    key = with_schema([ID, {"field": "part", "type": "nonsense"}], {"id": 1, "part": 1})
    (fault,) = found(record(key, described([ID]))).faults
    assert fault.startswith("the schema part of its key cannot be read: ")


def test_columns_as_they_were_sent():
    values = {
        "i": [1, None, -3],
        "big": [2**63],
        "b": [True, False],
        "x": [1, 2.5],
        "micros": [1700000000000000, 1700000000000001],
        "millis": [1700000000000],
        "mixed": [1, "a"],
        "listed": [[1], None],
        "n": [None],
        "price": ["AN3V", "Bg=="],
        "word": ["abcd"],
        "phone": ["+4930123"],
        "unsent": ["__debezium_unavailable_value", 4],
    }
    found = sent_columns({name: value} for name, each in values.items() for value in each)
    assert {name: column.type for name, column in found.items()} == {
        "i": "BIGINT",
        "big": "STRING",
        "b": "BOOLEAN",
        "x": "DOUBLE",
        "micros": "BIGINT",
        "millis": "BIGINT",
        "mixed": "STRING",
        "listed": "STRING",
        "n": "STRING",
        "price": "STRING",
        "word": "STRING",
        "phone": "STRING",
        "unsent": "BIGINT",
    }
    assert {name for name, column in found.items() if column.doubt} == {
        "big",
        "micros",
        "millis",
        "mixed",
        "listed",
        "n",
        "price",
    }


def test_the_sample_is_the_end_of_each_partition():
    ranges = sample_ranges({("a", 0): (0, 1000), ("a", 1): (990, 1000), ("b", 0): (7, 7), ("c", 0): (5, 8)})
    assert [(each.topic, each.partition, each.first, each.last) for each in ranges] == [
        ("a", 0, 950, 999),
        ("a", 1, 990, 999),
        ("c", 0, 5, 7),
    ]
    many = sample_ranges({("m", number): (0, 1000) for number in range(50)})
    assert {each.last - each.first + 1 for each in many} == {5}


def test_which_topics_are_looked_at():
    names = ["__consumer_offsets", "__debezium-heartbeat.shop", "shop.public.a", "shop.public.ab"]
    assert [name for name in names if is_chosen(name, None)] == names[2:]
    assert [name for name in names if is_chosen(name, r"shop\.public\.a")] == ["shop.public.a"]
    assert [name for name in names if is_chosen(name, "__.*")] == names[:2]
