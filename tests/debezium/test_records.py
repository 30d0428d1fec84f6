"""Records of every sort: what is a change, what is none, and what is wrong with one."""

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge import ConfigError, debezium
from stream_merge.debezium import rows
from stream_merge.debezium.keys import ROUTED_FROM as SHARD
from tests.debezium.records import PLACEHOLDER, SCHEMA, base64_of, decode, envelope, frame_of, record, with_schema

COLUMNS = "id BIGINT, name STRING, price DECIMAL(5, 2)"
KEY = {"id": 1}
ROW = {"id": 1, "name": "a", "price": "AQ=="}
MYSQL = {"connector": "mysql", "snapshot": "false", "file": "binlog.000009", "pos": 500, "row": 0, "gtid": None}


def one(spark, *given, columns=COLUMNS, keys=("id",), **options):
    """Return the one change that the record is."""
    (row,) = decode(spark, record(*given), columns=columns, keys=keys, **options)
    return row


@pytest.mark.core
def test_malformed_records_say_what_is_wrong_and_do_not_stop_the_batch(spark):
    values = [
        b'{"op":',
        b"not json",
        b"",
        b"5",
        b"[1]",
        json.dumps(envelope("c", ROW)).encode() + b" and more",
        # Spark's parser returns the first of several.
        json.dumps(envelope("c", ROW)).encode() + b"\n" + json.dumps(envelope("c", ROW)).encode(),
        json.dumps(envelope("c", ROW)).encode() + json.dumps(envelope("c", ROW)).encode(),
        {"op": "c", "after": "no struct", "source": {"lsn": 1}},
    ]
    rows = decode(
        spark, *[record(KEY, value) for value in values], record(KEY, envelope("c", ROW)), columns=COLUMNS, keys=["id"]
    )
    *bad, good = rows
    assert all(row["_change"]["error"].startswith("the value is not the JSON of a change") for row in bad)
    assert [
        row["_change"]["error"].endswith(repr(value)[2:-1]) for row, value in zip(bad[:5], values, strict=False)
    ] == [True] * 5
    assert good["_change"]["error"] is None
    assert good["name"] == "a"
    assert one(spark, KEY, envelope("c", {**ROW, "name": "}{ and }\n{"}))["name"] == "}{ and }\n{"
    in_lines = json.dumps(envelope("c", ROW), indent=2).encode() + b"\r\n\t "
    assert one(spark, KEY, in_lines)["_change"]["error"] is None


def test_messages_that_are_no_changes_are_reported(spark):
    for message in ({"status": "BEGIN", "id": "571:1"}, {"ts_ms": 5}, {"id": 1, "name": "plain row"}, {"schema": None}):
        assert "neither an envelope nor a flattened event" in one(spark, KEY, message)["_change"]["error"]
    assert one(spark, KEY, envelope("x", ROW))["_change"]["error"] == "unknown op: x"
    assert one(spark, KEY, envelope("u"))["_change"]["error"] == "no image of the row after op u"
    assert one(spark, KEY, b'{"op":"\xff"}')["_change"]["error"] == "the value is not UTF-8"


@pytest.mark.core
def test_a_change_without_its_key_is_reported_and_not_merged_under_null(spark):
    delete = envelope("d", before=ROW)
    assert one(spark, None, delete)["_change"]["error"] == "key column id is missing"
    assert one(spark, {"id": None}, delete)["_change"]["error"] == "key column id is missing"
    assert one(spark, {"other": 1}, delete)["_change"]["error"] == "key column id is missing"
    assert one(spark, b"{broken", delete)["_change"]["error"] == "the key is not the JSON of a key: {broken"
    assert one(spark, {"id": "x"}, delete)["_change"]["error"] == "id is not a valid bigint: x"
    # The row's own image has the key too.
    assert one(spark, None, envelope("c", ROW))["id"] == 1


