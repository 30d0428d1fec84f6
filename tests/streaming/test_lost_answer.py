"""A commit that lands while its answer is lost is a success, and is applied once.

The log store in logstore/ writes the commit file and then throws. It is compiled here and used by a child process,
since Delta takes its log store from the settings a session starts with.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.streaming.child_session import child_conf, last_lines, run_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.always

JAVA_SOURCE = Path(__file__).parent / "logstore" / "LostAnswerLogStore.java"

CREATED = ["CREATE TABLE", "WRITE"]
FOUR_BATCHES = ["MERGE"] * 4
RUN_ONCE = [[1, 11_111], [2, 2]]


def compile_log_store(spark: SparkSession, folder: Path) -> Path:
    """Compile the log store against the jars of the session, and return its jar."""
    if shutil.which("javac") is None:
        pytest.skip("the log store has to be compiled, and this Java has no javac")
    import pyspark

    conf = spark.sparkContext.getConf()
    jars = [jar.removeprefix("file://") for jar in conf.get("spark.jars", "").split(",")]
    jars += [conf.get("spark.driver.extraClassPath", ""), f"{Path(pyspark.__file__).parent}/jars/*"]
    classpath = ":".join(filter(None, jars))
    classes = folder / "classes"
    subprocess.run(["javac", "-cp", classpath, "-d", str(classes), str(JAVA_SOURCE)], check=True)
    # jar does not come with every javac, and a jar is a zip file.
    return Path(shutil.make_archive(str(folder / "log_store"), "zip", classes)).rename(folder / "log_store.jar")


@pytest.fixture(scope="module")
def reports(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """Return what became of every scenario of lost_answer_session.py that a test asks for."""
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    root = tmp_path_factory.mktemp("lost_answer")
    conf = child_conf(spark)
    log_store = compile_log_store(spark, root)
    conf["spark.jars"] = ",".join(filter(None, [conf.get("spark.jars"), str(log_store)]))
    conf["spark.delta.logStore.file.impl"] = "LostAnswerLogStore"
    output = root / "child.log"
    argument = {"conf": conf, "root": str(root), "scenarios": names}
    exit_code = run_child("tests.streaming.lost_answer_session", json.dumps(argument), output, timeout=480)
    assert exit_code == 0, last_lines(output)
    return json.loads((root / "report.json").read_text())


@pytest.fixture
def scenario(reports: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return a function that gives the report of a scenario in which a commit did go wrong."""

    def report(name: str) -> dict[str, Any]:
        assert reports[name]["was_faulty"]
        return reports[name]

    return report


@pytest.mark.core
@pytest.mark.parametrize("name", ["stream, file already exists", "stream, broken connection", "stream, no retries"])
def test_a_streams_commit_that_landed_is_a_success(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == RUN_ONCE
    assert report["operations"] == CREATED + FOUR_BATCHES
    assert report["batch_ids"] == [0, 1, 2, 3]
    assert [(r["batch_id"], r["version"], r["skipped"]) for r in report["results"]] == [
        (batch_id, batch_id + 2, False) for batch_id in range(4)
    ]


@pytest.mark.parametrize(
    "name", ["stream, another commit, file already exists", "stream, another commit, broken connection"]
)
def test_a_streams_commit_that_another_one_followed(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == [*RUN_ONCE, [7, 7]]
    assert report["operations"] == [*CREATED, "MERGE", "MERGE", "WRITE", "MERGE", "MERGE"]
    assert report["batch_ids"] == [0, 1, 2, 3]
    assert [(r["batch_id"], r["version"]) for r in report["results"]] == [(0, 2), (1, 3), (2, 5), (3, 6)]


@pytest.mark.parametrize("name", ["stream, not written"])
def test_a_streams_commit_that_was_not_written(scenario, name):
    """It may be tried again at once or by the restarted query; either way it is merged once."""
    report = scenario(name)
    assert report["rows"] == RUN_ONCE
    assert report["operations"] == CREATED + FOUR_BATCHES
    assert report["batch_ids"] == [0, 1, 2, 3]
    assert [r["batch_id"] for r in report["results"]] == [0, 1, 2, 3]
    assert not any(r["skipped"] for r in report["results"])


@pytest.mark.parametrize("name", ["stream, unreadable"])
def test_a_commit_of_unknown_fate(scenario, name):
    """The table cannot be read after the commit failed; the restarted query finds the batch in it."""
    report = scenario(name)
    [error] = report["errors"]
    assert "CommitStateUnknownError" in error
    assert report["rows"] == RUN_ONCE
    assert report["operations"] == CREATED + FOUR_BATCHES
    assert report["batch_ids"] == [0, 1, 2, 3]
    assert [(r["batch_id"], r["skipped"]) for r in report["results"]] == [
        (0, False),
        (1, True),
        (2, False),
        (3, False),
    ]


@pytest.mark.core
@pytest.mark.parametrize("name", ["merge, file already exists", "merge, broken connection"])
def test_a_single_merge_that_landed_is_a_success(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == [[1, 11], [2, 2]]
    assert report["operations"] == [*CREATED, "MERGE"]
    assert [r["version"] for r in report["results"]] == [2]


@pytest.mark.parametrize("name", ["merge, another commit"])
def test_a_single_merge_that_another_commit_followed(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == [[1, 11], [2, 2], [7, 7]]
    assert report["operations"] == [*CREATED, "MERGE", "WRITE"]
    assert [r["version"] for r in report["results"]] == [2]


@pytest.mark.parametrize("name", ["merge, not written"])
def test_a_single_merge_that_was_not_written(scenario, name):
    report = scenario(name)
    if report["errors"]:
        assert report["rows"] == [[1, 1]]
        assert report["operations"] == CREATED
        assert report["results"] == []
    else:
        assert report["rows"] == [[1, 11], [2, 2]]
        assert report["operations"] == [*CREATED, "MERGE"]


@pytest.mark.parametrize("name", ["merge, insert only"])
def test_an_insert_only_merge_that_landed_is_not_inserted_again(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == [[1, 1], [2, 2]]
    assert report["operations"] == [*CREATED, "MERGE"]
    assert [r["version"] for r in report["results"]] == [2]


@pytest.mark.parametrize("name", ["complete mode"])
def test_a_complete_result_that_landed(scenario, name):
    report = scenario(name)
    assert report["errors"] == []
    assert report["rows"] == [[1, 10], [2, 2]]
    assert report["batch_ids"] == [0, 1]
    assert [(r["batch_id"], r["skipped"]) for r in report["results"]] == [(0, False), (1, False)]
