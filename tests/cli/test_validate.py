"""`validate`: the file against the library, and with Spark against source, tables and checkpoint; every fault with its
line."""

import json
from pathlib import Path

import pytest

from stream_merge import merge_sink
from stream_merge.cli.checks.validate import validate
from stream_merge.cli.file.load import PipelineFileError, load_pipeline
from tests.debezium.avro import in_avro
from tests.debezium.records import frame_of
from tests.debezium.registry_server import serving
from tests.debezium.test_learnt_columns import ID, field, wrapped

PIPELINE = '[pipeline]\ncheckpoint = "./checkpoints/shop"\n'
KAFKA = '[source]\nformat = "kafka"\nbootstrap_servers = "127.0.0.1:1"\ntopics = ["orders"]\n'
FILES = '[source]\nformat = "files"\npath = "./landing"\nschema = "id BIGINT, name STRING, at BIGINT"\n'
RECORDS = (
    '[source]\nformat = "files"\npath = "./landing"\n'
    'schema = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"\n'
)
AVRO_RECORDS = (
    '[source]\nformat = "files"\npath = "./landing"\nfile_format = "parquet"\n'
    'schema = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"\n'
)
DELTA = '[source]\nformat = "delta"\ntable = "./bronze"\n'
DEBEZIUM = '[decode]\nformat = "debezium"\n'
TABLE = '[[tables]]\ntarget = "./lake/orders"\nkeys = ["id"]\n'


@pytest.fixture
def faults_of(tmp_path, monkeypatch):
    """Return a function that gives the lines that are said of a text, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def find(text, spark=None, **environ):
        path = Path("pipeline.toml")
        path.write_text(text)
        return [fault.text(path) for fault in validate(load_pipeline(path, environ), spark)]

    return find


@pytest.fixture
def here(tmp_path, monkeypatch, spark):
    """Return the folder that a pipeline's relative paths are taken from: for Spark that in which its JVM was
    started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def find(here, spark):
    """Return a function that gives the lines that are said of a text; `./` in it is the test's folder."""

    def find_faults(text, **environ):
        path = here / "pipeline.toml"
        path.write_text(text.replace('"./', f'"{here}/'))
        lines = [fault.text(Path("pipeline.toml")) for fault in validate(load_pipeline(path, environ), spark)]
        return [line.replace(f"{here}/", "./") for line in lines]

    return find_faults


@pytest.fixture
def land(here):
    """Return a function that writes records as a file of JSON lines into the landing folder."""

    def write(*records):
        (here / "landing").mkdir(exist_ok=True)
        text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
        (here / "landing" / f"{len(list((here / 'landing').iterdir()))}.json").write_text(text)

    return write


def event(offset, row, topic="shop.orders", key=None, **fields):
    """Return a record of Kafka with an event of Debezium."""
    body = {
        "before": None,
        "after": row,
        "source": {"lsn": offset, "ts_ms": offset},
        "op": "c",
        "ts_ms": offset,
        **fields,
    }
    key = json.dumps({"id": row["id"]} if key is None else key)
    return {"key": key, "value": json.dumps(body), "topic": topic, "partition": 0, "offset": offset}


# Without Spark


def test_a_good_file_has_no_fault(faults_of):
    assert faults_of(PIPELINE + KAFKA + DEBEZIUM + TABLE) == []
    assert faults_of(PIPELINE + FILES + TABLE) == []
    assert faults_of(PIPELINE + DELTA + TABLE) == []


def test_all_faults_of_the_merge_options_are_told(faults_of):
    text = PIPELINE + FILES + TABLE.replace('["id"]', '["id", "ID", "id"]')
    text += 'sequence_by = ["at", "at"]\nquarantine = "./lake/orders"\n'
    other = text.replace("landing", "other")
    assert faults_of(other.replace('./lake/orders"\nkeys', 'lake.orders"\nkeys').replace("./lake/orders", "./bad")) == [
        "pipeline.toml:9: tables[0].keys: keys names a column twice: id, ID, id",
        "pipeline.toml:10: tables[0].sequence_by: sequence_by names a column twice: at, at",
    ]