def test_a_value_that_does_not_fit_is_named_and_the_others_are_kept(spark):
    row = one(spark, KEY, envelope("c", {"id": 1, "name": "a", "price": "no decimal"}))
    assert (row["id"], row["name"], row["price"]) == (1, "a", None)
    assert row["_change"]["error"] == "price is not a valid decimal(5,2): no decimal"


@pytest.mark.core
def test_a_delete_has_its_key_and_none_of_the_values_that_debezium_invents(spark):
    row = one(spark, KEY, envelope("d", before={"id": 1, "name": "", "price": "AA=="}))
    assert (row["id"], row["name"], row["price"]) == (1, None, None)
    assert (row["_change"]["op"], row["_change"]["key_only"], row["_change"]["error"]) == ("d", True, None)
    flat = {"id": 1, "name": "", "price": "AA==", "__deleted": "true", "__lsn": 5}
    row = one(spark, KEY, flat)
    assert (row["id"], row["name"], row["price"], row["_change"]["key_only"]) == (1, None, None, True)


def test_a_tombstone_after_a_delete_is_no_second_delete(spark):
    rows = decode(
        spark,
        record(KEY, envelope("d", before=ROW)),
        record(KEY, None),
        record(KEY, b"null"),
        columns=COLUMNS,
        keys=["id"],
    )
    assert [row["_change"]["op"] for row in rows] == ["d"]


def test_a_tombstone_that_is_all_there_is_of_a_delete_is_one(spark):
    upsert = {"id": 1, "name": "a", "price": None, "__op": "c", "__lsn": 900}
    options = {"columns": COLUMNS, "keys": ["id"], "keep_tombstones": True}
    create, delete = decode(spark, record(KEY, upsert, 1), record(KEY, None, 2), **options)
    assert (delete["id"], delete["_change"]["op"], delete["_change"]["key_only"]) == (1, "d", True)
    assert delete["_change"]["error"] is None
    assert delete["_change"]["sequence"] > create["_change"]["sequence"]


def test_truncate_has_no_key_and_is_no_error(spark):
    row = one(spark, None, envelope("t"))
    assert row["id"] is None
    assert (row["_change"]["op"], row["_change"]["key_only"], row["_change"]["error"]) == ("t", False, None)


def test_logical_messages_change_no_row(spark):
    message = {**envelope("m"), "message": {"prefix": "p", "content": "AA=="}}
    assert decode(spark, record({"prefix": "p"}, message), columns=COLUMNS, keys=["id"]) == []
    row = one(spark, {"prefix": "p"}, message, keep_messages=True)
    assert (row["_change"]["op"], row["_change"]["error"]) == ("m", None)
    # A row may well contain the same characters.
    kept = one(spark, KEY, envelope("c", {**ROW, "name": '"op":"m"'}))
    assert kept["name"] == '"op":"m"'
    flat = one(spark, KEY, {**ROW, "op": "m", "__op": "c", "__lsn": 5}, columns=f"{COLUMNS}, op STRING")
    assert (flat["op"], flat["_change"]["op"], flat["_change"]["error"]) == ("m", "c", None)


@pytest.mark.core
def test_a_changed_primary_key_leads_to_the_row_under_the_old_one(spark):
    delete = record({"id": 1}, envelope("d", before=ROW), 0, **{"__debezium.newkey": {"id": 2}, "other": b"x"})
    create = record({"id": 2}, envelope("c", {"id": 2, "name": PLACEHOLDER}), 0, **{"__debezium.oldkey": {"id": 1}})
    wrapped = record({"id": 2}, envelope("c", ROW), 0, **{"__debezium.oldkey": {"schema": {}, "payload": {"id": 1}}})
    rows = decode(spark, delete, create, wrapped, columns=COLUMNS, keys=["id"])
    assert [(row["_change"]["old_key"], row["_change"]["new_key"]) for row in rows] == [
        (None, (2,)),
        ((1,), None),
        ((1,), None),
    ]
    assert rows[1]["_change"]["unavailable"] == ["name"]
    assert rows[0]["_change"]["sequence"] < rows[1]["_change"]["sequence"]
    (broken,) = decode(
        spark, record({"id": 2}, envelope("c", ROW), 0, **{"__debezium.oldkey": b"?"}), columns=COLUMNS, keys=["id"]
    )
    assert broken["_change"]["error"].startswith("the key is not the JSON of a key")


