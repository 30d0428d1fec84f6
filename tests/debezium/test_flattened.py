"""Events that ExtractNewRecordState has flattened, with each of its ways to tell a delete."""

import logging

import pytest

from stream_merge import debezium, merge_sink
from tests.debezium.captures import CAPTURES, COLUMNS, KEYS, read_expected, read_records
from tests.debezium.records import decode, frame_of, record, with_schema
from tests.debezium.test_merged_logs import rows_of

KEY = {"id": 1}
FIELDS = [{"field": "id", "type": "int64"}, {"field": "name", "type": "string", "optional": True}]


def test_the_mark_of_a_delete_has_no_prefix(spark):
    """`add.fields.prefix` is for the added fields; `__deleted` is Debezium's own whatever it says."""
    live = record(KEY, {"id": 1, "name": "a", "__deleted": "false", "cdc.lsn": 7}, 1)
    gone = record(KEY, {"id": 1, "name": "a", "__deleted": "true", "cdc.lsn": 8}, 2)
    for layout in (None, "flattened"):
        rows = decode(
            spark, live, gone, columns="id BIGINT, name STRING", keys=["id"], meta_prefix="cdc.", format=layout
        )
        assert [(row["_change"]["op"], row["name"], row["_change"]["error"]) for row in rows] == [
            ("u", "a", None),
            ("d", None, None),
        ]
    fields = [*FIELDS, {"field": "__deleted", "type": "string"}, {"field": "cdc.lsn", "type": "int64"}]
    wrapped = record(with_schema(FIELDS[:1], KEY), with_schema(fields, {"id": 1, "__deleted": "true", "cdc.lsn": 8}))
    learnt = debezium.learn_columns(frame_of(spark, wrapped), meta_prefix="cdc.")
    assert list(learnt.fields) == ["id", "name"]


def test_deletes_that_are_records_without_a_value_are_not_left_out_in_silence(spark, caplog):
    """Debezium 3's default, `delete.tombstone.handling.mode=tombstone`: nothing else tells of a delete."""
    create = record(with_schema(FIELDS[:1], KEY), with_schema(FIELDS, {"id": 1, "name": "a"}), 1)
    delete = record(with_schema(FIELDS[:1], KEY), None, 2)
    records = frame_of(spark, create, delete)
    learnt = debezium.learn_columns(records)
    assert learnt.num_unmarked_deletes == 1
    only_deletes = frame_of(spark, delete, delete)
    assert debezium.learn_columns(only_deletes, learnt).num_unmarked_deletes == 2
    with caplog.at_level(logging.WARNING, "stream_merge"):
        changes = debezium.changes(records, learnt, format="flattened", keep_tombstones=True)
        assert not caplog.messages
        debezium.changes(records, learnt, format="flattened")
    assert [row["_change"]["op"] for row in changes.collect()] == ["u", "d"]
    (message,) = caplog.messages
    assert message.startswith("1 records of shop.public.t have no value")
    assert "keep_tombstones=True" in message
    # Where deletes are marked, or envelopes, the records without a value follow them for Kafka's sake alone.
    fields = [*FIELDS, {"field": "__deleted", "type": "string"}]
    marked = record(with_schema(FIELDS[:1], KEY), with_schema(fields, {"id": 1, "__deleted": "true"}), 1)
    assert debezium.learn_columns(frame_of(spark, marked, delete)).num_unmarked_deletes == 0


@pytest.mark.any_strategy
def test_a_flattened_log_with_changed_keys_and_unsent_values_makes_the_database_s_own_table(
    spark, create_table, deletion_vectors
):
    """The records of an old key and of its new one come in one batch or the other, by partition."""
    directory, table = CAPTURES / "small-flat", "products"
    path = create_table(COLUMNS[table], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys=KEYS[table], **debezium.MERGE_OPTIONS)
    changes = debezium.changes(read_records(spark, directory, table), COLUMNS[table], KEYS[table]).persist()
    facts = changes.selectExpr(
        "count_if(_change.old_key IS NOT NULL) AS moved",
        "count_if(size(_change.unavailable) > 0) AS unsent",
        "count_if(_change.op = 'd') AS deleted",
    ).first()
    assert min(facts) > 10
    for condition in ("_change.partition = 1", "_change.partition <> 1"):
        sink.merge(changes.where(condition))
    changes.unpersist()
    assert rows_of(spark, path) == read_expected(directory, table)
