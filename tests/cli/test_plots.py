"""The plots: what they show, and that a file is complete and needs nothing else."""

from __future__ import annotations

import dataclasses
import re
import struct
import sys
import xml.etree.ElementTree as ET
from datetime import timedelta

import pytest

from stream_merge.cli.show.plots import check_plot_file, draw, plot
from stream_merge.cli.show.status import StatusError
from tests.cli.sample_history import START_MS, commits_of, commits_of_a_stream, merge_metrics, row, status_of

SVG = "{http://www.w3.org/2000/svg}"


def status_with(number: int = 200):
    return status_of(commits_of_a_stream(number))


def texts_of(svg: str) -> list[str]:
    """Return the texts that an SVG shows."""
    return ["".join(text.itertext()).strip() for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_three_panels_share_the_axis_of_time():
    figure = draw(status_with())
    times, rows, delay = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Time of a batch", "Rows of a batch", "Delay"]
    assert times.get_xlim() == rows.get_xlim() == delay.get_xlim()
    assert figure.get_suptitle() == "./lake/customers   200 merges, 2026-01-01 10:00 to 10:34 UTC"


def test_legends_name_what_is_drawn():
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in draw(status_with()).axes]
    assert legends == [
        ["source", "locate", "stage", "rest", "after a conflict"],
        ["inserted", "updated", "deleted", "with quarantined rows"],
        ["since the commit before", "from planning to commit", "commit of another writer"],
    ]


def test_a_bar_is_as_high_as_its_parts():
    commits = commits_of(
        [
            row(0, START_MS, merge_metrics(inserted=10, updated=5, deleted=2, ms=2000)),
            row(1, START_MS + 10_000, merge_metrics(inserted=1, updated=4, deleted=3, ms=1000)),
        ]
    )
    times, rows, _ = draw(status_of(commits)).axes
    assert times.get_ylim() == (0, pytest.approx(2.16))
    assert rows.get_ylim() == (0, pytest.approx(18.36))
    tops = {
        area.get_label(): max(y for _, y in area.get_paths()[0].vertices)
        for area in (*times.collections, *rows.collections)
    }
    assert tops == pytest.approx(
        {"source": 0.6, "locate": 1.4, "stage": 1.8, "rest": 2.0, "inserted": 10, "updated": 15, "deleted": 17}
    )


def test_the_delay_is_that_of_the_commits():
    commits = commits_of(
        [row(version, START_MS + 10_000 * version, merge_metrics(inserted=1)) for version in range(3)],
        [
            (0, "query", 0),
            (0, "query/planned-ms", START_MS - 1500),
            (2, "query", 2),
            (2, "query/planned-ms", START_MS + 17_500),
        ],
    )
    gaps, delays = draw(status_of(commits)).axes[2].lines
    assert list(gaps.get_ydata()) == [10.0, 10.0]
    assert list(delays.get_ydata()) == [1.5, 2.5]


def test_one_huge_batch_does_not_flatten_the_others():
    metrics = [merge_metrics(inserted=500_000 if version == 0 else 1000) for version in range(40)]
    commits = commits_of([row(version, START_MS + 10_000 * version, m) for version, m in enumerate(metrics)])
    rows = draw(status_of(commits)).axes[1]
    assert rows.get_ylim() == (0, 2000)
    assert [text.get_text() for text in rows.texts] == ["500,000"]


@pytest.mark.parametrize("number", [1, 2, 1000])
def test_any_number_of_merges_can_be_drawn(number, tmp_path):
    plot(status_with(number), tmp_path / "plot.svg")
    merges = "1 merge," if number == 1 else f"{number:,} merges,"
    assert any(merges in text for text in texts_of((tmp_path / "plot.svg").read_text()))


def test_a_stream_that_does_nothing(tmp_path):
    commits = commits_of([row(version, START_MS + 10_000 * version, merge_metrics(ms=0)) for version in range(3)])
    times, rows, _ = draw(status_of(commits)).axes
    assert times.get_ylim() == rows.get_ylim() == (0, 1)


def test_png(tmp_path):
    file = tmp_path / "plot.png"
    plot(status_with(), file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (1210, 924)
    assert content.endswith(b"IEND\xaeB`\x82")


def test_svg_is_the_same_each_time_and_its_text_is_text(tmp_path):
    for name in ("one.svg", "two.SVG"):
        plot(status_with(), tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert one == (tmp_path / "two.SVG").read_text()
    assert {"Time of a batch", "locate", "42,832", "10:15"} <= set(texts_of(one))


def test_html_is_one_page_that_needs_nothing_else(tmp_path):
    status = dataclasses.replace(status_with(), table="./lake/<customers> & co")
    plot(status, tmp_path / "plot.html")
    page = (tmp_path / "plot.html").read_text()
    assert page.startswith("<!DOCTYPE html>\n")
    assert "<title>./lake/&lt;customers&gt; &amp; co   200 merges, 2026-01-01 10:00 to 10:34 UTC</title>" in page
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    assert "Rows of a batch" in texts_of(svg)
    assert "<?xml" not in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []


def test_a_long_name_does_not_run_out_of_the_picture():
    status = dataclasses.replace(status_with(), table="s3://" + "folder/" * 20 + "customers")
    assert draw(status).get_suptitle().startswith("…r/folder/folder/")
    assert len(draw(status).get_suptitle()) < 120


def test_days_are_in_the_title():
    commits = commits_of([row(v, START_MS + v * 86_400_000, merge_metrics(inserted=1)) for v in range(2)])
    assert draw(status_of(commits)).get_suptitle().endswith("2 merges, 2026-01-01 10:00 to 2026-01-02 10:00 UTC")
    assert commits[1].time - commits[0].time == timedelta(days=1)


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "plot.htm"])
def test_another_ending_is_refused(name, tmp_path):
    file = tmp_path / name
    with pytest.raises(StatusError, match=re.escape(f"{file}: the name of a plot must end with .png, .svg or .html.")):
        plot(status_with(2), file)
    assert not file.exists()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    file = tmp_path / "none" / "plot.png"
    with pytest.raises(StatusError) as raised:
        check_plot_file(file)
    assert str(raised.value) == f"{file}: the plot cannot be written: there is no folder {tmp_path}/none; create it."
    assert raised.value.exit_code == 2


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "folder.png"
    file.mkdir()
    with pytest.raises(StatusError) as raised:
        plot(status_with(2), file)
    assert str(raised.value) == f"{file}: the plot cannot be written: Is a directory."
    assert raised.value.exit_code == 1


def test_drawing_leaves_no_state_behind():
    draw(status_with(2))
    assert "matplotlib.pyplot" not in sys.modules