def test_decimals_of_the_other_key_are_digits_in_the_header_and_base64_in_the_key(spark):
    """Kafka Connect's converter for headers writes the digits, of which some are base64, too."""
    columns = {
        "n": "DECIMAL(8, 0)",
        "c": "DECIMAL(38, 20)",
        "t": debezium.Field("STRING", "org.apache.kafka.connect.data.Decimal", scale=10),
        "u": debezium.Field("BIGINT", "Decimal"),
        "k": "STRING",
    }
    key = {"n": base64_of(1234), "c": base64_of(10**20), "t": base64_of(1), "u": base64_of(1), "k": "a"}

    def other_keys(header):
        create = record(key, envelope("c", key), 0, **{"__debezium.oldkey": header})
        (row,) = decode(spark, create, columns=columns, keys=list(columns))
        assert row["_change"]["error"] is None
        return [str(value) for value in row["_change"]["old_key"]]

    in_digits = b'{"n":1234,"c":123456789012345678.12345678901234567890,"t":-1.00E-8,"u":12345678,"k":"a"}'
    expected = ["1234", "123456789012345678.12345678901234567890", "-0.0000000100", "12345678", "a"]
    assert other_keys(in_digits) == expected
    assert other_keys(b'{"schema": {}, "payload": ' + in_digits + b"}") == expected
    # JsonConverter as the converter for headers.
    assert other_keys(key) == ["1234", "1.00000000000000000000", "0.0000000001", "1", "a"]
    zero = b'{"n":0,"c":0E-20,"t":0E-10,"u":0,"k":"{\\"n\\":5,\\"c\\":7}"}'
    assert other_keys(zero)[2:] == ["0.0000000000", "0", '{"n":5,"c":7}']


def test_control_characters_are_not_escaped_in_the_key_in_a_header(spark):
    create = record({"k": "b"}, envelope("c", {"k": "b"}), 0, **{"__debezium.oldkey": b'{"k":"line\nbreak\t\x01"}'})
    (row,) = decode(spark, create, columns="k STRING", keys=["k"])
    assert (row["_change"]["old_key"]["k"], row["_change"]["error"]) == ("line\nbreak\t\x01", None)


def test_records_without_headers_and_as_text_are_read(spark):
    records = frame_of(spark, record(KEY, envelope("c", ROW)))
    texts = records.select("topic", "partition", "offset", F.col("key").cast("string"), F.col("value").cast("string"))
    row = debezium.changes(texts, COLUMNS, ["id"]).first()
    assert (row["id"], row["name"], row["_change"]["old_key"], row["_change"]["timestamp"]) == (1, "a", None, None)


@pytest.mark.core
def test_messages_with_and_without_schemas_in_one_batch(spark):
    wrapped = record({"schema": {}, "payload": KEY}, {"schema": {"type": "struct"}, "payload": envelope("c", ROW)})
    flat = record(KEY, {"schema": {}, "payload": {**ROW, "__op": "u", "__lsn": 7}})
    rows = decode(spark, wrapped, record(KEY, envelope("c", ROW)), flat, columns=COLUMNS, keys=["id"])
    assert [(row["id"], row["name"], str(row["price"]), row["_change"]["error"]) for row in rows] == [
        (1, "a", "0.01", None)
    ] * 3
    assert [row["_change"]["op"] for row in rows] == ["c", "c", "u"]
    assert rows[2]["_change"]["sequence"]["position"] == 7


