"""Tables that follow the columns of their source (`schema_changes`), compared with rows and with Delta's own MERGE."""

from __future__ import annotations

import logging
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from delta.tables import DeltaTable

from stream_merge import merge_sink
from stream_merge.errors import SchemaChangedError, SchemaMismatchError, StreamMergeError
from tests.spark.delta_log import actions_of, latest_version

AT = datetime.fromisoformat("2026-01-02T03:00:00")
WIDENING = {"delta.enableTypeWidening": "true"}


def following(path: str, mode: str = "evolve", **options: Any) -> Any:
    options = {"keys": "id", "sequence_by": "s", "except_columns": ["s"], **options}
    return merge_sink(path, schema_changes=mode, **options)


def schema_of(spark, path):
    return {each.name: each.dataType.simpleString() for each in spark.read.format("delta").load(path).schema}


def operations(spark, path, since=0):
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"version > {since}").orderBy("version")
    return [row["operation"] for row in history.collect()]


def changed_schemas(path, since=0):
    """Return the versions whose commits change the metadata."""
    return [v for v in range(since + 1, latest_version(path) + 1) if actions_of(path, v, "metaData")]


@pytest.mark.core
@pytest.mark.any_strategy
@pytest.mark.parametrize(
    "properties",
    [{}, {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}],
    ids=["plain", "change feed and mapping"],
)
def test_new_columns_and_types_come_with_the_batch(
    spark, create_table, create_source, read_rows, deletion_vectors, properties, tmp_path
):
    schema, row = "id INT, n INT, d DECIMAL(8, 2), f FLOAT, p STRUCT<a: INT>, l ARRAY<INT>, own STRING", (
        1, 1, Decimal("1.25"), 0.5, (1,), [1], "mine",
    )  # fmt: skip
    path = create_table(schema, [row], deletion_vectors=deletion_vectors, properties=properties | WIDENING)
    twin = create_table(schema, [row], path=str(tmp_path / "twin"), properties=properties | WIDENING)
    sink = following(path)
    sink.merge(create_source("id INT, n INT, s INT", [(2, 2, 1)]))
    before = latest_version(path)
    source = create_source(
        "id INT, n BIGINT, d DECIMAL(12, 4), f DOUBLE, p STRUCT<a: BIGINT, b: STRING>, l ARRAY<BIGINT>, new DATE, "
        "s INT",
        [
            (1, 2**40, Decimal("1.0625"), 0.1, (2**40, "x"), [2**40], date(2026, 1, 1), 2),
            (3, 3, Decimal("3.5"), 3.0, (3, None), [3], None, 2),
        ],
    )
    sink.merge(source)
    # One commit has rows, columns, types and the micro-batch.
    assert (operations(spark, path, before), changed_schemas(path, before)) == (["MERGE"], [before + 1])
    assert read_rows(path, "id", "n", "d", "f", "p", "l", "new", "own") == [
        (1, 2**40, Decimal("1.0625"), 0.1, (2**40, "x"), [2**40], date(2026, 1, 1), "mine"),
        (2, 2, None, None, None, None, None, None),
        (3, 3, Decimal("3.5000"), 3.0, (3, None), [3], None, None),
    ]
    if properties:
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", before + 1)
        images = feed.load(path).orderBy("id", "_change_type").select("_change_type", "id", "n", "d", "p", "new")
        assert images.collect() == [
            ("update_postimage", 1, 2**40, Decimal("1.0625"), (2**40, "x"), date(2026, 1, 1)),
            ("update_preimage", 1, 1, Decimal("1.2500"), (1, None), None),
            ("insert", 3, 3, Decimal("3.5000"), (3, None), None),
        ]
    # The next batches find the table as they need it, and so does one of the old types.
    sink.merge(create_source("id INT, n INT, d DECIMAL(8, 2), s INT", [(1, 7, Decimal("7.25"), 3)]))
    assert changed_schemas(path, before + 1) == []
    assert read_rows(path, "n", "d")[2] == (7, Decimal("7.2500"))
    merge = DeltaTable.forPath(spark, twin).alias("t").merge(source.drop("s").alias("s"), "t.id = s.id")
    merge.withSchemaEvolution().whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    ours, theirs = (spark.read.format("delta").load(each).schema for each in (path, twin))
    assert [each for each in ours if not each.name.startswith("_stream_merge_")] == list(theirs)


