"""Reads a table of a database through Spark's JDBC source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stream_merge.bridge.jdbc import DatabaseError, JdbcSession, connected
from stream_merge.cli.compare import mysql
from stream_merge.cli.compare.kinds import POSTGRES_SESSION, KeyKind, SourceColumn, quoted, source_column
from stream_merge.cli.compare.ranges import literal_of
from stream_merge.cli.errors import ExitCode, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.13"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.4.0"),
    "mariadb": ("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.6"),
}
"""Class and package of the driver by the first part of the address. Others must be given, or be there."""

_ADDRESS = re.compile(r"jdbc:(?P<kind>[a-z0-9]+):\S+")
_PASSWORD = re.compile(
    r"[?&;][^=&;]*(?:password|pwd|secret|token)[^=&;]*=|//[^/@]*:[^/@]+@|:[^/:@]+/[^/:@]+@", re.IGNORECASE
)
_NAME_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

_FETCHED_ROWS = 1000
"""Rows that a task has of the database at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a database is reached.

    Attributes:
        url: Its JDBC address, without a password.
        user: The user.
        password: The password.
        driver: The driver's class; that of the address by default.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    driver: str | None = None

    def check(self) -> None:
        """Refuse an address that is none, or that shows a password.

        Raises:
            PipelineError: It is so.
        """
        if _ADDRESS.fullmatch(self.url) is None:
            raise PipelineError(
                "--jdbc is the database's address for Java, such as jdbc:postgresql://localhost:5432/shop.",
                ExitCode.USAGE,
            )
        if _PASSWORD.search(self.url):
            raise PipelineError(
                "--jdbc has a password, which every user of this machine can see among the arguments of a process: "
                "give --user, and put the password into the environment (--password-env).",
                ExitCode.USAGE,
            )

    @property
    def packages(self) -> list[str]:
        """The Maven coordinates of the driver; none if it is not known."""
        known = _DRIVERS.get(self._kind)
        return [] if known is None or self.driver is not None else [known[1]]

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's JDBC source."""
        known = _DRIVERS.get(self._kind)
        driver = self.driver or (known[0] if known is not None else None)
        given = {"url": self.url, "user": self.user, "password": self.password, "driver": driver}
        if self._kind == "mysql":
            # Without a cursor its driver holds all rows of a query in memory.
            given["useCursorFetch"] = "true"
        return {name: value for name, value in given.items() if value is not None}

    @property
    def _kind(self) -> str:
        match = _ADDRESS.fullmatch(self.url)
        return "" if match is None else match["kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The name of a table, exactly as the database has it.

    Attributes:
        schema: Its schema (MySQL: its database); None for that of the connection.
        name: Its own name.
    """

    schema: str | None
    name: str

    @staticmethod
    def parse(text: str) -> TableName:
        """Return the name that a user has written: `schema.name`, with double quotes around parts that have dots.

        Raises:
            PipelineError: It is no name.
        """
        parts: list[str] = []
        at = 0
        while (match := _NAME_PART.match(text, at)) is not None:
            parts.append(match[2] if match[1] is None else match[1].replace('""', '"'))
            at = match.end() + 1
            if match.end() == len(text) or text[match.end()] != ".":
                break
        if at != len(text) + 1 or len(parts) > 2:
            raise PipelineError(
                f"{text} is not the name of a table: write schema.name, with double quotes around a part that has dots "
                "or quotes.",
                ExitCode.USAGE,
            )
        return TableName(schema=parts[0] if len(parts) == 2 else None, name=parts[-1])

    def sql(self, quote: str) -> str:
        """Return it as the database's SQL."""
        parts = [self.name] if self.schema is None else [self.schema, self.name]
        return ".".join(quoted(part, quote) for part in parts)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTable:
    """A table of a database.

    Attributes:
        access: How the database is reached.
        name: Its name.
        quote: The character that quotes names.
        session: A statement that sets up each session; None if there is none.
        columns: Its columns.
        primary_key: The columns of its primary key; none if it has none, or the driver cannot tell.
    """

    access: Access
    name: TableName
    quote: str
    session: str | None = None
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]

    def read(self, spark: SparkSession, columns: Sequence[SourceColumn], conditions: Sequence[str]) -> DataFrame:
        """Return the values of some columns, `c0` and so on, of the rows that meet one of some conditions.

        Args:
            spark: The session.
            columns: The columns.
            conditions: Conditions over `key_column`; no row meets two. Each is a query of its own.
        """
        selected = [f"{column.sql} AS {quoted(f'c{number}', self.quote)}" for number, column in enumerate(columns)]
        selected += [
            f"{quoted(column.name, self.quote)} AS {self.key_column(number)}"
            for number, column in enumerate(columns)
            if column.key_kind is not None
        ]
        # The aliases keep Spark from having to quote names.
        query = f"(SELECT {', '.join(selected)} FROM {self.name.sql(self.quote)}) t"  # noqa: S608 - all is quoted
        properties = {
            **self.access.options,
            "fetchsize": str(_FETCHED_ROWS),
            "preferTimestampNTZ": "true",
            # The database would compare text in its own way.
            "pushDownPredicate": "false",
        }
        del properties["url"]
        if self.session is not None:
            properties["sessionInitStatement"] = self.session
        frame = spark.read.jdbc(self.access.url, query, predicates=list(conditions), properties=properties)
        return frame.select(*[f"c{number}" for number in range(len(columns))])

    def key_column(self, number: int) -> str:
        """Return the database's SQL for the column of this number in the conditions of `read`."""
        return quoted(f"k{number}", self.quote)

    def in_order(self, spark: SparkSession, column: SourceColumn, keys: Sequence[str]) -> list[str]:
        """Return those of some keys of text that the table has, in the database's own order.

        Raises:
            PipelineError: The database does not answer.
        """
        literals = [literal for key in keys if (literal := literal_of(key, KeyKind.TEXT)) is not None]
        if not literals:
            return []
        name = quoted(column.name, self.quote)
        query = (
            f"SELECT {name} FROM {self.name.sql(self.quote)} "  # noqa: S608 - names are quoted, values harmless
            f"WHERE {name} IN ({', '.join(literals)}) ORDER BY {name}"
        )
        try:
            with connected(spark, self.access.options) as session:
                return session.texts(query)
        except DatabaseError as error:
            raise refused(self.access, str(error)) from error


