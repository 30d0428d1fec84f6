"""Avro schemas become the schema parts that JsonConverter writes: those of real logs, and written ones."""

import gzip
import json

import pytest

from stream_merge.debezium.avro_schemas import AvroSchemaError, translate
from tests.debezium.avro import avro_of
from tests.debezium.captures import CAPTURES

ENTRY = "io.confluent.connect.avro.MapEntry"
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def schema_parts(capture):
    """Return the different schema parts of the keys and values of a log, without their documentation."""
    parts = set()
    with gzip.open(CAPTURES / capture / "events.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            for sent in (event["key"], event["value"]):
                schema = json.loads(sent, object_hook=without_doc)["schema"] if sent is not None else None
                if schema is not None:
                    parts.add(json.dumps(schema))
    return [json.loads(part) for part in sorted(parts)]


def without_doc(found):
    return {name: value for name, value in found.items() if name != "doc" or "type" not in found}


def written_by_apicurio():
    """Return what Apicurio's converter wrote of a record, and what Kafka Connect's JsonConverter wrote of the same.

    One column differs: a map whose keys are numbers, which is an array of entries in Avro.
    """
    found = json.loads((CAPTURES / "converter" / "apicurio.json").read_text())
    for image in found["json"]["schema"]["fields"][:2]:
        (column,) = [each for each in image["fields"] if each["field"] == "im"]
        keys, values = ({**column[name], "field": name[:-1]} for name in ("keys", "values"))
        entry = {"type": "struct", "fields": [keys, values], "optional": False, "name": ENTRY}
        column |= {"type": "array", "items": entry}
        del column["keys"], column["values"]
    after = found["json"]["payload"]["after"]
    after["im"] = [{"key": key, "value": value} for key, value in after["im"]]
    return found


def record(*fields, **more):
    return {"type": "record", "name": "R", "namespace": "a.b", "fields": list(fields), **more}


def field(kind, **more):
    return {"name": "x", "type": kind, **more}


def connect_of(schema, *references):
    return translate(json.dumps(schema), [json.dumps(each) for each in references]).connect


def column_of(kind, **more):
    """Return what becomes of a column of this type."""
    found = dict(connect_of(record(field(kind, **more)))["fields"][0])
    assert found.pop("field") == "x"
    return found


def test_the_schema_that_a_converter_registered_is_that_of_json():
    found = written_by_apicurio()
    assert connect_of(found["schema"]) == found["json"]["schema"]


@pytest.mark.parametrize("capture", ["odd-schema", "mariadb-schema", "small-schema"])
def test_schema_parts_of_real_logs_come_back_as_they_were(capture):
    parts = schema_parts(capture)
    assert len(parts) >= 8
    assert [translate(json.dumps(avro_of(part))).connect for part in parts] == parts


@pytest.mark.parametrize(
    ("avro", "connect"),
    [
        ("long", {"type": "int64", "optional": False}),
        ({"type": "string"}, {"type": "string", "optional": False}),
        ({"type": "int", "connect.type": "int16"}, {"type": "int16", "optional": False}),
        (["null", "double"], {"type": "double", "optional": True}),
        (
            [{"type": "boolean", "connect.default": True}, "null"],
            {"type": "boolean", "optional": True, "default": True},
        ),
        (
            {"type": "int", "logicalType": "date"},
            {"type": "int32", "optional": False, "name": "org.apache.kafka.connect.data.Date"},
        ),
        # Written by others than Connect's converters.
        (
            {"type": "fixed", "name": "D", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2},
            {
                "type": "bytes",
                "optional": False,
                "name": DECIMAL,
                "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            },
        ),
        ({"type": "enum", "name": "c.E", "symbols": ["A"]}, {"type": "string", "optional": False, "name": "c.E"}),
        ({"type": {"type": "string", "connect.name": "n"}}, {"type": "string", "optional": False, "name": "n"}),
        (
            {"type": "map", "values": ["null", "long"]},
            {
                "type": "map",
                "keys": {"type": "string", "optional": False},
                "values": {"type": "int64", "optional": True},
                "optional": False,
            },
        ),
    ],
)
def test_each_type_is_that_of_kafka_connect(avro, connect):
    assert column_of(avro) == connect


@pytest.mark.parametrize(
    ("avro", "default", "sent"),
    [
        ("bytes", "\u00ff\u0000", "/wA="),
        (["string", "null"], "web", "web"),
        (["null", "string"], None, None),
        ({"type": "array", "items": "bytes"}, ["\u0001"], ["AQ=="]),
        ({"type": "map", "values": "bytes"}, {"a": "\u0001"}, {"a": "AQ=="}),
        ({"type": "record", "name": "S", "fields": [{"name": "b", "type": "bytes"}]}, {"b": "\u0001"}, {"b": "AQ=="}),
        # Not text of bytes, so it is none.
        ("bytes", "\u0100", None),
    ],
)
def test_defaults_are_as_in_json(avro, default, sent):
    assert column_of(avro, default=default).get("default") == sent


def test_names_are_looked_up_where_they_stand():
    point = {"type": "record", "name": "P", "namespace": "geo", "fields": [{"name": "y", "type": "E"}]}
    enum = {"type": "enum", "name": "E", "namespace": "geo", "symbols": ["A"]}
    # P is another type than geo.P, and E in geo.P is geo.E.
    own = {"type": "record", "name": "P", "fields": [{"name": "z", "type": "int"}]}
    schema = record(field("geo.P"), {"name": "u", "type": own}, {"name": "v", "type": ["null", "P"]})
    found = connect_of(schema, enum, point)["fields"]
    assert [(each["name"], each["optional"], each["fields"][0]["field"]) for each in found] == [
        ("geo.P", False, "y"),
        ("a.b.P", False, "z"),
        ("a.b.P", True, "z"),
    ]
    assert found[0]["fields"][0] == {"type": "string", "optional": False, "name": "geo.E", "field": "y"}


def test_a_struct_without_a_name_has_none():
    unnamed = {"type": "record", "name": "ConnectDefault", "namespace": "io.confluent.connect.avro", "fields": []}
    assert connect_of(unnamed) == {"type": "struct", "fields": [], "optional": False}


def test_spark_gets_types_without_names_and_without_meaning():
    inner = {"type": "record", "name": "S", "fields": [{"name": "a b", "type": "int"}, {"name": "A B", "type": "S2"}]}
    date = {"type": "record", "name": "S2", "fields": [{"name": "`", "type": {"type": "int", "logicalType": "date"}}]}
    found = translate(json.dumps(record(field(["null", inner]), {"name": "X", "type": "a.b.S"})), [json.dumps(date)])
    assert found.sql == (
        "STRUCT<`x`: STRUCT<`a b`: INT, `A B`: STRUCT<````: INT>>, `X`: STRUCT<`a b`: INT, `A B`: STRUCT<````: INT>>>"
    )
    names = [found.plain["name"], *(each["name"] for each in records_in(found.plain["fields"]))]
    assert len(set(names)) == len(names) == 5
    assert "logicalType" not in json.dumps(found.plain)


def records_in(plain):
    for each in plain:
        for kind in each["type"] if isinstance(each["type"], list) else [each["type"]]:
            if isinstance(kind, dict):
                yield kind
                yield from records_in(kind["fields"])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(field(["null", "int", "string"])), r"in a\.b\.R: a union of several types, .* is no column"),
        (record(field(["null", "R"])), r"in a\.b\.R: a\.b\.R refers to itself"),
        (record(field("Other")), r"in a\.b\.R: it has no type of the name 'Other'"),
        (record(field("null")), r"it has no type of the name 'null'"),
        ({"type": "null"}, "is not a type of Avro that has values"),
        ({"type": "record", "name": "R"}, "is not a type of Avro"),
        (17, "17 is not a type of Avro"),
    ],
)
def test_what_cannot_be_translated_is_refused(schema, why):
    with pytest.raises(AvroSchemaError, match=why):
        connect_of(schema)


def test_what_is_no_json_is_refused():
    with pytest.raises(AvroSchemaError, match="it is not the JSON of a schema"):
        translate('syntax = "proto3";')
    assert translate("string").connect == {"type": "string", "optional": False}
