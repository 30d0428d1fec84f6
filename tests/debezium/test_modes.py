"""Settings of the connector that messages tell, or do not tell: a wrong one is an error by name, or makes no
difference."""

from decimal import Decimal

import pytest

from stream_merge import debezium
from tests.debezium.records import base64_of, decode, envelope, frame_of, record, with_schema

AS_HEX = {b"": "", b"\x12\x34": "1234", b"\xab\xcd\xef": "abcdef", bytes(16): "00" * 16, b"\xff\xef": "ffef"}
NUMBERS = [Decimal(text) for text in ("0", "7", "1234", "-1234", "20260101", "123456789012", "-2658824", "1e2")]


def read(spark, data_type, values, **settings):
    """Return what each value in a message without a schema is decoded as, or the error."""
    records = [record({"id": place}, envelope("c", {"id": place, "x": sent})) for place, sent in enumerate(values)]
    rows = decode(spark, *records, columns=f"id INT, x {data_type}", keys=["id"], **settings)
    found = sorted(rows, key=lambda row: row["id"])
    return [row["_change"]["error"] or row["x"] for row in found]


def as_sent(number, mode):
    """Return a decimal as the connector writes it."""
    return {"precise": base64_of(int(number)), "string": str(number), "double": float(number)}[mode]


def is_error(read):
    return isinstance(read, str) and read.startswith("x is not a valid ")


@pytest.mark.parametrize("sent_as", ["precise", "string", "double"])
def test_decimals_of_any_mode_are_right_or_errors_if_no_mode_is_given(spark, sent_as):
    sent = [as_sent(number, sent_as) for number in NUMBERS]
    found = read(spark, "DECIMAL(20, 0)", sent)
    wrong = [pair for pair in zip(NUMBERS, found, strict=True) if pair[0] != pair[1] and not is_error(pair[1])]
    assert wrong == []
    if sent_as == "precise":
        # -2658824 in base64 is 1234, a number as well.
        assert [number for number, each in zip(NUMBERS, found, strict=True) if is_error(each)] == [Decimal(-2658824)]
        assert found[NUMBERS.index(Decimal(-2658824))] == (
            "x is not a valid decimal(20,0): 1234 (a number, or base64 of one? Set decimals to the connector's "
            "decimal.handling.mode)"
        )
        assert read(spark, "DECIMAL(20, 0)", sent, decimals="precise") == NUMBERS
    else:
        assert all(is_error(each) for each in found)
        assert read(spark, "DECIMAL(20, 0)", sent, decimals=sent_as) == NUMBERS


@pytest.mark.parametrize("decimals", [None, "precise", "string", "double"])
def test_what_is_no_number_is_no_decimal_in_any_mode(spark, decimals):
    words = ["NaN", "NAN", "Infinity", "-Infinity", "POSITIVE_INFINITY", "many"]
    assert all(is_error(each) for each in read(spark, "DECIMAL(20, 2)", words, decimals=decimals))


@pytest.mark.parametrize("given", [None, "precise", "string", "double"])
def test_decimals_with_digits_after_the_point_in_a_wrong_mode_are_errors(spark, given):
    number = Decimal("1234.50")
    sent = {"precise": base64_of(123450), "string": "1234.50", "double": 1234.5}
    found = read(spark, "DECIMAL(12, 2)", list(sent.values()), decimals=given)
    right = {"precise"} if given in (None, "precise") else {"string", "double"}
    assert {mode for mode, each in zip(sent, found, strict=True) if each == number} == right
    assert {mode for mode, each in zip(sent, found, strict=True) if is_error(each)} == sent.keys() - right


def test_bytes_in_hexadecimal_are_errors_if_no_mode_is_given(spark):
    found = read(spark, "BINARY", list(AS_HEX.values()))
    assert found[0] == b""
    assert all(is_error(each) for each in found[1:])
    assert found[1] == (
        "x is not a valid binary: 1234 (base64, or hexadecimal? Set binary to the connector's binary.handling.mode)"
    )
    assert read(spark, "BINARY", list(AS_HEX.values()), binary="hex") == list(AS_HEX)


def test_base64_of_either_kind_needs_no_mode(spark):
    assert read(spark, "BINARY", ["_-8=", "/+8=", "AQL/", ""]) == [b"\xff\xef", b"\xff\xef", b"\x01\x02\xff", b""]
    assert all(is_error(each) for each in read(spark, "BINARY", ["_-8=", "AQL/"], binary="hex"))
    # What is hexadecimal, too, is base64 if the file says so.
    assert read(spark, "BINARY", ["abcd"], binary="base64") == [bytes.fromhex("69b71d")]


@pytest.mark.parametrize("data_type", ["TIMESTAMP", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_times_of_another_unit_are_errors_if_no_unit_is_given(spark, data_type, unit):
    a_second = {"ms": 10**3, "ns": 10**9}[unit]
    # 1900, just before and after 1970, 1991, 2026; the end of calendars, which nanoseconds do not reach.
    seconds = [-2208988800, -1, 1, 662688000, 1767225600, *([253402300799] if unit == "ms" else [])]
    found = read(spark, data_type, [each * a_second for each in seconds])
    assert [each for each in found if not is_error(each)] == []
    assert found[-1].endswith(
        " (milli-, micro- or nanoseconds? Set timestamp_unit, or take the columns from messages with schemas)"
    )
    of_the_unit = read(spark, data_type, [each * a_second for each in seconds], timestamp_unit=unit)
    assert of_the_unit == read(spark, data_type, [each * 10**6 for each in seconds], timestamp_unit="us")


def test_microseconds_need_no_unit_but_near_1970(spark):
    sent = [0, 1767225600000001, -2208988800000000, "2026-01-01T00:00:00Z", None]
    assert read(spark, "TIMESTAMP", sent) == read(spark, "TIMESTAMP", sent, timestamp_unit="us")
    assert is_error(read(spark, "TIMESTAMP", [1])[0])


def test_values_in_doubt_within_arrays_are_errors(spark):
    assert is_error(read(spark, "ARRAY<DECIMAL(20, 0)>", [["AQ==", "1234"]])[0])
    assert is_error(read(spark, "ARRAY<TIMESTAMP>", [[1767225600000]])[0])


@pytest.mark.parametrize(
    ("settings", "described", "sent", "expected"),
    [
        ({"decimals": "string"}, {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "1234", None),
        ({"binary": "hex"}, {"type": "bytes"}, "abcd", bytes.fromhex("69b71d")),
        ({"timestamp_unit": "ns"}, {"type": "int64", "name": "io.debezium.time.Timestamp"}, 1000, None),
    ],
)
def test_what_a_schema_part_tells_is_in_no_doubt_and_needs_no_setting(spark, settings, described, sent, expected):
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


def test_text_for_a_table_of_bytes_is_in_doubt_even_with_a_schema_part(spark):
    """The schema part says "string" for base64 and for hexadecimal."""
    fields = [{"type": "int32", "field": "id"}, {"type": "string", "optional": True, "field": "x"}]
    schema = [{"type": "struct", "fields": fields, "field": "after"}]
    schema += [{"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"}]
    frame = frame_of(spark, record({"id": 1}, with_schema(schema, envelope("c", {"id": 1, "x": "abcd"}))))
    (row,) = debezium.changes(frame, "id INT, x BINARY", ["id"]).collect()
    assert is_error(row["_change"]["error"])


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
