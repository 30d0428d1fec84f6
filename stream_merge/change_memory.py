"""What a table remembers of its changes: the state that a version has, also after a RESTORE or a REPLACE of the table."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stream_merge.bridge.expressions import expression_sql
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.bridge.sessions import classic_session
from stream_merge.bridge.statement import manual_operation
from stream_merge.bridge.table import CommitActions, Table, Transaction, open_table, path_of
from stream_merge.config import SinkConfig
from stream_merge.engines.job import now_ms
from stream_merge.sequence import SEQUENCE, stored_in, with_sequence
from stream_merge.steps import reached
from stream_merge.tombstones import DOMAIN, TombstoneFile, Tombstones, TombstoneState

logger = logging.getLogger("stream_merge")

FEATURE = "domainMetadata"
_REPLACING = frozenset(
    {
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CLONE",
    }
)


@dataclass(slots=True, kw_only=True)
class ChangeMemory:
    """The tombstones of a table as one micro-batch reads and continues them.

    Attributes:
        tombstones: Reads and writes them.
        state: Which ones the version that is read has.
        retention_ms: How long a tombstone is kept, in milliseconds.
    """

    tombstones: Tombstones
    state: TombstoneState
    retention_ms: int
    _written: TombstoneFile | None = None

    def next_state(
        self, deletes: DataFrame, num_deletes: int, read_version: int
    ) -> tuple[TombstoneState, dict[str, int]]:
        """Write the batch's deletes, forget what is too old, and return the state for the commit, with its metrics."""
        now = now_ms()
        if num_deletes and self._written is None:
            reached("remembering")
            self._written = self.tombstones.write(deletes, num_deletes, now)
            reached("remembered")
        files = (*self.state.files, self._written) if self._written else self.state.files
        state = replace(self.state, read_version=read_version, files=files)
        state, num_forgotten = self.tombstones.maintained(state, cutoff_ms=now - self.retention_ms)
        return state, {
            "num_tombstones": state.num_rows,
            "num_tombstones_added": num_deletes,
            "num_tombstones_removed": num_forgotten,
            "oldest_tombstone_ms": max((now - file.oldest_ms for file in state.files), default=0),
        }

    def after_commit(self, state: TombstoneState) -> None:
        """Clean up when the commit has made files superfluous."""
        if {file.path for file in self.state.files} - {file.path for file in state.files}:
            self.tombstones.clean_up(state, now_ms=now_ms())


def prepare_target(config: SinkConfig, batch: DataFrame, table: Table, transaction: Transaction) -> Transaction:
    """Give the target what the sink needs to keep order, each in a commit of its own before the first batch.

    That is the column for the sequence, where the target has none of its own, and the table feature for metadata domains.

    Returns:
        The transaction, opened anew when something was changed.
    """
    if not config.keeps_order:
        return transaction
    names = [f["name"] for f in transaction.schema["fields"]]
    parts = (*config.sequence_by, *config.tie_break_by)
    is_changed = False
    if stored_in(parts, batch.columns, names) == (SEQUENCE,) and SEQUENCE not in names:
        added = with_sequence(batch, parts, config.source_alias, None).schema[SEQUENCE]
        table.add_column(SEQUENCE, added.dataType.simpleString())
        is_changed = True
    if config.keeps_tombstones and FEATURE not in (transaction.protocol.get("writerFeatures") or []):
        logger.info("%s: adding the table feature %s, in which deletes are remembered", table.name, FEATURE)
        table.enable_feature(FEATURE)
        is_changed = True
    return table.begin() if is_changed else transaction


def ordered_batch(config: SinkConfig, batch: DataFrame, transaction: Transaction) -> tuple[SinkConfig, DataFrame]:
    """Return the sink in terms of the columns that hold the sequence, and the batch with these columns."""
    if not config.sequence_by:
        return config, batch
    schema = _schema_of(transaction)
    parts = (*config.sequence_by, *config.tie_break_by)
    # Clauses of the user's own compare with the target as they like; the order decides inside the batch alone.
    columns = stored_in(parts, batch.columns, schema.names if config.keeps_order else batch.columns)
    if columns == (SEQUENCE,):
        target_type = schema[SEQUENCE].dataType if SEQUENCE in schema.names else None
        batch = with_sequence(batch, parts, config.source_alias, target_type)
    return replace(config, sequence_by=columns, tie_break_by=()), batch


