"""The command as users run it: processes of their own with a Spark each. Few, since each takes some twenty seconds."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.parsed_html import Parsed
from tests.jvm.jars import jar_conf

PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
trigger = "0 seconds"
route_by = "topic"
{pipeline}
[source]
format = "files"
path = "./landing"
schema = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key STRING, value STRING"
max_files_per_trigger = 1

[decode]
format = "json"

[[tables]]
source = "shop.orders"
target = "./lake/orders"
keys = ["id"]
columns = "id BIGINT, name STRING, at BIGINT"
sequence_by = "at"
delete_when = "name = 'gone'"
quarantine = "./lake/rejected"

[[tables]]
source = "re:shop[.](?P<table>\\\\w+)"
target = "./lake/{{table}}"
keys = ["id"]
columns = "id BIGINT, qty INT"

[spark]
master = "local[2]"
choose_packages = {choose_packages}

[spark.conf]
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 2
"spark.databricks.delta.snapshotPartitions" = 2
"spark.sql.adaptive.enabled" = false
"spark.sql.codegen.wholeStage" = false
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
{jars}
{rest}
"""


SLOW = 99
SLOW_ITEMS = f"""
[[tables]]
source = "shop.items"
target = "./lake/items"
keys = ["id"]
columns = "id BIGINT, qty INT"
quarantine = "./lake/rejected_items"
expect = {{ "in time" = "NOT (id = {SLOW} AND java_method('java.lang.Thread', 'sleep', 300000L) IS NULL)" }}
"""
"""A table that takes minutes for one row."""


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes standard input the terminal of the session, whose Ctrl-C is then a signal, before the program begins."""


class Terminal:
    """The command on a terminal of its own, and what it has written there."""

    def __init__(self, arguments, folder):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, sys.executable, "-m", "stream_merge.cli", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environ, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                # Linux tells so that nobody has the terminal open any more.
                part = b""
            if not part:
                return
            self._written += part

    @property
    def text(self):
        return self._written.decode(errors="replace")

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, text):
        until = time.monotonic() + 400
        while text not in self.text:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.text}"
            assert time.monotonic() < until, f"no {text!r} in: {self.text}"
            time.sleep(0.1)

    def wait(self):
        exit_code = self.process.wait(120)
        self._reader.join(60)
        return exit_code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(60)
        os.close(self._master)


@pytest.fixture
def start_in_terminal(tmp_path):
    """Return a function that starts the command on a terminal; what still runs at the end is killed."""
    terminals = []

    def start(*arguments):
        terminals.append(Terminal(arguments, tmp_path))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def land(tmp_path):
    """Return a function that writes the pipeline's file, and one that lands records of Kafka's shape."""
    offsets = iter(range(1_000_000))

    def write(name, *records):
        lines = [
            json.dumps(
                {
                    "topic": topic,
                    "partition": 0,
                    "offset": next(offsets),
                    "timestamp": "2026-11-22T10:00:00Z",
                    "value": value if isinstance(value, str) else json.dumps(value),
                }
            )
            for topic, value in records
        ]
        (tmp_path / "landing").mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        (tmp_path / name).rename(tmp_path / "landing" / name)

    return write


@pytest.fixture
def write_pipeline(tmp_path):
    # Nearly all of them have Delta Lake on the class path, where there is one: a JVM resolves and copies packages for
    # seconds.
    conf = jar_conf()

    def write(pipeline="", rest="", choose_packages="spark.jars.packages" in conf):
        jars = [] if choose_packages else [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items()]
        (tmp_path / "pipeline.toml").write_text(
            PIPELINE.format(
                pipeline=pipeline, rest=rest, choose_packages=json.dumps(choose_packages), jars="\n".join(jars)
            )
        )

    return write


def sentences(child):
    """Return the lines of standard error without the time."""
    return [line.split(" ", 2)[2] for line in child.stderr.splitlines()]


def rows(read_rows, path, *columns):
    return [tuple(row) for row in read_rows(str(path), *columns)]


def java_of(child):
    """Return the arguments of the command's JVM, and the signals that it ignores, bit by bit."""
    (java,) = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text().split()
    ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{java}/status").read_text(), re.M)
    return Path(f"/proc/{java}/cmdline").read_text(), int(ignored[1], 16)