def test_flattened_events_of_any_configuration(spark):
    prefixed = one(spark, KEY, {**ROW, "cdc.op": "c", "cdc.source_lsn": 8}, meta_prefix="cdc.")
    assert (prefixed["_change"]["op"], prefixed["_change"]["sequence"]["position"]) == ("c", 8)
    plain = one(spark, KEY, ROW, format="flattened")
    assert (plain["name"], plain["_change"]["op"], plain["_change"]["error"]) == ("a", "u", None)
    (in_headers,) = decode(spark, record(KEY, ROW, 3, __op=b"r", __lsn=b"9"), columns=COLUMNS, keys=["id"])
    assert in_headers["_change"]["op"] == "r"
    assert (in_headers["_change"]["sequence"]["phase"], in_headers["_change"]["sequence"]["position"]) == (0, 9)


@pytest.mark.core
def test_names_that_spark_and_debezium_use_themselves_are_names_of_columns(spark):
    names = [
        "op",
        "before",
        "after",
        "source",
        "payload",
        "schema",
        "key",
        "value",
        "topic",
        "a.b",
        "c`d",
        "e f",
        "Name",
        "'",
        "\\",
    ]
    columns = T.StructType([T.StructField(name, T.StringType()) for name in ("id", *names, "__op")])
    image = {"id": "1", **{name: f"<{name}>" for name in names}, "__op": "mine"}
    row = one(spark, {"id": "1"}, envelope("u", image), columns=columns)
    assert {name: row[name] for name in image} == image
    assert row["_change"]["error"] is None
    flat = {**image, "__op": "c"}
    row = one(spark, {"id": "1"}, flat, columns=columns, format="flattened")
    assert {name: row[name] for name in image} == flat


def test_key_columns_of_odd_names(spark):
    columns = T.StructType([T.StructField(name, T.IntegerType()) for name in ("a.b", "c`d", "payload", "v")])
    image = {"a.b": 1, "c`d": 2, "payload": 3, "v": 4}
    key = {name: value for name, value in image.items() if name != "v"}
    create = record(key, envelope("c", image), 0, **{"__debezium.oldkey": {**key, "a.b": 9}})
    (row,) = decode(spark, create, columns=columns, keys=list(key))
    assert tuple(row)[:4] == (1, 2, 3, 4)
    assert row["_change"]["old_key"].asDict() == {"a.b": 9, "c`d": 2, "payload": 3}
    assert row["_change"]["error"] is None


def test_names_that_differ_in_case_are_not_taken_for_one_another(spark):
    row = one(spark, KEY, envelope("c", {"id": 1, "NAME": "upper", "Name": "mixed"}), columns="id INT, Name STRING")
    assert row["Name"] == "mixed"


@pytest.mark.core
def test_a_table_without_a_key_has_both_images(spark):
    source = {"lsn": 50}
    update = {**envelope("u", {**ROW, "name": "b"}, ROW, **source), "transaction": {"total_order": 2}}
    rows = decode(spark, record(None, update), record(None, envelope("d", before=ROW)), columns=COLUMNS, keys=[])
    update, delete = rows
    assert (update["name"], update["_change"]["before"]["name"], update["_change"]["sequence"]["event"]) == (
        "b",
        "a",
        2,
    )
    assert (delete["name"], delete["_change"]["before"]["name"], delete["_change"]["key_only"]) == (None, "a", False)
    assert str(delete["_change"]["before"]["price"]) == "0.01"
    assert [row["_change"]["error"] for row in rows] == [None, None]
    (flat,) = decode(spark, record(None, {**ROW, "__op": "d", "__lsn": 5}), columns=COLUMNS, keys=[])
    assert (flat["name"], flat["_change"]["before"]["name"], flat["_change"]["error"]) == (None, "a", None)
    (lost,) = decode(spark, record(None, envelope("d")), columns=COLUMNS, keys=[])
    assert lost["_change"]["error"].startswith("no image of the row before op d")


def test_rows_that_were_there_when_a_column_was_added_have_its_default(spark):
    columns = {
        "id": "BIGINT",
        "channel": debezium.Field("STRING", default="web"),
        "n": debezium.Field("INT", default=3),
    }
    row = one(spark, KEY, envelope("r", {"id": 1}), columns=columns)
    assert (row["channel"], row["n"]) == ("web", 3)
    row = one(spark, KEY, envelope("u", {"id": 1, "channel": PLACEHOLDER, "n": 5}), columns=columns)
    assert (row["channel"], row["n"], row["_change"]["unavailable"]) == (None, 5, ["channel"])
    assert one(spark, KEY, envelope("d"), columns=columns)["channel"] is None


