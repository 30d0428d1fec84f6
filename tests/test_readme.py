"""The README's stream and the examples do what they say."""

import gzip
import json
import os
import re
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples import change_data, complete_mode, many_tables, partial_updates, upsert
from stream_merge import debezium, merge_sink
from tests.debezium.captures import DEMO, EVENT_SCHEMA, as_records
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record, with_schema

pytestmark = [pytest.mark.core, pytest.mark.always]

ROOT = Path(__file__).parents[1]


def python_blocks(text=None):
    """Return the Python code of the README, or of another text, block by block."""
    text = (ROOT / "README.md").read_text() if text is None else text
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def guide_blocks(heading):
    """Return the Python code of one section of the guide."""
    sections = (ROOT / "docs/guide.md").read_text().split("\n## ")
    return python_blocks(next(section for section in sections if section.startswith(f"{heading}\n")))


def in_folder(code, folder):
    """Return the code with its relative paths in a folder, relative still: the JVM does not follow a change of
    directory."""
    return code.replace('"./', f'"{os.path.relpath(folder)}/')


def run_query(code, variables):
    """Run code that starts a query, until it has taken all that is there."""
    exec(compile(code, "documentation", "exec"), variables)
    try:
        variables["query"].processAllAvailable()
    finally:
        variables["query"].stop()


def run_stream(folder):
    """Run the README's first block until all changes are merged."""
    run_query(in_folder(python_blocks()[0], folder), {})


FIRST_CHANGES = (
    (1, "Ada", "c", "2026-01-01T08:00:00Z"),
    (1, "Ada L.", "u", "2026-01-01T09:00:00Z"),
    (2, "Grace", "c", "2026-01-01T08:00:00Z"),
)


def write_changes(folder, name, *changes):
    columns = ("id", "name", "op", "updated_at")
    (folder / "changes").mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(columns, change, strict=True))) + "\n" for change in changes]
    (folder / "changes" / f"{name}.json").write_text("".join(lines))


@pytest.fixture
def rows_of(spark):
    """Return a function that gives some columns of a table, in order."""

    def rows(path, *columns):
        return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).select(*columns).collect())

    return rows


def test_the_stream_of_the_readme(tmp_path, rows_of):
    write_changes(tmp_path, "1", *FIRST_CHANGES)
    run_stream(tmp_path)
    assert rows_of(tmp_path / "customers", "id", "name") == [(1, "Ada L."), (2, "Grace")]

    write_changes(
        tmp_path,
        "2",
        (1, "out of date", "u", "2026-01-01T08:30:00Z"),
        (2, "Grace", "d", "2026-01-01T10:00:00Z"),
        (3, "Barbara", "c", "2026-01-01T10:00:00Z"),
    )
    run_stream(tmp_path)
    assert rows_of(tmp_path / "customers", "id", "name") == [(1, "Ada L."), (3, "Barbara")]


def test_the_clauses_of_the_readme(create_table, create_source, tmp_path, rows_of, capsys):
    create_table("sku STRING, qty INT", [("a", 1), ("b", 2), ("c", 3)], path=str(tmp_path / "stock"))
    batch_df = create_source("sku STRING, qty INT", [("a", 0), ("b", 5), ("c", -1), ("d", 4)])
    variables = {"batch_df": batch_df}
    exec(
        compile("from stream_merge import merge_sink\n" + in_folder(python_blocks()[1], tmp_path), "README.md", "exec"),
        variables,
    )

    assert rows_of(tmp_path / "stock", "sku", "qty") == [("b", 7), ("c", 3), ("d", 4)]
    result = variables["result"]
    assert (result.num_target_rows_deleted, result.num_target_rows_updated, result.num_target_rows_inserted) == (
        1,
        1,
        1,
    )
    assert result.strategy in capsys.readouterr().out


def test_the_guides_sink_that_skips_what_would_not_change(create_table, create_source, tmp_path, rows_of, capsys):
    create_table("sku STRING, price INT", [("a", 1), ("b", 2)], path=str(tmp_path / "prices"))
    variables = {"batch_df": create_source("sku STRING, price INT", [("a", 1), ("b", 3), ("c", 4)])}
    [code] = guide_blocks("Updates that change nothing")
    exec(compile("from stream_merge import merge_sink\n" + in_folder(code, tmp_path), "guide.md", "exec"), variables)

    assert rows_of(tmp_path / "prices", "sku", "price") == [("a", 1), ("b", 3), ("c", 4)]
    assert variables["result"].num_target_rows_updated == 1
    assert "1 of 3 rows were there already" in capsys.readouterr().out


def write_events(folder, name, *events):
    (folder / "events").mkdir(exist_ok=True)
    lines = [json.dumps({"topic": topic, "value": json.dumps(value)}) + "\n" for topic, value in events]
    (folder / "events" / f"{name}.json").write_text("".join(lines))


