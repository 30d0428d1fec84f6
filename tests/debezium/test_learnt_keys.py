"""Tables of any keys through one sink or router: the keys come from the records, or from what the table remembers."""

import pickle
import re

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from stream_merge import ConfigError, RouterError, debezium, merge_router, merge_sink
from stream_merge.cli.discover.findings import key_row
from stream_merge.cli.query.messages import SampledRecord, message_of
from stream_merge.debezium.keys import ROUTED_FROM as SHARD
from stream_merge.debezium.keys import ToldKeys, told_keys, with_key_parts
from stream_merge.errors import ConfigurationChangedError
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record, with_schema

KEY = {"id": 1}
ROW = envelope("c", {"id": 1, "name": "a"})
ID = {"field": "id", "type": "int64"}
COLUMNS = {
    "customers": "id BIGINT, name STRING",
    "visits": "page STRING, seconds INT",
    "odd": "`a b` INT, `key``tick` STRING, `Id` INT",
}


def of(table, key, value, offset=0, **headers):
    """Return a record of one table of a database."""
    one = list(record(key, value, offset, **headers))
    one[2] = f"shop.public.{table}"
    return tuple(one)


def prepare(topic, records):
    return debezium.changes(records, COLUMNS[topic.rpartition(".")[2]])


@pytest.fixture
def make_router(tmp_path):
    """Return a function that makes a new router, as a process that was started again has it."""

    def make():
        sink = merge_sink(f"{tmp_path}/{{table}}", learn=debezium.learn_options, create_if_missing=True)
        return merge_router({re.compile(r"shop\.public\.(?P<table>\w+)"): sink}, prepare=prepare)

    return make


@pytest.fixture
def rows_of(read_rows, tmp_path):
    """Return a function that gives a table's own columns, in order."""

    def rows(table):
        names = debezium.fields.resolve_columns(COLUMNS[table])
        return [
            tuple(row) for row in read_rows(f"{tmp_path}/{table}", *(f"`{name.replace('`', '``')}`" for name in names))
        ]

    return rows


def told(known=None, **kinds):
    """Return what one group of records for each kind of key tells."""
    parts = {
        "topic": "t",
        "key_schema": None,
        "key_names": None,
        "is_odd_key": False,
        "row_kind": None,
        "key_text": "7",
    }
    return told_keys([Row(**{**parts, **kind}) for kind in kinds.values()], known)


def test_what_records_tell():
    names, others, swapped = ({"key_names": names} for names in (["a", "b"], ["a"], ["b", "a"]))
    part = {"key_schema": '{"type": "struct", "fields": [{"field": "a"}, {"field": "b"}]}'}
    odd, row, none = {"is_odd_key": True}, {"row_kind": "row"}, {}
    both = ("a", "b")
    assert told(x=names, y=part, z=swapped, odd=odd, row=row, none=none) == ToldKeys(both)
    assert told(("c",), x=names) == ToldKeys(both)
    assert told(("c",), odd=odd, row=row) == ToldKeys(("c",))
    assert told(none=none) == told() == ToldKeys()
    assert told((), none=none) == told(none=none, row=row, flat={"row_kind": "flattened"}) == ToldKeys(())
    for fault, kinds in (
        ("keys differ among the records of t: a, b and a; name", {"x": names, "y": others}),
        ("keys differ among the records of t: a and a, b; name", {"x": others, "y": part, "z": swapped}),
        ("keys of the records of t are not JSON objects of the key columns: 7; let", {"odd": odd, "row": row}),
        ("keys of the records of t are not JSON objects", {"scalar": {"key_schema": '{"type": "int64"}'}}),
        ("keys of t are not sent, and its messages are not envelopes", {"flat": {"row_kind": "flattened"}}),
        ("keys of t are not sent, and its events have no place in", {"row": {"row_kind": "unplaced"}, "none": none}),
    ):
        found = told(**kinds)
        assert found.names is None
        assert found.fault.startswith(fault)


