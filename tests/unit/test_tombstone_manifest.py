"""What a table remembers of its deletes, as the metadata domain holds it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from stream_merge.errors import ConfigurationChangedError
from stream_merge.tombstones.manifest import TombstoneFile, TombstoneManifest

MANIFEST = TombstoneManifest(
    keys=("id", "k"),
    sequence=("at",),
    read_version=7,
    files=(TombstoneFile(path="_stream_merge/tombstones/a", num_rows=3, oldest_ms=1, newest_ms=2, highest='{"s0":5}'),),
    truncated='{"s0":4}',
    older_columns=None,
    fields=("k.x", "k.Y"),
)


def test_it_is_read_as_it_was_written() -> None:
    assert TombstoneManifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_what_an_older_version_has_written_lacks_later_parts() -> None:
    values = json.loads(MANIFEST.to_json())
    for name in ("older_columns", "columns", "contents", "holder", "fields"):
        del values[name]
    read = TombstoneManifest.from_json(json.dumps(values))
    assert (read.older_columns, read.columns, read.contents, read.holder, read.fields) == ((), (), (), (), ())
    assert read.files == MANIFEST.files


@pytest.mark.parametrize("added", [{"format": 2}, {"later": []}])
def test_what_a_newer_version_has_written_is_refused(added: dict[str, object]) -> None:
    with pytest.raises(ConfigurationChangedError, match="newer version of stream_merge"):
        TombstoneManifest.from_json(json.dumps(json.loads(MANIFEST.to_json()) | added))


@pytest.mark.parametrize(
    ("written", "now"), [("at", "AT"), ("change Time", "Change time"), ("`at`", "`At`"), ("at + 1", "at + 1")]
)
def test_a_column_of_the_sequence_may_be_spelt_in_another_case(written: str, now: str) -> None:
    replace(MANIFEST, sequence=("n", written)).check("t", replace(MANIFEST, sequence=("N", now)))


@pytest.mark.parametrize(
    ("written", "now"),
    [
        (("at",), ("att",)),
        (("a", "b"), ("b", "a")),
        (("at",), ("at", "n")),
        (("tags.At",), ("tags.at",)),
        (("tags['At']",), ("tags['at']",)),
        (("IF(op = 'D', 1, 0)",), ("IF(op = 'd', 1, 0)",)),
    ],
)
def test_another_sequence_is_refused(written: tuple[str, ...], now: tuple[str, ...]) -> None:
    told = f"t was written with sequence_by {', '.join(written)}, and the sink now has {', '.join(now)}: "
    with pytest.raises(ConfigurationChangedError, match=re.escape(told)):
        replace(MANIFEST, sequence=written).check("t", replace(MANIFEST, sequence=now))
