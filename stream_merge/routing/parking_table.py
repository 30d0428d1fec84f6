"""Appends the records of tables at rest to a Delta table of their own, exactly once, and gives them back in order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType, TimestampType

from stream_merge.bridge.creation import COLUMN_MAPPING, create_table, needs_column_mapping
from stream_merge.bridge.jvm import JVM_ERRORS, conflict_name, translate
from stream_merge.bridge.operations import manual_operation
from stream_merge.bridge.table import Table, future_table, location, open_table, sql_name, table_exists
from stream_merge.bridge.transaction import CommitActions, Transaction
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.config import SinkConfig
from stream_merge.errors import ParkingError, StreamMergeError
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.exactly_once import BatchIdentity, Retries, back_off, settle, until_settled
from stream_merge.table.features import properties_for_types
from stream_merge.table.log_stores import check_log_store

SOURCE_NAME = f"{RESERVED_PREFIX}source_name"
"""The column of a routed batch that holds the name of each row's source."""

_OWNER = "parked_for"
_RECORD = "record"
_PARTITIONS = (_OWNER, "batch_id")
_OWN: dict[str, DataType] = {
    _OWNER: StringType(),
    "batch_id": LongType(),
    "app_id": StringType(),
    "target": StringType(),
    "source": StringType(),
    "planned_ms": LongType(),
    "parked_at": TimestampType(),
    "error": StringType(),
    "columns": ArrayType(StringType()),
}
"""The columns beside the record, in order."""
_ROWS_A_FILE = 100_000
_MAX_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Owner:
    """The table for which records are parked.

    Attributes:
        app_id: The application id under which its sink records batches.
        target: Its path or name, as its sink has it.
    """

    app_id: str
    target: str

    @property
    def key(self) -> str:
        """The same in a few characters that are safe in a path."""
        return hashlib.sha256(f"{self.app_id}\n{self.target}".encode()).hexdigest()[:32]

    def identity(self, batch: ParkedBatch) -> BatchIdentity:
        """Return under which ids the table records a batch that was parked."""
        return BatchIdentity(app_id=self.app_id, batch_id=batch.batch_id, planned_ms=batch.planned_ms, is_parked=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedBatch:
    """What a micro-batch has for one table.

    Attributes:
        batch_id: The micro-batch's number.
        planned_ms: When the query planned it, in milliseconds since the epoch; None if unknown.
        sources: The sources of the records.
        columns: The names of their columns.
        num_rows: Their number.
    """

    batch_id: int
    planned_ms: int | None
    sources: tuple[str, ...]
    columns: tuple[str, ...]
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """All that is parked for one table.

    Attributes:
        owner: The table.
        batches: Its micro-batches, the oldest first.
        since: When the first of them was parked.
        error: Why the table was at rest when the last one was parked.
    """

    owner: Owner
    batches: tuple[ParkedBatch, ...]
    since: datetime
    error: str


@dataclass(frozen=True, slots=True)
class _Staged:
    """Written files, which no reader sees before their commit."""

    transaction: Transaction
    files: Any


@dataclass(frozen=True, slots=True)
class ParkingTable:
    """The table that takes the records.

    Each append has the records of one table and one micro-batch, in a partition of its own, so that they are deleted
    without reading or writing any file. The records themselves are a struct, whose fields clash with nothing.

    Attributes:
        spark: The session.
        name: Its path or name.
    """

    spark: SparkSession
    name: str

    def read(self) -> list[Parked]:
        """Return what is parked, whoever parked it; nothing if there is no such table yet.

        Raises:
            ParkingError: The table is none of this library's.
            StreamMergeError: It cannot be read.
        """
        try:
            if not table_exists(self.spark, self.name):
                return []
            self._check_columns(open_table(self.spark, self.name).begin())
            found = self._batches().collect()
        except JVM_ERRORS as error:
            raise translate(error) from error
        parked: dict[Owner, list[Any]] = {}
        for row in sorted(found, key=lambda row: int(row["batch_id"])):
            parked.setdefault(Owner(row["app_id"], row["target"]), []).append(row)
        return [
            Parked(
                owner=owner,
                batches=tuple(map(_batch_of, rows)),
                since=datetime.fromtimestamp(min(row["since_ms"] for row in rows) / 1000, timezone.utc),
                error=rows[-1]["error"],
            )
            for owner, rows in parked.items()
        ]

    def _batches(self) -> DataFrame:
        rows = self.spark.read.table(sql_name(self.spark, self.name))
        return rows.groupBy("app_id", "target", "batch_id").agg(
            F.first("planned_ms").alias("planned_ms"),
            F.sort_array(F.collect_set("source")).alias("sources"),
            F.first("columns").alias("columns"),
            F.first("error").alias("error"),
            F.unix_millis(F.min("parked_at")).alias("since_ms"),
            F.count(F.lit(1)).alias("num_rows"),
        )

    def append(self, owner: Owner, batch: ParkedBatch, rows: DataFrame, error: str, config: SinkConfig) -> None:
        """Append the records of one micro-batch for one table.

        After this returns the table has them once, however often the micro-batch was begun.

        Args:
            owner: The table.
            batch: The micro-batch.
            rows: The records, with the column `SOURCE_NAME`.
            error: Why they are parked.
            config: The table's sink, whose options say what is known of other writers, and how often to retry.

        Raises:
            BatchIdRegressionError: A later micro-batch is parked, or another one of this number.
            ParkingError: A column has another type than in the table.
            StreamMergeError: They could not be appended.
        """
        # As in the targets, the time of planning tells a replay from another micro-batch of the same number.
        app_id = f"{owner.app_id}/parking/{owner.key}"
        of_any = BatchIdentity(
            app_id=app_id,
            batch_id=batch.batch_id,
            planned_ms=batch.planned_ms,
            holder=f"the parking table {self.name}",
        )
        table_id = self._table_id(owner.target)
        identity = of_any if table_id is None else replace(of_any, app_id=f"{app_id}/{table_id}")

        def stage() -> _Staged | None:
            transaction = self._begin(rows, config)
            if identity.is_applied(transaction):
                return None
            described = self._described(owner, batch, rows, error, transaction.struct_type)
            return _Staged(transaction, transaction.write(described.coalesce(1 + batch.num_rows // _ROWS_A_FILE)))

        def commit(staged: _Staged) -> int | None:
            reached("parking")
            changes = CommitActions(new_files=[staged.files])
            recorded = of_any.set_transactions() | identity.set_transactions()
            return staged.transaction.commit(recorded, changes, manual_operation(self.spark))

        def again(staged: _Staged) -> _Staged | None:
            staged.transaction.delete_new_files(staged.files)
            return stage()

        retries = Retries(
            name=f"{owner.target}: batch {batch.batch_id}",
            max_retries=config.max_commit_retries,
            where=f" in the parking table {self.name}",
        )
        try:
            first = stage()
            if first is not None:
                until_settled(
                    first,
                    commit=commit,
                    settle=lambda staged, failure: settle(
                        staged.transaction.table, staged.transaction, identity, failure
                    ),
                    again=again,
                    retries=retries,
                )
        except JVM_ERRORS as failure:
            raise translate(failure) from failure
        reached("parked")

    def rows(self, owner: Owner, batch: ParkedBatch) -> DataFrame:
        """Return the records of one micro-batch for one table as they came, with the column `SOURCE_NAME`."""
        rows = self.spark.read.table(sql_name(self.spark, self.name))
        own = rows.where((F.col(_OWNER) == owner.key) & (F.col("batch_id") == batch.batch_id))
        record = [F.col(_RECORD).getField(name).alias(name) for name in batch.columns]
        return own.select(*record, F.col("source").alias(SOURCE_NAME))

    def remove(self, owner: Owner, last: int) -> None:
        """Delete the records of a table up to a micro-batch, all of which it has.

        Raises:
            StreamMergeError: They could not be deleted.
        """
        reached("unparking")
        open_table(self.spark, self.name).delete_rows((F.col(_OWNER) == owner.key) & (F.col("batch_id") <= last))
        reached("unparked")

    def _begin(self, rows: DataFrame, config: SinkConfig) -> Transaction:
        """Open the table, which is created if it is missing, and gets the columns of the records that it lacks."""
        if not table_exists(self.spark, self.name):
            self._create(rows, config)
        table = open_table(self.spark, self.name)
        self._check_writers(table, config)
        schema = _schema(rows)
        num_conflicts = 0
        while True:
            transaction = table.begin()
            self._check_columns(transaction)
            if not self._lacks_columns(transaction.struct_type, schema):
                return transaction
            try:
                self._add_columns(table, transaction, schema)
            except JVM_ERRORS as error:
                # Mostly another table that is at rest has brought the same columns.
                if conflict_name(error) is None or num_conflicts == config.max_commit_retries:
                    raise
                num_conflicts += 1
                back_off(num_conflicts)

    def _add_columns(self, table: Table, transaction: Transaction, schema: StructType) -> None:
        """Give the table the columns of a schema, and first the features that these need."""
        properties = properties_for_types([schema], transaction.protocol)
        if needs_column_mapping(schema) and COLUMN_MAPPING not in transaction.properties:
            properties[COLUMN_MAPPING] = "name"
        if properties:
            table.set_properties(properties)
        like = self.spark.createDataFrame([], schema)
        writer = like.write.format("delta").mode("append").option("mergeSchema", "true")
        path = location(self.spark, self.name)
        writer.saveAsTable(self.name) if path is None else writer.save(path)

    def _table_id(self, target: str) -> str | None:
        """Return Delta's id of a target; None if it is missing, or if its log cannot be read.

        A target that is created anew has another one: what was parked for the former one says nothing of it.
        """
        try:
            return open_table(self.spark, target).begin().table_id
        except StreamMergeError:
            return None
        except JVM_ERRORS:
            return None

    def _create(self, rows: DataFrame, config: SinkConfig) -> None:
        future = future_table(self.spark, self.name)
        if future is not None:
            self._check_writers(future, config)
        like = self.spark.createDataFrame([], _schema(rows))
        create_table(self.spark, self.name, like, partition_by=_PARTITIONS, cluster_by=(), properties={})

    def _check_writers(self, table: Table, config: SinkConfig) -> None:
        check_log_store(self.name, table.scheme, table.log_store, single_writer=config.single_writer)

    def _check_columns(self, transaction: Transaction) -> None:
        missing = [name for name in (*_OWN, _RECORD) if name not in transaction.struct_type.names]
        if missing or transaction.partition_columns != [*_PARTITIONS]:
            raise ParkingError(
                f"{self.name} is no parking table of stream_merge. Give parking a table that does not exist yet"
            )

    def _lacks_columns(self, present: StructType, wanted: StructType) -> bool:
        """Return whether the table lacks columns of the records.

        Raises:
            ParkingError: It has one with another type.
        """
        there = {field.name.lower(): field.dataType.simpleString() for field in _record_of(present).fields}
        for field in _record_of(wanted).fields:
            kind = field.dataType.simpleString()
            found = there.get(field.name.lower(), kind)
            if found != kind:
                raise ParkingError(
                    f"{self.name}: the records have {kind} in the column {field.name}, the parking table has {found}. "
                    "Give parking another table; once nothing is parked there any more, the old one can be deleted"
                )
        return not there.keys() >= {field.name.lower() for field in _record_of(wanted).fields}

    def _described(
        self, owner: Owner, batch: ParkedBatch, rows: DataFrame, error: str, schema: StructType
    ) -> DataFrame:
        """Return records with the table's columns."""
        own = {name.lower(): name for name in batch.columns}
        record = [
            (F.col(quote(own[f.name.lower()])) if f.name.lower() in own else F.lit(None).cast(f.dataType)).alias(f.name)
            for f in _record_of(schema).fields
        ]
        values = {
            _OWNER: F.lit(owner.key),
            "batch_id": F.lit(batch.batch_id),
            "app_id": F.lit(owner.app_id),
            "target": F.lit(owner.target),
            "source": F.col(SOURCE_NAME),
            "planned_ms": F.lit(batch.planned_ms),
            "parked_at": F.current_timestamp(),
            "error": F.lit(error[:_MAX_ERROR]),
            "columns": F.array(*map(F.lit, batch.columns)),
            _RECORD: F.struct(*record),
        }
        # The table may have further columns.
        return rows.select(
            *[values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema.fields]
        )


def record_columns(rows: DataFrame) -> tuple[str, ...]:
    """Return the columns of a routed batch's records."""
    return tuple(name for name in rows.columns if name != SOURCE_NAME)


def _schema(rows: DataFrame) -> StructType:
    """Return the columns of a parking table for these records."""
    record = StructType([rows.schema[name] for name in record_columns(rows)]).toNullable()
    own = [StructField(name, data_type) for name, data_type in _OWN.items()]
    return StructType([*own, StructField(_RECORD, record)])


def _record_of(schema: StructType) -> StructType:
    record = schema[_RECORD].dataType
    assert isinstance(record, StructType)
    return record


def _batch_of(row: Any) -> ParkedBatch:
    return ParkedBatch(
        batch_id=int(row["batch_id"]),
        planned_ms=row["planned_ms"],
        sources=tuple(row["sources"]),
        columns=tuple(row["columns"]),
        num_rows=int(row["num_rows"]),
    )
