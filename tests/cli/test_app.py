"""The command without Spark: arguments, exit codes, and the sentences for what keeps a pipeline from starting."""

import logging
import os
import signal
import socket
import subprocess
import sys

import pytest
from pyspark.logger import PySparkLogger
from typer.testing import CliRunner

from stream_merge import __version__, merge_sink
from stream_merge.cli.app import app
from stream_merge.cli.file.secrets import Secrets
from stream_merge.cli.show.logs import LogLevel, configure_logging
from stream_merge.errors import RouterError

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
[source]
format = "{format}"
{source}
[[tables]]
target = "./lake/orders"
keys = ["id"]
{rest}
"""


def pipeline_text(source, kind="kafka", rest=""):
    return PIPELINE.format(format=kind, source=source, rest=rest)


@pytest.fixture(autouse=True)
def _restored():
    root, handler = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in ("stream_merge.cli", "py4j")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run the command in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **options: CliRunner().invoke(app, arguments, **options)


def modules_after(*arguments):
    code = f"import sys\nsys.argv = ['stream-merge', *{arguments!r}]\nfrom stream_merge.cli.app import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


def test_help_needs_neither_spark_nor_the_models():
    loaded = modules_after("--help")
    assert "typer" in loaded
    assert loaded.isdisjoint(("pyspark", "py4j", "pydantic", "matplotlib", "prometheus_client", "numpy"))


def test_version(invoke):
    done = invoke("--version")
    assert (done.exit_code, done.output) == (0, f"stream-merge {__version__}\n")


def test_a_wrong_argument_is_code_2(invoke):
    assert invoke("run").exit_code == 2
    assert invoke("run", "x.toml", "--nonsense").exit_code == 2
    assert invoke("explain", "x.toml", "--rows", "0").exit_code == 2


def test_init_from_a_broker_that_does_not_answer(invoke, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("init", "--from", "kafka", "--bootstrap-servers", address)
        done = invoke(*arguments)
    assert done.exit_code == 3
    assert done.stderr == (
        f"No Kafka broker answers at {address} (Connection refused): start it, or correct --bootstrap-servers.\n"
    )
    (tmp_path / "pipeline.toml").write_text("mine")
    again = invoke(*arguments)
    assert (again.exit_code, (tmp_path / "pipeline.toml").read_text()) == (2, "mine")
    assert again.stderr == "pipeline.toml exists already; choose another file, or overwrite it with --force.\n"
    assert invoke("init", "other.toml", "--lake", "./x").stderr.endswith(" need --from kafka.\n")


def test_init_writes_a_file_once(invoke, tmp_path):
    done = invoke("init")
    assert (done.exit_code, done.stdout) == (
        0,
        "pipeline.toml is written. Edit it, then: stream-merge validate pipeline.toml\n",
    )
    (tmp_path / "pipeline.toml").write_text("mine")
    again = invoke("init")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "pipeline.toml exists already" in again.stderr
    assert (tmp_path / "pipeline.toml").read_text() == "mine"
    assert invoke("init", "--force").exit_code == 0
    assert (tmp_path / "pipeline.toml").read_text() != "mine"


@pytest.mark.parametrize("command", ["run", "validate", "explain"])
def test_a_missing_file_is_a_sentence(invoke, command):
    done = invoke(command, "nowhere.toml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "nowhere.toml: there is no such file; stream-merge init writes an example\n"


@pytest.mark.parametrize("arguments", [("run",), ("validate", "--offline")])
def test_all_faults_of_a_file_come_with_their_lines(invoke, tmp_path, arguments):
    text = pipeline_text('bootstrap_servers = "localhost:9092"\ntopcs = ["a"]', rest='null_keys = "quarantine"')
    (tmp_path / "p.toml").write_text(text)
    done = invoke(arguments[0], "p.toml", *arguments[1:])
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.split(":")[:3] for line in lines] == [
        ["p.toml", "7", " source.topcs"],
        ["p.toml", "11", " tables[0].null_keys"],
    ]


def test_a_file_without_faults_is_said_to_be_one(invoke, tmp_path):
    (tmp_path / "p.toml").write_text(pipeline_text('bootstrap_servers = "b:1"\ntopics = ["a"]'))
    done = invoke("validate", "--offline", "p.toml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "p.toml: no faults found (1 table).\n", "")


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_broker_that_is_not_there_is_told_before_spark_starts(invoke, tmp_path, command):
    (tmp_path / "p.toml").write_text(pipeline_text('bootstrap_servers = "127.0.0.1:1"\ntopics = ["a"]'))
    done = invoke(command, "p.toml")
    assert done.exit_code == 3
    assert done.stderr == (
        "No Kafka broker answers at 127.0.0.1:1 (Connection refused): start it, or correct bootstrap_servers in "
        "[source].\n"
    )


def test_a_port_that_is_taken_is_told_before_spark_starts(invoke, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = pipeline_text(
            'path = "./landing"\nschema = "id INT"', kind="files", rest=f"[metrics]\nprometheus_port = {port}"
        )
        (tmp_path / "p.toml").write_text(text)
        done = invoke("run", "p.toml")
    assert done.exit_code == 3
    assert done.stderr.startswith(f"The metrics cannot be served at 127.0.0.1:{port}: Address already in use.")


@pytest.mark.parametrize(
    "command", [("run", "p.toml"), ("explain", "p.toml"), ("validate", "p.toml"), ("status", "./t")]
)
def test_a_missing_java_is_a_sentence(start_command, tmp_path, command):
    (tmp_path / "p.toml").write_text(pipeline_text('path = "./landing"\nschema = "id INT"', kind="files"))
    (tmp_path / "bin").mkdir()
    child = start_command(*command, environ={"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""})
    assert child.wait() == 3
    lines = [line for line in child.stderr.splitlines() if "starting pipeline" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("Spark needs Java 17 or newer, and there is no java on PATH: install a JDK")
    assert child.stdout == ""


def test_a_secret_is_masked_in_an_error(invoke, tmp_path):
    (tmp_path / "p.toml").write_text(pipeline_text('bootstrap_servers = "${BROKER}:1"\ntopics = ["a"]'))
    done = invoke("run", "p.toml", env={"BROKER": "s3cret.invalid"})
    assert done.exit_code == 3
    assert "No Kafka broker answers at ***:1 (no such host)" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout


def test_an_error_that_nobody_expected_says_so(invoke, tmp_path, monkeypatch):
    def broken(*_arguments, **_options):
        raise LookupError("the cat\nsat on ${it}")

    monkeypatch.setattr("stream_merge.cli.file.example.write_example", broken)
    done = invoke("init")
    assert done.exit_code == 1
    assert done.stderr == ("unexpected error: LookupError: the cat sat on ${it}; --log-level debug shows where.\n")


def test_a_package_of_python_that_is_missing_is_a_sentence(invoke, monkeypatch):
    def broken(*_arguments, **_options):
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr("stream_merge.cli.file.example.write_example", broken)
    done = invoke("init")
    assert (done.exit_code, done.stderr) == (
        3,
        "The Python package pyspark is not installed: pip install 'stream-merge[spark,cli]'.\n",
    )


def test_the_command_without_its_extra_is_a_sentence():
    code = "import sys; sys.modules['typer'] = None\nfrom stream_merge.cli.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        3,
        "",
        "The Python package typer is not installed: pip install 'stream-merge[spark,cli]'.\n",
    )


def test_ctrl_c_before_the_pipeline_runs_is_code_130_and_says_nothing(invoke, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("stream_merge.cli.file.example.write_example", interrupted)
    done = invoke("init")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "")


def test_sigterm_before_the_pipeline_runs_is_code_143(start_command, tmp_path):
    # A broker that takes connections and says nothing keeps the command from starting Spark... for 5 seconds only where
    # the queue of connections is full, so the command waits for the pipe of its file instead.
    os.mkfifo(tmp_path / "p.toml")
    child = start_command("run", "p.toml")
    with (tmp_path / "p.toml").open("w"):
        child.signal(signal.SIGTERM)
        assert child.wait(30) == 143
    assert "Traceback" not in child.stderr


def test_logs_have_no_stack_trace_and_no_secret(capsys):
    secrets = Secrets()
    secrets.add("s3cret")
    configure_logging(LogLevel.INFO, secrets)
    command, library, spark = (logging.getLogger(name) for name in ("stream_merge.cli", "stream_merge", "spark"))
    command.info("starting with %s", "s3cret")
    library.info("a line for each batch")
    library.warning("rows are set aside")
    spark.debug("WARN Something: of no interest")
    command.error("it failed", exc_info=ValueError("s3cret"))
    lines = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "INFO starting with ***",
        "WARNING rows are set aside",
        "ERROR it failed",
    ]


def test_pyspark_writes_no_errors_of_its_own(capsys):
    """Its lines have the plan, with what the file took from the environment, and its handler masks nothing."""
    configure_logging(LogLevel.DEBUG, Secrets())
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # As PySpark does it when it converts an error.
        logger = PySparkLogger.getLogger(name)
        logger.propagate = False
        logger.error("no such column", file="a.py", line="1", fragment="col", errorClass="UNRESOLVED")
    assert capsys.readouterr().err == ""


def test_a_table_that_failed_is_told_by_the_command_alone(capsys):
    """The router's own record comes before the sentence, and says less."""
    from stream_merge.routing.routed_batch import Outcomes, Route, RoutedBatch

    route = Route(sink=merge_sink("./lake/orders", keys=["id"]), names=("orders",), num_rows=1)
    failed = Outcomes(results={}, failures={route: ValueError("no")}, pending=())
    batch = RoutedBatch(config=None, state=None, received=None, rows=None, query=None, batch_id=3, finished={})
    for level in (LogLevel.INFO, LogLevel.DEBUG):
        configure_logging(level, Secrets())
        with pytest.raises(RouterError):
            batch._raise_failures([route], failed)
        assert ("failed" in capsys.readouterr().err) == (level is LogLevel.DEBUG)


def test_debug_shows_everything_but_secrets(capsys):
    secrets = Secrets()
    secrets.add("s3cret")
    configure_logging(LogLevel.DEBUG, secrets)
    logging.getLogger("spark").debug("WARN Something: %s", "s3cret")
    try:
        int("s3cret")
    except ValueError:
        logging.getLogger("stream_merge.cli").exception("it failed")
    written = capsys.readouterr().err
    assert "DEBUG WARN Something: ***" in written
    assert "Traceback (most recent call last)" in written
    assert "ValueError: invalid literal for int() with base 10: '***'" in written
    assert "s3cret" not in written