def test_what_is_read_of_a_record(spark):
    flat = {"id": 1, "name": "a", "__deleted": "false"}
    with_key = with_schema([ID, {"field": "a b", "type": "string"}], {"id": 1, "a b": "x"})
    cases = (
        (record({"a b": 1, "key`tick": {"x": 2}}, ROW), (["a b", "key`tick"], False, None)),
        (record({"schema": "public", "payload": 2}, None), (["schema", "payload"], False, None)),
        (record(with_key, ROW), ("schema", False, None)),
        (record(7, ROW), (None, True, None)),
        (record(b"{", ROW), (None, True, None)),
        (record({}, ROW), ([], True, None)),
        (record({"schema": {"a": 1}, "b": 2}, ROW), ("schema", False, None)),
        (record(None, None), (None, False, None)),
        (record(b"null", ROW), (None, False, "row")),
        (record(b'{"schema":null,"payload":null}', with_schema([], ROW)), (None, False, "row")),
        (record(None, with_schema([], flat)), (None, False, "flattened")),
        (record(None, envelope("c", {"id": 1}, connector="x", ts_ms=1)), (None, False, "unplaced")),
        (record(None, envelope("t")), (None, False, None)),
        (record(None, b"{"), (None, False, None)),
    )
    frame = frame_of(spark, *(case for case, _ in cases)).withColumn("is_tombstone", F.expr("value IS NULL"))
    rows = with_key_parts(frame).collect()
    shown = [("schema" if row["key_schema"] else row["key_names"], row["is_odd_key"], row["row_kind"]) for row in rows]
    assert shown == [expected for _, expected in cases]
    # `init --from kafka` tells the same of a record without Spark.
    sampled = [SampledRecord(topic=topic, key=key, value=value) for (key, value, topic, *_), _ in cases]
    parts = [key_row(each, message_of(each)) for each in sampled]
    assert [
        ("schema" if part["key_schema"] else [*(part["key_names"] or ())] or None, part["is_odd_key"], part["row_kind"])
        for part in parts
    ] == [(names or None, *others) for names, *others in shown]
    assert debezium.learn_keys(frame.where("key IS NULL OR CAST(key AS STRING) = 'null'")) == ()


def test_one_pattern_takes_tables_of_any_keys(spark, make_router, rows_of, tmp_path):
    visit, odd = {"page": "/", "seconds": 3}, {"a b": 1, "key`tick": "k", "Id": 5}
    key = {"a b": 1, "key`tick": "k"}
    make_router().merge(
        frame_of(
            spark,
            of("customers", KEY, envelope("c", {"id": 1, "name": "a"}, lsn=1)),
            of("customers", {"id": 2}, envelope("d", None, {"id": 2}, lsn=2)),
            of("visits", None, envelope("c", visit, lsn=3)),
            of("visits", None, envelope("c", visit, lsn=4)),
            of("odd", key, envelope("c", odd, lsn=5)),
        )
    )
    assert rows_of("customers") == [(1, "a")]
    assert rows_of("visits") == [("/", 3), ("/", 3)]
    assert rows_of("odd") == [(1, "k", 5)]

    # A new process; what tells no keys is told by the tables.
    router = pickle.loads(pickle.dumps(make_router()))
    new = {**key, "a b": 2}
    results = router.merge(
        frame_of(
            spark,
            of("customers", None, envelope("t", lsn=10)),
            of("visits", None, envelope("t", lsn=12)),
            of("odd", key, envelope("d", None, odd, lsn=13), **{"__debezium.newkey": new}),
            of("odd", key, None, **{"__debezium.newkey": new}),
            of("odd", new, envelope("c", {**new, "Id": PLACEHOLDER}, lsn=13), **{"__debezium.oldkey": key}),
        )
    )
    assert results["shop.public.customers"].num_target_rows_deleted == 1
    assert (rows_of("customers"), rows_of("visits"), rows_of("odd")) == ([], [], [(2, "k", 5)])

    # The sinks are those of the batch before.
    with pytest.raises(RouterError) as caught:
        router.merge(
            frame_of(
                spark,
                of("customers", {"id": 3}, envelope("c", {"id": 3, "name": "c"}, lsn=20)),
                of("odd", None, envelope("c", odd, lsn=22)),
                of("visits", {"page": "/"}, envelope("c", visit, lsn=23), 1),
                of("visits", {"seconds": "/"}, envelope("c", visit, lsn=24), 2),
            )
        )
    assert rows_of("customers") == [(3, "c")]
    assert rows_of("visits") == []
    assert {name: type(error) for name, error in caught.value.failures.items()} == {
        "shop.public.odd": ConfigurationChangedError,
        "shop.public.visits": ConfigError,
    }
    assert "/odd was written with keys a b, key`tick, and the sink now has none" in str(caught.value)
    assert "keys differ among the records of shop.public.visits: page and seconds" in str(caught.value)
    # Nothing was added to a table that was refused.
    assert "_stream_merge_row_id" not in spark.read.format("delta").load(f"{tmp_path}/odd").columns


