"""The release: the sdist, the wheel that is built of it, and the README's stream run from the installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.test_readme import FIRST_CHANGES, python_blocks, write_changes

PROJECT = Path(__file__).parents[1]
LACKS_BUILDER = ("No matching distribution", "Could not find a version", "Failed to establish a new connection")

# What is read at run time, and found by the package's own functions.
READ_DATA = """
import stream_merge
import zipfile
from stream_merge.packages import log_store_jar
from stream_merge.cli.file.example import read_example
assert "[pipeline]" in read_example()
assert any(name.endswith("ConditionalCreateLogStore.class") for name in zipfile.ZipFile(log_store_jar()).namelist())
print(stream_merge.__file__)
"""

TAKE_ALL = """
query.processAllAvailable()
query.stop()
spark.stop()
"""

SPARK_DEFAULTS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""What a run of seconds is set to, in Spark's own file, so that the README's code stays as it is."""


def run(*command: str | Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command from a folder; nothing in the environment leads to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what `make build` makes: an sdist, and a wheel of that."""
    folder = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--outdir", folder, PROJECT, folder=folder)
    output = built.stdout + built.stderr
    if built.returncode and any(reason in output for reason in LACKS_BUILDER):
        pytest.skip("pip has no hatchling, and reaches no index that has it")
    assert built.returncode == 0, output
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """Return the wheel."""
    [path] = dist.glob("stream_merge-*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new environment in which pip has installed the wheel; its Spark is the one of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    installed = run(*pip, "install", "--no-deps", "--no-index", wheel, folder=folder)
    assert installed.returncode == 0, installed.stderr
    # Python does not follow the .pth files of a folder that it comes to by one, so not that of the checkout either.
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "spark.pth").write_text("\n".join(paths) + "\n")
    return folder


def files_of_the_package() -> set[str]:
    files = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "stream_merge").rglob("*") if path.is_file()}
    return {name for name in files if "__pycache__" not in name}


def test_the_wheel_has_all_files_of_the_package(wheel):
    files = files_of_the_package()
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


def test_the_sdist_has_what_the_wheel_is_built_of_and_the_documentation(dist):
    [path] = dist.glob("stream_merge-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    documentation = {f"docs/{page.name}" for page in (PROJECT / "docs").glob("*.md")}
    assert files_of_the_package() | documentation | {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"stream_merge", "docs"}


def test_what_is_installed_finds_its_data(environment, tmp_path):
    found = run(environment / "bin" / "python", "-c", READ_DATA, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).is_relative_to(environment)


def test_the_command_is_installed(environment, tmp_path):
    from stream_merge import __version__

    shown = run(environment / "bin" / "stream-merge", "--version", folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"stream-merge {__version__}\n"), shown.stderr


# `spark`: it has fetched Delta's jars, which the new process then finds in the cache.
def test_the_readmes_stream_runs_from_the_wheel(spark, environment, tmp_path):
    (tmp_path / "conf").mkdir()
    defaults = "".join(f"{name} {value}\n" for name, value in SPARK_DEFAULTS.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    write_changes(
        tmp_path,
        "1",
        *FIRST_CHANGES,
        (2, "Grace", "d", "2026-01-01T10:00:00Z"),
        (3, "Barbara", "c", "2026-01-01T10:00:00Z"),
    )
    stream = python_blocks()[0]
    (tmp_path / "stream.py").write_text(stream + "import stream_merge\nprint(stream_merge.__file__)\n" + TAKE_ALL)

    python = environment / "bin" / "python"
    environ = {"PYSPARK_PYTHON": str(python), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    streamed = run(python, "stream.py", folder=tmp_path, **environ)

    assert streamed.returncode == 0, streamed.stderr
    assert Path(streamed.stdout.split()[-1]).is_relative_to(environment)
    rows = spark.read.format("delta").load(str(tmp_path / "customers")).select("id", "name").collect()
    assert sorted(tuple(row) for row in rows) == [(1, "Ada L."), (3, "Barbara")]