@pytest.mark.any_strategy
def test_a_table_gets_what_its_new_columns_need(
    spark, create_table, create_source, read_rows, deletion_vectors, caplog
):
    schema = "id INT, n INT, w INT, q STRUCT<x: STRING, d: ARRAY<DECIMAL(8, 2)>>"
    path = create_table(schema, [(1, 1, 1, None)], deletion_vectors=deletion_vectors)
    sink = following(path)
    columns = "id INT, n DOUBLE, w DECIMAL(12, 2), q STRUCT<d: ARRAY<DECIMAL(8, 4)>>, at TIMESTAMP_NTZ, s INT"
    with caplog.at_level(logging.WARNING, "stream_merge"):
        sink.merge(create_source(columns, [(1, 1.5, Decimal("2.25"), ([Decimal("1.0625")],), AT, 1)]))
    assert read_rows(path, "id", "n", "w", "q.d", "at") == [(1, 1.5, Decimal("2.25"), [Decimal("1.0625")], AT)]
    assert schema_of(spark, path)["q"] == "struct<x:string,d:array<decimal(10,4)>>"
    assert caplog.messages == [
        f"{path}: setting delta.enableTypeWidening=true, delta.feature.timestampNtz=supported for new columns and "
        "types; readers without these features cannot read the table any more"
    ]
    # A struct may lack fields, in later batches as well.
    sink.merge(create_source("id INT, q STRUCT<d: ARRAY<DECIMAL(10, 4)>>, s INT", [(1, ([Decimal(3)],), 1)]))
    assert read_rows(path, "q") == [((None, [Decimal("3.0000")]),)]
    # A property that is set to false is a ban.
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'false')")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (m INT)")
    sink.merge(create_source("id INT, m BIGINT, s INT", [(1, 5, 2)]))
    assert (schema_of(spark, path)["m"], read_rows(path, "id", "m")) == ("int", [(1, 5)])
    with pytest.raises(StreamMergeError):
        sink.merge(create_source("id INT, m BIGINT, s INT", [(1, 2**40, 3)]))
    assert read_rows(path, "id", "m") == [(1, 5)]


@pytest.mark.any_strategy
@pytest.mark.parametrize("mode", ["evolve", "lenient"])
def test_a_field_gets_its_type_once_it_has_one(spark, create_table, create_source, read_rows, deletion_vectors, mode):
    path = create_table("id INT, q STRUCT<x: INT>", [(1, (1,)), (2, (2,))], deletion_vectors=deletion_vectors)
    sink = following(path, mode)
    # In Python, say, a field that is always None has no type.
    sink.merge(create_source("id INT, q STRUCT<x: INT, y: VOID>, s INT", [(1, (5, None), 1)]))
    assert read_rows(path, "id", "q.x") == [(1, 5), (2, 2)]
    sink.merge(create_source("id INT, q STRUCT<x: INT, y: DATE>, s INT", [(1, (6, AT.date()), 2), (3, None, 1)]))
    sink.merge(create_source("id INT, q STRUCT<x: INT, y: VOID>, s INT", [(2, (7, None), 2)]))
    assert read_rows(path, "id", "q.x", "q.y") == [(1, 6, AT.date()), (2, 7, None), (3, None, None)]
    assert schema_of(spark, path)["q"] == "struct<x:int,y:date>"
    # What needs no feature of the table sets none.
    properties = spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()
    assert "delta.enableTypeWidening" not in {each["key"] for each in properties}


@pytest.mark.long
def test_a_column_of_a_constraint(spark, create_table, create_source, read_rows):
    path = create_table("id INT, n INT", [(1, 1)], properties=WIDENING, constraints={"positive": "n > 0"})
    with pytest.raises(StreamMergeError) as refused:
        following(path).merge(create_source("id INT, n BIGINT, s INT", [(1, 2**40, 1)]))
    assert "positive" in str(refused.value)
    assert read_rows(path, "id", "n") == [(1, 1)]


@pytest.mark.long
def test_updates_that_change_nothing_are_left_out_with_wider_types_too(create_table, create_source, read_rows):
    path = create_table("id INT, n INT", [(1, 1), (2, 2)], properties=WIDENING)
    sink = following(path, skip_unchanged=True, sequence_by=None, except_columns=())
    result = sink.merge(create_source("id INT, n BIGINT", [(1, 1), (2, 2**40)]))
    assert (result.num_unchanged_rows, read_rows(path)) == (1, [(1, 1), (2, 2**40)])


