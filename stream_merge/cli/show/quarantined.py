"""Reads the rows of one target in a quarantine table: how many for which reason, and a few of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from stream_merge.cli.show.commits import time_of
from stream_merge.errors import StreamMergeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUM_REASONS = 5
NUM_SAMPLES = 3
_NUM_STARTS = 20
_MAX_KINDS = 10_000
_MAX_TEXT = 10_000
"""Much more than is shown: a text is cut only after its secrets are masked, else half a secret would not be found."""

# What a reason says before the value that it quotes.
_KIND = r"^([^;]*? cannot be converted to [^:;]*|[^:;]*)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Rows that were set aside for one kind of reason.

    Attributes:
        kind: The reason without the value that it quotes.
        num_rows: How many rows.
        last: When the last of them was set aside.
    """

    kind: str
    num_rows: int
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A row that was set aside.

    Attributes:
        reason: All its reasons.
        origin: The record that it comes from, or its batch.
        text: The text of the record, else the row as JSON.
    """

    reason: str
    origin: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRows:
    """The rows of one target in a quarantine table.

    Attributes:
        table: Path or name of the quarantine table.
        reasons: All kinds of reasons, the most frequent first.
        samples: The newest rows.
        starts: The first record of each topic and partition that has such rows: topic, partition, offset.
        problem: Why the table cannot be read.
    """

    table: str
    reasons: tuple[Reason, ...] = ()
    samples: tuple[Sample, ...] = ()
    starts: tuple[tuple[str, int, int], ...] = ()
    problem: str | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(reason.num_rows for reason in self.reasons)


def read_quarantined(spark: SparkSession, table: str, target: str) -> QuarantinedRows:
    """Read the rows of a target in a quarantine table; none if the table does not exist yet.

    Args:
        spark: A classic session with Delta's extension.
        table: Path or name of the quarantine table.
        target: The target as its sink was given it.
    """
    from stream_merge.bridge.jvm import JVM_ERRORS, translate
    from stream_merge.bridge.table import sql_name, table_exists
    from stream_merge.cli.query.tables import rows_of_target

    try:
        if not table_exists(spark, table):
            return QuarantinedRows(table=table)
        rows = rows_of_target(spark.read.table(sql_name(spark, table)), target)
        return QuarantinedRows(table=table, reasons=_reasons(rows), samples=_samples(rows), starts=_starts(rows))
    except JVM_ERRORS as error:
        return QuarantinedRows(table=table, problem=str(translate(error)))
    except StreamMergeError as error:
        return QuarantinedRows(table=table, problem=str(error))


def _reasons(rows: DataFrame) -> tuple[Reason, ...]:
    from pyspark.sql import functions as F

    kind = F.left(F.trim(F.regexp_extract("reason", _KIND, 1)), F.lit(_MAX_TEXT))
    last = F.unix_millis(F.max("quarantined_at"))
    counted = rows.groupBy(kind.alias("kind")).agg(F.count(F.lit(1)).alias("rows"), last.alias("last"))
    found = counted.orderBy(F.desc("rows"), "kind").limit(_MAX_KINDS).collect()
    return tuple(Reason(kind=row["kind"] or "", num_rows=row["rows"], last=time_of(row["last"])) for row in found)


def _samples(rows: DataFrame) -> tuple[Sample, ...]:
    from pyspark.sql import functions as F

    shown = rows.select(
        F.left("reason", F.lit(_MAX_TEXT)).alias("reason"),
        "batch_id",
        "topic",
        "partition",
        "offset",
        F.left(F.coalesce("value", "row"), F.lit(_MAX_TEXT)).alias("text"),
        "quarantined_at",
    )
    newest = shown.orderBy(F.desc("quarantined_at"), "topic", "partition", "offset", "text").limit(NUM_SAMPLES)
    return tuple(
        Sample(
            reason=row["reason"] or "",
            origin=_origin(row["topic"], row["partition"], row["offset"], row["batch_id"]),
            text=row["text"] or "",
        )
        for row in newest.collect()
    )


def _origin(topic: str | None, partition: int | None, offset: int | None, batch_id: int | None) -> str:
    if offset is None:
        return "outside a stream" if batch_id is None else f"batch {batch_id}"
    return ", ".join([*([topic] if topic else []), f"partition {partition}", f"offset {offset}"])


def _starts(rows: DataFrame) -> tuple[tuple[str, int, int], ...]:
    from pyspark.sql import functions as F

    placed = rows.where("topic IS NOT NULL AND `partition` IS NOT NULL AND `offset` IS NOT NULL")
    first = placed.groupBy("topic", "partition").agg(F.min("offset").alias("first"))
    found = first.orderBy("topic", "partition").limit(_NUM_STARTS).collect()
    return tuple((row["topic"], row["partition"], row["first"]) for row in found)
