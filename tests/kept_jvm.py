"""A JVM that outlives the test run, so that the next one finds its classes loaded and compiled.

`make quick` names a folder in the environment's STREAM_MERGE_TEST_KEPT_JVM. The first run that needs Spark starts a
keeper, a process that holds a JVM and writes to the folder how it is reached. Each run makes a SparkContext of its own
in this JVM. The keeper ends, and the JVM with it, half an hour after the last run, or with `python -m tests.kept_jvm
stop` (`make quick-stop`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from stream_merge.bridge.jvm import scala_object

FOLDER = "STREAM_MERGE_TEST_KEPT_JVM"
"""The environment's name of the folder; without it each run has a JVM that ends with it."""

IDLE_SECONDS = 30 * 60
START_SECONDS = 300
"""It may have to fetch Delta's jars."""

STOP_SECONDS = 30
ROOT = Path(__file__).parents[1]
MADE_FOR = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS")
"""Variables of the environment that a running JVM does not follow."""


class KeptJvm:
    """The folder of a kept JVM: `connection.json` says how it is reached, and the locks who uses and who keeps it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.connection = folder / "connection.json"
        self.output = folder / "output.log"

    @contextmanager
    def used(self, conf: Mapping[str, str]) -> Iterator[None]:
        """Have PySpark use the JVM for a block, which has it alone; start it if there is none with these settings.

        A second run waits for the first: a JVM has one SparkContext.
        """
        with self._locked("use"):
            made_for = _made_for(conf)
            if self.read().get("made_for") != made_for:
                self.stop()
                self._start(conf)
            os.utime(self.connection)
            yield _connect(self.read())
            with suppress(FileNotFoundError):  # it was stopped meanwhile
                os.utime(self.connection)

    def read(self) -> dict[str, Any]:
        """Return how the JVM is reached, and {} if none is kept."""
        if not self._is_kept():
            return {}
        try:
            found: dict[str, Any] = json.loads(self.connection.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def stop(self) -> bool:
        """End the JVM, and return whether there was one."""
        found = self.read()
        if found:
            os.kill(found["keeper"], signal.SIGTERM)
            _wait(lambda: not self._is_kept(), STOP_SECONDS, "the keeper of the JVM does not end")
        return bool(found)

    def keep(self, conf: Mapping[str, str]) -> None:
        """Start a JVM, and hold it until it is idle for long, ends, or SIGTERM comes: the keeper does only this."""
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with self._locked("keep"):
            # It ends when its input is closed, so with this process.
            gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(list(conf.items())))
            try:
                parameters = gateway.gateway_parameters
                self._write(
                    keeper=os.getpid(),
                    jvm=gateway.proc.pid,
                    port=parameters.port,
                    secret=parameters.auth_token,
                    made_for=_made_for(conf),
                )
                while gateway.proc.poll() is None and not self._is_idle():
                    time.sleep(1)
            finally:
                self.connection.unlink(missing_ok=True)
                gateway.proc.stdin.close()
                try:
                    gateway.proc.wait(STOP_SECONDS / 3)
                except subprocess.TimeoutExpired:
                    gateway.proc.kill()

    def _start(self, conf: Mapping[str, str]) -> None:
        with self.output.open("w") as output:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.kept_jvm", "keep"],
                cwd=ROOT,
                env={**os.environ, FOLDER: str(self.folder)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        assert keeper.stdin is not None
        with keeper.stdin as stdin:
            stdin.write(json.dumps(dict(conf)).encode())
        _wait(lambda: self.read() or keeper.poll() is not None, START_SECONDS, f"no JVM has started: {self.output}")
        if keeper.poll() is not None:
            raise RuntimeError(f"no JVM has started:\n{self.output.read_text()}")
        # Or Python would warn of a process that nobody has waited for.
        keeper.returncode = 0

    def _write(self, **connection: Any) -> None:
        """Write the file at once, and for this user alone: who has the secret can run code."""
        new = self.connection.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(connection, file)
        new.replace(self.connection)

    def _is_idle(self) -> bool:
        """Whether nobody uses the JVM, and nobody has for long; then nobody finds it from now on."""
        if time.time() - self.connection.stat().st_mtime < IDLE_SECONDS:
            return False
        with self._file("use") as file:
            if not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            is_idle = time.time() - self.connection.stat().st_mtime >= IDLE_SECONDS
            if is_idle:
                self.connection.unlink()
            return is_idle

    def _is_kept(self) -> bool:
        with self._file("keep") as file:
            return not _lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._file(name) as file:
            _lock(file, fcntl.LOCK_EX)
            yield

    def _file(self, name: str) -> IO[str]:
        return (self.folder / f"{name}.lock").open("w")


def kept_jvm() -> KeptJvm | None:
    """Return the JVM that the environment names, if this run is to use it: processes that share the tests cannot."""
    folder = os.environ.get(FOLDER)
    return KeptJvm(Path(folder)) if folder and "PYTEST_XDIST_WORKER" not in os.environ else None


def _lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], object], seconds: float, message: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(message)
        time.sleep(0.1)


def _made_for(conf: Mapping[str, str]) -> dict[str, str]:
    return {
        **conf,
        "root": str(ROOT),
        "python": sys.executable,
        **{name: os.environ.get(name, "") for name in MADE_FOR},
    }


def _connect(connection: Mapping[str, Any]) -> None:
    """Have PySpark use a JVM, free of what earlier runs have left in it."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    variables = {"PYSPARK_GATEWAY_PORT": str(connection["port"]), "PYSPARK_GATEWAY_SECRET": connection["secret"]}
    with pytest.MonkeyPatch.context() as environ:
        # For no longer than this: processes that tests start are to have JVMs of their own.
        for name, value in variables.items():
            environ.setenv(name, value)
        gateway = launch_gateway()
    # A run that was killed has not stopped its own.
    running = scala_object(gateway.jvm, "org.apache.spark.SparkContext").getActive()
    if running.isDefined():
        running.get().stop()
    _release_objects(gateway)
    gateway.jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    SparkContext._ensure_initialized(gateway=gateway)


def _release_objects(gateway: Any) -> None:
    """Release the objects and sessions that earlier runs held: the JVM waits for their Python to do so."""
    from pyspark.java_gateway import JavaObject

    held = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getGateway().getBindings()
    newest = int(held._target_id[1:])
    text = str(gateway.jvm.java.lang.String.join(" ", held.keySet()))
    for name in re.findall(r"\bo(\d+)\b", text):
        if int(name) < newest:
            held.remove(f"o{name}")


def main() -> None:
    """Keep a JVM, or end the one that is kept."""
    kept = kept_jvm()
    if kept is None or sys.argv[1:] not in (["keep"], ["stop"]):
        sys.exit(f"usage: {FOLDER}=FOLDER python -m tests.kept_jvm stop")
    if sys.argv[1] == "keep":
        kept.keep(json.load(sys.stdin))
    else:
        print("The JVM has ended." if kept.stop() else "No JVM is kept.")


if __name__ == "__main__":
    main()
