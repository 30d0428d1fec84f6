"""Makes the text of a pipeline file for the topics of a broker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stream_merge.cli.discover.connection import Connection
from stream_merge.cli.discover.findings import examine
from stream_merge.cli.discover.plan import Plan, make_plan
from stream_merge.cli.discover.write import written
from stream_merge.cli.file.load import load_pipeline
from stream_merge.cli.show.formats import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def discover(spark: SparkSession, connection: Connection, pattern: str | None) -> tuple[str, Plan]:
    """Return the text of a pipeline file for a broker's topics, and the plan that it follows.

    Args:
        spark: A session with Kafka's connector, and with Avro if there is a registry.
        connection: How to reach the broker.
        pattern: Which topics to look at, for the whole name; by default all but hidden ones.

    Raises:
        PipelineError: The broker does not answer, or no topic can be taken.
        PipelineFileError: The options make a file with faults.
    """
    from stream_merge.cli.discover.sample import sample_topics

    sampled, names = sample_topics(spark, connection, pattern)
    plan = make_plan([examine(topic, records) for topic, records in sampled.items()], names)
    text = written(plan, connection)
    check_file(text, {**os.environ, **connection.to_set})
    return text, plan


def check_file(text: str, environ: Mapping[str, str]) -> None:
    """Check that a text is a pipeline file without faults.

    Raises:
        PipelineFileError: It has faults.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.toml")
        path.write_text(text, encoding="utf-8", newline="\n")
        load_pipeline(path, environ)


def describe(plan: Plan, connection: Connection, file: Path) -> str:
    """Return what was written, for the user."""
    lines = [
        f"{file} is written: {plural(len(plan.topics), 'topic')} in {plural(len(plan.groups), 'section')} [[tables]]. "
        f"Read its comments, then: stream-merge validate {file}"
    ]
    left = [finding.topic for finding in plan.others] + [group.findings[0].topic for group in plan.refused]
    if left:
        lines.append(f"Not taken, for the reasons in the file: {', '.join(left)}")
    if connection.to_set:
        names = ", ".join(sorted(connection.to_set))
        lines.append(f"No secret is written. Set {names} in the environment to what you gave here.")
    return "\n".join(lines)