@pytest.mark.core
def test_a_column_that_the_source_drops_is_null_in_rows_that_change(
    create_table, create_source, read_rows, deletion_vectors
):
    path = create_table("id INT, own STRING", [(1, "o"), (2, "o"), (3, "o")], deletion_vectors=deletion_vectors)
    rows = [(key, f"a{key}", f"b{key}", 1) for key in (1, 2, 3)]
    following(path).merge(create_source("id INT, a STRING, gone STRING, s INT", rows))
    # A process that knows only what the table remembers.
    following(path).merge(create_source("id INT, a STRING, s INT", [(1, "A", 3), (4, "A", 3)]))
    expected = [(1, "A", None, "o"), (2, "a2", "b2", "o"), (3, "a3", "b3", "o"), (4, "A", None, None)]
    assert read_rows(path, "id", "a", "gone", "own") == expected
    # Late changes of the old columns: one is older than its row, the other newer.
    late = create_source("id INT, a STRING, gone STRING, s INT", [(1, "late", "late", 2), (2, "late", "late", 2)])
    following(path).merge(late)
    expected[1] = (2, "late", "late", "o")
    assert read_rows(path, "id", "a", "gone", "own") == expected


@pytest.mark.any_strategy
def test_not_null_goes_with_the_column_of_the_source(create_table, create_source, read_rows, deletion_vectors, spark):
    columns = "id INT NOT NULL, gone STRING NOT NULL, d INT NOT NULL"
    path = create_table(columns, deletion_vectors=deletion_vectors)
    following(path).merge(create_source("id INT, gone STRING, d INT, s INT", [(1, "g", 1, 1)]))
    result = following(path, "lenient").merge(create_source("id INT, d STRING, s INT", [(1, "x", 2), (2, "y", 2)]))
    # The batch reads the table as it has altered it, so that it has no conflict with itself.
    assert result.num_commit_attempts == 1
    assert read_rows(path, "id", "gone", "d", "d__string") == [(1, None, None, "x"), (2, None, None, "y")]
    assert [each.nullable for each in spark.read.format("delta").load(path).schema[:3]] == [False, True, True]


@pytest.mark.any_strategy
def test_single_columns_follow_too(spark, create_table, create_source, read_rows, deletion_vectors):
    """Changes that leave columns alone: each column has the newest value that was set, whatever the type was then."""
    path = create_table("id INT", deletion_vectors=deletion_vectors)

    def merge(columns, *rows, mode="evolve"):
        source = create_source(f"id INT, {columns}, left ARRAY<STRING>, s INT", rows)
        following(path, mode, unchanged_columns="left", except_columns=["s", "left"]).merge(source)

    merge("n INT, gone STRING", (1, 1, "g", None, 2), (2, 2, "g", None, 2), (3, 3, "g", None, 2))
    merge("n BIGINT, new STRING", (1, None, "x", ["n"], 4), (2, 2**40, None, ["new"], 4))
    assert schema_of(spark, path)["n"] == "bigint"
    assert read_rows(path, "id", "n", "gone", "new") == [
        (1, 1, None, "x"),
        (2, 2**40, None, None),
        (3, 3, "g", None),
    ]
    # Newer than the value of n in row 1, older than its other columns; and older than all in row 2.
    merge("n INT, gone STRING", (1, 11, "late", None, 3), (2, 22, "late", None, 1), (3, None, "late", ["n"], 3))
    assert read_rows(path, "id", "n", "gone", "new") == [
        (1, 11, None, "x"),
        (2, 2**40, None, None),
        (3, 3, "late", None),
    ]
    merge("n STRING", (2, "text", None, 5), mode="lenient")
    assert read_rows(path, "id", "n", "n__string")[1] == (2, None, "text")


@pytest.mark.core
def test_keys_and_sequences_are_widened_before_the_batch_and_deletes_stay(
    spark, create_table, create_source, read_rows, deletion_vectors, at_step
):
    path = create_table("id INT, s INT, v STRING", [(1, 1, "a"), (2, 1, "b")], deletion_vectors=deletion_vectors)

    def sink():
        return following(path, except_columns=["op"], delete_when="op = 'd'")

    sink().merge(create_source("id INT, s INT, v STRING, op STRING", [(1, 5, None, "d")]))
    before = latest_version(path)
    rows = [(1, 4, "older than the delete", "u"), (2**40, 4, "new", "u"), (2, 2**40, None, "d")]
    source = create_source("id BIGINT, s BIGINT, v STRING, op STRING", rows)

    def die() -> None:
        raise KeyboardInterrupt

    # After each of these commits, the next process takes the table as it is.
    for _ in range(3):
        at_step("altered", die)
        with pytest.raises(KeyboardInterrupt):
            sink().merge(source)
    sink().merge(source)
    assert operations(spark, path, before) == ["SET TBLPROPERTIES", "CHANGE COLUMN", "CHANGE COLUMN", "MERGE"]
    assert read_rows(path, "id", "v") == [(2**40, "new")]
    sink().merge(create_source("id INT, s INT, v STRING, op STRING", [(2, 9, "older", "u"), (1, 9, "newer", "u")]))
    assert read_rows(path, "id", "v") == [(1, "newer"), (2**40, "new")]