def test_a_table_without_a_key_has_what_it_takes(faults_of):
    text = PIPELINE + KAFKA + DEBEZIUM + TABLE.replace('["id"]', "[]")
    assert faults_of(text) == []
    where = "pipeline.toml:12: tables[0].tombstone_retention"
    assert faults_of(text + 'tombstone_retention = "0 days"\nignore_null_updates = true\n') == [
        f"{where}: before needs a tombstone_retention: a removal waits for a row that arrives late",
        f"{where}: truncate_when needs sequence_by and a tombstone_retention: rows newer than the truncate stay",
        "pipeline.toml:13: tables[0].ignore_null_updates: ignore_null_updates needs keys, and a sink with before "
        "has none; leave it out",
    ]


def test_targets_that_metrics_cannot_tell_apart(faults_of):
    text = PIPELINE + KAFKA.replace('["orders"]', '["orders", "items", "old"]') + DEBEZIUM
    for source, target in (("orders", "${BRONZE}/shop"), ("items", "${SILVER}/shop"), ("old", "${SILVER}/shop")):
        text += f'[[tables]]\nsource = "{source}"\ntarget = "{target}"\nkeys = ["id"]\n'
    folders = {"BRONZE": "/lake/bronze", "SILVER": "/lake/silver"}
    assert faults_of(text, **folders) == []
    assert faults_of(text + "[metrics]\nprometheus_port = 0\n", **folders) == [
        "pipeline.toml:15: tables[1].target: is shown as ***/shop, as is that of tables[0], so their metrics "
        "would be mixed; make them differ in more than values of the environment"
    ]
    patterns = "[metrics]\nprometheus_port = 0\n" + text.replace(
        'source = "items"', "source = 're:(?P<table>items)'"
    ).replace('"${SILVER}/shop"\nkeys = ["id"]\n[[', '"${SILVER}/{table}"\nkeys = ["id"]\n[[', 1)
    assert [line.split(":")[2] for line in faults_of(patterns, **folders)] == [" tables[2].target"]


def test_options_of_kafka_that_lose_records_are_refused(faults_of):
    text = PIPELINE + KAFKA + '[source.options]\nfailOnDataLoss = "false"\n' + DEBEZIUM + TABLE
    assert faults_of(text) == [
        "pipeline.toml:7: source.options: failOnDataLoss is always true in a pipeline, so that no record and no "
        "change of a key is lost; leave the option out"
    ]


def test_options_of_kafka_that_the_section_says_itself_are_not_ignored(faults_of):
    text = PIPELINE + KAFKA + '[source.options]\nstartingOffsets = "latest"\n' + DEBEZIUM + TABLE
    assert faults_of(text) == [
        "pipeline.toml:7: source.options: startingOffsets is starting_offsets in the section [source], which counts; "
        "leave the option out"
    ]


# Sources


def test_a_broker_that_is_not_there(find):
    assert find(PIPELINE + KAFKA + DEBEZIUM + TABLE) == [
        "pipeline.toml:5: source.bootstrap_servers: No Kafka broker answers at 127.0.0.1:1 (Connection refused): "
        "start it, or correct bootstrap_servers in [source]"
    ]


def test_secrets_are_kept_out_of_faults(find):
    text = PIPELINE + KAFKA.replace("127.0.0.1:1", "${BROKER}") + DEBEZIUM + TABLE
    assert "(no such host)" in find(text, BROKER="broker.invalid:9092")[0]
    assert "*** (no such host)" in find(text, BROKER="broker.invalid:9092")[0]


def test_a_folder_of_files_that_is_not_there(find):
    assert find(PIPELINE + FILES + TABLE) == [
        "pipeline.toml:5: source.path: ./landing does not exist; create it, or correct path"
    ]


def test_a_schema_that_is_not_ddl(find, land):
    land({"id": 1})
    text = PIPELINE + FILES.replace("name STRING", "name STRNG") + TABLE
    assert find(text) == ['pipeline.toml:6: source.schema: is not DDL: Unsupported data type "STRNG"']


def test_an_empty_folder_is_no_fault(find, here):
    (here / "landing").mkdir()
    assert find(PIPELINE + FILES + TABLE) == []


