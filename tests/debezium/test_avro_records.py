"""Records in Avro are decoded as the same records in JSON are: real logs, and what can be wrong with a record."""

import base64
import gzip
import json
import math
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from stream_merge import ConfigError, debezium
from tests.debezium.avro import in_avro
from tests.debezium.captures import CAPTURES
from tests.debezium.records import frame_of, record, with_schema
from tests.debezium.registry_server import serving
from tests.debezium.test_avro_schemas import without_doc, written_by_apicurio
from tests.debezium.test_learnt_columns import ID, KEY, decimal, field, wrapped


@pytest.fixture
def server():
    with serving() as registry:
        yield registry


def decoded(spark, server, *records, **options):
    return debezium.from_registry(frame_of(spark, *records), debezium.SchemaRegistry(url=server.url, **options))


def changes_of(records, *, keys=None):
    """Return the changes in the order of the records, without the text that was sent."""
    learnt = debezium.learn_columns(records)
    rows = debezium.changes(records, learnt, keys).collect()
    found = [(*row[:-1], *(None if name == "raw" else row[-1][name] for name in row[-1].__fields__)) for row in rows]
    return learnt.fields, sorted(found, key=repr)


def captured(capture):
    """Return the records of a log by their topic."""
    found = {}
    with gzip.open(CAPTURES / capture / "events.jsonl.gz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            key, value = ((each[name] and each[name].encode()) for name in ("key", "value"))
            headers = [(name, text and text.encode()) for name, text in each["headers"] or ()]
            at = datetime.fromtimestamp(each["timestamp"] / 1000, timezone.utc)
            found.setdefault(each["topic"], []).append(
                (key, value, each["topic"], each["partition"], each["offset"], at, 0, headers)
            )
    return found


def parsed(part):
    """Return a key or value as JSON, with what is read of its schema: not the documentation, nor before and source."""
    found = part and json.loads(part, object_hook=without_doc)
    for member in found["schema"]["fields"] if found else ():
        if member["field"] in ("before", "source", "transaction"):
            member["fields"] = []
    return found


def in_order(rows):
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.core
def test_records_of_real_logs_are_as_in_json(avro_spark, server):
    """Tables of all types, and of odd names, with dozens of schemas, in one batch."""
    logs = captured("mariadb-schema") | captured("odd-schema")
    topics = ["mys.shop.odd_keys", "mys.shop.zoo", "schema.public.Order_Lines", "schema.public.k_numeric"]
    records = [each for topic in topics for each in logs[topic]]
    rows = in_order(decoded(avro_spark, server, *[in_avro(server, each) for each in records]).collect())
    expected = in_order(frame_of(avro_spark, *records).collect())
    assert len(server.requests) >= 8
    # What nobody reads of the schema is left out.
    schemas = [json.loads(row["value"])["schema"]["fields"] for row in rows if row["value"] is not None]
    assert {len(member["fields"]) for schema in schemas for member in schema if member["field"] == "before"} == {0}
    for row, like in zip(rows, expected, strict=True):
        assert [parsed(row[part]) for part in ("key", "value")] == [parsed(like[part]) for part in ("key", "value")]
        assert row["_decode_error"] is None
        assert row[2:-1] == like[2:]


@pytest.mark.core
def test_a_record_of_a_converter_is_as_in_json(avro_spark, server):
    """Apicurio's converter wrote the bytes."""
    found = written_by_apicurio()
    sent = bytes.fromhex(found["sent"])
    number = server.add(json.dumps(found["schema"]))
    (row,) = decoded(avro_spark, server, record(None, sent[:1] + number.to_bytes(4, "big") + sent[5:])).collect()
    assert parsed(row["value"]) == parsed(json.dumps(found["json"]))


TOPICS = [("mariadb-schema", f"mys.shop.{table}") for table in ("zoo", "odd_keys", "altered", "nokey")]
TOPICS += [("odd-schema", f"schema.public.{table}") for table in ("Order_Lines", "k_numeric", "pairs", "payload")]
TOPICS += [("small-schema", f"shopschema.public.{table}") for table in ("customers", "orders", "products")]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("capture", "topic"),
    [("odd-schema", "schema.public.evolving"), *(pytest.param(*each, marks=pytest.mark.long) for each in TOPICS)],
)
def test_a_log_in_avro_makes_the_changes_that_it_makes_in_json(avro_spark, server, capture, topic):
    """The table `evolving` gets columns, loses some, and others are widened."""
    records = captured(capture)[topic]
    keys = [] if topic.endswith("nokey") else None
    avro = decoded(avro_spark, server, *[in_avro(server, each) for each in records]).persist()
    assert changes_of(avro, keys=keys) == changes_of(frame_of(avro_spark, *records), keys=keys)
    avro.unpersist()


