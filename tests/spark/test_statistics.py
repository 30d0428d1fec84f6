"""After every kind of merge the statistics of each file are true of what it holds, and hide no row from a reader."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as F

from stream_merge import merge_sink
from tests.spark.statistics_oracle import Leaf, check_statistics, held_files, leaves, micros

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.always

UTC = dt.timezone.utc
NAN, INFINITY = float("nan"), float("inf")
CLEF, LAST_OF_PLANE = "\U0001d11e", "\uffff"
"""A character of two UTF-16 units, and the last one of one unit: UTF-16 puts them in the other order than UTF-8."""

COLUMNS = {
    "d10": "DECIMAL(38,10)",
    "d18": "DECIMAL(38,18)",
    "dbl": "DOUBLE",
    "flt": "FLOAT",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "ntz": "TIMESTAMP_NTZ",
    "txt": "STRING",
    "bin": "BINARY",
    "flag": "BOOLEAN",
    "big": "BIGINT",
    "nested": "STRUCT<d: DECIMAL(38,18), s: STRING, t: TIMESTAMP, deeper: STRUCT<n: BIGINT, f: FLOAT>>",
}
SCHEMA = "id BIGINT, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

DECIMALS_10 = [
    "0",
    "9999999999999999999999999999.9999999999",
    "-9999999999999999999999999999.9999999999",
    "0.0000000001",
]
DECIMALS_10 += ["1234567890123456789.0123456789", "1234567890123456789.0123456788", "-0.0000000001", "9007199254740993"]
DECIMALS_18 = ["0", "99999999999999999999.999999999999999999", "-99999999999999999999.999999999999999999"]
DECIMALS_18 += [
    "0.000000000000000001",
    "0.1",
    "1.000000000000000001",
    "-1.000000000000000001",
    "123456789.123456789123456789",
]
DOUBLES = [0.0, -0.0, INFINITY, -INFINITY, NAN, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
FLOATS = [0.1, -0.0, 16777216.0, INFINITY, NAN, 1e-45, 3.4028235e38, -INFINITY]
DAYS = ["0001-01-01", "1582-10-04", "1582-10-15", "1899-12-31", "1970-01-01", "1969-12-31", "9999-12-31", "2024-02-29"]
MOMENTS = [
    "2024-02-29T01:02:03.456789",
    "2024-02-29T01:02:03.456001",
    "1899-12-31T23:59:59.999999",
    "1582-10-10T00:00:00.000001",
]
MOMENTS += [
    "1969-12-31T23:59:59.999999",
    "1970-01-01T00:00:00.000000",
    "9999-12-31T23:59:59.999999",
    "0001-01-01T00:00:00.000001",
]
TEXTS = [
    "",
    "a" * 32,
    "a" * 33,
    "a" * 31 + CLEF + "z",
    "a" * 31 + LAST_OF_PLANE * 2,
    CLEF * 40,
    "é" * 31 + "€" + "x" * 9,
]
TEXTS += [LAST_OF_PLANE * 33]
BINARIES = [b"", b"\x00", b"\xff" * 40, b"abc", b"\x80", b"\x7f", b"\xfe", b"\x00" * 33]
LONGS = [0, 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**63 - 2, -1, 1]

NUM_VALUES = 8

FIRST_INT96, LAST_INT96 = (micros(dt.datetime(year, 1, 1, tzinfo=UTC)) for year in (1678, 2262))
"""Between these delta-rs reads timestamps as Spark writes them by default; it counts their nanoseconds in 64 bits."""


def row(key: int, number: int) -> tuple[Any, ...]:
    """Return a row with the values of this number; the ninth has none, and the tenth a struct with none."""
    if number >= NUM_VALUES:
        empty = (None, None, None, (None, None) if number > NUM_VALUES else None)
        return (key, *[None] * (len(COLUMNS) - 1), None if number == NUM_VALUES else empty)
    moment = dt.datetime.fromisoformat(MOMENTS[number])
    long, d18, text = LONGS[number], Decimal(DECIMALS_18[number]), TEXTS[number]
    other = (number + 3) % NUM_VALUES
    nested = (Decimal(DECIMALS_18[other]), TEXTS[other], moment.replace(tzinfo=UTC), (LONGS[other], FLOATS[other]))
    return (
        key,
        Decimal(DECIMALS_10[number]),
        d18,
        DOUBLES[number],
        FLOATS[number],
        dt.date.fromisoformat(DAYS[number]),
        moment.replace(tzinfo=UTC),
        moment,
        text,
        bytearray(BINARIES[number]),
        number % 3 == 0,
        long,
        nested,
    )


TARGET = [row(key, key % 10) for key in range(10)]
"""Each row of values once; they are written into two files."""

CHANGES = [row(key, (key * 7 + 1) % 10) for key in (1, 2, 4, 6, 7, 9, 10, 11)]


def new_table(create_table: Any, append_rows: Any, **options: Any) -> str:
    """Return a table with the rows of TARGET in two files."""
    path = create_table(SCHEMA, TARGET[:5], **options)
    append_rows(path, SCHEMA, TARGET[5:])
    return path


def found_elsewhere(path: str, columns: list[Leaf]) -> int:
    """Assert that delta-rs finds each row by the exact value of each of these columns, and return how many it looked
    for.

    It reads statistics by code of its own, and leaves out the files whose bounds say that they cannot hold the value.
    """
    query = QueryBuilder().register("held", DeltaTable(path))
    rows = [row for file in held_files(path) for row in file.rows]
    num_found = 0
    for leaf in columns:
        name = f'"{leaf.path[0]}"' + "".join(f"['{part}']" for part in leaf.path[1:])
        values = [(leaf.value(row), leaf.raw(row)) for row in rows]
        for value in {repr(value): value for _, value in values if value is not None}.values():
            if leaf.type_name == "timestamp" and not FIRST_INT96 <= micros(value) <= LAST_INT96:
                continue
            literal = literal_of(value, leaf.type_name)
            result = query.execute(f"SELECT COUNT(*) AS n FROM held WHERE {name} >= {literal} AND {name} <= {literal}")
            [found] = pa.table(result.read_all()).to_pylist()
            # To delta-rs -0.0 is less than 0.0 in bounds, and the same in rows.
            fewest = sum(repr(other) == repr(value) for _, other in values)
            most = sum(ordered == leaf.ordered(value) for ordered, _ in values)
            assert fewest <= found["n"] <= most, f"{leaf.path}: {value!r}"
            num_found += 1
    return num_found


def literal_of(value: Any, type_name: str) -> str:
    """Return a value as SQL of delta-rs writes it."""
    if type_name in ("timestamp", "timestamp_ntz"):
        zone = 'Some("UTC")' if type_name == "timestamp" else "None"
        return f"arrow_cast('{value.replace(tzinfo=None).isoformat()}', 'Timestamp(Microsecond, {zone})')"
    if type_name == "string":
        return f"'{value}'"
    sql_type = {"long": "BIGINT", "double": "DOUBLE", "float": "REAL", "date": "DATE"}.get(type_name, type_name)
    text = format(value, "f") if isinstance(value, Decimal) else value
    return f"CAST('{text}' AS {sql_type})"


def check_files(path: str) -> None:
    """Assert that the statistics of a table are true of it."""
    assert check_statistics(path) > 20


def check_readers(spark: SparkSession, path: str, *names: str) -> None:
    """Assert that statistics hide no row: from delta-rs by any value, from Delta by the ends of each file in these
    columns."""
    columns = [leaf for leaf in leaves(path) if leaf.has_bounds and not leaf.path[0].startswith("_")]
    assert found_elsewhere(path, columns) > 20
    held = spark.read.format("delta").load(path)
    files = held_files(path)
    for name in names:
        [leaf] = [leaf for leaf in columns if ".".join(leaf.path) == name]
        values = [(leaf.value(row), leaf.raw(row)) for file in files for row in file.rows]
        ends: dict[Any, Any] = {}
        for file in files:
            of_file = sorted(
                (v, r) for v, r in ((leaf.value(row), leaf.raw(row)) for row in file.rows) if v is not None
            )
            ends |= dict(of_file[:1] + of_file[-1:])
        kind = held.select(F.col(name).alias("value")).schema["value"].dataType
        found = []
        for number, value in enumerate(ends.values()):
            # A datetime that becomes a literal goes by way of Java's old calendar, which has other days before
            # 1582-10-15.
            equal = (
                F.timestamp_micros(F.lit(micros(value))) if leaf.type_name == "timestamp" else F.lit(value).cast(kind)
            )
            found.append(
                held.where((F.col(name) >= equal) & (F.col(name) <= equal)).select(F.lit(number).alias("number"))
            )
        counts = Counter(row["number"] for row in reduce(type(held).union, found).collect())
        expected = [sum(ordered == end for ordered, _ in values) for end in ends]
        assert [counts[number] for number in range(len(ends))] == expected, (name, list(ends.values()))


def test_merges_by_key_and_by_clauses(spark, create_table, create_source, append_rows, deletion_vectors):
    path = new_table(create_table, append_rows, deletion_vectors=deletion_vectors)
    check_files(path)
    merge_sink(path, keys="id").merge(create_source(SCHEMA, CHANGES))
    check_files(path)
    again = [*CHANGES[:3], row(3, 5), row(12, 6)]
    result = merge_sink(path, keys="id", skip_unchanged=True).merge(create_source(SCHEMA, again))
    assert (result.num_unchanged_rows, result.num_target_rows_updated) == (3, 1)
    check_files(path)
    merge_sink(path, on="target.id = source.id").when_not_matched_insert().merge(
        create_source(SCHEMA, [row(1, 0), row(13, 3)])
    )
    check_files(path)
    by_clauses = (
        merge_sink(path, on="target.id = source.id")
        .when_matched_delete(condition="source.id = 2")
        .when_matched_update(
            set={
                "d10": "source.d10",
                "d18": "-target.d18",
                "txt": "concat('z', target.txt, source.txt)",
                "ts": "target.ntz",
            }
        )
        .when_not_matched_insert()
        .when_not_matched_by_source_delete(condition="target.id = 0")
        .when_not_matched_by_source_update(set={"big": "0 - target.id", "nested.d": "0"}, condition="target.id < 9")
    )
    by_clauses.merge(create_source(SCHEMA, [row(key, key % 10) for key in (1, 2, 3, 5, 14)]))
    check_files(path)
    check_readers(spark, path)


@pytest.mark.any_strategy
def test_merges_in_order_and_of_single_columns(spark, create_table, create_source, append_rows, deletion_vectors):
    path = new_table(create_table, append_rows, deletion_vectors=deletion_vectors)
    schema = f"{SCHEMA}, seq BIGINT, op STRING"
    options = {"keys": "id", "sequence_by": "seq", "delete_when": "op = 'd'"}
    in_order = merge_sink(path, except_columns=["seq", "op"], **options)
    in_order.merge(create_source(schema, [(*change, 2**53 + 1, "ud"[change[0] % 2]) for change in CHANGES]))
    check_files(path)
    in_order.merge(create_source(schema, [(*row(key, 2), 2**53 + 2 * (key % 2), "u") for key in (1, 2, 3, 20)]))
    check_files(path)
    of_some = merge_sink(path, columns=["d18", "txt", "nested"], **options)
    of_some.merge(create_source(schema, [(*row(key, 4), 2**53 + 3, "u") for key in (2, 3, 5, 21)]))
    check_files(path)
    check_readers(spark, path, "d18", "ts")


@pytest.mark.any_strategy
def test_rows_without_a_key(spark, create_table, create_source, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors)
    schema = (
        f"{SCHEMA}, old STRUCT<{', '.join(f'{name}: {kind}' for name, kind in {'id': 'BIGINT', **COLUMNS}.items())}>"
    )
    schema += ", seq BIGINT, op STRING"
    sink = merge_sink(
        path, before="old", sequence_by="seq", delete_when="op = 'd'", except_columns=["old", "seq", "op"]
    )
    sink.merge(create_source(schema, [(*values, None, number, "c") for number, values in enumerate(TARGET)]))
    check_files(path)
    changes = [(*row(key, (key + 1) % 10), TARGET[key], 20 + key, "u") for key in (1, 4, 6)]
    removals = [(*[None] * len(TARGET[0]), TARGET[key], 40 + key, "d") for key in (0, 5)]
    sink.merge(create_source(schema, [*changes, *removals]))
    check_files(path)
    check_readers(spark, path)


@pytest.mark.any_strategy
def test_partitions_column_mapping_and_a_change_feed(create_table, create_source, append_rows, deletion_vectors):
    options = {"partition_by": ["flag"], "deletion_vectors": deletion_vectors}
    properties = {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}
    path = new_table(create_table, append_rows, properties=properties, **options)
    merge_sink(path, keys="id").merge(create_source(SCHEMA, CHANGES[:5]))
    check_files(path)


@pytest.mark.any_strategy
def test_a_complete_result(spark, create_table, create_source, append_rows, deletion_vectors):
    path = new_table(create_table, append_rows, deletion_vectors=deletion_vectors)
    result = merge_sink(path, keys="id", output_mode="complete").merge(create_source(SCHEMA, CHANGES))
    assert result.strategy == "overwrite"
    check_files(path)
    check_readers(spark, path)
