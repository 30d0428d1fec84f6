"""`skip_unchanged`: an update that would leave its row as it is is not carried out, and counted."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from stream_merge import AmbiguousMatchError, merge_sink
from stream_merge.errors import ConstraintViolationError
from stream_merge.merge.unchanged import is_same
from stream_merge.sql import all_of
from tests.spark.delta_log import actions_of, latest_version, operation_metrics
from tests.spark.tables import change_rows, create_computed, files_below, upsert
from tests.streaming.streams import ChangeFiles, recorded_ids, run

# With both strategies the same rows are drawn at random in test_unchanged_agrees_with_delta.py.
pytestmark = pytest.mark.any_strategy

SCHEMA = "id INT, v STRING"
FEED = {"delta.enableChangeDataFeed": "true"}


def skipping(path: str, **options: Any) -> Any:
    """Return the sink of most tests here."""
    return upsert(path, skip_unchanged=True, **options)


def file_actions(path: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit that add, remove or describe files."""
    return [action for kind in ("add", "remove", "cdc") for action in actions_of(path, version, kind)]


@pytest.mark.core
class TestWhatIsWritten:
    def test_a_batch_that_changes_nothing_makes_no_commit(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(SCHEMA, [(1, "a"), (2, None), (3, "c")], deletion_vectors=deletion_vectors)
        version, files = latest_version(path), files_below(path)
        result = skipping(path).merge(create_source(SCHEMA, [(1, "a"), (2, None)]))
        assert files_below(path) == files
        assert (result.version, latest_version(path)) == (None, version)
        assert (result.num_unchanged_rows, result.num_target_rows_updated, result.num_output_rows) == (2, 0, 0)
        assert read_rows(path) == [Row(id=1, v="a"), Row(id=2, v=None), Row(id=3, v="c")]

    def test_only_changed_rows_and_their_files_are_written(
        self, spark, create_table, append_rows, create_source, read_rows, deletion_vectors, strategy
    ):
        path = create_table(SCHEMA, [(1, "a"), (2, "b"), (3, "c")], deletion_vectors=deletion_vectors, properties=FEED)
        append_rows(path, SCHEMA, [(4, "d"), (5, "e")])
        [kept] = [add["path"] for add in actions_of(path, latest_version(path), "add")]
        result = skipping(path).merge(create_source(SCHEMA, [(1, "a"), (2, "new"), (4, "d"), (9, "z")]))

        assert [tuple(row) for row in read_rows(path)] == [(1, "a"), (2, "new"), (3, "c"), (4, "d"), (5, "e"), (9, "z")]
        assert change_rows(spark, path, result.version) == [
            ("insert", 9, "z"),
            ("update_postimage", 2, "new"),
            ("update_preimage", 2, "b"),
        ]
        touched = {action["path"] for action in actions_of(path, result.version, "remove")}
        assert len(touched) == 1
        assert kept not in touched
        metrics = operation_metrics(path, result.version)
        assert (metrics["numUnchangedRows"], metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]) == (
            2,
            1,
            1,
        )
        assert metrics["numTargetRowsCopied"] == (2 if strategy == "copy_on_write" else 0)
        assert (result.num_unchanged_rows, result.num_source_rows) == (2, 4)

    def test_without_the_option_every_row_is_written(self, spark, create_table, create_source, deletion_vectors):
        path = create_table(SCHEMA, [(1, "a")], deletion_vectors=deletion_vectors, properties=FEED)
        result = upsert(path).merge(create_source(SCHEMA, [(1, "a")]))
        assert (result.num_unchanged_rows, result.num_target_rows_updated) == (0, 1)
        assert len(change_rows(spark, path, result.version)) == 2

    def test_every_clause_that_updates(self, spark, create_table, create_source, read_rows, deletion_vectors):
        rows = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
        path = create_table(SCHEMA, rows, deletion_vectors=deletion_vectors, properties=FEED)
        sink = (
            merge_sink(path, on="target.id = source.id", skip_unchanged=True)
            .when_matched_delete(condition="source.v = 'gone'")
            .when_matched_update(set={"v": "lower(source.v)"}, condition="source.v = upper(source.v)")
            .when_not_matched_by_source_update(set={"v": "'d'"}, condition="target.id > 3")
        )
        result = sink.merge(create_source(SCHEMA, [(1, "A"), (2, "X"), (3, "gone")]))
        assert [tuple(row) for row in read_rows(path)] == [(1, "a"), (2, "x"), (4, "d"), (5, "d")]
        assert (result.num_unchanged_rows, result.num_target_rows_deleted) == (2, 1)
        assert (result.num_target_rows_matched_updated, result.num_target_rows_not_matched_by_source_updated) == (1, 1)
        assert {row[1] for row in change_rows(spark, path, result.version)} == {2, 3, 5}

    @pytest.mark.always
    def test_several_matches_of_a_row_that_stays_are_refused_all_the_same(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(SCHEMA, [(1, "a"), (2, "b")], deletion_vectors=deletion_vectors)
        with pytest.raises(AmbiguousMatchError, match=r"1 target row.*id=1"):
            skipping(path).merge(create_source(SCHEMA, [(1, "a"), (1, "a"), (2, "x")]))
        assert read_rows(path) == [Row(id=1, v="a"), Row(id=2, v="b")]

    def test_deletes_and_inserts_are_what_they_were(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(SCHEMA, [(1, "a"), (2, "b")], deletion_vectors=deletion_vectors)
        source = create_source(SCHEMA, [(1, "a"), (1, "a"), (3, "c")])
        deleting = merge_sink(path, on="target.id = source.id", skip_unchanged=True).when_matched_delete()
        deleted = deleting.merge(source)
        assert (deleted.num_target_rows_deleted, deleted.num_unchanged_rows) == (1, 0)
        inserting = merge_sink(path, on="target.id = source.id", skip_unchanged=True).when_not_matched_insert_all()
        inserted = inserting.merge(create_source(SCHEMA, [(2, "x"), (3, "c")]))
        assert (inserted.strategy, inserted.num_target_rows_inserted) == ("insert_only", 1)
        assert read_rows(path) == [Row(id=2, v="b"), Row(id=3, v="c")]


class TestWhatIsTheSame:
    """Each case is a row in which one column alone is not NULL: its type, old value, new value, and whether they are
    one."""

    CASES: ClassVar[list[tuple[str, str, str, bool]]] = [
        ("STRING", "'a'", "'a '", False),
        ("STRING", "'a'", "'a'", True),
        ("STRING", "'a'", "NULL", False),
        ("STRING", "NULL", "''", False),
        ("STRING", "NULL", "NULL", True),
        ("BINARY", "X'00FF'", "X'00FF'", True),
        ("BINARY", "X'00FF'", "X'00'", False),
        ("DOUBLE", "double('NaN')", "double('NaN')", True),
        ("DOUBLE", "0.0D", "-0.0D", False),
        ("DOUBLE", "-0.0D", "-0.0D", True),
        ("DOUBLE", "0.1D", "0.10000000000000002D", False),
        ("FLOAT", "float('NaN')", "NULL", False),
        ("FLOAT", "float(-0.0)", "float(0.0)", True),
        ("FLOAT", "-float(0.0)", "float(0.0)", False),
        ("DECIMAL(10, 2)", "1.5", "1.50", True),
        ("DECIMAL(10, 2)", "1.5", "1.51", False),
        ("BOOLEAN", "true", "false", False),
        ("DATE", "DATE'2026-01-01'", "DATE'2026-01-01'", True),
        (
            "TIMESTAMP",
            "TIMESTAMP'2026-01-01 00:00:00.000001'",
            "TIMESTAMP'2026-01-01 00:00:00.000002'",
            False,
        ),
        (
            "TIMESTAMP_NTZ",
            "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001'",
            "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001'",
            True,
        ),
        ("ARRAY<INT>", "array(1, NULL)", "array(1, NULL)", True),
        ("ARRAY<INT>", "array(1, NULL)", "array(NULL, 1)", False),
        ("ARRAY<INT>", "array()", "NULL", False),
        ("ARRAY<DOUBLE>", "array(0.0D)", "array(-0.0D)", False),
        ("ARRAY<DOUBLE>", "array(double('NaN'))", "array(double('NaN'))", True),
        ("STRUCT<x: INT, y: STRING>", "named_struct('x', 1, 'y', NULL)", "named_struct('x', 1, 'y', NULL)", True),
        ("STRUCT<x: INT, y: STRING>", "named_struct('x', NULL, 'y', NULL)", "NULL", False),
        ("STRUCT<`a.b`: DOUBLE>", "named_struct('a.b', double(NULL))", "NULL", False),
        ("STRUCT<`a.b`: DOUBLE>", "named_struct('a.b', 1.5D)", "named_struct('a.b', 1.5D)", True),
        ("MAP<STRING, INT>", "map('a', 1, 'b', NULL)", "map('b', NULL, 'a', 1)", True),
        ("MAP<STRING, INT>", "map('a', 1, 'b', NULL)", "map('a', 1)", False),
        ("MAP<STRING, INT>", "map('a', 1)", "map('a', 2)", False),
        ("MAP<STRING, INT>", "map()", "NULL", False),
        ("ARRAY<MAP<INT, DOUBLE>>", "array(map(1, 0.0D), NULL)", "array(map(1, 0.0D), NULL)", True),
        ("ARRAY<MAP<INT, DOUBLE>>", "array(map(1, 0.0D))", "array(map(1, -0.0D))", False),
    ]

    def test_values_of_every_type(self, spark, create_table, deletion_vectors):
        types = sorted({kind for kind, *_ in self.CASES})
        columns = {kind: f"c{number}" for number, kind in enumerate(types)}
        schema = ", ".join(["id INT", *[f"{name} {kind}" for kind, name in columns.items()]])
        path = create_table(schema, deletion_vectors=deletion_vectors, properties=FEED)

        def frame(which: int) -> Any:
            selects = []
            for number, case in enumerate(self.CASES):
                values = {
                    name: f"CAST({case[which] if kind == case[0] else 'NULL'} AS {kind})"
                    for kind, name in columns.items()
                }
                selects.append(f"SELECT {number} AS id, " + ", ".join(f"{v} AS {n}" for n, v in values.items()))
            return spark.sql(" UNION ALL ".join(selects)).coalesce(1)

        frame(1).write.format("delta").mode("append").save(path)
        result = skipping(path).merge(frame(2))
        feed = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", result.version)
            .load(path)
        )
        changed = {row["id"] for row in feed.select("id").collect()}
        expected = {number for number, case in enumerate(self.CASES) if not case[3]}
        assert [self.CASES[n] for n in sorted(changed ^ expected)] == []
        assert result.num_unchanged_rows == len(self.CASES) - len(expected)

    @pytest.mark.parametrize(
        ("kind", "old", "new", "expected"),
        [
            ("STRING COLLATE UTF8_LCASE", "'a'", "'A'", False),
            ("STRING COLLATE UTF8_LCASE", "'a'", "'a'", True),
            ("ARRAY<STRING COLLATE UTF8_LCASE>", "array('a')", "array('A')", False),
            ("INTERVAL DAY TO SECOND", "INTERVAL '1' DAY", "INTERVAL '24' HOUR", True),
            ("INTERVAL MONTH", "INTERVAL '1' MONTH", "INTERVAL '2' MONTH", False),
            # What cannot be compared is taken for changed.
            ("VARIANT", "parse_json('1')", "parse_json('1')", False),
            ("STRUCT<x: INT, v: VARIANT>", "NULL", "NULL", False),
            ("INTERVAL", "make_interval(0, 1)", "make_interval(0, 1)", False),
        ],
    )
    def test_types_that_the_tables_of_today_lack(self, spark, kind, old, new, expected):
        frame = spark.sql(f"SELECT CAST({new} AS {kind}) AS new, CAST({old} AS {kind}) AS old")
        assert frame.select(is_same(F.col("new"), F.col("old"), frame.schema["new"])).collect()[0][0] is expected


class TestColumns:
    def test_columns_that_the_merge_adds(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, at STRUCT<x: INT>", [(1, (1,)), (2, (2,)), (3, (3,))], deletion_vectors=deletion_vectors
        )
        source = create_source(
            "id INT, at STRUCT<x: INT, y: ARRAY<INT>>, note STRING",
            [(1, (1, None), None), (2, (2, [1]), None), (3, (3, None), "n")],
        )
        result = skipping(path, merge_schema=True).merge(source)
        assert (result.num_unchanged_rows, result.num_target_rows_updated) == (1, 2)
        assert read_rows(path) == [
            Row(id=1, at=Row(x=1, y=None), note=None),
            Row(id=2, at=Row(x=2, y=[1]), note=None),
            Row(id=3, at=Row(x=3, y=None), note="n"),
        ]
        again = skipping(path, merge_schema=True).merge(source)
        assert (again.version, again.num_unchanged_rows) == (None, 3)

    def test_columns_are_added_although_no_row_changes(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(SCHEMA, [(1, "a")], deletion_vectors=deletion_vectors)
        result = skipping(path, merge_schema=True).merge(create_source(f"{SCHEMA}, w MAP<INT, INT>", [(1, "a", None)]))
        assert read_rows(path) == [Row(id=1, v="a", w=None)]
        assert (result.num_unchanged_rows, file_actions(path, result.version)) == (1, [])

    def test_values_that_are_cast_computed_and_padded(
        self, spark, table_path, append_rows, create_source, read_rows, deletion_vectors
    ):
        columns = {
            "id": "INT",
            "price": "BIGINT",
            "total": ("BIGINT", "price * 2"),
            "code": "CHAR(3)",
            "name": "VARCHAR(3)",
        }
        path = create_computed(spark, table_path, columns, deletion_vectors=deletion_vectors)
        append_rows(path, "id INT, price BIGINT, code STRING, name STRING", [(1, 10, "x", "x"), (2, 20, "y", "y")])
        given = {name: f"source.{name}" for name in ("price", "code", "name")}
        sink = merge_sink(path, on="target.id = source.id", skip_unchanged=True).when_matched_update(set=given)
        schema = "id INT, price STRING, code STRING, name STRING"
        result = sink.merge(create_source(schema, [(1, "10", "x", "x"), (2, "21", "y  ", "y")]))
        assert (result.num_unchanged_rows, result.num_target_rows_updated) == (1, 1)
        assert [tuple(row) for row in read_rows(path)] == [(1, 10, 20, "x  ", "x"), (2, 21, 42, "y  ", "y")]
        with pytest.raises(ConstraintViolationError):
            sink.merge(create_source(schema, [(1, "10", "x  y", "x")]))

    def test_only_what_is_assigned_is_compared(self, create_table, create_source, deletion_vectors):
        path = create_table("id INT, v STRING, d DOUBLE", [(1, "a", 0.0)], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, on="target.id = source.id", skip_unchanged=True).when_matched_update(
            set={"v": "coalesce(source.v, target.v)"}
        )
        result = sink.merge(create_source("id INT, v STRING, d DOUBLE", [(1, None, 5.0)]))
        assert (result.version, result.num_unchanged_rows) == (None, 1)

    def test_as_many_comparisons_as_there_are_columns(self, spark):
        assert spark.range(2).where(all_of([F.col("id") == F.lit(1)] * 3_000)).count() == 1
        assert spark.range(2).where(all_of([])).count() == 2

    @pytest.mark.long
    def test_a_table_of_a_thousand_columns(self, spark, create_table, create_source, deletion_vectors):
        names = [f"c{i}" for i in range(1_000)]
        schema = ", ".join(["id INT", *(f"{name} INT" for name in names)])
        rows = [(i, *[0] * len(names)) for i in (1, 2)]
        path = create_table(schema, rows, deletion_vectors=deletion_vectors, properties=FEED)
        result = skipping(path).merge(create_source(schema, [rows[0], (*rows[1][:-1], 5)]))
        assert (result.num_unchanged_rows, result.num_target_rows_updated) == (1, 1)
        changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", result.version)
        of_last = changes.load(path).select("id", "_change_type", names[-1]).orderBy(names[-1]).collect()
        assert list(map(tuple, of_last)) == [(2, "update_preimage", 0), (2, "update_postimage", 5)]

    def test_a_row_that_stays_keeps_its_row_version(self, spark, create_table, create_source, deletion_vectors):
        path = create_table(
            SCHEMA,
            [(1, "a"), (2, "b"), (3, "c")],
            deletion_vectors=deletion_vectors,
            properties={"delta.enableRowTracking": "true"},
        )
        before = latest_version(path)
        result = skipping(path).merge(create_source(SCHEMA, [(1, "a"), (2, "x")]))
        rows = spark.read.format("delta").load(path).select("id", "_metadata.row_id", "_metadata.row_commit_version")
        assert sorted(map(tuple, rows.collect())) == [(1, 0, before), (2, 1, result.version), (3, 2, before)]


class TestSinksWithKeys:
    """Redelivered changes, which at-least-once sources send."""

    CHANGES: ClassVar = [(1, "a", 5, "u"), (2, "b", 5, "u"), (3, None, 5, "d")]
    SOURCE: ClassVar = "id INT, v STRING, seq BIGINT, op STRING"

    @pytest.mark.parametrize("sequence_by", ["seq", "seq * 2"], ids=["column", "expression"])
    def test_a_redelivered_batch_writes_no_row(
        self, create_table, create_source, read_rows, deletion_vectors, sequence_by
    ):
        schema = "id INT, v STRING, seq BIGINT" if sequence_by == "seq" else SCHEMA
        path = create_table(schema, deletion_vectors=deletion_vectors)
        sink = merge_sink(
            path, keys="id", sequence_by=sequence_by, delete_when="op = 'd'", locator="index", skip_unchanged=True
        )
        first = sink.merge(create_source(self.SOURCE, self.CHANGES))
        rows = read_rows(path)
        again = sink.merge(create_source(self.SOURCE, [*self.CHANGES, (1, "old", 4, "u")]))
        assert (first.num_target_rows_inserted, first.num_unchanged_rows) == (2, 0)
        assert (again.num_unchanged_rows, again.num_target_rows_updated, again.num_stale_rows) == (2, 0, 0)
        assert (again.locator, read_rows(path)) == ("scan", rows)
        if again.version is not None:
            assert file_actions(path, again.version) == []

    def test_a_newer_change_of_the_same_contents_advances_the_sequence(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(
            "id INT, v STRING, seq BIGINT", [(1, "a", 5), (2, "b", 5)], deletion_vectors=deletion_vectors
        )
        sink = merge_sink(path, keys="id", sequence_by="seq", skip_unchanged=True)
        source = "id INT, v STRING, seq BIGINT"
        newer = sink.merge(create_source(source, [(1, "a", 7), (2, "old", 4)]))
        assert (newer.num_target_rows_updated, newer.num_unchanged_rows, newer.num_stale_rows) == (1, 0, 1)
        late = sink.merge(create_source(source, [(1, "late", 6)]))
        assert (late.num_stale_rows, late.num_unchanged_rows) == (1, 0)
        assert read_rows(path) == [Row(id=1, v="a", seq=7), Row(id=2, v="b", seq=5)]

    def test_explain_says_that_old_values_are_read(self, create_table, create_source):
        path = create_table(SCHEMA, deletion_vectors=True)
        batch = create_source(SCHEMA, [(1, "a")])
        assert "while the matches are looked up" in upsert(path).explain(batch)
        explained = skipping(path).explain(batch)
        assert "while the matches are looked up" not in explained
        assert "old values are read" in explained


@pytest.mark.core
def test_a_streams_batch_without_changes_is_recorded_and_touches_no_file(
    spark, create_table, read_rows, tmp_path, deletion_vectors
):
    path = create_table(SCHEMA, [(1, "a"), (2, "b")], deletion_vectors=deletion_vectors)
    changes = ChangeFiles(tmp_path / "changes", SCHEMA)
    changes.add([(1, "a"), (2, "b")], [(2, "b"), (3, "c")])
    run(changes.stream(spark), skipping(path), tmp_path / "checkpoint")
    version = latest_version(path)
    assert recorded_ids(path) == [0, 1]
    assert file_actions(path, version - 1) == []
    assert [operation_metrics(path, v)["numUnchangedRows"] for v in (version - 1, version)] == [2, 1]
    assert [set(action) & {"deletionVector"} for action in file_actions(path, version)] == [set()]
    assert read_rows(path) == [Row(id=1, v="a"), Row(id=2, v="b"), Row(id=3, v="c")]
