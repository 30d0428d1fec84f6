"""Settings of the connector that messages tell, or do not tell: a wrong one is an error by name, or makes no
difference."""

from decimal import Decimal

import pytest

from stream_merge import debezium
from tests.debezium.records import base64_of, decode, envelope, frame_of, record, with_schema


def is_error(read):
    return isinstance(read, str) and read.startswith("x is not a valid ")


def read(spark, data_type, values, **settings):
    """Return what each value in a message without a schema is decoded as, or the error."""
    records = [record({"id": place}, envelope("c", {"id": place, "x": sent})) for place, sent in enumerate(values)]
    rows = decode(spark, *records, columns=f"id INT, x {data_type}", keys=["id"], **settings)
    found = sorted(rows, key=lambda row: row["id"])
    return [row["_change"]["error"] or row["x"] for row in found]


@pytest.mark.parametrize("given", ["precise", "string", "double"])
def test_decimals_with_digits_after_the_point_in_a_wrong_mode_are_errors(spark, given):
    number = Decimal("1234.50")
    sent = {"precise": base64_of(123450), "string": "1234.50", "double": 1234.5}
    found = read(spark, "DECIMAL(12, 2)", list(sent.values()), decimals=given)
    right = {"precise"} if given == "precise" else {"string", "double"}
    assert {mode for mode, each in zip(sent, found, strict=True) if each == number} == right
    assert {mode for mode, each in zip(sent, found, strict=True) if is_error(each)} == sent.keys() - right


@pytest.mark.parametrize(
    ("settings", "described", "sent", "expected"),
    [
        ({"decimals": "string"}, {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "1234", None),
        ({"binary": "hex"}, {"type": "bytes"}, "abcd", bytes.fromhex("69b71d")),
        ({"binary": "hex"}, {"type": "bytes", "name": "io.debezium.data.Bits"}, "Bw==", "00000111"),
        ({"timestamp_unit": "ns"}, {"type": "int64", "name": "io.debezium.time.Timestamp"}, 1000, None),
    ],
)
def test_what_a_schema_part_tells_needs_no_setting(spark, settings, described, sent, expected):
    parameters = (
        {"parameters": {"scale": "0", "connect.decimal.precision": "20"}} if "Decimal" in str(described) else {}
    )
    column = {**described, **parameters, "optional": True, "field": "x"}
    fields = [{"type": "int32", "optional": False, "field": "id"}, column]
    image = {"type": "struct", "fields": fields, "optional": True}
    schema = [{**image, "field": name} for name in ("before", "after")]
    schema += [{"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"}]
    frame = frame_of(spark, record({"id": 1}, with_schema(schema, envelope("c", {"id": 1, "x": sent}))))
    learnt = debezium.learn_columns(frame)
    (told,) = debezium.changes(frame, learnt).collect()
    (against,) = debezium.changes(frame, learnt, **settings).collect()
    assert told["_change"]["error"] is against["_change"]["error"] is None
    assert told["x"] == against["x"]
    assert told["x"] is not None
    if expected is not None:
        assert told["x"] == expected


@pytest.mark.parametrize("is_described", [False, True])
def test_a_wrong_layout_is_an_error(spark, is_described):
    message = envelope("c", {"id": 1, "x": "a"})
    if is_described:
        message = with_schema([{"type": "string", "field": "op"}], message)
    columns = {"columns": "id INT, x STRING", "keys": ["id"]}
    (row,) = decode(spark, record({"id": 1}, message), **columns, format="flattened")
    assert row["_change"]["error"] == (
        "the message is an envelope, and not flattened: correct format=, or layout in a pipeline file"
    )
    flattened = {"id": 1, "x": "a", "__op": "c"}
    (row,) = decode(spark, record({"id": 1}, flattened), **columns, format="envelope")
    assert row["_change"]["error"].startswith("neither an envelope nor a flattened event (set format=): ")
    # A row may have such columns.
    (row,) = decode(
        spark,
        record({"id": 1}, {"id": 1, "op": "c", "source": {"a": 1}}),
        columns="id INT, op STRING, source STRING",
        keys=["id"],
        format="flattened",
    )
    assert (row["op"], row["source"], row["_change"]["error"]) == ("c", '{"a":1}', None)
