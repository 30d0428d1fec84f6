"""What the tests of the command share: pipelines from a few lines, results of merges, and the command as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stream_merge import MergeResult

KAFKA = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}
FILES = {"format": "files", "path": "./landing", "schema": "id BIGINT, name STRING"}
FEED = {"format": "delta", "table": "./lake/orders"}


@pytest.fixture
def make_pipeline() -> Callable[..., Any]:
    """Return a function that makes a pipeline of a source, tables and further sections."""
    from stream_merge.cli.file.pipeline import Pipeline

    def make(
        source: Mapping[str, Any] = KAFKA, *tables: Mapping[str, Any], decode: str = "none", **sections: Any
    ) -> Pipeline:
        return Pipeline.model_validate(
            {
                "source": source,
                "decode": {"format": decode},
                "tables": list(tables) or [{"target": "./lake/orders", "keys": ["id"]}],
                **sections,
                "pipeline": {"name": "shop", "checkpoint": "./checkpoint", **sections.get("pipeline", {})},
            }
        )

    return make


@pytest.fixture
def run_pipeline(spark: SparkSession, tmp_path: Path, make_pipeline: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a pipeline once, and gives its progress."""
    from stream_merge.cli.errors import ExitCode
    from stream_merge.cli.query.tables import build_sink
    from stream_merge.cli.run.progress import Progress
    from stream_merge.cli.run.runner import Runner
    from stream_merge.cli.run.stopping import StopSignals

    def run(source: Mapping[str, Any], *tables: Mapping[str, Any], **sections: Any) -> Any:
        settings = {"checkpoint": str(tmp_path / "checkpoint"), **sections.pop("pipeline", {})}
        made = make_pipeline(source, *tables, pipeline=settings, **sections)
        progress = Progress("shop")
        with StopSignals() as signals:
            runner = Runner(spark, made, build_sink(made, progress.on_result), progress, signals, once=True)
            assert runner.run() is ExitCode.OK
        return progress.snapshot()

    return run


@pytest.fixture
def make_result() -> Callable[..., MergeResult]:
    """Return a function that makes the result of a merge."""

    def make(target: str = "./lake/orders", batch_id: int = 0, **fields: Any) -> MergeResult:
        return MergeResult(target=target, batch_id=batch_id, **{"version": batch_id + 1, **fields})

    return make


@pytest.fixture
def report() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a query's progress as Spark 4.2 writes it, for a Kafka source."""

    def make(
        batch_id: int,
        end: Mapping[str, Mapping[str, int]],
        latest: Mapping[str, Mapping[str, int]] | None = None,
        *,
        newest: Mapping[str, int] | None = None,
        ran: bool = True,
    ) -> dict[str, Any]:
        return {
            "id": "5b2f9f4e-0b0a-4a6c-9b43-4f6b4c6f7a11",
            "runId": "a0f3ec1c-6d3f-4d7e-8a55-5f4d2f2f0a01",
            "name": "shop",
            "timestamp": f"2026-11-22T10:00:{batch_id:02d}.000Z",
            "batchId": batch_id,
            "numInputRows": 300,
            "inputRowsPerSecond": 150.0,
            "processedRowsPerSecond": 120.5,
            "durationMs": {"addBatch": 900, "latestOffset": 4} if ran else {"latestOffset": 4},
            "stateOperators": [],
            "sources": [
                {
                    "description": "KafkaV2[Subscribe[orders]]",
                    "startOffset": None,
                    "endOffset": end,
                    "latestOffset": latest if latest is not None else end,
                    "metrics": {"maxOffsetsBehindLatest": "0"},
                }
            ],
            "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
            "observedMetrics": {"stream_merge_newest": newest} if newest is not None else {},
        }

    return make


@dataclass(slots=True)
class Child:
    """The command as a process of its own, and what it has written."""

    process: subprocess.Popen[str]
    output: Path
    errors: Path
    _ended: bool = field(default=False)

    @property
    def stderr(self) -> str:
        return self.errors.read_text()

    @property
    def stdout(self) -> str:
        return self.output.read_text()

    def wait(self, timeout: float = 600) -> int:
        return self.process.wait(timeout)

    def wait_for(self, text: str, timeout: float = 400) -> None:
        """Wait until standard error has a text."""
        until = time.monotonic() + timeout
        while text not in self.stderr:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.stderr}"
            assert time.monotonic() < until, f"no {text!r} in: {self.stderr}"
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@pytest.fixture
def start_command(tmp_path: Path) -> Any:
    """Return a function that starts the command in the test's folder; what still runs at the end is killed."""
    children: list[Child] = []

    def start(*arguments: str, environ: Mapping[str, str] | None = None) -> Child:
        number = len(children)
        output, errors = tmp_path / f"stdout-{number}", tmp_path / f"stderr-{number}"
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "stream_merge.cli", *arguments],
                cwd=tmp_path,
                stdout=out,
                stderr=err,
                text=True,
                env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **(environ or {})},
            )
        children.append(Child(process, output, errors))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()
