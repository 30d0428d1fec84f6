"""Pipelines over records in Avro, with a schema registry in this process."""

import base64

import pytest

from stream_merge import debezium
from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.pipeline import DecodeSettings, TableSettings
from stream_merge.cli.query.decoding import Decoder
from tests.debezium.avro import in_avro
from tests.debezium.records import frame_of
from tests.debezium.registry_server import serving
from tests.debezium.test_learnt_columns import ID, decimal, field, wrapped

CUSTOMERS = [ID, field("name", "string", optional=False), decimal("balance", 8, 2)]


@pytest.fixture
def server():
    with serving() as registry:
        yield registry


@pytest.fixture
def land(avro_spark, tmp_path):
    """Return a function that lands records as a file, and gives the source."""

    def write(*records):
        frame_of(avro_spark, *records).write.mode("append").parquet(str(tmp_path / "landing"))
        schema = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
        return {"format": "files", "path": str(tmp_path / "landing"), "file_format": "parquet", "schema": schema}

    return write


def on(topic, sent):
    return (*sent[:2], topic, *sent[3:])


def rows_of(spark, path, *columns):
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).selectExpr(*columns).collect())


def test_topics_in_avro_go_to_their_tables_and_damaged_records_to_the_quarantine(
    avro_spark,
    server,
    land,
    run_pipeline,
    tmp_path,
):
    server.require_basic("reader", "s3cret")
    wide = [
        ID,
        field("name", "string", optional=False),
        decimal("balance", 12, 4),
        field("tier", "string", default="free"),
    ]
    notes = [ID, field("text", "string")]
    ann = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 1, "name": "Ann", "balance": "ZA=="}, 1))
    records = [
        ann,
        in_avro(server, wrapped(wide, "u", {"id": 1, "name": "Ann", "balance": "MDk=", "tier": "gold"}, 2)),
        in_avro(server, wrapped(CUSTOMERS, "c", {"id": 2, "name": "Bob", "balance": None}, 3, key={"id": 2})),
        (ann[0], ann[1][:-2], *ann[2:4], 4, *ann[5:]),
        on("shop.public.notes", in_avro(server, wrapped(notes, "c", {"id": 7, "text": ""}, key={"id": 7}))),
        # The delete of the second, and the record without a value behind it.
        in_avro(server, wrapped(CUSTOMERS, "d", None, 5, key={"id": 2})),
        (in_avro(server, wrapped(CUSTOMERS, "d", None, 6, key={"id": 2}))[0], None, *ann[2:4], 6, *ann[5:]),
    ]
    table = {
        "source": r"re:shop\.public\.(?P<table>\w+)",
        "target": f"{tmp_path}/lake/{{table}}",
        "quarantine": f"{tmp_path}/rejected/{{table}}",
    }
    registry = {"url": server.url, "user": "reader", "password": "s3cret"}
    options = {"decode": "debezium", "pipeline": {"route_by": "topic"}, "registry": registry}
    run_pipeline(land(*records), table, **options)
    columns = ("id", "name", "CAST(balance AS STRING)", "tier")
    assert rows_of(avro_spark, tmp_path / "lake/t", *columns) == [(1, "Ann", "1.2345", "gold")]
    assert rows_of(avro_spark, tmp_path / "lake/notes", "id", "text") == [(7, "")]
    (aside,) = avro_spark.read.format("delta").load(f"{tmp_path}/rejected/t").collect()
    assert "it is not Avro of schema" in str(aside)
    assert base64.b64encode(ann[1][:-2]).decode() in str(aside)


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
