"""A table's log read from its files, which costs no Spark job and shows what a commit really holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROW_METRICS = (
    "numSourceRows",
    "numOutputRows",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsMatchedUpdated",
    "numTargetRowsNotMatchedBySourceUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsMatchedDeleted",
    "numTargetRowsNotMatchedBySourceDeleted",
    "numTargetRowsCopied",
)


def latest_version(path: str) -> int:
    """Return the newest version of the table."""
    return max(int(commit.stem) for commit in Path(path, "_delta_log").glob("*.json"))


def read_actions(path: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit, each as `{kind: fields}`."""
    commit = Path(path, "_delta_log", f"{version:020d}.json")
    return [json.loads(line) for line in commit.read_text().split("\n") if line]


def actions_of(path: str, version: int, kind: str) -> list[dict[str, Any]]:
    """Return the fields of a commit's actions of one kind: add, remove, cdc, metaData, txn, ..."""
    return [action[kind] for action in read_actions(path, version) if kind in action]


def operation_metrics(path: str, version: int) -> dict[str, int]:
    """Return a commit's `operationMetrics`; DESCRIBE HISTORY shows the same."""
    [info] = actions_of(path, version, "commitInfo")
    return {name: int(value) for name, value in info["operationMetrics"].items()}


def row_metrics(path: str, version: int) -> dict[str, int]:
    """Return the metrics of a commit that count rows."""
    metrics = operation_metrics(path, version)
    return {name: metrics[name] for name in ROW_METRICS if name in metrics}