@pytest.mark.any_strategy
def test_values_that_do_not_fit_are_set_aside_or_get_a_column(
    spark, create_table, create_source, read_rows, deletion_vectors, caplog, tmp_path
):
    path = create_table("id INT, n INT", deletion_vectors=deletion_vectors)
    first = create_source("id INT, n INT, s INT", [(1, 1, 1), (2, 2, 1)])
    text = create_source("id INT, n STRING, s INT", [(1, "11", 2), (2, "many", 2)])
    rejected = str(tmp_path / "rejected")
    with caplog.at_level(logging.WARNING, "stream_merge"):
        for _ in range(2):
            following(path, quarantine=rejected).merge(first)
            following(path, quarantine=rejected).merge(text)
    assert read_rows(path, "id", "n") == [(1, 11), (2, 2)]
    assert {row["reason"] for row in read_rows(rejected)} == {"n cannot be converted to INT: many"}
    assert "n is STRING in the source and INT in the table; a value that INT cannot hold is an error" in caplog.text
    with pytest.raises(StreamMergeError, match="many"):
        following(path).merge(text)
    caplog.clear()
    sink = following(path, "lenient")
    with caplog.at_level(logging.WARNING, "stream_merge"):
        sink.merge(create_source("id INT, n STRING, s INT", [(2, "many", 3)]))
        sink.merge(create_source("id INT, n STRING, s INT", [(3, "3", 3)]))
    assert caplog.messages == [
        f"{path}: the table's n cannot hold the values of the source any more; they go to n__string, and n is NULL in "
        "rows that change from now on"
    ]
    assert read_rows(path, "id", "n", "n__string") == [(1, 11, None), (2, None, "many"), (3, None, "3")]
    # A late change of the old type goes to the old column.
    following(path, "lenient").merge(create_source("id INT, n INT, s INT", [(3, 33, 4), (2, 0, 2)]))
    assert read_rows(path, "id", "n", "n__string") == [(1, 11, None), (2, None, "many"), (3, 33, None)]


def test_a_sink_may_stop_or_leave_the_table_as_it_is(create_table, create_source, read_rows, caplog):
    path = create_table("id INT, n INT, own INT", [(1, 1, 1)])
    following(path, "error").merge(create_source("id INT, n INT, s INT", [(1, 2, 1)]))
    version = latest_version(path)
    with pytest.raises(SchemaChangedError) as stopped:
        following(path, "error").merge(create_source("id BIGINT, new DATE, s INT", [(1, None, 2)]))
    assert "left out" not in caplog.text
    changes = ("new (DATE) is new", "id needs the wider type BIGINT", "n is no column of the source any more")
    assert stopped.value.changes == changes
    assert str(stopped.value) == (
        f"{path}: the columns of the source have changed: {'; '.join(changes)}. Change the table to fit, or set "
        'schema_changes to "evolve", "lenient" or "ignore".'
    )
    assert latest_version(path) == version
    following(path, "ignore").merge(create_source("id BIGINT, new DATE, s INT", [(1, None, 2), (2, None, 2)]))
    assert "has no column new, so its values are left out" in caplog.text
    assert read_rows(path, "id", "n", "own") == [(1, 2, 1), (2, None, None)]


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ADD COLUMNS (new INT)", ("bigint", "int")),
        ("ADD COLUMNS (new BIGINT)", ("bigint", "bigint")),
        ("CHANGE COLUMN n TYPE BIGINT", ("bigint", "int")),
        ("CHANGE COLUMN n TYPE DECIMAL(20, 0)", ("decimal(20,0)", "int")),
    ],
)
def test_another_writer_may_alter_the_table_first(
    spark, create_table, create_source, read_rows, at_step, deletion_vectors, change, expected
):
    path = create_table("id INT, n INT", [(1, 1)], deletion_vectors=deletion_vectors, properties=WIDENING)
    sink = following(path)
    sink.merge(create_source("id INT, n INT, s INT", [(2, 2, 1)]))
    at_step("before_commit", lambda: spark.sql(f"ALTER TABLE delta.`{path}` {change}"))
    result = sink.merge(create_source("id INT, n BIGINT, new INT, s INT", [(1, 2**40, 7, 2), (3, 3, 8, 2)]))
    assert result.num_commit_attempts == 2
    assert (schema_of(spark, path)["n"], schema_of(spark, path)["new"]) == expected
    assert read_rows(path, "id", "n", "new") == [(1, 2**40, 7), (2, 2, None), (3, 3, 8)]


