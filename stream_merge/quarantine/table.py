"""Appends rows that cannot be merged to a Delta table of their own, with the reason, exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from stream_merge.bridge.counted import materialized_and_counted
from stream_merge.bridge.creation import create_table
from stream_merge.bridge.jvm import conflict_name
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.table import (
    location,
    open_table,
    present_or_future_table,
    sql_name,
    table_exists,
    table_root,
)
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.config import SinkConfig
from stream_merge.debezium.settings import CHANGE_COL
from stream_merge.errors import QuarantineLimitError
from stream_merge.keyless.bind import type_before
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.partial_updates.special_changes import SPECIAL, own_columns
from stream_merge.quarantine.row_checks import Check, Checks
from stream_merge.row_json import row_as_json
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.exactly_once import BatchIdentity, Outcome, Retries, until_settled
from stream_merge.table.log_stores import check_log_store

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("stream_merge")

REASONS = RESERVED_PREFIX + "reasons"
ROWS_A_FILE = 100_000
MAX_SHOWN_REASONS = 5
_NUMBER = RESERVED_PREFIX + "number"
_IDENTITY = ("row", "topic", "partition", "offset")
"""The columns that identify a row within a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judgement:
    """The checks of a row as Columns, which are built once: each takes several calls into the JVM for each part.

    Attributes:
        checks: What is checked; nothing else counts if there is nothing.
        missing: NULL for the columns that the merge was analysed with and the batch does not have.
        columns: The batch's own.
        reasons: The reasons of a row.
        is_rejected: Whether it has any.
        counts: Aggregates: the rows that are rejected, and how many fail each check.
    """

    checks: Sequence[Check]
    missing: Sequence[Column]
    columns: Sequence[Column]
    reasons: Column
    is_rejected: Column
    counts: Sequence[Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The quarantine of a sink, for one batch.

    Attributes:
        config: The sink as the user configured it.
        ordered: The sink, its sequence in terms of columns.
        partial: How changes set single columns, if they do.
        identity: Under which ids the batch is recorded; None outside a stream.
        name: How messages name the batch.
        transaction: The version of the target that the rows are checked against.
    """

    config: SinkConfig
    ordered: SinkConfig
    partial: PartialUpdates | None
    identity: BatchIdentity | None
    name: str
    transaction: Transaction

    @property
    def table(self) -> str:
        """Path or name of the table."""
        assert self.config.quarantine is not None
        return self.config.quarantine

    @property
    def _app_id(self) -> str:
        """The application id of the SetTransaction: other sinks of the query may write to the same table."""
        assert self.identity is not None
        return f"{self.identity.app_id}/quarantine/{self.transaction.table_id}"

    @contextmanager
    def accepted(
        self,
        batch: DataFrame,
        prepared: DataFrame,
        resolved: ResolvedMerge,
        special: Sequence[Column],
        call: Callable[[DataFrame], T],
        *,
        is_one_task: bool = False,
    ) -> Iterator[tuple[DataFrame, int, Mapping[str, Any], T | None]]:
        """Set the rows aside that cannot be merged, and keep the others for the block.

        The rejected rows are committed before the merge: after a crash in between the quarantine has them, and the
        replay does not add them again.

        Args:
            batch: The batch as it arrived; it is evaluated once.
            prepared: The batch that the merge was analysed for, with the sink's own columns behind those that arrived.
            resolved: The merge.
            special: What else is to be counted, in the same pass (`special_changes`).
            call: Gets the rows that can be merged while they are evaluated, and may plan what is to be done with them.
            is_one_task: Whether it is small and one task computes it, so that one task may do all that follows.

        Returns:
            The rows that can be merged, with the columns of the batch; how many cannot; what else was counted, and what
            the call returned. If there is nothing to look at, nothing is counted or called.

        Raises:
            QuarantineLimitError: They are more than the sink allows; nothing was written.
        """
        judgement = resolved.once("judgement", lambda: self._judgement(batch, prepared, resolved))
        if not judgement.checks:
            yield batch, 0, {}, None
            return
        rows = resolved.source(batch.select("*", *judgement.missing)).alias(self.config.source_alias)
        rows = rows.select(*judgement.columns, judgement.reasons)

        def mergeable(judged: DataFrame) -> DataFrame:
            return judged.where(~judgement.is_rejected).select(*judgement.columns)

        evaluated = materialized_and_counted(
            rows.coalesce(1) if is_one_task else rows,
            [*special, *judgement.counts],
            self.config.source_alias,
            lambda judged: (kept := mergeable(judged), call(kept)),
        )
        with evaluated as (judged, counts, (kept, result)):
            num_rejected = counts["rejected"]
            if num_rejected:
                rejected = judged.where(judgement.is_rejected)
                self._check_limit(counts, judgement.checks, rejected)
                self._set_aside(rejected, batch.schema, num_rejected)
            others = {name: counts[name] for name in (*SPECIAL, "rows") if name in counts}
            yield kept, num_rejected, others, result

    def _judgement(self, batch: DataFrame, prepared: DataFrame, resolved: ResolvedMerge) -> _Judgement:
        """Return the checks of every batch for which the merge is resolved alike."""
        make_checks = Checks(
            batch=batch,
            config=self.config,
            ordered=self.ordered,
            partial=self.partial,
            resolved=resolved,
            target=self.transaction.struct_type,
            partition_columns=self.transaction.partition_columns,
            before=type_before(self.config, batch) if self.config.before is not None else None,
        )
        # Without a table for them, other rows that cannot be merged fail the merge by themselves.
        checks = make_checks.all() if self.config.quarantine is not None else make_checks.stated()
        missing = {f.name: f.dataType for f in prepared.schema.fields[len(batch.columns) :]} | own_columns(
            self.ordered, self.partial
        )
        is_rejected = F.exists(REASONS, lambda reason: reason.isNotNull())
        counts = [F.count(F.col(REASONS)[number]).alias(f"check_{number}") for number in range(len(checks))]
        return _Judgement(
            checks=checks,
            missing=[F.lit(None).cast(data_type).alias(name) for name, data_type in missing.items()],
            columns=[F.col(quote(name)) for name in batch.columns],
            reasons=F.array(*[check.reason for check in checks]).alias(REASONS),
            is_rejected=is_rejected,
            counts=[F.count(F.when(is_rejected, 1)).alias("rejected"), *counts],
        )

    def _check_limit(self, counts: Mapping[str, Any], checks: Sequence[Check], rejected: DataFrame) -> None:
        """Log why rows are rejected, of which there are some.

        Raises:
            QuarantineLimitError: They are more than the sink allows.
        """
        num_rows, num_rejected = counts["rows"], counts["rejected"]
        found = {check.label: counts[f"check_{number}"] for number, check in enumerate(checks)}
        frequent = dict(sorted(((k, n) for k, n in found.items() if n), key=lambda pair: -pair[1])[:MAX_SHOWN_REASONS])
        example = str(rejected.select(F.array_join(REASONS, "; ")).head(1)[0][0])
        limit = self.config.max_quarantined_share if self.config.quarantine is not None else None
        if num_rejected / num_rows > (limit or 0):
            raise QuarantineLimitError(self.name, num_rejected, num_rows, limit, frequent, example)
        logger.warning(
            "%s: %d of %d rows cannot be merged and go to %s: %s; for example: %s",
            self.name,
            num_rejected,
            num_rows,
            self.table,
            ", ".join(f"{label} {number}" for label, number in frequent.items()),
            example,
        )

    def _set_aside(self, rejected: DataFrame, schema: StructType, num_rejected: int) -> None:
        """Append the rows to the table.

        After this returns the table has each of them once, however often the batch was begun. The exception of a failed
        commit does not tell whether it landed, so the table itself is asked.
        """
        described = self._described(rejected, schema).coalesce(1 + num_rejected // ROWS_A_FILE)
        reached("quarantining")
        retries = Retries(
            name=self.name, max_retries=self.config.max_commit_retries, where=f" in the quarantine {self.table}"
        )
        until_settled(described, commit=self._append, settle=self._settled, again=lambda rows: rows, retries=retries)
        reached("quarantined")

    def _settled(self, described: DataFrame, error: BaseException) -> Outcome:
        """Find out whether a commit that raised an error landed: the table itself is asked."""
        is_there = self._is_recorded(described.sparkSession) and self._missing(described).isEmpty()
        return Outcome(is_landed=is_there, conflict=None if is_there else conflict_name(error))

    def _append(self, described: DataFrame) -> None:
        spark = described.sparkSession
        table = present_or_future_table(spark, self.table)
        if table is not None:
            check_log_store(self.table, table.scheme, table.log_store, single_writer=self.config.single_writer)
        if not table_exists(spark, self.table):
            # Rows of another sink may lack what all of these have, such as a batch id.
            like = spark.createDataFrame([], described.schema.toNullable())
            create_table(spark, self.table, like, partition_by=(), cluster_by=(), properties={})
        is_recorded = self._is_recorded(spark)
        if is_recorded:
            # The batch was begun before. Mostly the table has all of its rows, but with other options or another schema
            # of the target, other rows may be rejected now. Delta would skip these for their batch id.
            described = self._missing(described)
            if described.isEmpty():
                return
        writer = described.write.format("delta").mode("append")
        if self.identity is not None and not is_recorded:
            writer = writer.option("txnAppId", self._app_id).option("txnVersion", self.identity.batch_id)
        present = {f.name.lower(): f for f in spark.read.table(sql_name(spark, self.table)).schema.fields}
        if not present.keys() >= {*described.columns}:
            # A table of an older version, or one that the user made.
            writer = writer.option("mergeSchema", "true")
        for field in described.schema.fields:
            if field.nullable and field.name in present and not present[field.name].nullable:
                # As older versions made them.
                open_table(spark, self.table).drop_not_null(quote(field.name))
        path = location(spark, self.table)
        if path is None:
            writer.saveAsTable(self.table)
        else:
            writer.save(path)

    def _is_recorded(self, spark: SparkSession) -> bool:
        """Return whether the table has taken rows of this batch, or of a later one."""
        if self.identity is None or not table_exists(spark, self.table):
            return False
        recorded = open_table(spark, self.table).begin().last_batches([self._app_id])
        return recorded.get(self._app_id, -1) >= self.identity.batch_id

    def _missing(self, described: DataFrame) -> DataFrame:
        """Return the rows that the table does not have of this batch, each as often as it is missing."""
        assert self.identity is not None
        spark = described.sparkSession
        present = spark.read.table(sql_name(spark, self.table)).where(
            (F.col("batch_id") == self.identity.batch_id) & (F.col("app_id") == self.identity.app_id)
        )
        # The target may have been spelled otherwise when the batch was begun.
        targets = [row["target"] for row in present.select("target").distinct().collect()]
        root = self.transaction.table.root
        own = [name for name in targets if name == self.config.target or table_root(spark, name) == root]
        present = present.where(F.col("target").isin(own))
        order = Window.partitionBy(*_IDENTITY).orderBy("reason")
        mine, theirs = (frame.withColumn(_NUMBER, F.row_number().over(order)) for frame in (described, present))
        mine, theirs = mine.alias("mine"), theirs.alias("theirs")
        condition = F.lit(True)
        for name in (*_IDENTITY, _NUMBER):
            condition = condition & F.col(f"mine.{name}").eqNullSafe(F.col(f"theirs.{name}"))
        return mine.join(theirs, condition, "left_anti").select(*[F.col(f"mine.{name}") for name in described.columns])

    def _described(self, rejected: DataFrame, schema: StructType) -> DataFrame:
        identity = self.identity
        return rejected.select(
            F.array_join(REASONS, "; ").alias("reason"),
            F.lit(identity.batch_id if identity else None).cast("bigint").alias("batch_id"),
            F.lit(identity.app_id if identity else None).cast("string").alias("app_id"),
            F.lit(self.config.target).alias("target"),
            F.current_timestamp().alias("quarantined_at"),
            *[column.alias(name) for name, column in _origin(schema).items()],
            row_as_json(schema.fields).alias("row"),
        )


def _origin(schema: StructType) -> Mapping[str, Column]:
    """Return topic, partition, offset and value of the record that a row comes from, as far as the batch has them.

    From the struct of a Debezium change, else from columns of these names and of the types that Kafka's source gives.
    """
    types = {field.name.lower(): (F.col(quote(field.name)), field.dataType) for field in schema.fields}
    change, change_type = types.get(CHANGE_COL, (None, None))
    if change is not None and isinstance(change_type, StructType) and "offset" in change_type.names:
        types = {f.name: (change.getField(f.name), f.dataType) for f in change_type.fields}
        types["value"] = types.get("raw", (F.lit(None), StringType()))
    kinds: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "topic": ((StringType,), "string"),
        "partition": ((IntegralType,), "int"),
        "offset": ((IntegralType,), "bigint"),
        "value": ((StringType, BinaryType), "string"),
    }
    origin = {}
    for name, (legal, kind) in kinds.items():
        value, data_type = types.get(name, (None, None))
        if value is None or not isinstance(data_type, legal):
            value = F.lit(None)
        elif isinstance(data_type, BinaryType):
            text = value.cast("string")
            value = F.when(F.is_valid_utf8(text), text).otherwise(F.base64(value))
        origin[name] = value.cast(kind)
    return origin
