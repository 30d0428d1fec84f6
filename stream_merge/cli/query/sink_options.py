"""Turns a `[[tables]]` and what its source implies into the options of `merge_sink`."""

from __future__ import annotations

from typing import Any

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.durations import parse_duration
from stream_merge.cli.file.pipeline import Pipeline, TableSettings
from stream_merge.cli.query.change_feed import FEED_COLUMNS, FEED_DELETE, FEED_ORDER, is_feed
from stream_merge.cli.query.sources import CORRUPT_RECORD, keeps_corrupt_records

CHANGE_COL = "_change"


def sink_options(pipeline: Pipeline, number: int) -> dict[str, Any]:
    """Return the options of `merge_sink` for one table of the file.

    Raises:
        PipelineError: The table has no keys, or no columns to identify its rows.
    """
    settings = pipeline.tables[number]
    options: dict[str, Any] = {
        "sequence_by": settings.sequence_by,
        "tie_break_by": settings.tie_break_by,
        "delete_when": settings.delete_when,
        "ignore_null_updates": settings.ignore_null_updates,
        "null_keys": settings.null_keys,
        "create_if_missing": settings.create_if_missing,
        "merge_schema": settings.merge_schema,
        "schema_changes": settings.schema_changes_of(pipeline.decode),
        "strategy": settings.strategy,
        "locator": settings.locator,
        "tombstone_retention": parse_duration(settings.tombstone_retention),
        "skip_unchanged": settings.skip_unchanged,
        "single_writer": settings.single_writer,
        "maintenance": settings.maintenance,
        "quarantine": settings.quarantine,
        "expect": settings.expect,
        "max_quarantined_share": settings.max_quarantined_share,
        "max_commit_retries": settings.max_commit_retries,
    }
    if settings.create_if_missing:
        options |= {
            "partition_by": settings.partition_by,
            "cluster_by": settings.cluster_by,
            "table_properties": settings.table_properties,
        }
    options |= _brought_options(pipeline, number)
    options["except_columns"] = [*settings.except_columns, *(options.get("except_columns") or ())]
    if settings.write_columns:
        # Columns that are not written then need no exclusion.
        options["columns"] = settings.write_columns
        del options["except_columns"]
    return options


def _brought_options(pipeline: Pipeline, number: int) -> dict[str, Any]:
    """Return the options that the source and its decoding imply."""
    settings = pipeline.tables[number]
    if pipeline.decode.format == "debezium":
        from stream_merge.debezium import KEYLESS_MERGE_OPTIONS, MERGE_OPTIONS, learn_options

        if settings.keys is None:
            return {"learn": learn_options}
        return {"keys": settings.keys, **MERGE_OPTIONS} if settings.keys else dict(KEYLESS_MERGE_OPTIONS)
    if not settings.keys:
        raise PipelineError(
            f"tables[{number}].keys ({settings.target}): name the columns that identify a row.", ExitCode.USAGE
        )
    keys = {"keys": settings.keys}
    if pipeline.decode.format == "json":
        return {**keys, "error_column": f"{CHANGE_COL}.error", "except_columns": [CHANGE_COL]}
    if is_feed(pipeline.source):
        return {**keys, **_feed_options(settings)}
    if keeps_corrupt_records(pipeline.source):
        error = f"'the record does not fit the schema: ' || left({CORRUPT_RECORD}, 80)"
        return {**keys, "error_column": error, "except_columns": [CORRUPT_RECORD]}
    return keys


def _feed_options(settings: TableSettings) -> dict[str, Any]:
    """Return order and deletes for a change data feed, combined with what the file says."""
    order: dict[str, Any] = {"sequence_by": FEED_ORDER}
    if settings.sequence_by is not None:
        # A delete has the values of its row, and so the same sequence.
        order = {"tie_break_by": settings.tie_break_by or FEED_ORDER}
    delete_when = FEED_DELETE if settings.delete_when is None else f"{FEED_DELETE} OR ({settings.delete_when})"
    return {**order, "delete_when": delete_when, "except_columns": FEED_COLUMNS}