def test_the_many_tables_of_the_guide(spark, tmp_path, rows_of):
    def run_router():
        run_query(in_folder(guide_blocks("Many tables from one stream")[0], tmp_path), {"spark": spark})

    at = "2026-01-01T0{}:00:00Z".format
    order = {"order_id": "a", "status": "new", "updated_at": at(1), "op": "c"}
    write_events(
        tmp_path,
        "1",
        ("shop.orders", order),
        ("shop.customers", {"id": 1, "name": "Ada", "updated_at": at(1)}),
        ("shop.products", {"id": 1, "title": "Tea", "updated_at": at(1)}),
    )
    run_router()
    write_events(
        tmp_path,
        "2",
        ("shop.customers", {"id": 1, "name": "Ada L.", "updated_at": at(2)}),
        ("shop.orders", {**order, "updated_at": at(2), "op": "d"}),
        ("shop.orders", {**order, "order_id": "b"}),
    )
    run_router()
    assert rows_of(tmp_path / "lake" / "orders", "order_id", "status") == [("b", "new")]
    assert rows_of(tmp_path / "lake" / "customers", "id", "name") == [(1, "Ada L.")]
    assert rows_of(tmp_path / "lake" / "products", "id", "title") == [(1, "Tea")]


def test_the_router_of_the_readme(spark, create_table, tmp_path, rows_of):
    create_table("order_id STRING, total INT", path=str(tmp_path / "orders"))
    create_table("order_id STRING, line_no INT, total INT", path=str(tmp_path / "items"))
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.json").write_text(
        '{"topic": "orders", "order_id": "a", "total": 7}\n{"topic": "items", "order_id": "a", "line_no": 1, "total": '
        "3}\n"
    )
    events = spark.readStream.schema("topic STRING, order_id STRING, line_no INT, total INT").json(
        str(tmp_path / "events")
    )
    variables = {"events": events}
    code = "from stream_merge import merge_router, merge_sink\n" + in_folder(python_blocks()[3], tmp_path)
    run_query(code, variables)
    assert rows_of(tmp_path / "orders", "order_id", "total") == [("a", 7)]
    assert rows_of(tmp_path / "items", "order_id", "line_no", "total") == [("a", 1, 3)]


def test_the_debezium_stream_of_the_readme(spark, create_table, tmp_path, rows_of):
    create_table("id BIGINT, name STRING, email STRING", path=str(tmp_path / "customers"))
    row = {"id": 1, "name": "Ada", "email": "a@example"}
    log = [
        envelope("c", row, lsn=1),
        envelope("c", {**row, "id": 2}, lsn=2),
        envelope("u", {**row, "name": "Ada L.", "email": PLACEHOLDER}, lsn=3),
        envelope("d", before={"id": 2}, lsn=4),
    ]
    keys = [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}]
    frame = frame_of(spark, *[record(key, message) for key, message in zip(keys, log, strict=True)])
    frame.write.parquet(str(tmp_path / "events"))
    variables = {"records": spark.readStream.schema(frame.schema).parquet(str(tmp_path / "events"))}
    code = "from stream_merge import debezium, merge_sink\n" + in_folder(python_blocks()[2], tmp_path)
    run_query(code, variables)
    assert rows_of(tmp_path / "customers", "id", "name", "email") == [(1, "Ada L.", "a@example")]


def test_the_quarantine_of_the_guide(spark, create_table, tmp_path, rows_of):
    create_table("id INT, price DECIMAL(5, 2), state STRING", path=str(tmp_path / "orders"))
    [code] = [block for block in python_blocks((ROOT / "docs/guide.md").read_text()) if "quarantine=" in block]
    variables = {}
    exec(compile(in_folder(code, tmp_path), "docs/guide.md", "exec"), variables)
    good = [{"id": number, "price": "1.50", "state": "open"} for number in range(40)]
    bad = [{"id": 41, "price": "0.00", "state": "lost"}, {"price": "1.00", "state": "paid"}]
    lines = [*(json.dumps(order) for order in (*good, *bad)), '{"id": 42, "price": ']
    (tmp_path / "changes.json").write_text("\n".join(lines))
    schema = "id INT, price DECIMAL(5, 2), state STRING, _corrupt_record STRING"
    variables["sink"].merge(spark.read.schema(schema).json(str(tmp_path / "changes.json")))

    assert rows_of(tmp_path / "orders", "id") == [(number,) for number in range(40)]
    failed = "expectation positive_price failed; expectation known_state failed"
    assert rows_of(tmp_path / "orders_rejected", "reason") == [
        ("NULL in a key (id)",),
        (failed,),
        (f'{{"id": 42, "price": ; NULL in a key (id); {failed}',),
    ]


