"""What a terminal shows of many tables, and how it is shown again and again."""

from __future__ import annotations

import dataclasses
import io
import re
from datetime import datetime, timezone

import pytest
from rich.console import Console
from typer.testing import CliRunner

from stream_merge.cli.app import app
from stream_merge.cli.query.failures import MAX_LENGTH
from stream_merge.cli.show.overview import AskedTable, TableState, asked_table
from stream_merge.cli.show.overview_view import render_overview
from stream_merge.cli.show.parked import AtRest, lines_of
from stream_merge.cli.show.status import StatusError
from stream_merge.cli.show.status_command import Request, _StatusCommand
from stream_merge.cli.show.watch import watch
from stream_merge.metrics import ParkedTable
from tests.cli.sample_history import commits_of_a_stream, overview_of_a_shop, status_of

OVERVIEW_AT_80 = """\
shop  3 tables                                           2026-01-01 10:34:45 UTC
table               version  batch  commit  delay  rows/s  files  deleted  aside
./lake/customers        203    199    42 s  1.0 s     678     84     2.4%     11
./lake/orders           203    199    43 s  1.1 s     705    212    23.0%      6
./lake/order_items: not there yet"""
AT_REST_AT_80 = """\
./lake/items: at rest since 2026-01-01 09:58:20 UTC; 1,207 records wait
  PermissionError: no permission to write to ./lake/items
To take up a table at rest, mend what its reason says. It is tried again by
itself: with the first micro-batch of each start, and at least every half hour
with a micro-batch. It then gets all that waits, in order."""


def console_of(width: int = 80, height: int = 40, **options) -> Console:
    return Console(width=width, height=height, file=io.StringIO(), **options)


def printed(overview, width: int, mask=lambda text: text) -> str:
    console = console_of(width)
    console.print(render_overview(overview, width, mask))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_the_tables_of_a_pipeline_at_80_columns():
    assert printed(overview_of_a_shop(), 80) == OVERVIEW_AT_80


def test_what_needs_attention_is_coloured():
    console = console_of(force_terminal=True, color_system="standard")
    console.print(render_overview(overview_of_a_shop(), 80))
    coloured = re.findall(r"\x1b\[33m *(\S[^\x1b]*?) *\x1b\[0m", console.file.getvalue())
    assert coloured == ["11", "23.0%", "6", "./lake/order_items: not there yet"]


def test_names_are_masked_shortened_and_no_markup():
    overview = overview_of_a_shop()
    first, second, _ = overview.tables
    tables = (
        dataclasses.replace(first, target="s3a://hush-hush/warehouse/lake/customers"),
        dataclasses.replace(second, target="./[b]x[/nothing]"),
        TableState(target="./hush-hush/t", problem=StatusError("./hush-hush/t can't be read: [red]no[/] permission.")),
    )
    shown = printed(
        dataclasses.replace(overview, tables=tables, unlisted=("./hush-hush/{topic}",)),
        80,
        lambda text: text.replace("hush-hush", "***"),
    ).splitlines()
    assert shown[2].startswith("…se/lake/customers  ")
    assert shown[3].startswith("./[b]x[/nothing] ")
    assert shown[4] == "./***/t can't be read: [red]no[/] permission."
    assert shown[5] == "./***/{topic}: its tables are not listed, since their sources are not known here"


def test_a_pipeline_without_any_table_yet():
    missing = overview_of_a_shop().tables[2]
    shown = printed(dataclasses.replace(overview_of_a_shop(), tables=(missing,)), 80).splitlines()
    assert [line.split("  ")[0] for line in shown] == ["shop", "./lake/order_items: not there yet"]


class Readings:
    """Readings one after the other; an exception among them is raised."""

    def __init__(self, *readings):
        self._readings = list(readings)
        self.waits = []

    def read(self):
        found = self._readings.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self, seconds):
        self.waits.append(seconds)
        if not self._readings:
            raise KeyboardInterrupt


def test_elsewhere_each_reading_is_a_block():
    readings, console = Readings("first", StatusError("hush: it is away."), "second"), console_of()
    watch(
        console,
        readings.read,
        lambda text, lines: f"{text} {lines}",
        2.5,
        lambda text: text.replace("hush", "***"),
        readings.wait,
    )
    assert console.file.getvalue() == "first None\n\n***: it is away.\n\nsecond None\n\n"
    assert readings.waits == [2.5, 2.5, 2.5]