def test_good_files_have_no_fault(find, land):
    land({"id": 1, "name": "a", "at": 5}, {"id": 2})
    assert find(PIPELINE + FILES + TABLE + 'sequence_by = "at"\ndelete_when = "name IS NULL"\n') == []


def test_records_that_do_not_fit_the_schema(find, land):
    land({"id": 1, "name": "a"}, '{"id": "one"}', "{")
    fault = (
        '2 of the first 3 records do not fit it, for example {"id": "one"}; correct it, or give a quarantine for '
        "such records"
    )
    found = find(PIPELINE + FILES + TABLE)
    assert found == [f"pipeline.toml:6: source.schema: {fault}"]
    assert find(PIPELINE + FILES + TABLE + 'quarantine = "./bad"\n') == []


@pytest.mark.parametrize("column", ["is_corrupt_record", "_CORRUPT_RECORD"])
def test_records_that_do_not_fit_a_schema_with_such_a_column(find, land, column):
    land({"id": 1, "name": "a"}, {"id": "one"})
    found = find(PIPELINE + FILES.replace("at BIGINT", f"{column} STRING") + TABLE)
    assert len(found) == 1
    assert found[0].startswith(
        'pipeline.toml:6: source.schema: 1 of the first 2 records do not fit it, for example {"id": "one"}; '
    )


def test_files_that_have_other_columns(find, land):
    land({"number": 1}, {"number": 2})
    assert find(PIPELINE + FILES + TABLE) == [
        "pipeline.toml:6: source.schema: none of its columns has a value in the first 2 records of ./landing"
    ]


def test_a_csv_file_whose_header_has_another_order(find, here):
    (here / "landing").mkdir()
    (here / "landing" / "1.csv").write_text("name,id,at\n7,1,5\n")
    text = PIPELINE + FILES + 'file_format = "csv"\n[source.options]\nheader = "true"\n'
    assert find(text + TABLE) == [
        "pipeline.toml:6: source.schema: the files cannot be read with it: CSV header does not conform to the schema. "
        "Header: name, id, at Schema: id, name, at Expected: id but found: name CSV file: file://./landing/1.csv"
    ]
    assert find(text + 'enforceSchema = "true"\n' + TABLE) == []


def test_parquet_files_that_cannot_be_read_with_the_schema(find, here, spark):
    spark.range(3).selectExpr("CAST(id AS STRING) AS id").write.parquet(f"{here}/landing")
    text = PIPELINE + FILES + 'file_format = "parquet"\n' + TABLE
    found = find(text)
    assert len(found) == 1
    assert found[0].startswith("pipeline.toml:6: source.schema: the files cannot be read with it: ")
    assert "\n" not in found[0]


def test_a_delta_source_that_is_not_there_or_has_no_feed(find, here, spark):
    assert find(PIPELINE + DELTA + TABLE) == ["pipeline.toml:5: source.table: there is no Delta table ./bronze"]
    spark.range(3).write.format("delta").save(f"{here}/bronze")
    assert find(PIPELINE + DELTA + TABLE) == [
        "pipeline.toml:3: source.change_feed: the table ./bronze has no change data feed; set its property "
        "delta.enableChangeDataFeed = true, or change_feed = false for a table that only grows"
    ]
    assert find(PIPELINE + DELTA + "change_feed = false\n" + TABLE) == []
    assert find(PIPELINE + DELTA + "change_feed = false\nstarting_version = 2\n" + TABLE) == [
        "pipeline.toml:7: source.starting_version: the table ./bronze is at version 0 only"
    ]


def test_a_change_data_feed_has_no_fault(find, create_table, here):
    create_table("id BIGINT", [(1,)], path=f"{here}/bronze", properties={"delta.enableChangeDataFeed": "true"})
    assert find(PIPELINE + DELTA + TABLE) == []


# Tables


