"""Tables that a sink is to create where a process that died, or a full disk, has left the folder of a log without a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from stream_merge import merge_sink
from stream_merge.errors import MergeExecutionError

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
