"""CloudEvents whose data is in Avro, in JSON or as a whole, with a registry of schemas."""

import base64
import json

import pytest

from stream_merge import debezium
from tests.debezium.captures import fold
from tests.debezium.cloud_events import COLUMNS, KEYS, LOG, canonical, compact, comparable, expected_rows, read_events
from tests.debezium.records import SCHEMA, frame_of, record
from tests.debezium.registry_server import serving

LAYOUTS = ("avro-in-json", "avro")


@pytest.fixture
def registry():
    """Return the registry that the converters wrote to."""
    schemas = json.loads((LOG / "schemas.json").read_text())
    with serving() as server:
        for number in range(1, max(map(int, schemas)) + 1):
            server.add(schemas.get(str(number), '{"type": "fixed", "name": "Gap", "size": 1}'))
        yield debezium.SchemaRegistry(server.url)


@pytest.mark.every_case
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fold_of_a_real_log_is_the_database_s_own_table(avro_spark, registry, layout):
    """Columns and keys are learnt, and `customers` got a column meanwhile."""
    for table in ("customers", "lines"):
        records = debezium.from_registry(read_events(avro_spark, layout, table), registry).persist()
        changes = debezium.changes(records)
        rows = comparable(changes).collect()
        records.unpersist()
        assert {row["_change"]["op"] for row in rows} >= {"c", "u", "d"}
        assert canonical(fold(rows, KEYS[table])) == expected_rows(table)


def test_the_records_of_all_layouts_in_one_batch(avro_spark, registry):
    """And what cannot be decoded does not stop the others."""
    table, topics = "lines", ("json-with-schema", *LAYOUTS)
    records = [read_events(avro_spark, layout, table) for layout in topics]
    event = json.loads(read_events(avro_spark, "avro-in-json", table).where("value IS NOT NULL").head()["value"])
    avro = base64.b64decode(event["data"])
    faults = {
        "the data cannot be decoded: the registry has no schema 99": avro[:4] + b"\x63" + avro[5:],
        "the data cannot be decoded: it is not Avro of schema 4, or has text that is not UTF-8": avro[:-1],
        "the data cannot be decoded: it ends within the id of its schema": avro[:3],
    }
    values = [{**event, "data": base64.b64encode(data).decode()} for data in faults.values()]
    damaged = [record({"order_id": "x", "line_no": 1}, compact(value), n) for n, value in enumerate(values)]
    spaced = record({"order_id": "x", "line_no": 1}, {**event, "datacontenttype": "application/avro"}, 9)
    records.append(frame_of(avro_spark, *damaged, spaced))
    frame = avro_spark.createDataFrame([row for each in records for row in each.collect()], SCHEMA)
    decoded = debezium.from_registry(frame, registry).persist()
    changes = debezium.changes(decoded, COLUMNS[table], KEYS[table])
    rows = changes.collect()
    decoded.unpersist()
    for layout in ("jsonschema", "jsonavro", "avro"):
        of_layout = [row for row in rows if row["_change"]["topic"].startswith(f"ce_{layout}.")]
        assert canonical(fold(of_layout, KEYS[table])) == expected_rows(table)
    bad = {row["_change"]["offset"]: row["_change"] for row in rows if row["_change"]["topic"] == "shop.public.t"}
    assert [bad[n]["error"] for n in range(len(faults))] == [*faults]
    # As no converter writes it.
    assert bad[9]["error"].startswith("the data of the CloudEvent is in Avro with the id of a schema: decode it")
    assert json.loads(bad[0]["raw"]) == values[0]


def test_without_a_registry_the_registry_is_asked_for(spark):
    changes = debezium.changes(read_events(spark, "avro-in-json", "visits"), COLUMNS["visits"], [])
    errors = {row["_change"]["error"] for row in changes.collect()}
    (error,) = errors
    assert "decode it with from_registry, or [registry] in a pipeline file" in error
    changes = debezium.changes(read_events(spark, "avro", "visits"), COLUMNS["visits"], [])
    assert {row["_change"]["error"] for row in changes.collect()} == {
        "the value begins like Avro with the id of a schema: decode it with from_registry, or [registry] in a "
        "pipeline file"
    }
