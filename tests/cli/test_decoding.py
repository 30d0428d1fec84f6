"""Pipelines over real change data: what the file leaves out is learnt from the messages, or from the target."""

import json
import logging
import shutil

import pytest

from stream_merge.cli.errors import PipelineError
from stream_merge.cli.file.pipeline import DecodeSettings, TableSettings
from stream_merge.cli.query.decoding import Decoder
from tests.debezium import cloud_events
from tests.debezium.captures import CAPTURES, COLUMNS, EVENT_SCHEMA, SHOP, as_records, canonical_rows, read_expected
from tests.debezium.postgres_values import rows_of_spark, with_times_as_text
from tests.debezium.records import envelope, frame_of, record
from tests.debezium.test_odd_tables import expected_rows, tables_of

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
OWN = ("_stream_merge_sequence", "_stream_merge_column_sequences")


@pytest.fixture
def land_capture(spark, tmp_path):
    """Return a function that lands a part of a captured log as files of Kafka's records, and gives the source."""
    events = spark.read.schema(EVENT_SCHEMA)

    def land(name, condition, part):
        records = as_records(events.json(str(CAPTURES / name / "events.jsonl.gz"))).where(condition)
        written = tmp_path / f"written-{part}"
        records.coalesce(1).write.parquet(str(written))
        (tmp_path / "landing").mkdir(exist_ok=True)
        (file,) = written.glob("*.parquet")
        shutil.move(file, tmp_path / "landing" / f"{part}.parquet")
        return {"format": "files", "path": str(tmp_path / "landing"), "file_format": "parquet", "schema": RECORDS}

    return land


def rows_of(spark, path):
    rows = spark.read.format("delta").load(str(path)).drop(*OWN).collect()
    return canonical_rows((row.asDict() for row in rows), **SHOP)


@pytest.mark.long
@pytest.mark.slow
def test_columns_that_the_messages_tell_make_the_database_s_own_tables(spark, run_pipeline, land_capture, tmp_path):
    """The log has an ALTER TABLE ... ADD COLUMN phone, and keys of two kinds; it comes in two runs."""
    customers, items = "shopschema.public.customers", "shopschema.public.order_items"
    tables = (
        {
            "source": "re:shopschema[.]public[.](?P<table>customers)",
            "target": f"{tmp_path}/lake/{{table}}",
            "keys": ["id"],
            "merge_schema": True,
        },
        {"source": items, "target": f"{tmp_path}/lake/items", "keys": ["order_id", "line_no"]},
    )
    options = {"decode": "debezium", "pipeline": {"route_by": "topic"}}
    is_early = f"topic = '{customers}' AND offset < 100"
    first = run_pipeline(land_capture("small-schema", is_early, "a"), *tables, **options)
    assert list(first.tables) == [f"{tmp_path}/lake/customers"]
    is_late = f"topic = '{items}' OR (topic = '{customers}' AND offset >= 100)"
    second = run_pipeline(land_capture("small-schema", is_late, "b"), *tables, **options)
    assert list(second.tables) == [f"{tmp_path}/lake/customers", f"{tmp_path}/lake/items"]
    for table, path in (("customers", "customers"), ("order_items", "items")):
        assert rows_of(spark, tmp_path / "lake" / path) == read_expected(CAPTURES / "small-schema", table)
    assert "phone" in spark.read.format("delta").load(f"{tmp_path}/lake/customers").columns


@pytest.mark.long
def test_values_are_read_as_the_schema_of_their_own_message_spells_them(spark, run_pipeline, land_capture, tmp_path):
    """A log in which the scale of a decimal and the digits of a timestamp were altered, in one batch; then all of it
    again."""
    topic = "schema.public.evolving"
    table = {"target": str(tmp_path / "t"), "keys": ["id"]}
    columns = tables_of("odd-schema")[topic]["columns"]
    for part in ("a", "b"):
        run_pipeline(land_capture("odd-schema", f"topic = '{topic}'", part), table, decode="debezium")
        rows = spark.read.format("delta").load(str(tmp_path / "t"))
        rows = with_times_as_text(rows.select(*columns)).collect()
        assert rows_of_spark((row.asDict() for row in rows), columns) == expected_rows("odd-schema", topic)


