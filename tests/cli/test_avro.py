"""Pipelines over records in Avro, with a schema registry in this process."""

import base64

import pytest

from stream_merge.cli.errors import PipelineError
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
    ann = in_avro(server, wrapped(CUSTOMERS, "c", {"id": 1, "name": "Ann", "balance": "ZA=="}, 1))
    records = [
        ann,
        in_avro(server, wrapped(wide, "u", {"id": 1, "name": "Ann", "balance": "MDk=", "tier": "gold"}, 2)),
        in_avro(server, wrapped(CUSTOMERS, "c", {"id": 2, "name": "Bob", "balance": None}, 3, key={"id": 2})),
        (ann[0], ann[1][:-2], *ann[2:4], 4, *ann[5:]),
        on("shop.public.notes", in_avro(server, wrapped([ID, field("text", "string")], "c", {"id": 7, "text": ""}))),
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
    # A batch of damaged records alone, of a table that nobody knows, is not left out.
    with pytest.raises(PipelineError, match=r"columns of shop\.public\.new are not known: the value cannot"):
        run_pipeline(land(on("shop.public.new", (ann[0], ann[1][:-2], *ann[2:]))), table, **options)
