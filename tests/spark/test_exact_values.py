"""A value that its target column cannot hold is not changed in silence."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from functools import partial
from math import inf, nan

import pytest

from stream_merge import debezium, merge_sink
from stream_merge.errors import MergeExecutionError, SchemaMismatchError
from tests.debezium.records import base64_of, envelope, frame_of, record
from tests.spark.tables import upsert

DAY = dt.date(2024, 1, 1)
NOON = dt.datetime.fromisoformat("2024-01-01 12:00:00")
MIDNIGHT = dt.datetime.fromisoformat("2024-01-01 00:00:00")
BIG = 2**53 + 1


CASES = [
    # Type of the source, of the target; a value that is changed, as it is shown, and one that is not, as it is merged.
    ("DECIMAL(12,4)", "DECIMAL(8,2)", Decimal("1.2345"), "1.2345", Decimal("1.2300"), Decimal("1.23")),
    ("DECIMAL(3,2)", "DECIMAL(2,1)", Decimal("9.99"), "9.99", Decimal("9.90"), Decimal("9.9")),
    ("DECIMAL(12,4)", "INT", Decimal("1.5"), "1.5000", Decimal(2), 2),
    ("DECIMAL(38,0)", "DOUBLE", Decimal(BIG), str(BIG), Decimal(BIG - 1), float(BIG - 1)),
    ("DOUBLE", "DECIMAL(8,2)", 1.239, "1.239", 0.07, Decimal("0.07")),
    ("DOUBLE", "DECIMAL(8,2)", nan, "NaN", -0.5, Decimal("-0.50")),
    ("FLOAT", "DECIMAL(8,2)", -inf, "-Infinity", 0.25, Decimal("0.25")),
    ("DOUBLE", "INT", 1.5, "1.5", 3.0, 3),
    ("DOUBLE", "FLOAT", 1e300, "1.0E300", inf, inf),
    ("BIGINT", "DOUBLE", BIG, str(BIG), BIG - 1, float(BIG - 1)),
    ("INT", "FLOAT", 2**24 + 1, "16777217", 2**24, float(2**24)),
    ("INT", "BOOLEAN", 5, "5", 1, True),
    ("TIMESTAMP", "DATE", NOON, "2024-01-01 12:00:00", MIDNIGHT, DAY),
    ("TIMESTAMP_NTZ", "DATE", NOON, "2024-01-01 12:00:00", MIDNIGHT, DAY),
    ("TIMESTAMP", "BIGINT", NOON.replace(microsecond=5), "2024-01-01 12:00:00.000005", NOON, 1704110400),
    ("STRING", "DECIMAL(8,2)", "1.239", "1.239", "1.2300", Decimal("1.23")),
    ("STRING", "DECIMAL(8,2)", "1239E-3", "1239E-3", "12E-1", Decimal("1.20")),
    ("STRING", "DATE", "2024-01-01 12:00:00", "2024-01-01 12:00:00", "2024-01-01", DAY),
    ("STRING", "DOUBLE", "1e400", "1e400", "Infinity", inf),
    ("STRING", "DOUBLE", f" {BIG}", f" {BIG}", str(2**62), float(2**62)),
    ("STRING", "FLOAT", "16777217", "16777217", "16777217.5", 16777218.0),
    ("STRUCT<a: INT, B: DOUBLE>", "STRUCT<b: INT, a: INT>", (1, 1.5), "{1, 1.5}", (1, 2.0), (2, 1)),
    ("ARRAY<DOUBLE>", "ARRAY<INT>", [1.0, None, 1.5], "[1.0, null, 1.5]", [2.0, None], [2, None]),
    ("MAP<STRING, DOUBLE>", "MAP<STRING, INT>", {"a": 1.5}, "{a -> 1.5}", {"a": 2.0}, {"a": 2}),
    ("MAP<DOUBLE, INT>", "MAP<INT, INT>", {1.5: 1}, "{1.5 -> 1}", {2.0: 1}, {2: 1}),
]


@pytest.mark.parametrize(
    "compiled",
    [pytest.param(False, marks=pytest.mark.core), pytest.param(True, marks=pytest.mark.slow)],
    ids=["interpreted", "compiled"],
)
def test_what_a_cast_would_change_is_set_aside(spark, create_table, create_source, read_rows, tmp_path, compiled):
    """A row for each case of which it has the value that is changed, all others being NULL; one with all that is
    kept."""
    names = [f"v{number}" for number in range(len(CASES))]
    path = create_table(
        ", ".join(["id INT", *(f"{name.upper()} {case[1]}" for name, case in zip(names, CASES, strict=True))])
    )
    nothing = [None] * len(CASES)
    changed = [(number, *nothing[:number], case[2], *nothing[number + 1 :]) for number, case in enumerate(CASES)]
    batch = create_source(
        ", ".join(["id INT", *(f"{name} {case[0]}" for name, case in zip(names, CASES, strict=True))]),
        [*changed, (100, *(case[4] for case in CASES)), (101, *nothing)],
    )
    settings = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = {name: spark.conf.get(name) for name in settings}
    if compiled:
        spark.conf.set(settings[0], "true")
        spark.conf.set(settings[1], "FALLBACK")
    try:
        merge_sink(path, keys="id", sequence_by="id", quarantine=str(tmp_path / "aside")).merge(batch)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    reasons = {json.loads(row["row"])["id"]: row["reason"] for row in read_rows(str(tmp_path / "aside"))}
    assert reasons == {
        number: f"V{number} cannot be converted to {case[1]}: {case[3]}" for number, case in enumerate(CASES)
    }
    kept, empty = sorted(read_rows(path), key=lambda row: row["id"])
    assert tuple(kept) == (100, *(case[5] for case in CASES))
    assert tuple(empty) == (101, *nothing)


@pytest.mark.core
@pytest.mark.parametrize("source", ["STRUCT<b: INT, a: INT>", "STRUCT<a: SMALLINT, b: INT>", "STRUCT<a: INT, b: INT>"])
def test_a_struct_that_is_null_stays_null(create_table, create_source, read_rows, source):
    path = create_table("id INT, v STRUCT<a: INT, b: INT>")
    sink = merge_sink(path, keys="id", sequence_by="id")
    sink.merge(create_source(f"id INT, v {source}", [(1, None), (2, (None, None))]))
    assert read_rows(path, "v") == [(None,), ((None, None),)]


@pytest.mark.parametrize(("kind", "target", "value"), [CASES[0][:3], CASES[12][:3]], ids=["digits", "time of day"])
def test_without_a_quarantine_the_batch_is_refused(create_table, create_source, read_rows, kind, target, value):
    path = create_table(f"id INT, V {target}")
    with pytest.raises(SchemaMismatchError) as raised:
        merge_sink(path, keys="id", sequence_by="id").merge(create_source(f"id INT, v {kind}", [(1, None), (2, value)]))
    assert str(raised.value) == (
        f"{path}: V: {value} is {kind}, which {target} cannot hold without a loss. Widen the column, or cast in the "
        "source if the value may be changed."
    )
    assert read_rows(path) == []


def test_what_a_cast_only_approximates_is_merged(create_table, create_source, read_rows):
    path = create_table("id INT, a DOUBLE, b FLOAT, c TIMESTAMP_NTZ, d STRING, e DECIMAL(12, 4)")
    types = "id INT, a DECIMAL(38, 20), b DOUBLE, c TIMESTAMP, d DOUBLE, e DECIMAL(6, 2)"
    row = (1, Decimal("0.12345678901234567891"), 0.1, NOON, nan, Decimal("1.25"))
    merge_sink(path, keys="id", sequence_by="id").merge(create_source(types, [row]))
    (merged,) = read_rows(path)
    assert tuple(merged) == (1, 0.12345678901234568, pytest.approx(0.1), NOON, "NaN", Decimal("1.2500"))


def test_a_value_that_is_too_large_is_the_error_that_it_was(create_table, create_source, read_rows):
    path = create_table("id INT, v DECIMAL(8, 2)")
    with pytest.raises(MergeExecutionError, match="due to an overflow"):
        merge_sink(path, keys="id", sequence_by="id").merge(
            create_source("id INT, v DECIMAL(12, 4)", [(1, Decimal(12345678))])
        )
    assert read_rows(path) == []


@pytest.mark.parametrize("make", [upsert, partial(merge_sink, keys="id")], ids=["clauses", "keys alone"])
def test_what_is_no_change_data_is_cast_as_delta_does(create_table, create_source, read_rows, make):
    path = create_table("id INT, v DECIMAL(8, 2)", [(1, None)])
    rows = [(1, Decimal("1.2345")), (2, Decimal("1.2355"))]
    make(path).merge(create_source("id INT, v DECIMAL(12, 4)", rows))
    assert [tuple(row) for row in read_rows(path)] == [(1, Decimal("1.23")), (2, Decimal("1.24"))]


def test_the_session_s_own_policy_counts(spark, create_table, create_source, read_rows):
    path = create_table("id INT, v DECIMAL(8, 2)")
    spark.conf.set("spark.sql.storeAssignmentPolicy", "LEGACY")
    try:
        merge_sink(path, keys="id", sequence_by="id").merge(
            create_source("id INT, v DECIMAL(12, 4)", [(1, Decimal("1.2345"))])
        )
    finally:
        spark.conf.unset("spark.sql.storeAssignmentPolicy")
    assert read_rows(path, "v") == [(Decimal("1.23"),)]


def test_what_is_not_written_is_not_looked_at(create_table, create_source, read_rows):
    """A delete, a column that is left out, and a change that is older than its row."""
    path = create_table("id INT, v INT, w INT, s INT", [(1, 1, 1, 5), (2, 2, 2, 5)])
    sink = merge_sink(path, keys="id", sequence_by="s", delete_when="v < 0", except_columns=["w"])
    sink.merge(
        create_source("id INT, v DOUBLE, w DOUBLE, s INT", [(1, -0.5, 0.5, 6), (2, 0.5, 0.5, 4), (3, 3.0, 0.5, 4)])
    )
    assert [tuple(row) for row in read_rows(path, "id", "v", "w", "s")] == [(2, 2, 2, 5), (3, 3, None, 4)]


@pytest.mark.any_strategy
def test_changes_that_set_single_columns(create_table, create_source, read_rows, deletion_vectors):
    path = create_table("id INT, v DECIMAL(8, 2), w STRING, s INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by="s", unchanged_columns="unset", except_columns=["unset"])
    types = "id INT, v DECIMAL(12, 4), w STRING, s INT, unset ARRAY<STRING>"
    sink.merge(create_source(types, [(1, Decimal("1.25"), "a", 1, None)]))
    sink.merge(create_source(types, [(1, None, "b", 2, ["v"])]))
    with pytest.raises(SchemaMismatchError, match=r"target: v: 1\.2345 is DECIMAL\(12,4\), which DECIMAL\(8,2\)"):
        sink.merge(create_source(types, [(1, Decimal("1.2345"), None, 3, ["w"])]))
    assert [tuple(row) for row in read_rows(path, "id", "v", "w", "s")] == [(1, Decimal("1.25"), "b", 2)]


@pytest.mark.parametrize("keys", [["id"], []], ids=["key", "no key"])
def test_debezium_s_numbers_of_more_digits_than_the_table_has(spark, create_table, read_rows, tmp_path, keys):
    path, aside = create_table("id INT, price DECIMAL(8, 2)"), str(tmp_path / "aside")
    options = {"keys": keys, **debezium.MERGE_OPTIONS} if keys else debezium.KEYLESS_MERGE_OPTIONS

    def changes(*steps):
        records = []
        for offset, (op, after, before) in enumerate(steps):
            images = [row and {"id": row[0], "price": base64_of(row[1])} for row in (after, before)]
            source = {"connector": "postgresql", "snapshot": "false", "lsn": 100 + offset}
            key = {"id": (after or before)[0]} if keys else None
            records.append(record(key, envelope(op, *images, **source), offset))
        return debezium.changes(frame_of(spark, *records), "id INT, price DECIMAL(12, 4)", keys)

    # The second row cannot be merged, nor can its removal; the delete by key can.
    log = changes(("c", (1, 12500), None), ("c", (2, 12345), None), ("d", None, (2, 12345)), ("c", (3, 12345), None))
    # Without a key it is the row before the removal that is looked at first.
    name = "price" if keys else "price before the change"
    with pytest.raises(SchemaMismatchError, match=rf"target: {name}: 1\.2345 is DECIMAL\(12,4\), which DECIMAL\(8,2\)"):
        merge_sink(path, **options).merge(log)
    assert read_rows(path, "id") == []

    result = merge_sink(path, quarantine=aside, **options).merge(log)
    assert [tuple(row) for row in read_rows(path, "id", "price")] == [(1, Decimal("1.25"))]
    rejected = sorted((row["offset"], row["reason"], json.loads(row["row"])["price"]) for row in read_rows(aside))
    lost = "price cannot be converted to DECIMAL(8,2): 1.2345"
    if keys:
        assert rejected == [(1, lost, 1.2345), (3, lost, 1.2345)]
    else:
        of_before = "before cannot be converted to the target's types"
        assert rejected == [(1, lost, 1.2345), (2, of_before, None), (3, lost, 1.2345)]
    assert result.num_quarantined_rows == len(rejected)
