"""Every conformance case through a sink, in one write strategy or in each: what Delta's own MERGE gives is what must
come out."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_merge import AmbiguousMatchError, MergeResult, StreamMergeError
from stream_merge.errors import ClauseError, ConstraintViolationError, SchemaMismatchError, UnresolvedColumnError
from tests.spark.cases import (
    STRATEGIES,
    Bag,
    Case,
    bag_of,
    build_sink,
    create_target,
    decode_rows,
    frame_of,
    load_cases,
    quote,
    schema_of,
    session_conf,
)
from tests.spark.delta_log import latest_version, row_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.any_strategy, pytest.mark.one_in(3), pytest.mark.always]

CASES = {case.id: case for case in load_cases()}
CORE = [case.id for case in CASES.values() if not case.schema_evolution][::12]
"""A sample; without evolution, in which the oldest supported Delta differs from the one that the cases come from."""

ERROR_CLASSES: dict[type[StreamMergeError], str] = {
    AmbiguousMatchError: "duplicate_match",
    ClauseError: "invalid_clause",
    UnresolvedColumnError: "unresolved_column",
    SchemaMismatchError: "schema_mismatch",
    ConstraintViolationError: "constraint_violation",
}
"""Our classes to the file's words; every other error of the library is `other`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a merge did to its table, as far as the checks need it."""

    version_before: int
    version: int
    error: StreamMergeError | None = None
    result: MergeResult | None = None
    columns: list[list[str]] | None = None
    rows: Bag | None = None
    metrics: dict[str, int] | None = None
    changes: Bag | None = None


class CaseRuns:
    """Runs the selected cases ahead of the tests that check them, two at a time, since a run mostly waits for jobs.

    A target that several cases share is made once and its directory copied. Each thread has a session of its own, so
    that the settings of one case do not reach another.
    """

    def __init__(self, spark: SparkSession, directory: Path, selected: list[tuple[str, str]]) -> None:
        self._spark = spark
        self._directory = directory
        self._local = threading.local()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._made: dict[str, Path] = {}
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._runs: dict[tuple[str, str], Future[Outcome]] = {
            (case_id, strategy): self._pool.submit(self._run, CASES[case_id], strategy)
            for case_id, strategy in dict.fromkeys(selected)
        }

    def outcome(self, case: Case, strategy: str) -> Outcome:
        """Wait for a run and return what it did."""
        return self._runs.pop((case.id, strategy)).result()

    def close(self) -> None:
        """Give up the runs that no test waits for."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, case: Case, strategy: str) -> Outcome:
        if not hasattr(self._local, "spark"):
            self._local.spark = self._spark.newSession()
        spark = self._local.spark
        path = self._directory / f"{case.id}-{strategy}"
        shutil.copytree(self._made_target(spark, case, strategy), path)
        try:
            with session_conf(spark, case.conf):
                return run_case(spark, case, str(path))
        finally:
            shutil.rmtree(path)

    def _made_target(self, spark: SparkSession, case: Case, strategy: str) -> Path:
        key = json.dumps([case.target, strategy])
        with self._locks[key]:
            if key not in self._made:
                path = self._directory / f"target-{len(self._made)}-of-{case.id}-{strategy}"
                properties = {"delta.enableDeletionVectors": "true"} if strategy == "merge_on_read" else {}
                create_target(spark, case.target, str(path), properties)
                self._made[key] = path
            return self._made[key]


def run_case(spark: SparkSession, case: Case, path: str) -> Outcome:
    """Merge the case's source into the table and look at what came out."""
    before = latest_version(path)
    source = frame_of(spark, case.source)
    try:
        result = build_sink(case, path).merge(source)
    except StreamMergeError as error:
        return Outcome(version_before=before, version=latest_version(path), error=error)
    version = latest_version(path)
    table = spark.read.format("delta").load(path)
    has_changes = case.cdf is not None and version > before
    return Outcome(
        version_before=before,
        version=version,
        result=result,
        columns=[[f.name, f.dataType.simpleString()] for f in table.schema.fields],
        rows=bag_of(table.collect(), table.schema),
        metrics=row_metrics(path, version) if version > before else None,
        changes=read_changes(spark, path, version, table.columns) if has_changes else None,
    )


