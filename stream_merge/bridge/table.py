"""Delta's log and its optimistic transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stream_merge.bridge.jvm import (
    JVM_ERRORS,
    actions,
    items,
    java_class,
    load_class,
    option,
    optional,
    scala_object,
    seq,
    to_python,
    translate,
)
from stream_merge.errors import TargetNotFoundError

_PATH_IDENTIFIER = re.compile(r"delta\.`(?P<path>.+)`")


def path_of(target: str) -> str | None:
    """Return the path when the target is one (it has a slash, or is written delta.`path`), else None."""
    quoted = _PATH_IDENTIFIER.fullmatch(target.strip())
    if quoted:
        return quoted["path"].replace("``", "`")
    return target if "/" in target or "\\" in target else None


def sql_name(target: str) -> str:
    """Return the target as it is written in SQL."""
    path = path_of(target)
    return target if path is None else f"delta.`{path.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table: its log, and its catalog entry when it was named."""

    spark: SparkSession
    log: Any
    catalog_table: Any
    name: str
    _commits: dict[int, list[dict[str, Any]]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def jvm(self) -> Any:
        """The JVM."""
        return self.spark._jvm

    @property
    def root(self) -> str:
        """The table's folder as a URI."""
        return str(self.log.dataPath().toUri().toString())

    def is_same_as(self, log: Any) -> bool:
        """Whether another log handle belongs to the same table."""
        return bool(self.log.isSameLogAs(log))

    def begin(self) -> Transaction:
        """Open a transaction on the newest version.

        Raises:
            TargetNotFoundError: There is no table.
        """
        jvm = self.jvm
        transaction = self.log.startTransaction(option(jvm, self.catalog_table), option(jvm, None))
        version = transaction.readVersion()
        if version < 0:
            raise TargetNotFoundError(
                f"{self.name} is not a Delta table. Create it first, or set create_if_missing=True."
            )
        return Transaction(
            table=self,
            handle=transaction,
            version=version,
            metadata=json.loads(transaction.metadata().json())["metaData"],
            protocol=json.loads(transaction.protocol().json())["protocol"],
        )

    def enable_feature(self, feature: str) -> None:
        """Add a table feature to the protocol, in a commit of its own; nothing happens where it is there."""
        from delta.tables import DeltaTable

        path = path_of(self.name)
        spark = self.spark
        table = DeltaTable.forName(spark, self.name) if path is None else DeltaTable.forPath(spark, path)
        try:
            table.addFeatureSupport(feature)
        except JVM_ERRORS as error:
            raise translate(error) from error

    def add_column(self, name: str, sql_type: str) -> None:
        """Add a column to the schema, in a commit of its own."""
        try:
            self.spark.sql(f"ALTER TABLE {sql_name(self.name)} ADD COLUMNS (`{name}` {sql_type})")
        except JVM_ERRORS as error:
            raise translate(error) from error

    def read_commit(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit that lies in the log's folder; read once, since several parts of a merge look at it.

        Raises:
            FileNotFoundError: The commit file is not there (any more).
        """
        if version in self._commits:
            return self._commits[version]
        file_names = java_class(self.jvm, "org.apache.spark.sql.delta.util.FileNames")
        path = file_names.unsafeDeltaFile(self.log.logPath(), version)
        try:
            lines = self.log.store().read(path, self.log.newDeltaHadoopConf()).mkString("\n")
        except JVM_ERRORS as error:
            raise FileNotFoundError(f"{self.name}: commit {version}") from error
        self._commits[version] = [json.loads(line) for line in lines.splitlines() if line.strip()]
        return self._commits[version]

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file below the table's folder (`path` may be absolute)."""
        jvm = self.jvm
        file = java_class(jvm, "org.apache.hadoop.fs.Path")(path)
        if not file.isAbsolute():
            file = java_class(jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        stream = file.getFileSystem(self.log.newDeltaHadoopConf()).open(file)
        try:
            stream.seek(offset)
            return bytes(java_class(jvm, "org.apache.commons.io.IOUtils").toByteArray(stream, length))
        finally:
            stream.close()

    def list_folders(self, path: str) -> dict[str, int]:
        """Return name and time of modification (milliseconds since the epoch) of what lies in a folder of the table."""
        folder = java_class(self.jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        system = folder.getFileSystem(self.log.newDeltaHadoopConf())
        if not system.exists(folder):
            return {}
        return {
            str(status.getPath().getName()): int(status.getModificationTime()) for status in system.listStatus(folder)
        }

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this path below the table's folder."""
        file = java_class(self.jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        return bool(file.getFileSystem(self.log.newDeltaHadoopConf()).exists(file))

    def delete(self, path: str) -> None:
        """Delete a file or a folder below the table's folder."""
        file = java_class(self.jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        file.getFileSystem(self.log.newDeltaHadoopConf()).delete(file, True)

    def write_file(self, path: str, content: bytes) -> None:
        """Write a new file below the table's folder. After this returns the file exists and no reader looks at it."""
        file = java_class(self.jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        stream = file.getFileSystem(self.log.newDeltaHadoopConf()).create(file, False)
        try:
            stream.write(content)
        finally:
            stream.close()


@dataclass(slots=True)
class CommitActions:
    """What a merge puts into the commit beside its SetTransactions.

    Attributes:
        new_files: Scala Seqs of FileActions as `writeFiles` returned them, change files included.
        adds: AddFiles as the log writes them, for files that get another deletion vector.
        removes: RemoveFiles as the log writes them.
        domain_metadata: Configuration by name of the domain, None to remove it; the table must have the feature.
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

    @property
    def partition_columns(self) -> list[str]:
        """Names of the partition columns."""
        return list(self.metadata.get("partitionColumns") or [])

    @property
    def row_tracking_columns(self) -> tuple[str, str] | None:
        """Names under which files keep row id and row commit version of rows that moved; None without row tracking."""
        properties = self.properties
        if properties.get("delta.enableRowTracking", "false").lower() != "true":
            return None
        prefix = "delta.rowTracking.materializedRow"
        return properties[f"{prefix}IdColumnName"], properties[f"{prefix}CommitVersionColumnName"]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The table's schema as the log writes it."""
        return dict(json.loads(self.metadata["schemaString"]))

    @cached_property
    def snapshot(self) -> Any:
        """Handle of the snapshot that is read."""
        return self.handle.snapshot()

    @cached_property
    def _checksum(self) -> Any:
        return optional(self.snapshot.checksumOpt())

    def last_batches(self, app_ids: Sequence[str]) -> dict[str, int]:
        """Return the version that SetTransaction recorded for each application id, where there is one.

        The version checksum has them without a Spark job; where it has not, Delta computes the snapshot's state.
        """
        recorded = optional(self._checksum.setTransactions()) if self._checksum is not None else None
        if recorded is not None:
            known = {entry["appId"]: int(entry["version"]) for entry in to_python(self.jvm, recorded)}
            for app_id in app_ids:
                # What txnVersion would register: another commit of this application is then a conflict.
                self.handle.readTxn().addOne(app_id)
            return {app_id: known[app_id] for app_id in app_ids if app_id in known}
        versions = {app_id: int(self.handle.txnVersion(app_id)) for app_id in app_ids}
        return {app_id: version for app_id, version in versions.items() if version >= 0}

    def domain_metadata(self, domain: str) -> str | None:
        """Return the configuration of a metadata domain, or None; from the version checksum where that has it."""
        in_checksum = optional(self._checksum.domainMetadata()) if self._checksum is not None else None
        for entry in items(in_checksum if in_checksum is not None else self.snapshot.domainMetadata()):
            if entry.domain() == domain and not entry.removed():
                return str(entry.configuration())
        return None

    def all_files(self) -> list[dict[str, Any]]:
        """Return the AddFiles of the version that is read; without a Spark job where the version checksum has them."""
        in_checksum = optional(self._checksum.allFiles()) if self._checksum is not None else None
        found = in_checksum if in_checksum is not None else self.snapshot.allFiles().collectAsList()
        files = to_python(self.jvm, found)
        return list(files)

    def skip_files(self, predicates: Any) -> set[str]:
        """Return the paths of the files that Delta's own data skipping leaves for a Scala Seq of predicates."""
        scanned = self.snapshot.filesForScan(predicates, False).files()
        return {entry["path"] for entry in to_python(self.jvm, scanned)}

    def read_whole_table(self) -> None:
        """Make any change of the table by another writer a conflict."""
        self.handle.readWholeTable()

    def track_read(
        self, files: Sequence[dict[str, Any]], partition_values: Mapping[str, Collection[Any]] | None = None
    ) -> None:
        """Tell the transaction what was read, so that it knows a conflict when it sees one.

        Args:
            files: The AddFiles that were read.
            partition_values: The values of partition columns that the read was limited to.
        """
        jvm = self.jvm
        in_list = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.In")
        predicates = []
        for name, values in (partition_values or {}).items():
            # The conflict checker finds the column by its name; resolved or not makes no difference to it.
            column = java_class(jvm, "org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute")(seq(jvm, [name]))
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
        column: Any = F.lit(value)
        return java_class(self.jvm, "org.apache.spark.sql.classic.ExpressionUtils").expression(column._jc)

    def write(self, frame: DataFrame) -> Any:
        """Write the frame's rows as new files and return the handle of their FileActions.

        The columns must have the table's names and types. After this returns the files exist and no reader can see them.
        """
        return self.handle.writeFiles(frame._jdf)

    def overwrite(self, frame: DataFrame, *, overwrite_schema: bool) -> Any:
        """Write the frame as the new contents of the table through Delta's own command, which checks and casts the schema.

        Returns:
            The handle of the FileActions: the new files, and the removal of every file there was.
        """
        jvm = self.jvm
        options = java_class(jvm, "java.util.HashMap")()
        if overwrite_schema:
            options.put("overwriteSchema", "true")
        to_map = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap
        session = frame.sparkSession._jsparkSession
        none = option(jvm, None)
        arguments = [
            self.table.log,
            java_class(jvm, "org.apache.spark.sql.SaveMode").Overwrite,
            java_class(jvm, "org.apache.spark.sql.delta.DeltaOptions")(to_map(options), session.sessionState().conf()),
            seq(jvm, []),
            to_map(self._java_map(self.properties)),
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
        metrics: Mapping[str, Any],
        *,
        is_empty_allowed: bool = True,
    ) -> int | None:
        """Commit everything at once.

        Args:
            transactions: Application id to batch id, as SetTransactions.
            changes: The file actions.
            operation: Handle of the DeltaOperation.
            metrics: Operation metrics by name, as SQLMetric handles.
            is_empty_allowed: Whether a commit without any action is made.

        Returns:
            The version, or None when there was nothing to commit.
        """
        jvm = self.jvm
        to_map = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap
        self.handle.registerSQLMetrics(self.table.spark._jsparkSession, to_map(self._java_map(metrics)))
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
        tags = to_map(java_class(jvm, "java.util.HashMap")())
        if self.row_tracking_columns is not None:
            tracking = scala_object(jvm, "org.apache.spark.sql.delta.RowTracking")
            tags = tracking.addPreservedRowTrackingTagIfNotSet(self.snapshot, tags)
        if is_empty_allowed:
            return int(self.handle.commit(action_seq, operation, tags))
        version = optional(self.handle.commitIfNeeded(action_seq, operation, tags))
        return None if version is None else int(version)

    def find_own_commit(self, newest: int) -> int | None:
        """Return the version at which this transaction landed, looking at all commits up to `newest`.

        Delta writes the transaction's id into the commit, which is the only thing that tells a landed commit from a lost one.
        """
        own = str(self.handle.txnId())
        for version in range(self.version + 1, newest + 1):
            for action in self.table.read_commit(version):
                if "commitInfo" in action and action["commitInfo"].get("txnId") == own:
                    return version
        return None

    def _java_map(self, values: Mapping[str, Any]) -> Any:
        java_map = java_class(self.jvm, "java.util.HashMap")()
        for name, value in values.items():
            java_map.put(name, value)
        return java_map


def open_table(spark: SparkSession, target: str) -> Table:
    """Find a Delta table by path or catalog name.

    Raises:
        TargetNotFoundError: There is no such table, or it is not a Delta table.
    """
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    path = path_of(target)
    delta_log = java_class(jvm, "org.apache.spark.sql.delta.DeltaLog")
    if path is not None:
        return Table(spark=spark, log=delta_log.forTable(session, path), catalog_table=None, name=target)
    state = session.sessionState()
    try:
        catalog_table = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(target))
        provider = optional(catalog_table.provider())
    except JVM_ERRORS as error:
        raise TargetNotFoundError(
            f"There is no table {target}. Create it first, or set create_if_missing=True."
        ) from error
    if provider is None or provider.lower() != "delta":
        raise TargetNotFoundError(f"{target} is not a Delta table, but {provider or 'a view'}.")
    return Table(spark=spark, log=delta_log.forTable(session, catalog_table), catalog_table=catalog_table, name=target)


def table_root(spark: SparkSession, target: str) -> str:
    """Return the URI of the folder where the target's table lies, or will lie once it is created.

    Two spellings of one table have one root.
    """
    if path_of(target) is None:
        state = spark._jsparkSession.sessionState()
        try:
            identifier = state.sqlParser().parseTableIdentifier(target)
            if not state.catalog().tableExists(identifier):
                return str(state.catalog().defaultTablePath(identifier).toString())
        except JVM_ERRORS:
            return target
    try:
        return open_table(spark, target).root
    except TargetNotFoundError:
        return target


def create_table(
    spark: SparkSession,
    target: str,
    like: DataFrame,
    *,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    """Create the target with the columns of a frame, unless another writer has just done so."""
    from delta.tables import DeltaTable

    builder = DeltaTable.createIfNotExists(spark).addColumns(like.schema)
    path = path_of(target)
    builder = builder.tableName(target) if path is None else builder.location(path)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    for name, value in properties.items():
        builder = builder.property(name, value)
    try:
        builder.execute()
    except JVM_ERRORS as error:
        raise translate(error) from error


def table_exists(spark: SparkSession, target: str) -> bool:
    """Whether the target is a Delta table already."""
    try:
        open_table(spark, target).begin()
    except TargetNotFoundError:
        return False
    return True


def without_stats(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return AddFiles without their statistics, the bulk of them, for calls that do not look at these."""
    return [{name: value for name, value in file.items() if name != "stats"} for file in files]


def file_actions(jvm: Any, new_files: Any) -> list[dict[str, Any]]:
    """Return FileActions that Delta made as the log writes them: `{"add": ...}`, `{"cdc": ...}` or `{"remove": ...}`."""
    return [{_kind_of(action): action} for action in to_python(jvm, new_files)]


def _kind_of(action: dict[str, Any]) -> str:
    # PROTOCOL.md: modificationTime is required in add, deletionTimestamp is written in every remove, cdc has neither.
    if "modificationTime" in action:
        return "add"
    return "remove" if "deletionTimestamp" in action else "cdc"