def test_columns_that_the_rows_do_not_have(find, land):
    land({"id": 1, "name": "a"})
    text = PIPELINE + FILES + TABLE.replace('["id"]', '["id",\n  "number"]')
    text += (
        'partition_by = ["day"]\nexcept_columns = ["nam"]\nsequence_by = ["at", "lsn + 1"]\ndelete_when = "op = '
        "'d'\"\n"
    )
    text += 'quarantine = "./bad"\nexpect = { positive = "id >", named = "nme IS NOT NULL" }\n'
    have = "they have id, name, at, _corrupt_record"
    found = find(text)
    assert found[:3] == [
        f"pipeline.toml:10: tables[0].keys[1]: the rows have no column number; {have}",
        f"pipeline.toml:11: tables[0].partition_by[0]: the rows have no column day; {have}",
        f"pipeline.toml:12: tables[0].except_columns[0]: the rows have no column nam; {have}",
    ]
    assert found[3].startswith("pipeline.toml:13: tables[0].sequence_by[1]: lsn + 1 is not valid here: A column")
    assert found[4].startswith("pipeline.toml:14: tables[0].delete_when: op = 'd' is not valid here: A column")
    assert found[5].startswith("pipeline.toml:16: tables[0].expect.positive: id > is not valid here: Syntax error")
    assert found[6].startswith("pipeline.toml:16: tables[0].expect.named: nme IS NOT NULL is not valid here: A column")
    assert len(found) == 7


def test_a_key_without_values(find, land):
    land({"name": "a", "at": 1}, {"name": "b", "at": 2})
    assert find(PIPELINE + FILES + TABLE) == ["pipeline.toml:9: tables[0].keys[0]: id is NULL in the first 2 rows"]


def test_a_missing_table(find, land):
    land({"id": 1})
    assert find(PIPELINE + FILES + TABLE + "create_if_missing = false\n") == [
        "pipeline.toml:8: tables[0].target: there is no Delta table ./lake/orders; create it, or set "
        "create_if_missing = true"
    ]


def test_a_name_in_a_catalog_that_forgets_its_tables(find, land):
    """The `./` is missing: the first run would make the table under spark-warehouse, where the second does not find
    it."""
    land({"id": 1})
    text = PIPELINE + FILES + TABLE.replace("./lake/orders", "orders") + 'quarantine = "lake.rejected"\n'
    why = "is the name of a table in a catalog, and Spark's own catalog forgets its tables when the command ends; write"
    way_out = 'for a folder, or configure a metastore ("spark.sql.catalogImplementation" = "hive") in [spark.conf]'
    assert find(text) == [
        f"pipeline.toml:8: tables[0].target: orders {why} ./orders {way_out}",
        f"pipeline.toml:10: tables[0].quarantine: lake.rejected {why} ./lake.rejected {way_out}",
    ]
    assert find(text.replace('"orders"', '"spark_catalog.x.orders"'))[0].startswith(
        "pipeline.toml:8: tables[0].target: spark_catalog.x.orders is the name"
    )


def test_a_run_refuses_such_a_name_before_anything_is_merged(here, spark, monkeypatch):
    from stream_merge.cli.run_command import _run_on_spark

    monkeypatch.setattr("stream_merge.cli.run_command.start_session", lambda *_: spark)
    monkeypatch.setattr("stream_merge.cli.run.session.stop_session", lambda _: None)
    (here / "pipeline.toml").write_text(PIPELINE + FILES + TABLE.replace("./lake/orders", "orders"))
    with pytest.raises(PipelineFileError, match=r":8: tables\[0\]\.target: orders is the name of a table in a catalog"):
        _run_on_spark(load_pipeline(here / "pipeline.toml"), None, None, None, once=True)


def test_a_name_in_another_catalog(find, spark, monkeypatch):
    from stream_merge.cli.checks.catalog import is_forgotten

    monkeypatch.setattr("stream_merge.cli.checks.catalog.is_forgotten", lambda *_: False)
    monkeypatch.setattr("stream_merge.cli.checks.table_checks.is_forgotten", lambda *_: False)
    assert (
        "pipeline.toml:8: tables[0].target: there is no schema nowhere in the catalog; create it: CREATE SCHEMA nowhere"
        in find(PIPELINE + FILES + TABLE.replace("./lake/orders", "nowhere.orders"))
    )
    spark.conf.set("spark.sql.catalog.unity", "io.unitycatalog.spark.UCSingleCatalog")
    try:
        assert not is_forgotten(spark, "unity.shop.orders")
        assert is_forgotten(spark, "shop.orders")
    finally:
        spark.conf.unset("spark.sql.catalog.unity")


