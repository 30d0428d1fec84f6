"""Random merges into random tables: a sink leaves exactly what Delta's own MERGE leaves.

STREAM_MERGE_EXAMPLES in the environment sets how many examples are drawn; each is a table and up to three merges.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from hypothesis import event, given, note

from stream_merge import AmbiguousMatchError, MergeResult, StreamMergeError
from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.errors import ClauseError, MergeExecutionError, SchemaMismatchError, UnresolvedColumnError
from tests.spark.cases import Bag, bag_of, quote, schema_of
from tests.spark.delta_log import latest_version, row_metrics
from tests.spark.delta_merge import copy_table, merge_with_delta
from tests.spark.drawing import drawn
from tests.spark.random_merges import Column, RandomHistory, RandomMerge, RandomTable, histories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.always]

SEEN: set[str] = set()
"""Merges that agreed. Hypothesis tries variations of each, of which half differ in nothing but the rows."""

ERROR_CLASSES: dict[str, type[StreamMergeError]] = {
    r"DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE": AmbiguousMatchError,
    r"(DELTA_)?NON_LAST_\w+_OMIT_CONDITION": ClauseError,
    r"DELTA_MERGE_UNRESOLVED_EXPRESSION|UNRESOLVED_COLUMN|FIELD_NOT_FOUND|AMBIGUOUS_REFERENCE": UnresolvedColumnError,
    r"DATATYPE_MISMATCH|DELTA_FAILED_TO_MERGE_FIELDS|DELTA_UPDATE_SCHEMA_MISMATCH|CANNOT_UP_CAST|INCOMPATIBLE_DATA": (
        SchemaMismatchError
    ),
    r"(DELTA_)?CAST_|ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|DIVIDE_BY_ZERO": MergeExecutionError,
}
"""Delta's and Spark's names of error conditions, as they open a message, to the class that a sink raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What can be seen of a table after a merge."""

    version: int
    columns: tuple[Column, ...]
    rows: Bag
    metrics: dict[str, int]
    changes: Bag


@drawn(6)
@given(history=histories())
def test_sink_agrees_with_delta(spark: SparkSession, tmp_path: Path, history: RandomHistory) -> None:
    shape = repr([(merge.condition, merge.clauses) for merge in history.merges])
    if shape in SEEN:
        return
    directory = next(tmp_path / str(n) for n in itertools.count() if not (tmp_path / str(n)).exists())
    path = str(directory / "table")
    try:
        create_table(spark, history.table, path)
        for number, merge in enumerate(history.merges):
            copy = copy_table(path, str(directory / f"copy-{number}"))
            merge_and_compare(spark, history.table, merge, path, copy)
            # The next merge meets what the sink wrote, or what Delta wrote.
            path = copy if merge.goes_on_with_copy else path
    finally:
        shutil.rmtree(directory)
    SEEN.add(shape)


def create_table(spark: SparkSession, table: RandomTable, path: str) -> None:
    """Create the target with its first rows."""
    frame = frame_of(spark, table.columns, table.rows, partitions=table.files)
    # Delta does not let a write create a table with both column mapping and a change feed.
    builder = DeltaTable.create(spark).location(path).addColumns(frame.schema).partitionedBy(*table.partition_by)
    for name, value in table.properties.items():
        builder = builder.property(name, value)
    builder.execute()
    frame.write.format("delta").mode("append").save(path)


def frame_of(
    spark: SparkSession, columns: Sequence[Column], rows: list[tuple[Any, ...]], *, partitions: int
) -> DataFrame:
    """Return drawn rows as a DataFrame."""
    frame = spark.createDataFrame(rows, schema_of(columns))
    return frame.coalesce(1) if partitions == 1 else frame.repartition(partitions)


def merge_and_compare(spark: SparkSession, table: RandomTable, merge: RandomMerge, path: str, copy: str) -> None:
    """Run a merge with the sink on one copy of the table and with Delta on the other, and compare what they left."""
    source = frame_of(spark, merge.columns, merge.rows, partitions=1)
    version = latest_version(path)
    delta_error = error_of(lambda: merge_with_delta(merge.sink(copy), copy, source))
    results: list[MergeResult] = []
    error = error_of(lambda: results.append(merge.sink(path).merge(source)))
    note(f"Delta: {message_of(delta_error)}\nsink: {message_of(error)}")
    if delta_error is not None:
        assert type(error) is class_of(delta_error)
        assert latest_version(path) == latest_version(copy) == version
        event(f"refused: {type(error).__name__}")
        return
    assert error is None
    has_feed = table.properties["delta.enableChangeDataFeed"] == "true"
    ours, deltas = (look_at(spark, where, since=version, has_feed=has_feed) for where in (path, copy))
    # Delta counts the source rows that its joins happen to read: none where Spark proves that nothing matches, and each
    # twice where it finds nothing to hash by, which depends on what the optimizer makes of random conditions.
    if deltas.metrics:
        num_rows = len(merge.rows)
        assert deltas.metrics.pop("numSourceRows") in (0, num_rows, 2 * num_rows)
        assert ours.metrics.pop("numSourceRows") in (num_rows, 2 * num_rows)
    assert ours == deltas
    assert results[0].version == (None if ours.version == version else ours.version)
    event(f"merged: {results[0].strategy}")


def error_of(merge: Callable[[], object]) -> Exception | None:
    """Run a merge and return the error it raises, if it raises one."""
    try:
        merge()
    except (*JVM_ERRORS, StreamMergeError) as error:
        return error
    return None


def message_of(error: Exception | None) -> str:
    """Return the messages of an error and its causes.

    PySpark cannot format some of Delta's errors ("Cannot find main error class"), so the JVM's exception is asked.
    """
    if not isinstance(error, JVM_ERRORS):
        return str(error)
    # PySpark knows some, and gives others as they come.
    messages, cause = [], getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while cause is not None:
        messages.append(str(cause.getMessage()))
        cause = cause.getCause()
    return "\n".join(messages)


def class_of(error: Exception) -> type[StreamMergeError]:
    """Return the class of our error for one of Delta's."""
    if isinstance(error, StreamMergeError):
        return type(error)
    for condition in re.findall(r"\[([A-Z][A-Z_.0-9]+)\]", message_of(error)):
        for pattern, error_class in ERROR_CLASSES.items():
            if re.match(pattern, condition):
                return error_class
    raise error


def look_at(spark: SparkSession, path: str, *, since: int, has_feed: bool) -> State:
    """Return the state of a table, the metrics of its newest commit and its change rows since a version."""
    version = latest_version(path)
    table = spark.read.format("delta").load(path)
    changes: Bag = Bag()
    if has_feed and version > since:
        feed = (
            spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1).load(path)
        )
        feed = feed.select("_change_type", *map(quote, table.columns))
        changes = bag_of(feed.collect(), feed.schema)
    return State(
        version=version,
        columns=read_columns(spark, path),
        rows=bag_of(table.collect(), table.schema),
        metrics=row_metrics(path, version) if version > since else {},
        changes=changes,
    )


def read_columns(spark: SparkSession, path: str) -> tuple[Column, ...]:
    """Return the columns of a table."""
    schema = spark.read.format("delta").load(path).schema
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