def find_table(spark: SparkSession, access: Access, name: TableName) -> DatabaseTable:
    """Ask a database for one of its tables.

    Raises:
        PipelineError: It cannot be reached, refuses the login, or has no such table.
    """
    try:
        with connected(spark, access.options) as session:
            quote, product = session.quote, session.product
            try:
                columns = _columns_of(session, name.sql(quote), quote, product)
            except DatabaseError as error:
                raise PipelineError(
                    f"The database's table {name} cannot be read: {_ended(str(error))} Names are taken exactly, in "
                    "upper and lower case.",
                    ExitCode.CANNOT_START,
                ) from error
            return DatabaseTable(
                access=access,
                name=name,
                quote=quote,
                session={"postgresql": POSTGRES_SESSION, **dict.fromkeys(mysql.PRODUCTS, mysql.SESSION)}.get(product),
                columns=columns,
                primary_key=session.primary_key(name.schema, name.name),
            )
    except DatabaseError as error:
        raise refused(access, str(error)) from error


def _columns_of(session: JdbcSession, table: str, quote: str, product: str) -> tuple[SourceColumn, ...]:
    """Return how the columns of a table are read.

    Raises:
        DatabaseError: There is no such table, or the user may not read it.
    """
    if product not in mysql.PRODUCTS:
        return tuple(source_column(column, quote, product) for column in session.columns(table))
    found = session.rows(f"SHOW COLUMNS FROM {table}", 3)
    declared = [mysql.DeclaredColumn(name=name, declared=kind, is_nullable=null == "YES") for name, kind, null in found]
    return tuple(mysql.source_column(column, quote) for column in declared)


def refused(access: Access, message: str) -> PipelineError:
    """Return the error for what a database has said."""
    if (
        "ClassNotFoundException" in message
        or "No suitable driver" in message
        or message == access.options.get("driver")
    ):
        return PipelineError(
            f"There is no driver for {access.url}: name its package (--driver-package) and its class (--driver).",
            ExitCode.CANNOT_START,
        )
    return PipelineError(f"The database at {access.url} does not answer: {_ended(message)}", ExitCode.CANNOT_START)


def _ended(message: str) -> str:
    return message if message.endswith((".", "!", "?")) else f"{message}."
