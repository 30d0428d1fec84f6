"""Each type of the PostgreSQL and MySQL connectors, in the JSON that Kafka Connect writes, to a type of the lake."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from math import inf, isnan

import pytest
from pyspark.sql import functions as F

from stream_merge.debezium import Field, changes
from tests.debezium.records import PLACEHOLDER, base64_of, decode_values, envelope, frame_of, record

at = datetime.fromisoformat
LAST_TIMESTAMP = "+294247-01-10 04:00:54.775807"
FIRST_TIMESTAMP = "-290308-12-21 19:59:05.224192"


def check(spark, *cases, **options):
    """Assert that (field, value in the JSON, value expected) hold."""
    values, change = decode_values(spark, *[(field, value) for field, value, _ in cases], **options)
    assert change["error"] is None
    assert values == [expected for _, _, expected in cases]


def check_misfits(spark, *cases, **options):
    """Assert that (field, value in the JSON) are reported by name and not made NULL in silence."""
    values, change = decode_values(spark, *cases, **options)
    assert values == [None] * len(cases)
    reasons = change["error"].split("; ")
    assert [reason.split(" is not a valid ")[0] for reason in reasons] == [f"x{number}" for number in range(len(cases))]


@pytest.mark.core
def test_decimals_in_base64_keep_every_digit(spark):
    check(
        spark,
        ("DECIMAL(12, 2)", base64_of(123), Decimal("1.23")),
        ("DECIMAL(12, 2)", base64_of(-1), Decimal("-0.01")),
        ("DECIMAL(12, 2)", base64_of(0), Decimal("0.00")),
        ("DECIMAL(38, 2)", base64_of(10**37), Decimal(10**35)),
        ("DECIMAL(38, 0)", base64_of(-(10**38) + 1), Decimal(-(10**38) + 1)),
        (Field("DECIMAL(12, 4)", "org.apache.kafka.connect.data.Decimal", scale=2), base64_of(123), Decimal("1.2300")),
        (Field("STRING", "Decimal", scale=3), base64_of(-(10**50) - 7), f"-1{'0' * 46}0.007"),
        (Field("STRING", "Decimal", scale=0), base64_of(2**200), str(2**200)),
        (Field("STRING", "Decimal", scale=0), base64_of(-(256**20)), str(-(256**20))),
        (Field("DECIMAL(20, 0)", "Decimal"), base64_of(2**64 - 1), Decimal(2**64 - 1)),
        (Field("DOUBLE", "Decimal", scale=1), base64_of(5), 0.5),
        (Field("BIGINT", "Decimal"), base64_of(2**63 - 1), 2**63 - 1),
    )


def test_decimals_that_carry_their_scale_keep_every_digit(spark):
    check(
        spark,
        ("DECIMAL(10, 2)", {"scale": 3, "value": base64_of(1230)}, Decimal("1.23")),
        ("DECIMAL(10, 2)", {"scale": -2, "value": base64_of(12)}, Decimal("1200.00")),
        (Field("STRING", "io.debezium.data.VariableScaleDecimal"), {"scale": 5, "value": base64_of(-12)}, "-0.00012"),
        (Field("STRING", "VariableScaleDecimal"), {"scale": -2, "value": base64_of(0)}, "0"),
    )


def test_decimals_as_text_or_as_doubles_are_numbers(spark):
    check(
        spark,
        ("DECIMAL(10, 2)", "12.50", Decimal("12.50")),
        ("DECIMAL(10, 2)", "1234", Decimal("1234.00")),
        ("STRING", "NAN", "NAN"),
        ("DECIMAL(10, 2)", "1E+2", Decimal("100.00")),
        ("DOUBLE", "NAN", pytest.approx(float("nan"), nan_ok=True)),
        ("DOUBLE", "POSITIVE_INFINITY", inf),
        ("FLOAT", "NEGATIVE_INFINITY", -inf),
        ("STRING", "POSITIVE_INFINITY", "POSITIVE_INFINITY"),
        decimals="string",
    )
    check(spark, ("DECIMAL(10, 5)", 1e-5, Decimal("0.00001")), ("DOUBLE", 1.1, 1.1), decimals="double")


def test_a_decimal_that_would_be_rounded_is_an_error_and_not_another_number(spark):
    check_misfits(
        spark,
        ("DECIMAL(10, 2)", {"scale": 3, "value": base64_of(1234)}),
        ("DECIMAL(12, 2)", base64_of(10**12)),
        ("DECIMAL(38, 0)", base64_of(10**38)),
        ("DECIMAL(12, 2)", "12.50"),  # of a connector in string mode, which the options do not say
        (Field("BIGINT", "Decimal"), base64_of(2**63)),
    )
    check_misfits(
        spark,
        ("DECIMAL(10, 2)", "12.555"),
        ("DECIMAL(10, 2)", "NAN"),
        ("DECIMAL(10, 2)", "POSITIVE_INFINITY"),
        ("BIGINT", "NEGATIVE_INFINITY"),
        decimals="string",
    )
    check_misfits(spark, ("DECIMAL(10, 2)", "Infinity"), ("DECIMAL(10, 2)", "-Infinity"), decimals="double")
    check_misfits(spark, ("DECIMAL(10, 4)", 1e-5), ("DECIMAL(10, 2)", 1e300), decimals="double")


def test_numbers_that_do_not_fit_are_errors(spark):
    check_misfits(
        spark,
        ("INT", 2**31),
        ("TINYINT", 300),
        ("BIGINT", 1.5),
        ("INT", True),
        ("BOOLEAN", "perhaps"),
        (Field("BOOLEAN", "io.debezium.data.Bits", length=2), "Ag=="),
        ("DOUBLE", "much"),
    )


def test_floating_point_numbers_that_are_none_or_infinite(spark):
    check(spark, ("DOUBLE", "Infinity", inf), ("FLOAT", "-Infinity", -inf), ("DOUBLE", 0.1, 0.1), ("FLOAT", 0.5, 0.5))
    check(spark, ("DOUBLE", 1e300, 1e300), ("FLOAT", 3.4e38, pytest.approx(3.4e38)), ("DOUBLE", 10**30, 1e30))
    # Too large is not infinite.
    check_misfits(spark, ("DOUBLE", "1e400"), ("FLOAT", 1e300), ("FLOAT", -1e39), ("FLOAT", 10**39))
    (value, bare), change = decode_values(spark, ("DOUBLE", "NaN"), ("DOUBLE", float("nan")))
    assert isnan(value)
    assert isnan(bare)
    assert change["error"] is None


def test_booleans_of_both_databases(spark):
    check(
        spark,
        ("BOOLEAN", True, True),
        ("BOOLEAN", 0, False),  # MySQL's TINYINT(1)
        (Field("BOOLEAN", "io.debezium.data.Bits"), "AQ==", True),
        (Field("BOOLEAN", "io.debezium.data.Bits"), "", False),
    )


@pytest.mark.core
def test_dates_and_timestamps_of_every_unit(spark):
    moment = at("2007-04-03T12:54:14.500001")
    to_millis = moment.replace(microsecond=500000)
    check(
        spark,
        ("DATE", 19000, date(2022, 1, 8)),
        (Field("DATE", "org.apache.kafka.connect.data.Date"), -1, date(1969, 12, 31)),
        (Field("DATE", "io.debezium.time.IsoDate"), "2024-02-29Z", date(2024, 2, 29)),
        (Field("STRING", "io.debezium.time.Date"), 19000, "2022-01-08"),
        ("TIMESTAMP_NTZ", 1175604854500001, moment),
        (Field("TIMESTAMP_NTZ", "io.debezium.time.Timestamp"), 1175604854500, to_millis),
        (Field("TIMESTAMP_NTZ", "io.debezium.time.MicroTimestamp"), 1175604854500001, moment),
        (Field("TIMESTAMP_NTZ", "io.debezium.time.NanoTimestamp"), 1175604854500001999, moment),
        (Field("TIMESTAMP", "org.apache.kafka.connect.data.Timestamp"), 1175604854500, to_millis),
        (Field("TIMESTAMP_NTZ", "Timestamp"), -1, at("1969-12-31T23:59:59.999000")),
        (Field("DATE", "Timestamp"), -1, date(1969, 12, 31)),
        (Field("STRING", "MicroTimestamp"), 1175604854500001, "2007-04-03T12:54:14.500001"),
        (Field("BIGINT", "MicroTimestamp"), 1175604854500001, 1175604854500001),
        (Field("TIMESTAMP", "io.debezium.time.ZonedTimestamp"), "2007-04-03T12:54:14.500001Z", moment),
        (Field("TIMESTAMP", "ZonedTimestamp"), "2007-04-03T14:54:14.500001+02:00", moment),
        (Field("TIMESTAMP_NTZ", "ZonedTimestamp"), "2007-04-03T14:54:14.500001+02:00", moment),
        (Field("TIMESTAMP_NTZ", "io.debezium.time.IsoTimestamp"), "2007-04-03T12:54:14.500001", moment),
    )
    check(spark, ("TIMESTAMP_NTZ", 1175604854500, to_millis), timestamp_unit="ms")


def test_timestamps_without_a_zone_do_not_depend_on_the_session_s(spark):
    message = envelope("c", {"id": 1, "a": 1711846800000000, "b": "2024-03-31T01:00:00.000000Z"})
    records = frame_of(spark, record({"id": 1}, message))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = changes(records, "id INT, a TIMESTAMP_NTZ, b TIMESTAMP_NTZ", ["id"]).select("a", "b")
        assert frame.collect() == [(at("2024-03-31T01:00:00"), at("2024-03-31T01:00:00"))]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_infinite_dates_and_timestamps_sort_last_and_first_and_are_no_other_value(spark):
    fields = {
        "stream": ("DATE", 2146033979),
        "old_stream": ("DATE", -2147472692),
        "snapshot": ("DATE", -622191234),
        "negative": ("DATE", -2147472691),
        "negative_snapshot": ("DATE", -625821272),
        "micros": ("TIMESTAMP_NTZ", 9223372036825200000),
        "negative_micros": ("TIMESTAMP_NTZ", -9223372036832400000),
        "millis": (Field("TIMESTAMP_NTZ", "Timestamp"), 9223372036825200),
        "zoned": ("TIMESTAMP", "infinity"),
        "negative_zoned": ("TIMESTAMP", "-infinity"),
        "text": (Field("STRING", "MicroTimestamp"), 9223372036825200000),
        "date_text": (Field("STRING", "Date"), -2147472691),
    }
    message = envelope("c", {"id": 1, **{name: value for name, (_, value) in fields.items()}})
    columns = {"id": "INT", **{name: field for name, (field, _) in fields.items()}}
    decoded = changes(frame_of(spark, record({"id": 1}, message)), columns, ["id"])
    row = decoded.select(*[F.col(name).cast("string") for name in fields], "_change.error").first().asDict()
    last_date, first_date = "+5881580-07-11", "-5877641-06-23"
    assert row == {
        "stream": last_date,
        "old_stream": last_date,
        "snapshot": last_date,
        "negative": first_date,
        "negative_snapshot": first_date,
        "micros": LAST_TIMESTAMP,
        "negative_micros": FIRST_TIMESTAMP,
        "millis": LAST_TIMESTAMP,
        "zoned": LAST_TIMESTAMP,
        "negative_zoned": FIRST_TIMESTAMP,
        "text": "infinity",
        "date_text": "-infinity",
        "error": None,
    }


def test_a_time_of_day_is_no_part_of_a_date_and_no_point_in_time(spark):
    check_misfits(
        spark,
        ("DATE", "2026-01-02 23:59:00"),
        ("DATE", "2026-01-02T00:00:01Z"),
        ("DATE", "10:00:00"),
        ("TIMESTAMP", "10:00:00"),
        ("TIMESTAMP", "T9:30Z"),
        ("TIMESTAMP", "10:00:00-05:00"),
        ("TIMESTAMP_NTZ", "10:00:00"),
        ("TIMESTAMP_NTZ", "T10:00:00Z"),
    )
    check(
        spark,
        ("DATE", "2026-01-02T00:00:00Z", date(2026, 1, 2)),
        ("DATE", "2026-01-02 00:00:00", date(2026, 1, 2)),
        ("TIMESTAMP_NTZ", "2026-01-02 10:00:00", at("2026-01-02 10:00:00")),
    )


def test_dates_are_decoded_with_the_parser_of_earlier_releases_of_spark_too(spark):
    days = {"day": ("DATE", 20455), "text": ("DATE", "2026-01-02"), "as_text": (Field("STRING", "Date"), 20455)}
    message = envelope("c", {"id": 1, **{name: value for name, (_, value) in days.items()}})
    columns = {"id": "INT", **{name: field for name, (field, _) in days.items()}}
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        decoded = changes(frame_of(spark, record({"id": 1}, message)), columns, ["id"])
        row = decoded.select(*days, "_change.error").first()
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert tuple(row) == (date(2026, 1, 2), date(2026, 1, 2), "2026-01-02", None)


def test_points_in_time_at_the_ends_of_a_bigint_are_neither_wrapped_nor_infinite(spark):
    ends = {
        "Timestamp": (-(2**63) // 1000 + 1, 2**63 // 1000, 9223372036825201, -9223372036832401),
        "MicroTimestamp": (-(2**63), 2**63 - 1, 9223372036825200001, -9223372036832400001),
        "NanoTimestamp": (-(2**63) + 1, 2**63 - 2, -(2**63) + 808, 2**63 - 808),
    }
    micros_of = {"Timestamp": lambda n: n * 1000, "MicroTimestamp": lambda n: n, "NanoTimestamp": lambda n: n // 1000}
    cases = [(kind, value) for kind, values in ends.items() for value in values]
    fields = {f"x{n}": Field("TIMESTAMP", kind) for n, (kind, _) in enumerate(cases)}
    fields |= {f"n{n}": Field("TIMESTAMP_NTZ", kind) for n, (kind, _) in enumerate(cases)}
    fields |= {f"t{n}": Field("STRING", kind) for n, (kind, _) in enumerate(cases)}
    message = envelope("c", {"id": 1, **{f"{name}{n}": value for n, (_, value) in enumerate(cases) for name in "xnt"}})
    decoded = changes(frame_of(spark, record({"id": 1}, message)), {"id": "INT", **fields}, ["id"])
    micros = [F.unix_micros(f"x{n}").alias(f"m{n}") for n in range(len(cases))]
    texts = [F.col(f"n{n}").cast("string").alias(f"n{n}") for n in range(len(cases))]
    plain = [F.col(f"x{n}").cast("string").alias(f"x{n}") for n in range(len(cases))]
    row = decoded.select(*micros, *texts, *plain, *[f"t{n}" for n in range(len(cases))], "_change.error").first()
    assert row["error"] is None
    for n, (kind, value) in enumerate(cases):
        assert row[f"m{n}"] == micros_of[kind](value), (kind, value)
        assert row[f"n{n}"] == row[f"x{n}"], (kind, value)
        assert row[f"t{n}"] == row[f"x{n}"].replace(" ", "T"), (kind, value)


@pytest.mark.parametrize("sql_type", ["TIMESTAMP", "TIMESTAMP_NTZ", "STRING"])
def test_points_in_time_that_no_type_holds_are_errors(spark, sql_type):
    # What stands at the ends of nanoseconds is where a connector's conversion stopped, from any moment beyond.
    check_misfits(
        spark,
        (Field(sql_type, "Timestamp"), 2**63 // 1000 + 1),
        (Field(sql_type, "Timestamp"), -(2**63) // 1000),
        (Field(sql_type, "Timestamp"), 2**63 - 1),
        (Field(sql_type, "Timestamp"), -(2**63)),
        (Field(sql_type, "NanoTimestamp"), 2**63 - 1),
        (Field(sql_type, "NanoTimestamp"), -(2**63)),
        (Field(sql_type, "MicroTimestamp"), 2**63),
    )
    check_misfits(spark, (Field("STRING", "MicroTime"), -(2**63)), (Field("STRING", "Time"), 2**63 - 1))


def test_times_of_day_are_text_that_reads_as_a_time(spark):
    check(
        spark,
        (Field("STRING", "io.debezium.time.Time"), 45296789, "12:34:56.789000"),
        (Field("STRING", "org.apache.kafka.connect.data.Time"), 0, "00:00:00.000000"),
        (Field("STRING", "io.debezium.time.MicroTime"), 45296789001, "12:34:56.789001"),
        (Field("STRING", "io.debezium.time.NanoTime"), 45296789001999, "12:34:56.789001"),
        (Field("STRING", "MicroTime"), -3020399000000, "-838:59:59.000000"),  # MySQL's TIME is a span
        (Field("BIGINT", "MicroTime"), 45296789001, 45296789001),
        (Field("STRING", "io.debezium.time.ZonedTime"), "10:15:30.100000Z", "10:15:30.100000Z"),
        (Field("STRING", "io.debezium.time.IsoTime"), "10:15:30Z", "10:15:30Z"),
    )


def test_spans_and_years(spark):
    check(
        spark,
        (Field("INT", "io.debezium.time.Year"), 2024, 2024),
        (Field("BIGINT", "io.debezium.time.MicroDuration"), 2629800000000, 2629800000000),
        (Field("STRING", "io.debezium.time.Interval"), "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
    )


def test_text_of_every_kind_is_left_as_it_is(spark):
    texts = [
        (Field("STRING", "io.debezium.data.Uuid"), "c87383f4-b142-4de1-bc47-571849dc9b34"),
        (Field("STRING", "io.debezium.data.Json"), '{"b": 1, "a": [1.50, null]}'),
        (Field("STRING", "io.debezium.data.Xml"), "<a b='c'/>"),
        (Field("STRING", "io.debezium.data.Enum"), "it's"),
        (Field("STRING", "io.debezium.data.EnumSet"), "a,b"),
        ("STRING", "[1,10)"),
        ("STRING", "null"),
        ("STRING", ""),
        ("STRING", "  tab\tnew\nline \\ \u2028 日本語 🙂  "),
        ("VARCHAR(3)", "longer than three"),
    ]
    check(spark, *[(field, text, text) for field, text in texts])


def test_commas_in_values_of_an_enum(spark):
    """Debezium puts a backslash before them in what it reads from MySQL's log, and none in a snapshot."""
    enum = Field("STRING", "io.debezium.data.Enum")
    check(spark, (enum, "c\\,d", "c,d"), (enum, "c,d", "c,d"), ("STRING", "c\\,d", "c\\,d"))


