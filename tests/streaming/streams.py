"""What the tests of streams share: changes in numbered files, the merge that shows a batch applied twice, and the
log."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import MergeSink, merge_sink
from tests.spark.delta_log import actions_of, latest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Batch = Sequence[tuple[int, int]]
"""The rows (id, n) of one micro-batch."""

SCHEMA = "id INT, n INT"
ROUTED = f"topic STRING, {SCHEMA}"
TABLES = ("orders", "items", "carts")
"""The sources of the tests of routers."""
FIRST_MODIFIED = 1_767_225_600


class ChangeFiles:
    """A folder of JSON files that a stream reads one by one, so that every run makes the same micro-batches."""

    def __init__(self, folder: Path, schema: str = SCHEMA) -> None:
        self.folder = folder
        self.schema = schema
        self.columns = [column.split()[0] for column in schema.split(",")]
        folder.mkdir(parents=True)

    def add(self, *batches: Sequence[Sequence[Any]]) -> None:
        """Put one more file into the folder for each batch."""
        for rows in batches:
            number = len(list(self.folder.glob("*.json")))
            part = self.folder / f".{number:04d}"
            part.write_text("".join(json.dumps(dict(zip(self.columns, row, strict=True))) + "\n" for row in rows))
            # The file source goes by the time of modification.
            os.utime(part, (FIRST_MODIFIED + number, FIRST_MODIFIED + number))
            part.rename(self.folder / f"{number:04d}.json")

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the changes as a stream with a file in each micro-batch."""
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.folder))


def counting_sink(path: str, **options: Any) -> MergeSink:
    """Return the merge that adds the n of the source to the n of the target: applied twice, it counts twice."""
    sink = merge_sink(path, on="target.id = source.id", **options)
    return sink.when_matched_update(set={"n": "target.n + source.n"}).when_not_matched_insert()


def count(*batches: Batch) -> list[tuple[int, int]]:
    """Return the rows of a table that the counting sink merged each of these batches into once."""
    totals: dict[int, int] = {}
    for batch in batches:
        for key, n in batch:
            totals[key] = totals.get(key, 0) + n
    return sorted(totals.items())


def start(
    changes: DataFrame,
    sink: Callable[[DataFrame, int], None],
    checkpoint: Path | str,
    *,
    output_mode: str = "update",
) -> StreamingQuery:
    """Start a query that ends when it has merged what is there."""
    writer = changes.writeStream.foreachBatch(sink).outputMode(output_mode)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(
    changes: DataFrame,
    sink: Callable[[DataFrame, int], None],
    checkpoint: Path | str,
    *,
    output_mode: str = "update",
) -> StreamingQuery:
    """Merge everything that is there, and raise what the query raises."""
    query = start(changes, sink, checkpoint, output_mode=output_mode)
    query.awaitTermination()
    return query


def run_to_failure(
    changes: DataFrame,
    sink: Callable[[DataFrame, int], None],
    checkpoint: Path | str,
    *,
    output_mode: str = "update",
) -> str:
    """Run a query that must fail, and return its error, which quotes the sink's."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run(changes, sink, checkpoint, output_mode=output_mode)
    return str(caught.value)


def rows(spark: SparkSession, path: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, or these columns of them, in order."""
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).select(*columns or "*").collect())


def recorded_batches(path: str) -> list[tuple[str, int]]:
    """Return application id and batch id of each batch in the table's log, oldest first.

    The entry `<app id>/...` beside a fixed application id, by which a replay is told from a new checkpoint, is left
    out.
    """
    versions = range(latest_version(path) + 1)
    transactions = [txn for version in versions for txn in actions_of(path, version, "txn")]
    return [(txn["appId"], txn["version"]) for txn in transactions if "/" not in txn["appId"]]


def recorded_ids(path: str) -> list[int]:
    """Return the batch ids in the table's log, oldest first."""
    return [batch_id for _, batch_id in recorded_batches(path)]


def query_id(checkpoint: Path) -> str:
    """Return the id that the query has kept in its checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Take away the checkpoint's note that the batch is done, as if the process had died before it was written."""
    (checkpoint / "commits" / str(batch_id)).unlink()
    (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def replace_folder(folder: Path, copy: Path | None) -> None:
    """Put a copy in the place of a folder, or nothing."""
    shutil.rmtree(folder)
    if copy is not None:
        shutil.copytree(copy, folder)


def flatten(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Return the rows of all batches."""
    return [row for batch in batches for row in batch]
