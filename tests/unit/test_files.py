"""The list of active files, and which of them a batch can match."""

import json
from datetime import date, datetime, timezone
from decimal import Decimal

import pytest

from stream_merge.table import files
from stream_merge.table.files import DataFile, KeyRange, TableFiles, comparable, physical_name


def add_file(path, *, low=None, high=None, nulls=0, rows=10, **others):
    stats = {"numRecords": rows, "nullCount": {"k": nulls}}
    if low is not None:
        stats |= {"minValues": {"k": low}, "maxValues": {"k": high}}
    return {"path": path, "size": 100, "partitionValues": {}, "stats": json.dumps(stats), **others}


def key_range(low, high, type_name="bigint", **others):
    return KeyRange(physical_path="k", type_name=type_name, low=low, high=high, **others)


@pytest.mark.parametrize(
    ("type_name", "low", "high", "batch_low", "batch_high", "may_match"),
    [
        ("bigint", 5, 9, 9, 20, True),
        ("bigint", 5, 9, 10, 20, False),
        ("bigint", 5, 9, 1, 4, False),
        ("string", "a", "b\U0010ffff", "b", "c", True),
        ("string", "a", "b", "bb", "c", False),
        ("date", "2024-01-01", "2024-01-31", date(2024, 1, 31), date(2024, 3, 1), True),
        ("date", "2024-01-01", "2024-01-31", date(2024, 2, 1), date(2024, 3, 1), False),
        ("decimal(5,2)", 1.25, 2.5, Decimal("2.50"), Decimal("9.00"), True),
        ("decimal(5,2)", 1.25, 2.5, Decimal("2.51"), Decimal("9.00"), False),
    ],
)
def test_bounds_decide(type_name, low, high, batch_low, batch_high, may_match):
    file = DataFile(add_file("f", low=low, high=high))
    assert key_range(batch_low, batch_high, type_name).may_match(file) is may_match


def test_timestamps_in_statistics_are_cut_to_milliseconds():
    file = DataFile(add_file("f", low="2024-01-01T00:00:00.000Z", high="2024-01-01T00:00:00.123Z"))
    inside = datetime(2024, 1, 1, 0, 0, 0, 123999, tzinfo=timezone.utc)
    after = datetime(2024, 1, 1, 0, 0, 0, 124001, tzinfo=timezone.utc)
    assert key_range(inside, inside, "timestamp").may_match(file)
    assert not key_range(after, after, "timestamp").may_match(file)


@pytest.mark.parametrize(
    ("type_name", "bound", "batch"),
    [
        ("date", "2024-02-30", date(2024, 3, 1)),
        ("timestamp", "2024-02-30T00:00:00.000Z", datetime(2024, 3, 1, tzinfo=timezone.utc)),
        ("timestamp", "9999-12-31T23:59:59.999Z", datetime.max.replace(tzinfo=timezone.utc)),
        ("timestamp", "2024-01-01T00:00:00.000", datetime(2024, 3, 1, tzinfo=timezone.utc)),
    ],
    ids=["no date", "no moment", "the end of time", "no zone"],
)
def test_a_file_with_a_bound_that_python_cannot_compare_is_kept(type_name, bound, batch):
    assert key_range(batch, batch, type_name).may_match(DataFile(add_file("f", low=bound, high=bound)))


def test_without_bounds_a_file_is_kept_unless_it_holds_nulls_alone():
    assert key_range(1, 2).may_match(DataFile(add_file("f")))
    assert key_range(1, 2).may_match(DataFile({"path": "f", "size": 1}))
    assert not key_range(1, 2).may_match(DataFile(add_file("f", nulls=10, rows=10)))


def test_nulls_match_nulls_only_where_the_condition_says_so():
    with_nulls, without = DataFile(add_file("f", low=5, high=9, nulls=1)), DataFile(add_file("f", low=5, high=9))
    only_nulls = key_range(None, None, has_null=True)
    assert only_nulls.may_match(with_nulls)
    assert not only_nulls.may_match(without)
    assert not key_range(None, None).may_match(with_nulls)


