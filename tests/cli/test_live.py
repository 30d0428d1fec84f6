"""What the terminal shows, and the lines of a log."""

import io
import re
from datetime import datetime, timezone

import pytest
from rich.console import Console

from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.live import LiveView, count, duration, render, result_line
from stream_merge.metrics import ParkedTable


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock, make_result, report):
    progress = Progress("shop", clock)
    progress.set_state(State.RUNNING)
    clock.now += 60
    progress.on_result(
        make_result(
            "./lake/orders",
            batch_id=12,
            version=14,
            num_source_rows=1_234_567,
            num_target_rows_inserted=1_200_000,
            num_target_rows_updated=30_000,
            num_target_rows_deleted=4_567,
            execution_time_ms=1_240,
        )
    )
    progress.on_result(
        make_result(
            "s3://a-bucket-with-a-long-name/warehouse/lake/order_items",
            batch_id=12,
            version=3,
            num_source_rows=90,
            num_target_rows_inserted=80,
            num_quarantined_rows=10,
            execution_time_ms=75_000,
        )
    )
    progress.on_query_progress(
        report(12, end={"t": {"0": 5_000}}, latest={"t": {"0": 17_000}}, newest={"all": 1_058_000})
    )
    clock.now += 12
    return progress


def shown(progress, width, height=40, **options):
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, record=True)
    console.print(render(progress.snapshot(), width, height, **options))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_80_columns(progress):
    assert shown(progress, 80) == (
        "shop  running  up 1 min · batch 12 · 120 rows/s · 12,000 records behind\n"
        "table                   inserts  updates  deletes  rows/s  behind  commit  aside\n"
        "./lake/orders              1.2M   30,000    4,567  20,576    14 s    12 s      0\n"
        "…ouse/lake/order_items       80        0        0     1.5    14 s    12 s     10"
    )


def test_a_path_is_no_markup(progress, make_result):
    progress.on_result(make_result("./[b]lake[/nothing]"))
    assert "\n./[b]lake[/nothing]  " in shown(progress, 80)


def test_120_columns(progress):
    assert shown(progress, 120) == (
        "shop  running  up 1 min · batch 12 · 120 rows/s · 12,000 records behind\n"
        "table                                    batch  version   took  inserts  updates  deletes  rows/s  behind  "
        "commit  aside\n"
        "./lake/orders                               12       14  1.2 s     1.2M   30,000    4,567  20,576    14 s    "
        "12 s      0\n"
        "…a-long-name/warehouse/lake/order_items     12        3  1 min       80        0        0     1.5    14 s    "
        "12 s     10"
    )


def test_a_retry_is_told_below(progress, clock):
    progress.on_failure()
    progress.set_state(State.RETRYING, "Kafka does not answer: no broker at s3cret:9092.", clock.now + 8)
    lines = shown(progress, 80, mask=lambda text: text.replace("s3cret", "***")).splitlines()
    assert lines[0] == "shop  retrying  up 1 min · batch 12 · 120 rows/s · 12,000 records behind · 1"
    assert lines[-1] == "Kafka does not answer: no broker at ***:9092; next attempt in 8.0 s"


def test_tables_without_room_are_counted(progress, clock, make_result):
    clock.now += 1
    for number in range(20):
        progress.on_result(make_result(f"./t{number:02d}", batch_id=13))
    lines = shown(progress, 80, height=12).splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == ["./t00", "./t01", "./t02", "./t03", "./t04", "./t05"]
    assert lines[-1] == "and 16 more tables"


def test_before_the_first_batch_there_is_one_line(clock):
    assert shown(Progress("shop", clock), 80) == "shop  starting  up 0.0 s"


