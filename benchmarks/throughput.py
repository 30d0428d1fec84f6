"""How many Debezium events a second `stream-merge run --once` takes, and what of it is decoding.

`python -m benchmarks.throughput` writes a million events of random keys (5 % deletes) to files of 25,000, and lets the
command merge them into empty tables, one file a micro-batch. With `--source kafka` a broker has them, a topic of one
partition for each table, and the command finds how many it takes at a time. The tables must have the newest row of each
key, or the script fails. Before that it measures in one session, over the same records and with nothing written:

- read: the records are read.
- from_json: Spark's parser, given the envelope's fields as text.
- decode: `debezium.changes`, with typed columns, order and errors.
- json: one thread of Python, with `orjson` if it is installed, else with the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.change_data import COLUMNS, IMAGE, TYPES
from benchmarks.database_events import RECORD
from benchmarks.measure import SETTINGS, start_session
from benchmarks.merge_speed import describe_machine
from benchmarks.meters import Sampler
from stream_merge import debezium
from stream_merge.debezium.envelope import parse_envelope
from tests.services.kafka import Kafka, LocalKafka
from tests.services.spark_packages import kafka_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIPELINE = """
[pipeline]
name = "throughput"
checkpoint = "{root}/checkpoint"
trigger = "0 seconds"
{route}
[source]
{source}
[decode]
format = "debezium"
[spark.conf]
{conf}
"""
FILES = """
format = "files"
path = "{root}/records"
file_format = "parquet"
schema = "{record}"
max_files_per_trigger = 1
"""
FILE_BATCH = 25_000
TABLE = """
[[tables]]
{source}target = "{root}/lake/t{number}"
keys = ["id"]
columns = "{columns}"
"""
BATCH_LINE = re.compile(r"^(\S+ \S+) INFO .*: batch (\d+), version", re.MULTILINE)


class ProcessTime(Sampler):
    """The processor time of a process and all below it, while the block runs, in seconds."""

    def __init__(self, pid: int) -> None:
        super().__init__(0.5)
        self.pid = pid
        self.seconds: dict[int, float] = {}

    def sample(self) -> None:
        """Read the times."""
        self._read(self.pid)

    def _read(self, pid: int) -> None:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            self.seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            children = children_of(pid)
        except OSError:  # it has ended
            return
        for child in children:
            self._read(child)


def main() -> None:
    """Measure and print."""
    options = _options()
    print(describe_machine(), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="stream_merge-benchmark-") as folder:
        root = Path(folder)
        spark = start_session(root, SETTINGS["readme"], options.driver_memory)
        write_events(spark, root / "records", options)
        records = spark.read.schema(RECORD).parquet(str(root / "records"))
        for name, rate in decoding_rates(records, root / "records", options.repeats).items():
            print(f"{name}: {rate:,.0f} events a second", flush=True)
        # The command has the machine to itself, but for the broker.
        spark.stop()
        with broker(root, options) if options.source == "kafka" else nullcontext(None) as kafka:
            run_command(root, options, kafka)
        spark = start_session(root, SETTINGS["readme"], options.driver_memory)
        for number in range(options.tables):
            check(spark, root, number)
        spark.stop()


def write_events(spark: SparkSession, path: Path, options: argparse.Namespace) -> None:
    """Write the events, one file for each micro-batch from files; the tables take turns."""
    image = IMAGE.format(is_unsent="false", placeholder="")
    source = "named_struct('lsn', n + 1000, 'snapshot', 'false', 'table', 'customers')"
    num_batches = -(-options.events // (options.batch or FILE_BATCH))
    events = (
        spark.range(0, options.events, 1, num_batches)
        .withColumnRenamed("id", "n")
        .withColumn("id", F.pmod(F.xxhash64("n"), F.lit(options.events * 6 // 10)))
        .withColumn("op", F.when(F.pmod(F.xxhash64("n", F.lit(1)), F.lit(100)) < 5, "d").otherwise("u"))
    )
    events.selectExpr(
        "CAST(to_json(named_struct('id', id)) AS BINARY) AS key",
        f"CAST(to_json(named_struct('after', IF(op = 'd', NULL, {image}), 'source', {source}, 'op', op)) AS BINARY) "
        "AS value",
        f"concat('t', pmod(id, {options.tables})) AS topic",
        "0 AS partition",
        "n AS offset",
        "timestamp_micros(n) AS timestamp",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    ).write.parquet(str(path))
    # The file source takes the oldest first.
    for place, file in enumerate(sorted(path.glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + place, 1_700_000_000 + place))


def decoding_rates(records: DataFrame, path: Path, repeats: int) -> dict[str, float]:
    """Return how many events a second each way of reading takes."""
    parsed = parse_envelope(F.col("value").cast("string"), tuple(TYPES), with_before=False)
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: _discard(records),
        "from_json": lambda: _discard(records.select(parsed)),
        "decode": lambda: _discard(debezium.changes(records, COLUMNS, ["id"])),
    }
    num_events = records.count()
    rates = {}
    for name, way in ways.items():
        times = []
        for _ in range(1 + repeats):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
        rates[name] = num_events / statistics.median(times[1:])
    try:
        parser = import_module("orjson")
    except ModuleNotFoundError:
        parser = import_module("json")
    values = [value for file in path.glob("*.parquet") for value in pq.read_table(file, columns=["value"])["value"]]
    texts = [value.as_py() for value in values[:100_000]]
    started = time.perf_counter()
    for text in texts:
        parser.loads(text)
    rates[f"{parser.__name__}, one thread"] = len(texts) / (time.perf_counter() - started)
    return rates


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def broker(root: Path, options: argparse.Namespace) -> Iterator[Kafka]:
    """Yield a broker of this machine that has the events."""
    server = LocalKafka(log=root / "kafka.log")
    try:
        server.start()
        kafka = server.kafka()
        for number in range(options.tables):
            kafka.create_topic(f"t{number}")
        for file in sorted((root / "records").glob("*.parquet")):
            events = pq.read_table(file, columns=["topic", "key", "value"]).to_pydict()
            for topic in sorted(set(events["topic"])):
                rows = zip(events["topic"], events["key"], events["value"], strict=True)
                kafka.send(topic, ((key, value) for name, key, value in rows if name == topic), partition=0)
        yield kafka
    finally:
        server.close()


def run_command(root: Path, options: argparse.Namespace, kafka: Kafka | None) -> None:
    """Run the command to its end, and print its rates."""
    is_one = options.tables == 1
    conf = {"spark.driver.memory": options.driver_memory}
    if kafka is None:
        source = files_source(root)
    else:
        conf |= kafka_conf()
        topics = json.dumps([f"t{number}" for number in range(options.tables)])
        source = f'format = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\ntopics = {topics}\n'
        if options.batch is not None:
            source += f"max_offsets_per_trigger = {options.batch}\n"
    text = pipeline_text(root, source, conf, is_routed=not is_one and kafka is None)
    for number in range(options.tables):
        source = "" if is_one else f'source = "t{number}"\n'
        text += TABLE.format(root=root, number=number, columns=COLUMNS, source=source)
    started = time.monotonic()
    meters: list[ProcessTime] = []

    def meter(pid: int, _: Path) -> ProcessTime:
        meters.append(ProcessTime(pid))
        return meters[0]

    log = run_once(root, text, meter)
    seconds = time.monotonic() - started
    ends = batch_ends(log)
    read = dict(enumerate(events_read(root, options)))
    # The rest of the batches, from the end of the last one before them.
    warm = min(batch for batch in ends if read[batch] >= options.events / 4)
    rate = (options.events - read[warm]) / (max(ends.values()) - ends[warm])
    cpu = sum(meters[0].seconds.values())
    sizes = [end - start for start, end in pairwise([0, *read.values()])]
    batches = f"{len(sizes)} batches of {min(sizes):,} to {max(sizes):,}"
    print(
        f"stream-merge run --once from {options.source}, {options.tables} table(s), {batches}: "
        f"{options.events / seconds:,.0f} events a second from its start to its end ({seconds:.0f} s), "
        f"{rate:,.0f} after the first quarter; {options.events / cpu:,.0f} events a second of processor time",
        flush=True,
    )
    if options.keep_log is not None:
        options.keep_log.write_text(log)


def pipeline_text(root: Path, source: str, conf: Mapping[str, str], *, is_routed: bool) -> str:
    """Return a pipeline file but for its tables.

    Args:
        root: The folder of the pipeline.
        source: The options of its source.
        conf: Settings of Spark.
        is_routed: Whether the column topic names the table.
    """
    lines = (f"{json.dumps(name)} = {json.dumps(value)}" for name, value in conf.items())
    route = 'route_by = "topic"' if is_routed else ""
    return PIPELINE.format(root=root, source=source, conf="\n".join(lines), route=route)


def files_source(root: Path) -> str:
    """Return the options of a source of files, one a micro-batch."""
    return FILES.format(root=root, record=RECORD)


def run_once(root: Path, text: str, meter: Callable[[int, Path], AbstractContextManager[object]]) -> str:
    """Run the command with a pipeline file to its end, and return its log.

    Args:
        root: The folder of the pipeline.
        text: The pipeline file.
        meter: Returns what is measured meanwhile, given the process and the file of its log.

    Raises:
        SystemExit: The command failed.
    """
    (root / "pipeline.toml").write_text(text)
    log = root / "run.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "stream_merge.cli", "run", str(root / "pipeline.toml"), "--once"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        with meter(process.pid, log):
            code = process.wait()
    if code != 0:
        raise SystemExit(log.read_text()[-5000:])
    return log.read_text()


def batch_ends(log: str) -> dict[int, float]:
    """Return when the last table of each micro-batch was merged, in seconds since the epoch, from the command's log."""
    ends: dict[int, float] = {}
    for moment, batch in BATCH_LINE.findall(log):
        ends[int(batch)] = datetime.fromisoformat(moment.replace(",", ".")).timestamp()
    return ends


