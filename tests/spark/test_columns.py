"""Columns under a merge: their constraints, computed values, names, types, and the ones that evolution adds."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from stream_merge import AmbiguousMatchError, merge_sink
from stream_merge.bridge.table import open_table
from stream_merge.errors import (
    ConstraintViolationError,
    MergeExecutionError,
    SchemaMismatchError,
    UnsupportedTableError,
)
from tests.spark.delta_log import actions_of, latest_version, read_actions
from tests.spark.tables import create_computed, files_below, upsert

pytestmark = [pytest.mark.core, pytest.mark.any_strategy]


class TestConstraints:
    @pytest.mark.parametrize(
        ("qty", "clause"), [(-1, "update"), (-1, "insert"), (None, "insert")], ids=["update", "insert", "null"]
    )
    def test_check(self, create_table, create_source, read_rows, deletion_vectors, qty, clause):
        path = create_table(
            "id INT, qty INT", [(1, 5)], deletion_vectors=deletion_vectors, constraints={"positive": "qty > 0"}
        )
        before = files_below(f"{path}/_delta_log")
        source = create_source("id int, qty int", [(1 if clause == "update" else 2, qty)])
        with pytest.raises(ConstraintViolationError, match="positive"):
            upsert(path).merge(source)
        assert files_below(f"{path}/_delta_log") == before
        assert read_rows(path) == [Row(id=1, qty=5)]

    def test_rows_that_satisfy_a_check_are_merged(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, qty INT", [(1, 5)], deletion_vectors=deletion_vectors, constraints={"p": "qty > 0"}
        )
        upsert(path).merge(create_source("id int, qty int", [(1, 6), (2, 7)]))
        assert read_rows(path) == [Row(id=1, qty=6), Row(id=2, qty=7)]

    @pytest.mark.parametrize("key", [1, 2], ids=["update", "insert"])
    def test_not_null(self, create_table, create_source, read_rows, deletion_vectors, key):
        path = create_table("id INT, name STRING NOT NULL", [(1, "a")], deletion_vectors=deletion_vectors)
        version = latest_version(path)
        with pytest.raises(ConstraintViolationError, match="name"):
            upsert(path).merge(create_source("id int, name string", [(key, None)]))
        assert latest_version(path) == version
        assert read_rows(path) == [Row(id=1, name="a")]

    def test_not_null_inside_a_struct(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, at STRUCT<city: STRING NOT NULL>", [(1, ("Bonn",))], deletion_vectors=deletion_vectors
        )
        sink = merge_sink(path, on="target.id = source.id").when_matched_update(
            set={"at.city": "nullif(source.city, '')"}
        )
        with pytest.raises((ConstraintViolationError, SchemaMismatchError)):
            sink.merge(create_source("id int, city string", [(1, "")]))
        assert read_rows(path) == [Row(id=1, at=Row(city="Bonn"))]

    @pytest.mark.parametrize("column_type", ["CHAR(3)", "VARCHAR(3)"])
    def test_a_string_that_is_too_long(self, create_table, create_source, read_rows, deletion_vectors, column_type):
        path = create_table(f"id INT, code {column_type}", [(1, "abc")], deletion_vectors=deletion_vectors)
        version = latest_version(path)
        for key in (1, 2):
            with pytest.raises(ConstraintViolationError):
                upsert(path).merge(create_source("id int, code string", [(key, "abcd")]))
        assert latest_version(path) == version
        assert read_rows(path) == [Row(id=1, code="abc")]

    def test_char_is_padded_and_varchar_is_not(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table("id INT, c CHAR(3), v VARCHAR(3)", [(1, "abc", "abc")], deletion_vectors=deletion_vectors)
        upsert(path).merge(create_source("id int, c string, v string", [(1, "x", "x"), (2, "y", "y")]))
        assert read_rows(path) == [Row(id=1, c="x  ", v="x"), Row(id=2, c="y  ", v="y")]


class TestComputedColumns:
    COLUMNS: ClassVar = {"id": "INT", "price": "INT", "total": ("INT", "price * 2"), "part": ("INT", "id % 2")}

    def test_generated_columns_follow_their_sources(
        self, spark, table_path, append_rows, create_source, read_rows, deletion_vectors
    ):
        path = create_computed(
            spark, table_path, self.COLUMNS, partition_by=["part"], deletion_vectors=deletion_vectors
        )
        append_rows(path, "id int, price int", [(1, 10), (2, 20)])
        sink = (
            merge_sink(path, on="target.id = source.id")
            .when_matched_update(set={"id": "source.id + 1", "price": "source.price"})
            .when_not_matched_insert(values={"id": "source.id", "price": "source.price"})
        )
        result = sink.merge(create_source("id int, price int", [(1, 11), (7, 70)]))
        assert read_rows(path) == [
            Row(id=2, price=11, total=22, part=0),
            Row(id=2, price=20, total=40, part=0),
            Row(id=7, price=70, total=140, part=1),
        ]
        new_files = [add for add in actions_of(path, result.version, "add") if "deletionVector" not in add]
        assert {add["partitionValues"]["part"] for add in new_files} == {"0", "1"}

    def test_a_given_value_must_be_the_generated_one(
        self, spark, table_path, append_rows, create_source, read_rows, deletion_vectors
    ):
        path = create_computed(spark, table_path, self.COLUMNS, deletion_vectors=deletion_vectors)
        append_rows(path, "id int, price int", [(1, 10)])
        with pytest.raises(ConstraintViolationError):
            upsert(path).merge(create_source("id int, price int, total int, part int", [(1, 11, 23, 1)]))
        upsert(path).merge(create_source("id int, price int, total int, part int", [(1, 12, 24, 1)]))
        assert read_rows(path) == [Row(id=1, price=12, total=24, part=1)]

    def test_an_insert_without_a_column_takes_its_default(
        self, create_table, create_source, read_rows, deletion_vectors
    ):
        path = create_table(
            "id INT, state STRING DEFAULT 'new', qty INT",
            [(1, "old", 1)],
            deletion_vectors=deletion_vectors,
            properties={"delta.feature.allowColumnDefaults": "supported"},
        )
        sink = (
            merge_sink(path, on="target.id = source.id")
            .when_matched_update(set={"qty": "2"})
            .when_not_matched_insert(values={"id": "source.id"})
        )
        sink.merge(create_source("id int", [(1,), (2,)]))
        assert read_rows(path) == [Row(id=1, state="old", qty=2), Row(id=2, state="new", qty=None)]


class TestColumnMapping:
    PROPERTIES: ClassVar = {"delta.columnMapping.mode": "name"}

    def test_renamed_and_dropped_columns(self, spark, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id INT, old STRING, gone STRING, at STRUCT<x: INT, y: INT>",
            [(1, "a", "g", (1, 2)), (2, "b", "h", (3, 4))],
            deletion_vectors=deletion_vectors,
            properties=self.PROPERTIES,
        )
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN old TO `new name`")
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN at.x TO z")
        spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN gone")
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN gone STRING")
        sink = (
            merge_sink(path, on="target.id = source.id")
            .when_matched_update(
                set={"`new name`": "concat(target.`new name`, source.name)", "at.z": "target.at.z + 10"}
            )
            .when_not_matched_insert(values={"id": "source.id", "`new name`": "source.name"})
        )
        sink.merge(create_source("id int, name string", [(1, "!"), (3, "c")]))
        columns = ["id", "new name", "at", "gone"]
        assert read_rows(path) == [
            Row(*columns)(1, "a!", Row(z=11, y=2), None),
            Row(*columns)(2, "b", Row(z=3, y=4), None),
            Row(*columns)(3, "c", None, None),
        ]

    @pytest.mark.parametrize(
        ("column", "is_mapped"),
        [("`Order Id` INT", True), ("at ARRAY<STRUCT<`a b`: INT>>", True), ("`Größe` INT", False)],
    )
    def test_a_table_that_is_made_has_it_where_names_need_it(
        self, spark, create_source, read_rows, tmp_path, column, is_mapped
    ):
        path = str(tmp_path / "t")
        values = [[(1,)]] if column.startswith("at") else [1]
        sink = merge_sink(path, keys="id", sequence_by="n", create_if_missing=True)
        sink.merge(create_source(f"id INT, n INT, {column}", [(7, 1, *values)]))
        sink.merge(create_source(f"id INT, n INT, {column}", [(7, 2, *values), (8, 2, *values)]))
        (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()
        assert detail["properties"].get("delta.columnMapping.mode") == ("name" if is_mapped else None)
        assert [(row[0], row[1]) for row in read_rows(path)] == [(7, 2), (8, 2)]
        assert all(row[2] == ([Row(**{"a b": 1})] if column.startswith("at") else 1) for row in read_rows(path))

    def test_names_that_only_quotes_can_hold(self, spark, create_table, create_source, read_rows, deletion_vectors):
        names = ["a b", "x.y", "select", "p,q;{}()", "tick's", "Größe"]
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        schema = ", ".join(f"{name} INT" for name in quoted)
        path = create_table(
            schema,
            [(1, 1, 1, 1, 1, 1)],
            deletion_vectors=deletion_vectors,
            properties=self.PROPERTIES,
            partition_by=["a b"],
        )
        sink = (
            merge_sink(path, on="target.`x.y` = source.`x.y` AND target.`a b` = source.`a b`")
            .when_matched_update(set={quoted[4]: "source.`tick's` + target.`p,q;{}()`", quoted[5]: "source.`Größe`"})
            .when_not_matched_insert(values={name: f"source.{name}" for name in quoted})
        )
        sink.merge(create_source(schema, [(1, 1, 9, 9, 9, 9), (2, 2, 2, 2, 2, 2)]))
        assert [tuple(row) for row in read_rows(path)] == [(1, 1, 1, 1, 10, 9), (2, 2, 2, 2, 2, 2)]
        assert spark.read.format("delta").load(path).columns == names

    def test_several_matches_of_a_row_under_a_name_with_a_dot(self, create_table, create_source, deletion_vectors):
        path = create_table("`x.y` INT, v INT", [(1, 1), (2, 2)], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, on="target.`x.y` <=> source.`x.y`").when_matched_update_all()
        with pytest.raises(AmbiguousMatchError, match=r"1 target row.*x\.y=2"):
            sink.merge(create_source("`x.y` INT, v INT", [(2, 3), (2, 4)]))


class TestSchemaEvolution:
    def test_columns_and_rows_arrive_in_one_commit(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table("id INT, at STRUCT<x: INT>", [(1, (1,)), (2, (2,))], deletion_vectors=deletion_vectors)
        version = latest_version(path)
        source = create_source(
            "id int, at struct<x: int, y: string>, note string", [(1, (10, "ten"), "n"), (3, (3, "c"), None)]
        )
        result = upsert(path, merge_schema=True).merge(source)
        assert latest_version(path) == result.version == version + 1
        assert read_rows(path) == [
            Row(id=1, at=Row(x=10, y="ten"), note="n"),
            Row(id=2, at=Row(x=2, y=None), note=None),
            Row(id=3, at=Row(x=3, y="c"), note=None),
        ]
        assert len(actions_of(path, result.version, "metaData")) == 1
        assert actions_of(path, result.version, "add")

    def test_without_evolution_the_schema_stays(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table("id INT, name STRING", [(1, "a")], deletion_vectors=deletion_vectors)
        result = upsert(path).merge(create_source("id int, name string, extra int", [(1, "b", 1), (2, "c", 2)]))
        assert read_rows(path) == [Row(id=1, name="b"), Row(id=2, name="c")]
        assert actions_of(path, result.version, "metaData") == []


class TestTypes:
    @pytest.mark.parametrize(
        ("column_type", "source_type", "value", "error"),
        [
            ("INT", "string", "twelve", MergeExecutionError),
            ("INT", "bigint", 2**40, MergeExecutionError),
            ("DECIMAL(5, 2)", "decimal(10, 2)", Decimal("12345.67"), MergeExecutionError),
            ("DATE", "int", 1, SchemaMismatchError),
            ("STRUCT<x: INT>", "int", 1, SchemaMismatchError),
        ],
        ids=["text", "overflow", "precision", "date", "struct"],
    )
    def test_a_value_that_does_not_fit_is_an_error(
        self, create_table, create_source, read_rows, deletion_vectors, column_type, source_type, value, error
    ):
        path = create_table(f"id INT, v {column_type}", [(1, None)], deletion_vectors=deletion_vectors)
        version = latest_version(path)
        for key in (1, 2):
            with pytest.raises(error):
                upsert(path).merge(create_source(f"id int, v {source_type}", [(key, value)]))
        assert latest_version(path) == version
        assert read_rows(path) == [Row(id=1, v=None)]

    @pytest.mark.core
    def test_text_with_every_kind_of_line_end(self, create_table, create_source, read_rows, deletion_vectors):
        # The log's statistics hold such text, and only a line feed ends a line of the log.
        texts = ["a\u2028b", "a\x85b", "a\x0bb\x1cc", "a\r\nb"]
        path = create_table("id INT, v STRING", [(0, texts[0])], deletion_vectors=deletion_vectors)
        sink = merge_sink(path, keys="id", sequence_by="id", delete_when="v = 'gone'")
        for number, text in enumerate(texts):
            sink.merge(create_source("id INT, v STRING", [(number, text), (100 + number, "gone")]))
        assert read_rows(path, "v") == sorted((Row(v=text) for text in texts), key=repr)

    def test_a_commit_of_many_packets_is_read_whole(self, spark, create_table, create_source):
        # Characters of two, three and four bytes, each shift of them over the borders of the packets.
        text = "é日🙂" * 8
        path = create_table("id INT, v STRING", [(1, "old")], properties={"delta.dataSkippingStatsColumns": "id,v"})
        rows = [(number, "x" * (number % 9) + text) for number in range(200)]
        merge_sink(path, keys="id", user_metadata=text * 500).merge(create_source("id INT, v STRING", rows))
        version = latest_version(path)
        actions = open_table(spark, path).read_commit(version)
        assert actions == read_actions(path, version)
        assert len(json.dumps(actions)) > 50_000

    def test_files_have_the_types_of_the_table(self, create_table, create_source, read_rows, deletion_vectors):
        path = create_table(
            "id BIGINT, price DECIMAL(23, 1), qty SMALLINT, at TIMESTAMP, day DATE, ok BOOLEAN, tags ARRAY<BIGINT>",
            [(1, Decimal("1.5"), 1, dt.datetime.fromisoformat("2024-01-01"), dt.date(2024, 1, 1), True, [1])],
            deletion_vectors=deletion_vectors,
        )
        old_file = Path(path, actions_of(path, latest_version(path), "add")[0]["path"])
        source = create_source(
            "id int, price double, qty int, at date, day string, ok boolean, tags array<int>",
            [(1, 2.5, 2, dt.date(2024, 2, 2), "2024-02-03", None, [2]), (2, None, None, None, None, None, None)],
        )
        result = upsert(path).merge(source)
        assert read_rows(path) == [
            Row(
                id=1,
                price=Decimal("2.5"),
                qty=2,
                at=dt.datetime.fromisoformat("2024-02-02"),
                day=dt.date(2024, 2, 3),
                ok=None,
                tags=[2],
            ),
            Row(id=2, price=None, qty=None, at=None, day=None, ok=None, tags=None),
        ]
        for add in actions_of(path, result.version, "add"):
            assert pq.read_schema(Path(path, add["path"])).equals(pq.read_schema(old_file))


class TestTheNameOfTheFilesOwnColumn:
    """Delta's reader of deletion vectors takes a column `_metadata` for the file's: with a vector no row is readable.

    Delta's own DELETE and MERGE refuse such a table.
    """

    NAME = "_Metadata"

    def table(self, create_table):
        return create_table(f"id INT, {self.NAME} STRING", [(1, "a"), (2, "b")], deletion_vectors=True)

    @pytest.mark.parametrize("options", [{}, {"skip_unchanged": True}], ids=str)
    def test_the_table_gets_no_vector(self, create_table, create_source, read_rows, options):
        path = self.table(create_table)
        sink = merge_sink(path, keys="id", **options)
        for n in range(3):
            result = sink.merge(create_source(f"id INT, {self.NAME} STRING", [(1, f"c{n}"), (3, "d")]))
            assert result.strategy == "copy_on_write"
        assert [tuple(row) for row in read_rows(path)] == [(1, "c2"), (2, "b"), (3, "d")]
        adds = [add for version in range(latest_version(path) + 1) for add in actions_of(path, version, "add")]
        assert not any(add.get("deletionVector") for add in adds)

    def test_merge_on_read_is_refused(self, create_table, create_source):
        path = self.table(create_table)
        with pytest.raises(UnsupportedTableError, match="rename the column"):
            merge_sink(path, keys="id", strategy="merge_on_read").merge(
                create_source(f"id INT, {self.NAME} STRING", [(1, "c")])
            )

    @pytest.mark.parametrize("options", [{"merge_schema": True}, {"schema_changes": "evolve"}], ids=str)
    def test_a_table_with_vectors_gets_no_such_column(self, create_table, create_source, read_rows, options):
        path = create_table("id INT, v STRING", [(1, "a"), (2, "b")], deletion_vectors=True)
        sink = merge_sink(path, keys="id", strategy="merge_on_read", **options)
        sink.merge(create_source("id INT, v STRING", [(1, "c")]))
        with pytest.raises(UnsupportedTableError, match="except_columns"):
            sink.merge(create_source(f"id INT, v STRING, {self.NAME} STRING", [(2, "d", "x")]))
        sink = merge_sink(path, keys="id", except_columns=[self.NAME], **options)
        sink.merge(create_source(f"id INT, v STRING, {self.NAME} STRING, w INT", [(2, "d", "x", 5)]))
        assert [tuple(row) for row in read_rows(path)] == [(1, "c", None), (2, "d", 5)]
