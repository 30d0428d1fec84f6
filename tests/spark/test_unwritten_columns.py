"""Columns of the table that a sink does not write, and columns that it is to write and the table lacks."""

from __future__ import annotations

import pytest

from stream_merge import merge_sink
from stream_merge.errors import UnresolvedColumnError

pytestmark = [pytest.mark.any_strategy, pytest.mark.one_in(3)]


@pytest.mark.core
class TestColumnsThatTheSinkNeverWrites:
    """A row that was deleted and came back has in them what a new row has, however the changes are cut into batches."""

    @pytest.mark.parametrize("is_null_allowed", [True, False])
    @pytest.mark.parametrize(
        "batches",
        [["d", "u"], ["du"], ["u", "d"], ["tu"], ["t", "u"]],
        ids=["two", "one", "late", "truncated", "truncated before"],
    )
    def test_they_have_their_default(
        self, create_table, create_source, read_rows, deletion_vectors, batches, is_null_allowed
    ):
        default = "INT DEFAULT 7" if is_null_allowed else "INT NOT NULL DEFAULT 7"
        path = create_table(
            f"id INT, a INT, d {default}",
            [(1, 1, 42), (2, 1, 42)],
            deletion_vectors=deletion_vectors,
            properties={"delta.feature.allowColumnDefaults": "supported"},
        )
        changes = {"d": (1, None, 2, "d"), "u": (1, 3, 3, "u"), "t": (None, None, 2, "t")}
        sink = merge_sink(
            path, keys="id", columns=["a"], sequence_by="seq", delete_when="op = 'd'", truncate_when="op = 't'"
        )
        for batch in batches:
            sink.merge(create_source("id INT, a INT, seq INT, op STRING", [changes[name] for name in batch]))
        others = [] if any("t" in batch for batch in batches) else [(2, 1, 42)]
        assert [tuple(row) for row in read_rows(path, "id", "a", "d")] == [(1, 3, 7), *others]

    @pytest.mark.parametrize("writer", ["sink", "update"])
    @pytest.mark.parametrize("options", [{"columns": ["a"]}, {"unchanged_columns": "unset"}], ids=["columns", "unset"])
    def test_what_another_writer_has_put_there_goes_with_the_row(
        self, spark, create_table, create_source, read_rows, deletion_vectors, writer, options
    ):
        path = create_table("id INT, a INT, d INT", deletion_vectors=deletion_vectors)
        schema = "id INT, a INT, d INT, seq INT, op STRING, unset ARRAY<STRING>"
        sink = merge_sink(path, keys="id", sequence_by="seq", delete_when="op = 'd'", app_id="a", **options)

        def merge(*changes):
            sink.merge(create_source(schema, [(*change, ["d"]) for change in changes]))

        merge((1, 1, None, 1, "u"), (2, 1, None, 1, "u"), (3, 1, None, 1, "u"))
        if writer == "sink":
            other = merge_sink(path, keys="id", columns=["d"], app_id="b")
            other.merge(create_source("id INT, d INT", [(1, 42), (2, 42), (3, 42)]))
        else:
            spark.sql(f"UPDATE delta.`{path}` SET d = 42")
        merge((1, None, None, 2, "d"), (1, 3, None, 3, "u"), (2, None, None, 2, "d"), (3, 2, None, 2, "u"))
        merge((2, 3, None, 3, "u"))
        assert [tuple(row) for row in read_rows(path, "id", "a", "d")] == [(1, 3, None), (2, 3, None), (3, 2, 42)]


@pytest.mark.core
@pytest.mark.parametrize("options", [{}, {"sequence_by": "seq"}], ids=["keys", "ordered"])
def test_a_named_column_that_the_table_lacks_is_refused(
    create_table, create_source, read_rows, deletion_vectors, options
):
    """Two sinks fill one table, and the first creates it with its own columns: the values of the second were lost."""
    path = create_table("id INT, b STRING", deletion_vectors=deletion_vectors)
    batch = create_source("id INT, a STRING, b STRING, seq INT", [(1, "A", "B", 5)])
    with pytest.raises(UnresolvedColumnError, match="columns names a, and the table has no such column"):
        merge_sink(path, keys="id", columns=["a"], **options).merge(batch)
    merge_sink(path, keys="id", columns=["a"], merge_schema=True, **options).merge(batch)
    assert [tuple(row) for row in read_rows(path, "id", "a", "b")] == [(1, "A", None)]
