"""A driver process of tests/object_store that commits by its log store alone, as fast as it can.

Its argument is JSON: the `conf` of its session, its `name`, the class `log_store`, the folder `log`, the number of
`commits`, and a `root` folder, into which it writes `report.json`: the commits of its own that lie in the log at the
end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from stream_merge.bridge.jvm import JVM_ERRORS, throwables
from tests.streaming.child_session import start_session

SECONDS_FOR_THE_OTHER = 240
MAX_FAILURES = 20


class Log:
    """Commits to a log by one log store, each at the first version that is free."""

    def __init__(self, spark: Any, log_store: str, folder: str) -> None:
        self.jvm = spark._jvm
        self.conf = spark._jsparkSession.sessionState().newHadoopConf()
        self.folder = folder
        self.store = self.jvm
        for part in log_store.split("."):
            self.store = getattr(self.store, part)
        self.store = self.store(self.conf)
        self.version = 0
        self.num_taken = 0

    def path(self, version: int) -> Any:
        """Return the path of a commit."""
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{version:020d}.json")

    def commit(self, name: str) -> None:
        """Write a commit of this name; one that was not written is tried again at the same version."""
        lines = self.jvm.java.util.ArrayList()
        lines.add(json.dumps({"commitInfo": {"txnId": name}}))
        failures: list[BaseException] = []
        while len(failures) < MAX_FAILURES:
            try:
                self.jvm.org.apache.spark.sql.delta.storage.LogStoreAdaptor(self.store).write(
                    self.path(self.version), _scala_iterator(self.jvm, lines), False, self.conf
                )
            except JVM_ERRORS as error:
                if "FileAlreadyExistsException" in next(throwables(error)).getClass().getName():
                    self.num_taken += 1
                    # Step by step, whoever is behind would stay there, and the two would not meet.
                    self.version = self.latest() + 1
                else:
                    failures.append(error)
            else:
                self.version += 1
                return
        raise TimeoutError(name) from failures[-1]

    def latest(self) -> int:
        """Return the newest version."""
        files = self._files()  # S3 lists them in order
        return int(files[len(files) - 1].getPath().getName().removesuffix(".json"))

    def _files(self) -> Any:
        return self.path(0).getFileSystem(self.conf).listStatus(self.jvm.org.apache.hadoop.fs.Path(self.folder))

    def names(self) -> list[str]:
        """Return the names of all commits."""
        system = self.path(0).getFileSystem(self.conf)
        found = []
        for status in self._files():
            stream = system.open(status.getPath())
            content = bytes(self.jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
            stream.close()
            found += [json.loads(line)["commitInfo"]["txnId"] for line in content.splitlines()]
        return found


def _scala_iterator(jvm: Any, values: Any) -> Any:
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).iterator()


def main() -> None:
    """Commit, wait until the other has, too, and report."""
    options = json.loads(sys.argv[1])
    root, name = Path(options["root"]), options["name"]
    spark = start_session(options["conf"], root / "warehouse")
    log = Log(spark, options["log_store"], options["log"])
    (root / "ready").touch()
    _wait_for(root, "ready")
    for number in range(options["commits"]):
        log.commit(f"{name}-{number}")
    (root / "done").touch()
    _wait_for(root, "done")
    found = [commit for commit in log.names() if commit.startswith(f"{name}-")]
    (root / "report.json").write_text(json.dumps({"found": found, "num_taken": log.num_taken}))
    spark.stop()


def _wait_for(root: Path, file: str) -> None:
    """Wait until all drivers have written a file; they lie side by side."""
    deadline = time.monotonic() + SECONDS_FOR_THE_OTHER
    while not all((folder / file).exists() for folder in root.parent.iterdir() if folder.is_dir()):
        if time.monotonic() > deadline:
            raise TimeoutError(file)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
