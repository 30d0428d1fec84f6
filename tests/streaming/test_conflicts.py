"""Another writer commits between a merge's open and its commit: the merge is tried again on what the table is then."""

from __future__ import annotations

import datetime as dt
import functools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge import AmbiguousMatchError, CommitConflictError, MergeResult, merge_sink
from stream_merge.errors import UnresolvedColumnError
from stream_merge.sql import quote
from stream_merge.table import calls, exactly_once
from tests.conftest import CreateTable
from tests.spark.delta_log import actions_of, latest_version, operation_metrics
from tests.streaming.streams import SCHEMA, ChangeFiles, counting_sink, recorded_ids, rows, run, run_to_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

ROWS = [(1, 1), (2, 2), (3, 3)]
SOURCE = [(1, 10), (9, 90)]
MERGED = [(1, 11), (2, 2), (3, 3), (9, 90)]

OTHER_WRITERS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "append of another key": ("INSERT INTO {table} VALUES (50, 50)", [*MERGED, (50, 50)]),
    "append of a key of the source": ("INSERT INTO {table} VALUES (9, 5)", [(1, 11), (2, 2), (3, 3), (9, 95)]),
    "delete of the matched row": ("DELETE FROM {table} WHERE id = 1", [(1, 10), (2, 2), (3, 3), (9, 90)]),
    "delete of another row": ("DELETE FROM {table} WHERE id = 3", [(1, 11), (2, 2), (9, 90)]),
    "update of the matched row": ("UPDATE {table} SET n = 100 WHERE id = 1", [(1, 110), (2, 2), (3, 3), (9, 90)]),
    "optimize": ("OPTIMIZE {table}", MERGED),
    "add column": ("ALTER TABLE {table} ADD COLUMN note STRING", [(*row, None) for row in MERGED]),
    "set property": ("ALTER TABLE {table} SET TBLPROPERTIES ('note' = 'text')", MERGED),
    "add constraint": ("ALTER TABLE {table} ADD CONSTRAINT small CHECK (n < 1000)", MERGED),
    "replace": (
        "CREATE OR REPLACE TABLE {table} USING delta AS SELECT INT(9) AS id, INT(5) AS n",
        [(1, 10), (9, 95)],
    ),
}
"""What the other writer does, and the rows that must be there when the merge comes after it."""


COPY_ON_WRITE = ("append of a key of the source", "delete of the matched row", "optimize")
CORE = (*COPY_ON_WRITE, "add column")
CASES = [
    *(
        pytest.param(
            "merge_on_read", name, marks=[pytest.mark.core] if name in CORE else [], id=f"{name}, merge on read"
        )
        for name in OTHER_WRITERS
    ),
    *(pytest.param("copy_on_write", name, id=f"{name}, copy on write") for name in COPY_ON_WRITE),
]


@pytest.fixture
def target(spark: SparkSession, create_table: CreateTable, append_rows, request: pytest.FixtureRequest) -> str:
    """Return a table with ROWS in two files; with deletion vectors, unless the test asks for a strategy."""
    deletion_vectors = "strategy" not in request.fixturenames or request.getfixturevalue("deletion_vectors")
    path = create_table(SCHEMA, ROWS[:1], deletion_vectors=deletion_vectors)
    append_rows(path, SCHEMA, ROWS[1:])
    return path


@pytest.fixture
def write_beside(spark: SparkSession, target: str) -> Callable[[str], Callable[[], object]]:
    """Return a function that turns SQL on `{table}` into an action."""

    def prepare(statement: str) -> Callable[[], object]:
        return lambda: spark.sql(statement.format(table=f"delta.`{target}`"))

    return prepare


@pytest.mark.always
@pytest.mark.parametrize(("strategy", "name"), CASES)
def test_the_merge_comes_after_the_other_writer(spark, target, write_beside, at_step, create_source, strategy, name):
    statement, expected = OTHER_WRITERS[name]
    before = latest_version(target)
    at_step("before_commit", write_beside(statement))

    sink = merge_sink(target, on="target.id = source.id").when_matched_update(set={"n": "target.n + source.n"})
    result = sink.when_not_matched_insert(values={"id": "source.id", "n": "source.n"}).merge(
        create_source(SCHEMA, SOURCE)
    )

    assert rows(spark, target) == expected
    assert (result.version, latest_version(target)) == (before + 2, before + 2)
    assert (result.num_commit_attempts, len(result.conflicts)) == (2, 1)
    assert result.num_source_rows == 2
    matched = {"append of a key of the source": 2, "delete of the matched row": 0}.get(name, 1)
    assert (result.num_target_rows_updated, result.num_target_rows_inserted) == (matched, 2 - matched)
    assert result.strategy == strategy or name == "replace"