@pytest.mark.any_strategy
def test_a_table_without_a_key_follows(spark, create_table, create_source, read_rows, deletion_vectors):
    path = create_table("a INT", deletion_vectors=deletion_vectors)
    options = {"keys": None, "before": "b", "delete_when": "op = 'd'", "except_columns": ["b", "op", "s"]}

    def merge(columns, *rows):
        source = create_source(f"{columns}, b STRUCT<{columns}>, op STRING, s INT", rows)
        following(path, **options).merge(source)

    merge("a: INT", (1, None, "c", 1), (1, None, "c", 2), (2, None, "c", 3))
    merge("a: BIGINT, n: STRING", (2**40, "x", None, "c", 4), (5, "y", (1, None), "u", 5))
    assert (schema_of(spark, path)["a"], read_rows(path, "a", "n")) == (
        "bigint",
        [(1, None), (2**40, "x"), (2, None), (5, "y")],
    )
    merge("a: INT", (None, (2,), "d", 6))
    assert read_rows(path, "a", "n") == [(1, None), (2**40, "x"), (5, "y")]


@pytest.mark.any_strategy
@pytest.mark.every_case
@pytest.mark.parametrize("op", ["d", "t"])
def test_deletes_stay_when_the_days_of_a_sequence_get_a_clock(create_table, create_source, read_rows, op):
    path = create_table("id INT, v STRING, at DATE", properties=WIDENING)
    options = {"delete_when": "op = 'd'", "truncate_when": "op = 't'", "except_columns": ["op"]}
    sink = following(path, sequence_by="at", **options)
    columns = "id INT, v STRING, at DATE, op STRING"
    sink.merge(create_source(columns, [(1, "a", date(2026, 1, 1), "u")]))
    sink.merge(create_source(columns, [(1, None, date(2026, 1, 5), op)]))
    late, new = (1, "late", datetime.fromisoformat("2026-01-04T23:59:59.999999"), "u"), (2, "other", AT, "u")
    newer = (3, "newer", datetime.fromisoformat("2026-01-05T00:00:00.000001"), "u")
    result = sink.merge(create_source(columns.replace("DATE", "TIMESTAMP_NTZ"), [late, new, newer]))
    # A TRUNCATE concerns all keys.
    expected = (1, [2, 3]) if op == "d" else (2, [3])
    assert (result.num_outdated_rows, [row["id"] for row in read_rows(path)]) == expected


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    ("kept", "value", "sent", "same", "other"),
    [
        ("INT", 5, "DOUBLE", 5.0, 5.5),
        ("FLOAT", 0.1, "DOUBLE", 0.10000000149011612, 1e300),
        ("DATE", date(2026, 1, 2), "TIMESTAMP_NTZ", datetime.fromisoformat("2026-01-02"), AT),
        ("STRUCT<n: INT>", (5,), "STRUCT<n: DOUBLE>", (5.0,), (5.5,)),
        ("INT", 5, "DECIMAL(12, 2)", Decimal("5.00"), None),
    ],
)
def test_rows_without_a_key_are_found_whatever_type_they_came_in(
    spark, create_table, create_source, read_rows, kept, value, sent, same, other
):
    path = create_table(f"a {kept}")
    options = {"keys": None, "before": "b", "delete_when": "op = 'd'", "except_columns": ["b", "op", "s"]}

    def merge(kind, *rows):
        source = create_source(f"a {kind}, b STRUCT<a: {kind}>, op STRING, s INT", rows)
        following(path, **options).merge(source)

    merge(kept, (value, None, "c", 1), (value, None, "c", 2))
    merge(sent, (None, (same,), "d", 3), (same, None, "c", 4))
    merge(sent, (None, (same,), "d", 5), (None, (same,), "d", 6))
    assert read_rows(path, "a") == []
    if other is None:
        assert schema_of(spark, path)["a"] == "decimal(12,2)"
        return
    assert schema_of(spark, path)["a"] == kept.lower().replace(": ", ":")
    merge(sent, (same, None, "c", 7))
    # Nor is the other value's removal that of the value to which it would be rounded.
    for row in ((other, None, "c", 8), (None, (other,), "d", 8)):
        with pytest.raises(SchemaMismatchError):
            merge(sent, row)
    assert len(read_rows(path)) == 1


