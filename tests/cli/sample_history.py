"""A table's history as a stream leaves it: drawn at random from a seed, in rows like those of DESCRIBE HISTORY."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

from stream_merge.cli.show.commits import Commit, commits_of
from stream_merge.cli.show.overview import Overview, TableState
from stream_merge.cli.show.quarantined import QuarantinedRows, Reason, Sample
from stream_merge.cli.show.status import Files, RememberedDeletes, Status, StatusError

START_MS = 1_767_261_600_000
"""2026-01-01 10:00:00 UTC"""

QUERY = "5f2c81d0-93a1-4a5e-8f39-0e7f2a1c9b64"


def row(version: int, ms: int, metrics: dict[str, int] | None = None, operation: str = "MERGE", **more: Any):
    """Return a row of DESCRIBE HISTORY."""
    texts = {name: str(value) for name, value in (metrics or {}).items()}
    return {
        "version": version,
        "ms": ms,
        "operation": operation,
        "operationMetrics": texts,
        "userMetadata": None,
        **more,
    }


def merge_metrics(inserted: int = 0, updated: int = 0, deleted: int = 0, ms: int = 1000, **more: int) -> dict[str, int]:
    """Return the operation metrics of a merge that wrote deletion vectors."""
    rows = inserted + updated + deleted
    metrics = {
        "numSourceRows": rows,
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": deleted,
        "numTargetDeletionVectorsAdded": 1 if updated or deleted else 0,
        "numTargetFilesAdded": 1 if inserted or updated else 0,
        "numAddedFiles": 1 if inserted or updated else 0,
        "numSupersededRows": 0,
        "numStaleRows": 0,
        "numOutdatedRows": 0,
        "numUnchangedRows": 0,
        "numQuarantinedRows": 0,
        "numCommitAttempts": 1,
        "materializeSourceTimeMs": ms * 3 // 10,
        "scanTimeMs": ms * 4 // 10,
        "rewriteTimeMs": ms * 2 // 10,
        "executionTimeMs": ms,
    }
    return metrics | more


def commits_of_a_stream(num_batches: int = 200, seed: int = 7) -> tuple[Commit, ...]:
    """Return the commits of a stream: a first batch of everything, a spike every tenth version, OPTIMIZE now and
    then."""
    draw = random.Random(seed)
    history, recorded = [row(0, START_MS, operation="CREATE TABLE")], []
    version, ms = 0, START_MS
    for batch_id in range(num_batches):
        version += 1
        is_first = batch_id == 0
        duration = int(draw.lognormvariate(7.1, 0.18)) + (2600 if version % 10 == 0 else 0) + (9000 if is_first else 0)
        planned = ms + max(0, 10_000 - duration % 10_000) if not is_first else ms + 1500
        ms = planned + duration + draw.randrange(60, 240)
        scale = 8 if is_first else 1 + 0.5 * ((batch_id // 40) % 3)
        rows = [int(scale * draw.gauss(mean, mean / 8)) for mean in (2400, 2000, 250)]
        metrics = merge_metrics(*rows, ms=duration, numSupersededRows=draw.randrange(400))
        if batch_id % 37 == 20:
            metrics |= {"numQuarantinedRows": draw.randrange(1, 9), "numCommitAttempts": 2}
        history.append(row(version, ms, metrics))
        recorded += [(version, QUERY, batch_id), (version, f"{QUERY}/planned-ms", planned)]
        if batch_id % 60 == 59:
            version, ms = version + 1, ms + 4000
            history.append(row(version, ms, {"numAddedFiles": 3}, operation="OPTIMIZE"))
    return commits_of(history, recorded)


def status_of(commits: tuple[Commit, ...], **more: Any) -> Status:
    """Return the status of a table with these commits, 42 seconds after the last."""
    values: dict[str, Any] = {
        "table": "./lake/customers",
        "version": commits[-1].version,
        "now": commits[-1].time + timedelta(seconds=42),
        "commits": commits,
        "is_complete": True,
        "files": Files(
            num_files=84,
            num_bytes=1_310_000_000,
            smallest=312_000,
            largest=134_000_000,
            num_rows=12_400_118,
            num_deleted_rows=301_442,
        ),
        "tombstones": RememberedDeletes(num_rows=40_211, oldest=datetime(2025, 12, 29, 4, tzinfo=timezone.utc)),
    }
    return Status(**(values | more))


def overview_of_a_shop() -> Overview:
    """Return a pipeline of three tables: one that is well, one with rows in quarantine, one that is not there yet."""
    customers = status_of(commits_of_a_stream())
    now = customers.now
    many_deleted = Files(
        num_files=212,
        num_bytes=8_100_000_000,
        smallest=9_000,
        largest=140_000_000,
        num_rows=30_100_200,
        num_deleted_rows=9_000_000,
    )
    orders = status_of(commits_of_a_stream(seed=9), table="./lake/orders", now=now, files=many_deleted)
    quarantined = QuarantinedRows(
        table="./lake/rejected",
        reasons=(
            Reason(kind="quantity cannot be converted to INT", num_rows=11, last=now - timedelta(minutes=3)),
            Reason(kind="NULL in a key (order_id)", num_rows=6, last=now - timedelta(minutes=9)),
            Reason(kind="expectation positive_price failed", num_rows=1, last=now - timedelta(minutes=30)),
        ),
        samples=(
            Sample(
                reason="quantity cannot be converted to INT: many",
                origin="shop.public.orders, partition 0, offset 88112",
                text='{"op":"u","after":{"order_id":"7f1c","quantity":"many"}}',
            ),
            Sample(
                reason="NULL in a key (order_id)",
                origin="shop.public.orders, partition 2, offset 40021",
                text='{"op":"c","after":{"order_id":null,"quantity":"3"}}',
            ),
        ),
        starts=(("shop.public.orders", 0, 71_220), ("shop.public.orders", 2, 40_021)),
    )
    missing = StatusError("There is no table ./lake/order_items. Check the path.", in_short="not there yet")
    return Overview(
        name="shop",
        now=now,
        tables=(
            TableState(target="./lake/customers", status=customers),
            TableState(target="./lake/orders", status=orders, quarantined=quarantined),
            TableState(target="./lake/order_items", problem=missing),
        ),
    )