def test_one_sink_by_itself(spark, tmp_path, read_rows):
    path = str(tmp_path / "t")
    sink = merge_sink(path, learn=debezium.learn_options, create_if_missing=True, app_id="learns")
    row = {"type": "struct", "field": "after", "optional": True, "fields": [ID, {"field": "name", "type": "string"}]}
    parts = [row, {"field": "op", "type": "string"}, {"type": "struct", "field": "source", "fields": []}]
    # Only the value has a schema part.
    create = frame_of(spark, record(KEY, with_schema(parts, ROW)))
    truncate = frame_of(spark, record(None, with_schema(parts, envelope("t", lsn=200))))
    with pytest.raises(
        ConfigError, match="no record tells the keys, since a TRUNCATE has none, and the table does not"
    ):
        sink(debezium.changes(truncate), 0)
    learnt = debezium.learn_columns(truncate)
    assert (learnt.keys, debezium.learn_columns(frame_of(spark, record(KEY, None)), learnt).keys) == (None, ("id",))
    for _ in range(2):  # a batch that is delivered again is left out
        sink(debezium.changes(create), 0)
        assert [tuple(row) for row in read_rows(path, "id", "name")] == [(1, "a")]
    assert "on        " in sink.explain(debezium.changes(create))
    assert sink.config.keys == ()
    with pytest.raises(ConfigurationChangedError, match="written with keys id, and the sink now has name"):
        sink.explain(debezium.changes(create, keys=["name"]))
    sink(debezium.changes(truncate), 1)
    assert read_rows(path, "id") == []


def test_sources_of_one_table_have_the_same_keys(spark, tmp_path):
    sink = merge_sink(str(tmp_path / "t"), learn=debezium.learn_options, create_if_missing=True)
    router = merge_router(
        {re.compile(".*"): sink}, prepare=lambda _, records: debezium.changes(records, "a INT, b INT")
    )
    row = envelope("c", {"a": 1, "b": 1})
    with pytest.raises(RouterError, match=r"shop\.public\.x, shop\.public\.y: their rows have different keys"):
        router.merge(frame_of(spark, of("x", {"a": 1}, row), of("y", {"b": 1}, row)))
    results = router.merge(frame_of(spark, of("x", {"a": 1}, row), of("y", {"a": 2}, envelope("c", {"a": 2, "b": 2}))))
    assert results["shop.public.x"].num_target_rows_inserted == 2


def test_what_learn_may_return(spark):
    rows = spark.range(1)
    sequence, excepted = {"sequence_by": "b"}, {"except_columns": ["id"]}
    for match, learnt, options in (
        ("learn returned a list; return a mapping", ["id"], {}),
        ("learn returned 'target'; it can return keys, on", {"target": "t"}, {}),
        ("learn returned sequence_by, which the sink has already", {"keys": "id", "sequence_by": "a"}, sequence),
        ("give exactly one of keys, on and before", {"error_column": "e"}, {}),
        ("except_columns names the key id", {"keys": "id", "except_columns": "x"}, excepted),
    ):
        sink = merge_sink("/none", learn=lambda *_, learnt=learnt: learnt, **options)
        with pytest.raises(ConfigError, match=match):
            sink.merge(rows)
    with pytest.raises(ConfigError, match="the rows have no struct _change"):
        merge_sink("/none", learn=debezium.learn_options).merge(rows)


