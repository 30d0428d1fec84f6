"""Delta's table features keep working under a merge, or the merge refuses before it writes anything."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, ClassVar

import pyspark
import pytest
from delta.tables import IdentityGenerator
from pyspark.sql import Row

from stream_merge import UnsupportedTableError, merge_sink
from stream_merge.errors import ConstraintViolationError, StreamMergeError
from tests.spark.delta_log import actions_of, latest_version, read_actions, row_metrics
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.tables import change_rows, create_computed, files_below, upsert

pytestmark = pytest.mark.core

HAS_VARIANTS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


class TestLayout:
    def test_a_row_moves_to_the_partition_of_its_new_value(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(
            "id INT, day DATE, name STRING",
            [(1, dt.date(2024, 1, 1), "a"), (2, dt.date(2024, 1, 2), "b"), (3, None, "c")],
            deletion_vectors=deletion_vectors,
            partition_by=["day", "name"],
        )
        rows = [(1, dt.date(2024, 1, 2), "x=y/z %"), (3, dt.date(2024, 1, 1), ""), (4, None, None)]
        result = upsert(path).merge(create_source("id int, day date, name string", rows))
        assert read_rows(path) == [
            Row(id=1, day=dt.date(2024, 1, 2), name="x=y/z %"),
            Row(id=2, day=dt.date(2024, 1, 2), name="b"),
            Row(id=3, day=dt.date(2024, 1, 1), name=None),
            Row(id=4, day=None, name=None),
        ]
        assert result.num_target_partitions_added_to == 3

    def test_only_partitions_that_the_condition_names_are_read(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(
            "id INT, region STRING, qty INT",
            [(1, "eu", 1), (1, "us", 1), (2, "us", 2)],
            deletion_vectors=deletion_vectors,
            partition_by=["region"],
        )
        sink = (
            merge_sink(path, on="target.id = source.id AND target.region = 'us'")
            .when_matched_update(set={"qty": "target.qty + source.qty"})
            .when_not_matched_insert_all()
        )
        result = sink.merge(create_source("id int, region string, qty int", [(1, "us", 10), (5, "us", 5)]))
        assert read_rows(path) == [
            Row(id=1, region="eu", qty=1),
            Row(id=1, region="us", qty=11),
            Row(id=2, region="us", qty=2),
            Row(id=5, region="us", qty=5),
        ]
        assert (result.num_target_files_before_skipping, result.num_target_files_after_skipping) == (2, 1)
        assert result.num_target_partitions_after_skipping == 1
        removed = {remove["partitionValues"]["region"] for remove in actions_of(path, result.version, "remove")}
        assert removed == {"us"}

    def test_a_clustered_table_stays_clustered(self, spark, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, region STRING", [(1, "eu")], deletion_vectors=deletion_vectors, cluster_by=["region", "id"]
        )
        upsert(path).merge(create_source("id int, region string", [(1, "us"), (2, "eu")]))
        assert read_rows(path) == [Row(id=1, region="us"), Row(id=2, region="eu")]
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").head()
        assert detail["clusteringColumns"] == ["region", "id"]
        spark.sql(f"OPTIMIZE delta.`{path}`")
        assert read_rows(path) == [Row(id=1, region="us"), Row(id=2, region="eu")]


class TestChangeDataFeed:
    PROPERTIES: ClassVar = {"delta.enableChangeDataFeed": "true"}

    def test_images_are_those_of_before_and_after(self, spark, create_table, create_source, deletion_vectors):
        path = create_table(
            "id INT, qty INT, at STRUCT<x: INT>",
            [(1, 1, (1,)), (2, 2, (2,)), (3, 3, None), (4, 4, (4,))],
            deletion_vectors=deletion_vectors,
            properties=self.PROPERTIES,
        )
        sink = (
            merge_sink(path, on="target.id = source.id")
            .when_matched_delete(condition="source.qty = 0")
            .when_matched_update(set={"qty": "target.qty + source.qty"})
            .when_not_matched_insert(values={"id": "source.id", "qty": "source.qty"})
            .when_not_matched_by_source_update(set={"at": "null"}, condition="target.id = 4")
        )
        result = sink.merge(create_source("id int, qty int", [(1, 10), (2, 0), (9, 9)]))
        assert change_rows(spark, path, result.version) == [
            ("delete", 2, 2, Row(x=2)),
            ("insert", 9, 9, None),
            ("update_postimage", 1, 11, Row(x=1)),
            ("update_postimage", 4, 4, None),
            ("update_preimage", 1, 1, Row(x=1)),
            ("update_preimage", 4, 4, Row(x=4)),
        ]

    def test_the_feed_of_a_partitioned_table(self, spark, create_table, create_source, tmp_path, deletion_vectors):
        path = create_table(
            "id INT, region STRING, qty INT",
            [(1, "eu", 1), (2, "us", 2), (3, None, 3)],
            deletion_vectors=deletion_vectors,
            properties=self.PROPERTIES,
            partition_by=["region"],
        )
        copy = copy_table(path, str(tmp_path / "copy"))
        source = create_source("id int, region string, qty int", [(1, "us", 10), (3, "eu", 30), (4, None, 40)])
        result = upsert(path).merge(source)
        merge_with_delta(upsert(path), copy, source)
        changes = change_rows(spark, path, result.version)
        assert len(changes) == 5
        assert changes == change_rows(spark, copy, result.version)

    def test_an_insert_only_merge_needs_no_change_files(self, spark, create_table, create_source, deletion_vectors):
        path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=deletion_vectors, properties=self.PROPERTIES)
        sink = merge_sink(path, on="target.id = source.id").when_not_matched_insert_all()
        result = sink.merge(create_source("id int, v int", [(1, 2), (2, 2)]))
        assert change_rows(spark, path, result.version) == [("insert", 2, 2)]
        assert actions_of(path, result.version, "cdc") == []

    def test_change_rows_of_a_schema_that_grows(self, spark, create_table, create_source, deletion_vectors):
        path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=deletion_vectors, properties=self.PROPERTIES)
        result = upsert(path, merge_schema=True).merge(create_source("id int, v int, w int", [(1, 2, 3), (2, 2, 4)]))
        assert change_rows(spark, path, result.version) == [
            ("insert", 2, 2, 4),
            ("update_postimage", 1, 2, 3),
            ("update_preimage", 1, 1, None),
        ]


class TestAppendOnly:
    PROPERTIES: ClassVar = {"delta.appendOnly": "true"}

    @pytest.mark.parametrize("clause", ["update", "delete", "delete by source"])
    def test_changes_are_refused(self, create_table, create_source, read_rows, deletion_vectors, clause):
        path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=deletion_vectors, properties=self.PROPERTIES)
        version = latest_version(path)
        sink = merge_sink(path, on="target.id = source.id")
        match clause:
            case "update":
                sink, source_id = sink.when_matched_update_all(), 1
            case "delete":
                sink, source_id = sink.when_matched_delete(), 1
            case _:
                sink, source_id = sink.when_not_matched_by_source_delete(), 2
        with pytest.raises(ConstraintViolationError):
            sink.merge(create_source("id int, v int", [(source_id, 2)]))
        assert latest_version(path) == version
        assert read_rows(path) == [Row(id=1, v=1)]

    def test_inserts_are_allowed(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=deletion_vectors, properties=self.PROPERTIES)
        sink = merge_sink(path, on="target.id = source.id").when_not_matched_insert_all()
        result = sink.merge(create_source("id int, v int", [(1, 2), (2, 2)]))
        assert result.strategy == "insert_only"
        assert read_rows(path) == [Row(id=1, v=1), Row(id=2, v=2)]


@pytest.mark.always
class TestRowTracking:
    def test_row_ids_are_kept_as_merge_keeps_them(self, spark, create_table, create_source, tmp_path, deletion_vectors):
        path = create_table(
            "id INT, v INT",
            [(key, key) for key in range(6)],
            deletion_vectors=deletion_vectors,
            properties={"delta.enableRowTracking": "true"},
        )
        copy = copy_table(path, str(tmp_path / "copy"))
        sink = upsert(path).when_not_matched_by_source_delete(condition="target.id = 5")
        batches = [[(1, 10), (2, 20), (7, 70)], [(2, 21), (7, 71), (3, 31)]]
        for batch in batches:
            source = create_source("id int, v int", batch)
            sink.merge(source)
            merge_with_delta(sink, copy, source)

        def tracked(table: str, *, keys: str) -> list[Row]:
            frame = spark.read.format("delta").load(table).where(keys)
            return sorted(frame.select("id", "v", "_metadata.row_id", "_metadata.row_commit_version").collect())

        kept = tracked(path, keys="id < 7")
        assert kept == tracked(copy, keys="id < 7")
        assert [row["row_id"] for row in kept] == [0, 1, 2, 3, 4]
        everything = tracked(path, keys="true")
        assert [(row["id"], row["v"]) for row in everything] == [(0, 0), (1, 10), (2, 21), (3, 31), (4, 4), (7, 71)]
        assert len({row["row_id"] for row in everything}) == 6

        inserted = tracked(path, keys="id = 7"), tracked(copy, keys="id = 7")
        assert inserted[0][0]["row_commit_version"] == inserted[1][0]["row_commit_version"]


class TestCommitTimestamps:
    def test_the_commit_carries_its_timestamp(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, v INT",
            [(1, 1)],
            deletion_vectors=deletion_vectors,
            properties={"delta.enableInCommitTimestamps": "true"},
        )
        first = upsert(path).merge(create_source("id int, v int", [(1, 2)])).version
        second = upsert(path).merge(create_source("id int, v int", [(1, 3)])).version
        infos = [read_actions(path, version)[0]["commitInfo"] for version in (first - 1, first, second)]
        timestamps = [info["inCommitTimestamp"] for info in infos]
        assert timestamps == sorted(set(timestamps))
        assert read_rows(path) == [Row(id=1, v=3)]
        assert read_rows(path, version=first) == [Row(id=1, v=2)]


class TestMaintenance:
    @pytest.mark.core
    def test_deltas_own_commands_work_on_the_merged_table(
        self, spark, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table("id INT, v INT", [(key, 0) for key in range(6)], deletion_vectors=deletion_vectors)
        upsert(path).merge(create_source("id int, v int", [(1, 1), (7, 7)]))
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
        finally:
            spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        upsert(path).merge(create_source("id int, v int", [(1, 2), (2, 2)]))
        spark.sql(f"OPTIMIZE delta.`{path}`")
        upsert(path).merge(create_source("id int, v int", [(3, 3)]))
        spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 0")
        upsert(path).merge(create_source("id int, v int", [(4, 4)]))
        assert [tuple(row) for row in read_rows(path)] == [(1, 2), (2, 2), (3, 3), (4, 4), (5, 0), (7, 7)]


class TestRefused:
    def test_identity_columns(self, spark, table_path, append_rows, create_source, read_rows, deletion_vectors):
        columns = {"key": ("BIGINT", IdentityGenerator()), "id": "INT", "v": "INT"}
        path = create_computed(spark, table_path, columns, deletion_vectors=deletion_vectors)
        append_rows(path, "id int, v int", [(1, 1)])
        before = files_below(path)
        sink = (
            merge_sink(path, on="target.id = source.id")
            .when_matched_update(set={"v": "source.v"})
            .when_not_matched_insert(values={"id": "source.id", "v": "source.v"})
        )
        with pytest.raises(UnsupportedTableError, match=r"(?i)identity.*key|key.*identity"):
            sink.merge(create_source("id int, v int", [(1, 2), (2, 2)]))
        assert files_below(path) == before
        assert read_rows(path) == [Row(key=1, id=1, v=1)]

    @pytest.mark.parametrize("reader_too", [False, True], ids=["writer", "reader"])
    def test_features_that_are_not_known(self, create_table, create_source, deletion_vectors, reader_too):
        path = create_table("id INT, v INT", [(1, 1)], deletion_vectors=deletion_vectors)
        add_unknown_feature(path, reader_too=reader_too)
        before = files_below(path)
        with pytest.raises(UnsupportedTableError, match="timeTravelPlus"):
            upsert(path).merge(create_source("id int, v int", [(1, 2)]))
        assert files_below(path) == before

    def test_a_directory_that_is_no_table(self, tmp_path, create_source):
        (tmp_path / "plain").mkdir()
        with pytest.raises(StreamMergeError, match="plain"):
            upsert(str(tmp_path / "plain")).merge(create_source("id int", [(1,)]))
        assert list((tmp_path / "plain").iterdir()) == []


def add_unknown_feature(path: str, *, reader_too: bool) -> None:
    """Commit a protocol with a table feature that no version of Delta has."""
    protocols = [p for version in range(latest_version(path) + 1) for p in actions_of(path, version, "protocol")]
    old = protocols[-1]
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if reader_too else old["minReaderVersion"],
        "minWriterVersion": 7,
        "writerFeatures": [*old.get("writerFeatures", ["appendOnly", "invariants"]), "timeTravelPlus"],
    }
    if protocol["minReaderVersion"] == 3:
        protocol["readerFeatures"] = [*old.get("readerFeatures", []), *(["timeTravelPlus"] if reader_too else [])]
    commit = Path(path, "_delta_log", f"{latest_version(path) + 1:020d}.json")
    commit.write_text(json.dumps({"protocol": protocol}) + "\n")


def test_metrics_survive_a_chain_of_merges(create_table, create_source, read_rows, deletion_vectors):
    """The second merge meets what the first one left: deletion vectors, or rewritten files."""
    path = create_table("id INT, v INT", [(key, 0) for key in range(10)], deletion_vectors=deletion_vectors)
    sink = upsert(path).when_not_matched_by_source_delete(condition="target.v < 0")
    for round_number in (1, 2, 3):
        rows = [(key, round_number) for key in range(round_number, 10, 3)] + [(10 + round_number, -round_number)]
        result = sink.merge(create_source("id int, v int", rows))
        assert row_metrics(path, result.version)["numTargetRowsMatchedUpdated"] == len(rows) - 1
        assert result.num_target_rows_inserted == 1
        assert result.num_target_rows_deleted == (0 if round_number == 1 else 1)
    assert [tuple(row) for row in read_rows(path)] == sorted(
        [(0, 0), (1, 1), (2, 2), (3, 3), (4, 1), (5, 2), (6, 3), (7, 1), (8, 2), (9, 3), (13, -3)], key=repr_of_row
    )


def repr_of_row(row: tuple[int, int]) -> str:
    """Return the text that `read_rows` sorts by."""
    return repr(Row(id=row[0], v=row[1]))


@pytest.mark.parametrize("deletion_vectors", [False, True])
def test_the_change_feed_has_the_values_of_the_table(spark, create_table, create_source, read_rows, deletion_vectors):
    """Also those that are others each time they are computed."""
    path = create_table(
        "id INT, v STRING, u STRING",
        [(1, "a", "x"), (2, "b", "y"), (3, "c", "z")],
        deletion_vectors=deletion_vectors,
        properties={"delta.enableChangeDataFeed": "true"},
    )
    sink = (
        merge_sink(path, on="target.id = source.id")
        .when_matched_delete(condition="source.v = 'd'")
        .when_matched_update(set={"v": "source.v", "u": "uuid()"})
        .when_not_matched_insert(values={"id": "source.id", "v": "source.v", "u": "uuid()"})
    )
    sink.merge(create_source("id INT, v STRING", [(1, "A"), (3, "d"), (4, "N")]))
    written = {row.id: row.u for row in read_rows(path)}
    assert len({written[1], written[4], "x", "y"}) == 4
    assert change_rows(spark, path, latest_version(path)) == sorted(
        [
            ("delete", 3, "c", "z"),
            ("insert", 4, "N", written[4]),
            ("update_postimage", 1, "A", written[1]),
            ("update_preimage", 1, "a", "x"),
        ],
        key=repr,
    )


@pytest.mark.skipif(not HAS_VARIANTS, reason="Spark's reader of deletion vectors fails at a VARIANT before 4.2")
class TestVariants:
    SCHEMA = "id INT, n INT, json STRING, op STRING"
    COLUMNS: ClassVar[dict[str, Any]] = {"keys": "id", "sequence_by": "n", "delete_when": "op = 'd'"}

    @staticmethod
    def documents(spark, path: str) -> list[tuple[Any, ...]]:
        rows = spark.read.format("delta").load(path).selectExpr("id", "to_json(doc)")
        return sorted(map(tuple, rows.collect()))

    @pytest.mark.parametrize("is_created", [False, True], ids=["there", "created"])
    def test_they_are_merged_as_other_values(
        self, spark, create_table, create_source, table_path, deletion_vectors, is_created
    ):
        """`debezium.changes` reads JSON as VARIANT where it is told to."""
        path = (
            table_path if is_created else create_table("id INT, n INT, doc VARIANT", deletion_vectors=deletion_vectors)
        )
        properties = {
            "delta.enableDeletionVectors": str(deletion_vectors).lower(),
            "delta.enableChangeDataFeed": "true",
        }
        sink = merge_sink(
            path,
            **self.COLUMNS,
            except_columns=["json", "op", "unset"],
            unchanged_columns="unset",
            create_if_missing=is_created,
            table_properties=properties if is_created else {},
            maintenance=True,
        )
        for batch in (
            [(1, 1, '{"a": [1, null]}', "u"), (2, 1, '"text"', "u"), (3, 1, "7.50", "u"), (4, 1, None, "u")],
            [(1, 5, '{"b": 2}', "u"), (2, 5, None, "d"), (3, 5, "unset", "u"), (5, 5, "[true]", "u")],
            [(1, 4, '"late"', "u"), (2, 4, '"late"', "u"), (4, 6, "{}", "u")],
        ):
            source = create_source(self.SCHEMA, batch).selectExpr(
                "*", "try_parse_json(json) AS doc", "if(json = 'unset', array('doc'), array()) AS unset"
            )
            sink.merge(source)
        expected = [(1, '{"b":2}'), (3, "7.5"), (4, "{}"), (5, "[true]")]
        assert self.documents(spark, path) == expected
        if is_created:
            changes = (
                spark.read.option("readChangeFeed", "true").option("startingVersion", 0).format("delta").load(path)
            )
            assert changes.where("_change_type = 'delete'").selectExpr("id", "to_json(doc)").collect() == [
                (2, '"text"')
            ]

    def test_a_table_gets_a_column_of_them(self, spark, create_table, create_source, deletion_vectors):
        path = create_table("id INT, n INT", [(1, 1)], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, keys="id", sequence_by="n", schema_changes="evolve")
        for n in (2, 3):
            source = create_source("id INT, n INT, json STRING", [(n - 1, n, f'{{"n": {n}}}')])
            sink.merge(source.selectExpr("id", "n", "parse_json(json) AS doc"))
        assert self.documents(spark, path) == [(1, '{"n":2}'), (2, '{"n":3}')]

    @pytest.mark.always
    def test_delta_s_own_merge_writes_the_same(self, spark, create_table, create_source, tmp_path, deletion_vectors):
        path = create_table("id INT, n INT, doc VARIANT", deletion_vectors=deletion_vectors)
        spark.sql(f"INSERT INTO delta.`{path}` SELECT id, id, parse_json('[' || id || ']') FROM range(5) AS t(id)")
        copy = copy_table(path, str(tmp_path / "copy"))
        source = create_source(
            "id INT, n INT, json STRING", [(1, 7, "1e300"), (3, 7, '{"z": 1, "a": 2}'), (9, 7, "null")]
        )
        source = source.selectExpr("id", "n", "parse_json(json) AS doc")
        upsert(path).merge(source)
        merge_with_delta(upsert(path), copy, source)
        assert self.documents(spark, path) == self.documents(spark, copy)
        assert (9, "null") in self.documents(spark, path)