def test_json_as_variant_can_be_asked_for_its_parts(spark):
    message = envelope("c", {"id": 1, "doc": '{"a": {"b": 2.5}}'})
    decoded = changes(frame_of(spark, record({"id": 1}, message)), "id INT, doc VARIANT", ["id"])
    assert decoded.select(F.expr("variant_get(doc, '$.a.b', 'double')")).first()[0] == 2.5
    check_misfits(spark, ("VARIANT", "{broken"))


def test_bytes_in_each_spelling(spark):
    check(spark, ("BINARY", "AQL/", b"\x01\x02\xff"), ("BINARY", "", b""))
    check(spark, ("BINARY", "_-8=", b"\xff\xef"), binary="base64-url-safe")
    check(spark, ("BINARY", "ff00", b"\xff\x00"), binary="hex")
    check_misfits(spark, ("BINARY", "%%"))


def test_bit_strings_keep_their_zeros(spark):
    check(
        spark,
        (Field("STRING", "io.debezium.data.Bits", length=5), "BQ==", "00101"),
        (Field("STRING", "io.debezium.data.Bits", length=12), "AQI=", "001000000001"),
        (Field("STRING", "io.debezium.data.Bits", length=5), "", "00000"),
        # Zero bytes at the end say nothing.
        (Field("STRING", "io.debezium.data.Bits", length=5), "BQAA", "00101"),
        (Field("STRING", "io.debezium.data.Bits"), base64.b64encode(b"\xff" * 9).decode(), "1" * 72),
        (Field("BIGINT", "io.debezium.data.Bits", length=12), "AQI=", 513),
        (Field("BIGINT", "io.debezium.data.Bits"), base64.b64encode(b"\1" + bytes(20)).decode(), 1),
        (Field("BIGINT", "io.debezium.data.Bits"), "", 0),
        (Field("BINARY", "io.debezium.data.Bits", length=12), "AQI=", b"\x01\x02"),
    )


