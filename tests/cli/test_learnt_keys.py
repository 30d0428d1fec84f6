"""A pattern for the tables of a database: their keys are not in the file, but learnt from the records."""

import pytest

from stream_merge.cli.checks.explain import explain
from stream_merge.cli.errors import PipelineError
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record, with_schema
from tests.debezium.test_into_a_table import KEY
from tests.debezium.test_learnt_keys import of

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
OWN = ("_stream_merge_sequence", "_stream_merge_column_sequences", "_stream_merge_row_id")
INT, TEXT = {"type": "int64", "optional": True}, {"type": "string", "optional": True}
COLUMNS = {
    "customers": {"id": INT, "name": TEXT},
    "items": {"order id": INT, "line`no": INT, "note": TEXT},
    "visits": {"page": TEXT, "seconds": INT},
    "gone": {"code": TEXT, "v": INT},
}


def sent(table, key, op, after=None, before=None, lsn=1, *, has_value=True, **headers):
    """Return a record of a table as the converter writes it with `schemas.enable=true`."""
    columns = [{"field": name, **kind} for name, kind in COLUMNS[table].items()]
    row = {"type": "struct", "field": "after", "optional": True, "fields": columns}
    parts = [row, {"field": "op", "type": "string"}, {"type": "struct", "field": "source", "fields": []}]
    members = [{"field": name, **COLUMNS[table][name]} for name in key or ()]
    value = with_schema(parts, envelope(op, after, before, lsn=lsn)) if has_value else None
    return of(table, key and with_schema(members, key), value, lsn, **headers)


@pytest.fixture
def land(spark, tmp_path):
    """Return a function that lands records as a file of the source, and gives the source."""

    def write(*records):
        landing = tmp_path / "landing"
        number = len([*landing.glob("*.parquet")]) if landing.exists() else 0
        frame_of(spark, *records).write.parquet(str(tmp_path / f"written-{number}"))
        landing.mkdir(exist_ok=True)
        (file,) = (tmp_path / f"written-{number}").glob("*.parquet")
        file.rename(landing / f"{number}.parquet")
        return {"format": "files", "path": str(landing), "file_format": "parquet", "schema": RECORDS}

    return write


def test_a_database_is_one_section(spark, run_pipeline, land, make_pipeline, tmp_path):
    tables = (
        # Its messages have no schema part.
        {"source": "shop.public.plain", "target": f"{tmp_path}/lake/plain", "columns": "`a b` INT, c STRING"},
        {"source": r"re:shop\.public\.(?P<table>\w+)", "target": f"{tmp_path}/lake/{{table}}"},
    )
    options = {"decode": "debezium", "pipeline": {"route_by": "topic"}}

    def rows_of(table):
        rows = spark.read.format("delta").load(f"{tmp_path}/lake/{table}").drop(*OWN)
        return sorted(tuple(row) for row in rows.collect())

    # This table is there, with its key in another spelling.
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/lake/customers` (ID BIGINT, name STRING) USING delta")
    first, second = ({"order id": 1, "line`no": n, "note": f"n{n}"} for n in (1, 2))
    keys = [{name: row[name] for name in ("order id", "line`no")} for row in (first, second)]
    visit = {"page": "/", "seconds": 3}
    source = land(
        sent("customers", {"id": 1}, "c", {"id": 1, "name": "a"}),
        sent("items", keys[0], "c", first),
        sent("items", keys[1], "c", second),
        sent("visits", None, "c", visit, lsn=1),
        sent("visits", None, "c", visit, lsn=2),
        # Of a table whose first micro-batch has only deletes, and of one that has only what follows them.
        sent("gone", {"code": "x"}, "d", None, {"code": "x", "v": 1}, 9),
        sent("gone", {"code": "x"}, "d", has_value=False),
        of("quiet", KEY, None),
        of("plain", {"a b": 1}, envelope("c", {"a b": 1, "c": "c"}, lsn=1)),
    )
    result = run_pipeline(source, *tables, **options)
    assert sorted(name.rpartition("/")[2] for name in result.tables) == [
        "customers",
        "gone",
        "items",
        "plain",
        "visits",
    ]
    assert rows_of("items") == [(1, 1, "n1"), (1, 2, "n2")]
    assert rows_of("visits") == [("/", 3)] * 2
    assert rows_of("gone") == []

    # A new process, whose first records tell few keys.
    moved = {**second, "line`no": 3, "note": PLACEHOLDER}
    new = {"order id": 1, "line`no": 3}
    source = land(
        sent("customers", None, "t", lsn=20),
        sent("items", keys[1], "d", None, second, 21, **{"__debezium.newkey": new}),
        sent("items", new, "c", moved, None, 21, **{"__debezium.oldkey": keys[1]}),
        sent("visits", None, "u", {**visit, "seconds": 4}, visit, 22),
        of("plain", None, envelope("t", lsn=20)),
    )
    run_pipeline(source, *tables, **options)
    assert (rows_of("customers"), rows_of("plain")) == ([], [])
    assert rows_of("items") == [(1, 1, "n1"), (1, 3, "n2")]
    assert rows_of("visits") == [("/", 3), ("/", 4)]
    pipeline = make_pipeline(source, *tables, **options)
    (plan,) = explain(spark, pipeline, "shop.public.items", 100)
    assert "`line``no`" in plan

    # Other keys than those of the table.
    source = land(
        sent("customers", {"id": 2}, "c", {"id": 2, "name": "b"}, lsn=30),
        sent("items", {"order id": 1}, "c", first, lsn=30),
        of("plain", None, envelope("c", {"a b": 1, "c": "c"}, lsn=30)),
    )
    with pytest.raises(PipelineError) as caught:
        run_pipeline(source, *tables, **options)
    assert "lake/items was written with keys line`no, order id, and the sink now has order id" in str(caught.value)
    assert "lake/plain was written with keys a b, and the sink now has none" in str(caught.value)
    assert rows_of("customers") == [(2, "b")]


def test_a_table_whose_keys_cannot_be_learnt_is_refused_by_its_name(run_pipeline, land, tmp_path):
    source = land(record(7, envelope("c", {"id": 1})))
    table = {"target": f"{tmp_path}/t", "columns": "id INT"}
    with pytest.raises(PipelineError) as caught:
        run_pipeline(source, table, decode="debezium")
    assert "keys of the records of shop.public.t are not JSON objects of the key columns: 7" in str(caught.value)
