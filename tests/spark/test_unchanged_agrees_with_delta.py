"""Random merges with `skip_unchanged`: the rows are those of Delta's own MERGE, and what did not change was not
written."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, note
from pyspark.sql import functions as F

from stream_merge import MergeResult
from tests.spark.cases import Bag, bag_of, encode, quote
from tests.spark.delta_log import latest_version, row_metrics
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.drawing import drawn
from tests.spark.random_merges import RandomHistory, RandomMerge, RandomTable, histories
from tests.spark.test_agrees_with_delta import class_of, create_table, error_of, frame_of, read_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.always]


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """A row as row tracking knows it: its values, the version that wrote it last, and the file that it is in."""

    values: str
    version: int
    file: str


@drawn(4)
@given(history=histories())
def test_unchanged_rows_stay_and_all_others_are_deltas(
    spark: SparkSession, tmp_path: Path, history: RandomHistory
) -> None:
    directory = next(tmp_path / str(n) for n in itertools.count() if not (tmp_path / str(n)).exists())
    path = str(directory / "table")
    # Row tracking tells which version wrote a row, and so which rows were written.
    properties = {**history.table.properties, "delta.enableRowTracking": "true"}
    try:
        create_table(spark, replace(history.table, properties=properties), path)
        for number, merge in enumerate(history.merges):
            copy = copy_table(path, str(directory / f"copy-{number}"))
            merge_and_compare(spark, history.table, merge, path, copy)
    finally:
        shutil.rmtree(directory)


def merge_and_compare(spark: SparkSession, table: RandomTable, merge: RandomMerge, path: str, copy: str) -> None:
    """Run a merge with the sink on one copy of the table and with Delta on the other."""
    source = partly_redelivered(spark, merge, path)
    columns, version, before = read_columns(spark, path), latest_version(path), tracked_rows(spark, path)
    delta_error = error_of(lambda: merge_with_delta(merge.sink(copy), copy, source))
    results: list[MergeResult] = []
    sink = merge.sink(path, skip_unchanged=True)
    error = error_of(lambda: results.append(sink.merge(source)))
    note(f"Delta: {delta_error}\nsink: {error}")
    if delta_error is not None:
        assert type(error) is class_of(delta_error)
        event(f"refused: {type(error).__name__}")
        return
    assert error is None
    result = results[0]
    assert rows_of(spark, path) == rows_of(spark, copy)
    if latest_version(copy) > version:
        theirs = row_metrics(copy, latest_version(copy))
        for kind in ("Inserted", "Deleted"):
            assert getattr(result, f"num_target_rows_{kind.lower()}") == theirs[f"numTargetRows{kind}"]
        assert result.num_target_rows_updated + result.num_unchanged_rows == theirs["numTargetRowsUpdated"]
        if table.properties["delta.enableChangeDataFeed"] == "true":
            assert net_changes(spark, path, version, result) == net_changes(spark, copy, version, None)
    if columns == read_columns(spark, path):
        assert_written_where_changed(before, tracked_rows(spark, path), result)
    event(f"{result.strategy}: {'some' if result.num_unchanged_rows else 'no'} rows unchanged")


def partly_redelivered(spark: SparkSession, merge: RandomMerge, path: str) -> DataFrame:
    """Return the source of a merge, in which every other row has the values of a row of the table."""
    there = spark.read.format("delta").load(path)
    kinds = {f.name: f.dataType.simpleString() for f in there.schema.fields}
    known = sorted(there.collect(), key=repr)
    rows = list(merge.rows)
    for number in range(0, len(rows) if known else 0, 2):
        old = known[number % len(known)]
        rows[number] = tuple(
            old[name] if kinds.get(name) == kind else value
            for (name, kind), value in zip(merge.columns, rows[number], strict=True)
        )
    return frame_of(spark, merge.columns, rows, partitions=1)


def tracked_rows(spark: SparkSession, path: str) -> dict[int, TrackedRow]:
    """Return the rows of a table by their row id."""
    table = spark.read.format("delta").load(path)
    fields = table.schema.fields
    found = {}
    rows = table.select("*", *[F.col(f"_metadata.{name}") for name in ("row_id", "row_commit_version", "file_path")])
    for *values, row_id, version, file in rows.collect():
        text = json.dumps([encode(value, f.dataType) for value, f in zip(values, fields, strict=True)], sort_keys=True)
        found[row_id] = TrackedRow(text, version, file)
    return found


def assert_written_where_changed(
    before: dict[int, TrackedRow], after: dict[int, TrackedRow], result: MergeResult
) -> None:
    """Check that the rows that changed are the ones with a new version, and that files without any are still there."""
    stays = {row_id for row_id in before.keys() & after.keys() if before[row_id].values == after[row_id].values}
    changed = (before.keys() & after.keys()) - stays
    assert {row_id for row_id in stays if before[row_id].version != after[row_id].version} == set()
    assert {row_id for row_id in changed if after[row_id].version != result.version} == set()
    assert result.num_target_rows_updated == len(changed)
    touched = {row.file for row_id, row in before.items() if row_id not in stays}
    moved = {row_id for row_id in stays if before[row_id].file != after[row_id].file}
    if result.strategy == "merge_on_read":
        assert moved == set()
    assert {before[row_id].file for row_id in moved} <= touched


def rows_of(spark: SparkSession, path: str) -> Bag:
    """Return the rows of a table."""
    table = spark.read.format("delta").load(path)
    return bag_of(table.collect(), table.schema)


def net_changes(spark: SparkSession, path: str, since: int, result: MergeResult | None) -> Counter[Any]:
    """Return how often each row came, less how often it went, and check the number of updates in the feed."""
    if latest_version(path) == since:
        return Counter()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1).load(path)
    names = [quote(name) for name, _ in read_columns(spark, path)]
    frame = feed.select("_change_type", *names)
    net: Counter[Any] = Counter()
    updates = 0
    for kind, *values in frame.collect():
        text = json.dumps(
            [encode(value, f.dataType) for value, f in zip(values, frame.schema.fields[1:], strict=True)],
            sort_keys=True,
        )
        net[text] += 1 if kind in ("insert", "update_postimage") else -1
        updates += kind == "update_postimage"
    if result is not None:
        assert updates == result.num_target_rows_updated
    return Counter({text: count for text, count in net.items() if count})