@pytest.mark.every_case
def test_a_key_in_another_case_is_no_column_of_its_own(spark):
    parts = [{"type": "struct", "field": "after", "optional": True, "fields": [ID]}, {"field": "op", "type": "string"}]
    value = with_schema([*parts, {"type": "struct", "field": "source", "fields": []}], envelope("c", {"id": 1}))
    records = frame_of(spark, record(with_schema([{"field": "Id", "type": "int64"}], {"Id": 1}), value))
    with pytest.raises(ConfigError, match=r"key 'Id' is not among the columns id$"):
        debezium.changes(records)


def test_shards_that_come_as_one_topic(spark, tmp_path, read_rows):
    """As ByLogicalTableRouter sends them: the key alone tells which table a row is from."""
    identifier = {"field": SHARD, "type": "string"}
    name = {"field": "name", "type": "string", "optional": True}
    parts = [
        {"type": "struct", "field": image, "optional": True, "fields": [ID, name]} for image in ("before", "after")
    ]
    parts += [{"field": "op", "type": "string"}, {"type": "struct", "field": "source", "fields": []}]

    def of_shard(shard, number, value, **headers):
        key = with_schema([ID, identifier], {"id": number, SHARD: shard})
        return record(key, with_schema(parts, value) if value else None, **headers)

    def row(op, number, text, lsn):
        images = (None, {"id": number}) if op == "d" else ({"id": number, "name": text}, None)
        return envelope(op, *images, connector="postgresql", snapshot="false", lsn=lsn)

    path = str(tmp_path / "t")
    sink = merge_sink(path, learn=debezium.learn_options, create_if_missing=True, app_id="shards")
    learnt = None

    def merge(number, *records):
        nonlocal learnt
        frame = frame_of(spark, *records)
        learnt = debezium.learn_columns(frame, learnt)
        sink(debezium.changes(frame, learnt), number)
        return [tuple(row) for row in read_rows(path, "id", SHARD, "name")]

    assert merge(0, *(of_shard(shard, 1, row("c", 1, shard, lsn)) for shard, lsn in (("s1", 5), ("s2", 3)))) == [
        (1, "s1", "s1"),
        (1, "s2", "s2"),
    ]
    assert learnt.fields[SHARD].is_in_key_only
    # Only records without a value, whose keys have no schema part.
    assert merge(1, record({"id": 1, SHARD: "s1"}, None)) == [(1, "s1", "s1"), (1, "s2", "s2")]
    # The headers have the key as the connector sent it.
    given = {name: field.data_type for name, field in learnt.fields.items()}
    arrival = of_shard("s2", 2, row("c", 2, PLACEHOLDER, 20), **{"__debezium.oldkey": {"id": 1}})
    (change,) = debezium.changes(frame_of(spark, arrival), given).collect()
    assert (change["_change"]["old_key"], change[SHARD]) == (Row(**{"id": 1, SHARD: "s2"}), "s2")
    moved = (
        of_shard("s2", 1, row("d", 1, None, 20), **{"__debezium.newkey": {"id": 2}}),
        of_shard("s2", 2, row("c", 2, PLACEHOLDER, 20), **{"__debezium.oldkey": {"id": 1}}),
    )
    assert merge(2, *moved, of_shard("s1", 2, row("c", 2, "b", 6))) == [
        (1, "s1", "s1"),
        (2, "s1", "b"),
        (2, "s2", "s2"),
    ]
    # Without the identifier, what tells one shard from another is no column.
    create = of_shard("s1", 1, row("c", 1, "a", 1))
    assert debezium.changes(frame_of(spark, create), learnt, ["id"]).columns == ["id", "name", "_change"]
    assert merge(3, of_shard("s1", 2, row("d", 2, None, 30)), of_shard("s1", 1, row("u", 1, "new", 31))) == [
        (1, "s1", "new"),
        (2, "s2", "s2"),
    ]
