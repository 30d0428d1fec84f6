"""What users of MERGE in `foreachBatch` report again and again: each test is named after the suffering, and shows it
gone.

The issues that the tests cite are public; each has more of its kind.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

from stream_merge import MergeSink, debezium, merge_sink
from stream_merge.errors import NullKeyError, QuarantineLimitError
from tests.debezium.records import PLACEHOLDER, envelope, frame_of, record
from tests.spark.delta_log import latest_version
from tests.streaming.streams import ChangeFiles, recorded_ids, run, run_to_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.any_strategy, pytest.mark.always]

CHANGES = "id INT, v STRING, seq BIGINT, op STRING"
TARGET = "id INT, v STRING, seq BIGINT"


def by_key(path: str, **options: Any) -> MergeSink:
    """Return the sink of a change stream."""
    return merge_sink(path, **{"keys": "id", "sequence_by": "seq", "delete_when": "op = 'd'", **options})


def test_changes_of_the_same_moment_are_not_decided_by_chance(create_table, create_source, read_rows, tmp_path):
    """delta-io/delta#131; Spark's AUTO CDC says of such ties that they are broken arbitrarily."""
    changes = [
        (1, "a", 5, "u", 7),
        (1, "c", 5, "u", 9),
        (1, "b", 5, "u", 8),
        (2, "same", 5, "u", 1),
        (2, "same", 5, "u", 1),
    ]
    contents = []
    for number, order in enumerate([changes, changes[2:] + changes[1::-1]]):
        path = create_table(TARGET, path=str(tmp_path / f"by_contents_{number}"))
        source = create_source(f"{CHANGES}, offset BIGINT", order)
        assert by_key(path).merge(source).num_tied_keys == 1
        contents.append(read_rows(path))
        decided = create_table(TARGET, path=str(tmp_path / f"by_offset_{number}"))
        assert by_key(decided, tie_break_by="offset").merge(source).num_tied_keys == 0
        assert read_rows(decided, "id", "v") == [Row(id=1, v="c"), Row(id=2, v="same")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "options", [{}, {"unchanged_columns": None, "old_key": None, "new_key": None}], ids=["all", "lean"]
)
def test_records_that_are_delivered_again_are_no_ties(spark, create_table, read_rows, options):
    """Of a tie one change is lost, of a redelivery none: who is warned of each redelivery does not look at ties any
    more."""
    path = create_table("id INT, v STRING, w STRING")

    def at(lsn: int) -> dict[str, Any]:
        return {"connector": "postgresql", "snapshot": "false", "lsn": lsn, "txId": 1}

    def sent(key: int, offset: int, op: str, lsn: int, **values: Any) -> tuple[Any, ...]:
        row = {"id": key, "v": "a", "w": "b", **values}
        images = (None, row) if op == "d" else (row, None)
        return record({"id": key}, envelope(op, *images, **at(lsn)), offset)

    records = [
        *[sent(1, offset, "c", 10) for offset in (1, 2)],
        # A delete is a delete, whatever it says of the row.
        *[sent(2, 3, "d", 10), sent(2, 4, "d", 10, v=None)],
        # Ties: of the two that are alike another one differs, wherever it stands among them; what is older does not
        # count.
        *[sent(3, 5, "c", 10), sent(3, 6, "c", 10, v="other"), sent(3, 7, "c", 10)],
        *[sent(4, 8, "u", 10), sent(4, 9, "u", 10, w=PLACEHOLDER)],
        *[sent(5, 10, "c", 10), sent(5, 11, "c", 10, v="other"), sent(5, 12, "u", 11)],
    ]
    sink = merge_sink(path, keys="id", **{**debezium.MERGE_OPTIONS, **options})
    changes = debezium.changes(frame_of(spark, *records), "id INT, v STRING, w STRING", ["id"])
    assert sink.merge(changes).num_tied_keys == 2
    assert read_rows(path, "id", "v", "w")[0] == Row(id=1, v="a", w="b")


