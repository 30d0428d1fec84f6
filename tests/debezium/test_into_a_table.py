"""Records written by hand through a sink: what it is told of the table, and what goes to the quarantine."""

import json

import pytest

from stream_merge import debezium, merge_sink
from stream_merge.debezium.fields import resolve_columns
from tests.debezium.records import decode, envelope, frame_of, record

KEY = {"id": 1}


@pytest.mark.any_strategy
def test_columns_of_the_table_that_the_sink_has_merged_into(spark, create_table, read_rows, deletion_vectors, tmp_path):
    """The second batch finds the sink's own columns in the table; the first one has rows that do not get there."""
    path, rejected = create_table("id BIGINT, qty INT", deletion_vectors=deletion_vectors), str(tmp_path / "rejected")
    sink = merge_sink(path, keys=["id"], quarantine=rejected, **debezium.MERGE_OPTIONS)
    large = envelope("c", {"id": 3, "qty": 2**40})
    moved = envelope("u", {"id": 9, "qty": 5})
    for batch in (
        [
            record(KEY, envelope("c", {"id": 1, "qty": 5}, lsn=1), 1),
            record({"id": 3}, large, 2),
            record(None, moved, 3),
        ],
        [record(KEY, envelope("u", {"id": 1, "qty": 6}, lsn=2), 4)],
    ):
        schema = spark.read.format("delta").load(path).schema
        columns = debezium.table_fields(schema, settings={"qty": debezium.Field("BIGINT")})
        assert list(columns) == list(resolve_columns(schema)) == ["id", "qty"]
        sink.merge(debezium.changes(frame_of(spark, *batch), columns, ["id"], keep_raw=True))
    assert len(schema) > 2
    assert [tuple(row) for row in read_rows(path, "id", "qty")] == [(1, 6)]
    cast, keyless = read_rows(rejected, "offset", "value", "reason")
    assert (cast["offset"], json.loads(cast["value"])) == (2, large)
    assert "qty" in cast["reason"]
    # Of a row whose key changed, nothing but the record's key tells the old one.
    assert (keyless["offset"], json.loads(keyless["value"])) == (3, moved)
    assert "the record has no key" in keyless["reason"]
    assert "message.key.columns" in keyless["reason"]


def test_an_update_whose_record_has_another_key_than_the_table_is_set_aside(spark, create_table, read_rows, tmp_path):
    """Nothing tells whether it changed the table's key, which would leave the old row there."""
    path, rejected = create_table("tenant INT, id BIGINT, qty INT"), str(tmp_path / "rejected")
    sink = merge_sink(path, keys=["tenant", "id"], quarantine=rejected, **debezium.MERGE_OPTIONS)
    both = {"tenant": 7, "id": 2}
    records = frame_of(
        spark,
        record(KEY, envelope("c", {"tenant": 7, "id": 1, "qty": 5}, lsn=1), 1),
        record(KEY, envelope("u", {"tenant": 8, "id": 1, "qty": 6}, lsn=2), 2),
        record(both, envelope("c", {**both, "qty": 5}, lsn=3), 3),
        record(both, envelope("u", {**both, "qty": 6}, lsn=4), 4),
    )
    sink.merge(debezium.changes(records, "tenant INT, id BIGINT, qty INT", ["tenant", "id"]))
    assert sorted(map(tuple, read_rows(path, "tenant", "id", "qty"))) == [(7, 1, 5), (7, 2, 6)]
    (aside,) = read_rows(rejected, "offset", "reason")
    assert aside["offset"] == 2
    assert (
        'the record\'s key {"id": 1} has no tenant, so an update of tenant would keep the old row: let the connector '
        "send it (message.key.columns), or let keys name the columns of the record's key"
    ) in aside["reason"]


def test_the_text_of_a_record_is_kept_where_it_is_asked_for(spark):
    records = record(KEY, envelope("c", {"id": 1}), 1), record(KEY, b'{"op":"\xff"}', 2)
    raw = [row["_change"]["raw"] for row in decode(spark, *records, columns="id INT", keys=["id"])]
    assert raw == [None, "eyJvcCI6Iv8ifQ=="]
    raw = [row["_change"]["raw"] for row in decode(spark, *records, columns="id INT", keys=["id"], keep_raw=True)]
    assert raw == [json.dumps(envelope("c", {"id": 1})), "eyJvcCI6Iv8ifQ=="]