def test_the_columns_of_an_existing_table_are_taken_with_what_their_types_do_not_tell(spark):
    schema = T.StructType.fromDDL("id BIGINT, seen TIMESTAMP_NTZ, loaded_at TIMESTAMP")
    settings = {"seen": debezium.Field("TIMESTAMP_NTZ", "io.debezium.time.Timestamp")}
    columns = debezium.table_fields(schema, settings=settings, except_columns=["loaded_at"])
    row = one(spark, KEY, envelope("c", {"id": 1, "seen": 1000}), columns=columns)
    assert (row["id"], str(row["seen"])) == (1, "1970-01-01 00:00:01")
    with pytest.raises(ConfigError, match="the table has no column 'lost'"):
        debezium.table_fields(schema, except_columns=["lost"])


def test_what_is_wrong_with_a_call_is_said_before_any_record_is_read(spark):
    records = frame_of(spark)
    for match, columns, keys, options in (
        ("key 'x' is not among the columns id, name, price$", COLUMNS, ["x"], {}),
        ("key '__dbz__physicalTableIdentifier' is not .* price: ByLogicalTableRouter adds it", COLUMNS, [SHARD], {}),
        ("a column is called '_change'", "id INT, _change STRING", ["id"], {}),
        ("semantic type 'Nonsense' is unknown", {"id": debezium.Field("INT", "Nonsense")}, ["id"], {}),
        ("format is 'avro'", COLUMNS, ["id"], {"format": "avro"}),
        ("keep_tombstones needs keys", COLUMNS, [], {"keep_tombstones": True}),
        ("the keys of a map in JSON are text", "id MAP<INT, INT>", [], {}),
        ("no record has a value", None, None, {}),
    ):
        with pytest.raises(ConfigError, match=match):
            debezium.changes(records, columns, keys, **options)
    with pytest.raises(ConfigError, match="records have no column 'offset'"):
        debezium.changes(records.drop("offset"), COLUMNS, ["id"])


def test_types_are_learnt_from_the_schema_part_of_both_connectors(spark):
    def field(name, kind, semantic=None, **more):
        return {"field": name, "type": kind, "optional": True, **({"name": semantic} if semantic else {}), **more}

    members = [
        field("id", "int32"),
        field("tiny", "int16"),
        field("real", "float"),
        field("made", "int64", "io.debezium.time.Timestamp"),
        field("clock", "int64", "io.debezium.time.MicroTime"),
        field(
            "big",
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "0", "connect.decimal.precision": "65"},
        ),
        field("bits", "bytes", "io.debezium.data.Bits", parameters={"length": "5"}),
        field("set", "string", "io.debezium.data.EnumSet", parameters={"allowed": "a,b"}),
        field("days", "array", items={"type": "int32", "name": "io.debezium.time.Date"}),
        field("pairs", "map", keys={"type": "string"}, values={"type": "string"}),
        field("at", "struct", "io.debezium.data.geometry.Point", fields=[field("x", "double"), field("wkb", "bytes")]),
    ]
    image = {
        "id": 1,
        "tiny": 2,
        "real": 0.5,
        "made": 1000,
        "clock": 1000000,
        "big": "AQ==",
        "bits": "BQ==",
        "set": "a",
        "days": [0],
        "pairs": {"k": "v"},
        "at": {"x": 1.0, "wkb": "AQ=="},
    }
    after = {"type": "struct", "field": "after", "fields": members}
    envelope_fields = [after, {"type": "struct", "field": "source", "fields": []}, field("op", "string")]
    older = [members[0], field("tiny", "int8")]
    old_fields = [{**after, "fields": older}, *envelope_fields[1:]]
    records = frame_of(
        spark,
        record(
            with_schema([members[0]], KEY), with_schema(old_fields, envelope("c", {"id": 1, "tiny": 1}, **MYSQL)), 1
        ),
        record(with_schema([members[0]], KEY), with_schema(envelope_fields, envelope("c", image, **MYSQL)), 2),
    )
    schema = debezium.table_schema(records)
    assert schema.simpleString() == (
        "struct<id:int,tiny:smallint,real:float,made:timestamp_ntz,clock:string,big:string,bits:string,set:string,"
        "days:array<date>,pairs:map<string,string>,at:struct<x:double,wkb:binary>>"
    )
    old, new = debezium.changes(records).collect()
    assert (old["id"], old["tiny"], old["real"]) == (1, 1, None)
    assert new["_change"]["error"] is None
    assert (new["clock"], new["big"], new["bits"], new["pairs"]) == ("00:00:01.000000", "1", "00101", {"k": "v"})
    assert str(new["days"][0]) == "1970-01-01"
    assert new["at"].asDict() == {"x": 1.0, "wkb": b"\x01"}


