"""Checks that a pipeline's checkpoint can be written and belongs to its source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.table import open_table
from stream_merge.cli.checks.folders import find_folder_fault, local_path
from stream_merge.cli.file.faults import Fault
from stream_merge.cli.file.load import LoadedPipeline
from stream_merge.cli.file.pipeline import DeltaSource, FilesSource, KafkaSource, Source
from stream_merge.cli.query.spark_messages import condition, short_message
from stream_merge.cli.query.topics import watched_topics
from stream_merge.errors import StreamMergeError

_REMEDY = "give this pipeline a folder of its own, or restore the old source"


def find_checkpoint_faults(spark: SparkSession, loaded: LoadedPipeline) -> Iterator[Fault]:
    """Yield why the pipeline cannot continue from its checkpoint, or start a new one."""
    where = ("pipeline", "checkpoint")
    checkpoint = loaded.pipeline.pipeline.checkpoint
    path = local_path(checkpoint)
    fault = find_folder_fault(path) if path is not None else None
    if fault is not None:
        yield loaded.fault(where, fault)
        return
    try:
        position = read_position(spark, checkpoint)
    except JVM_ERRORS as error:
        yield loaded.fault(where, f"cannot be read: {short_message(error)}")
        return
    if position is None:
        return
    source = loaded.pipeline.source
    kind = _kind_of(position)
    if kind is not None and kind != source.format:
        yield loaded.fault(where, f'belongs to a source with format = "{kind}"; {_REMEDY}')
        return
    fault = _other_source(spark, source, position)
    if fault is not None:
        yield loaded.fault(where, f"{fault}; {_REMEDY}")
    elif isinstance(source, KafkaSource):
        with watched_topics(spark, loaded.pipeline) as topics:
            made_anew = topics.made_anew(source.topics) if topics is not None else []
        if made_anew:
            yield loaded.fault(
                where,
                f"belongs to an earlier topic {', '.join(made_anew)}, which was deleted and recreated since; use a new "
                "folder, and let the source send a new snapshot if records of the old topic were not read",
            )


def read_position(spark: SparkSession, checkpoint: str) -> Mapping[str, Any] | None:
    """Return the position of a checkpoint's query, as Spark stores it; None for a query that has not begun."""
    try:
        files = spark.read.text(f"{checkpoint.rstrip('/')}/offsets", wholetext=True).selectExpr(
            "value", "try_cast(_metadata.file_name AS BIGINT) AS batch_id"
        )
        newest = files.where("batch_id IS NOT NULL").orderBy("batch_id", ascending=False).first()
    except JVM_ERRORS as error:
        if condition(error).startswith("PATH_NOT_FOUND"):
            return None
        raise
    if newest is None:
        return None
    try:
        position = json.loads(newest["value"].rstrip().splitlines()[-1])
    except ValueError:
        return None
    return position if isinstance(position, dict) else None


def _kind_of(position: Mapping[str, Any]) -> str | None:
    if "reservoirId" in position:
        return "delta"
    if "logOffset" in position:
        return "files"
    if all(isinstance(partitions, dict) for partitions in position.values()):
        return "kafka"
    return None


def _other_source(spark: SparkSession, source: Source, position: Mapping[str, Any]) -> str | None:
    """Return the fault if the checkpoint belongs to another source of the same kind, else None."""
    match source:
        case KafkaSource():
            # Topics come and go; a checkpoint with none of them belongs to another pipeline.
            is_other = bool(position) and bool(source.topics) and not set(position) & set(source.topics)
            return f"belongs to the topics {', '.join(sorted(position))}" if is_other else None
        case DeltaSource():
            try:
                table_id = open_table(spark, source.table).begin().table_id
            except StreamMergeError:
                return None
            return None if position["reservoirId"] == table_id else f"belongs to another table than {source.table}"
        case FilesSource():
            return None
