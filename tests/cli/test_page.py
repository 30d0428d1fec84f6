"""The page: what it says, that it needs nothing else, and that no text from outside can change it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from datetime import datetime, timezone

import pytest

from stream_merge import MergeResult
from stream_merge.cli.file.secrets import Secrets
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.live_page import RecentResults, served_page
from stream_merge.cli.show.overview import Overview, TableState
from stream_merge.cli.show.page import render
from stream_merge.cli.show.page_style import FILE_POLICY, SCRIPT, SERVED_POLICY, STYLE
from stream_merge.cli.show.parked import HOW_TO_TAKE_UP, AtRest
from stream_merge.cli.show.quarantined import QuarantinedRows, Reason, Sample
from stream_merge.cli.show.status import StatusError
from stream_merge.cli.show.status_page import check_page_file, status_page, write_page
from stream_merge.metrics import ParkedTable
from tests.cli.parsed_html import LOADING, Parsed
from tests.cli.sample_history import START_MS, commits_of, merge_metrics, overview_of_a_shop, row, status_of

HOSTILE = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='x"


@pytest.fixture(scope="module")
def shop():
    return Parsed(render(status_page(overview_of_a_shop())))


def test_every_table_has_a_line_and_a_section(shop):
    [tables] = shop.all("table", "list")
    assert tables.rows() == [
        ["table", "version", "batch", "commit", "delay", "rows/s", "files", "deleted", "aside"],
        ["./lake/customers", "203", "199", "42 s", "1.0 s", "678", "84", "2.4%", "11"],
        ["./lake/orders", "203", "199", "43 s", "1.1 s", "705", "212", "23.0%", "6"],
        ["./lake/order_items", "not there yet"],
    ]
    assert [each.text for each in tables.all("td", "attention")] == ["11", "23.0%", "6"]
    ids = [each.attributes["id"] for each in shop.all("section")]
    assert shop.links == [f"#{each}" for each in ids]
    assert [each.all("h2")[0].text for each in shop.all("section")] == [
        "./lake/customers version 203, 200 merges, 4 commits of other writers",
        "./lake/orders version 203, 200 merges, 4 commits of other writers",
        "./lake/order_items",
    ]
    assert shop.all("title")[0].text == "shop"
    assert shop.all("header")[0].text == "shop 2026-01-01 10:34:45 UTC"


def test_the_figures_of_a_table(shop):
    customers = shop.section("./lake/customers")
    assert customers.all("dl", "tiles")[0].facts() == {
        "Last commit": "42 s ago",
        "Delay of its batch": "1.0 s",
        "Rows a second": "678",
        "Rows a second of merging": "4,499",
        "Files": "84",
        "Deleted rows": "2.4%",
        "Last compaction": "-",
        "Conflicts in 100 merges": "2",
        "Quarantined in 100 merges": "11",
    }
    last, table = (panel.facts() for panel in customers.all("div", "panel"))
    assert last["Changes"] == "3,530 inserted, 2,837 updated, 306 deleted"
    assert last["Of query"] == "5f2c81d0-93a1-4a5e-8f39-0e7f2a1c9b64"
    assert table["Tombstones"] == "40,211, the oldest of 3 d 6 h ago"
    assert table["Other writers"] == "OPTIMIZE 3 (4 min 5 s ago) CREATE TABLE 1 (34 min 46 s ago)"
    [batches] = customers.all("table", "batches")
    rows = {cells[0]: cells[1:] for cells in batches.rows()}
    assert rows["Batches"] == ["last", "last 10", "last 100", "all 200"]
    assert rows["Rows of the source"] == ["6,673", "68,937", "651,725", "1,347,743"]
    assert rows["quarantined"] == ["0", "0", "11", "28"]
    assert rows["Conflicts with other writers"] == ["0", "0", "2", "5"]


def test_the_phases_of_the_last_batch_are_a_bar(shop):
    [bar] = shop.section("./lake/customers").all("div", "phases")
    assert [key.text for key in bar.all("span", "key")] == [
        "source 0.27 s",
        "locate 0.36 s",
        "stage 0.18 s",
        "rest 0.09 s",
    ]
    parts = [
        (part.attributes["class"], float(part.attributes["x"]), float(part.attributes["width"]))
        for part in bar.all("rect")
    ]
    assert [name for name, _, _ in parts] == ["source", "locate", "stage", "rest"]
    assert [round(width) for _, _, width in parts] == [30, 40, 20, 10]
    assert [round(x) for _, x, _ in parts] == [0, 30, 70, 90]


def test_the_last_ten_commits(shop):
    [commits] = shop.section("./lake/customers").all("table", "commits")
    lines = commits.rows()
    assert len(lines) == 11
    assert lines[0][:4] == ["Version", "Time (UTC)", "Commit", "Source"]
    assert lines[1][:10] == [
        "203",
        "2026-01-01 10:34:03",
        "batch 199",
        "6,673",
        "3,530",
        "2,837",
        "306",
        "218",
        "0",
        "0.90",
    ]
    longest = max(float(line[9]) for line in lines[1:])
    bars = [sum(float(part.attributes["width"]) for part in bar.all("rect")) for bar in commits.all("svg")]
    assert bars == pytest.approx([100 * float(line[9]) / longest for line in lines[1:]], abs=0.5)


def test_commits_of_others_and_compactions():
    rows = [
        row(0, START_MS, operation="CREATE TABLE"),
        row(1, START_MS + 1000, merge_metrics(inserted=1)),
        row(2, START_MS + 2000, {"numRemovedFiles": 9, "numAddedFiles": 1, "maintenanceTimeMs": 700}, "OPTIMIZE"),
    ]
    status = status_of(commits_of(rows))
    page = Parsed(
        render(status_page(Overview(name="t", now=status.now, tables=(TableState(target="t", status=status),))))
    )
    assert [line[:3] for line in page.all("table", "commits")[0].rows()[1:]] == [
        ["2", "2026-01-01 10:00:02", "compaction"],
        ["1", "2026-01-01 10:00:01", "merge"],
        ["0", "2026-01-01 10:00:00", "CREATE TABLE"],
    ]
    assert page.all("dl", "tiles")[0].facts()["Last compaction"] == "42 s ago"
    assert page.all("table", "list") == [], "one table needs no list"


def test_the_quarantine_is_told_by_reason_with_samples_and_a_way_out(shop):
    [quarantine] = shop.section("./lake/orders").all("div", "quarantine")
    assert quarantine.all("h3")[0].text == "Quarantine ./lake/rejected"
    assert quarantine.all("table", "reasons")[0].rows() == [
        ["Reason", "Rows", "Last (UTC)"],
        ["quantity cannot be converted to INT", "11", "2026-01-01 10:31:45"],
        ["NULL in a key (order_id)", "6", "2026-01-01 10:25:45"],
        ["expectation positive_price failed", "1", "2026-01-01 10:04:45"],
    ]
    samples, starts = (["".join(each.text) for each in part.all("li")] for part in quarantine.all("ul"))
    assert samples[0] == (
        "quantity cannot be converted to INT: many shop.public.orders, partition 0, offset 88112 "
        '{"op":"u","after":{"order_id":"7f1c","quantity":"many"}}'
    )
    assert "The newest of 18 rows:" in quarantine.text
    assert "correct the cause, then run stream-merge quarantine replay with the pipeline's file" in quarantine.text
    assert starts == ["shop.public.orders, partition 0, offset 71220", "shop.public.orders, partition 2, offset 40021"]
    assert shop.section("./lake/customers").all("div", "quarantine") == []


def page_of(quarantined: QuarantinedRows) -> Parsed:
    overview = overview_of_a_shop()
    state = dataclasses.replace(overview.tables[0], quarantined=quarantined)
    return Parsed(render(status_page(dataclasses.replace(overview, tables=(state,)))))


def test_rare_reasons_are_summed_up_and_an_empty_quarantine_says_so():
    now = overview_of_a_shop().now
    reasons = tuple(Reason(kind=f"reason {number}", num_rows=10 - number, last=now) for number in range(8))
    [quarantine] = page_of(QuarantinedRows(table="r", reasons=reasons)).all("div", "quarantine")
    assert quarantine.all("table", "reasons")[0].rows()[-2:] == [
        ["reason 4", "6", "2026-01-01 10:34:45"],
        ["other reasons", "12", ""],
    ]
    assert "first records" not in quarantine.text
    [empty] = page_of(QuarantinedRows(table="r")).all("div", "quarantine")
    assert empty.text == "Quarantine r No rows of this table."
    [broken] = page_of(QuarantinedRows(table="r", problem="no permission")).all("div", "quarantine")
    assert broken.text == "Quarantine r no permission"


def hostile_overview() -> Overview:
    """Return an overview in which every text that comes from outside is hostile."""
    metadata = [row(0, START_MS, merge_metrics(inserted=1), userMetadata=HOSTILE), row(1, START_MS, operation=HOSTILE)]
    status = status_of(commits_of(metadata, [(0, HOSTILE, 5)]), table=HOSTILE)
    quarantined = QuarantinedRows(
        table=HOSTILE,
        reasons=(Reason(kind=HOSTILE, num_rows=1, last=status.now),),
        samples=(Sample(reason=HOSTILE, origin=HOSTILE, text=HOSTILE),),
        starts=((HOSTILE, 0, 0),),
    )
    return Overview(
        name=HOSTILE,
        now=status.now,
        tables=(
            TableState(target=HOSTILE, status=status, quarantined=quarantined),
            TableState(target=HOSTILE, problem=StatusError(HOSTILE)),
            TableState(target="r", problem=StatusError(""), quarantined=QuarantinedRows(table="r", problem=HOSTILE)),
        ),
        unlisted=(HOSTILE,),
    )


def hostile_live_page() -> str:
    progress, results = Progress(HOSTILE), RecentResults()
    result = MergeResult(
        target=HOSTILE,
        batch_id=1,
        query_id=HOSTILE,
        strategy=HOSTILE,
        reason=HOSTILE,
        conflicts=(HOSTILE,),
        maintenance=HOSTILE,
        phase_ms={"source": 1},
        execution_time_ms=1,
    )
    progress.on_result(result)
    results.on_result(result)
    progress.set_state(State.RETRYING, HOSTILE, retry_at=0)
    lag = {HOSTILE: {"0": 5}, "t": {"0": 3}}
    progress.on_query_progress({"sources": [{"latestOffset": lag, "endOffset": {}}]})
    return served_page(progress, results, lambda text: text)()


def test_hostile_texts_stay_texts():
    for text, scripts in ((render(status_page(hostile_overview())), 0), (hostile_live_page(), 1)):
        page = Parsed(text)
        assert len(page.all("script")) == scripts
        assert page.all("img") == []
        assert [name for _, name, _ in page.attributes if name.startswith("on")] == []
        assert page.all("h1")[0].text.startswith(HOSTILE)
        assert page.all("h2")[0].text.startswith(HOSTILE)
        assert text.count("<script>alert") == 0
        shown = page.all("main")[0].text
        assert shown.count("alert(1)") >= 8
    assert "<script>alert" not in text


def test_a_page_loads_nothing_from_elsewhere(shop):
    """The only URLs are those of its own sections."""
    for text in (render(status_page(overview_of_a_shop(), 5)), hostile_live_page()):
        page = Parsed(text)
        assert [each for each in page.attributes if each[1] in LOADING] == []
        assert [each for each in page.links if not re.fullmatch(r"#table-\d+", each)] == []
        assert {each.tag for each in page.all("head")[0].parts if not isinstance(each, str)} <= {
            "meta", "title", "style", "script", "noscript",
        }  # fmt: skip
        assert re.findall(r"(?:https?:)?//[a-z]|url\(|@import", text.replace(HOSTILE, "")) == []


def test_the_policies_admit_exactly_the_style_and_the_script():
    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    page = Parsed(render(status_page(overview_of_a_shop())))
    [style] = page.all("style")
    assert style.parts == [STYLE]
    [policy] = [
        each.attributes["content"]
        for each in page.all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert (
        policy == FILE_POLICY == f"default-src 'none'; style-src {digest(STYLE)}; base-uri 'none'; form-action 'none'"
    )
    served = Parsed(hostile_live_page())
    assert [each.parts for each in served.all("script")] == [[SCRIPT]]
    assert f"script-src {digest(SCRIPT)}; connect-src 'self'" in SERVED_POLICY
    assert "unsafe" not in SERVED_POLICY


def test_secrets_are_masked_everywhere():
    secrets = Secrets()
    secrets.add('s3cret&<"')
    secrets.add("hush-hush")
    status = status_of(
        commits_of([row(0, START_MS, merge_metrics(inserted=1), userMetadata="by hush-hush")]), table='./s3cret&<"/t'
    )
    long = "x" * 495 + "hush-hush"
    quarantined = QuarantinedRows(
        table="./hush-hush/rejected",
        reasons=(Reason(kind="hush-hush", num_rows=1, last=status.now),),
        samples=(Sample(reason="hush-hush", origin="hush-hush", text=long),),
        starts=(("hush-hush", 0, 0),),
    )
    overview = Overview(
        name="shop",
        now=status.now,
        tables=(
            TableState(target='./s3cret&<"/t', status=status, quarantined=quarantined),
            TableState(target="./hush-hush/u", problem=StatusError("hush-hush")),
        ),
        unlisted=("./hush-hush/{topic}",),
    )
    text = render(status_page(overview), secrets.mask)
    assert "s3cret" not in text
    assert "hush" not in text, "not even the beginning of one where a long text is cut"
    page = Parsed(text)
    assert [each.all("h2")[0].text.split()[0] for each in page.all("section")] == ["./***/t", "./***/u"]


def test_long_and_unprintable_texts():
    state = TableState(target="a\x00b\ud800c\x1b[31m", problem=StatusError("y" * 1000))
    text = render(status_page(Overview(name="n", now=overview_of_a_shop().now, tables=(state,))))
    page = Parsed(text)
    assert page.all("h2")[0].text == "a\ufffdb\ufffdc\ufffd[31m"
    assert page.all("p", "problem")[0].text == "y" * 500 + "…"


def test_a_page_that_is_written_again_and_again_is_loaded_again_without_a_script():
    page = Parsed(render(status_page(overview_of_a_shop(), 30)))
    assert ("meta", "content", "30") in page.attributes
    assert page.all("script") == []
    assert "refresh" not in [
        each.attributes.get("http-equiv") for each in Parsed(render(status_page(overview_of_a_shop()))).all("meta")
    ]


def test_tables_whose_topics_are_not_known_are_named():
    overview = dataclasses.replace(overview_of_a_shop(), unlisted=("./lake/{table}",))
    assert "./lake/{table}: its tables are not listed, since their sources are not known here." in (
        Parsed(render(status_page(overview))).all("main")[0].text
    )


def test_a_page_is_written_in_one_step(tmp_path):
    file = tmp_path / "page.html"
    write_page(file, "old")
    with file.open() as reader:
        write_page(file, "new ü \ud800")
        assert reader.read() == "old", "who reads the file keeps the page that it was"
    assert file.read_bytes() == "new ü ?".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert file.stat().st_mode & 0o044, "a web server may read it"


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(StatusError) as raised:
        write_page(tmp_path / "folder.html", "x")
    assert str(raised.value) == f"{tmp_path}/folder.html: the page cannot be written: Is a directory."
    assert raised.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]
    for name, why in (
        ("page.htm", "the name of a page must end with .html."),
        ("none/page.html", "the page cannot be written: there is no folder"),
    ):
        with pytest.raises(StatusError, match=re.escape(why)) as raised:
            check_page_file(tmp_path / name)
        assert raised.value.exit_code == 2


def test_tables_at_rest_are_told_with_what_to_do():
    since = datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
    parked = [
        ParkedTable(target=target, sources=("x",), since=since, num_batches=2, num_rows=1, error="no\n<i>room</i>")
        for target in ("lake/orders", "./lake/order_items")
    ]
    overview = dataclasses.replace(overview_of_a_shop(), at_rest=AtRest(tables=tuple(parked)))
    page = Parsed(render(status_page(overview)))
    (told,) = page.all("section", "at-rest")
    assert told.all("table", "resting")[0].rows()[1:] == [
        [target, "2026-01-01 09:00:00 UTC", "1", "2", "by the running pipeline", "no <i>room</i>"]
        for target in ("lake/orders", "./lake/order_items")
    ]
    assert told.all("p", "notice")[0].text == HOW_TO_TAKE_UP
    resting = "at rest since 2026-01-01 09:00:00 UTC; 1 record waits"
    assert page.section("./lake/orders").all("h2")[0].text.endswith(f"; {resting}")
    assert page.section("./lake/order_items").all("p", "problem")[0].text == f"not there yet; {resting}"

    problem = dataclasses.replace(overview, at_rest=AtRest(problem="./parked can't be read: <no>"))
    (told,) = Parsed(render(status_page(problem))).all("section", "at-rest")
    assert told.text == "Tables at rest ./parked can't be read: <no>"