def quarantine_on(page, table):
    """Return what a page says of the rows of a table: the most frequent reason, and where to begin again."""
    [told] = Parsed(page.read_text()).section(table).all("div", "quarantine")
    return told.all("table", "reasons")[0].rows()[1][:2], re.sub(r"\d+$", "", told.all("li")[-1].text)


def test_from_once_to_status(start_command, land, write_pipeline, read_rows, tmp_path):
    """Run --once twice, look at what validate, explain and status say, and stop a running stream between two
    batches."""
    write_pipeline(rest='"spark.hidden" = "${HIDDEN}"')
    environ = {"HIDDEN": "s3cret-value"}
    orders = [("shop.orders", {"id": number, "name": f"n{number}", "at": number}) for number in range(10)]
    land("1.json", *orders, ("shop.items", {"id": 1, "qty": 5}), ("shop.orders", '{"id": "x"}'))
    land(
        "2.json",
        ("shop.orders", {"id": 3, "name": "gone", "at": 100}),
        ("shop.orders", {"id": 4, "name": "old", "at": 1}),
    )

    first = start_command("run", "pipeline.toml", "--once", environ=environ)
    assert first.wait() == 0, first.stderr
    assert first.stdout == ""
    lines = sentences(first)
    assert lines[0] == "INFO starting pipeline shop from pipeline.toml"
    assert lines[-1] == "INFO ended: everything available is merged"
    orders_lines = [line for line in lines if line.startswith("INFO ./lake/orders: batch")]
    assert [re.sub(r", version \d+| in [\d.]+ s$", "", line) for line in orders_lines] == [
        "INFO ./lake/orders: batch 0: 10 rows, 10 inserted, 0 updated, 0 deleted, 1 set aside",
        "INFO ./lake/orders: batch 1: 2 rows, 0 inserted, 0 updated, 1 deleted",
    ]
    assert any(line.startswith("WARNING ./lake/orders: batch 0: 1 of 11 rows cannot be merged") for line in lines)
    expected = [(number, f"n{number}", number) for number in range(10) if number != 3]
    assert rows(read_rows, tmp_path / "lake/orders", "id", "name", "at") == expected
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == [(1, 5)]
    (rejected,) = read_rows(str(tmp_path / "lake/rejected"))
    assert (rejected["topic"], rejected["value"]) == ("shop.orders", '{"id": "x"}')
    assert rejected["reason"].startswith("the value is not a JSON object of the columns")

    explained = start_command("explain", "pipeline.toml", "./lake/orders", "--rows", "50", environ=environ)
    assert explained.wait() == 0, explained.stderr
    assert "./lake/items" not in explained.stdout
    assert re.match(r"MergeSink\[./lake/orders\] at version \d+\n  strategy  merge_on_read", explained.stdout)

    status = start_command(
        *("status", "./lake/orders", "--plot", "orders.svg", "--html", "orders.html", "--pipeline", "pipeline.toml"),
        environ=environ,
    )
    assert status.wait() == 0, status.stderr
    assert "./lake/orders" in status.stdout
    assert status.stdout.endswith("orders.svg is written.\norders.html is written.\n")
    assert (tmp_path / "orders.svg").read_text().startswith("<?xml")
    assert quarantine_on(tmp_path / "orders.html", "./lake/orders") == (
        ["the value is not a JSON object of the columns", "1"],
        "shop.orders, partition 0, offset ",
    )

    running = start_command("run", "pipeline.toml", environ=environ)
    land("3.json", ("shop.orders", {"id": 20, "name": "new", "at": 200}))
    running.wait_for("./lake/orders: batch 2, version")
    arguments, ignored = java_of(running)
    assert "spark.sql.shuffle.partitions=2" in arguments
    assert "s3cret-value" not in arguments
    assert ignored & 1 << (signal.SIGTERM - 1), "who ends a service may send the signal to all its processes"
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert sentences(running)[-1] == "INFO ended: stopped by a signal"
    assert any(line.startswith("INFO stopping on SIGTERM: ") for line in sentences(running))
    assert (20, "new", 200) in rows(read_rows, tmp_path / "lake/orders", "id", "name", "at")
    everything = "".join(child.stderr + child.stdout for child in (first, explained, status, running))
    assert [text for text in ("s3cret-value", "Traceback", "\tat ") if text in everything] == []


