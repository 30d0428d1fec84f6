"""The wheel, as pip builds it: all files of the package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LACKS_BUILDER = ("No matching distribution", "Could not find a version", "Failed to establish a new connection")

# What is read at run time, and found by the package's own functions.
READ_DATA = """
import stream_merge
import zipfile
from stream_merge.packages import log_store_jar
from stream_merge.cli.file.example import read_example
assert stream_merge.__file__.startswith({folder!r}), stream_merge.__file__
assert "[pipeline]" in read_example()
assert any(name.endswith("ConditionalCreateLogStore.class") for name in zipfile.ZipFile(log_store_jar()).namelist())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that pip builds of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--disable-pip-version-check"]
    built = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(PROJECT)], capture_output=True, text=True, check=False
    )
    if built.returncode and any(reason in built.stderr for reason in LACKS_BUILDER):
        pytest.skip("pip has no hatchling, and reaches no index that has it")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("stream_merge-*.whl")
    return path


def test_it_has_all_files_of_the_package(wheel):
    package = PROJECT / "stream_merge"
    files = {path.relative_to(PROJECT).as_posix() for path in package.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert {
        "stream_merge/py.typed",
        "stream_merge/cli/file/example.toml",
        "stream_merge/storage/log-store.jar",
    } <= files
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        others = {name.partition(".dist-info/")[2] for name in archive.namelist() if ".dist-info/" in name}
        assert all(archive.read(name) == (PROJECT / name).read_bytes() for name in names & files)
    assert names == files
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= others


def test_what_is_unpacked_finds_its_data(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # The working directory comes first in sys.path.
    found = subprocess.run(
        [sys.executable, "-c", READ_DATA.format(folder=str(tmp_path))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