def test_bit_strings_that_are_too_long_are_errors(spark):
    check_misfits(
        spark,
        (Field("STRING", "io.debezium.data.Bits", length=12), base64.b64encode(b"\xff" * 3).decode()),
        (Field("STRING", "io.debezium.data.Bits", length=12), base64.b64encode(b"\1\0\1").decode()),
        (Field("STRING", "io.debezium.data.Bits", length=12), base64.b64encode(b"\xff\xff").decode()),
        (Field("BIGINT", "io.debezium.data.Bits"), base64.b64encode(b"\xff" * 8).decode()),
        (Field("BIGINT", "io.debezium.data.Bits"), base64.b64encode(b"\xff" * 9).decode()),
        (Field("BOOLEAN", "io.debezium.data.Bits"), base64.b64encode(bytes(8) + b"\1").decode()),
    )


def test_arrays_are_decoded_to_the_depth(spark):
    check(
        spark,
        ("ARRAY<STRING>", ["a", None, 'b"c'], ["a", None, 'b"c']),
        ("ARRAY<INT>", [], []),
        ("ARRAY<ARRAY<INT>>", [[1, 2], None, [None]], [[1, 2], None, [None]]),
        ("ARRAY<DECIMAL(5, 2)>", [base64_of(12345), None], [Decimal("123.45"), None]),
        ("ARRAY<DATE>", [0, 1], [date(1970, 1, 1), date(1970, 1, 2)]),
        (Field("ARRAY<TIMESTAMP_NTZ>", "io.debezium.time.Timestamp"), [1000], [at("1970-01-01T00:00:01")]),
        ("ARRAY<BINARY>", ["AQI="], [b"\x01\x02"]),
    )
    check_misfits(spark, ("ARRAY<INT>", [1, "x"]), ("ARRAY<STRING>", "no array"), ("ARRAY<ARRAY<INT>>", [[1], ["y"]]))


