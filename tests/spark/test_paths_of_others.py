"""Logs of writers that spell the paths of files otherwise than Delta: what a merge removes is spelt as the log has
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from stream_merge import merge_sink
from tests.spark.delta_log import latest_version, read_actions

SCHEMA = "id INT, n INT"

SPELLINGS = {
    "a b.parquet": "a%20b.parquet",
    "a+b.parquet": "a%2Bb.parquet",
    "c+d.parquet": "c+d.parquet",
    "k=v.parquet": "k%3Dv.parquet",
    "l=m.parquet": "l=m.parquet",
    "50%.parquet": "50%25.parquet",
    "a%2Bb.parquet": "a%252Bb.parquet",
    "gr\u00fcn \u65e5\u672c.parquet": "gr%C3%BCn%20%E6%97%A5%E6%9C%AC.parquet",
    "gr\u00fcn.parquet": "gr\u00fcn.parquet",
    "low\u00e9.parquet": "low%c3%a9.parquet",
    "plain.parquet": "%70lain.parquet",
    "x&y,(z)'~.parquet": "x%26y%2C%28z%29%27%7E.parquet",
    "p=1/q.parquet": "p%3D1/q.parquet",
}
"""Name of a file, and how its log writes it."""


@pytest.fixture
def table(spark: Any, create_table: Any, tmp_path: Path, deletion_vectors: bool) -> str:
    """Return a table with two rows in each file of SPELLINGS and in two whose paths are absolute."""
    path = create_table(SCHEMA, deletion_vectors=deletion_vectors, path=str(tmp_path / "a+b c"))
    version = latest_version(path)
    spellings = dict(SPELLINGS)
    spellings["absolute+1.parquet"] = f"file:{tmp_path}/a%2Bb%20c/absolute%2B1.parquet"
    spellings["absolute+2.parquet"] = f"file://{tmp_path}/a+b%20c/absolute+2.parquet"
    schema, lines = StructType.fromDDL(SCHEMA), []
    for number, (name, spelling) in enumerate(spellings.items()):
        written = tmp_path / f"written_{number}"
        rows = [(number, number), (100 + number, 0)]
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(written))
        file = Path(path) / name
        file.parent.mkdir(exist_ok=True)
        (part,) = written.glob("*.parquet")
        part.rename(file)
        low, high = {"id": number, "n": 0}, {"id": 100 + number, "n": number}
        stats = {"numRecords": 2, "minValues": low, "maxValues": high, "nullCount": {"id": 0, "n": 0}}
        add = {
            "path": spelling,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        lines.append(json.dumps({"add": add}, ensure_ascii=False))
    commit = Path(path) / "_delta_log" / f"{version + 1:020}.json"
    commit.write_text("\n".join(lines), encoding="utf-8")
    return path


def active_paths(path: str) -> set[str]:
    """Return the paths of the active files by the log's own words; a path that is removed must be there."""
    active: set[str] = set()
    for version in range(latest_version(path) + 1):
        actions = read_actions(path, version)
        for action in actions:
            if "remove" in action:
                active.remove(action["remove"]["path"])
        active |= {action["add"]["path"] for action in actions if "add" in action}
    return active


@pytest.mark.parametrize("locator", ["scan", "index"])
def test_files_whose_paths_others_have_spelt(create_source, read_rows, table, deletion_vectors, locator):
    number = len(SPELLINGS) + 2
    spelt = active_paths(table)
    expected = {n: n for n in range(number)} | {100 + n: 0 for n in range(number)}

    def check(*changes: tuple[int, int]) -> None:
        # A new sink takes the files from Delta, a used one from the commits.
        sink.merge(create_source(SCHEMA, changes))
        for key, n in changes:
            expected[key] = n
            if n < 0:
                del expected[key]
        assert sorted(map(tuple, read_rows(table))) == sorted(expected.items())

    sink = merge_sink(table, keys="id", delete_when="n < 0", locator=locator)
    check(*[(n, 50 + n) for n in range(number)], (99, 1))
    # The other row of each file stays where it is, where there are deletion vectors.
    assert (spelt <= active_paths(table)) == deletion_vectors
    check((0, -1), (100, 7), (101, 7))
    sink = merge_sink(table, keys="id", delete_when="n < 0", locator=locator)
    check(*[(100 + n, 8) for n in range(2, number)], (0, 9))
    assert not spelt & active_paths(table)
    check(*[(n, -1) for n in list(expected)])
    assert active_paths(table) == set()
