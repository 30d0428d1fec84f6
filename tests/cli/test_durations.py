"""Durations and column lists as a pipeline file writes them."""

from datetime import timedelta

import pytest

from stream_merge.cli.file.durations import parse_duration, parse_interval
from stream_merge.cli.file.option_checks import ddl_names


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("7 days", timedelta(days=7)),
        ("1 day", timedelta(days=1)),
        ("12 Hours", timedelta(hours=12)),
        ("1.5 minutes", timedelta(seconds=90)),
        (" 30seconds ", timedelta(seconds=30)),
        ("0 seconds", timedelta(0)),
    ],
)
def test_durations(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "7", "days", "-1 day", "1 week", "1 month", "1 day 2 hours"])
def test_texts_that_are_no_durations(text):
    with pytest.raises(ValueError, match="must be a number and seconds, minutes, hours or days"):
        parse_duration(text)


def test_a_duration_that_is_too_long():
    with pytest.raises(ValueError, match="is too long; give fewer days"):
        parse_duration("99999999999 days")


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("10 seconds", timedelta(seconds=10)),
        ("0 seconds", timedelta(0)),
        ("1 minute 30 seconds", timedelta(seconds=90)),
        ("interval 1 hour", timedelta(hours=1)),
        (" 500 Milliseconds ", timedelta(milliseconds=500)),
        ("1.5 seconds", timedelta(seconds=1.5)),
        ("1 week 2 days", timedelta(days=9)),
    ],
)
def test_intervals(text, interval):
    assert parse_interval(text) == interval


@pytest.mark.parametrize(
    "text", ["", "10", "often", "1 month", "1 minute and", "1.5 hours", "1 secondly", "99999999999 days"]
)
def test_texts_that_are_no_intervals(text):
    assert parse_interval(text) is None


def test_names_of_ddl_columns():
    ddl = (
        "id BIGINT NOT NULL, `a ``b`` c` STRUCT<x: INT, y: DECIMAL(4, 2)>, price DECIMAL(12, 2) COMMENT 'a, b', "
        "`x,y`: STRING"
    )
    assert ddl_names(ddl) == ["id", "a `b` c", "price", "x,y"]