@pytest.mark.any_strategy
def test_a_change_leaves_the_column_alone_that_has_the_values_of_another(create_table, create_source, read_rows):
    path = create_table("id INT, Notes INT, v STRING")
    sink = following(path, "lenient", unchanged_columns="unsent", except_columns=["unsent", "s"])

    def merge(kind, *rows):
        sink.merge(create_source(f"id INT, Notes {kind}, v STRING, s INT, unsent ARRAY<STRING>", rows))

    merge("INT", (1, 5, "a", 1, []))
    merge("STRING", (1, "text", "b", 2, []), (2, "more", "b", 2, None))
    merge("STRING", (1, None, "c", 3, ["notes"]), (2, None, "c", 3, ["v", "Notes"]), (3, None, "new", 3, ["Notes"]))
    assert read_rows(path, "id", "Notes", "Notes__string", "v") == [
        (1, None, "text", "c"),
        (2, None, "more", "b"),
        (3, None, None, "new"),
    ]
    merge("DATE", (2, None, "d", 4, ["NOTES"]), (4, AT.date(), "d", 4, None))
    merge("INT", (1, None, "d", 5, ["notes"]), (2, 7, "d", 5, None), (4, None, "e", 5, ["Notes"]), (5, 8, "e", 5, []))
    assert read_rows(path, "id", "Notes", "Notes__string", "Notes__date", "v") == [
        (1, None, "text", None, "d"),
        (2, 7, None, None, "d"),
        (3, None, None, None, "new"),
        (4, None, None, AT.date(), "e"),
        (5, 8, None, None, "e"),
    ]


@pytest.mark.any_strategy
@pytest.mark.parametrize(("mode", "left"), [("evolve", None), ("lenient", "b")])
def test_only_lenient_gives_such_names_a_meaning(create_table, create_source, read_rows, mode, left):
    path = create_table("id INT, a INT, a__string STRING")
    sink = following(path, mode, unchanged_columns="unsent", except_columns=["unsent", "s"])
    sink.merge(create_source("id INT, a INT, a__string STRING, s INT, unsent ARRAY<STRING>", [(1, 1, "b", 1, None)]))
    sink.merge(create_source("id INT, a INT, s INT, unsent ARRAY<STRING>", [(1, None, 2, ["a"])]))
    assert read_rows(path, "id", "a", "a__string") == [(1, 1, left)]


@pytest.mark.any_strategy
@pytest.mark.parametrize(
    "options",
    [
        {"delete_when": "source.N = '9'"},
        {"truncate_when": "n = '9'", "ignore_null_updates": True},
        {"ignore_null_updates": ["n"]},
        {"sequence_by": ["CAST(n AS DOUBLE)", "s"]},
        {"tie_break_by": ["n"]},
    ],
    ids=str,
)
def test_a_column_that_decides_what_a_change_does_keeps_its_values(
    spark, create_table, create_source, read_rows, options
):
    path = create_table("id INT, n INT")
    sink = following(path, "lenient", **options)
    sink.merge(create_source("id INT, n INT, s INT", [(1, 1, 1), (2, 1, 1)]))
    sink.merge(create_source("id INT, n STRING, s INT", [(2, "8", 2)]))
    assert ("n__string" in schema_of(spark, path), read_rows(path, "id", "n")) == (False, [(1, 1), (2, 8)])
    with pytest.raises(StreamMergeError):
        sink.merge(create_source("id INT, n STRING, s INT", [(2, "many", 3)]))
    if "delete_when" in options:
        sink.merge(create_source("id INT, n STRING, s INT", [(2, "9", 4)]))
        assert read_rows(path, "id", "n") == [(1, 1)]


@pytest.mark.any_strategy
def test_a_column_with_an_odd_name_keeps_its_values_if_an_option_names_it(create_table, create_source, read_rows):
    path = create_table("id INT, `N``x-y` INT, `N` INT")
    sink = following(path, "lenient", delete_when="source.`n``X-y` = '9'")
    sink.merge(create_source("id INT, `N``x-y` STRING, `N` STRING, s INT", [(1, "1", "a", 1), (2, "1", "b", 1)]))
    sink.merge(create_source("id INT, `N``x-y` STRING, `N` STRING, s INT", [(1, "9", "a", 2), (2, "8", "c", 2)]))
    # The other column is not named, whose name is a part of the one that is.
    assert read_rows(path, "id", "`N``x-y`", "N", "N__string") == [(2, 8, None, "c")]