def test_partition_values_are_compared_one_by_one():
    def in_partition(value):
        return DataFile({"path": "f", "size": 1, "partitionValues": {"k": value}})

    values = key_range(1, 9, values=frozenset({1, 9}))
    assert values.may_match(in_partition("9"))
    assert not values.may_match(in_partition("5"))
    assert key_range(1, 9).may_match(in_partition("5"))
    assert not values.may_match(in_partition(None))
    assert key_range(1, 9, has_null=True).may_match(in_partition(None))
    assert values.may_match(in_partition("no number")), "what can't be told is kept"


@pytest.mark.parametrize(
    ("type_name", "text", "value", "other"),
    [
        ("bigint", "5", 5, 4),
        ("string", "a", "a", "b"),
        ("date", "2024-02-01", date(2024, 2, 1), date(2024, 2, 2)),
        ("decimal(5,2)", "2.50", Decimal("2.5"), Decimal("2.51")),
    ],
)
def test_a_partition_is_read_for_its_own_value_alone(type_name, text, value, other):
    file = DataFile({"path": "f", "size": 1, "partitionValues": {"k": text}})
    assert key_range(value, value, type_name).may_match(file)
    assert not key_range(other, other, type_name).may_match(file)
    assert not key_range(None, None, type_name).may_match(file), "a batch of NULL alone"


def test_a_moment_in_microseconds_is_comparable():
    moment = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=timezone.utc)
    assert comparable(1_704_067_200_123_456, "timestamp") == moment
    assert comparable(moment.replace(tzinfo=None), "timestamp") == moment, (
        "as Spark gives it, in the zone of the process"
    )
    assert comparable(1_704_067_200_123_456, "bigint") == 1_704_067_200_123_456


def advance(table_files, version, commits, *, table=("file:/data/t", "t"), written=None, load=None):
    def read_commit(number):
        if number not in commits:
            raise FileNotFoundError
        return commits[number]

    written = written or {}
    table_files.advance(
        table,
        version,
        committed_ms=lambda number: written.get(number, 1000 + number),
        read_commit=read_commit,
        load=load or (lambda: pytest.fail("loaded")),
    )


def test_the_list_follows_the_commits():
    table_files = TableFiles()
    advance(table_files, 3, {}, load=lambda: [add_file("a"), add_file("b")])
    new_vector = {"storageType": "i", "cardinality": 2}
    commits = {
        4: [{"commitInfo": {}}, {"add": add_file("c")}, {"remove": {"path": "a"}}],
        5: [{"add": add_file("b", deletionVector=new_vector)}, {"remove": {"path": "b"}}],
    }
    advance(table_files, 5, commits)
    assert {f.path: f.num_rows for f in table_files.all()} == {"b": 8, "c": 10}
    advance(table_files, 5, {})


@pytest.mark.parametrize(
    "how", ["gone", "too many", "other table", "other folder", "older version", "other history", "unknown history"]
)
def test_the_list_is_taken_anew_where_the_commits_do_not_lead(how):
    table_files = TableFiles()
    advance(table_files, 3, {}, load=lambda: [add_file("a")])
    version = {"too many": 4 + files.MAX_REPLAYED_COMMITS, "older version": 2, "gone": 5}.get(how, 4)
    table = {"other table": ("file:/data/t", "other"), "other folder": ("file:/data/u", "t")}.get(
        how, ("file:/data/t", "t")
    )
    written = {"other history": {3: 999}, "unknown history": {3: None}}.get(how)
    commits = {number: [{"add": add_file("x")}] for number in range(4, version + 1) if number != 5 or how != "gone"}
    advance(table_files, version, commits, table=table, written=written, load=lambda: [add_file("z")])
    assert [f.path for f in table_files.all()] == ["z"]
    assert table_files.version == version