def test_records_of_two_tables_are_not_mixed_when_columns_are_learnt(spark):
    message = with_schema([{"field": "id", "type": "int32"}], {"id": 1, "__op": "c"})
    first = record(KEY, message)
    second = (*first[:2], "shop.public.u", *first[3:])
    with pytest.raises(ConfigError, match=r"several topics \(shop.public.t, shop.public.u\)"):
        debezium.table_schema(frame_of(spark, first, second))


def test_a_batch_is_parsed_once_whatever_the_number_of_columns(spark):
    records = frame_of(spark, record(KEY, envelope("c", ROW)))
    spark.conf.set("spark.sql.debug.maxToStringFields", 10_000)
    try:
        plan = debezium.changes(records, COLUMNS, ["id"])._jdf.queryExecution().optimizedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.debug.maxToStringFields")
    # The value as an envelope and, if it is none, as a flattened event; the key, the keys in the two headers, and the
    # decimal, which may be a struct with a scale of its own. Of a CloudEvent the event and, if it has a schema part,
    # its images. And, only for a value that may be several objects, whether it is: as an event (twice), as an envelope,
    # and as a flattened event.
    assert plan.count("from_json") == 12


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("keys", "before", "given"),
    [
        (
            ["id"],
            False,
            [
                (KEY, json.dumps(envelope("c", ROW)).encode().replace(b'"a"', b'"\xff"')),
                (KEY, json.dumps(envelope("c", ROW)).encode() + b" and more"),
                (KEY, {"ts_ms": 5}),
                (KEY, envelope("x", ROW)),
                (b"no key", envelope("c", ROW)),
                (None, envelope("u", ROW)),
                (KEY, envelope("u")),
                ({"other": 1}, envelope("u", ROW)),
                ({"other": 1}, envelope("d")),
                ({"id": "a"}, envelope("d")),
                (KEY, envelope("c", {**ROW, "price": "not base64!"})),
                (KEY, envelope("r", {**ROW, "price": "not base64!"})),
            ],
        ),
        (
            ["id"],
            True,
            [(KEY, envelope("u", ROW, {**ROW, "price": "not base64!"})), (KEY, envelope("u", ROW, {**ROW, "id": "a"}))],
        ),
        (
            [],
            True,
            [
                (None, envelope("u", ROW)),
                (None, envelope("d")),
                (None, envelope("c", {**ROW, "name": PLACEHOLDER})),
                (None, envelope("d", None, {**ROW, "name": PLACEHOLDER})),
                (None, envelope("c", {**ROW, "id": "a"})),
                (None, envelope("d", None, {**ROW, "id": "a"})),
                (None, {"ts_ms": 5}),
                (None, envelope("x", ROW)),
            ],
        ),
    ],
)
def test_every_fault_is_noticed_without_looking_for_it_in_each_record(spark, monkeypatch, keys, before, given):
    records = [record(*one) for one in given]
    options = {"columns": COLUMNS, "keys": keys, "before": before}
    found = decode(spark, *records, **options)
    monkeypatch.setattr(rows, "_may_fail", lambda _: "true")
    looked_for = decode(spark, *records, **options)
    errors = [row["_change"]["error"] for row in looked_for]
    assert all(errors), errors
    assert [row["_change"]["error"] for row in found] == errors