def test_maps_in_both_modes_of_hstore(spark):
    check(
        spark,
        ("MAP<STRING, STRING>", '{"a":"1","b":null}', {"a": "1", "b": None}),
        ("MAP<STRING, STRING>", {"a": "1"}, {"a": "1"}),
        ("MAP<STRING, INT>", {"a": 1, "b": None}, {"a": 1, "b": None}),
    )
    check_misfits(spark, ("MAP<STRING, INT>", {"a": "x"}), ("MAP<STRING, STRING>", "no map"))


def test_points_and_geometries_are_structs(spark):
    point = {"x": 1.5, "y": -2.0, "wkb": "AQI=", "srid": None}
    names = {"x": 1, "X": 2, "a.b`c d": base64_of(3)}
    check(
        spark,
        ("STRUCT<x: DOUBLE, y: DOUBLE, wkb: BINARY, srid: INT>", point, (1.5, -2.0, b"\x01\x02", None)),
        ("STRUCT<x: INT, X: INT, `a.b``c d`: DECIMAL(4, 1)>", names, (1, 2, Decimal("0.3"))),
    )
    check_misfits(spark, ("STRUCT<x: DOUBLE>", {"x": "q"}), ("STRUCT<x: DOUBLE>", "no struct"))


@pytest.mark.core
def test_a_value_that_was_not_sent_is_not_taken_for_one_in_any_type(spark):
    as_bytes = base64.b64encode(PLACEHOLDER.encode()).decode()
    nowhere = base64.b64encode(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")).decode()
    cases = [
        ("STRING", PLACEHOLDER),
        ("BINARY", as_bytes),
        ("ARRAY<STRING>", [PLACEHOLDER]),
        ("ARRAY<INT>", [ord(letter) for letter in PLACEHOLDER]),
        ("ARRAY<BIGINT>", [ord(letter) for letter in PLACEHOLDER]),
        ("ARRAY<BINARY>", [as_bytes]),
        ("ARRAY<STRING>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),  # uuid[]
        ("VARIANT", PLACEHOLDER),
        ("MAP<STRING, STRING>", {PLACEHOLDER: PLACEHOLDER}),
        ("MAP<STRING, STRING>", json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))),
        ("DECIMAL(5, 2)", PLACEHOLDER),
        ("STRUCT<wkb: BINARY, srid: INT>", {"wkb": nowhere, "srid": 4326}),
    ]
    values, change = decode_values(spark, *cases)
    assert values == [None] * len(cases)
    assert change["unavailable"] == [f"x{number}" for number in range(len(cases))]
    assert change["error"] is None


def test_a_placeholder_of_the_user_s_own_is_known(spark):
    for placeholder in ("?!", "hex:3f21"):
        values, change = decode_values(
            spark, ("STRING", "?!"), ("BINARY", "PyE="), ("STRING", PLACEHOLDER), placeholder=placeholder
        )
        assert values == [None, None, PLACEHOLDER]
        assert change["unavailable"] == ["x0", "x1"]


def test_two_placeholders_in_a_list_are_a_value(spark):
    check(spark, ("ARRAY<STRING>", [PLACEHOLDER, PLACEHOLDER], [PLACEHOLDER, PLACEHOLDER]))