def test_the_last_state_stays_on_the_terminal(progress):
    file = io.StringIO()
    console = Console(file=file, width=80, height=20, force_terminal=True, color_system=None)
    with LiveView(console, progress, lambda text: text):
        progress.set_state(State.ENDED)
    written = file.getvalue()
    assert "shop  ended  up 1 min" in written[written.rindex("shop  ") :]
    assert written.rstrip().endswith("\x1b[?25h"), "the cursor is there again"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.25, "0.2"), (9.5, "9.5"), (10.4, "10"), (99_999, "99,999"), (100_000, "100.0k"), (999_950, "1.0M"),
     (1_234_567, "1.2M"), (4_500_000_000, "4.5G"), (12_345_678_901_234, "12345.7G")],
)  # fmt: skip
def test_numbers_are_short(number, text):
    assert count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.9, "59 s"), (60, "1 min"), (3_599, "60 min"),
     (7_200, "2 h"), (200_000, "2 d")],
)  # fmt: skip
def test_lengths_of_time_are_short(seconds, text):
    assert duration(seconds) == text


def test_a_line_of_the_log_says_what_was_merged(progress, make_result):
    result = make_result(
        batch_id=7,
        version=9,
        num_source_rows=1_500,
        num_target_rows_inserted=1_000,
        num_target_rows_updated=400,
        num_target_rows_deleted=90,
        num_quarantined_rows=10,
        conflicts=("ConcurrentAppendException",),
        execution_time_ms=1_240,
    )
    assert result_line(result, progress.total_offset_lag()) == (
        "./lake/orders: batch 7, version 9: 1,500 rows, 1,000 inserted, 400 updated, 90 deleted, 10 set aside, 1 "
        "conflict in 1.2 s; 12,000 records behind"
    )
    skipped = make_result(batch_id=7, skipped=True)
    assert result_line(skipped, None) == "./lake/orders: batch 7 skipped: the table has it already"


def parked(target, num_rows, error, next_attempt=None):
    return ParkedTable(
        target=target,
        sources=("x",),
        since=datetime.fromtimestamp(400, timezone.utc),
        num_batches=3,
        num_rows=num_rows,
        error=error,
        next_attempt=None if next_attempt is None else datetime.fromtimestamp(next_attempt, timezone.utc),
    )


def test_tables_at_rest_are_told_with_since_when_why_how_much_and_what_to_do(progress):
    """Also one that was not merged since the start; the reason has line ends, markup, and more than there is room."""
    why = "QuarantineLimitError: [red]rows[/]\n" + "are too many " * 20
    found = (parked("./s3cret/items", 1, "no permission"), parked("./lake/orders", 1_207, why, 1_114))
    progress.watch_parked(lambda: found)
    text = shown(progress, 80, mask=lambda text: text.replace("s3cret", "***"))
    assert text.splitlines()[1] == "tables at rest"
    assert text.split("\n", 5)[5] == (
        "./lake/orders: at rest since 1970-01-01 00:06:40 UTC; 1,207 records wait; next\n"
        "attempt in 42 s\n"
        "  QuarantineLimitError: [red]rows[/] are too many are too many are too many are\n"
        "  too many are too many are too many are too many are too many are too many …\n"
        "./***/items: at rest since 1970-01-01 00:06:40 UTC; 1 record waits; next attempt\n"
        "with the next micro-batch\n"
        "  no permission\n"
        "To take up a table at rest, mend what its reason says. It is tried again by\n"
        "itself: with the first micro-batch of each start, and at least every half hour\n"
        "with a micro-batch. It then gets all that waits, in order."
    )


def test_many_tables_at_rest_leave_room_for_the_others(progress, make_result):
    for number in range(30):
        progress.on_result(make_result(f"./t{number:02d}", batch_id=13))
    progress.watch_parked(lambda: tuple(parked(f"./t{number:02d}", 2, "why") for number in range(20)))
    lines = shown(progress, 120, height=24).splitlines()
    assert len(lines) <= 24
    assert "and 16 more tables at rest, which stream-merge status --pipeline shows" in lines
    assert [line.split(":")[0] for line in lines if ": at rest" in line] == ["./t00", "./t01", "./t02", "./t03"]


def test_the_name_of_a_table_at_rest_is_coloured(progress):
    progress.watch_parked(lambda: (parked("./lake/orders", 2, "why"),))
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(render(progress.snapshot(), 120))
    coloured = re.findall(r"\x1b\[33m *(\S[^\x1b]*?) *\x1b\[0m", console.file.getvalue())
    assert coloured[:3] == ["· 1 table at rest", "./lake/orders", "10"]