def test_targets_that_cannot_be_made(find, land, here):
    land({"id": 1})
    (here / "lake" / "orders").mkdir(parents=True)
    assert find(PIPELINE + FILES + TABLE) == []
    (here / "lake" / "orders" / "notes.txt").write_text("mine")
    assert find(PIPELINE + FILES + TABLE) == [
        "pipeline.toml:8: tables[0].target: the folder ./lake/orders has files and is not a Delta table; give an "
        "empty or a new folder"
    ]
    assert find(PIPELINE + FILES + TABLE.replace("lake/orders", "lake/orders/notes.txt/x")) == [
        "pipeline.toml:8: tables[0].target: ./lake/orders/notes.txt is a file, not a folder"
    ]


def test_a_log_store_that_lets_writers_overwrite_each_other(find, land, single_driver_log_store):
    land({"id": 1, "name": "a", "at": 1})
    text = PIPELINE + FILES + TABLE + 'quarantine = "./lake/rejected"\n'
    found = find(text)
    assert [line.split(":")[2] for line in found] == [" tables[0].target", " tables[0].quarantine"]
    assert all(f"its LogStore for file: is {single_driver_log_store}" in line for line in found)
    assert all("set single_writer = true" in line for line in found)
    assert find(text + "single_writer = true\n") == []


def test_a_target_that_does_not_take_the_rows(find, land, create_table, here):
    land({"id": 1, "name": "a"})
    create_table("id STRUCT<a: INT>, name STRING", path=f"{here}/lake/orders")
    found = find(PIPELINE + FILES + TABLE)
    assert len(found) == 1
    assert found[0].startswith("pipeline.toml:8: tables[0].target: [")


def test_a_target_that_takes_the_rows(find, land, create_table, here):
    land({"id": 1, "name": "a"})
    create_table("id BIGINT, name STRING, at BIGINT", path=f"{here}/lake/orders")
    assert find(PIPELINE + FILES + TABLE + 'sequence_by = "at"\nquarantine = "./bad"\n') == []


def test_a_target_that_was_written_with_other_keys_or_another_sequence(find, land, create_table, create_source, here):
    create_table("id BIGINT, name STRING, at BIGINT", path=f"{here}/lake/orders")
    written = merge_sink(f"{here}/lake/orders", keys="id", sequence_by="at")
    written.merge(create_source("id BIGINT, name STRING, at BIGINT", [(1, "a", 1)]))
    land({"id": 1, "name": "a", "at": 5})
    text = PIPELINE + FILES + TABLE
    assert find(text + 'sequence_by = "At"\n') == []
    (keys,) = find(text.replace('["id"]', '["name"]') + 'sequence_by = "at"\n')
    told = "./lake/orders was written with keys id, and the sink now has name: "
    assert keys.startswith(f"pipeline.toml:9: tables[0].keys: {told}")
    for other in ("id", "at + 1"):
        (order,) = find(f'{text}sequence_by = "{other}"\n')
        told = f"./lake/orders was written with sequence_by at, and the sink now has {other}: "
        assert order.startswith(f"pipeline.toml:10: tables[0].sequence_by: {told}")