def recall(config: SinkConfig, ordered: SinkConfig, table: Table, transaction: Transaction) -> ChangeMemory | None:
    """Return what the table remembers; None when the sink keeps no tombstones.

    Args:
        config: The sink as the user configured it.
        ordered: The sink as `ordered_batch` returned it.
        table: The target.
        transaction: The version that is read.

    Raises:
        ConfigurationChangedError: The table was written with other keys or another sequence.
    """
    if not config.keeps_tombstones:
        return None
    parts = (*config.sequence_by, *config.tie_break_by)
    fresh = TombstoneState(keys=config.keys, sequence=tuple(expression_sql(table.spark, part) for part in parts))
    state = _state_of(table, transaction, fresh)
    state.check(table.name, fresh)
    missing = [file.path for file in state.files if not table.exists(file.path)]
    if missing:
        logger.warning(
            "%s: remembered deletes are gone (%s); older changes of their keys that come late will bring rows back",
            table.name,
            ", ".join(missing),
        )
        state = replace(state, files=tuple(file for file in state.files if file.path not in missing))
    schema = {f.name.lower(): f.dataType for f in _schema_of(transaction).fields}
    tombstones = Tombstones(
        table=table,
        keys={key: schema[key.lower()] for key in config.keys},
        sequence={name: schema[name.lower()] for name in ordered.sequence_columns},
        is_null_safe=config.null_keys == "match",
    )
    retention_ms = int(config.tombstone_retention.total_seconds() * 1000)
    return ChangeMemory(tombstones=tombstones, state=state, retention_ms=retention_ms)


def forget_state(spark: SparkSession, target: str) -> None:
    """Remove what the table remembers, in a commit of its own; the files go when they are old enough."""
    session = classic_session(spark.range(0))
    table = open_table(session, target)
    transaction = table.begin()
    if transaction.domain_metadata(DOMAIN) is None:
        return
    try:
        transaction.commit({}, CommitActions(domain_metadata={DOMAIN: None}), manual_operation(session), {})
    except JVM_ERRORS as error:
        raise translate(error) from error


def _schema_of(transaction: Transaction) -> StructType:
    return StructType.fromJson(transaction.schema)


def _state_of(table: Table, transaction: Transaction, fresh: TombstoneState) -> TombstoneState:
    """Return the state of the version that is read.

    RESTORE leaves a table's metadata domains as they were, so the commits since the state was written are looked through
    for one; the state of the version that it restored counts then.
    """
    text = transaction.domain_metadata(DOMAIN)
    if text is None:
        return fresh
    state = TombstoneState.from_json(text)
    version = transaction.version
    while version > state.read_version:
        try:
            commit = table.read_commit(version)
        except FileNotFoundError:
            # Older commits than the log keeps: a sink that has not run for so long.
            break
        found = _own_state(commit)
        if found is not None:
            return found
        info = _commit_info(commit)
        if info.get("operation") in _REPLACING:
            return fresh
        if info.get("operation") == "RESTORE":
            version = _restored_version(table, version, info)
            logger.info("%s: was restored to version %d, whose remembered deletes count", table.name, version)
            restored = _state_at(table, version)
            return fresh if restored is None else restored
        version -= 1
    return state


def _state_at(table: Table, version: int) -> TombstoneState | None:
    """Return the state that the commits up to a version give."""
    while version >= 0:
        try:
            commit = table.read_commit(version)
        except FileNotFoundError:
            logger.warning("%s: the log of version %d is gone, and with it what was remembered", table.name, version)
            return None
        found = _own_state(commit)
        if found is not None:
            return found
        info = _commit_info(commit)
        if info.get("operation") in _REPLACING:
            return None
        version = _restored_version(table, version, info) if info.get("operation") == "RESTORE" else version - 1
    return None


def _commit_info(commit: list[dict[str, Any]]) -> dict[str, Any]:
    return next((dict(action["commitInfo"]) for action in commit if "commitInfo" in action), {})


def _own_state(commit: list[dict[str, Any]]) -> TombstoneState | None:
    for action in commit:
        metadata = action.get("domainMetadata")
        if metadata is not None and metadata["domain"] == DOMAIN and not metadata.get("removed"):
            return TombstoneState.from_json(metadata["configuration"])
    return None


def _restored_version(table: Table, version: int, info: dict[str, Any]) -> int:
    """Return to which version a RESTORE went; one to a timestamp went to the last version before it."""
    parameters = info.get("operationParameters", {})
    if parameters.get("version") is not None:
        return int(parameters["version"])
    spark, path = table.spark, path_of(table.name)
    log = DeltaTable.forName(spark, table.name) if path is None else DeltaTable.forPath(spark, path)
    moment = F.lit(parameters["timestamp"]).cast("timestamp")
    row = (
        log.history()
        .where((F.col("version") < version) & (F.col("timestamp") <= moment))
        .agg(F.max("version"))
        .collect()
    )
    return int(row[0][0])