NARROW = [ID, decimal("n", 8, 2)]
WIDE = [ID, decimal("n", 12, 4), field("more", "string", default="web")]


@pytest.mark.core
def test_what_cannot_be_decoded_is_an_error_of_its_record(avro_spark, server):
    def avro(*more, columns=NARROW, n="AQ==", **values):
        return in_avro(server, wrapped(columns, "c", {"id": 1, "n": n, **values}, *more))

    def moved(value, offset):
        return (good[0], value, *good[2:4], offset, *good[5:])

    good = avro(0)
    value = good[1]
    server.add('syntax = "proto3";', schemaType="PROTOBUF")
    protobuf = server.add('syntax = "proto2";', schemaType="PROTOBUF")
    several = server.add(json.dumps(["null", "int", "string"]))
    text = in_avro(server, wrapped([ID, field("s", "string")], "c", {"id": 1, "s": "xx"}))[1]
    # "xx" after its length, and a string that claims to be as long as Avro allows.
    damaged = text.replace(b"\x04xx", b"\x04x\xff")
    claimed = text.replace(b"\x04xx", b"\xfe\xff\xff\xff\x0fxx")
    assert len({text, damaged, claimed}) == 3
    ours = int.from_bytes(value[1:5], "big")
    number = int.from_bytes(text[1:5], "big")
    records = [
        good,
        moved(value[:-1], 1),
        *[
            moved(sent, offset)
            for offset, sent in enumerate(
                [
                    value + b"\0",
                    value[:5],
                    b"\0\0\0\xff\xff" + value[5:],
                    b"\0" + protobuf.to_bytes(4, "big") + value[5:],
                    b"\0" + several.to_bytes(4, "big") + b"\x02\x02",
                    b"\0\0",
                    damaged,
                    claimed,
                    b"{",
                ],
                start=2,
            )
        ],
        avro(11, columns=WIDE, n="MDk=", more=None),
        # A key that is damaged, a key that is text, and a record that has no value.
        (good[0][:-1] + b"\xff", *good[1:4], 12, *good[5:]),
        record(b"17", None, 13),
        wrapped(NARROW, "u", {"id": 1, "n": "Ag=="}, 14),
    ]
    frame = decoded(avro_spark, server, *records)
    rows = sorted(debezium.changes(frame).collect(), key=lambda row: row["_change"]["offset"])
    ill = f"the value cannot be decoded: it is not Avro of schema {ours}, or has text that is not UTF-8"
    key = int.from_bytes(good[0][1:5], "big")
    ill_text = ill.replace(f"schema {ours}", f"schema {number}")
    assert {row["_change"]["offset"]: row["_change"]["error"] for row in rows} == {
        0: None,
        1: ill,
        2: ill,
        3: ill,
        4: "the value cannot be decoded: the registry has no schema 65535",
        5: f"the value cannot be decoded: schema {protobuf} cannot be used: it is of the type PROTOBUF, and only AVRO "
        "is decoded",
        6: f"the value cannot be decoded: schema {several} cannot be used: a union of several types, "
        '["null", "int", "string"], is no column',
        7: "the value cannot be decoded: it ends within the id of its schema",
        8: ill_text,
        9: ill_text,
        10: "the value is not the JSON of a change: {",
        11: None,
        12: f"the key cannot be decoded: it is not Avro of schema {key}, or has text that is not UTF-8",
        14: None,
    }
    by_offset = {row["_change"]["offset"]: row for row in rows}
    raws = {offset: row["_change"]["raw"] for offset, row in by_offset.items()}
    assert base64.b64decode(raws[1]) == value[:-1]
    assert raws[7] == "AAA="
    assert raws[10] == "{"
    assert json.loads(raws[12])["payload"]["after"] == {"id": 1, "n": "AQ=="}
    assert [raws[offset] for offset in (0, 11, 14)] == [None] * 3
    n = {offset: (by_offset[offset]["id"], by_offset[offset]["n"], by_offset[offset]["more"]) for offset in (0, 11, 14)}
    assert n == {
        0: (1, Decimal("0.0100"), "web"),
        11: (1, Decimal("1.2345"), None),
        # In JSON, and of after the column was added.
        14: (1, Decimal("0.0200"), None),
    }