def children_of(pid: int) -> set[int]:
    """Return the processes that a process has started and that still run.

    Raises:
        OSError: It has ended.
    """
    texts = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return {int(text) for each in texts for text in each}


def events_read(root: Path, options: argparse.Namespace) -> list[int]:
    """Return how many events had been read in the end of each micro-batch."""
    if options.source == "files":
        size = options.batch or FILE_BATCH
        return [min(options.events, end) for end in range(size, options.events + size, size)]
    logs = sorted((root / "checkpoint/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offsets = [json.loads(log.read_text().splitlines()[-1]) for log in logs]
    return [sum(sum(partitions.values()) for partitions in topics.values()) for topics in offsets]


def check(spark: SparkSession, root: Path, number: int) -> None:
    """Compare a table with the newest event of each key.

    Raises:
        AssertionError: They differ.
    """
    records = spark.read.schema(RECORD).parquet(str(root / "records")).where(f"topic = 't{number}'")
    changes = debezium.changes(records, COLUMNS, ["id"])
    newest = changes.groupBy("id").agg(F.max_by(F.struct("*"), "_change.sequence").alias("newest")).select("newest.*")
    rows = newest.where("_change.op <> 'd'").drop("_change")
    table = spark.read.format("delta").load(str(root / f"lake/t{number}")).select(*rows.columns)
    for one, other in ((rows, table), (table, rows)):
        assert one.exceptAll(other).isEmpty(), f"table {number} differs"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--events", type=int, default=1_000_000, help="events of all tables (default: %(default)s)")
    option("--source", choices=("files", "kafka"), default="files", help="where they come from (default: %(default)s)")
    option("--batch", type=int, help=f"events of a micro-batch (default: {FILE_BATCH:,} from files; found from Kafka)")
    option("--tables", type=int, default=1, help="number of tables (default: %(default)s)")
    option("--repeats", type=int, default=3, help="how often each way of decoding is timed (default: %(default)s)")
    option("--driver-memory", default="4g", help="memory of Spark (default: %(default)s)")
    option("--keep-log", type=Path, metavar="FILE", help="where to copy the command's log")
    options = parser.parse_args()
    if options.events < 2 * (options.batch or FILE_BATCH):
        parser.error("the rate is that of the batches after the first: give at least two")
    return options


if __name__ == "__main__":
    main()