def test_on_a_terminal_each_reading_takes_the_place_of_the_last():
    readings = Readings("first", StatusError("it is away."), "second")
    console = console_of(40, 10, force_terminal=True, color_system=None)
    watch(console, readings.read, lambda text, lines: f"{text} {lines}\nbelow", 5, wait=readings.wait)
    written = console.file.getvalue()
    up = r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+"
    frames = [re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\r", "", frame).strip() for frame in re.split(up, written)]
    assert [frame for frame in frames if frame][:3] == [
        "first 10\nbelow",
        "it is away.\nfirst 9\nbelow",
        "second 10\nbelow",
    ]
    assert written.endswith("\x1b[?25h"), "the cursor is there again"


def test_what_cannot_be_read_the_first_time_is_an_error():
    readings = Readings(StatusError("There is no table x."))
    with pytest.raises(StatusError, match="There is no table x"):
        watch(console_of(), readings.read, lambda text, _: text, 5, wait=readings.wait)
    assert readings.waits == []


def test_ctrl_c_while_it_is_read_ends_it_too():
    readings, console = Readings("first", KeyboardInterrupt()), console_of()
    watch(console, readings.read, lambda text, _: text, 5, wait=readings.wait)
    assert console.file.getvalue() == "first\n\n"


@pytest.mark.parametrize(("height", "commits"), [(60, 10), (50, 10), (49, 9), (42, 2), (30, 0)])
def test_a_low_terminal_shows_fewer_commits(height, commits):
    console = console_of(80, height)
    request = Request(table="t", loaded=None, plot=None, html=None, limit=None, interval=5)
    view = _StatusCommand(None, request, console).view(status_of(commits_of_a_stream()), height)
    lines = ["".join(part.text for part in line) for line in console.render_lines(view)]
    assert sum(bool(re.match(r" +\d+ 01-01 ", line)) for line in lines) == commits
    assert height < 38 or len(lines) < height


def test_a_table_of_the_file_is_found_in_any_spelling():
    tables = [AskedTable(target="./lake/orders", quarantine="./rejected"), AskedTable(target="Shop.Items")]
    assert asked_table(tables, "lake//orders/") == tables[0]
    assert asked_table(tables, "shop.items") == tables[1]
    assert asked_table(tables, "./elsewhere") == AskedTable(target="./elsewhere")


PIPELINE = """\
[pipeline]
name = "shop"
checkpoint = "./checkpoint"
[source]
format = "kafka"
bootstrap_servers = "b:1"
topics = ["a"]
[[tables]]
target = "./lake/orders"
keys = ["id"]
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "There is nothing to show: name a table, or a pipeline file for all of its tables (--pipeline"),
        (("--pipeline", "p.toml", "--plot", "p.png"), "A plot shows one table: name it. For all tables of a pipeline"),
        (("t", "--html", "page.htm"), "page.htm: the name of a page must end with .html.\n"),
        (("--pipeline", "none.toml"), "none.toml: there is no such file; stream-merge init writes an example\n"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_spark_starts(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PIPELINE)
    done = CliRunner().invoke(app, ["status", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)
    assert CliRunner().invoke(app, ["status", "t", "--watch", "--interval", "0"]).exit_code == 2


def test_tables_at_rest_are_told_below_with_what_to_do():
    since = datetime(2026, 1, 1, 9, 58, 20, tzinfo=timezone.utc)
    error = "PermissionError: no permission\nto write to ./lake/items"
    table = ParkedTable(target="./lake/items", sources=("x",), since=since, num_batches=2, num_rows=1_207, error=error)
    overview = dataclasses.replace(overview_of_a_shop(), at_rest=AtRest(tables=(table,)))
    assert printed(overview, 80) == f"{OVERVIEW_AT_80}\n{AT_REST_AT_80}"
    hostile = dataclasses.replace(table, target="./hush-hush/[b]x[/nothing]", error="[red]no[/] hush-hush")
    shown = printed(
        dataclasses.replace(overview, at_rest=AtRest(tables=(hostile,))), 100, lambda t: t.replace("hush-hush", "***")
    ).splitlines()
    assert shown[5:7] == [
        "./***/[b]x[/nothing]: at rest since 2026-01-01 09:58:20 UTC; 1,207 records wait",
        "  [red]no[/] ***",
    ]
    # Half a secret would not be found.
    long = dataclasses.replace(table, error=f"{'x' * (MAX_LENGTH - 5)} hush-hush")
    shown = printed(
        dataclasses.replace(overview, at_rest=AtRest(tables=(long,))), 2_000, lambda t: t.replace("hush-hush", "***")
    ).splitlines()
    assert shown[6] == f"  {'x' * (MAX_LENGTH - 5)} ***"
    (line,) = lines_of([long], lambda t: t.replace("hush-hush", "***"))
    assert line.endswith("xxx ***")
    longer = dataclasses.replace(table, error=f"{'x' * MAX_LENGTH}x")
    assert lines_of([longer], str)[0].endswith(f": {'x' * (MAX_LENGTH - 1)}…")
    unknown = dataclasses.replace(overview, at_rest=AtRest(problem="./parked can't be read: [no]"))
    assert printed(unknown, 100).splitlines()[5:] == ["./parked can't be read: [no]"]