def test_without_a_registry_records_in_avro_are_errors_that_say_so(avro_spark, server):
    record = in_avro(server, wrapped(NARROW, "c", {"id": 1, "n": "AQ=="}))
    (row,) = debezium.changes(frame_of(avro_spark, record), "id BIGINT", ["id"]).collect()
    assert row["_change"]["error"] == (
        "the value begins like Avro with the id of a schema: decode it with from_registry, or [registry] in a pipeline "
        "file"
    )


def test_a_batch_that_cannot_be_decoded_tells_why(avro_spark, server):
    good = in_avro(server, wrapped(NARROW, "c", {"id": 1, "n": "AQ=="}))
    learnt = debezium.learn_columns(decoded(avro_spark, server, good))
    bad = decoded(avro_spark, server, (good[0], good[1][:-1], *good[2:]))
    with pytest.raises(ConfigError, match=r"^no record tells the columns: the value cannot be decoded: it is not Avro"):
        debezium.learn_columns(bad)
    known = debezium.learn_columns(bad, known=learnt)
    (row,) = debezium.changes(bad, known).collect()
    assert "is not Avro of schema" in row["_change"]["error"]
    (row,) = debezium.changes(bad, "id BIGINT, n DECIMAL(8, 2)").collect()
    assert "is not Avro of schema" in row["_change"]["error"]


def test_values_are_those_of_json(avro_spark, server):
    """Text of any length, numbers that JSON does not have, names that differ only in case, and what is nested."""
    inner = [field("a", "int32"), field("A", "array", items={"type": "string", "optional": True})]
    columns = [
        ID,
        field("Id", "string"),
        field("iD", "double"),
        field("f", "float"),
        field("g", "float"),
        field("m", "map", keys={"type": "string"}, values={"type": "int64", "optional": True}),
        field("s", "struct", fields=inner),
        field("b", "bytes"),
        field("z", "double"),
        # Not what the environment has.
        field("w", "string", default="${env:HOME} $'{x}"),
    ]
    long = 'ä"\\\u2028\u0001\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}' * 5000
    values = {"id": -(2**63), "Id": long, "iD": math.nan, "f": math.inf, "g": 0.1, "m": {"": None, "k": 2**62}}
    values |= {
        "s": {"a": None, "A": [None, ""]},
        "b": base64.b64encode(bytes(range(256))).decode(),
        "z": -0.0,
        "w": "${env:HOME}",
    }
    frame = decoded(avro_spark, server, in_avro(server, wrapped(columns, "c", values, key={"id": values["id"]})))
    (row,) = debezium.changes(frame).collect()
    assert row["_change"]["error"] is None
    assert (row["id"], row["Id"], row["f"], row["g"]) == (-(2**63), long, math.inf, pytest.approx(0.1))
    assert math.isnan(row["iD"])
    assert math.copysign(1, row["z"]) == -1
    assert row["m"] == {"": None, "k": 2**62}
    assert (row["s"][0], row["s"][1]) == (None, [None, ""])
    assert bytes(row["b"]) == bytes(range(256))
    assert row["w"] == "${env:HOME}"
    (sent,) = frame.collect()
    assert json.loads(sent["value"])["schema"]["fields"][0]["fields"][-1]["default"] == "${env:HOME} $'{x}"


