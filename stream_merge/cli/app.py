"""Defines the commands of `stream-merge` and their arguments. Commands import lazily, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from stream_merge import __version__
from stream_merge.cli.command_run import CommandRun
from stream_merge.cli.errors import ExitCode
from stream_merge.cli.init_arguments import DEFAULT_LAKE, InitArguments, InitSource
from stream_merge.cli.show.logs import LogLevel, configure_logging

if TYPE_CHECKING:
    from rich.console import Console


DEFAULT_FILE = Path("pipeline.toml")

app: typer.Typer = typer.Typer(
    name="stream-merge",
    help="Merge streams into Delta tables, exactly once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

quarantine: typer.Typer = typer.Typer(help="Rows that were set aside.", no_args_is_help=True)
app.add_typer(quarantine, name="quarantine")

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.", show_default=False)]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="Lowest level to log; debug adds Spark's own lines and stack traces.")
]


def main() -> NoReturn:
    """Run the command with the arguments of the process, and end it with an exit code of `ExitCode`."""
    app()
    sys.exit(ExitCode.OK)


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"stream-merge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda value: _show_version(is_asked=value),
        ),
    ] = False,
) -> None:
    del version


@app.command()
def run(
    file: PipelineFile,
    *,
    once: Annotated[bool, typer.Option("--once", help="Merge what is available now, then exit.")] = False,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Show live progress on a terminal.")] = True,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a pipeline until it is stopped.

    SIGTERM and Ctrl-C stop it after the running micro-batch; a second one stops it at once.

    Exit codes: 0 done or stopped, 1 failed, 2 the file or the arguments are wrong, 3 it cannot start (Java, packages,
    broker, topic, table), 4 --once is done but tables are at rest, 130 and 143 a signal interrupted a micro-batch, or
    came while Spark started.
    """
    with CommandRun(log_level) as command:
        loaded = command.load(file)
        console = _terminal() if live and sys.stdout.isatty() else None
        configure_logging(log_level, loaded.secrets, console)
        from stream_merge.cli.run_command import run_pipeline

        code = run_pipeline(loaded, console, once=once)
        if code is not ExitCode.OK:
            raise typer.Exit(code)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write.")] = DEFAULT_FILE,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    source: Annotated[
        InitSource | None,
        typer.Option(
            "--from", help="Write the file for the topics that a Kafka broker has, from their newest records."
        ),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", metavar="HOST:PORT", help="The brokers; for --from kafka.")
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", metavar="REGEX", help="Topics to look at, by the whole name; all but __* by default."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Option of Spark's Kafka source (kafka.*), of the registry (registry.*) or of Spark (spark.*). "
            "'${NAME}' is a variable of the environment, and is written so; secrets always are.",
        ),
    ] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="The schema registry of records in Avro.")
    ] = None,
    lake: Annotated[str, typer.Option("--lake", metavar="FOLDER", help="The folder of the tables.")] = DEFAULT_LAKE,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Write a pipeline file: a commented example, or one for the topics that a broker has."""
    from stream_merge.cli.file.example import check_new, write_example, write_new

    with CommandRun(log_level) as command:
        given = InitArguments(bootstrap_servers, topics, tuple(option or ()), registry, lake)
        given.check(source)
        if source is None:
            write_example(file, force=force)
            typer.echo(f"{file} is written. Edit it, then: stream-merge validate {file}")
            return
        check_new(file, force=force)
        from stream_merge.cli.discover.discover import describe, discover

        connection = command.connect(given)
        spark = command.start_session_for(connection)
        text, plan = discover(spark, connection, topics)
        write_new(file, text, force=force)
        typer.echo(connection.secrets.mask(describe(plan, connection, file)))


@app.command()
def validate(
    file: PipelineFile,
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check only the file, without Spark, source and tables.")
    ] = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Check a pipeline file against its source and its tables, and report every fault with its line."""
    with CommandRun(log_level) as command:
        loaded = command.load(file)
        from stream_merge.cli.checks.validate import validate as find_faults

        spark = None if offline else command.start_session(loaded.pipeline)
        faults = find_faults(loaded, spark)
        for fault in faults:
            command.tell(fault.text(loaded.path))
        if faults:
            raise typer.Exit(ExitCode.USAGE)
        tables = len(loaded.pipeline.tables)
        typer.echo(f"{file}: no faults found ({tables} table{'s' if tables > 1 else ''}).")


