"""`python -m demo`: merge a captured PostgreSQL change log into Delta tables, and compare them with the database."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from stream_merge.java import find_java_fault

DATA = Path(__file__).parent / "data"
NUM_MICRO_BATCHES = 20
TABLES = ("customers", "order_items", "orders")
"""The names of `demo.shop.CAPTURED_TABLES`, which takes Spark to import."""
DEFAULT_TABLES = ("customers", "order_items")
"""They have all that is hard in the log; another table takes half a minute more."""
MAX_ROWS_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 when all tables equal the dump."""
    options = _parse(arguments)
    fault = find_java_fault()
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
        return 1
    workdir = options.workdir or Path(tempfile.mkdtemp(prefix="stream_merge-demo-"))
    workdir = workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    is_kept = options.keep or options.workdir is not None
    try:
        return run(workdir, data=options.data, tables=options.tables, num_micro_batches=options.batches)
    finally:
        if is_kept:
            _say(f"Tables, checkpoint and Spark's log are in {workdir}")
        else:
            shutil.rmtree(workdir, ignore_errors=True)


def run(workdir: Path, *, data: Path, tables: Sequence[str], num_micro_batches: int) -> int:
    """Stream the log into the tables under `workdir`, compare them with the dump, and return the exit code.

    A directory that an earlier run has used is gone on with: what its checkpoint has is not merged again.
    """
    # Spark is imported here, so that --help and a missing Java do not wait for it.
    from demo.progress import Progress, TableProgress
    from demo.replay import write_replay
    from demo.session import start_session
    from demo.shop import CAPTURED_TABLES
    from demo.stream import create_tables, make_sinks, start_query
    from demo.verify import compare_with_dump

    start = time.monotonic()
    replay = write_replay(data / "events.jsonl.gz", workdir / "log", tables=tables, num_micro_batches=num_micro_batches)
    _say(
        f"A change log captured from PostgreSQL by Debezium: {replay.num_records:,} records "
        f"({replay.num_redelivered:,} changes are delivered twice) in {replay.num_micro_batches} micro-batches."
    )
    _say("Starting Spark; the first time, it downloads Delta Lake ...")
    spark = start_session(workdir=workdir, log=workdir / "spark.log")
    try:
        root = workdir / "tables"
        captured = [CAPTURED_TABLES[name] for name in tables]
        create_tables(spark, root, captured)
        progress = Progress(sys.stdout, replay, {name: TableProgress() for name in tables})
        sinks = make_sinks(root, captured, progress.on_result)
        query = start_query(
            spark, replay, sinks, checkpoint=workdir / "checkpoint", on_micro_batch=progress.on_micro_batch
        )
        query.awaitTermination()
        seconds = time.monotonic() - start
        _say(f"{progress.num_micro_batches} micro-batches in {seconds:.0f} s, with the start of Spark.")
        comparisons = [compare_with_dump(spark, root, data / "expected", table) for table in captured]
    finally:
        spark.stop()
    for comparison in comparisons:
        verdict = "equal to" if comparison.is_equal else "DIFFERENT from"
        _say(f"{comparison.table}: {comparison.num_rows:,} rows in the database, {verdict} the Delta table")
        for sign, rows in (("missing", comparison.missing), ("unexpected", comparison.unexpected)):
            if rows:
                _say(f"  {len(rows):,} {sign}, for example")
                for row in rows[:MAX_ROWS_SHOWN]:
                    _say(f"    {row}")
    if all(comparison.is_equal for comparison in comparisons):
        _say(f"All {len(comparisons)} tables equal the database's own dump, row for row.")
        return 0
    _say("The tables do NOT equal the database's own dump.")
    return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Merge a captured PostgreSQL change log into Delta tables, and compare them with the database.",
    )
    option = parser.add_argument
    option(
        "--batches", type=_positive, default=NUM_MICRO_BATCHES, help="number of micro-batches (default: %(default)s)"
    )
    option(
        "--tables",
        nargs="+",
        choices=TABLES,
        default=DEFAULT_TABLES,
        metavar="TABLE",
        help="of %(choices)s (default: " + " ".join(DEFAULT_TABLES) + ")",
    )
    option("--workdir", type=Path, help="where tables and checkpoint go and stay; a second run there goes on from them")
    option("--keep", action="store_true", help="keep the temporary directory that stands in for a --workdir")
    option(
        "--data", type=Path, default=DATA, help="directory of the change log and the dump (default: the bundled one)"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
