"""What do decoding and ordering add to a merge: 50,000 Debezium events in 10 batches to one table.

Each batch is given to four streaming queries, in turns, each with its own copy of the table; the time is that of the
trigger:

- decode: `debezium.changes` alone, its rows thrown away.
- merge: the same changes decoded and reduced to the newest of each key before the clock starts, merged by keys alone.
- stream_merge: the records as Kafka has them, by `debezium.changes` and `debezium.MERGE_OPTIONS`.
- delta_merge: Delta's MERGE of the reduced changes.

At the end the tables must have the same rows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import SETTINGS, STREAM_TRIGGER, start_session
from benchmarks.merge_speed import describe_machine
from benchmarks.workloads import fingerprint
from stream_merge import debezium, merge_sink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TYPES = {
    "id": "BIGINT",
    "name": "STRING",
    "email": "STRING",
    "address": "STRING",
    "balance": "DECIMAL(12, 2)",
    "active": "BOOLEAN",
    "created_at": "TIMESTAMP",
    "updated_at": "TIMESTAMP",
    "tags": "ARRAY<STRING>",
    "phone": "STRING",
}
COLUMNS = ", ".join(f"{name} {data_type}" for name, data_type in TYPES.items())
ON = "source.id = target.id"
PLACEHOLDER = "__debezium_unavailable_value"
SYSTEMS = ("decode", "merge", "stream_merge", "delta_merge")
IMAGE = """named_struct(
    'id', id, 'name', concat('name of ', id, ' ', n), 'email', concat(id, '@', n, '.example'),
    'address', IF({is_unsent}, '{placeholder}', repeat(concat('address ', n, ' '), 20)),
    'balance', base64(unhex(lpad(hex(pmod(n * 7919, 1000000)), 8, '0'))), 'active', n % 2 = 0,
    'created_at', '2026-01-01T00:00:00.000000Z',
    'updated_at', concat('2026-01-01T00:00:', lpad(n % 60, 2, '0'), '.123456Z'),
    'tags', array('a', concat('tag ', n % 10)), 'phone', concat('+', n))"""
"""A row in Debezium's JSON: a decimal in base64, times in ISO 8601."""


def main() -> None:
    """Measure and print a Markdown table."""
    options = _parse()
    with tempfile.TemporaryDirectory(prefix="stream_merge-benchmark-") as workdir:
        print(describe_machine(), end="\n\n")
        _run(Path(workdir), options)


def _run(workdir: Path, options: argparse.Namespace) -> None:
    spark = start_session(workdir, SETTINGS[options.settings], options.driver_memory)
    records, reduced = workdir / "records", workdir / "reduced"
    num_batches = options.warmup + options.batches
    for number in range(num_batches):
        _write_events(spark, records / str(number), number, options)
        _newest(_decode(spark, records / str(number))).write.parquet(str(reduced / str(number)))
    targets = {system: str(workdir / system) for system in SYSTEMS[1:]}
    for path in targets.values():
        _create_target(spark, path, options.rows)
    folders = {system: reduced if system in ("merge", "delta_merge") else records for system in SYSTEMS}
    queries = _start_queries(spark, targets, folders, workdir)
    times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    try:
        for number in range(num_batches):
            for shift in range(len(SYSTEMS)):
                system = SYSTEMS[(number + shift) % len(SYSTEMS)]
                times[system].append(
                    _run_batch(queries[system], folders[system] / str(number), workdir / "inbox" / system)
                )
    finally:
        for query in queries.values():
            query.stop()
    medians = {system: statistics.median(ms[options.warmup :]) for system, ms in times.items()}
    print(f"| events a batch | unsent | session | {' ms | '.join(SYSTEMS)} ms | stream_merge : merge | : MERGE |")
    print("|---" * (len(SYSTEMS) + 5) + "|")
    figures = " | ".join(f"{medians[system]:,.0f}" for system in SYSTEMS)
    ratios = " | ".join(f"{medians['stream_merge'] / medians[other]:.2f}" for other in ("merge", "delta_merge"))
    print(f"| {options.events:,} | {options.unsent:.0%} | {options.settings} | {figures} | {ratios} |")
    tables = {system: fingerprint(spark, Path(path), *TYPES) for system, path in targets.items()}
    if len(set(tables.values())) > 1:
        raise SystemExit(f"The tables DIFFER: {tables}")


def _start_queries(
    spark: SparkSession, targets: dict[str, str], folders: dict[str, Path], workdir: Path
) -> dict[str, StreamingQuery]:
    values = {name: f"source.{name}" for name in TYPES}
    updates = {**values, "address": f"IF(source.address = '{PLACEHOLDER}', target.address, source.address)"}
    by_keys = (
        merge_sink(targets["merge"], keys="id")
        .when_matched_delete(condition="source.op = 'd'")
        .when_matched_update(set=updates)
        .when_not_matched_insert(values=values, condition="source.op <> 'd'")
    )
    by_changes = merge_sink(targets["stream_merge"], keys="id", **debezium.MERGE_OPTIONS)

    def delta_merge(source: DataFrame, _: int) -> None:
        table = DeltaTable.forPath(source.sparkSession, targets["delta_merge"])
        (
            table.alias("target")
            .merge(source.alias("source"), ON)
            .whenMatchedDelete("source.op = 'd'")
            .whenMatchedUpdate(set=dict(updates))
            .whenNotMatchedInsert("source.op <> 'd'", values=dict(values))
            .execute()
        )

    def throw_away(changes: DataFrame, _: int) -> None:
        changes.write.format("noop").mode("overwrite").save()

    def start(system: str, write: Callable[[DataFrame, int], object]) -> StreamingQuery:
        inbox = workdir / "inbox" / system
        inbox.mkdir(parents=True)
        schema = spark.read.parquet(str(folders[system] / "0")).schema
        rows = spark.readStream.schema(schema).parquet(f"{inbox}/*")
        if folders[system].name == "records":
            rows = debezium.changes(rows, COLUMNS, ["id"])
        checkpoint = str(workdir / "checkpoints" / system)
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        return writer.trigger(processingTime=STREAM_TRIGGER).start()

    writes = {"decode": throw_away, "merge": by_keys, "stream_merge": by_changes, "delta_merge": delta_merge}
    return {system: start(system, write) for system, write in writes.items()}