@app.command()
def status(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Path or catalog name; without it, all tables of --pipeline."),
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Read and show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.5, help="Seconds between two readings.")
    ] = 5.0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page that needs nothing else to a .html.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Plot batch time, rows and delay to a .png, .svg or .html."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="Number of the newest commits to read: 1000, or 200 for each of several tables."
        ),
    ] = None,
    pipeline: Annotated[
        Path | None,
        typer.Option("--pipeline", metavar="FILE", help="Pipeline file with the tables, and Spark settings to use."),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Show the state of a stream from its tables' commits: batches, rates, rows, conflicts, deletes, files."""
    with CommandRun(log_level) as command:
        loaded = command.load(pipeline) if pipeline is not None else None
        from stream_merge.cli.show.status_command import Request, show_status

        request = Request(
            table=table, loaded=loaded, plot=plot, html=html, limit=limit, interval=interval if watch else None
        )
        request.check()
        spark = command.start_session(loaded.pipeline if loaded is not None else None)
        show_status(spark, request, _terminal(), typer.echo)


@app.command()
def explain(
    file: PipelineFile,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Target or source of one table; default: all.")
    ] = None,
    *,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of source rows to sample.")] = 100,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Print the plan of the merge into each table and the reason for it; writes nothing."""
    with CommandRun(log_level) as command:
        loaded = command.load(file)
        from stream_merge.cli.checks.explain import explain as explain_tables
        from stream_merge.cli.query.sources import check_brokers

        check_brokers(loaded.pipeline.source)
        spark = command.start_session(loaded.pipeline)
        for text in explain_tables(spark, loaded.pipeline, table, rows):
            typer.echo(loaded.secrets.mask(text))


@app.command()
def diff(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Path or name of a Delta table; without it, those of --pipeline."),
    ] = None,
    *,
    jdbc: Annotated[str, typer.Option("--jdbc", metavar="URL", help="The database's JDBC address.")],
    source: Annotated[
        str | None, typer.Option("--table", metavar="SCHEMA.NAME", help="The database's table; topics tell it.")
    ] = None,
    pipeline: Annotated[
        Path | None, typer.Option("--pipeline", metavar="FILE", help="Pipeline file with the tables.")
    ] = None,
    only: Annotated[
        list[str], typer.Option("--only", metavar="TABLE", help="One of its tables; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    keys: Annotated[
        list[str], typer.Option("--keys", metavar="COLUMN", help="A column of the key; may be repeated.")
    ] = [],  # noqa: B006
    user: Annotated[str | None, typer.Option("--user", help="The database's user.")] = None,
    password_env: Annotated[
        str | None,
        typer.Option(
            "--password-env",
            metavar="NAME",
            help="Variable of the environment with the password; STREAM_MERGE_DATABASE_PASSWORD by default.",
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long rows that differ are read again.")
    ] = 30.0,
    sample: Annotated[int, typer.Option("--sample", min=0, help="How many differences of a table to show.")] = 10,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Columns that are not compared are differences, too.")
    ] = False,
    driver: Annotated[str | None, typer.Option("--driver", metavar="CLASS", help="Class of the JDBC driver.")] = None,
    driver_package: Annotated[
        str | None, typer.Option("--driver-package", metavar="COORDINATE", help="Its group:artifact:version.")
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Compare Delta tables with the database's tables that they follow; writes nothing.

    Exit codes: 0 equal, 5 rows differ, 1 failed, 2 the arguments or the file are wrong, 3 a table or the database
    cannot be read.
    """
    with CommandRun(log_level) as command:
        loaded = command.load(pipeline) if pipeline is not None else None
        from stream_merge.cli.compare.database import Access
        from stream_merge.cli.compare.diff_command import Request, password_of
        from stream_merge.cli.compare.diff_command import diff as compare

        password = password_of(os.environ, password_env)
        command.mask_also(password)
        request = Request(
            target=table,
            table=source,
            loaded=loaded,
            only=tuple(only),
            keys=tuple(keys) or None,
            access=Access(url=jdbc, user=user, password=password, driver=driver),
            seconds=wait,
            num_samples=sample,
            all_columns=all_columns,
        )
        request.check()
        chooses = loaded is None or loaded.pipeline.spark.choose_packages
        packages = [driver_package] if driver_package else request.access.packages if chooses else []
        spark = command.start_session(None if loaded is None else loaded.pipeline, packages=packages)
        code = compare(spark, request, command.show)
        if code is not ExitCode.OK:
            raise typer.Exit(code)


@quarantine.command()
def replay(
    file: PipelineFile,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One target; default: all.")] = None,
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Only rows whose reason contains this text.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what could be read again.")] = False,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="The pipeline is stopped; needed for tables with single_writer.")
    ] = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Read the records of quarantined rows again, merge them, and remove their rows from the quarantine.

    Correct the cause first: records that still cannot be merged are set aside again. The pipeline may be running.
    """
    with CommandRun(log_level) as command:
        loaded = command.load(file)
        from stream_merge.cli.query.sources import check_brokers
        from stream_merge.cli.run.replay import Request
        from stream_merge.cli.run.replay import replay as replay_rows

        check_brokers(loaded.pipeline.source)
        spark = command.start_session(loaded.pipeline)
        request = Request(table=table, reason=reason, is_dry=dry_run, is_stopped=stopped)
        for replayed in replay_rows(spark, loaded.pipeline, request):
            typer.echo(loaded.secrets.mask(str(replayed)))


def _terminal() -> Console:
    from rich.console import Console

    return Console(highlight=False)
