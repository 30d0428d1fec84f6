"""The process of test_calling.py that merges from a Spark Connect session: prints the error's class and message as
JSON."""

from __future__ import annotations

import json
import sys

from stream_merge import StreamMergeError, merge_router, merge_sink


def main() -> None:
    """Start a Connect server in this process's JVM, and try every way to call the sink."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[1]")
    for key, value in json.loads(sys.argv[1])["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    sink = merge_sink("/nowhere", keys="id")
    router = merge_router({"0": sink}, by="id")
    frame = spark.range(1)
    errors = {}
    for name, call in {
        "merge": lambda: sink.merge(frame),
        "explain": lambda: sink.explain(frame),
        "foreachBatch": lambda: sink(frame, 0),
        "router": lambda: router.merge(frame),
        "router in foreachBatch": lambda: router(frame, 0),
    }.items():
        try:
            call()
        except StreamMergeError as error:
            errors[name] = [type(error).__name__, str(error)]
    print("\n" + json.dumps(errors))
    spark.stop()


if __name__ == "__main__":
    main()
