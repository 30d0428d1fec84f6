"""Changes in any order, batches and retries: the table is what the fold of the log by sequence gives."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from stream_merge import MergeSink, merge_sink
from stream_merge.batch import report
from stream_merge.column_names import SEQUENCE
from tests.spark.delta_log import actions_of, latest_version
from tests.spark.tables import files_below

pytestmark = pytest.mark.any_strategy

SCHEMA = "id INT, v STRING, seq BIGINT, op STRING"
TARGET = "id INT, v STRING, seq BIGINT"


def keyed(path: str, **options: Any) -> MergeSink:
    """Return the sink of most tests here."""
    return merge_sink(path, **{"keys": "id", "sequence_by": "seq", "delete_when": "op = 'd'", **options})


@pytest.mark.always
@pytest.mark.core
class TestResurrection:
    """P9: deletes that come before older changes of their key."""

    def test_a_late_upsert_does_not_revive_a_deleted_row(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        """apache/spark#55993, apache/hudi#4880: an upsert older than the delete arrives after it, in a later batch."""
        path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)], deletion_vectors=deletion_vectors)
        first = keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d"), (3, None, 5, "d")]))
        assert (first.num_target_rows_deleted, first.num_tombstones, first.num_tombstones_added) == (1, 2, 2)
        late = keyed(path).merge(
            create_source(SCHEMA, [(1, "old", 4, "u"), (3, "old", 4, "u"), (2, "new", 4, "u"), (4, "x", 1, "u")])
        )
        assert read_rows(path) == [Row(id=2, v="new", seq=4), Row(id=4, v="x", seq=1)]
        assert (late.num_outdated_rows, late.num_source_rows, late.num_target_rows_inserted) == (2, 2, 1)
        newer = keyed(path).merge(create_source(SCHEMA, [(1, "back", 6, "u"), (3, "late", 5, "u")]))
        # The same sequence as the delete's: the change of the later batch wins.
        assert newer.num_outdated_rows == 0
        assert read_rows(path, "id", "v") == [
            Row(id=1, v="back"),
            Row(id=2, v="new"),
            Row(id=3, v="late"),
            Row(id=4, v="x"),
        ]

    def test_a_late_delete_does_not_remove_a_newer_row(self, create_table, create_source, read_rows, deletion_vectors):
        """apache/spark#55993: a delete without a guard on the sequence kills the row that was written after it."""
        path = create_table(TARGET, [(1, "a", 1), (2, "b", 7)], deletion_vectors=deletion_vectors)
        sink = keyed(path)
        sink.merge(create_source(SCHEMA, [(1, "new", 9, "u")]))
        result = sink.merge(create_source(SCHEMA, [(1, None, 8, "d"), (1, "late", 7, "u"), (2, None, 6, "d")]))
        assert read_rows(path) == [Row(id=1, v="new", seq=9), Row(id=2, v="b", seq=7)]
        assert (result.num_target_rows_deleted, result.num_stale_rows, result.num_superseded_rows) == (0, 2, 1)

    def test_a_row_that_came_back_is_deleted_again(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(TARGET, [(1, "a", 1)], deletion_vectors=deletion_vectors)
        sink = keyed(path)
        for change in [(1, None, 2, "d"), (1, "b", 3, "u"), (1, None, 4, "d"), (1, "late", 3, "u")]:
            sink.merge(create_source(SCHEMA, [change]))
        assert read_rows(path) == []

    def test_without_retention_nothing_is_remembered(self, spark, create_table, create_source, read_rows):
        path = create_table(TARGET, [(1, "a", 1)])
        sink = keyed(path, tombstone_retention=dt.timedelta(0))
        sink.merge(create_source(SCHEMA, [(1, None, 5, "d")]))
        sink.merge(create_source(SCHEMA, [(1, "old", 4, "u")]))
        assert read_rows(path) == [Row(id=1, v="old", seq=4)]
        assert "domainMetadata" not in spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]["tableFeatures"]


