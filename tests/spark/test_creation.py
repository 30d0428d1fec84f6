"""Tables that a sink is to create where a process that died, or a full disk, has left a log without a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from stream_merge import merge_sink
from stream_merge.errors import MergeExecutionError, UnsupportedTableError

SCHEMA = "id INT, `Order Id` STRING, part STRING"
ROWS = [(1, "a", "x"), (2, "b", "y")]


def leave_behind(table: Path) -> None:
    """Leave what the local file system has after a first commit that did not come to its end."""
    log = table / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.119fbd83-24c4-40ca-a11e-bc95e1355061.tmp").touch()


def detail(spark: SparkSession, name: str) -> Row:
    return spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]


@pytest.mark.parametrize(
    ("options", "of_table"),
    [
        ({"partition_by": "part"}, {"partitionColumns": ["part"]}),
        ({"cluster_by": ["id", "part"]}, {"clusteringColumns": ["id", "part"]}),
    ],
    ids=["partitions", "clusters"],
)
def test_a_log_that_was_begun(spark, create_source, read_rows, table_path, options: dict[str, Any], of_table):
    leave_behind(Path(table_path))
    sink = merge_sink(
        table_path,
        keys="id",
        create_if_missing=True,
        table_properties={"delta.enableDeletionVectors": "true", "delta.appendOnly": "false"},
        **options,
    )
    sink.merge(create_source(SCHEMA, ROWS))
    sink.merge(create_source(SCHEMA, [(2, "c", "y")]))
    assert read_rows(table_path, "id", "`Order Id`") == [(1, "a"), (2, "c")]
    found = detail(spark, f"delta.`{table_path}`")
    assert found.properties["delta.enableDeletionVectors"] == "true"
    assert found.properties["delta.appendOnly"] == "false"
    assert {name: found[name] for name in of_table} == of_table


def test_a_named_table_that_was_begun(spark, create_source):
    leave_behind(Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")) / "begun")
    sink = merge_sink("begun", keys="id", create_if_missing=True)
    try:
        sink.merge(create_source(SCHEMA, ROWS))
        assert sorted(spark.table("begun").collect()) == ROWS
    finally:
        spark.sql("DROP TABLE IF EXISTS begun")


def test_a_quarantine_that_was_begun(spark, create_table, create_source, read_rows, tmp_path):
    path = create_table("id INT, n INT")
    quarantine = str(tmp_path / "quarantine")
    leave_behind(Path(quarantine))
    sink = merge_sink(path, keys="id", quarantine=quarantine, expect={"positive": "n > 0"})
    sink.merge(create_source("id INT, n INT", [(1, 1), (2, -1)]))
    assert read_rows(path) == [(1, 1)]
    assert spark.read.format("delta").load(quarantine).count() == 1


def test_a_folder_of_other_files_is_left_alone(spark, create_source, table_path):
    spark.range(3).write.parquet(table_path)
    with pytest.raises(MergeExecutionError, match="is not a Delta table"):
        merge_sink(table_path, keys="id", create_if_missing=True).merge(create_source(SCHEMA, ROWS))
    assert not (Path(table_path) / "_delta_log").exists()


def test_a_name_with_spark_s_own_catalog(spark, create_source):
    name = "spark_catalog.`default`.in_the_catalog"
    sink = merge_sink(name, keys="id", create_if_missing=True)
    try:
        for rows in (ROWS, [(2, "c", "y")]):
            sink.merge(create_source(SCHEMA, rows))
        assert sorted(spark.table("in_the_catalog").select("id", "Order Id").collect()) == [(1, "a"), (2, "c")]
        other = merge_sink("in_the_catalog", keys="id", sequence_by="part")
        assert other.merge(create_source(SCHEMA, [(3, "d", "z")])).num_target_rows_inserted == 1
    finally:
        spark.sql("DROP TABLE IF EXISTS in_the_catalog")


@pytest.mark.parametrize("create_if_missing", [False, True])
def test_what_is_no_delta_table_in_the_session_s_catalog(spark, create_source, create_if_missing):
    spark.range(1).createOrReplaceTempView("a_temporary_view")
    spark.sql("CREATE OR REPLACE VIEW a_view AS SELECT 1 AS id")
    spark.sql("CREATE TABLE of_parquet (id INT) USING parquet")
    try:
        for name, fault in (
            ("a_temporary_view", "not a Delta table but a view"),
            ("default.a_view", "not a Delta table but a view"),
            ("of_parquet", "not a Delta table but parquet"),
            ("unity.default.orders", "a table of the catalog unity. .* give the table's path"),
        ):
            sink = merge_sink(name, keys="id", create_if_missing=create_if_missing)
            with pytest.raises(UnsupportedTableError, match=f"{name} is {fault}"):
                sink.merge(create_source("id INT", [(1,)]))
    finally:
        spark.sql("DROP VIEW a_view")
        spark.sql("DROP TABLE of_parquet")
        spark.catalog.dropTempView("a_temporary_view")
