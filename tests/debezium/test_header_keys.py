"""The other key of a changed primary key, as each of Kafka Connect's header converters writes it."""

from decimal import Decimal

import pytest

from stream_merge.debezium import Field
from tests.debezium.records import base64_of, decode, envelope, record

COLUMNS = {
    "amount": "DECIMAL(20, 4)",
    "whole": Field("DECIMAL(10, 0)", "org.apache.kafka.connect.data.Decimal"),
    "long": Field("STRING", "org.apache.kafka.connect.data.Decimal", scale=2),
    'q"\\.$1': "DECIMAL(4, 1)",
    "name": "STRING",
    "data": "BINARY",
    "real": "DOUBLE",
}
OLD = {
    "amount": Decimal("9999999999999999.9999"),
    "whole": Decimal(1234),
    "long": f"-1{'0' * 50}.50",
    'q"\\.$1': Decimal("-0.5"),
    "name": 'tab\t, line\n, "amount":7, \\ "}',
    "data": b"1234",
    "real": float("inf"),
}
JSON = {
    "amount": base64_of(10**20 - 1),
    "whole": base64_of(1234),
    "long": base64_of(-(10**52) - 50),
    'q"\\.$1': base64_of(-5),
    "name": OLD["name"],
    "data": "MTIzNA==",
    "real": "Infinity",
}
NEW = {**JSON, "amount": base64_of(0), "name": "new"}
SIMPLE = (
    '{"amount":9999999999999999.9999,"whole":1234,"long":-1' + "0" * 50 + '.50,"q\\"\\\\.$1":-0.5,'
    '"name":"tab\t, line\n, \\"amount\\":7, \\\\ \\"}","data":"MTIzNA==","real":Infinity}'
)


@pytest.mark.parametrize("header", [SIMPLE.encode(), JSON], ids=["SimpleHeaderConverter", "JsonConverter"])
def test_the_other_key_is_that_of_the_record_s_key(spark, header):
    create = record(NEW, envelope("c", NEW), **{"__debezium.oldkey": header})
    delete = record(NEW, envelope("d", None, NEW), 1, **{"__debezium.newkey": header})
    created, deleted = decode(spark, create, delete, columns=COLUMNS, keys=list(COLUMNS))
    assert (created["_change"]["error"], deleted["_change"]["error"]) == (None, None)
    assert created["_change"]["old_key"].asDict() == OLD
    assert deleted["_change"]["new_key"].asDict() == OLD
    assert created["amount"] == 0


def test_numbers_of_other_modes_are_read_as_they_are_in_the_key(spark):
    key = {"n": "-1.50", "x": "1"}
    created = record(key, envelope("c", key), **{"__debezium.oldkey": b'{"n":"12.50","x":"2"}'})
    (row,) = decode(spark, created, columns={"n": "DECIMAL(4, 2)", "x": "STRING"}, keys=["n", "x"], decimals="string")
    assert (row["_change"]["error"], row["_change"]["old_key"].asDict()) == (None, {"n": Decimal("12.50"), "x": "2"})
    key = {"n": -1.5}
    created = record(key, envelope("c", key), **{"__debezium.oldkey": b'{"n":1.0E20}'})
    (row,) = decode(spark, created, columns={"n": "DOUBLE"}, keys=["n"], decimals="double")
    assert (row["_change"]["error"], row["_change"]["old_key"]["n"]) == (None, 1e20)


def test_a_number_that_does_not_fit_is_an_error(spark):
    key = {"n": base64_of(1)}
    created = record(key, envelope("c", key), **{"__debezium.oldkey": b'{"n":1.234}'})
    (row,) = decode(spark, created, columns="n DECIMAL(10, 2)", keys=["n"])
    assert row["_change"]["error"] == "old key's n is not a valid decimal(10,2): 1.234"