@pytest.mark.always
def test_other_keys_than_the_table_s_where_the_source_has_no_rows_yet(find, land, create_table, create_source, here):
    create_table("id BIGINT, name STRING, at BIGINT", path=f"{here}/lake/orders")
    written = merge_sink(f"{here}/lake/orders", keys="id", sequence_by="at")
    written.merge(create_source("id BIGINT, name STRING, at BIGINT", [(1, "a", 1)]))
    land(event(0, {"id": 1, "name": "a"}))
    text = f'{PIPELINE}route_by = "topic"\nunknown = "ignore"\n{RECORDS}{DEBEZIUM}{TABLE}source = "not.yet"\n'
    assert find(text) == []
    assert find(text.replace('["id"]', '["ID"]')) == []
    (other,) = find(text.replace('["id"]', '["name"]'))
    assert "tables[0].keys: ./lake/orders was written with keys id, and the sink now has name: " in other
    absent, other = find(text.replace('["id"]', '["number"]'))
    assert absent.endswith("tables[0].keys[0]: the table has no column number; it has id, name, at")
    assert "was written with keys id, and the sink now has number: " in other
    # Options that fit nothing are told, and nothing is compared with them.
    (wrong,) = find(text + 'except_columns = ["id"]\n')
    assert wrong.endswith("except_columns names the key id")


def test_debezium_with_columns(find, land):
    land(event(0, {"id": 1, "name": "a"}), event(1, {"id": 2, "name": "b"}))
    text = PIPELINE + RECORDS + DEBEZIUM + TABLE
    assert find(text + 'columns = "id BIGINT, name STRING"\n') == []
    assert find(text + 'columns = "number BIGINT, name STRING"\n') == [
        "pipeline.toml:11: tables[0].keys[0]: columns has no column id; it has number, name"
    ]
    assert find(text + 'columns = "id BIGINT, name STRUNG"\n') == [
        'pipeline.toml:12: tables[0].columns: is not DDL: Unsupported data type "STRUNG"'
    ]
    assert find(text + 'columns = "id BIGINT, nme STRING"\n') == [
        "pipeline.toml:12: tables[0].columns: no message among the first 2 has a column nme; they have id, name"
    ]


def test_debezium_with_a_column_that_only_the_records_keys_have(find, land):
    """As routers of logical tables add it, and the flattening its own."""
    land(event(0, {"id": 1, "name": "a"}, key={"id": 1, "shard": "s1"}))
    text = PIPELINE + RECORDS + DEBEZIUM + TABLE.replace('["id"]', '["id", "shard"]')
    assert find(text + 'columns = "id BIGINT, shard STRING, name STRING, __op STRING"\n') == []


def test_debezium_with_the_wrong_key(find, land):
    land(event(0, {"id": 1, "name": "a"}, op="u"))
    text = (
        PIPELINE
        + RECORDS
        + DEBEZIUM
        + TABLE.replace('["id"]', '["number"]')
        + 'columns = "number BIGINT, name STRING"\n'
    )
    assert find(text) == [
        "pipeline.toml:12: tables[0].columns: no message among the first 1 has a column number; they have id, name"
    ]
    found = find(text.replace("number", "name").replace("name BIGINT, ", ""))
    assert len(found) == 1
    assert "so an update of name would keep the old row" in found[0]


def test_debezium_without_columns(find, land):
    text = PIPELINE + RECORDS + DEBEZIUM + TABLE
    land()
    assert find(text) == []
    land(event(0, {"id": 1, "name": "a"}))
    found = find(text)
    assert len(found) == 1
    assert found[0].startswith(
        "pipeline.toml:9: tables[0].columns: The columns of the source are not known: its messages have no schema"
    )


def test_keys_that_are_learnt(find, land, faults_of):
    table = TABLE.replace('keys = ["id"]\n', 'columns = "id BIGINT, name STRING"\n')
    text = PIPELINE + RECORDS + DEBEZIUM + table
    land()
    assert find(text) == []
    truncate = {**event(0, {"id": 0}, op="t"), "key": None}
    land(truncate)
    assert find(text) == []
    land(event(1, {"id": 1, "name": "a"}))
    assert find(text) == []
    assert find(text.replace("id BIGINT, name", "name")) == [
        "pipeline.toml:9: tables[0].keys: key 'id' is not among the columns name"
    ]
    assert find(text + 'except_columns = ["id"]\n') == ["pipeline.toml:9: tables[0]: except_columns names the key id"]
    land({**event(2, {"id": 2}), "key": json.dumps({"name": "a"})})
    (fault,) = find(text)
    assert fault.startswith(
        "pipeline.toml:9: tables[0].keys: keys differ among the records of shop.orders: id and name"
    )
    # What fits neither tables with keys nor those without is told without any record.
    (fault, *_) = faults_of(text + 'tombstone_retention = "0 days"\n')
    assert fault.startswith("pipeline.toml:12: tables[0].tombstone_retention: ")
    assert faults_of(text + "ignore_null_updates = true\n") == []