@pytest.mark.any_strategy
def test_an_option_may_not_name_a_column_that_the_source_has_dropped(create_table, create_source, read_rows):
    path = create_table("id INT, gone BOOLEAN, n INT")
    sink = following(path, delete_when="gone")
    sink.merge(create_source("id INT, gone BOOLEAN, n INT, s INT", [(1, False, 1, 1)]))
    with pytest.raises(StreamMergeError, match="gone"):
        sink.merge(create_source("id INT, n INT, s INT", [(1, 2, 2)]))
    assert read_rows(path, "id", "gone", "n") == [(1, False, 1)]


@pytest.mark.any_strategy
def test_floats_of_a_sequence_count_with_all_their_digits_as_doubles(create_table, create_source, read_rows):
    path = create_table("id INT, v STRING, at FLOAT", properties=WIDENING)
    sink = following(path, sequence_by="at", delete_when="op = 'd'", except_columns=["op"])
    # A FLOAT, whose shortest text is 1.04350654E11.
    sink.merge(create_source("id INT, v STRING, at FLOAT, op STRING", [(1, None, 104350654464.0, "d")]))
    sink.merge(create_source("id INT, v STRING, at DOUBLE, op STRING", [(1, "late", 104350654200.0, "u")]))
    assert read_rows(path) == []


@pytest.mark.any_strategy
def test_timestamps_stay_what_they_are_in_sessions_that_call_others_so(spark, create_table, create_source, read_rows):
    path = create_table("id INT, n INT, v STRING, at TIMESTAMP_LTZ")
    options = {"unchanged_columns": "u", "delete_when": "op = 'd'", "except_columns": ["op", "u"]}
    # One local time in America/Sao_Paulo.
    older, newer = (datetime.fromisoformat(f"2017-02-19T0{hour}:30:00+00:00") for hour in (1, 2))

    def merge(*rows, **given):
        source = create_source("id INT, n INT, v STRING, at TIMESTAMP_LTZ, op STRING, u ARRAY<STRING>", rows)
        merge_sink(path, keys="id", **{**options, **given}).merge(source)

    settings = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "America/Sao_Paulo"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        merge((1, 1, "new", newer, "u", []), (2, None, None, newer, "d", None), sequence_by="at")
        merge((1, 2, "old", older, "u", []), (2, 2, "late", older, "u", ["v"]), sequence_by="at")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert read_rows(path, "id", "n", "v") == [(1, 1, "new")]
    assert schema_of(spark, path)["_stream_merge_column_sequences"] == "map<string,struct<s0:timestamp>>"


