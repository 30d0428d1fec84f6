"""A driver process of tests/object_store: a streaming query that merges into a table on S3.

Its argument is JSON: the `conf` of its session, its `name`, the `target`, the number of `batches`, the options of its
sink, and a `root` folder, into which it writes `report.json`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from stream_merge import MergeResult, merge_sink
from tests.streaming.child_session import start_session


def main() -> None:
    """Merge one file a batch: a row of its own, and one more in the count that both writers share."""
    options = json.loads(sys.argv[1])
    root, name, target = Path(options["root"]), options["name"], options["target"]
    changes = root / "changes"
    changes.mkdir(parents=True)
    for number in range(options["batches"]):
        rows = [{"id": f"{name}-{number}", "n": 1}, {"id": "both", "n": 1}]
        (changes / f"{number:06d}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spark = start_session(options["conf"], root / "warehouse")
    results: list[MergeResult] = []
    sink = (
        merge_sink(
            target,
            keys="id",
            create_if_missing=True,
            max_commit_retries=1000,
            on_result=results.append,
            **options["options"],
        )
        .when_matched_update(set={"n": "target.n + source.n"})
        .when_not_matched_insert()
    )
    report: dict[str, Any] = {"error": None, "starts": 0}
    stream = spark.readStream.schema("id STRING, n INT").option("maxFilesPerTrigger", 1).json(str(changes))
    while report["starts"] <= options["restarts"]:
        report["starts"] += 1
        query = (
            stream.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            report["error"] = None
            break
        except Exception:  # noqa: BLE001 - whatever it is, the test reads it
            report["error"] = traceback.format_exc()
    report["committed"] = [[r.batch_id, r.version] for r in results if not r.skipped]
    report["conflicts"] = sum(len(r.conflicts) for r in results)
    if report["error"] is None:
        table = spark.read.format("delta").load(target)
        report["rows"] = [list(row) for row in table.select("id", "n").collect()]
        history = spark.sql(f"DESCRIBE HISTORY delta.`{target}`").where("operation = 'MERGE'")
        report["merges"] = history.count()
    (root / "report.json").write_text(json.dumps(report, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
