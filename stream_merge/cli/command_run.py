"""One run of a command: what all commands do before and after their own part."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from stream_merge.cli.errors import ExitCode, PipelineError, missing_package
from stream_merge.cli.file.secrets import Secrets
from stream_merge.cli.init_arguments import InitArguments
from stream_merge.cli.show.logs import LogLevel, configure_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stream_merge.cli.discover.connection import Connection
    from stream_merge.cli.errors import StopNow
    from stream_merge.cli.file.load import LoadedPipeline
    from stream_merge.cli.file.pipeline import Pipeline, Source, SparkSettings


@dataclass(slots=True)
class CommandRun:
    """One run of a command: reports its errors, masks secrets, and stops the Spark session that it started.

    Attributes:
        log_level: The lowest level to log.
        secrets: The values to mask.
        spark: The session, once it runs.
    """

    log_level: LogLevel = LogLevel.WARNING
    secrets: Secrets = field(default_factory=Secrets)
    spark: SparkSession | None = None

    def __enter__(self) -> CommandRun:
        from stream_merge.cli.run.stopping import end_on_sigterm

        end_on_sigterm()
        return self

    def load(self, file: Path) -> LoadedPipeline:
        """Read a pipeline file, and mask its secrets from now on."""
        from stream_merge.cli.file.load import load_pipeline

        loaded = load_pipeline(file)
        self.secrets = loaded.secrets
        configure_logging(self.log_level, loaded.secrets)
        return loaded

    def mask_also(self, secret: str | None) -> None:
        """Mask a value that is not in a pipeline file."""
        if secret is not None:
            self.secrets.add(secret)

    def connect(self, given: InitArguments) -> Connection:
        """Read how a broker is reached, check that one answers, and mask the secrets from now on."""
        from stream_merge.cli.discover.connection import read_connection
        from stream_merge.cli.query.sources import check_brokers, kafka_options

        connection = read_connection(
            bootstrap_servers=given.bootstrap_servers or "",
            options=given.options,
            registry=given.registry,
            lake=given.lake,
            environ=os.environ,
        )
        self.secrets = connection.secrets
        kafka_options(connection.source)
        check_brokers(connection.source, given_as="--bootstrap-servers")
        return connection

    def start_session(self, pipeline: Pipeline | None, *, packages: Sequence[str] = ()) -> SparkSession:
        """Start Spark for a short command, with further packages unless the file has others of their artifacts."""
        from stream_merge.cli.file.pipeline import SparkSettings
        from stream_merge.cli.query.packages import merged

        settings = pipeline.spark if pipeline is not None else SparkSettings()
        if packages:
            settings = settings.model_copy(update={"packages": merged(packages, settings.packages)})
        if pipeline is None:
            return self._start(settings, "status")
        return self._start(
            settings, pipeline.pipeline.name, pipeline.source, has_registry=pipeline.registry is not None
        )

    def start_session_for(self, connection: Connection) -> SparkSession:
        """Start Spark to read from a broker."""
        return self._start(connection.spark, "init", connection.source, has_registry=connection.registry is not None)

    def _start(
        self, settings: SparkSettings, name: str, source: Source | None = None, *, has_registry: bool = False
    ) -> SparkSession:
        from stream_merge.cli.run.session import start_spark

        configure_logging(self.log_level, self.secrets)
        with _waiting("Starting Spark"):
            self.spark = start_spark(
                settings,
                self.secrets,
                name=name,
                source=source,
                has_registry=has_registry,
                defaults={"spark.ui.enabled": "false"},
            )
        return self.spark

    def show(self, text: str) -> None:
        """Write to standard output, with secrets masked."""
        typer.echo(self.secrets.mask(text))

    def tell(self, text: str) -> None:
        """Write to standard error, with secrets masked."""
        typer.echo(self.secrets.mask(text), err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from stream_merge.cli.errors import StopNow
        from stream_merge.cli.run.session import stop_session

        if isinstance(error, StopNow):
            _end_at_once(error)
        if self.spark is not None:
            stop_session(self.spark)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(ExitCode.INTERRUPTED)
        if error is not None and isinstance(error, Exception) and not _is_typers_own(error):
            raise typer.Exit(self._explain(error))

    def _explain(self, error: Exception) -> ExitCode:
        """Report in a sentence what went wrong, and return the exit code."""
        from stream_merge.cli.file.faults import PipelineFileError

        is_debug = self.log_level is LogLevel.DEBUG
        if is_debug:
            self.tell("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, PipelineFileError):
            self.tell(str(error))
            return ExitCode.USAGE
        if isinstance(error, PipelineError):
            self.tell(str(error))
            return error.exit_code
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("stream_merge"):
            self.tell(missing_package(error))
            return ExitCode.CANNOT_START
        message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        hint = "" if is_debug else "; --log-level debug shows where"
        self.tell(f"unexpected error: {message}{hint}.")
        return ExitCode.FAILED


def _is_typers_own(error: Exception) -> bool:
    """Return whether typer raised an exception to end a command or to report wrong arguments."""
    return any(each.__module__.split(".")[0] in ("typer", "click") for each in type(error).__mro__)


def _end_at_once(error: StopNow) -> NoReturn:
    """End the process without waiting for anything; the JVM ends with it."""
    sys.stdout.flush()
    sys.stderr.write(
        "stopped at once; the next start merges the interrupted micro-batch, or skips it if it was merged\n"
        if error.may_cut_off
        else f"stopped by {signal.Signals(error.signal_number).name}; no micro-batch was running\n"
    )
    sys.stderr.flush()
    os._exit(128 + error.signal_number)


@contextmanager
def _waiting(text: str) -> Iterator[None]:
    """Show on a terminal that something takes a while."""
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
