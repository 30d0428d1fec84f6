"""Implements `stream-merge diff`: chooses the tables, compares them, and says how they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stream_merge.cli.compare.comparison import compare
from stream_merge.cli.compare.database import Access, TableName
from stream_merge.cli.compare.pairs import Pair, pairs_of
from stream_merge.cli.compare.report import lines_of
from stream_merge.cli.errors import ExitCode, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.cli.file.load import LoadedPipeline

PASSWORD_VARIABLE = "STREAM_MERGE_DATABASE_PASSWORD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `stream-merge diff` is asked for.

    Attributes:
        target: Path or name of a Delta table; None for those of the pipeline.
        table: The database's table, as the user has written it.
        loaded: The pipeline file.
        only: Paths or names of the tables of the pipeline to compare; all by default.
        keys: The key's columns in the Delta table; None if the pipeline or the tables tell.
        access: How the database is reached.
        seconds: For how long keys that differ are read again.
        num_samples: How many differences of a table to show.
        all_columns: Whether columns that are not compared are differences.
    """

    target: str | None
    table: str | None
    loaded: LoadedPipeline | None
    only: tuple[str, ...]
    keys: tuple[str, ...] | None
    access: Access
    seconds: float
    num_samples: int
    all_columns: bool

    def check(self) -> None:
        """Refuse what cannot be compared, before Spark is started for it.

        Raises:
            PipelineError: Options are missing, or contradict each other.
        """
        self.access.check()
        if self.table is not None:
            TableName.parse(self.table)
        if (self.target is None) == (self.loaded is None):
            raise PipelineError(
                "Name either a Delta table, with its table in the database (--table), or a pipeline file (--pipeline), "
                "of which --only chooses tables.",
                ExitCode.USAGE,
            )
        if self.target is not None and self.table is None:
            raise PipelineError(
                f"Name the table of the database that {self.target} follows: --table schema.name.", ExitCode.USAGE
            )
        if self.target is not None and self.only:
            raise PipelineError("--only chooses tables of a pipeline file: give it with --pipeline.", ExitCode.USAGE)


def password_of(environ: Mapping[str, str], variable: str | None) -> str | None:
    """Return the password from the environment.

    Args:
        environ: The environment.
        variable: The name of the variable that a user has given; None for the default one, which may be missing.

    Raises:
        PipelineError: The variable that was given is not there.
    """
    if variable is not None and variable not in environ:
        raise PipelineError(f"The environment has no variable {variable}, which --password-env names.", ExitCode.USAGE)
    return environ.get(variable or PASSWORD_VARIABLE)


def diff(spark: SparkSession, request: Request, tell: Callable[[str], None]) -> ExitCode:
    """Compare the tables that were asked for, one after the other.

    Args:
        spark: The session.
        request: What to compare.
        tell: Prints a line.

    Returns:
        Whether they are equal.

    Raises:
        PipelineError: A table cannot be compared; the others were.
    """
    code = ExitCode.OK
    failed: list[PipelineError] = []
    for pair in _pairs(spark, request):
        try:
            found = compare(spark, request.access, pair, seconds=request.seconds, num_samples=request.num_samples)
        except PipelineError as error:
            # It is told in the end, so that the others are compared.
            failed.append(error)
            continue
        for line in lines_of(found):
            tell(line)
        if not found.is_equal or (request.all_columns and not found.has_all_columns):
            code = ExitCode.DIFFERS
    if failed:
        raise PipelineError("\n".join(dict.fromkeys(map(str, failed))), failed[0].exit_code)
    return code


def _pairs(spark: SparkSession, request: Request) -> list[Pair]:
    table = None if request.table is None else TableName.parse(request.table)
    if request.loaded is None:
        assert request.target is not None
        assert table is not None
        return [Pair(target=request.target, source=table, keys=request.keys)]
    pairs = pairs_of(spark, request.loaded.pipeline, request.only, table)
    if request.keys is None:
        return pairs
    if len(pairs) > 1:
        raise PipelineError("--keys is the key of one table: name it with --only.", ExitCode.USAGE)
    return [replace(pairs[0], keys=request.keys)]