def test_a_time_in_whole_seconds_is_the_same_time():
    table_files = TableFiles()
    advance(table_files, 3, {}, written={3: 5_678}, load=lambda: [add_file("a")])
    advance(table_files, 4, {4: [{"add": add_file("x")}]}, written={3: 5_000, 4: 9_000})
    advance(table_files, 5, {5: [{"add": add_file("y")}]}, written={4: 9_999})
    assert [f.path for f in table_files.all()] == ["a", "x", "y"]
    advance(table_files, 5, {}, written={5: 2_005}, load=lambda: [add_file("z")])
    assert [f.path for f in table_files.all()] == ["z"]


def test_the_list_is_taken_anew_where_the_same_version_is_another_one():
    table_files = TableFiles()
    advance(table_files, 3, {}, load=lambda: [add_file("a")])
    advance(table_files, 3, {}, written={3: 999}, load=lambda: [add_file("z")])
    assert [f.path for f in table_files.all()] == ["z"]
    advance(table_files, 4, {4: [{"add": add_file("x")}]}, written={3: 999})
    assert [f.path for f in table_files.all()] == ["z", "x"]


@pytest.mark.parametrize("root", ["file:/data/t", "file:///data/t"])
@pytest.mark.parametrize("uri", ["file:/data/t/p=1/a%20b.parquet", "file:///data/t/p=1/a%20b.parquet"])
def test_a_file_is_found_by_the_uri_that_spark_gives_it(root, uri):
    table_files = TableFiles()
    cloned = "s3://bucket/old/c.parquet"
    advance(table_files, 0, {}, load=lambda: [add_file("p=1/a%20b.parquet"), add_file(cloned)])
    assert table_files.find(uri, root).path == "p=1/a%20b.parquet"
    assert table_files.find(cloned, root).path == cloned
    with pytest.raises(KeyError):
        table_files.find("file:/data/t/other.parquet", root)


def test_files_that_another_writer_spells_otherwise_are_found_after_each_commit():
    table_files, root = TableFiles(), "file:/data/t"
    advance(table_files, 0, {}, load=lambda: [add_file("a%2Bb.parquet")])
    assert table_files.find("file:/data/t/a+b.parquet", root).path == "a%2Bb.parquet"
    advance(table_files, 1, {1: [{"remove": {"path": "a%2Bb.parquet"}}, {"add": add_file("c%2Bd.parquet")}]})
    assert table_files.find("file:/data/t/c+d.parquet", root).path == "c%2Bd.parquet"
    with pytest.raises(KeyError):
        table_files.find("file:/data/t/a+b.parquet", root)


def test_the_name_of_a_column_in_the_files():
    mapped = {"name": "b", "metadata": {"delta.columnMapping.physicalName": "col-1"}}
    schema = {"fields": [{"name": "A"}, mapped]}
    assert [physical_name(schema, name) for name in ("a", "B")] == ["A", "col-1"]
    with pytest.raises(KeyError):
        physical_name(schema, "c")


def test_the_highest_number_of_a_file_is_exact():
    file = DataFile(add_file("f", low=1, high=2**63 - 1, nulls=3))
    assert file.highest_number("k") == 2**63 - 1
    assert file.highest_number("j") is None
    assert DataFile(add_file("f", nulls=10, rows=10)).highest_number("k") is None
    assert DataFile({"path": "f", "size": 1}).highest_number("k") is None


@pytest.mark.parametrize(
    ("bounds", "expected"), [({"tightBounds": False}, 9), ({"tightBounds": True}, None), ({}, None)]
)
def test_the_highest_number_counts_rows_that_a_restore_may_bring_back(bounds, expected):
    add = add_file("f", low=1, high=9, rows=10)
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 36, "cardinality": 1}
    tight = {**add, "stats": json.dumps({**json.loads(add["stats"]), **bounds}), "deletionVector": vector}
    assert DataFile(tight).highest_number("k") == expected