PARTITIONS = {
    "string": ("STRING", ["a b=c", "x"]),
    "date": ("DATE", [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    "ancient date": ("DATE", [dt.date(1, 1, 1), dt.date(1582, 10, 4)]),
    "int": ("INT", [1, 2]),
}


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("is_mapped", [False, True], ids=["plain", "column mapping"])
def test_another_writer_in_another_partition_is_no_conflict(
    spark, create_table, create_source, at_step, kind, is_mapped
):
    sql_type, values = PARTITIONS[kind]
    name, mode = ("My part", "name") if is_mapped else ("Part", "none")
    schema = f"id INT, `{name}` {sql_type}, n INT"
    path = create_table(
        schema,
        [(1, values[0], 1), (2, values[1], 2)],
        partition_by=[name],
        deletion_vectors=True,
        properties={"delta.columnMapping.mode": mode},
    )
    sink = merge_sink(path, keys=["id", name])
    attempts = []
    for victim in (2, 1):
        at_step("before_commit", lambda key=victim: spark.sql(f"UPDATE delta.`{path}` SET n = n + 1 WHERE id = {key}"))
        batch = create_source(schema, [(1, values[0], 10), (3, values[0], 30)])
        attempts.append(sink.merge(batch).num_commit_attempts)
    assert attempts == [1, 2]
    assert rows(spark, path) == [(1, values[0], 10), (2, values[1], 3), (3, values[0], 30)]


@pytest.mark.parametrize("name", ["`p", "p`", "`p`", "a`b", "`a.b"])
def test_partitions_whose_column_has_a_backtick_in_its_name(
    spark, create_table, create_source, append_rows, at_step, name
):
    """Delta takes one from either end of a name before it looks for the column, and finds no conflict where there is
    none."""
    # Another partition column has the name that is left.
    other = name.strip("`") if name.strip("`") != name else "q"
    schema = f"id INT, {quote(name)} STRING, {quote(other)} STRING, n INT"
    path = create_table(schema, [(1, "x", "o", 1)], partition_by=[name, other], deletion_vectors=True)
    # Delta's MERGE itself takes no UPDATE SET * with such a name.
    sink = merge_sink(path, keys=["id", name], columns=["id", name, other, "n"])
    attempts = []
    for part in ("y", "x"):
        at_step("before_commit", lambda part=part: append_rows(path, schema, [(9, part, "o", 5)]))
        attempts.append(sink.merge(create_source(schema, [(9, "x", "o", 90)])).num_commit_attempts)
    assert attempts == [1, 2]
    assert sorted(map(tuple, spark.read.format("delta").load(path).collect())) == [
        (1, "x", "o", 1),
        *[(9, "x", "o", 90)] * 2,
        (9, "y", "o", 5),
    ]


@pytest.mark.always
@pytest.mark.parametrize(
    "name", ["append of a key of the source", "delete of the matched row", "optimize", "set property"]
)
def test_the_merge_by_key_comes_after_the_other_writer(spark, target, write_beside, at_step, create_source, name):
    statement, expected = OTHER_WRITERS[name]
    replaced = dict(SOURCE)
    at_step("before_commit", write_beside(statement))

    result = merge_sink(target, keys="id").merge(create_source(SCHEMA, SOURCE))

    assert rows(spark, target) == [(key, replaced.get(key, n)) for key, n in expected]
    assert result.num_commit_attempts == 2


def test_a_merge_that_a_new_column_makes_impossible(spark, target, write_beside, at_step, create_source):
    """INSERT * has no value for a column that the source lacks, and Delta refuses it; the second attempt finds out."""
    at_step("before_commit", write_beside("ALTER TABLE {table} ADD COLUMN note STRING"))
    before = latest_version(target)
    with pytest.raises(UnresolvedColumnError, match="note"):
        merge_sink(target, keys="id").merge(create_source(SCHEMA, SOURCE))
    assert latest_version(target) == before + 1
    assert rows(spark, target) == [(*row, None) for row in ROWS]


def test_new_rows_are_written_once(spark, create_table, at_step, create_source):
    """The files of the new rows do not depend on the target: the second attempt commits those of the first."""
    target = create_table(SCHEMA, ROWS, deletion_vectors=True)
    at_step("before_commit", lambda: spark.sql(f"INSERT INTO delta.`{target}` VALUES (50, 50)"))

    result = merge_sink(target, keys="id").merge(create_source(SCHEMA, SOURCE))

    assert result.num_commit_attempts == 2
    assert rows(spark, target) == [(1, 10), (2, 2), (3, 3), (9, 90), (50, 50)]
    versions = range(latest_version(target) + 1)
    added = {add["path"] for version in versions for add in actions_of(target, version, "add")}
    assert {file.name for file in Path(target).glob("*.parquet")} == added


@pytest.mark.core
def test_an_insert_only_merge_comes_after_the_other_writer(spark, target, write_beside, at_step, create_source):
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (9, 5)"))
    sink = merge_sink(target, on="target.id = source.id").when_not_matched_insert()
    result = sink.merge(create_source(SCHEMA, [*SOURCE, (10, 100)]))
    assert rows(spark, target) == [*ROWS, (9, 5), (10, 100)]
    assert (result.strategy, result.num_target_rows_inserted, result.num_commit_attempts) == ("insert_only", 1, 2)


def test_a_complete_result_comes_after_the_other_writer(spark, target, write_beside, at_step, create_source):
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (9, 5)"))
    sink = merge_sink(target, keys="id", output_mode="complete")
    result = sink.merge(create_source(SCHEMA, SOURCE))
    assert rows(spark, target) == SOURCE
    assert (result.strategy, result.num_commit_attempts) == ("overwrite", 2)


@pytest.mark.always
def test_clauses_for_rows_without_a_match_see_the_other_writers_rows(
    spark, target, write_beside, at_step, create_source
):
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (50, 50)"))
    sink = merge_sink(target, on="target.id = source.id").when_not_matched_by_source_update(set={"n": "-target.n"})
    sink.merge(create_source(SCHEMA, SOURCE))
    assert rows(spark, target) == [(1, 1), (2, -2), (3, -3), (50, -50)]


@pytest.mark.always
def test_a_second_match_that_the_other_writer_makes_is_found(spark, target, write_beside, at_step, create_source):
    """The check for multiple matches is made on the rows that are there at the commit."""
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (10, 1)"))
    before = latest_version(target)
    sink = merge_sink(target, on="target.id = source.id OR (target.id = 10 AND source.id > 8)")
    sink = sink.when_matched_update(set={"n": "target.n + source.n"})
    with pytest.raises(AmbiguousMatchError):
        sink.merge(create_source(SCHEMA, [(1, 1), (9, 90), (10, 100)]))
    assert latest_version(target) == before + 1
    assert rows(spark, target) == [*ROWS, (10, 1)]


def test_a_column_that_both_add(spark, target, write_beside, at_step, create_source):
    at_step("before_commit", write_beside("ALTER TABLE {table} ADD COLUMN note STRING"))
    sink = merge_sink(target, keys="id", merge_schema=True)
    sink.merge(create_source(f"{SCHEMA}, note STRING", [(1, 10, "changed"), (9, 90, "new")]))
    assert spark.read.format("delta").load(target).columns == ["id", "n", "note"]
    assert rows(spark, target) == [(1, 10, "changed"), (2, 2, None), (3, 3, None), (9, 90, "new")]


def test_every_conflict_is_counted(spark, target, write_beside, at_step, create_source):
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (1, 0)"), times=3)
    before = latest_version(target)
    result = counting_sink(target).merge(create_source(SCHEMA, SOURCE))
    assert (result.num_commit_attempts, len(result.conflicts)) == (4, 3)
    assert result.version == before + 4
    assert operation_metrics(target, result.version)["numCommitAttempts"] == 4
    assert rows(spark, target) == [(1, 10), (1, 10), (1, 10), *MERGED]
    assert result.num_target_rows_updated == 4


@pytest.mark.parametrize("retries", [pytest.param(0, marks=pytest.mark.core), 2])
def test_no_more_retries_than_asked_for(spark, target, write_beside, at_step, create_source, retries):
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (50, 50)"), times=100)
    before = latest_version(target)
    with pytest.raises(CommitConflictError) as caught:
        counting_sink(target, max_commit_retries=retries).merge(create_source(SCHEMA, SOURCE))
    assert caught.value.attempts == retries + 1
    assert caught.value.retriable
    assert rows(spark, target) == [*ROWS, *[(50, 50)] * (retries + 1)]
    assert latest_version(target) == before + retries + 1


@pytest.mark.core
def test_a_streams_batch_that_conflicted(
    spark, target, write_beside, at_step, changes: ChangeFiles, checkpoint: Path, strategy
):
    results: list[MergeResult] = []
    changes.add(SOURCE, [(1, 100)], [(1, 1000)])
    at_step("before_commit", write_beside("UPDATE {table} SET n = n + 1 WHERE id = 1"), after=1)
    run(changes.stream(spark), counting_sink(target, on_result=results.append), checkpoint)
    assert rows(spark, target) == [(1, 1112), (2, 2), (3, 3), (9, 90)]
    assert recorded_ids(target) == [0, 1, 2]
    assert [result.num_commit_attempts for result in results] == [1, 2, 1]
    assert [len(result.conflicts) for result in results] == [0, 1, 0]
    assert {result.strategy for result in results} == {strategy}


def test_a_stream_that_ran_out_of_retries_goes_on_when_it_is_started_again(
    spark, target, write_beside, at_step, changes: ChangeFiles, checkpoint: Path
):
    changes.add(SOURCE, [(1, 100)])
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (50, 50)"), after=1)
    sink = counting_sink(target, max_commit_retries=0)
    assert "CommitConflictError" in run_to_failure(changes.stream(spark), sink, checkpoint)
    assert recorded_ids(target) == [0]
    assert rows(spark, target) == [*MERGED, (50, 50)]

    run(changes.stream(spark), sink, checkpoint)
    assert recorded_ids(target) == [0, 1]
    assert rows(spark, target) == [(1, 111), (2, 2), (3, 3), (9, 90), (50, 50)]


@pytest.mark.core
def test_a_batch_that_another_process_of_the_same_query_commits_first(
    spark, target, at_step, changes: ChangeFiles, checkpoint: Path, monkeypatch
):
    """A query believed dead may still run: both merge the same batch, one commits, the other finds it in the table."""
    results: list[MergeResult] = []
    sink = counting_sink(target, on_result=results.append)
    batch: list[Any] = []

    def merge(batch_df, batch_id):
        batch[:] = [batch_df, batch_id]
        sink(batch_df, batch_id)

    def merge_elsewhere() -> None:
        # Another process does not know of this one's calls.
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(calls, "_calls", OrderedDict())
            sink(*batch)

    at_step("before_commit", merge_elsewhere, after=1)
    changes.add(SOURCE, [(1, 100)], [(1, 1000)])
    run(changes.stream(spark), merge, checkpoint)
    assert rows(spark, target) == [(1, 1111), (2, 2), (3, 3), (9, 90)]
    assert recorded_ids(target) == [0, 1, 2]
    assert [result.batch_id for result in results] == [0, 1, 1, 2]
    assert [result.skipped for result in results] == [False, False, True, False]


@pytest.mark.parametrize("output_mode", ["update", "complete"])
def test_a_batch_that_another_process_commits_while_this_one_waits(
    spark, target, write_beside, at_step, create_source, monkeypatch, output_mode
):
    """The first attempt met another writer; before the second one opens the table, a second process merges the
    batch."""
    results: list[MergeResult] = []
    is_complete = output_mode == "complete"

    def new_sink(**options: Any) -> Any:
        make = functools.partial(merge_sink, keys="id", output_mode=output_mode) if is_complete else counting_sink
        return make(target, app_id="query", **options)

    def meanwhile(_: int) -> None:
        new_sink()(create_source(SCHEMA, SOURCE), 0)

    monkeypatch.setattr(exactly_once, "back_off", meanwhile)
    at_step("before_commit", write_beside("INSERT INTO {table} VALUES (50, 50)"))
    new_sink(on_result=results.append)(create_source(SCHEMA, SOURCE), 0)

    assert rows(spark, target) == (SOURCE if is_complete else [*MERGED, (50, 50)])
    assert recorded_ids(target) == [0]
    assert [(result.skipped, result.version) for result in results] == [(True, None)]
    assert len(results[0].conflicts) == 1


@pytest.mark.parametrize("is_ordered", [False, True], ids=["as it comes", "in order"])
def test_the_source_is_evaluated_once_for_all_attempts(spark, target, write_beside, at_step, create_source, is_ordered):
    evaluated = spark.sparkContext.accumulator(0)

    @F.udf("int")
    def passed_through(n):
        evaluated.add(1)
        return n

    at_step("before_commit", write_beside("UPDATE {table} SET n = n + 1 WHERE id = 1"), times=2)
    noted = create_source(SCHEMA, SOURCE).select("id", passed_through.asNondeterministic()("n").alias("n"))
    sink = merge_sink(target, keys="id", sequence_by="n") if is_ordered else counting_sink(target)
    result = sink.merge(noted)
    assert result.num_commit_attempts == 3
    assert rows(spark, target) == [(1, 10 if is_ordered else 13), (2, 2), (3, 3), (9, 90)]
    assert evaluated.value == len(SOURCE)