@pytest.mark.any_strategy
@pytest.mark.parametrize("mode", ["evolve", "lenient"])
@pytest.mark.parametrize(
    "options",
    [
        {"sequence_by": "s"},
        {"sequence_by": "s", "tombstone_retention": timedelta(0)},
        {},
        {"ignore_null_updates": True},
    ],
    ids=["sequence", "no tombstones", "keys", "not sent as NULL"],
)
def test_columns_that_others_add_keep_their_values(
    spark, create_table, create_source, read_rows, deletion_vectors, mode, options
):
    """Without `columns` or `except_columns`: Delta's `SET *` would look for them in the source."""
    path = create_table("id INT, s INT, n INT, theirs STRING", [(1, 1, 1, "x")], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", schema_changes=mode, delete_when="n < 0", **options)
    sink.merge(create_source("id INT, s INT, n INT", [(1, 2, 2), (2, 2, 2), (3, 2, 2)]))
    assert read_rows(path, "id", "s", "n", "theirs") == [(1, 2, 2, "x"), (2, 2, 2, None), (3, 2, 2, None)]
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN later INT")
    spark.sql(f"UPDATE delta.`{path}` SET later = id")
    sink.merge(create_source("id INT, s INT, n INT", [(1, 3, 3), (3, 3, -1), (4, 3, 3)]))
    expected = [(1, 3, 3, "x", 1), (2, 2, 2, None, 2), (4, 3, 3, None, None)]
    assert read_rows(path, "id", "s", "n", "theirs", "later") == expected
    # The source drops a column of its own: NULL from now on, if the table remembers that batches had it.
    sink.merge(create_source("id INT, s INT, n INT, gone INT", [(1, 4, 4, 4)]))
    sink.merge(create_source("id INT, s INT, n INT", [(1, 5, 5), (2, 5, 5)]))
    gone = None if options == {"sequence_by": "s"} else 4
    expected = [(1, 5, 5, "x", 1, gone), (2, 5, 5, None, 2, None), (4, 3, 3, None, None, None)]
    assert read_rows(path, "id", "s", "n", "theirs", "later", "gone") == expected


@pytest.mark.core
@pytest.mark.parametrize("mode", ["evolve", "lenient"])
@pytest.mark.parametrize("order", [(1, 5, 3, 6), (6, 5, 3, 1)])
def test_a_field_that_the_source_has_dropped(create_table, create_source, read_rows, deletion_vectors, mode, order):
    """As a column: NULL in rows that change, in whatever order the changes come."""
    kind = "STRUCT<x: INT, y: INT, in: STRUCT<a: INT, B: STRING>>"
    path = create_table(f"id INT, p {kind}, l ARRAY<{kind}>, s BIGINT", [], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by="s", schema_changes=mode)
    whole, less = (1, 2, (3, "b")), (5, (7,))
    batches = {
        1: create_source(f"id INT, p {kind}, l ARRAY<{kind}>, s BIGINT", [(1, whole, [whole], 1), (2, whole, [], 1)]),
        3: create_source(f"id INT, p {kind}, l ARRAY<{kind}>, s BIGINT", [(1, whole, [whole], 3), (3, whole, None, 3)]),
        5: create_source(
            "id INT, p STRUCT<x: BIGINT, in: STRUCT<a: INT>>, l ARRAY<STRUCT<x: INT, in: STRUCT<a: INT>>>, s BIGINT",
            [(1, less, [less], 5), (2, less, None, 5), (4, less, [less], 5)],
        ),
        6: create_source(f"id INT, p {kind}, l ARRAY<{kind}>, s BIGINT", [(4, whole, [whole], 6)]),
    }
    for at in order:
        sink.merge(batches[at])
    left = (5, None, (7, None))
    assert read_rows(path, "id", "p", "l") == [
        (1, left, [left]),
        (2, left, None),
        (3, whole, None),
        (4, whole, [whole]),
    ]


@pytest.mark.parametrize("sent", ["age STRING, age__string INT", "age STRING"])
def test_lenient_tells_why_values_get_no_column_of_their_own(create_table, create_source, read_rows, caplog, sent):
    has_own = "age__string" in sent
    path = create_table(
        "id INT, age INT, age__string DATE, s BIGINT" if not has_own else "id INT, age INT, s BIGINT", []
    )
    sink = merge_sink(path, keys="id", sequence_by="s", schema_changes="lenient")
    caplog.set_level(logging.WARNING, logger="stream_merge")
    sink.merge(create_source(f"id INT, {sent}, s BIGINT", [(1, "7", *([8] if has_own else []), 1)]))
    assert read_rows(path, "id", "age") == [(1, 7)]
    (warning,) = [text for text in caplog.messages if "age is STRING in the source" in text]
    assert "age__string is taken" in warning
    assert 'set schema_changes="lenient"' not in warning


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"keys": "k"}, "named_struct('x', 1) k, 1 id, 2L s, named_struct('x', 1, 'y', 1) p"),
        ({"sequence_by": "p"}, "named_struct('x', 1, 'y', 1) k, 1 id, 2L s, named_struct('x', 9) p"),
        ({"delete_when": "p.y = 7"}, "named_struct('x', 1, 'y', 1) k, 1 id, 2L s, named_struct('x', 9) p"),
    ],
)
def test_a_struct_that_decides_what_a_change_does_has_to_have_its_fields(
    spark, create_table, read_rows, options, given
):
    path = create_table(
        "k STRUCT<x: INT, y: INT>, id INT, s BIGINT, p STRUCT<x: INT, y: INT>", [((1, 1), 1, 1, (1, 1))]
    )
    version = latest_version(path)
    sink = merge_sink(path, schema_changes="evolve", **{"keys": "id", "sequence_by": "s"} | options)
    with pytest.raises(StreamMergeError):
        sink.merge(spark.sql(f"SELECT {given}"))
    assert read_rows(path) == [((1, 1), 1, 1, (1, 1))]
    assert operations(spark, path, version).count("MERGE") == 0


def test_a_field_that_is_never_null_stays_where_the_source_lacks_it(create_table, create_source, read_rows):
    path = create_table("id INT, p STRUCT<x: INT, y: INT NOT NULL>, s BIGINT", [(1, (1, 2), 1)])
    sink = merge_sink(path, keys="id", sequence_by="s", schema_changes="evolve")
    sink.merge(create_source("id INT, p STRUCT<x: INT>, s BIGINT", [(1, (3,), 3)]))
    assert read_rows(path) == [(1, (3, 2), 3)]