def test_the_changes_of_some_columns_in_the_guide(create_table, create_source, tmp_path, rows_of):
    create_table("id INT, name STRING, notes STRING, seq INT", [(1, "a", "long", 1)], path=str(tmp_path / "customers"))
    schema = "id INT, name STRING, notes STRING, seq INT, unsent ARRAY<STRING>"
    changes = create_source(schema, [(1, "b", None, 2, ["notes"]), (2, "c", "short", 1, None)])
    [code] = guide_blocks("Changes that set some columns")
    code = "from stream_merge import merge_sink\n" + code.replace('"/data/', f'"{tmp_path}/')
    exec(compile(code, "guide.md", "exec"), {"changes": changes})
    assert rows_of(tmp_path / "customers", "id", "name", "notes") == [(1, "b", "long"), (2, "c", "short")]


def test_the_stream_of_the_debezium_page(spark, create_table, tmp_path, rows_of):
    types = "id BIGINT, name STRING, email STRING, address STRING, balance DECIMAL(12, 2)"
    create_table(types, path=str(tmp_path / "customers"))
    with gzip.open(DEMO / "events.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        changed = [line for line in lines if '"shop.public.customers"' in line and '\\"op\\":\\"u\\"' in line]
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.json").write_text("".join(changed[:40]), encoding="utf-8", newline="\n")
    log = str(tmp_path / "events")
    [code] = [
        block for block in python_blocks((ROOT / "docs/debezium.md").read_text()) if "debezium.MERGE_OPTIONS" in block
    ]
    for path in ('"/data/', '"checkpoints/'):
        code = code.replace(path, f'"{tmp_path}/' if "data" in path else f'"{tmp_path}/checkpoints/')
    variables = {"records": as_records(spark.readStream.schema(EVENT_SCHEMA).json(log))}
    run_query(code, variables)
    changes = debezium.changes(as_records(spark.read.schema(EVENT_SCHEMA).json(log)), types, ["id"]).collect()
    newest = {row["id"]: row["name"] for row in sorted(changes, key=lambda row: tuple(row["_change"]["sequence"]))}
    assert rows_of(tmp_path / "customers", "id", "name") == sorted(newest.items())
    assert len(newest) > 10


def test_the_table_without_a_key_of_the_debezium_page(spark, create_table, tmp_path, rows_of):
    create_table("page STRING, visitor STRING, seconds INT", path=str(tmp_path / "visits"))
    row = {"page": "/", "visitor": "a", "seconds": 3}
    log = [envelope("c", row, lsn=1), envelope("c", row, lsn=2), envelope("u", {**row, "seconds": 5}, row, lsn=3)]
    events = str(tmp_path / "events")
    frame = frame_of(spark, *[record(None, message) for message in log])
    frame.withColumn("topic", F.lit("shop.public.visits")).write.parquet(events)
    blocks = python_blocks((ROOT / "docs/debezium.md").read_text())
    [code] = [block for block in blocks if "debezium.KEYLESS_MERGE_OPTIONS" in block]
    for path in ('"/data/', '"checkpoints/'):
        code = code.replace(path, f'"{tmp_path}/' if "data" in path else f'"{tmp_path}/checkpoints/')
    variables = {"records": spark.readStream.schema(frame.schema).parquet(events)}
    run_query(code, variables)
    assert rows_of(tmp_path / "visits", "page", "visitor", "seconds") == [("/", "a", 3), ("/", "a", 5)]


def test_the_tables_of_any_keys_of_the_debezium_page(spark, tmp_path, rows_of):
    item, visit = {"order_id": 7, "line_no": 1, "product": "x"}, {"page": "/", "visitor": "a", "seconds": 3}
    log = [
        ("customers", {"id": 1}, envelope("c", {"id": 1, "name": "Ada"}, lsn=1)),
        ("customers", {"id": 1}, envelope("u", {"id": 1, "name": "Ada L."}, lsn=2)),
        ("order_items", {"order_id": 7, "line_no": 1}, envelope("c", item, lsn=3)),
        ("visits", None, envelope("c", visit, lsn=4)),
        ("visits", None, envelope("c", visit, lsn=5)),
    ]
    events = str(tmp_path / "events")
    frames = [
        frame_of(spark, record(key, message)).withColumn("topic", F.lit(f"shop.public.{table}"))
        for table, key, message in log
    ]
    reduce(DataFrame.unionAll, frames).write.parquet(events)
    blocks = python_blocks((ROOT / "docs/debezium.md").read_text())
    [code] = [block for block in blocks if "debezium.learn_options" in block]
    run_query(in_folder(code, tmp_path), {"records": spark.readStream.schema(frames[0].schema).parquet(events)})
    assert rows_of(tmp_path / "lake/customers", "id", "name") == [(1, "Ada L.")]
    assert rows_of(tmp_path / "lake/order_items", "order_id", "line_no", "product") == [(7, 1, "x")]
    assert rows_of(tmp_path / "lake/visits", "page", "visitor", "seconds") == [("/", "a", 3)] * 2


def test_the_learnt_columns_of_the_debezium_page(spark, tmp_path, rows_of):
    parts = [
        {"field": name, "type": "struct", "optional": True, "fields": fields}
        for name, fields in (
            ("after", [{"field": "id", "type": "int64"}, {"field": "v", "type": "string"}]),
            ("source", []),
        )
    ]
    key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 1}}
    message = with_schema([*parts, {"field": "op", "type": "string"}], envelope("c", {"id": 1, "v": "a"}))
    [code] = [
        block for block in python_blocks((ROOT / "docs/debezium.md").read_text()) if "debezium.learn_columns" in block
    ]
    target = str(tmp_path / "t")
    sink = merge_sink(target, keys="id", create_if_missing=True, app_id="learns", **debezium.MERGE_OPTIONS)
    variables = {"debezium": debezium, "DataFrame": DataFrame, "sink": sink}
    exec(compile(code, "docs/debezium.md", "exec"), variables)
    empty = frame_of(spark, record(key, None, 1))
    for batch_id, records in enumerate([empty, frame_of(spark, record(key, message)), empty]):
        variables["merge"](records, batch_id)
    assert rows_of(tmp_path / "t", "id", "v") == [(1, "a")]
    assert variables["prepare"]("t", empty) is None
    assert variables["prepare"]("t", frame_of(spark, record(key, message))).columns == ["id", "v", "_change"]
    assert variables["prepare"]("t", empty).columns == ["id", "v", "_change"]


