"""The metrics of a merge: complete, the same in every place, true to the log, and those of Delta's own MERGE."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import MergeSink, merge_sink
from stream_merge.metrics import COUNTERS, delta_name
from tests.spark.delta_log import ROW_METRICS, actions_of, latest_version, operation_metrics
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.jobs import job_descriptions, next_job_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id INT, region STRING, qty INT"
ROWS = [(key, "eu" if key < 5 else "us", key) for key in range(10)]
COMPARABLE = (
    *ROW_METRICS,
    "numTargetFilesRemoved",
    "numTargetBytesRemoved",
    "numTargetDeletionVectorsAdded",
    "numTargetDeletionVectorsRemoved",
    "numTargetDeletionVectorsUpdated",
)
"""What does not depend on how many tasks wrote the new files."""


def by_id(path: str) -> MergeSink:
    """Return a merge by id without clauses."""
    return merge_sink(path, on="target.id = source.id")


def all_clauses(path: str) -> MergeSink:
    """Return a merge with a clause of every form."""
    return (
        by_id(path)
        .when_matched_delete(condition="source.qty = 0")
        .when_matched_update(set={"qty": "target.qty + source.qty"}, condition="source.qty < 100")
        .when_not_matched_insert_all()
        .when_not_matched_by_source_update(set={"qty": "-1"}, condition="target.id = 8")
        .when_not_matched_by_source_delete(condition="target.id = 9")
    )


def upsert(path: str) -> MergeSink:
    """Return the merge that updates what matches and inserts the rest."""
    return by_id(path).when_matched_update_all().when_not_matched_insert_all()


SCENARIOS: dict[str, tuple[Callable[[str], MergeSink], list[tuple[int, str, int]]]] = {
    "all clauses": (all_clauses, [(0, "eu", 0), (1, "eu", 5), (2, "eu", 200), (20, "us", 1), (21, "asia", 2)]),
    "upsert": (upsert, [(1, "eu", 5), (6, "eu", 5), (20, "us", 1)]),
    "whole file": (lambda path: by_id(path).when_matched_delete(), ROWS[:5]),
    "duplicates": (lambda path: by_id(path).when_matched_delete(), ROWS[3:6] * 2),
    "no clause holds": (
        lambda path: by_id(path).when_matched_update_all(condition="source.qty > 1000").when_not_matched_insert_all(),
        [(1, "eu", 1), (20, "us", 20)],
    ),
    "matched only": (
        lambda path: by_id(path).when_matched_update_all(condition="source.qty > 3"),
        [(1, "eu", 1), (7, "eu", 7), (30, "us", 30)],
    ),
    "insert only": (
        lambda path: by_id(path).when_not_matched_insert_all(condition="source.qty > 3"),
        [(1, "eu", 1), (20, "us", 2), (21, "us", 30)],
    ),
    "by source only": (
        lambda path: by_id(path).when_not_matched_by_source_delete(condition="target.region = 'us'"),
        [(1, "eu", 1), (6, "us", 2)],
    ),
}


@pytest.fixture
def two_files(create_table, append_rows, deletion_vectors) -> str:
    """Return a table with ROWS, five in each of two files."""
    path = create_table(SCHEMA, ROWS[:5], deletion_vectors=deletion_vectors)
    append_rows(path, SCHEMA, ROWS[5:])
    return path


def test_every_metric_is_in_the_history_and_in_the_result(spark: SparkSession, two_files, create_source):
    result = all_clauses(two_files).merge(create_source(SCHEMA, SCENARIOS["all clauses"][1]))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{two_files}` LIMIT 1").head()
    assert history["operation"] == "MERGE"
    assert history["version"] == result.version
    reported = {name: int(value) for name, value in history["operationMetrics"].items()}
    expected = {delta_name(name): getattr(result, name) for name in COUNTERS}
    assert {name: reported.get(name) for name in expected} == expected
    assert {name: expected[name] for name in ROW_METRICS} == {
        "numSourceRows": 5,
        "numOutputRows": 12 - 2 if result.strategy == "copy_on_write" else 4,
        "numTargetRowsInserted": 2,
        "numTargetRowsUpdated": 2,
        "numTargetRowsMatchedUpdated": 1,
        "numTargetRowsNotMatchedBySourceUpdated": 1,
        "numTargetRowsDeleted": 2,
        "numTargetRowsMatchedDeleted": 1,
        "numTargetRowsNotMatchedBySourceDeleted": 1,
        "numTargetRowsCopied": 6 if result.strategy == "copy_on_write" else 0,
    }
    assert result.execution_time_ms >= max(result.scan_time_ms, result.rewrite_time_ms) > 0


@pytest.mark.parametrize(
    ("partition_by", "change_feed"), [((), False), (("region",), True)], ids=["plain", "partitioned with feed"]
)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.any_strategy
def test_metrics_are_those_of_delta(
    create_table, append_rows, create_source, tmp_path, deletion_vectors, scenario, partition_by, change_feed
):
    path = create_table(
        SCHEMA,
        ROWS[:7],
        deletion_vectors=deletion_vectors,
        partition_by=partition_by,
        properties={"delta.enableChangeDataFeed": str(change_feed).lower()},
    )
    append_rows(path, SCHEMA, ROWS[7:])
    make_sink, rows = SCENARIOS[scenario]
    # The second merge meets the deletion vectors of the first.
    for number, batch in enumerate([rows, [(key, region, qty + 1) for key, region, qty in rows]]):
        copy = copy_table(path, str(tmp_path / f"copy-{number}"))
        source = create_source(SCHEMA, batch)
        result = make_sink(path).merge(source)
        merge_with_delta(make_sink(copy), copy, source)
        version = latest_version(path)
        assert latest_version(copy) == version
        if result.version is None:
            continue
        ours, deltas = operation_metrics(path, version), operation_metrics(copy, version)
        assert {name: ours.get(name) for name in COMPARABLE} == {name: deltas.get(name) for name in COMPARABLE}
        assert_true_to_the_log(result, path)


def assert_true_to_the_log(result: Any, path: str) -> None:
    """Check the metrics of files and bytes against the actions of the commit."""
    adds = actions_of(path, result.version, "add")
    removes = actions_of(path, result.version, "remove")
    changes = actions_of(path, result.version, "cdc")
    assert (result.num_added_files, result.num_removed_files) == (len(adds), len(removes))

    re_added = {add["path"] for add in adds} & {remove["path"] for remove in removes}
    new = [add for add in adds if add["path"] not in re_added]
    gone = [remove for remove in removes if remove["path"] not in re_added]
    assert result.num_target_files_added == len(new)
    assert result.num_target_bytes_added == sum(add["size"] for add in new)
    assert result.num_target_partitions_added_to == count_partitions(new)
    assert result.num_target_files_removed == len(gone)
    assert result.num_target_bytes_removed == sum(remove["size"] for remove in gone)
    assert result.num_target_partitions_removed_from == count_partitions(gone)
    assert result.num_target_change_files_added == len(changes)
    assert result.num_target_change_file_bytes == sum(change["size"] for change in changes)


def count_partitions(files: list[dict[str, Any]]) -> int:
    """Count the partitions of files as Delta does: an unpartitioned table has none."""
    return len({str(file["partitionValues"]) for file in files if file["partitionValues"]})


def test_files_before_and_after_skipping(create_table, append_rows, create_source, deletion_vectors):
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors, partition_by=["region"])
    for start in (0, 100, 200):
        append_rows(path, SCHEMA, [(start + key, region, 1) for key in range(5) for region in ("eu", "us")])
    sizes = [add["size"] for version in (1, 2, 3) for add in actions_of(path, version, "add")]
    sink = merge_sink(path, on="target.id = source.id AND target.region = 'eu'").when_matched_update(set={"qty": "9"})
    result = sink.merge(create_source(SCHEMA, [(101, "eu", 1)]))
    assert result.num_target_files_before_skipping == 6
    assert result.num_target_bytes_before_skipping == sum(sizes)
    # Three by the condition on the partition; one, where the range of the batch's own keys is used.
    assert result.num_target_files_after_skipping == 1
    assert 0 < result.num_target_bytes_after_skipping < sum(sizes) / 3
    assert result.num_target_partitions_after_skipping == 1
    assert result.num_target_rows_updated == 1


def test_one_line_is_logged_for_a_batch(two_files, create_source, caplog):
    with caplog.at_level(logging.INFO, logger="stream_merge"):
        result = upsert(two_files).merge(create_source(SCHEMA, [(1, "eu", 5), (20, "us", 1)]))
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert str(result.strategy) in line
    assert str(result.version) in line


def test_jobs_carry_a_description(spark: SparkSession, two_files, create_source):
    source = create_source(SCHEMA, [(1, "eu", 5), (20, "us", 1)])
    first = next_job_id(spark)
    upsert(two_files).merge(source)
    described = job_descriptions(spark, first)
    assert described
    assert all(two_files in description for description in described)
