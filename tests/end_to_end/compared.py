"""`stream-merge diff` as a process of its own, and the file of the pipeline whose tables it compares."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.end_to_end.pipeline_process import SPARK_CONF, command

PIPELINE = """\
[pipeline]
name = "compared"
checkpoint = {checkpoint}

[source]
format = "kafka"
bootstrap_servers = "127.0.0.1:9"
topics = {topics}

[decode]
format = "debezium"

[[tables]]
source = '{source}'
target = {target}

[spark]
master = "local[2]"

[spark.conf]
{conf}
"""


def write_compared(folder: Path, *, topics: Sequence[str], source: str) -> None:
    """Write `pipeline.toml`: tables below `lake`, by the group `table` in the pattern of their topics."""
    (folder / "pipeline.toml").write_text(
        PIPELINE.format(
            checkpoint=json.dumps(str(folder / "checkpoint")),
            topics=json.dumps(topics),
            source=source,
            target=json.dumps(f"{folder}/lake/{{table}}"),
            conf="\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in SPARK_CONF.items()),
        )
    )


def compare(folder: Path, *arguments: str, password: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, in a time zone that neither database nor table has."""
    return subprocess.run(
        command("diff", *arguments),
        cwd=folder,
        env={**os.environ, "STREAM_MERGE_DATABASE_PASSWORD": password, "TZ": "Asia/Kolkata"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
