"""The command `stream-merge run` as a process of its own, and the file that it is given."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import SESSION_CONF
from tests.jvm.jars import jar_conf
from tests.services.processes import Process, ServiceError

MERGE_SECONDS = 300
"""For the start, with the first download of Spark's packages, and the first merges, on a machine that has other things
to do."""
CATCH_UP_SECONDS = 600

SPARK_CONF = {
    **{
        key: value
        for key, value in SESSION_CONF.items()
        if key.startswith(("spark.driver.", "spark.sql.", "spark.databricks.")) and "extensions" not in key
    },
    # A process that lives for half a minute: the second compiler would only take time from it.
    "spark.driver.extraJavaOptions": f"{SESSION_CONF['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    # The command fetches Delta's package all the same; what is on the class path, too, is loaded from there.
    **{key: value for key, value in jar_conf().items() if key != "spark.jars.packages"},
}
"""Those of the tests' own session, for small batches."""

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = {checkpoint}
trigger = "0 seconds"

[source]
format = "kafka"
bootstrap_servers = {bootstrap_servers}
topic_pattern = '{prefix}\\.public\\..*'
max_offsets_per_trigger = 3000

[decode]
format = "debezium"
{registry}
[[tables]]
source = 're:{prefix}\\.public\\.(?P<table>customers|notes)'
target = {target}
keys = ["id"]
merge_schema = true

[[tables]]
source = 're:{prefix}\\.public\\.(?P<table>orders|reviews)'
target = {target}
keys = ["order_id"]
merge_schema = true

[[tables]]
source = "{prefix}.public.order_items"
target = {items}
keys = ["order_id", "line_no"]
merge_schema = true

[[tables]]
source = "{prefix}.public.visits"
target = {visits}
keys = []
merge_schema = true

[spark]
master = "local[2]"

[spark.conf]
{conf}
"""


def write_pipeline(
    folder: Path,
    *,
    bootstrap_servers: str,
    prefix: str,
    tables: Path,
    conf: Mapping[str, str],
    registry: Mapping[str, str | int] | None = None,
) -> Path:
    """Write the pipeline file for the tables of the shop, as Debezium writes them under a prefix; return its path."""
    options = [f"{name} = {json.dumps(value)}\n" for name, value in (registry or {}).items()]
    file = folder / "pipeline.toml"
    file.write_text(
        PIPELINE.format(
            checkpoint=json.dumps(str(folder / "checkpoint")),
            bootstrap_servers=json.dumps(bootstrap_servers),
            prefix=prefix,
            registry="".join(["\n[registry]\n", *options]) if options else "",
            target=json.dumps(f"{tables}/{{table}}"),
            items=json.dumps(f"{tables}/order_items"),
            visits=json.dumps(f"{tables}/visits"),
            conf="\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**SPARK_CONF, **conf}.items()),
        )
    )
    return file


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of `stream-merge`, as it is installed beside the tests' Python."""
    program = shutil.which("stream-merge", path=str(Path(sys.executable).parent))
    if program is None:
        raise ServiceError("stream-merge is not installed: pip install --editable '.[spark,cli,test]'")
    return [program, *map(str, arguments)]


class PipelineProcess:
    """`stream-merge run` of one pipeline file, started again and again, with one log."""

    def __init__(self, file: Path, tables: Path) -> None:
        self.tables = tables
        self._environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
        self._log = file.with_suffix(".log")
        self._file = file
        self._is_merge: dict[Path, bool] = {}
        self.process = self._process()

    def _process(self, *options: str) -> Process:
        return Process(
            "stream-merge",
            command("run", self._file, *options),
            log=self._log,
            environ=self._environ,
            directory=self._file.parent,
        )

    def start(self) -> None:
        """Start it."""
        self.process.start()

    def num_merges(self) -> int:
        """Return how many micro-batches were merged, counted in each table."""
        for commit in set(self.tables.glob("*/_delta_log/*.json")) - set(self._is_merge):
            # A table's creation and its settings have commits of their own.
            self._is_merge[commit] = '"txn":' in commit.read_text()
        return sum(self._is_merge.values())

    def wait_for_merges(self, number: int, *, timeout: float = MERGE_SECONDS) -> None:
        """Wait until the tables have so many merges more than now.

        Raises:
            ServiceError: The process ended, or they did not come in time.
        """
        wanted = self.num_merges() + number
        self.process.wait_until(f"{number} more merges", lambda: self.num_merges() >= wanted, timeout=timeout)

    def kill(self) -> None:
        """Kill Python and its JVM with -9, at once."""
        self.process.kill()

    def kill_python(self) -> None:
        """Kill Python alone with -9, as a supervisor does that knows no more; its JVM has to end of itself."""
        self.process.stop(signal.SIGKILL)

    def run_once(self) -> int:
        """Run it until all that is there is merged, and return its exit code."""
        self.process = self._process("--once")
        self.process.start()
        return self.process.wait(timeout=CATCH_UP_SECONDS)

    def last_lines(self) -> str:
        """Return the end of its log."""
        return self.process.last_lines()