def test_a_running_stream_is_watched_and_stopped_at_once(start_command, land, write_pipeline, read_rows, tmp_path):
    """Scrape the metrics of a running stream, cut a batch off by a second Ctrl-C, and find nothing lost when it goes
    on."""
    write_pipeline(rest="[metrics]\nprometheus_port = 0")
    with (tmp_path / "pipeline.toml").open("a") as file:
        file.write(SLOW_ITEMS)
    land("1.json", ("shop.orders", {"id": 1, "name": "a", "at": 1}))
    running = start_command("run", "pipeline.toml")
    running.wait_for("./lake/orders: batch 0, version")
    address = running.stderr.split("metrics for Prometheus at ")[1].split()[0]
    with urllib.request.urlopen(address, timeout=30) as answer:
        served = answer.read().decode()
    assert 'stream_merge_up{pipeline="shop"} 1.0' in served
    with urllib.request.urlopen(address.removesuffix("metrics"), timeout=30) as answer:
        page = Parsed(answer.read().decode())
    assert page.all("h1")[0].text == "shop running"
    assert page.section("./lake/orders").all("table", "commits")[0].rows()[1][2:5] == ["batch 0", "1", "1"]
    assert 'stream_merge_rows_total{change="inserted",pipeline="shop",table="./lake/orders"} 1.0' in served
    assert 'stream_merge_quarantined_rows_total{pipeline="shop",table="./lake/items"} 0.0' in served
    land("2.json", ("shop.orders", {"id": 2, "name": "b", "at": 2}), ("shop.items", {"id": SLOW, "qty": 1}))
    running.wait_for("./lake/orders: batch 1, version")
    running.signal(signal.SIGINT)
    running.wait_for("stopping on SIGINT: after batch 1")
    assert running.process.poll() is None
    running.signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert "Aborted" not in running.stderr
    assert "Traceback" not in running.stderr
    assert "./lake/items" not in running.stderr
    pipeline = tmp_path / "pipeline.toml"
    pipeline.write_text(pipeline.read_text().replace(f"id = {SLOW}", "false"))
    again = start_command("run", "pipeline.toml", "--once")
    assert again.wait() == 0, again.stderr
    assert [line.split(":")[0] for line in sentences(again) if "inserted" in line] == ["INFO ./lake/items"]
    assert rows(read_rows, tmp_path / "lake/orders", "id", "name") == [(1, "a"), (2, "b")]
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == [(SLOW, 1)]


def test_ctrl_c_ends_a_watch(start_command, write_pipeline, tmp_path):
    """At any time after the first reading: PySpark has a handler of its own, which also cancels what Spark does."""
    write_pipeline()
    watching = start_command(
        *("status", "--pipeline", "pipeline.toml", "--watch", "--interval", "0.5", "--html", "page.html")
    )
    until = time.monotonic() + 400
    while watching.stdout.count("\n\n") < 3:
        assert watching.process.poll() is None, watching.stderr
        assert time.monotonic() < until
        time.sleep(0.05)
    watching.signal(signal.SIGINT)
    assert watching.wait(60) == 0, watching.stderr
    first, *further = watching.stdout.removesuffix("\n\n").split("\n\n")
    assert first.splitlines()[1:] == [
        "./lake/orders: not there yet",
        "./lake/{table}: its tables are not listed, since their sources are not known here",
    ]
    assert {block.splitlines()[1] for block in further} == {"./lake/orders: not there yet"}
    assert "Traceback" not in watching.stderr
    assert Parsed((tmp_path / "page.html").read_text()).all("h2")[0].text == "./lake/orders"