def test_values_that_do_not_fit_their_column(find, land):
    land(event(0, {"id": 1, "name": "a"}), event(1, {"id": "x", "name": "b"}))
    text = PIPELINE + RECORDS + DEBEZIUM + TABLE + 'columns = "id BIGINT, name STRING"\n'
    found = find(text)
    assert len(found) == 1
    assert found[0].startswith("pipeline.toml:9: tables[0]: 1 of the first 2 rows cannot be decoded: ")
    assert find(text + 'quarantine = "./bad"\n') == []


SEVERAL = (
    '[pipeline]\ncheckpoint = "./checkpoints/shop"\nroute_by = "topic"\n'
    + RECORDS
    + DEBEZIUM
    + '[[tables]]\nsource = "shop.orders"\n'
    'target = "./lake/orders"\nkeys = ["id"]\ncolumns = "id BIGINT"\n'
    "[[tables]]\nsource = 're:shop\\.(?P<table>c.*)'\n"
    'target = "./lake/{table}"\nkeys = ["id"]\ncolumns = "id BIGINT"\n'
)


def test_several_tables(find, land):
    land(event(0, {"id": 1}), event(1, {"id": 1}, topic="shop.customers"))
    assert find(SEVERAL) == []
    land(event(0, {"id": 1}, topic="shop.visits"), event(1, {"id": "x"}, topic="shop.c.d"))
    found = find(SEVERAL)
    assert found == [
        "pipeline.toml:10: tables: no table takes the rows of shop.visits; add a [[tables]], or set unknown = "
        '"ignore" to drop them',
        'pipeline.toml:16: tables[1].source: "c.d" of shop.c.d cannot be part of target; the pattern must match '
        "letters, digits, _ and - only; to take this source, too, give it a [[tables]] of its own with source = "
        '"shop.c.d"',
    ]


def test_a_source_that_two_patterns_match(find, land):
    """The first section names one of the two sources, so that only the other is ambiguous."""
    land(event(0, {"id": 1}, topic="shop.orders"), event(1, {"id": 1}, topic="shop.customers"))
    wide = (
        "[[tables]]\nsource = 're:shop\\.(?P<name>\\w+)'\n"
        'target = "./lake/all_{name}"\nkeys = ["id"]\ncolumns = "id BIGINT"\n'
    )
    assert find(SEVERAL + wide) == [
        "pipeline.toml:21: tables[2].source: shop.customers matches re:shop\\.(?P<name>\\w+) and "
        "re:shop\\.(?P<table>c.*); narrow a pattern, or give shop.customers a [[tables]] of its own with source = "
        '"shop.customers"'
    ]


def test_a_route_that_is_no_column(find, land):
    land(event(0, {"id": 1}))
    found = find(SEVERAL.replace('route_by = "topic"', 'route_by = "topics"'))
    assert len(found) == 1
    assert found[0].startswith(
        "pipeline.toml:3: pipeline.route_by: is not a column or expression of the source: A column"
    )


def test_faults_of_all_parts_come_in_the_order_of_the_file(find, here):
    (here / "checkpoints").write_text("a file")
    assert find(PIPELINE + FILES + TABLE + "create_if_missing = false\n") == [
        "pipeline.toml:2: pipeline.checkpoint: ./checkpoints is a file, not a folder",
        "pipeline.toml:5: source.path: ./landing does not exist; create it, or correct path",
        "pipeline.toml:8: tables[0].target: there is no Delta table ./lake/orders; create it, or set "
        "create_if_missing = true",
    ]


# The checkpoint


