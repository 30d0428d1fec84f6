"""Opens, creates and alters Delta tables, and reads their logs and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from stream_merge.bridge.jvm import (
    JVM_ERRORS,
    items,
    java_class,
    lines_to_python,
    option,
    optional,
    to_python,
    translate,
)
from stream_merge.bridge.transaction import Transaction
from stream_merge.errors import TargetNotFoundError, UnsupportedTableError
from stream_merge.sql import quote

_PATH_IDENTIFIER = re.compile(r"delta\.`(?P<path>.+)`")
_SESSION_CATALOG = "spark_catalog"
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


def location(spark: SparkSession, target: str) -> str | None:
    """Return the absolute path if the target is a path (it has a slash, or is written delta.`path`), else None.

    A relative path starts from the working directory of the driver's JVM, as in Spark's readers and writers. Spark's
    SQL and Delta's table builder accept only absolute paths.
    """
    path = _path_of(target)
    if path is None or _ABSOLUTE.match(path):
        return path
    relative = java_class(spark._jvm, "org.apache.hadoop.fs.Path")(path)
    system = relative.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(system.makeQualified(relative))


def _path_of(target: str) -> str | None:
    quoted = _PATH_IDENTIFIER.fullmatch(target.strip())
    if quoted:
        return quoted["path"].replace("``", "`")
    return target if "/" in target or "\\" in target else None


def catalog_name(spark: SparkSession, target: str) -> str:
    """Return a name as Spark's session catalog takes it: without the name of that catalog.

    Raises:
        Py4JJavaError: It is no name.
        UnsupportedTableError: The table is in another catalog.
    """
    catalog, *names = items(spark._jsparkSession.sessionState().sqlParser().parseMultipartIdentifier(target))
    if len(names) < 2:
        return target
    if str(catalog).lower() != _SESSION_CATALOG:
        raise UnsupportedTableError(
            f"{target} is a table of the catalog {catalog}. Only tables of Spark's own catalog, {_SESSION_CATALOG}, "
            "can be named; give the table's path."
        )
    return quote(*map(str, names))


def sql_name(spark: SparkSession, target: str) -> str:
    """Return the target as written in SQL."""
    path = location(spark, target)
    return target if path is None else f"delta.`{path.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table: its log, and its catalog entry if it was opened by name."""

    spark: SparkSession
    log: Any
    catalog_table: Any
    name: str
    _commits: dict[int, list[dict[str, Any]]] = field(default_factory=dict, compare=False, repr=False)
    _root: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def jvm(self) -> Any:
        """The JVM."""
        return self.spark._jvm

    @property
    def root(self) -> str:
        """The table's folder as a URI."""
        if not self._root:
            self._root.append(str(self.log.dataPath().toUri().toString()))
        return self._root[0]

    def path(self, name: str = "") -> str:
        """Return the unescaped path of the table's folder, or of a file in it, as Spark expects it."""
        root = self.log.dataPath()
        return str(java_class(self.jvm, "org.apache.hadoop.fs.Path")(root, name) if name else root)

    def is_same_as(self, log: Any) -> bool:
        """Whether another log handle belongs to the same table."""
        return bool(self.log.isSameLogAs(log))

    @property
    def scheme(self) -> str:
        """The scheme of the table's path."""
        return _scheme(self.log.dataPath())

    @property
    def log_store(self) -> str:
        """The full name of the class that writes the table's commits."""
        store = self.log.store()
        if _is_instance(store, "DelegatingLogStore"):
            store = store.getDelegate(self.log.logPath())
        if _is_instance(store, "LogStoreAdaptor"):
            store = store.logStoreImpl()
        return str(store.getClass().getName())

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
            metadata=to_python(jvm, transaction.metadata().wrap())["metaData"],
            protocol=to_python(jvm, transaction.protocol().wrap())["protocol"],
        )

    def _delta_table(self) -> Any:
        from delta.tables import DeltaTable

        path = location(self.spark, self.name)
        return DeltaTable.forName(self.spark, self.name) if path is None else DeltaTable.forPath(self.spark, path)

    def history(self) -> DataFrame:
        """Return DESCRIBE HISTORY."""
        frame: DataFrame = self._delta_table().history()
        return frame

    def delete_rows(self, condition: Column) -> None:
        """Delete the rows for which a condition holds, in a separate commit."""
        try:
            self._delta_table().delete(condition)
        except JVM_ERRORS as error:
            raise translate(error) from error

    def enable_feature(self, feature: str) -> None:
        """Add a table feature to the protocol in a separate commit, unless the table has it."""
        try:
            self._delta_table().addFeatureSupport(feature)
        except JVM_ERRORS as error:
            raise translate(error) from error

    def add_columns(self, types: Mapping[str, str]) -> None:
        """Add columns to the schema in a separate commit."""
        columns = ", ".join(f"`{name}` {sql_type}" for name, sql_type in types.items())
        self._alter(f"ADD COLUMNS ({columns})")

    def widen_column(self, path: str, sql_type: str) -> None:
        """Widen the type of a column, or of a part of one, in a separate commit; `path` is written as in SQL."""
        self._alter(f"CHANGE COLUMN {path} TYPE {sql_type}")

    def drop_not_null(self, column: str) -> None:
        """Let a column be NULL, in a separate commit; its name is written as in SQL."""
        self._alter(f"ALTER COLUMN {column} DROP NOT NULL")

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties in a separate commit."""
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._alter(f"SET TBLPROPERTIES ({pairs})")

    def _alter(self, change: str) -> None:
        try:
            self.spark.sql(f"ALTER TABLE {sql_name(self.spark, self.name)} {change}")
        except JVM_ERRORS as error:
            raise translate(error) from error

    def read_commit(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit in the log's folder; cached, since several parts of a merge read it.

        Raises:
            FileNotFoundError: The commit file does not exist (any more).
        """
        if version in self._commits:
            return self._commits[version]
        try:
            lines = lines_to_python(
                self.jvm, self.log.store().read(self._commit_file(version), self.log.newDeltaHadoopConf())
            )
        except JVM_ERRORS as error:
            raise FileNotFoundError(f"{self.name}: commit {version}") from error
        self._commits[version] = [json.loads(line) for line in lines if line.strip()]
        return self._commits[version]

    def _commit_file(self, version: int) -> Any:
        file_names = java_class(self.jvm, "org.apache.spark.sql.delta.util.FileNames")
        return file_names.unsafeDeltaFile(self.log.logPath(), version)

    def committed_ms(self, version: int) -> int | None:
        """Return when a commit file in the log's folder was written, in milliseconds since the epoch; None if gone."""
        path = self._commit_file(version)
        system = path.getFileSystem(self.log.newDeltaHadoopConf())
        return int(system.getFileStatus(path).getModificationTime()) if system.exists(path) else None

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file in the table's folder. An absolute `path` is URI-encoded, as in the log."""
        jvm = self.jvm
        is_uri = path.startswith("/") or ":/" in path
        file = java_class(jvm, "org.apache.hadoop.fs.Path")(java_class(jvm, "java.net.URI")(path) if is_uri else path)
        if not file.isAbsolute():
            file = java_class(jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        stream = file.getFileSystem(self.log.newDeltaHadoopConf()).open(file)
        try:
            stream.seek(offset)
            return bytes(java_class(jvm, "org.apache.commons.io.IOUtils").toByteArray(stream, length))
        finally:
            stream.close()

    def _located(self, path: str) -> tuple[Any, Any]:
        """Return the handles of a file or folder in the table's folder, and of its file system."""
        file = java_class(self.jvm, "org.apache.hadoop.fs.Path")(self.log.dataPath(), path)
        return file, file.getFileSystem(self.log.newDeltaHadoopConf())

    def _local(self, path: str) -> Any:
        """Return the handle of a file on the driver's disk."""
        uri = java_class(self.jvm, "java.net.URI")(Path(path).as_uri())
        return java_class(self.jvm, "org.apache.hadoop.fs.Path")(uri)

    def list_folder(self, path: str) -> list[str]:
        """Return the names of the entries of a folder of the table."""
        folder, system = self._located(path)
        if not system.exists(folder):
            return []
        return [str(status.getPath().getName()) for status in system.listStatus(folder)]

    def modified_ms(self, path: str) -> int:
        """Return when the newest file in a folder of the table was modified, in milliseconds since the epoch.

        In object stores only files have a modification time: folders have none, or the time of the call. For a folder
        without files it is the folder's own.
        """
        folder, system = self._located(path)
        times = [int(status.getModificationTime()) for status in _files_below(system, folder)]
        return max(times) if times else int(system.getFileStatus(folder).getModificationTime())

    def exists(self, path: str) -> bool:
        """Whether a file or folder with this path exists in the table's folder."""
        file, system = self._located(path)
        return bool(system.exists(file))

    def has_content(self, path: str) -> bool:
        """Whether a file, or a file in a folder, is there and not empty; what Spark does not read does not count."""
        folder, system = self._located(path)
        if not system.exists(folder):
            return False
        return any(
            int(status.getLen()) and not str(status.getPath().getName()).startswith(("_", "."))
            for status in _files_below(system, folder)
        )

    def delete(self, path: str) -> None:
        """Delete a file or a folder in the table's folder."""
        file, system = self._located(path)
        system.delete(file, True)

    def write_file(self, path: str, content: bytes) -> None:
        """Write a new file in the table's folder. When it returns, the file exists and no reader sees it."""
        file, system = self._located(path)
        stream = system.create(file, False)
        try:
            stream.write(content)
        finally:
            stream.close()

    def upload(self, local: str, path: str) -> None:
        """Copy a file of the driver's disk to a new file in the table's folder."""
        file, system = self._located(path)
        system.copyFromLocalFile(False, True, self._local(local), file)

    def download(self, path: str, local: str) -> None:
        """Copy a file in the table's folder to a new file on the driver's disk."""
        file, system = self._located(path)
        # Without a file of checksums beside it.
        system.copyToLocalFile(False, file, self._local(local), True)


def _files_below(system: Any, place: Any) -> Iterator[Any]:
    """Yield the status of a file, or of each file in a folder, however deep; no block is looked up for it."""
    for status in system.listStatus(place):
        if status.isDirectory():
            yield from _files_below(system, status.getPath())
        else:
            yield status


def local_folder(spark: SparkSession) -> str:
    """Return Spark's folder for temporary files on the driver's disk, which goes with the application."""
    utils = java_class(spark._jvm, "org.apache.spark.util.Utils")
    return str(utils.getLocalDir(spark._jsc.sc().conf()))


def _is_instance(handle: Any, name: str) -> bool:
    return str(handle.getClass().getSimpleName()) == name


def _scheme(path: Any) -> str:
    return str(path.toUri().getScheme() or "file").lower()


def future_table(spark: SparkSession, target: str) -> Table | None:
    """Return the table that a missing target would become; None if no table can be created under this name."""
    path = table_root(spark, target) if _path_of(target) is None else location(spark, target)
    if path is None or not _ABSOLUTE.match(path):
        return None
    delta_log = java_class(spark._jvm, "org.apache.spark.sql.delta.DeltaLog")
    return Table(spark=spark, log=delta_log.forTable(spark._jsparkSession, path), catalog_table=None, name=target)


def present_or_future_table(spark: SparkSession, target: str) -> Table | None:
    """Return the target's table, or the one that it would become; None if no table can be created."""
    return open_table(spark, target) if table_exists(spark, target) else future_table(spark, target)


def open_table(spark: SparkSession, target: str) -> Table:
    """Find a Delta table by path or catalog name.

    Raises:
        TargetNotFoundError: There is no such table, or the folder has no Delta table.
        UnsupportedTableError: The name is that of a view, of a table of another format, or of one in another catalog.
    """
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    path = location(spark, target)
    delta_log = java_class(jvm, "org.apache.spark.sql.delta.DeltaLog")
    if path is not None:
        return Table(spark=spark, log=delta_log.forTable(session, path), catalog_table=None, name=target)
    state = session.sessionState()
    try:
        identifier = state.sqlParser().parseTableIdentifier(catalog_name(spark, target))
        catalog_table = None if state.catalog().isTempView(identifier) else state.catalog().getTableMetadata(identifier)
    except JVM_ERRORS as error:
        raise TargetNotFoundError(
            f"There is no table {target}. Create it first, or set create_if_missing=True."
        ) from error
    provider = None if catalog_table is None else optional(catalog_table.provider())
    if provider is None or provider.lower() != "delta":
        raise UnsupportedTableError(
            f"{target} is not a Delta table but {provider or 'a view'}. Name a Delta table as the target."
        )
    return Table(spark=spark, log=delta_log.forTable(session, catalog_table), catalog_table=catalog_table, name=target)


def table_root(spark: SparkSession, target: str) -> str:
    """Return the URI of the folder of the target's table, or of the table that it would become.

    All spellings of a table have the same root.
    """
    if _path_of(target) is None:
        state = spark._jsparkSession.sessionState()
        try:
            identifier = state.sqlParser().parseTableIdentifier(catalog_name(spark, target))
            if not state.catalog().tableExists(identifier):
                return str(state.catalog().defaultTablePath(identifier).toString())
        except UnsupportedTableError:
            return target
        except JVM_ERRORS:
            return target
    try:
        return open_table(spark, target).root
    except (TargetNotFoundError, UnsupportedTableError):
        return target


def table_exists(spark: SparkSession, target: str) -> bool:
    """Whether the target is a Delta table."""
    try:
        open_table(spark, target).begin()
    except TargetNotFoundError:
        return False
    return True
