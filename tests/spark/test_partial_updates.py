"""Changes that set some columns of a row: values that were not sent, NULL that means unknown, several writers of one
table."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql import Row

from stream_merge import MergeSink, merge_sink
from stream_merge.batch import reduce
from stream_merge.column_names import COLUMN_SEQUENCES
from stream_merge.errors import ConfigError, UnresolvedColumnError, UnsupportedTableError
from stream_merge.partial_updates.fold import folded_changes
from tests.spark.delta_log import latest_version
from tests.spark.tables import change_rows, create_computed

pytestmark = [pytest.mark.any_strategy, pytest.mark.one_in(3)]

SCHEMA = "id INT, a STRING, b STRING, seq BIGINT, op STRING, unset ARRAY<STRING>"
TARGET = "id INT, a STRING, b STRING, seq BIGINT"


def unsent(path: str, **options: Any) -> MergeSink:
    """Return a sink of changes that name what they leave alone."""
    return merge_sink(
        path,
        **{
            "keys": "id",
            "sequence_by": "seq",
            "delete_when": "op = 'd'",
            "unchanged_columns": "unset",
            **options,
        },
    )


@pytest.mark.core
class TestValuesThatWereNotSent:
    """P15: what a change does not send stays as it is."""

    def test_they_keep_the_targets_and_are_folded_in_the_batch(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1), (2, "a2", "b2", 1)], deletion_vectors=deletion_vectors)
        changes = [
            (1, "A", None, 2, "u", ["b"]),
            (2, None, "B", 2, "u", ["a"]),
            (2, "A2", None, 3, "u", ["B"]),
            (3, "x", "y", 1, "u", None),
            (3, None, None, 2, "u", ["a", "b"]),
            (4, "n", None, 1, "u", []),
        ]
        result = unsent(path).merge(create_source(SCHEMA, changes))
        assert read_rows(path, "id", "a", "b", "seq") == [
            Row(id=1, a="A", b="b1", seq=2),
            Row(id=2, a="A2", b="B", seq=3),
            Row(id=3, a="x", b="y", seq=2),
            Row(id=4, a="n", b=None, seq=1),
        ]
        assert (result.num_superseded_rows, result.num_unresolved_rows) == (2, 0)

    def test_a_value_that_nobody_has_is_counted(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(TARGET, [(1, "a1", "b1", 1)], deletion_vectors=deletion_vectors)
        changes = [(1, "A", None, 2, "u", ["b"]), (2, "A", None, 2, "u", ["b"]), (3, None, "x", 2, "u", None)]
        result = unsent(path).merge(create_source(SCHEMA, changes))
        assert read_rows(path, "id", "a", "b") == [
            Row(id=1, a="A", b="b1"),
            Row(id=2, a="A", b=None),
            Row(id=3, a=None, b="x"),
        ]
        assert result.num_unresolved_rows == 1

    def test_a_key_that_has_several_rows_is_counted_once(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1), (4, "a4", "b4", 1)], deletion_vectors=deletion_vectors)
        create_source(TARGET, [(1, "a2", "b2", 1)]).write.format("delta").mode("append").save(path)
        changes = [(1, "A", None, 2, "u", ["b"]), (2, "A", None, 2, "u", ["b"]), (3, "A", None, 2, "u", ["b"])]
        changes.append((4, "A", "B", 2, "u", None))
        result = unsent(path).merge(create_source(SCHEMA, changes))
        assert read_rows(path, "id", "a", "b") == [
            Row(id=1, a="A", b="b1"),
            Row(id=1, a="A", b="b2"),
            Row(id=2, a="A", b=None),
            Row(id=3, a="A", b=None),
            Row(id=4, a="A", b="B"),
        ]
        assert result.num_unresolved_rows == 2

    def test_a_row_that_came_back_does_not_get_its_old_values(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1), (2, "a2", "b2", 1)], deletion_vectors=deletion_vectors)
        sink = unsent(path)
        result = sink.merge(create_source(SCHEMA, [(1, None, None, 2, "d", None), (1, "A", None, 3, "u", ["b"])]))
        assert result.num_unresolved_rows == 1
        sink.merge(create_source(SCHEMA, [(2, None, None, 2, "d", None)]))
        result = sink.merge(create_source(SCHEMA, [(2, "A", None, 3, "u", ["b"])]))
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a="A", b=None), Row(id=2, a="A", b=None)]
        assert result.num_unresolved_rows == 1

    def test_a_delete_takes_the_values_of_its_own_sequence_that_came_before_it(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        """Of one sequence the change of the later batch counts; what came after the delete stays, whatever comes with
        it again."""
        path = create_table(TARGET, deletion_vectors=deletion_vectors)
        sink = unsent(path)
        sink.merge(create_source(SCHEMA, [(key, "a5", "b5", 5, "u", None) for key in (1, 2)]))
        sink.merge(create_source(SCHEMA, [(1, None, None, 5, "d", None), (1, None, "b6", 6, "u", ["a"])]))
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a=None, b="b6"), Row(id=2, a="a5", b="b5")]
        sink.merge(create_source(SCHEMA, [(2, None, None, 5, "d", None)]))
        sink.merge(create_source(SCHEMA, [(2, "again", "b5", 5, "u", None)]))
        sink.merge(create_source(SCHEMA, [(2, None, "b6", 6, "u", ["a"])]))
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a=None, b="b6"), Row(id=2, a="again", b="b6")]

    def test_a_late_change_sets_what_no_newer_one_has_set(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1)], deletion_vectors=deletion_vectors)
        sink = unsent(path)
        sink.merge(create_source(SCHEMA, [(1, "a9", None, 9, "u", ["b"])]))
        sink.merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None)]))
        assert read_rows(path, "a", "b", "seq") == [Row(a="a9", b="b5", seq=9)]
        sink.merge(create_source(SCHEMA, [(1, "a4", "b4", 4, "u", None)]))
        assert read_rows(path, "a", "b", "seq") == [Row(a="a9", b="b5", seq=9)]
        # A delete between both: what is older than it is gone.
        sink.merge(create_source(SCHEMA, [(1, None, None, 6, "d", None)]))
        sink.merge(create_source(SCHEMA, [(1, None, "b3", 3, "u", ["a"])]))
        assert read_rows(path, "a", "b", "seq") == [Row(a="a9", b=None, seq=9)]
        sink.merge(create_source(SCHEMA, [(1, None, "b7", 7, "u", ["a"])]))
        assert read_rows(path, "a", "b", "seq") == [Row(a="a9", b="b7", seq=9)]

    def test_without_a_sequence(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table("id INT, a STRING, b STRING", [(1, "a1", "b1")], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, keys="id", unchanged_columns="source.unset")
        schema = "id INT, a STRING, b STRING, unset ARRAY<STRING>"
        sink.merge(create_source(schema, [(1, "A", None, ["b"]), (2, "x", None, ["b"])]))
        assert read_rows(path) == [Row(id=1, a="A", b="b1"), Row(id=2, a="x", b=None)]


class TestWhereTheSequencesAreKept:
    def test_columns_that_say_what_a_change_is_may_be_merged_too(self, create_table, create_source, read_rows):
        path = create_table(TARGET, [(1, "a1", "b1", 1), (2, "a2", "b2", 1)])
        sink = unsent(path, merge_schema=True)
        changes = [(1, "A", None, 2, "u", ["b"]), (1, None, None, 3, "d", None), (2, "A", None, 2, "u", ["b"])]
        sink.merge(create_source(SCHEMA, changes))
        assert read_rows(path, "id", "a", "b", "op") == [Row(id=2, a="A", b="b2", op="u")]

    def test_in_a_column_that_is_null_where_all_columns_are_as_new_as_the_row(
        self, create_table, create_source, read_rows
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1), (2, "a2", "b2", 1)])
        sink = unsent(path)
        sink.merge(create_source(SCHEMA, [(1, "A", None, 2, "u", ["b"]), (3, "x", None, 2, "u", ["b"])]))
        sink.merge(create_source(SCHEMA, [(2, "A", "B", 2, "u", None)]))
        assert read_rows(path, "id", COLUMN_SEQUENCES) == [
            Row(id=1, _stream_merge_column_sequences={"b": Row(s0=1)}),
            Row(id=2, _stream_merge_column_sequences=None),
            Row(id=3, _stream_merge_column_sequences={"b": None}),
        ]
        sink.merge(create_source(SCHEMA, [(1, None, None, 3, "u", None), (3, "x", "y", 3, "u", None)]))
        assert {row[0] for row in read_rows(path, COLUMN_SEQUENCES)} == {None}

    def test_a_sink_without_the_option_keeps_them_up(self, create_table, create_source, read_rows):
        path = create_table(TARGET, [(1, "a1", "b1", 1)])
        unsent(path).merge(create_source(SCHEMA, [(1, "a9", None, 9, "u", ["b"])]))
        unsent(path, unchanged_columns=None).merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None)]))
        assert read_rows(path, "a", "b") == [Row(a="a9", b="b5")]

    @pytest.mark.parametrize("is_own", [False, True], ids=["column of the table", "column of the sink"])
    def test_they_are_widened_with_the_sequence_of_the_table(
        self, spark, create_table, create_source, read_rows, deletion_vectors, is_own
    ):
        """The sequence is wider than what is remembered of single columns, which then has to hold it."""
        path = create_table(
            "id INT, a STRING, b STRING" + ("" if is_own else ", seq INT"),
            deletion_vectors=deletion_vectors,
            properties={"delta.enableTypeWidening": "true"},
        )
        sink, large = unsent(path), 2**40
        narrow = SCHEMA.replace("BIGINT", "INT")
        sink.merge(create_source(narrow, [(1, "a1", "b1", 1, "u", None)]))
        sink.merge(create_source(narrow, [(1, "a2", None, 2, "u", ["b"])]))
        column = "_stream_merge_sequence.s0" if is_own else "seq"
        spark.sql(f"ALTER TABLE delta.`{path}` CHANGE COLUMN {column} TYPE BIGINT")
        sink.merge(create_source(SCHEMA, [(1, None, "b3", large, "u", ["a"]), (2, "x", None, large, "u", ["b"])]))
        sink.merge(create_source(SCHEMA, [(1, "a4", None, large + 9, "u", ["b"])]))
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a="a4", b="b3"), Row(id=2, a="x", b=None)]
        sink.merge(create_source(SCHEMA, [(1, "no", "b5", large + 5, "u", None), (1, "no", "no", 3, "u", None)]))
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a="a4", b="b5"), Row(id=2, a="x", b=None)]

    def test_explain_says_so_before_and_after(self, create_table, create_source):
        path = create_table("id INT, a STRING, b STRING")
        batch = create_source(SCHEMA, [(1, "a", None, 1, "u", ["b"])])
        sink = unsent(path)
        assert f"the sink will add {COLUMN_SEQUENCES}" in sink.explain(batch)
        sink.merge(batch)
        assert "columns   one by one" in sink.explain(batch)


class TestNullThatMeansUnknown:
    """P16: NULL in a change is no value, for all columns or some."""

    @pytest.mark.parametrize("sequence_by", ["seq", None])
    def test_all_columns(self, create_table, create_source, read_rows, sequence_by):
        path = create_table(TARGET, [(1, "a1", "b1", 1)])
        sink = merge_sink(path, keys="id", sequence_by=sequence_by, ignore_null_updates=True)
        sink.merge(create_source(TARGET, [(1, None, "B", 2), (2, None, "x", 2)]))
        assert read_rows(path, "id", "a", "b", "seq") == [
            Row(id=1, a="a1", b="B", seq=2),
            Row(id=2, a=None, b="x", seq=2),
        ]

    def test_some_columns(self, create_table, create_source, read_rows, deletion_vectors):
        """Partial events have NULL in columns they know nothing of; in a column that is not listed it is a value."""
        path = create_table(TARGET, [(1, "a1", "b1", 1), (3, "a3", "b3", 1)], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, keys="id", sequence_by="seq", ignore_null_updates=["A"])
        changes = [(1, None, None, 2), (2, None, None, 2), (3, None, None, 3), (3, "A3", "B3", 2)]
        result = sink.merge(create_source(TARGET, changes))
        assert read_rows(path, "id", "a", "b") == [
            Row(id=1, a="a1", b=None),
            Row(id=2, a=None, b=None),
            Row(id=3, a="A3", b=None),
        ]
        # A NULL that is no value is none that was not sent.
        assert result.num_unresolved_rows == 0


class TestSomeColumns:
    def test_two_writers_of_one_table_each_in_its_own_order(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        """Paimon needs a sequence group for each stream: with one sequence, changes of the other stream are late."""
        path = create_table("id INT, a STRING, b STRING, n INT", deletion_vectors=deletion_vectors)
        of_a = merge_sink(path, keys="id", sequence_by="at * 1", columns=["a"])
        of_b = merge_sink(path, keys="id", sequence_by="at * 1", columns="b")
        schema = "id INT, a STRING, b STRING, at INT"
        of_a.merge(create_source(schema, [(1, "a100", "no", 100), (2, "a1", "no", 1)]))
        of_b.merge(create_source(schema, [(1, "no", "b5", 5), (3, "no", "b7", 7)]))
        of_b.merge(create_source(schema, [(1, "no", "b4", 4), (3, "no", "b8", 8)]))
        of_a.merge(create_source(schema, [(1, "a99", "no", 99), (2, "a2", "no", 2)]))
        assert read_rows(path, "id", "a", "b", "n") == [
            Row(id=1, a="a100", b="b5", n=None),
            Row(id=2, a="a2", b=None, n=None),
            Row(id=3, a=None, b="b8", n=None),
        ]

    @pytest.mark.parametrize("options", [{"columns": "a"}, {"merge_schema": True}], ids=["columns", "fewer columns"])
    def test_what_another_sink_leaves_alone_keeps_its_order(
        self, create_table, create_source, read_rows, deletion_vectors, options
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1)], deletion_vectors=deletion_vectors)
        sink = unsent(path)
        sink.merge(create_source(SCHEMA, [(2, "a2", "b2", 2, "u", None)]))
        of_a = merge_sink(path, keys="id", sequence_by="seq", **options)
        of_a.merge(create_source("id INT, a STRING, seq BIGINT", [(1, "a9", 9), (3, "a9", 9)]))
        # What the other sink has not set is older than the row: these changes are the newest that set it.
        sink.merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None), (3, "a5", "b5", 5, "u", None)]))
        expected = [Row(id=1, a="a9", b="b5"), Row(id=2, a="a2", b="b2"), Row(id=3, a="a9", b="b5")]
        assert read_rows(path, "id", "a", "b") == expected
        of_a.merge(create_source("id INT, a STRING, seq BIGINT", [(1, "a10", 10)]))
        sink.merge(create_source(SCHEMA, [(1, "a4", "b4", 4, "u", None), (3, "a4", "b4", 4, "u", None)]))
        expected[0] = Row(id=1, a="a10", b="b5")
        assert read_rows(path, "id", "a", "b") == expected

    def test_all_but_some(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, a STRING",
            [(1, "a1")],
            deletion_vectors=deletion_vectors,
            properties={"delta.columnMapping.mode": "name"},
        )
        sink = merge_sink(path, keys="ID", except_columns=["OP", "at"], merge_schema=True, delete_when="op = 'd'")
        schema = "id INT, a STRING, `new c.` STRING, op STRING, at INT"
        sink.merge(create_source(schema, [(1, "A", "n", "u", 1), (2, "x", "m", "u", 1), (3, "x", "m", "d", 1)]))
        assert read_rows(path) == [Row(id=1, a="A", **{"new c.": "n"}), Row(id=2, a="x", **{"new c.": "m"})]

    def test_a_new_table_gets_them(self, create_source, read_rows, table_path):
        sink = merge_sink(table_path, keys="id", create_if_missing=True, except_columns="op")
        sink.merge(create_source("id INT, a STRING, op STRING", [(1, "a", "u")]))
        assert read_rows(table_path) == [Row(id=1, a="a")]

    def test_faults(self, create_table, create_source):
        for options, fault in [
            ({"columns": ["a"], "except_columns": ["b"]}, "exclude each other"),
            ({"except_columns": ["ID"]}, "except_columns names the key ID"),
            ({"ignore_null_updates": ["id"]}, "ignore_null_updates names the key id"),
            ({"truncate_when": "op = 't'"}, "truncate_when needs sequence_by"),
        ]:
            with pytest.raises(ConfigError, match=fault):
                merge_sink("x", keys="id", **options)
        with pytest.raises(ConfigError, match="unchanged_columns belongs to the default clauses"):
            merge_sink("x", keys="id", unchanged_columns="m").when_matched_delete()
        path = create_table(TARGET)
        with pytest.raises(UnresolvedColumnError, match="columns names nope"):
            merge_sink(path, keys="id", columns=["nope"]).merge(create_source(TARGET, []))


class TestFeatures:
    def test_change_feed_and_types(self, spark, create_table, create_source, deletion_vectors, read_rows):
        schema = "id INT, m MAP<STRING, INT>, s STRUCT<x: INT>, l ARRAY<INT>, `o d` BINARY, at TIMESTAMP"
        path = create_table(
            schema,
            [(1, {"a": 1}, (1,), [1], b"x", dt.datetime.fromisoformat("2026-01-01"))],
            deletion_vectors=deletion_vectors,
            properties={"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"},
        )
        sink = merge_sink(path, keys="id", sequence_by="at", unchanged_columns="u")
        later = dt.datetime.fromisoformat("2026-01-02")
        sink.merge(create_source(f"{schema}, u ARRAY<STRING>", [(1, None, None, [2], None, later, ["m", "s", "o d"])]))
        row = read_rows(path, "m", "s", "l", "`o d`", "at")[0]
        assert (row.m, row.s, row.l, bytes(row["o d"]), row.at) == ({"a": 1}, Row(x=1), [2], b"x", later)
        kinds = [change[0] for change in change_rows(spark, path, latest_version(path))]
        assert kinds == ["update_postimage", "update_preimage"]

    def test_a_generated_column_of_a_value_that_may_be_missing_is_refused(self, spark, create_source, table_path):
        from tests.spark.tables import create_computed

        create_computed(
            spark, table_path, {"id": "INT", "a": "INT", "seq": "INT", "g": ("INT", "a + 1")}, deletion_vectors=True
        )
        batch = create_source("id INT, a INT, seq INT, u ARRAY<STRING>", [(1, 1, 1, ["a"])])
        with pytest.raises(UnsupportedTableError, match=r"generated column g"):
            merge_sink(table_path, keys="id", sequence_by="seq", unchanged_columns="u").merge(batch)


class TestTruncate:
    def test_what_is_older_goes_and_stays_away(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            TARGET,
            [(1, "a1", "b1", 1), (2, "a2", "b2", 2), (3, "a3", "b3", 9), (4, "a4", "b4", 1)],
            deletion_vectors=deletion_vectors,
        )
        sink = unsent(path, truncate_when="op = 't'")
        changes = [
            (None, None, None, 5, "t", None),
            (None, None, None, 4, "t", None),
            (2, "A2", None, 6, "u", ["b"]),
            (4, "old", "old", 3, "u", None),
            (5, "x", "y", 6, "u", None),
        ]
        result = sink.merge(create_source(SCHEMA, changes))
        expected = [
            Row(id=2, a="A2", b=None, seq=6),
            Row(id=3, a="a3", b="b3", seq=9),
            Row(id=5, a="x", b="y", seq=6),
        ]
        assert read_rows(path, "id", "a", "b", "seq") == expected
        assert (result.num_target_rows_deleted, result.num_outdated_rows, result.num_superseded_rows) == (2, 1, 0)
        late = sink.merge(create_source(SCHEMA, [(1, "old", "old", 4, "u", None), (None, None, None, 5, "t", None)]))
        assert read_rows(path, "id", "a", "b", "seq") == expected
        assert late.num_outdated_rows == 1
        sink.merge(create_source(SCHEMA, [(7, "n", "n", 5, "u", None)]))
        assert read_rows(path, "id") == [Row(id=2), Row(id=3), Row(id=5), Row(id=7)]

    def test_one_that_comes_again_leaves_rows_of_others(self, create_table, create_source, read_rows):
        """It is the same one, though 0.0 and -0.0 are written in two ways."""
        path = create_table("k INT, seq DOUBLE", [(1, -1.0)])
        sink = merge_sink(path, keys="k", sequence_by="seq", truncate_when="k IS NULL")
        sink.merge(create_source("k INT, seq DOUBLE", [(None, -0.0)]))
        assert read_rows(path, "k") == []
        create_source("k INT, seq DOUBLE", [(2, None)]).write.format("delta").mode("append").save(path)
        sink.merge(create_source("k INT, seq DOUBLE", [(None, 0.0)]))
        assert read_rows(path, "k") == [Row(k=2)]
        sink.merge(create_source("k INT, seq DOUBLE", [(None, 1.0)]))
        assert read_rows(path, "k") == []

    def test_of_an_empty_table(self, create_table, create_source, read_rows):
        path = create_table(TARGET)
        sink = unsent(path, truncate_when="op = 't'", unchanged_columns=None)
        sink.merge(create_source(SCHEMA, [(None, None, None, 5, "t", None)]))
        late = sink.merge(create_source(SCHEMA, [(1, "old", "old", 4, "u", None), (2, "a", "b", 6, "u", None)]))
        assert (late.num_outdated_rows, read_rows(path, "id")) == (1, [Row(id=2)])

    def test_in_a_sink_of_whole_rows_between_other_writers(
        self, create_table, create_source, read_rows, append_rows, at_step, deletion_vectors
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1)], deletion_vectors=deletion_vectors)
        sink = unsent(path, truncate_when="op = 't'", unchanged_columns=None)
        sink.merge(create_source(SCHEMA, [(9, "z", "z", 9, "u", None)]))
        at_step("before_commit", lambda: append_rows(path, TARGET, [(2, "a2", "b2", 2)]))
        result = sink.merge(create_source(SCHEMA, [(None, None, None, 5, "t", None)]))
        assert (result.num_commit_attempts, read_rows(path, "id")) == (2, [Row(id=9)])


class TestWholeRows:
    """Where no change leaves a column alone and no row has older columns, rows are merged whole."""

    def test_until_the_first_change_that_leaves_a_column_alone(
        self, create_table, create_source, read_rows, monkeypatch
    ):
        folded = []
        monkeypatch.setattr(reduce, "folded_changes", lambda *args: folded.append(1) or folded_changes(*args))
        path = create_table(TARGET, [(1, "a1", "b1", 1)])
        sink = unsent(path, truncate_when="op = 't'")
        changes = [(1, "a2", "b2", 2, "u", None), (2, "a", "b", 1, "u", []), (3, "a", "b", 1, "u", [])]
        sink.merge(create_source(SCHEMA, changes))
        sink.merge(create_source(SCHEMA, [(None, None, None, 1, "t", None), (2, None, None, 2, "d", None)]))
        assert not folded
        sink.merge(create_source(SCHEMA, [(1, "a9", None, 9, "u", ["b"])]))
        late = sink.merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None), (2, "x", "x", 1, "u", None)]))
        # The last batch was also planned to be like the one before.
        assert len(folded) == 3
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a="a9", b="b5"), Row(id=3, a="a", b="b")]
        assert late.num_outdated_rows == 1

    def test_after_a_first_batch_without_changes(self, spark, create_table, create_source, read_rows, monkeypatch):
        folded = []
        monkeypatch.setattr(reduce, "folded_changes", lambda *args: folded.append(1) or folded_changes(*args))
        path = create_table(TARGET, [(1, "a1", "b1", 1)])
        # The column for sequences is there then, and no commit says that no row uses it.
        unsent(path).merge(create_source(SCHEMA, []))
        unsent(path).merge(create_source(SCHEMA, [(1, "a2", "b2", 2, "u", None)]))
        assert not folded
        unsent(path).merge(create_source(SCHEMA, [(1, "a9", None, 9, "u", ["b"])]))
        sink = unsent(path)
        sink.reset_state(spark)
        sink.merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None)]))
        assert len(folded) == 2
        assert read_rows(path, "id", "a", "b") == [Row(id=1, a="a9", b="b5")]

    def test_another_sink_makes_the_first_such_row_between_open_and_commit(
        self, create_table, create_source, read_rows, at_step
    ):
        path = create_table(TARGET, [(1, "a1", "b1", 1)])
        unsent(path).merge(create_source(SCHEMA, [(2, "a", "b", 1, "u", None)]))
        at_step("before_commit", lambda: unsent(path).merge(create_source(SCHEMA, [(1, "a9", None, 9, "u", ["b"])])))
        result = unsent(path).merge(create_source(SCHEMA, [(1, "a5", "b5", 5, "u", None)]))
        assert (result.num_commit_attempts, read_rows(path, "id", "a", "b")) == (
            2,
            [Row(id=1, a="a9", b="b5"), Row(id=2, a="a", b="b")],
        )


@pytest.mark.core
@pytest.mark.parametrize("options", [{"unchanged_columns": "unset"}, {"columns": ["a", "seq"]}])
def test_a_sink_without_tombstones_tells_others_which_columns_are_older_than_their_rows(
    create_table, create_source, read_rows, deletion_vectors, options
):
    path = create_table(TARGET, [], deletion_vectors=deletion_vectors)
    whole = merge_sink(path, keys="id", sequence_by="seq", columns=["id", "a", "b", "seq"])
    single = merge_sink(path, keys="id", sequence_by="seq", tombstone_retention=dt.timedelta(0), **options)
    whole.merge(create_source(TARGET, [(1, "a1", "b1", 1), (2, "a1", "b1", 1)]))
    for at in (5, 6):
        single.merge(create_source(SCHEMA, [(id_, f"a{at}", None, at, "u", ["b"]) for id_ in (1, 2)]))
    whole.merge(create_source(TARGET, [(1, "a3", "b3", 3), (2, "a7", "b7", 7)]))
    whole.merge(create_source(TARGET, [(1, "a2", "b2", 2), (2, "a4", "b4", 4)]))
    assert read_rows(path, "id", "a", "b") == [Row(id=1, a="a6", b="b3"), Row(id=2, a="a7", b="b7")]


@pytest.mark.core
@pytest.mark.parametrize("order", [(1, 5, 3), (5, 3, 1)])
def test_a_batch_that_lacks_a_column_where_the_schema_may_evolve(
    create_table, create_source, read_rows, deletion_vectors, order
):
    """Delta leaves the column alone, so it is older than the row from then on."""
    path = create_table("id INT, a STRING, b STRING, s BIGINT", [], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by="s", merge_schema=True)
    for at in order:
        if at == 5:
            sink.merge(create_source("id INT, a STRING, s BIGINT", [(1, "a5", 5)]))
        else:
            sink.merge(create_source("id INT, a STRING, b STRING, s BIGINT", [(1, f"a{at}", f"b{at}", at)]))
    assert read_rows(path, "id", "a", "b", "s") == [Row(id=1, a="a5", b="b3", s=5)]
    sink.merge(
        create_source("id INT, a STRING, b STRING, c INT, s BIGINT", [(1, "a6", "b6", 6, 6), (2, "x", "y", 1, 1)])
    )
    assert read_rows(path, "id", "b", "c") == [Row(id=1, b="b6", c=6), Row(id=2, b="y", c=1)]


@pytest.mark.parametrize("kind", ["generated column", "field of a struct"])
def test_a_batch_that_lacks_more_than_columns_where_the_schema_may_evolve(
    spark, create_table, table_path, read_rows, kind
):
    """Where the age of columns cannot be kept, a batch is merged as Delta does it."""
    if kind == "generated column":
        columns = {"id": "INT", "p": "STRUCT<x: INT>", "b": "INT", "s": ("INT", "id * 0 + 1")}
        create_computed(spark, table_path, columns, deletion_vectors=False)
    else:
        create_table("id INT, p STRUCT<x: INT, y: INT>, b INT, s INT", [], path=table_path)
    field = "" if kind == "generated column" else ", 'y', 1"
    spark.sql(f"SELECT 1 id, named_struct('x', 1{field}) p, 7 b, 1 s").writeTo(f"delta.`{table_path}`").append()
    sink = merge_sink(table_path, keys="id", sequence_by="at", merge_schema=True, except_columns=[])
    sink.merge(spark.sql("SELECT 1 id, named_struct('x', 2) p, 5 at"))
    ((_, struct, other),) = read_rows(table_path, "id", "p", "b")
    assert (struct.x, other) == (2, 7)
    assert kind == "generated column" or struct.y == 1