def test_deletes_are_neither_forgotten_too_early_nor_kept_for_ever(create_table, create_source, read_rows, monkeypatch):
    """apache/spark#56016: tombstones that never expire; elsewhere they expire, and nobody learns which event was too
    late."""
    path = create_table(TARGET, [(1, "a", 1), (2, "b", 1)])
    sink = by_key(path, tombstone_retention=dt.timedelta(hours=2))
    start = time.time_ns()
    hour = 3600 * 10**9
    sink.merge(create_source(CHANGES, [(1, None, 9, "d")]))

    monkeypatch.setattr(time, "time_ns", lambda: start + hour)
    within = sink.merge(create_source(CHANGES, [(1, "late", 8, "u")]))
    assert (within.num_outdated_rows, within.num_tombstones, within.num_undecidable_rows) == (1, 1, 0)
    assert within.oldest_tombstone_ms == pytest.approx(3_600_000, abs=60_000)
    assert read_rows(path) == [Row(id=2, v="b", seq=1)]

    monkeypatch.setattr(time, "time_ns", lambda: start + 3 * hour)
    forgotten = sink.merge(create_source(CHANGES, [(2, "c", 10, "u")]))
    assert (forgotten.num_tombstones, forgotten.num_tombstones_removed) == (0, 1)
    too_late = sink.merge(create_source(CHANGES, [(1, "too late", 8, "u"), (3, "in time", 10, "u")]))
    assert (too_late.num_outdated_rows, too_late.num_undecidable_rows) == (0, 1)
    assert read_rows(path, "id", "v") == [Row(id=1, v="too late"), Row(id=2, v="c"), Row(id=3, v="in time")]


def test_a_delete_from_kafka_deletes_its_row_and_stops_no_stream(spark, create_table, read_rows, deletion_vectors):
    """apache/iceberg#17542, apache/hudi#8761: Debezium's delete has no new row, and a null value follows it in the
    topic."""
    path = create_table("id INT, v STRING", [(9, "other")], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="id", sequence_by="_change.sequence", delete_when="_change.op = 'd'")

    def at(lsn: int) -> dict[str, Any]:
        return {"connector": "postgresql", "snapshot": "false", "lsn": lsn, "txId": lsn}

    created = [record({"id": n}, envelope("c", {"id": n, "v": "a"}, **at(10 + n)), offset=n) for n in (1, 2)]
    deleted = [
        record({"id": 1}, envelope("d", None, {"id": 1, "v": None}, **at(20)), offset=3),
        record({"id": 1}, None, offset=4),
    ]

    def changes(*records: tuple[Any, ...]) -> DataFrame:
        return debezium.changes(frame_of(spark, *records), "id INT, v STRING", ["id"])

    sink.merge(changes(*created))
    sink.merge(changes(*deleted))
    assert read_rows(path, "id", "v") == [Row(id=2, v="a"), Row(id=9, v="other")]
    # The null value alone, in a batch of its own, is no second delete, and the key may come back.
    sink.merge(changes(record({"id": 1}, None, offset=4)))
    sink.merge(changes(record({"id": 1}, envelope("c", {"id": 1, "v": "back"}, **at(30)), offset=5)))
    assert read_rows(path, "id", "v") == [Row(id=1, v="back"), Row(id=2, v="a"), Row(id=9, v="other")]


def test_a_null_value_that_is_all_there_is_of_a_delete_deletes(spark, create_table, read_rows):
    """apache/iceberg#17542: ExtractNewRecordState sends a delete as a record with a key and no value."""
    path = create_table("id INT, v STRING", [(9, "other")])
    sink = merge_sink(path, keys="id", sequence_by="_change.sequence", delete_when="_change.op = 'd'")
    records = [record({"id": 1}, {"id": 1, "v": "a"}, offset=1), record({"id": 2}, {"id": 2, "v": "b"}, offset=2)]
    for batch in (records, [record({"id": 1}, None, offset=3)]):
        changes = debezium.changes(
            frame_of(spark, *batch), "id INT, v STRING", ["id"], format="flattened", keep_tombstones=True
        )
        sink.merge(changes)
    assert read_rows(path, "id", "v") == [Row(id=2, v="b"), Row(id=9, v="other")]


def test_a_key_that_moves_to_another_partition_is_not_there_twice(
    create_table, create_source, read_rows, deletion_vectors
):
    """memiiso/debezium-server-iceberg#248, databricks/iceberg-kafka-connect#318: the row in the old partition stays."""
    schema = "id INT, region STRING, v STRING"
    rows = [(1, "eu", "a"), (2, "eu", "b"), (3, None, "c"), (4, "us", "d")]
    path = create_table(schema, rows, deletion_vectors=deletion_vectors, partition_by=["region"])
    sink = merge_sink(path, keys="id", delete_when="v = 'gone'")
    result = sink.merge(create_source(schema, [(1, "us", "moved"), (3, "eu", "moved"), (4, "eu", "gone")]))
    assert read_rows(path) == [
        Row(id=1, region="us", v="moved"),
        Row(id=2, region="eu", v="b"),
        Row(id=3, region="eu", v="moved"),
    ]
    assert (result.num_target_rows_updated, result.num_target_rows_deleted, result.num_target_rows_inserted) == (
        2,
        1,
        0,
    )