@pytest.mark.parametrize("layout", ["json", "json-with-schema"])
def test_cloud_events_need_nothing_in_the_file(spark, run_pipeline, land_capture, tmp_path, layout):
    """With a schema part not even columns; of the three tables one has no key."""
    target = f"{tmp_path}/lake/{{table}}"
    tables = [{"source": r"re:.*[.](?P<table>\w+)", "target": target}]
    if layout == "json":
        ddl = {**cloud_events.COLUMNS, "customers": ", ".join(_ddl(cloud_events.COLUMNS["customers"]))}
        tables = [
            {"source": rf"re:.*[.](?P<table>{name})", "target": target, "columns": columns}
            for name, columns in ddl.items()
        ]
    options = {"decode": "debezium", "pipeline": {"route_by": "topic"}}
    for part, condition in (("a", "partition = 0"), ("b", "partition <> 0")):
        run_pipeline(land_capture(f"cloud-events/{layout}", condition, part), *tables, **options)
    for table in cloud_events.COLUMNS:
        rows = spark.read.format("delta").load(f"{tmp_path}/lake/{table}").drop(*OWN, "_stream_merge_row_id")
        if table == "customers":
            # Rows that were merged before this column was known lack the default with which it was added.
            rows = rows.na.fill("none", ["phone"])
        found = [row.asDict() for row in cloud_events.comparable(rows).collect()]
        assert cloud_events.canonical(found) == cloud_events.expected_rows(table)


def _ddl(columns):
    return [f"{name} {kind if isinstance(kind, str) else kind.type}" for name, kind in columns.items()]


def test_columns_of_cloud_events_that_cannot_be_read_are_not_asked_for(spark, tmp_path):
    event = cloud_events.event_of(envelope("c", {"id": 1}))
    bare = {name: value for name, value in event.items() if not name.startswith("iodebezium")}
    decoder = Decoder(DecodeSettings(format="debezium"), TableSettings(target="t", keys=["id"]), str(tmp_path), "t")
    for value, remedy in (
        (bare, "let the converter send it (extension.attributes.enable=true)."),
        ({**event, "datacontenttype": "application/avro", "data": "AAAAAAQ="}, "or [registry] in a pipeline file, or"),
    ):
        with pytest.raises(PipelineError) as caught:
            decoder(frame_of(spark, record({"id": 1}, value)))
        assert str(caught.value).startswith("The columns of the source are not known: the ")
        assert remedy in str(caught.value)


def test_deletes_of_cloud_events_are_not_taken_for_lost(spark, create_table, caplog):
    """Their columns are those of the table, and a record without a value follows each delete."""
    settings = TableSettings(target=create_table("id INT, name STRING"), keys=["id"])
    decoder = Decoder(DecodeSettings(format="debezium"), settings, settings.target, "t")
    deleted = record({"id": 1}, cloud_events.event_of(envelope("d", None, {"id": 1, "name": "a"})))
    (row,) = decoder(frame_of(spark, deleted, record({"id": 1}, None))).collect()
    assert (row["id"], row["_change"]["op"]) == (1, "d")
    assert "have no value and were dropped" not in caplog.text