def read_changes(spark: SparkSession, path: str, version: int, columns: list[str]) -> Bag:
    """Return the change rows of one commit: the type of the change, then the row."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(path)
    changes = feed.select("_change_type", *map(quote, columns))
    return bag_of(changes.collect(), changes.schema)


@pytest.fixture(scope="module")
def case_runs(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseRuns]:
    selected = [
        (item.callspec.params["case_id"], item.callspec.params["strategy"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "case_id" in item.callspec.params
    ]
    runs = CaseRuns(spark, tmp_path_factory.mktemp("cases"), selected)
    yield runs
    runs.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "case_id", [pytest.param(name, marks=pytest.mark.core if name in CORE else ()) for name in CASES]
)
def test_case(case_runs: CaseRuns, case_id: str, strategy: str) -> None:
    case = CASES[case_id]
    outcome = case_runs.outcome(case, strategy)
    if "error" in case.expect:
        assert_refused(case, outcome)
    elif outcome.error is not None:
        raise outcome.error
    else:
        assert_merged(case, strategy, outcome)


def assert_refused(case: Case, outcome: Outcome) -> None:
    """Check that the merge failed with the right class of error and left no trace in the table."""
    assert outcome.error is not None, f"expected {case.expect['error']}, but the merge gave {outcome.rows}"
    found = next((name for kind, name in ERROR_CLASSES.items() if isinstance(outcome.error, kind)), "other")
    assert found == case.expect["error"], repr(outcome.error)
    assert outcome.version == outcome.version_before


def assert_merged(case: Case, strategy: str, outcome: Outcome) -> None:
    """Check everything that a merge without an error promises."""
    assert outcome.result is not None
    schema = schema_of(case.expected_columns)
    assert outcome.columns == [[f.name, f.dataType.simpleString()] for f in schema.fields]
    assert outcome.rows == bag_of(decode_rows(case.expect["rows"], schema), schema)

    commits = outcome.version - outcome.version_before
    assert commits == (1 if expects_commit(case, strategy) else 0)
    assert outcome.result.version == (outcome.version if commits else None)

    metrics = expected_metrics(case, strategy)
    assert {name: getattr(outcome.result, snake_case(name)) for name in metrics} == metrics
    if commits:
        assert outcome.metrics is not None
        assert {name: outcome.metrics.get(name) for name in metrics} == metrics
    if case.cdf is not None and commits:
        rows = decode_rows((change["row"] for change in case.cdf), schema)
        changes = [(change["_change_type"], *row) for change, row in zip(case.cdf, rows, strict=True)]
        assert outcome.changes == bag_of(changes, schema_of([("_change_type", "string"), *case.expected_columns]))


def expects_commit(case: Case, strategy: str) -> bool:
    """Tell whether Delta commits.

    Where rows match but no clause takes them, it rewrites their files; with deletion vectors nothing is left to write.
    """
    if case.expect["no_commit"]:
        return False
    changes_rows = any(count for name, count in case.metrics.items() if re.search("Inserted|Updated|Deleted", name))
    return strategy == "copy_on_write" or changes_rows or "columns" in case.expect


def expected_metrics(case: Case, strategy: str) -> dict[str, int]:
    """Return Delta's row metrics: the case has those of a rewrite, and with deletion vectors no row is copied.

    A full outer join without equal keys reads the source twice, and Delta counts its rows twice (`numSourceRows`). With
    deletion vectors it needs that join only where rows of both sides are taken that match nothing.
    """
    if not case.metrics or strategy == "copy_on_write":
        return case.metrics
    metrics = {**case.metrics, "numTargetRowsCopied": 0}
    metrics["numOutputRows"] = metrics["numTargetRowsInserted"] + metrics["numTargetRowsUpdated"]
    if not {"not_matched", "not_matched_by_source"} <= {clause["when"] for clause in case.clauses}:
        metrics["numSourceRows"] = len(case.source["rows"])
    return metrics


def snake_case(name: str) -> str:
    """Return a metric's name in `MergeResult`: `numSourceRows` is `num_source_rows`."""
    return re.sub("[A-Z]", lambda letter: f"_{letter.group().lower()}", name)