def test_a_signal_that_comes_while_spark_starts(start_command, land, write_pipeline, tmp_path):
    """It ends the command at once, and the JVM with it, which may be fetching packages for minutes."""
    write_pipeline()
    land("1.json", ("shop.orders", {"id": 1, "name": "a", "at": 1}))
    starting = start_command("run", "pipeline.toml")
    starting.wait_for("starting pipeline")
    spark = wait_for_spark(starting)
    starting.signal(signal.SIGTERM)
    assert starting.wait(20) == 143, starting.stderr
    assert starting.stderr.splitlines()[1:] == ["stopped by SIGTERM; no micro-batch was running"]
    assert not Path(f"/proc/{spark}/cmdline").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["landing"]


def wait_for_spark(child):
    """Return the process id of the command's Spark, once it has begun to start."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for number in Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text().split():
            if "org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{number}/cmdline").read_text():
                return int(number)
        time.sleep(0.02)
    raise AssertionError(f"Spark was not started: {child.stderr}")


@pytest.mark.long
def test_a_batch_that_hangs_is_cut_off(start_command, land, write_pipeline, read_rows, tmp_path):
    """SIGTERM waits for `stop_timeout`; what hangs then is merged when the pipeline is started again."""
    write_pipeline(pipeline="stop_timeout = 3")
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text() + SLOW_ITEMS)
    land("1.json", ("shop.orders", {"id": 1, "name": "a", "at": 1}), ("shop.items", {"id": SLOW, "qty": 1}))
    hanging = start_command("run", "pipeline.toml")
    hanging.wait_for("./lake/orders: batch 0, version")
    hanging.signal(signal.SIGTERM)
    assert hanging.wait(120) == 143, hanging.stderr
    lines = sentences(hanging)
    assert lines[lines.index("INFO stopping on SIGTERM: after batch 0") :] == [
        "INFO stopping on SIGTERM: after batch 0",
        "WARNING batch 0 has not ended within stop_timeout = 3 seconds and is interrupted; the next start merges only "
        "the tables that lack it",
        "INFO ended: a signal interrupted the running micro-batch",
    ]
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == []
    file.write_text(file.read_text().replace(f"id = {SLOW}", "false"))
    again = start_command("run", "pipeline.toml", "--once")
    assert again.wait() == 0, again.stderr
    merged = [re.sub(r", version.*", "", line) for line in sentences(again) if "./lake/" in line]
    assert sorted(merged) == [
        "INFO ./lake/items: batch 0",
        "INFO ./lake/orders: batch 0 skipped: the table has it already",
    ]
    assert rows(read_rows, tmp_path / "lake/orders", "id", "name") == [(1, "a")]
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == [(SLOW, 1)]


@pytest.mark.long
def test_on_a_terminal(start_in_terminal, land, write_pipeline, read_rows, tmp_path):
    """Every table is shown while a batch runs, Ctrl-C lets it finish, and the terminal is left as it was."""
    write_pipeline(choose_packages=True)
    file = tmp_path / "pipeline.toml"
    slowly = SLOW_ITEMS.replace("300000L", "8000L")
    file.write_text(file.read_text() + slowly)
    orders = [("shop.orders", {"id": number, "name": f"n{number}", "at": number}) for number in range(23)]
    land("1.json", *orders, ("shop.items", {"id": SLOW, "qty": 1}))
    terminal = start_in_terminal("run", "pipeline.toml")
    terminal.wait_for("./lake/orders")
    assert "./lake/items" not in terminal.text, "its batch is still running"
    terminal.type("\x03")
    terminal.wait_for("stopping: after batch 0; Ctrl-C again stops at once")
    assert terminal.wait() == 0, terminal.text
    assert terminal.text.rindex("\x1b[?25l") < terminal.text.rindex("\x1b[?25h"), "the cursor is there again"
    shown = ESCAPES.sub("", terminal.text)
    headline, *left = shown[shown.rindex("shop  ended") :].splitlines()
    assert " · batch 0 · " in headline
    # Behind batch, version and the time that it took: inserts, updates, deletes.
    assert [(cells[0], cells[1], cells[5:8]) for cells in map(str.split, left[1:3])] == [
        ("./lake/items", "0", ["1", "0", "0"]),
        ("./lake/orders", "0", ["23", "0", "0"]),
    ]
    assert sorted(rows(read_rows, tmp_path / "lake/orders", "id")) == [(number,) for number in range(23)]
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == [(SLOW, 1)]


@pytest.mark.long
def test_a_table_at_rest(start_command, land, write_pipeline, read_rows, tmp_path):
    """The others are merged, the exit code tells a scheduler, `status` says what is parked, and the mended file merges
    it."""
    write_pipeline('parking = "./lake/parked"\n')
    mended = (tmp_path / "pipeline.toml").read_text()
    broken = mended.replace('"id BIGINT, qty INT"', '"id BIGINT, qty INT"\nexpect = { few = "qty < 5" }')
    (tmp_path / "pipeline.toml").write_text(broken)
    land("1.json", ("shop.orders", {"id": 1, "name": "a", "at": 1}), ("shop.items", {"id": 1, "qty": 5}))
    first = start_command("run", "pipeline.toml", "--once")
    assert first.wait() == 4, first.stderr
    assert re.match(
        r"ERROR ./lake/items: at rest, 1 record parked since .*: QuarantineLimitError: ", sentences(first)[-2]
    )
    assert rows(read_rows, tmp_path / "lake/orders", "id", "name") == [(1, "a")]
    status = start_command("status", "--pipeline", "pipeline.toml")
    assert status.wait() == 0, status.stderr
    told = (
        r"\./lake/items: at rest since \S+ \S+ UTC; 1 record waits QuarantineLimitError: .* To take up a table at rest"
    )
    assert re.search(told, " ".join(status.stdout.split()))
    status = start_command("status", "lake/orders/", "--pipeline", "pipeline.toml", "--html", "page.html")
    assert status.wait() == 0, status.stderr
    assert "at rest" not in status.stdout
    assert not Parsed((tmp_path / "page.html").read_text()).all("section", "at-rest")

    nothing_new = start_command("run", "pipeline.toml", "--once")
    assert nothing_new.wait() == 4, "a scheduler would take the table for merged"
    assert re.match(r"ERROR ./lake/items: at rest, 1 record parked since ", sentences(nothing_new)[-2])
    assert sentences(nothing_new)[-1] == "INFO ended: everything available is merged or parked"

    (tmp_path / "pipeline.toml").write_text(mended)
    land("2.json", ("shop.items", {"id": 1, "qty": 6}), ("shop.items", {"id": 2, "qty": 1}))
    again = start_command("run", "pipeline.toml", "--once")
    assert again.wait() == 0, again.stderr
    assert rows(read_rows, tmp_path / "lake/items", "id", "qty") == [(1, 6), (2, 1)]
    assert rows(read_rows, tmp_path / "lake/parked") == []


@pytest.mark.long
def test_wrong_turns_are_a_sentence_each(start_command, land, write_pipeline, tmp_path):
    """Packages that cannot be fetched, a table without its column, a table that does not exist."""
    land("1.json", ("shop.orders", {"id": 1, "name": "a", "at": 1}))
    write_pipeline(rest='"spark.jars.packages" = "com.example:nothing:1.0"', choose_packages=True)
    packages = start_command("run", "pipeline.toml", "--once")
    assert packages.wait() == 3
    assert len(sentences(packages)) == 2
    assert packages.stderr.splitlines()[-1].startswith(
        "Spark could not fetch the packages com.example:nothing:1.0: no repository"
    )

    write_pipeline()
    text = (tmp_path / "pipeline.toml").read_text()
    (tmp_path / "pipeline.toml").write_text(text.replace('sequence_by = "at"', 'sequence_by = "moment"'))
    column = start_command("run", "pipeline.toml", "--once")
    assert column.wait() == 2
    assert "moment" in column.stderr.splitlines()[-1]
    assert "Traceback" not in column.stderr
    assert "\tat " not in column.stderr

    missing = start_command("status", "./lake/nowhere")
    assert missing.wait() == 3
    assert len(missing.stderr.splitlines()) == 1
