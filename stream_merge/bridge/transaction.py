"""Wraps Delta's OptimisticTransaction: reads a version, tracks what was read, writes files and commits."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stream_merge.bridge.jvm import (
    JVM_ERRORS,
    actions,
    items,
    java_class,
    load_class,
    option,
    optional,
    scala_map,
    scala_object,
    seq,
    to_python,
)
from stream_merge.bridge.sessions import snapshot_partitions

if TYPE_CHECKING:
    from stream_merge.bridge.table import Table

logger: logging.Logger = logging.getLogger("stream_merge")


@dataclass(slots=True)
class CommitActions:
    """The actions of a merge's commit besides its SetTransactions.

    Attributes:
        new_files: Scala Seqs of FileActions as `writeFiles` returned them, including change files.
        adds: AddFiles, as in the log, for files that get a new deletion vector.
        removes: RemoveFiles, as in the log.
        domain_metadata: Configuration by domain name, None to remove the domain; the table must have the feature.
    """

    new_files: list[Any] = field(default_factory=list)
    adds: list[dict[str, Any]] = field(default_factory=list)
    removes: list[dict[str, Any]] = field(default_factory=list)
    domain_metadata: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Transaction:
    """Delta's OptimisticTransaction on one version of the table.

    Attributes:
        version: The version that is read.
        metadata: Delta's metadata action.
        protocol: Delta's protocol action.
    """

    table: Table
    handle: Any
    version: int
    metadata: dict[str, Any]
    protocol: dict[str, Any]

    @property
    def jvm(self) -> Any:
        """The JVM."""
        return self.table.jvm

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        return dict(self.metadata.get("configuration") or {})

    def is_on(self, table_property: str, setting: str) -> bool:
        """Whether a table property or a setting of the session switches something on; which goes first is Delta's."""
        values = self.properties.get(table_property), self.table.spark.conf.get(setting, None)
        return any(value is not None and value.lower() != "false" for value in values)

    @property
    def partition_columns(self) -> list[str]:
        """Names of the partition columns."""
        return list(self.metadata.get("partitionColumns") or [])

    @property
    def row_tracking_columns(self) -> tuple[str, str] | None:
        """Names of the file columns for row id and row commit version of moved rows; None without row tracking."""
        properties = self.properties
        if properties.get("delta.enableRowTracking", "false").lower() != "true":
            return None
        prefix = "delta.rowTracking.materializedRow"
        return properties[f"{prefix}IdColumnName"], properties[f"{prefix}CommitVersionColumnName"]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The table's schema as in the log."""
        return dict(json.loads(self.metadata["schemaString"]))

    @cached_property
    def struct_type(self) -> StructType:
        """The table's schema as Spark's type."""
        return StructType.fromJson(self.schema)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self.metadata["id"])

    @cached_property
    def snapshot(self) -> Any:
        """Handle of the snapshot that is read."""
        return self.handle.snapshot()

    def _few_tasks(self) -> AbstractContextManager[None]:
        """Let Delta compute the table's state, if a call needs it, in a number of tasks that suits the log."""
        return snapshot_partitions(self.table.spark, self._checkpoint_bytes)

    @property
    def num_commits_since_checkpoint(self) -> int:
        """The number of commits since the newest checkpoint of the log."""
        return self.version - max(0, int(self.snapshot.logSegment().checkpointProvider().version()))

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the version that is read, and clean up the log, as Delta does after a commit."""
        with self._few_tasks():
            self.table.log.checkpoint(self.snapshot, option(self.jvm, self.table.catalog_table))

    def without_checkpoint(self) -> None:
        """Let the commit write no checkpoint of the log, whatever its version."""
        hook = scala_object(self.jvm, "org.apache.spark.sql.delta.hooks.CheckpointHook")
        self.handle.unregisterPostCommitHooksWhere(seq(self.jvm, [hook]).toSet())

    @cached_property
    def _checkpoint_bytes(self) -> int | None:
        """Size of the newest checkpoint; None for the v2 policy, where the checkpoint only names its files."""
        if self.properties.get("delta.checkpointPolicy") == "v2":
            return None
        files = self.snapshot.logSegment().checkpointProvider().topLevelFiles()
        return sum(int(file.getLen()) for file in items(files))

    def committed_ms(self, version: int) -> int | None:
        """Return when the commit file of a version was written, in milliseconds since the epoch; None if it is gone.

        Args:
            version: This one, or one before it.
        """
        segment = self.snapshot.logSegment()
        if version == self.version:
            return int(segment.lastCommitFileModificationTimestamp())
        commits = segment.deltas()
        place = int(commits.size()) - 1 - (self.version - version)
        if place >= 0:
            status = commits.apply(place)
            if str(status.getPath().getName()).startswith(f"{version:020d}."):
                return int(status.getModificationTime())
        return self.table.committed_ms(version)

    @cached_property
    def _checksum(self) -> Any:
        return optional(self.snapshot.checksumOpt())

    def last_batches(self, app_ids: Sequence[str]) -> dict[str, int]:
        """Return the version that SetTransaction recorded for each application id that has one.

        The version checksum has them without a Spark job; if it lacks them, Delta computes the snapshot's state.
        """
        recorded = optional(self._checksum.setTransactions()) if self._checksum is not None else None
        if recorded is not None:
            known = {entry["appId"]: int(entry["version"]) for entry in to_python(self.jvm, recorded)}
            for app_id in app_ids:
                # As txnVersion does: another commit of this application is then a conflict.
                self.handle.readTxn().addOne(app_id)
            return {app_id: known[app_id] for app_id in app_ids if app_id in known}
        with self._few_tasks():
            versions = {app_id: int(self.handle.txnVersion(app_id)) for app_id in app_ids}
        return {app_id: version for app_id, version in versions.items() if version >= 0}

    @property
    def record_retention_ms(self) -> int | None:
        """Milliseconds after which the table forgets a SetTransaction; None if it never does."""
        if "delta.setTransactionRetentionDuration" not in self.properties:
            return None
        delta_log = scala_object(self.jvm, "org.apache.spark.sql.delta.DeltaLog")
        retention = optional(delta_log.minSetTransactionRetentionInterval(self.handle.metadata()))
        return None if retention is None else int(retention)

    def domain_metadata(self, domain: str) -> str | None:
        """Return the configuration of a metadata domain, or None; from the version checksum if that has it."""
        in_checksum = optional(self._checksum.domainMetadata()) if self._checksum is not None else None
        for entry in items(in_checksum if in_checksum is not None else self.snapshot.domainMetadata()):
            if entry.domain() == domain and not entry.removed():
                return str(entry.configuration())
        return None

    def all_files(self) -> list[dict[str, Any]]:
        """Return the AddFiles of the version that is read; without a Spark job if the version checksum has them."""
        found = optional(self._checksum.allFiles()) if self._checksum is not None else None
        if found is None:
            with self._few_tasks():
                found = self.snapshot.allFiles().collectAsList()
        files = to_python(self.jvm, found)
        return list(files)

    def skip_files(self, predicates: Any) -> set[str]:
        """Return the paths of the files that Delta's own data skipping keeps for a Scala Seq of predicates."""
        with self._few_tasks():
            scanned = self.snapshot.filesForScan(predicates, False).files()
        return {entry["path"] for entry in to_python(self.jvm, scanned)}

    def read_whole_table(self) -> None:
        """Make any change of the table by another writer a conflict."""
        self.handle.readWholeTable()

    def track_read(
        self, files: Sequence[dict[str, Any]], partition_values: Mapping[str, Collection[Any]] | None = None
    ) -> None:
        """Tell the transaction what was read, so that it can detect conflicts.

        Args:
            files: The AddFiles that were read.
            partition_values: The values of partition columns to which the read was limited.
        """
        jvm = self.jvm
        in_list = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.In")
        predicates = []
        for name, values in (partition_values or {}).items():
            # The conflict checker finds the column by its name, resolved or not. It first strips a backtick from either
            # end, which Spark puts there only for names with a dot.
            quoted = name if "." in name else f"`{name}`"
            column = java_class(jvm, "org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute")(seq(jvm, [quoted]))
            predicates.append(in_list(column, seq(jvm, [self._literal(value) for value in values])))
        if predicates:
            self.handle.trackReadPredicates(seq(jvm, predicates), True, True)
        else:
            true = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.Literal").TrueLiteral()
            self.handle.trackReadPredicates(seq(jvm, [true]), False, True)
        if files:
            python_utils = java_class(jvm, "org.apache.spark.api.python.PythonUtils")
            self.handle.trackFilesRead(python_utils.toSeq(actions(jvm, "AddFile", without_stats(files))))

    def _literal(self, value: Any) -> Any:
        if type(value) is date:
            # pyspark hands dates over as text, in which years before 1000 lack digits.
            literal = java_class(self.jvm, "org.apache.spark.sql.catalyst.expressions.Literal")
            date_type = java_class(self.jvm, "org.apache.spark.sql.types.DataTypes").DateType
            return literal((value - date(1970, 1, 1)).days, date_type)
        column: Any = F.lit(value)
        return java_class(self.jvm, "org.apache.spark.sql.classic.ExpressionUtils").expression(column._jc)

    def write(self, frame: DataFrame) -> Any:
        """Write the frame's rows as new files and return the handle of their FileActions.

        The columns must have the table's names and types. When it returns, the files exist and no reader can see them.
        """
        return self.handle.writeFiles(frame._jdf)

    def delete_new_files(self, new_files: Any) -> None:
        """Delete files that `write` wrote and no commit will name; files that cannot be deleted are left for VACUUM."""
        self.delete_files([action["add"]["path"] for action in file_actions(self.jvm, new_files) if "add" in action])

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete new files by their paths as in the log; those that cannot be deleted are left for VACUUM."""
        for name in paths:
            self._delete_file(name)

    def _delete_file(self, name: str) -> None:
        operations = java_class(self.jvm, "org.apache.spark.sql.delta.util.DeltaFileOperations")
        try:
            path = operations.absolutePath(self.table.root, name)
            path.getFileSystem(self.table.log.newDeltaHadoopConf()).delete(path, False)
        except JVM_ERRORS as error:
            logger.warning("%s: a file is left for VACUUM: %s", self.table.name, error)

    def overwrite(self, frame: DataFrame, *, overwrite_schema: bool) -> Any:
        """Write the frame as the table's new contents with Delta's own command, which checks and casts the schema.

        Returns:
            The handle of the FileActions: the new files, and the removal of every existing file.
        """
        jvm = self.jvm
        # The session may say that only the partitions of the new rows are replaced.
        chosen = {"partitionOverwriteMode": "static"} | ({"overwriteSchema": "true"} if overwrite_schema else {})
        options = scala_map(jvm, chosen)
        session = frame.sparkSession._jsparkSession
        none = option(jvm, None)
        arguments = [
            self.table.log,
            java_class(jvm, "org.apache.spark.sql.SaveMode").Overwrite,
            java_class(jvm, "org.apache.spark.sql.delta.DeltaOptions")(options, session.sessionState().conf()),
            seq(jvm, []),
            scala_map(jvm, self.properties),
            frame._jdf,
            option(jvm, self.table.catalog_table),
            none,
        ]
        write_into = load_class(jvm, "org.apache.spark.sql.delta.commands.WriteIntoDelta")
        # 4.3 added a trailing flag for writes that replace a table, which this is not.
        missing = write_into.getConstructors()[0].getParameterCount() - len(arguments)
        command = java_class(jvm, "org.apache.spark.sql.delta.commands.WriteIntoDelta")(
            *arguments, *([False] * missing)
        )
        return command.writeAndReturnCommitData(self.handle, session, none, False).actions()

    def commit(
        self,
        transactions: Mapping[str, int],
        changes: CommitActions,
        operation: Any,
        metrics: Any = None,
        *,
        is_empty_allowed: bool = True,
    ) -> int | None:
        """Commit everything at once.

        Args:
            transactions: Batch id by application id, as SetTransactions.
            changes: The file actions.
            operation: Handle of the DeltaOperation.
            metrics: Handle of a Scala map from name to SQLMetric, the operation metrics; None for none.
            is_empty_allowed: Whether to commit without any action.

        Returns:
            The version, or None if there was nothing to commit.
        """
        jvm = self.jvm
        self.handle.registerSQLMetrics(
            self.table.spark._jsparkSession, scala_map(jvm, {}) if metrics is None else metrics
        )
        all_actions = java_class(jvm, "java.util.ArrayList")()
        now = java_class(jvm, "java.lang.System").currentTimeMillis()
        long_option = java_class(jvm, "scala.jdk.javaapi.OptionConverters").toScala
        for app_id, batch_id in transactions.items():
            updated = long_option(java_class(jvm, "java.util.OptionalLong").of(now))
            action = java_class(jvm, "org.apache.spark.sql.delta.actions.SetTransaction")(app_id, batch_id, updated)
            all_actions.add(action)
        for domain, configuration in changes.domain_metadata.items():
            metadata = java_class(jvm, "org.apache.spark.sql.delta.actions.DomainMetadata")
            all_actions.add(metadata(domain, configuration or "", configuration is None))
        for new_files in changes.new_files:
            all_actions.addAll(java_class(jvm, "scala.jdk.javaapi.CollectionConverters").asJava(new_files))
        all_actions.addAll(actions(jvm, "AddFile", changes.adds))
        all_actions.addAll(actions(jvm, "RemoveFile", changes.removes))
        action_seq = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toSeq(all_actions)
        tags = scala_map(jvm, {})
        if self.row_tracking_columns is not None:
            tracking = scala_object(jvm, "org.apache.spark.sql.delta.RowTracking")
            tags = tracking.addPreservedRowTrackingTagIfNotSet(self.snapshot, tags)
        with self._few_tasks():
            if is_empty_allowed:
                return int(self.handle.commit(action_seq, operation, tags))
            version = optional(self.handle.commitIfNeeded(action_seq, operation, tags))
        return None if version is None else int(version)

    def find_own_commit(self, newest: int) -> int | None:
        """Return the version at which this transaction landed, looking at all commits up to `newest`.

        Delta writes the transaction's id into the commit; only this id tells a landed commit from a lost one.
        """
        own = str(self.handle.txnId())
        for version in range(self.version + 1, newest + 1):
            for action in self.table.read_commit(version):
                if "commitInfo" in action and action["commitInfo"].get("txnId") == own:
                    return version
        return None


def without_stats(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return AddFiles without their statistics, which are most of their size, for calls that ignore them."""
    return [{name: value for name, value in file.items() if name != "stats"} for file in files]


def file_actions(jvm: Any, new_files: Any) -> list[dict[str, Any]]:
    """Return FileActions that Delta made, as in the log: `{"add": ...}`, `{"cdc": ...}` or `{"remove": ...}`."""
    return [{_kind_of(action): action} for action in to_python(jvm, new_files)]


def _kind_of(action: dict[str, Any]) -> str:
    # PROTOCOL.md: modificationTime is required in add, deletionTimestamp is written in every remove, cdc has neither.
    if "modificationTime" in action:
        return "add"
    return "remove" if "deletionTimestamp" in action else "cdc"