def test_the_upsert_example(spark, tmp_path, rows_of):
    target = tmp_path / "spark-warehouse" / "customers"
    upsert.write_changes(tmp_path, upsert.CHANGES)
    assert [result.batch_id for result in upsert.run(spark, tmp_path)] == [0]
    assert rows_of(target, "id", "name") == [(1, "Ada L."), (3, "Barbara")]

    # The same changes delivered again: row 2 was deleted, and its delete comes with it.
    upsert.write_changes(tmp_path, upsert.CHANGES)
    assert [result.batch_id for result in upsert.run(spark, tmp_path)] == [1]
    assert rows_of(target, "id", "name") == [(1, "Ada L."), (3, "Barbara")]


def test_the_complete_mode_example(spark, tmp_path, rows_of):
    target = tmp_path / "spark-warehouse" / "totals"
    complete_mode.write_sales(tmp_path, complete_mode.SALES)
    assert [result.strategy for result in complete_mode.run(spark, tmp_path)] == ["overwrite"]
    assert rows_of(target, "region", "total") == [("north", 15), ("south", 25)]

    complete_mode.write_sales(tmp_path, [{"region": "north", "amount": 1}, {"region": "west", "amount": 2}])
    assert [result.strategy for result in complete_mode.run(spark, tmp_path)] == ["overwrite"]
    assert rows_of(target, "region", "total") == [("north", 16), ("south", 25), ("west", 2)]


def test_the_many_tables_example(spark, tmp_path, rows_of):
    for batch_id in (0, 1):  # the same events delivered again change nothing
        many_tables.write_events(tmp_path, many_tables.EVENTS)
        assert [result.batch_id for result in many_tables.run(spark, tmp_path)] == [batch_id] * 2
        warehouse = tmp_path / "spark-warehouse"
        assert rows_of(warehouse / "customers", "id", "name") == [(1, "Ada L.")]
        assert rows_of(warehouse / "orders", "id", "customer_id") == [(7, 1)]


def test_the_change_data_example(spark, tmp_path, rows_of):
    warehouse = tmp_path / "spark-warehouse"
    change_data.write_records(tmp_path, change_data.FIRST)
    [first] = change_data.run(spark, tmp_path)
    assert (first.num_target_rows_inserted, first.num_tombstones) == (1, 1)
    change_data.write_records(tmp_path, change_data.LATE, len(change_data.FIRST))
    [late] = change_data.run(spark, tmp_path)
    assert (late.num_target_rows_inserted, late.num_outdated_rows, late.num_quarantined_rows) == (1, 1, 1)
    target = warehouse / "customers_of_the_database"
    assert rows_of(target, "id", "name", "notes") == [(1, "Ada L.", "a long text"), (4, "Barbara", None)]
    assert rows_of(warehouse / "customers_rejected", "offset", "value") == [(6, '{"op": "c", "after": ')]


def test_the_partial_updates_example(spark, tmp_path):
    assert [tuple(row) for row in partial_updates.run(spark, tmp_path).collect()] == [
        (1, "ada@example.org", "+44 1", 0.7),
        (2, "grace@example.org", None, None),
        (3, None, None, 0.5),
    ]