def run_once(spark, frame, checkpoint):
    """Run a stream into nothing, so that the checkpoint has an offset of its source."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.foreachBatch(lambda *_: None).start().awaitTermination()


def test_a_checkpoint_of_another_kind_of_source(find, land, here, spark, create_table):
    land({"id": 1})
    bronze = create_table("id BIGINT", [(1,)], path=f"{here}/bronze", properties={"delta.enableChangeDataFeed": "true"})
    run_once(spark, spark.readStream.format("delta").load(bronze), here / "checkpoints" / "shop")
    assert find(PIPELINE + FILES + TABLE) == [
        'pipeline.toml:2: pipeline.checkpoint: belongs to a source with format = "delta"; give this pipeline a folder '
        "of its own, "
        "or restore the old source"
    ]
    assert find(PIPELINE + DELTA + TABLE) == []
    create_table("id BIGINT", [(1,)], path=f"{here}/other", properties={"delta.enableChangeDataFeed": "true"})
    assert find(PIPELINE + DELTA.replace("bronze", "other") + TABLE) == [
        "pipeline.toml:2: pipeline.checkpoint: belongs to another table than ./other; give this pipeline a folder of "
        "its own, or restore the old source"
    ]


def test_a_checkpoint_of_the_same_folder_of_files(find, land, here, spark):
    land({"id": 1})
    run_once(spark, spark.readStream.schema("id BIGINT").json(f"{here}/landing"), here / "checkpoints" / "shop")
    assert find(PIPELINE + FILES + TABLE) == []


def test_a_checkpoint_of_other_topics(find, here):
    offsets = here / "checkpoints" / "shop" / "offsets"
    offsets.mkdir(parents=True)
    for batch, topic in ((2, "b"), (10, "a")):
        (offsets / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"{topic}":{{"0":5}}}}')
    found = find(PIPELINE + KAFKA + DEBEZIUM + TABLE)
    assert found[0] == (
        "pipeline.toml:2: pipeline.checkpoint: belongs to the topics a; give this pipeline a folder of its own, or "
        "restore the old source"
    )


def test_a_checkpoint_of_a_topic_that_was_made_anew(find, here, monkeypatch):
    folder = here / "checkpoints" / "shop"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"orders":{"0":5}}')
    (folder / "kafka-topics.json").write_text('{"orders": "A"}\n')
    ids = {"orders": "B"}
    monkeypatch.setattr("stream_merge.bridge.kafka_topics.TopicIds.read", lambda _, topics: {t: ids[t] for t in topics})
    text = PIPELINE + KAFKA + DEBEZIUM + TABLE
    assert find(text)[0] == (
        "pipeline.toml:2: pipeline.checkpoint: belongs to an earlier topic orders, which was deleted and recreated "
        "since; use a new folder, and let the source send a new snapshot if records of the old topic were not read"
    )
    ids["orders"] = "A"
    assert [line for line in find(text) if "checkpoint" in line] == []


def test_the_schema_registry_is_asked(find, here, avro_spark):
    columns = [ID, field("name", "string")]
    text = PIPELINE + AVRO_RECORDS + DEBEZIUM + TABLE + '[registry]\nurl = "URL"\n'
    with serving() as server, serving() as empty:
        ann = in_avro(server, wrapped(columns, "c", {"id": 1, "name": "Ann"}))
        frame_of(avro_spark, ann).write.parquet(str(here / "landing"))
        assert find(text.replace("URL", server.url)) == []
        assert find(text.replace("URL", f"{server.url}/other")) == [
            f"pipeline.toml:14: registry.url: the schema registry {server.url}/other answers 404: has no such path; "
            "correct the URL (of Apicurio Registry, it ends in /apis/ccompat/v7)"
        ]
        # It does not have the schemas of the topic.
        (fault,) = find(text.replace("URL", empty.url))
    number = int.from_bytes(ann[1][1:5], "big")
    assert f"the value cannot be decoded: the registry has no schema {number}" in fault


def test_options_of_the_schema_registry_are_checked(faults_of):
    text = PIPELINE + AVRO_RECORDS + DEBEZIUM + TABLE + '[registry]\nurl = "registry:8081"\npassword = "${SECRET}"\n'
    assert faults_of(text, SECRET="hunter22") == [
        "pipeline.toml:14: registry.url: is not an address that begins with http:// or https://",
        "pipeline.toml:15: registry.password: needs user",
    ]
