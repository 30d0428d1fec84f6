"""A table that is copied, since it was made before, is a table like the first one, and another one."""

from pyspark.sql import Row

from stream_merge import merge_sink
from tests.spark.delta_log import latest_version


def test_a_copy_is_a_table_of_its_own(spark, create_table, read_rows, tmp_path, table_templates, monkeypatch):
    monkeypatch.setattr(table_templates, "_templates", {})
    options = {
        "deletion_vectors": True,
        "partition_by": ["part"],
        "properties": {"delta.columnMapping.mode": "name", "delta.feature.allowColumnDefaults": "supported"},
        "constraints": {"positive": "id > 0"},
    }
    schema = "id INT, part STRING, v STRING DEFAULT 'none'"
    rows = [(1, "x", "a"), (2, "y", "b")]
    paths = [create_table(schema, rows, path=str(tmp_path / name), **options) for name in ("first", "second", "third")]
    assert len(table_templates._templates) == 1, "the second and the third are copies"
    merge_sink(paths[1], keys="id").merge(
        spark.createDataFrame([(2, "y", "c"), (3, "x", "d")], "id INT, part STRING, v STRING")
    )
    others = [Row(id=1, part="x", v="a"), Row(id=2, part="y", v="b")]
    assert [read_rows(paths[0]), read_rows(paths[2])] == [others, others]
    assert read_rows(paths[1]) == [others[0], Row(id=2, part="y", v="c"), Row(id=3, part="x", v="d")]
    details = [spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first() for path in paths]
    assert len({detail["id"] for detail in details}) == 3
    assert {(detail["numFiles"], *detail["partitionColumns"]) for detail in (details[0], details[2])} == {(2, "part")}
    assert [latest_version(path) for path in paths] == [2, 3, 2]
    # A row more, and it is not the same table.
    other = create_table(schema, rows[:1], path=str(tmp_path / "other"), **options)
    assert read_rows(other) == others[:1]
    assert len(table_templates._templates) == 2