def test_flattened_events_and_ids_of_eight_bytes(avro_spark, server):
    columns = [ID, field("name", "string"), field("__op", "string"), field("__lsn", "int64")]
    row = {"id": 1, "name": "a", "__op": "c", "__lsn": 5}
    key, value, *rest = in_avro(server, record(with_schema([ID], KEY), with_schema(columns, row)))
    wide = [part[:1] + b"\0" * 4 + part[1:] for part in (key, value)]
    frame = decoded(avro_spark, server, (*wide, *rest), id_size=8)
    (change,) = debezium.changes(frame).collect()
    assert (change["id"], change["name"], change["_change"]["op"], change["_change"]["error"]) == (1, "a", "c", None)
    (untold,) = debezium.from_registry(
        frame_of(avro_spark, (*wide, *rest)), debezium.SchemaRegistry(url=server.url)
    ).collect()
    assert untold["_decode_error"] == (
        "the value cannot be decoded: the registry has no schema 0; ids of 8 bytes need id_size=8"
    )


def test_ids_in_headers(avro_spark, server):
    """As Apicurio's converter writes them by default. Avro itself may begin with a byte 0."""
    key, value, *rest = in_avro(server, wrapped(NARROW, "c", {"id": 1, "n": "AQ=="}))
    assert rest[-1] is None

    def named(name):
        headers = [
            (f"apicurio.{part}.{name}", b"\0\0\0\0" + sent[1:5]) for part, sent in (("key", key), ("value", value))
        ]
        return (key[5:], b"\0" + value[6:], *rest[:-1], headers)

    # Its first byte is that of the row itself, which is not NULL.
    assert value[5:6] == b"\x02"
    content, by_version = named("contentId"), named("globalId")
    content = (content[0], value[5:], *content[2:])
    for size in (4, 8):
        (row,) = debezium.changes(decoded(avro_spark, server, content, id_size=size)).collect()
        assert (row["id"], row["n"], row["_change"]["error"]) == (1, Decimal("0.01"), None)
    (row,) = decoded(avro_spark, server, by_version).collect()
    assert row["_decode_error"] == (
        "the value cannot be decoded: its header has Apicurio's global id; let the converter write the id of the "
        "content (apicurio.registry.use-id=contentId)"
    )
    assert server.requests == ["/schemas/ids/1", "/schemas/ids/2"] * 2


def test_what_is_no_id_is_not_asked_for(avro_spark, server):
    sent = [record(None, b"\0" + number.to_bytes(4, "big") + b"x", number) for number in range(2001)]
    with pytest.raises(ConfigError, match="the records name 2001 schemas, so they hardly begin with the id of one"):
        decoded(avro_spark, server, *sent)
    assert server.requests == []


def test_each_record_is_decoded_once(avro_spark, server):
    records = [in_avro(server, wrapped(NARROW, "c", {"id": 1, "n": "AQ=="}))]
    changes = debezium.changes(decoded(avro_spark, server, *records), "id BIGINT, n DECIMAL(8, 2)", ["id"])
    plan = changes.where("_change.error IS NULL")._jdf.queryExecution().optimizedPlan().toString()
    # Once for the schema of the key, once for that of the value.
    assert plan.count("from_avro(") == 2


def test_a_stream_is_decoded_batch_by_batch(avro_spark, server):
    stream = (
        avro_spark.readStream.format("rate")
        .load()
        .selectExpr("CAST('' AS BINARY) AS key", "CAST('' AS BINARY) AS value")
    )
    with pytest.raises(ConfigError, match="call from_registry in foreachBatch"):
        debezium.from_registry(stream, debezium.SchemaRegistry(url=server.url))
