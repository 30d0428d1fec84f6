"""The JVM that `make quick` keeps: who may reach it, which runs use it, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.kept_jvm import FOLDER, IDLE_SECONDS, ROOT, KeptJvm, kept_jvm

STREAM = "tests/test_readme.py::test_the_stream_of_the_readme"
"""A test that Spark calls back: to foreachBatch, in the process that uses the JVM now."""

LEAVES_A_CONTEXT = """
import os
from pyspark.sql import SparkSession
from tests.conftest import session_conf
from tests.kept_jvm import kept_jvm

with kept_jvm().used(session_conf()):
    session = SparkSession.builder.config(map=session_conf()).getOrCreate()
    print(session.range(5).count(), flush=True)
    os._exit(9)
"""


@pytest.fixture
def kept(tmp_path):
    kept = KeptJvm(tmp_path / "kept")
    yield kept
    kept.stop()


@pytest.fixture
def python(kept):
    """Return a function that runs Python with the kept JVM."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        environ[FOLDER] = str(kept.folder)
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    return run


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_runs_share_it_only_where_they_are_asked_to(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert kept_jvm() is None
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    assert kept_jvm().folder == tmp_path / "kept"
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert kept_jvm() is None


def test_nothing_is_read_of_a_keeper_that_is_gone(kept):
    kept._write(keeper=os.getpid(), jvm=0, port=1, secret="s", made_for={})
    assert kept.read() == {}
    assert not kept.stop()
    with kept._locked("keep"):
        assert kept.read()["secret"] == "s"


def test_only_its_user_reads_how_it_is_reached(kept):
    kept._write(secret="s")
    assert [path.stat().st_mode & 0o777 for path in (kept.folder, kept.connection)] == [0o700, 0o600]


def test_it_is_idle_when_nobody_has_used_it_for_long(kept):
    kept._write(secret="s")
    assert not kept._is_idle()
    long_ago = time.time() - IDLE_SECONDS - 1
    os.utime(kept.connection, (long_ago, long_ago))
    with kept._locked("use"):
        assert not kept._is_idle()
    assert kept._is_idle()
    assert not kept.connection.exists()


@pytest.mark.long
def test_runs_share_a_jvm_that_ends_when_it_is_idle(kept, python):
    pytest_arguments = ("-m", "pytest", "--quiet", "-p", "no:cacheprovider", STREAM)
    jvms = []
    for arguments, code in ((pytest_arguments, 0), (("-c", LEAVES_A_CONTEXT), 9), (pytest_arguments, 0)):
        ran = python(*arguments)
        assert ran.returncode == code, ran.stdout + ran.stderr
        jvms.append(kept.read()["jvm"])
    assert len({*jvms}) == 1
    assert is_running(jvms[0])
    assert kept.connection.stat().st_mode & 0o777 == 0o600

    long_ago = time.time() - IDLE_SECONDS - 1
    os.utime(kept.connection, (long_ago, long_ago))
    end = time.monotonic() + 60
    while is_running(jvms[0]) and time.monotonic() < end:
        time.sleep(0.2)
    assert not is_running(jvms[0])
    assert kept.read() == {}
