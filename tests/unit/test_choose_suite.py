"""Which tests the suite leaves to the long tier."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import choose_suite
from tests.choose_suite import left_out, read_branches, read_seconds
from tests.conftest import LONG_TIER

A, B, C = (1, 1, 2), (1, 2, 3), (2, 1, -1)


def test_each_branch_is_still_taken_in_the_least_time():
    branches = {"all": {A, B, C}, "two": {A, B}, "one": {C}, "again": {C}}
    assert left_out({"all": 9.0, "two": 3.0, "one": 2.0, "again": 4.0}, branches, ()) == ["again", "all"]
    assert left_out({"all": 3.0, "two": 3.0, "one": 2.0, "again": 4.0}, branches, ()) == ["again", "one", "two"]


@pytest.mark.parametrize(
    ("seconds", "taken", "always"),
    [(0.9, {A}, ()), (9.0, set(), ()), (9.0, {A}, ("it",))],
    ids=["short", "runs in another process", "always"],
)
def test_what_is_never_left_out(seconds, taken, always):
    assert left_out({"it": seconds, "other": 0.1}, {"it": taken, "other": {A}}, always) == []
    assert left_out({"it": 9.0, "other": 0.1}, {"it": {A}, "other": {A}}, ()) == ["it"]


def test_what_a_run_has_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose_suite, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_keys.py").touch()
    junit = tmp_path / "suite.xml"
    cases = "".join(
        f'<testcase classname="{place}" name="{name}" time="{seconds}"/>'
        for place, name, seconds in (("tests.test_keys", "test_a[x.y-1]", 2), ("tests.test_keys.TestB", "test_c", 0.5))
    )
    junit.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    names = ["tests/test_keys.py::test_a[x.y-1]", "tests/test_keys.py::TestB::test_c"]
    assert read_seconds(junit) == dict(zip(names, (2.0, 0.5), strict=True))

    with closing(sqlite3.connect(tmp_path / "coverage")) as data, data:
        data.execute("CREATE TABLE context (id, context)")
        data.execute("CREATE TABLE arc (file_id, context_id, fromno, tono)")
        contexts = [(1, ""), (2, f"{names[0]}|setup"), (3, f"{names[0]}|run"), (4, f"{names[1]}|run")]
        data.executemany("INSERT INTO context VALUES (?, ?)", contexts)
        taken = [(1, 1, 1, 2), (1, 2, 1, 2), (1, 3, 2, 3), (2, 4, 1, -1)]
        data.executemany("INSERT INTO arc VALUES (?, ?, ?, ?)", taken)
    assert read_branches(tmp_path / "coverage") == {names[0]: {A, B}, names[1]: {C}}


def test_the_list_names_tests_that_are_there():
    root = LONG_TIER.parents[1]
    names = [line for line in LONG_TIER.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert names == sorted(set(names))
    texts: dict[str, str] = {}
    for name in names:
        path, *_, test = name.partition("[")[0].split("::")
        text = texts.setdefault(path, (root / path).read_text(encoding="utf-8"))
        assert f"def {test}(" in text, name