@pytest.mark.always
class TestOrder:
    def test_a_sink_without_a_sequence_is_told_what_it_undoes(self, create_table, create_source, read_rows, caplog):
        path = create_table(TARGET, [(1, "a", 1)])
        change = create_source(SCHEMA, [(1, "old", 4, "u")])
        keyed(path).merge(create_source(SCHEMA, [(1, None, 5, "d")]))
        caplog.clear()
        unordered = keyed(path, sequence_by=None)
        for _ in range(2):
            unordered.merge(change)
        assert read_rows(path) == [Row(id=1, v="old", seq=4)]
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert f"{path}: the table was written with sequence_by (seq), and this sink has none" in warning
        caplog.clear()
        # Clauses of one's own decide on the order themselves, and who has asked to forget it knows.
        merge_sink(path, keys="id").when_matched_delete(condition="source.op = 'd'").merge(change)
        unordered.reset_state(create_source(SCHEMA).sparkSession)
        keyed(path, sequence_by=None).merge(change)
        assert not caplog.records

    def test_a_batch_without_any_newer_change_is_told_once(self, spark, create_table, read_rows, caplog, monkeypatch):
        """Offsets in the place of lsn: of the rows that are there, all changes would be left out for ever."""
        monkeypatch.setattr(report, "MIN_STALE_ROWS", 3)
        path = create_table(TARGET)
        sink = keyed(path)
        sink.merge(spark.sql("SELECT INT(id), 'a' v, 5000L + id seq, IF(id = 1, 'd', 'u') op FROM range(4)"))
        by_offset = "SELECT INT(id), 'b' v, {} + id seq, 'u' op FROM range(3, {})"
        for change, warnings in (
            (by_offset.format("10L", 6), 0),  # One late change, and new rows.
            (by_offset.format("9L", 6).replace("range(3", "range(1"), 1),  # 1 was deleted, 2 to 5 are there.
            (by_offset.format("0L", 6).replace("range(3", "range(1"), 1),
        ):
            sink.merge(spark.sql(change))
            told = [each.getMessage() for each in caplog.records if "of another kind than before" in each.getMessage()]
            assert len(told) == warnings, change
        assert "all 5 changes of rows that the table has, or had" in told[0]
        assert len(read_rows(path)) == 5

    def test_the_newest_change_of_a_batch_wins(self, create_table, create_source, read_rows, deletion_vectors):
        """delta-io/delta#131, #325: "multiple source rows matched"; with one change a key, smoke tests pass."""
        path = create_table(TARGET, [(1, "a", 1)], deletion_vectors=deletion_vectors)
        changes = [(1, "x", 3, "u"), (1, "y", 2, "u"), (2, "p", 1, "u"), (2, None, 2, "d"), (3, "n", None, "u")]
        came_back = [(4, "q", 1, "u"), (4, None, 2, "d"), (4, "r", 3, "u")]
        result = keyed(path).merge(create_source(SCHEMA, [*changes, *came_back]))
        assert read_rows(path) == [Row(id=1, v="x", seq=3), Row(id=3, v="n", seq=None), Row(id=4, v="r", seq=3)]
        assert (result.num_superseded_rows, result.num_tied_keys, result.num_source_rows) == (4, 0, 4)

    @pytest.mark.parametrize("empty", ["", "__HIVE_DEFAULT_PARTITION__"])
    def test_an_empty_sequence_that_partitions_the_table_is_missing(
        self, create_table, create_source, read_rows, tmp_path, empty
    ):
        """Delta writes it as NULL, so it is as old as NULL, whether both come in one batch or in two."""
        schema = "id INT, v STRING, seq STRING, op STRING"
        changes = [(1, "empty", empty, "u"), (2, "empty", empty, "u"), (1, "none", None, "u"), (2, "five", "5", "u")]
        paths = [
            create_table("id INT, v STRING, seq STRING", partition_by=["seq"], path=str(tmp_path / name))
            for name in ("once", "twice")
        ]
        once, twice = map(keyed, paths)
        assert once.merge(create_source(schema, changes)).num_tied_keys == 1
        assert [row["v"] for row in read_rows(paths[0]) if row["id"] == 2] == ["five"]
        twice.merge(create_source(schema, changes[:2]))
        twice.merge(create_source(schema, changes[2:]))
        assert read_rows(paths[1]) == [Row(id=1, v="none", seq=None), Row(id=2, v="five", seq="5")]

    def test_a_missing_sequence_is_older_than_any(self, create_table, create_source, read_rows):
        path = create_table(TARGET, [(1, "a", 1), (2, "b", None)])
        changes = [(1, "x", None, "u"), (2, "y", None, "u"), (2, "z", 0, "u")]
        keyed(path).merge(create_source(SCHEMA, changes))
        assert read_rows(path) == [Row(id=1, v="a", seq=1), Row(id=2, v="z", seq=0)]

    def test_ties_that_differ_in_a_map_alone_are_counted(self, create_table, create_source):
        schema = "id INT, m MAP<STRING, INT>, seq BIGINT"
        path = create_table(schema)
        changes = [(1, {"a": 1}, 1), (1, {"a": 2}, 1), (2, {"a": 1}, 1), (2, {"a": 1}, 1)]
        result = merge_sink(path, keys="id", sequence_by="seq").merge(create_source(schema, changes))
        assert (result.num_tied_keys, result.num_superseded_rows) == (1, 2)

    def test_a_sequence_that_is_an_expression_gets_a_column(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table("id INT, v STRING", [(1, "a")], deletion_vectors=deletion_vectors)
        sink = keyed(path, sequence_by=["upper(at)", F.col("source.n") * 2], tie_break_by="offset")
        schema = "id INT, v STRING, at STRING, n INT, offset BIGINT, op STRING"
        sink.merge(
            create_source(schema, [(1, "b", "m", 1, 1, "u"), (1, "c", "m", 1, 2, "u"), (2, "d", "M", 0, 9, "u")])
        )
        assert read_rows(path) == [
            Row(id=1, v="c", _stream_merge_sequence=Row(s0="M", s1=2, s2=2)),
            Row(id=2, v="d", _stream_merge_sequence=Row(s0="M", s1=0, s2=9)),
        ]
        result = sink.merge(create_source(schema, [(1, "old", "M", 1, 1, "u"), (2, None, "m", 0, 10, "d")]))
        assert (result.num_stale_rows, result.num_target_rows_deleted) == (1, 1)
        sink.merge(create_source(schema, [(2, "old", "m", 0, 9, "u")]))
        assert read_rows(path, "id", "v") == [Row(id=1, v="c")]

    def test_explain_tells_the_order_and_writes_nothing(self, create_table, create_source):
        path = create_table("id INT, v STRING")
        batch = create_source("id INT, v STRING, n INT, op STRING", [(1, "a", 1, "u")])
        sink, files = keyed(path, sequence_by="n + 1"), files_below(path)
        before = sink.explain(batch)
        assert files_below(path) == files
        assert "by _stream_merge_sequence, a column that the sink will add" in before
        sink.merge(batch)
        after = sink.explain(batch)
        assert "by _stream_merge_sequence\n" in after
        assert "deletes are remembered for 7 days" in after
        assert "_stream_merge_sequence <" in after

    def test_a_plain_column_that_the_target_has_needs_no_other(self, create_table, create_source, spark):
        path = create_table(TARGET)
        keyed(path).merge(create_source(SCHEMA, [(1, "a", 1, "u")]))
        assert spark.read.format("delta").load(path).columns == ["id", "v", "seq"]
        assert SEQUENCE not in str(actions_of(path, latest_version(path), "metaData"))


@pytest.mark.parametrize("name", ["größe", "#5", "a b", "x.y", "1st", "50%", "it's", "order", "A-b"])
@pytest.mark.parametrize("role", ["sequence", "tie break", "created"])
def test_a_sequence_may_have_any_name(
    spark, create_table, create_source, read_rows, tmp_path, deletion_vectors, name, role
):
    """A name that SQL has to quote, or takes for an expression (`a b` is a with the alias b), is still a column's."""
    schema, path = f"id INT, v STRING, `{name}` INT", str(tmp_path / "target")
    mapped = {"delta.columnMapping.mode": "name"}
    options: dict[str, Any] = {"keys": "id", "sequence_by": name, "delete_when": "v IS NULL"}
    if role == "tie break":
        options |= {"sequence_by": "id", "tie_break_by": name}
    if role == "created":
        options |= {"create_if_missing": True, "table_properties": mapped}
    else:
        create_table(schema, deletion_vectors=deletion_vectors, properties=mapped)
    sink = merge_sink(path, **options)
    for rows in ([(1, "a", 5), (2, "b", 5)], [(1, None, 7), (2, "old", 4), (3, "x", 2), (3, "y", 1)], [(1, "late", 6)]):
        sink.merge(create_source(schema, rows))
    assert [tuple(row) for row in read_rows(path, "id", "v", f"`{name}`")] == [(2, "b", 5), (3, "x", 2)]


@pytest.mark.core
@pytest.mark.parametrize(
    "options",
    [{"except_columns": ["op"]}, {"columns": ["a", "SEQ"]}, {"ignore_null_updates": True, "except_columns": ["op"]}],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize(("named", "given"), [("seq", "SEQ"), ("SEQ", "seq")])
def test_a_sequence_may_be_spelt_in_another_case(
    create_table, create_source, read_rows, deletion_vectors, options, named, given
):
    path = create_table("id INT, a STRING, seq INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by=named, **options)
    for rows in ([(1, "new", 2, "u")], [(1, "late", 1, "u"), (2, "b", 1, "u")]):
        sink.merge(create_source(f"id INT, a STRING, {given} INT, op STRING", rows))
    # Also in the options of another sink.
    merge_sink(path, keys="ID", sequence_by=given, **options).merge(
        create_source("id INT, a STRING, seq INT, op STRING", [(1, "late", 1, "u"), (2, "c", 2, "u")])
    )
    assert [tuple(row) for row in read_rows(path, "id", "a", "seq")] == [(1, "new", 2), (2, "c", 2)]
