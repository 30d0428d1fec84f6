"""Pipelines over records in Avro, with a schema registry in this process."""

import base64

import pytest

from stream_merge import debezium
from stream_merge.cli.discover.connection import read_connection
from stream_merge.cli.discover.findings import Family, examine
from stream_merge.cli.discover.sample import decoded_records
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.pipeline import DecodeSettings, TableSettings
from stream_merge.cli.query.decoding import Decoder
from stream_merge.cli.run.replay import Request, replay
from tests.debezium.avro import in_avro
from tests.debezium.records import frame_of
from tests.debezium.registry_server import serving
from tests.debezium.test_learnt_columns import ID, decimal, field, wrapped

RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
BOB = {"id": 2}
LATE = 99
CUSTOMERS = [ID, field("name", "string", optional=False), decimal("balance", 8, 2)]


@pytest.fixture
def server():
    with serving() as registry:
        yield registry


def test_records_in_avro_go_to_their_table_or_to_the_quarantine_and_from_there(
    avro_spark, server, run_pipeline, make_pipeline, tmp_path
):
    server.require_basic("reader", "s3cret")
    wide = [*CUSTOMERS[:2], decimal("balance", 12, 4), field("tier", "string", default="free")]
    ann = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 1, "name": "Ann", "balance": "ZA=="}, 1))
    key, value, *rest = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 2, "name": "Bob", "balance": None}, 3, key=BOB))
    late = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 3, "name": "Cleo", "balance": None}, 7, key={"id": 3}))
    records = [
        ann,
        in_avro(server, wrapped(wide, "u", {"id": 1, "name": "Ann", "balance": "MDk=", "tier": "gold"}, 2)),
        (key, value, *rest),
        (ann[0], ann[1][:-2], *ann[2:4], 4, *ann[5:]),
        # With an id that the registry does not have yet.
        (late[0], b"\0" + LATE.to_bytes(4, "big") + late[1][5:], *late[2:]),
        # The delete of the third, and the record without a value behind it.
        in_avro(server, wrapped(CUSTOMERS, "d", None, 5, key=BOB)),
        (key, None, *rest[:2], 6, *rest[3:]),
    ]
    frame_of(avro_spark, *records).write.parquet(str(tmp_path / "landing"))
    source = {"format": "files", "path": str(tmp_path / "landing"), "file_format": "parquet", "schema": RECORDS}
    table = {"target": str(tmp_path / "t"), "quarantine": str(tmp_path / "rejected")}
    registry = {"url": server.url, "user": "reader", "password": "s3cret"}
    run_pipeline(source, table, decode="debezium", registry=registry)
    rows = avro_spark.read.format("delta").load(table["target"])
    assert [tuple(row) for row in rows.selectExpr("id", "name", "CAST(balance AS STRING)", "tier").collect()] == [
        (1, "Ann", "1.2345", "gold")
    ]
    damaged, untold = avro_spark.read.format("delta").load(table["quarantine"]).orderBy("offset").collect()
    assert "it is not Avro of schema" in str(damaged)
    assert base64.b64encode(ann[1][:-2]).decode() in str(damaged)
    assert f"the registry has no schema {LATE}" in str(untold)

    server.copy(int.from_bytes(late[1][1:5], "big"), LATE)
    pipeline = make_pipeline(source, table, decode="debezium", registry=registry)
    (told,) = replay(avro_spark, pipeline, Request())
    assert str(told).endswith("2 records were read again: 1 inserted, 0 updated, 0 deleted, 1 set aside again.")
    assert {row["name"] for row in avro_spark.read.format("delta").load(table["target"]).collect()} == {"Ann", "Cleo"}


def test_a_batch_of_damaged_records_of_a_table_that_nobody_knows_is_not_left_out(avro_spark, server, tmp_path):
    key, value, *rest = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 1, "name": "Ann", "balance": None}))
    records = frame_of(avro_spark, (key, value[:-2], *rest))
    target = str(tmp_path / "t")
    with pytest.raises(
        PipelineError, match=r"^The columns of t are not known: its messages are in Avro\. Name the reg"
    ):
        Decoder(DecodeSettings(format="debezium"), TableSettings(source="t", target=target), target, "t")(records)
    decoder = Decoder(DecodeSettings(format="debezium"), TableSettings(source="t", target=target), target, "t")
    with pytest.raises(PipelineError, match=r"^The columns of t are not known: the value cannot be decoded: it is not"):
        decoder(debezium.from_registry(records, debezium.SchemaRegistry(url=server.url)))


def test_init_tells_topics_in_avro_with_their_registry(avro_spark, server):
    server.require_basic("reader", "s3cret")
    ann = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 1, "name": "Ann", "balance": "ZA=="}, 1))
    unknown = (ann[0], b"\0" + LATE.to_bytes(4, "big") + ann[1][5:], *ann[2:])
    login = ("registry.user=reader", "registry.password=${PASSWORD}")
    given = {"bootstrap_servers": "localhost:9092", "lake": "./lake", "environ": {"PASSWORD": "s3cret"}}
    connection = read_connection(options=login, registry=server.url, **given)

    def found(connection, *records):
        return examine("shop.public.t", list(decoded_records(frame_of(avro_spark, *records), connection)))

    finding = found(connection, ann)
    assert (finding.family, finding.faults, finding.keys) == (Family.DETECTED, (), ("id",))
    assert finding.summary == "envelopes of Debezium in Avro"
    assert finding.columns == {"id": "BIGINT", "name": "STRING", "balance": "DECIMAL(8,2)"}
    assert finding.modes == {"decimal.handling.mode": "precise"}
    assert found(connection, ann, unknown).faults == (
        f"1 of 2 records are in Avro, and the value cannot be decoded: the registry has no schema {LATE}",
    )
    without = read_connection(options=(), registry=None, **given)
    assert found(without, ann).faults == (
        "1 of 1 records are in Avro, whose schemas a registry has; name it with --registry, and run init again",
    )