def test_a_null_in_a_key_does_not_add_the_row_again_with_every_sync(
    create_table, create_source, read_rows, deletion_vectors
):
    """delta-io/delta#780, PostHog/posthog#75601: NULL equals nothing, so that each run inserts the row anew."""
    schema = "id INT, part STRING, v INT"
    path = create_table(schema, [(1, None, 0), (2, "x", 0)], deletion_vectors=deletion_vectors)
    rows = [(1, None, 1), (2, "x", 1), (None, None, 1)]
    version = latest_version(path)
    with pytest.raises(NullKeyError, match="2"):
        merge_sink(path, keys=["id", "part"]).merge(create_source(schema, rows))
    assert latest_version(path) == version
    for v in (1, 2, 3):
        source = create_source(schema, [(key, part, v) for key, part, _ in rows])
        merge_sink(path, keys=["id", "part"], null_keys="match").merge(source)
    expected = [(1, None, 3), (2, "x", 3), (None, None, 3)]
    assert [tuple(row) for row in read_rows(path)] == expected


def test_a_new_column_in_the_source_is_neither_lost_nor_the_end_of_the_stream(
    spark: SparkSession, create_table, read_rows, tmp_path
):
    """delta-io/delta#170, #553: evolution of MERGE by a session's setting; in a sink it is an option, and one
    commit."""
    path = create_table("id INT, v STRING", [(1, "a")])
    changes = ChangeFiles(tmp_path / "changes", "id INT, v STRING")
    changes.add([(1, "b"), (2, "c")])
    sink = merge_sink(path, keys="id", merge_schema=True)
    run(changes.stream(spark), sink, tmp_path / "checkpoint")
    # The source gets two columns: a stream learns its schema when it starts.
    changes.schema = "id INT, v STRING, note STRING, at STRUCT<x: INT>"
    lines = [{"id": 2, "v": "d", "note": "n", "at": {"x": 1}}, {"id": 3, "v": "e"}]
    (changes.folder / "0001.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(changes.stream(spark), sink, tmp_path / "checkpoint")
    assert read_rows(path) == [
        Row(id=1, v="b", note=None, at=None),
        Row(id=2, v="d", note="n", at=Row(x=1)),
        Row(id=3, v="e", note=None, at=None),
    ]
    assert recorded_ids(path) == [0, 1]
    assert spark.conf.get("spark.databricks.delta.schema.autoMerge.enabled", "false") == "false"


@pytest.mark.parametrize(
    "changed",
    [{"keys": ["id", "v"]}, {"sequence_by": "at"}, {"sequence_by": ["at", "seq"]}],
    ids=["keys", "sequence", "more of the sequence"],
)
def test_a_changed_configuration_does_not_mix_up_the_table(
    spark: SparkSession, create_table, read_rows, tmp_path: Path, changed: dict[str, Sequence[str]]
):
    """delta-io/delta#1346: what a restart with other keys or another order does is nobody's to say, so it is
    refused."""
    schema = "id INT, v STRING, seq BIGINT, at BIGINT"
    path = create_table(schema)
    changes = ChangeFiles(tmp_path / "changes", f"{schema}, op STRING")
    changes.add([(1, "a", 5, 1, "u"), (2, "b", 5, 1, "u")], [(2, None, 6, 2, "d")])
    checkpoint = tmp_path / "checkpoint"
    run(changes.stream(spark), by_key(path), checkpoint)
    version = latest_version(path)
    changes.add([(1, "c", 4, 9, "u"), (2, "late", 5, 9, "u"), (3, "d", 1, 9, "u")])
    message = run_to_failure(changes.stream(spark), by_key(path, **changed), checkpoint)
    assert "ConfigurationChangedError" in message
    assert ("keys" if "keys" in changed else "sequence_by") in message
    assert (latest_version(path), recorded_ids(path)) == (version, [0, 1])

    run(changes.stream(spark), by_key(path), checkpoint)
    assert read_rows(path, "id", "v") == [Row(id=1, v="a"), Row(id=3, v="d")]
    assert recorded_ids(path) == [0, 1, 2]


UNSENT = f"{CHANGES}, big STRING, unsent ARRAY<STRING>, old_key STRUCT<id: INT>, new_key STRUCT<id: INT>"


def unsent_values(path: str) -> MergeSink:
    """Return the sink of a change stream that does not send large values which did not change."""
    return by_key(path, unchanged_columns="unsent", old_key="old_key", new_key="new_key")


def test_a_large_value_that_was_not_sent_does_not_overwrite_the_one_that_is_there(
    create_table, create_source, read_rows, deletion_vectors
):
    """memiiso/debezium-server-iceberg#196, apache/hudi#19748: the placeholder of a TOAST value, in place of the
    value."""
    path = create_table(f"{TARGET}, big STRING", [(1, "a", 1, "L1")], deletion_vectors=deletion_vectors)
    changes = [
        (1, "b", 2, "u", None, ["big"], None, None),
        (2, "a", 1, "u", "L2", None, None, None),
        (2, "b", 2, "u", None, ["big"], None, None),
    ]
    result = unsent_values(path).merge(create_source(UNSENT, changes))
    assert read_rows(path, "id", "v", "big") == [Row(id=1, v="b", big="L1"), Row(id=2, v="b", big="L2")]
    assert result.num_unresolved_rows == 0


def test_a_changed_primary_key_from_kafka_moves_its_row(spark, create_table, read_rows):
    """apache/hudi#9186, materialize#6553: Debezium names the other key in a header, and sends two records."""
    path = create_table("id INT, v STRING, big STRING", [(1, "a", "L1"), (3, "c", "L3")])
    sink = merge_sink(path, keys="id", **debezium.MERGE_OPTIONS)
    source = {"connector": "postgresql", "snapshot": "false", "lsn": 5, "txId": 5}
    arrived = {"id": 2, "v": "b", "big": PLACEHOLDER}
    records = [
        record({"id": 2}, envelope("c", arrived, **source), 1, **{"__debezium.oldkey": {"id": 1}}),
        record({"id": 1}, envelope("d", None, {"id": 1}, **source), 2, **{"__debezium.newkey": {"id": 2}}),
    ]
    # The halves lie in two partitions, and may be read in two micro-batches.
    for one in records:
        sink.merge(debezium.changes(frame_of(spark, one), "id INT, v STRING, big STRING", ["id"]))
    assert read_rows(path, "id", "v", "big") == [Row(id=2, v="b", big="L1"), Row(id=3, v="c", big="L3")]


def test_one_bad_record_does_not_stop_the_stream_and_is_not_lost(create_table, create_source, read_rows, tmp_path):
    """apache/hudi#2401: one bad record ends a pipeline that is meant to run for good."""
    path, rejected = create_table("id INT, n INT"), str(tmp_path / "rejected")
    sink = merge_sink(path, keys="id", null_keys="quarantine", quarantine=rejected)
    changes = [("1", "5"), ("2", "five"), (None, "6")]
    result = sink.merge(create_source("id STRING, n STRING", changes))
    assert (read_rows(path), result.num_quarantined_rows) == ([Row(id=1, n=5)], 2)
    reasons = [row["reason"] for row in read_rows(rejected, "reason")]
    assert [("NULL in a key" in reason, "cannot be converted" in reason) for reason in sorted(reasons)] == [
        (True, False),
        (False, True),
    ]


def test_bad_records_from_kafka_are_set_aside_unless_they_are_too_many(spark, create_table, read_rows, tmp_path):
    """kafka-delta-ingest#69: a dead-letter table, with the place of the record; but a producer gone wrong has to stop
    the query."""
    path, rejected = create_table("id INT, n INT"), str(tmp_path / "rejected")
    records = [
        record({"id": 1}, envelope("c", {"id": 1, "n": 1}), 7),
        record({"id": 2}, b'{"op": "c", "aft', 8),
        record({"id": 3}, envelope("c", {"id": 3, "n": "many"}), 9),
    ]
    changes = debezium.changes(frame_of(spark, *records), "id INT, n INT", ["id"])
    options = {**debezium.MERGE_OPTIONS, "keys": "id", "null_keys": "quarantine", "quarantine": rejected}
    with pytest.raises(QuarantineLimitError, match="2 of 3"):
        merge_sink(path, **options, max_quarantined_share=0.5).merge(changes)
    assert (read_rows(path), Path(rejected).exists()) == ([], False)
    assert merge_sink(path, **options, max_quarantined_share=0.7).merge(changes).num_quarantined_rows == 2
    assert read_rows(path, "id", "n") == [Row(id=1, n=1)]
    found = read_rows(rejected, "topic", "partition", "offset", "value")
    assert [tuple(row) for row in found] == [(*r[2:5], r[1].decode()) for r in records[1:]]