@pytest.mark.parametrize("keys", [["id"], []])
def test_no_method_is_too_long_for_the_jvm_s_compiler(spark, keys):
    """HotSpot interprets methods of more than 8,000 bytes for ever."""
    types = ("BIGINT", "STRING", "TIMESTAMP", "DOUBLE", "DATE")
    columns = ", ".join(["id BIGINT", *(f"c{number} {types[number % len(types)]}" for number in range(60))])
    frame = debezium.changes(frame_of(spark, record(KEY, envelope("c", ROW))), columns, keys)
    conf = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        plan = frame._jdf.queryExecution().executedPlan()
        stages = spark._jvm.org.apache.spark.sql.execution.debug.package.codegenStringSeq(plan)
        sizes = [stages.apply(place)._3().maxMethodCodeSize() for place in range(stages.size())]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert sizes
    assert max(sizes) <= 8000


def test_the_guide_s_code_runs(spark):
    guide = (Path(__file__).parents[2] / "docs/debezium.md").read_text()
    variables = {
        "spark": spark,
        "records": frame_of(spark, record(KEY, envelope("c", ROW))).withColumn("topic", F.lit("shop.public.customers")),
    }
    for block in re.findall(r"^```python\n(.*?)^```$", guide, flags=re.DOTALL | re.MULTILINE):
        if "writeStream" in block:
            continue
        exec(compile(block, "docs/debezium.md", "exec"), variables)
        variables.setdefault("first", variables.get("changes"))
    assert variables["first"].first()["name"] == "a"
    assert set(debezium.fields.resolve_columns(variables["columns"])) == {"id", "seen", "flags", "channel"}


def test_changes_are_made_of_a_stream_without_reading_it(spark, tmp_path):
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    changes = debezium.changes(stream, COLUMNS, ["id"])
    assert changes.isStreaming
    assert changes.columns == ["id", "name", "price", "_change"]
    with pytest.raises(ConfigError, match="columns cannot be learnt from a stream"):
        debezium.changes(stream)


def test_a_batch_without_values_is_decoded_with_what_was_learnt_before(spark):
    fields = [{"field": "id", "type": "int64"}, {"field": "name", "type": "string", "optional": True}]
    row = {"field": "after", "type": "struct", "optional": True, "fields": fields}
    parts = [row, {"field": "op", "type": "string"}, {"field": "source", "type": "struct", "fields": []}]
    keys = [{"field": "id", "type": "int64"}]
    create = record(with_schema(keys, KEY), with_schema(parts, envelope("c", {"id": 1, "name": "a"})))
    truncate = record(None, with_schema(parts, envelope("t")))
    empty = record(with_schema(keys, KEY), None), record(with_schema(keys, KEY), b" null ")

    assert debezium.learn_columns(frame_of(spark, *empty)) is None
    assert debezium.learn_columns(frame_of(spark).limit(0)) is None
    learnt = debezium.learn_columns(frame_of(spark, create, *empty))
    assert (list(learnt.fields), learnt.keys) == (["id", "name"], ("id",))
    assert debezium.learn_columns(frame_of(spark, *empty), learnt) == learnt
    assert debezium.changes(frame_of(spark, *empty), learnt).collect() == []
    kept = debezium.learn_columns(frame_of(spark, truncate), known=learnt)
    assert kept.keys == ("id",), "a TRUNCATE has no key"
    with pytest.raises(ConfigError, match="no record has a value"):
        debezium.changes(frame_of(spark, *empty))
    with pytest.raises(ConfigError, match="no record has a schema part"):
        debezium.learn_columns(frame_of(spark, record(KEY, envelope("c", ROW))), learnt)