def _run_batch(query: StreamingQuery, files: Path, inbox: Path) -> float:
    """Give a query the files of one batch, and return how many milliseconds its trigger took."""
    waiting = inbox.parent / "waiting"
    shutil.copytree(files, waiting)
    # A folder that is renamed appears at once and whole.
    waiting.rename(inbox / files.name)
    query.processAllAvailable()
    progress = [each for each in query.recentProgress if each["numInputRows"] > 0][-1]
    if progress["batchId"] != int(files.name):
        raise SystemExit(f"batch {progress['batchId']} in place of {files.name}")
    return float(progress["durationMs"]["triggerExecution"])


def _decode(spark: SparkSession, path: Path) -> DataFrame:
    return debezium.changes(spark.read.parquet(str(path)), COLUMNS, ["id"])


def _newest(changes: DataFrame) -> DataFrame:
    """Return the newest change of each key, an unsent address as the placeholder or the last one that was sent."""
    address = F.max_by("address", F.when(F.col("address").isNotNull(), F.col("_change.sequence"))).alias("sent")
    newest = F.max_by(F.struct("*"), "_change.sequence").alias("newest")
    rows = changes.groupBy("id").agg(newest, address).select("newest.*", "sent")
    is_unsent = F.size("_change.unavailable") > 0
    return (
        rows.withColumn(
            "address", F.when(is_unsent, F.coalesce("sent", F.lit(PLACEHOLDER))).otherwise(F.col("address"))
        )
        .withColumn("op", F.col("_change.op"))
        .drop("_change", "sent")
    )


def _write_events(spark: SparkSession, path: Path, number: int, options: argparse.Namespace) -> None:
    """Write one batch as Spark's Kafka source gives it: 60 % updates of few keys, 35 % inserts, 5 % deletes."""
    first = number * options.events
    kind = F.pmod(F.xxhash64("n"), F.lit(100))
    # Rows that are deleted are no others' updates: an update of a row that is gone would have no value of what it does
    # not send.
    tenth = F.when(F.col("op") == "d", 0).otherwise(1 + F.pmod(F.xxhash64("n", F.lit(3)), F.lit(9)))
    place = F.pmod(F.xxhash64("n", F.lit(1)), F.lit(options.rows // 200)) * 10 + tenth
    known = place * 20 + number % 20
    events = (
        spark.range(first, first + options.events)
        .withColumnRenamed("id", "n")
        .withColumn("op", F.when(kind < 60, "u").when(kind < 95, "c").otherwise("d"))
        .withColumn("id", F.when(F.col("op") == "c", options.rows + F.col("n")).otherwise(known))
    )
    is_unsent = f"op = 'u' AND pmod(xxhash64(n, 2), 100) < {100 * options.unsent}"
    image = IMAGE.format(is_unsent=is_unsent, placeholder=PLACEHOLDER)
    source = "named_struct('lsn', n + 1000, 'snapshot', 'false', 'table', 'customers')"
    events.selectExpr(
        "CAST(to_json(named_struct('id', id)) AS BINARY) AS key",
        f"CAST(to_json(named_struct('after', IF(op = 'd', NULL, {image}), 'source', {source}, 'op', op)) AS BINARY) "
        "AS value",
        "'shop.public.customers' AS topic",
        "CAST(pmod(id, 3) AS INT) AS partition",
        "n AS offset",
        "timestamp_micros(n) AS timestamp",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    ).repartition(3, "partition").write.parquet(str(path))


def _create_target(spark: SparkSession, path: str, num_rows: int) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    rows = spark.range(0, num_rows, 1, 8).selectExpr(
        "id",
        "concat('name of ', id) AS name",
        "concat(id, '@example') AS email",
        "repeat('address ', 20) AS address",
        "CAST(id % 10000 AS DECIMAL(12, 2)) AS balance",
        "true AS active",
        "TIMESTAMP '2026-01-01 00:00:00' AS created_at",
        "TIMESTAMP '2026-01-01 00:00:00' AS updated_at",
        "array('a') AS tags",
        "CAST(NULL AS STRING) AS phone",
    )
    rows.write.format("delta").mode("append").save(path)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--rows", type=int, default=200_000, help="rows of the table at the start (default: %(default)s)")
    option("--events", type=int, default=5_000, help="events a batch (default: %(default)s)")
    option("--batches", type=int, default=10, help="batches that count (default: %(default)s)")
    option("--warmup", type=int, default=3, help="batches before them (default: %(default)s)")
    option("--unsent", type=float, default=0.0, help="share of updates without the address (default: %(default)s)")
    option("--settings", choices=SETTINGS, default="default", help="kind of session (default: %(default)s)")
    option("--driver-memory", default="4g", help="memory of Spark (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
