"""The stored key index, which sinks of one process and of others load, write and find damaged at the same time."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from stream_merge import merge_sink
from stream_merge.bridge.table import open_table
from stream_merge.key_index import index as key_index
from stream_merge.key_index import stored
from stream_merge.key_index.segment import Segment
from stream_merge.merge.locate import index_lookup
from tests.spark.delta_log import latest_version, read_actions

pytestmark = pytest.mark.every_case

SCHEMA = "k bigint, v bigint"


@pytest.fixture
def folder(spark, create_table, create_source, append_rows, read_rows, monkeypatch):
    """Return the folder of the stored index of a table, which has one run of all its files."""
    monkeypatch.setattr(key_index, "RUN_ROWS", 40)
    monkeypatch.setattr(index_lookup, "MIN_CANDIDATE_ROWS", 20)
    path = create_table(SCHEMA, deletion_vectors=True)
    append_rows(path, SCHEMA, [(key, key) for key in range(100)])
    sink = merge_sink(path, keys="k", locator="index")
    assert sink.merge(create_source(SCHEMA, [(1, -1)])).locator == "index"
    sink._state().index.wait()
    (run,) = Path(path, stored.FOLDER).glob("*/*.arrow")
    return run.parent


@pytest.fixture
def runs(spark, folder):
    """Return the stored index."""
    return stored.StoredRuns(open_table(spark, str(folder.parents[2])), folder.name)


def paths_of(folder):
    """Return the paths of the files of the table."""
    path = str(folder.parents[2])
    actions = [action for version in range(latest_version(path) + 1) for action in read_actions(path, version)]
    return {action["add"]["path"] for action in actions if "add" in action}


def test_two_sinks_load_a_run_at_the_same_time(runs, folder, tmp_path, monkeypatch):
    """Each has a copy on the disk of its own: one copied over the other would end the process that has mapped it."""
    disk, active, checked, others = tmp_path / "disk", paths_of(folder), stored._checked, []
    disk.mkdir()

    def meeting(file, name):
        before = (file.name, os.stat(file).st_ino, file.read_bytes())
        if not others:
            others.append(name)
            others.extend(name for name, _ in runs.load(disk, active))
        assert (file.name, os.stat(file).st_ino, file.read_bytes()) == before
        return checked(file, name)

    monkeypatch.setattr(stored, "_checked", meeting)
    loaded = list(runs.load(disk, active))
    assert [name for name, _ in loaded] == others[1:] == [run.name for run in folder.glob("*.arrow")]
    assert sum(len(chunk) for chunk in loaded[0][1].chunks) >= 100
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("is_old", [False, True])
def test_a_run_that_another_process_is_still_storing(runs, folder, tmp_path, is_old):
    """It is left to that process. What has been damaged for an hour is nobody's any more."""
    (run,) = folder.glob("*.arrow")
    run.write_bytes(run.read_bytes()[:-100])
    run.with_name(f".{run.name}.crc").unlink(missing_ok=True)
    if is_old:
        os.utime(run, times=(time.time() - 7200,) * 2)
    assert list(runs.load(tmp_path, paths_of(folder))) == []
    assert run.exists() is not is_old


def test_what_is_no_file_and_a_disk_that_is_gone(create_source, read_rows, folder, monkeypatch, caplog):
    """A merge never fails for the index."""
    (folder / "odd.arrow" / "inside").mkdir(parents=True)
    path = str(folder.parents[2])
    result = merge_sink(path, keys="k", locator="index").merge(create_source(SCHEMA, [(2, -2)]))
    assert (result.locator, result.num_target_rows_updated) == ("index", 1)

    def unlink(self, **_):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", unlink)
    result = merge_sink(path, keys="k", locator="index").merge(create_source(SCHEMA, [(3, -3)]))
    assert (result.locator, result.num_target_rows_updated) == ("index", 1)
    index = key_index.KeyIndex()
    index._runs.append(key_index._Run(Segment((), np.array([], dtype=np.int32)), local=folder / "run.arrow"))
    index.clear()
    assert len(index) == 0
    monkeypatch.undo()
    assert {row["k"]: row["v"] for row in read_rows(path)} == {
        key: -key if key in (1, 2, 3) else key for key in range(100)
    }