def test_columns_that_nobody_tells_are_asked_for_and_then_those_of_the_target(
    spark, run_pipeline, land_capture, tmp_path
):
    table = {"target": str(tmp_path / "t"), "keys": ["id"]}
    source = land_capture("edge", "offset >= 0", "a")
    with pytest.raises(PipelineError) as caught:
        run_pipeline(source, table, decode="debezium")
    assert str(caught.value) == (
        "The columns of the source are not known: its messages have no schema part (schemas.enable=true), and the "
        f"table {tmp_path}/t does not exist. Give columns for this table in the pipeline file."
    )
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` ({COLUMNS['t']}) USING delta")
    run_pipeline(source, table, decode="debezium")
    assert rows_of(spark, tmp_path / "t") == read_expected(CAPTURES / "edge", "t")


def test_deletes_that_are_records_without_a_value_are_not_left_out_in_silence(spark, create_table, caplog):
    """Flattened with Debezium 3's default, `delete.tombstone.handling.mode=tombstone`, and without schemas."""
    path = create_table("id BIGINT, name STRING")
    table = TableSettings(target=path, keys=["id"])

    def decode(*records, **options):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "stream_merge.cli"):
            decoder = Decoder(DecodeSettings(format="debezium", **options), table, path, "t")
            for _ in range(2):
                changes = decoder(frame_of(spark, *records))
        return changes, [record.getMessage() for record in caplog.records]

    create, delete = record({"id": 1}, {"id": 1, "name": "a"}, 1), record({"id": 1}, None, 2)
    (message,) = decode(create, delete, layout="flattened")[1]
    assert message == (
        "1 records of the source have no value and were dropped. Its messages are flattened and have no __deleted, so "
        "these are the deletes: set keep_tombstones = true in [decode], with a new table if the messages have a "
        "position (add.fields)."
    )
    changes, messages = decode(create, delete, layout="flattened", keep_tombstones=True)
    assert not messages
    assert [row["_change"]["op"] for row in changes.collect()] == ["u", "d"]
    marked = record({"id": 1}, {"id": 1, "name": "a", "__deleted": "false"}, 1)
    for one in (marked, record({"id": 1}, envelope("c", {"id": 1}), 1)):
        assert not decode(one, delete)[1]


def test_a_change_feed_with_changed_keys_and_deletes_makes_the_same_table(spark, run_pipeline, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    spark.sql(
        f"CREATE TABLE delta.`{source}` (id INT, name STRING) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = "
        "true)"
    )
    spark.sql(f"INSERT INTO delta.`{source}` VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    feed = {"format": "delta", "table": str(source), "max_files_per_trigger": 1}
    table = {"target": str(copy), "keys": ["id"]}
    run_pipeline(feed, table)
    for statement in (
        "UPDATE {} SET id = id + 10 WHERE id < 3",
        "UPDATE {} SET name = 'd'",
        "DELETE FROM {} WHERE id = 3",
    ):
        spark.sql(statement.format(f"delta.`{source}`"))
    snapshot = run_pipeline(feed, table)
    rows = spark.read.format("delta").load(str(copy)).drop(*OWN).collect()
    assert sorted(tuple(row) for row in rows) == [(11, "d"), (12, "d")]
    assert 0 <= snapshot.sequence_lag(snapshot.tables[str(copy)]) < 600


@pytest.mark.parametrize("order", [{}, {"tie_break_by": ["name"]}], ids=["sequence", "tie break"])
def test_a_change_feed_in_an_order_of_its_own_deletes_no_row_that_the_source_has(spark, run_pipeline, tmp_path, order):
    """The row before an update is the newer one, or equal, if the update leaves the time alone or puts it back."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    spark.sql(
        f"CREATE TABLE delta.`{source}` (`the.id` INT, name STRING, at INT) USING delta TBLPROPERTIES "
        "(delta.enableChangeDataFeed = true)"
    )
    feed = {"format": "delta", "table": str(source), "max_files_per_trigger": 1}
    table = {"target": str(copy), "keys": ["The.ID"], "sequence_by": "at", **order}
    for statements, expected in (
        (["INSERT INTO {} VALUES (1, 'z', 5), (2, 'z', 5)", "INSERT INTO {} VALUES (3, 'z', 5), (4, 'z', 5)"], None),
        # As it was written last; with a tie-break by the name, the greater one counts.
        (["UPDATE {} SET name = 'a'"], [(key, "z" if order else "a", 5) for key in (1, 2, 3, 4)]),
        # Older than the rows, which stay.
        (["UPDATE {} SET name = 'old', at = 1 WHERE `the.id` < 3"], None),
        (["UPDATE {} SET name = 'y', at = 7"], [(key, "y", 7) for key in (1, 2, 3, 4)]),
        # Keys are swapped, and one is changed.
        (
            ["UPDATE {} SET `the.id` = CASE `the.id` WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 9 END WHERE `the.id` <> 4"],
            [(1, "y", 7), (2, "y", 7), (4, "y", 7), (9, "y", 7)],
        ),
        (["DELETE FROM {} WHERE `the.id` = 9"], [(1, "y", 7), (2, "y", 7), (4, "y", 7)]),
    ):
        before = [] if not copy.exists() else spark.read.format("delta").load(str(copy)).drop(*OWN).collect()
        for statement in statements:
            spark.sql(statement.format(f"delta.`{source}`"))
        run_pipeline(feed, table)
        rows = sorted(tuple(row) for row in spark.read.format("delta").load(str(copy)).drop(*OWN).collect())
        if expected is None:
            expected = sorted(map(tuple, before)) or [(key, "z", 5) for key in (1, 2, 3, 4)]
        assert rows == expected


def test_json_with_the_columns_of_the_target(spark, run_pipeline, tmp_path):
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (id INT, at TIMESTAMP, tags ARRAY<STRING>) USING delta")
    (tmp_path / "landing").mkdir()
    values = ['{"id": 1, "at": "2026-01-01T00:00:00Z", "tags": ["x"]}', '{"id": 2} ', "null", '{"id": 3', "[4]"]
    # Of several objects, Spark's parser returns the first.
    several = ['{"id": 5}\n{"id": 6}', '{"id": 7} no }', '{"id": 8}, {"id": 9}']
    values += [*several, '{"id": 10, "more": [{"a": {}}, {}], "text": "}{"}']
    lines = [json.dumps({"value": value, "offset": number}) for number, value in enumerate(values)]
    (tmp_path / "landing/1.json").write_text("\n".join(lines))
    source = {"format": "files", "path": str(tmp_path / "landing"), "schema": "value STRING, offset BIGINT"}
    table = {"target": str(tmp_path / "t"), "keys": ["id"], "quarantine": str(tmp_path / "rejected")}
    run_pipeline(source, table, decode="json")
    rows = spark.read.format("delta").load(str(tmp_path / "t")).selectExpr("id", "CAST(at AS STRING) AS at", "tags")
    assert sorted(tuple(row) for row in rows.collect()) == [
        (1, "2026-01-01 00:00:00", ["x"]),
        (2, None, None),
        (10, None, None),
    ]
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected")).select("offset", "value").collect()
    assert sorted(tuple(row) for row in rejected) == [
        (2, "null"),
        (3, '{"id": 3'),
        (4, "[4]"),
        *enumerate(several, start=5),
    ]
