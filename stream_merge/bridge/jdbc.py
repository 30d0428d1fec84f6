"""Asks a database through JDBC, on the driver, for what Spark's JDBC source does not tell of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import JVM_ERRORS, java_class, scala_map, throwables

_ANY_PARTITION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcColumn:
    """A column as the database describes it.

    Attributes:
        name: Its name, exactly.
        type_name: The database's own name of its type.
        jdbc_type: The number of its type in java.sql.Types.
    """

    name: str
    type_name: str
    jdbc_type: int


class DatabaseError(Exception):
    """The database refused a question, or could not be reached; the text is its own, in one line."""


@dataclass(frozen=True, slots=True)
class JdbcSession:
    """An open connection of the driver; `connected` opens and closes it."""

    connection: Any

    @property
    def quote(self) -> str:
        """The character that quotes names, as the database says."""
        with _told():
            return str(self.connection.getMetaData().getIdentifierQuoteString()).strip() or '"'

    @property
    def product(self) -> str:
        """The name of the database's product, in lower case."""
        with _told():
            return str(self.connection.getMetaData().getDatabaseProductName()).lower()

    def columns(self, table: str) -> list[JdbcColumn]:
        """Return the columns of a table in their order.

        Args:
            table: The table as SQL.

        Raises:
            DatabaseError: There is no such table, or the user may not read it.
        """
        with _told(), _closing(self.connection.createStatement()) as statement:
            described = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0").getMetaData()  # noqa: S608 - quoted
            return [
                JdbcColumn(
                    name=str(described.getColumnLabel(number)),
                    type_name=str(described.getColumnTypeName(number)),
                    jdbc_type=int(described.getColumnType(number)),
                )
                for number in range(1, described.getColumnCount() + 1)
            ]

    def primary_key(self, schema: str | None, table: str) -> tuple[str, ...]:
        """Return the columns of a table's primary key in their order; none if it has none, or the driver cannot tell.

        Args:
            schema: The name of its schema, exactly; None for that of the connection.
            table: Its name, exactly.
        """
        with _told():
            metadata, catalog = self.connection.getMetaData(), self.connection.getCatalog()
            if metadata.supportsSchemasInDataManipulation():
                found = metadata.getPrimaryKeys(catalog, schema or self.connection.getSchema(), table)
            else:
                # MySQL's drivers call its databases catalogs.
                found = metadata.getPrimaryKeys(schema or catalog, None, table)
            columns: dict[int, str] = {}
            while found.next():
                columns[int(found.getShort("KEY_SEQ"))] = str(found.getString("COLUMN_NAME"))
            return tuple(columns[position] for position in sorted(columns))

    def texts(self, query: str) -> list[str]:
        """Return the first column of a query that has few rows, as text.

        Raises:
            DatabaseError: The database refuses the query.
        """
        return [first for (first,) in self.rows(query, 1)]

    def rows(self, query: str, num_columns: int) -> list[tuple[str, ...]]:
        """Return the first columns of a query that has few rows, as text.

        Raises:
            DatabaseError: The database refuses the query.
        """
        with _told(), _closing(self.connection.createStatement()) as statement:
            rows = statement.executeQuery(query)
            found: list[tuple[str, ...]] = []
            while rows.next():
                found.append(tuple(str(rows.getString(place)) for place in range(1, num_columns + 1)))
            return found


@contextmanager
def connected(spark: SparkSession, options: Mapping[str, str]) -> Iterator[JdbcSession]:
    """Connect to a database for the block, in the way of Spark's JDBC source and with its options.

    Args:
        spark: The session, whose packages bring the driver.
        options: Those of the JDBC source: `url`, and as needed `user`, `password` and `driver`.

    Raises:
        DatabaseError: There is no driver, no connection, or the login is refused.
    """
    jvm: Any = spark._jvm
    package = "org.apache.spark.sql"
    with _told():
        # The source wants a table; nothing is read of it.
        given = java_class(jvm, f"{package}.execution.datasources.jdbc.JDBCOptions")(
            scala_map(jvm, {**options, "dbtable": "unused"})
        )
        dialect = java_class(jvm, f"{package}.jdbc.JdbcDialects").get(options["url"])
        connection = dialect.createConnectionFactory(given).apply(_ANY_PARTITION)
    with _closing(connection):
        yield JdbcSession(connection)


def database_message(error: BaseException) -> str | None:
    """Return what a database has said that made a job of Spark fail; None if none of its errors is behind it."""
    return next((_message(each) for each in throwables(error) if _is_sql_exception(each)), None)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except JVM_ERRORS as error:
        behind = list(throwables(error))
        said = next((each for each in behind if _is_sql_exception(each)), behind[-1] if behind else None)
        raise DatabaseError(str(error) if said is None else _message(said)) from error


@contextmanager
def _closing(resource: Any) -> Iterator[Any]:
    try:
        yield resource
    finally:
        resource.close()


def _is_sql_exception(throwable: Any) -> bool:
    kind = throwable.getClass()
    while kind is not None:
        if kind.getName() == "java.sql.SQLException":
            return True
        kind = kind.getSuperclass()
    return False


def _message(throwable: Any) -> str:
    return " ".join(str(throwable.getMessage() or throwable.getClass().getName()).split())
