"""The tables that only the rows' sources name, known after a run to whoever asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_merge.cli.compare.pairs import pairs_of
from stream_merge.cli.query.seen_sources import FILE, SeenSources, seen_sources
from stream_merge.cli.query.tables import known_tables
from stream_merge.cli.show.overview import read_overview

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def test_the_tables_of_a_pattern_over_files_are_known_after_a_run(
    spark: SparkSession, tmp_path: Path, make_pipeline: Callable[..., Any], run_pipeline: Callable[..., Any]
):
    landing, checkpoint = tmp_path / "landing", str(tmp_path / "checkpoint")
    landing.mkdir()
    source = {"format": "files", "path": str(landing), "file_format": "json", "schema": "topic STRING, id INT"}
    tables = (
        {"source": "re:shop[.]a[.](?P<name>\\w+)", "target": f"{tmp_path}/lake/{{name}}", "keys": ["id"]},
        {"source": "re:other[.](?P<name>\\w+)", "target": f"{tmp_path}/other/{{name}}", "keys": ["id"]},
    )
    options = {"pipeline": {"checkpoint": checkpoint, "route_by": "topic"}}
    pipeline = make_pipeline(source, *tables, **options)
    assert read_overview(spark, pipeline, 10).unlisted == tuple(table["target"] for table in tables)

    def land(number: int, *topics: str) -> None:
        lines = "".join(json.dumps({"topic": topic, "id": 1}) + "\n" for topic in topics)
        (landing / f"{number}.json").write_text(lines)

    for number, topics in enumerate((["shop.a.orders"], ["shop.a.items", "shop.a.orders"])):
        land(number, *topics)
        run_pipeline(source, *({**table, "create_if_missing": True} for table in tables), **options)
    assert seen_sources(spark, pipeline) == ["shop.a.items", "shop.a.orders"]
    overview = read_overview(spark, pipeline, 10)
    found = {Path(table.target).name: table.status.last.num_inserted for table in overview.tables}
    assert found == {"items": 1, "orders": 0}
    assert overview.unlisted == (tables[1]["target"],)
    of_debezium = make_pipeline(source, *tables, decode="debezium", **options)
    (pair,) = pairs_of(spark, of_debezium, [f"{tmp_path}/lake/items"])
    assert (pair.target, pair.source.schema, pair.source.name) == (f"{tmp_path}/lake/items", "a", "items")


def test_sources_are_added_to_those_of_earlier_runs(spark: SparkSession, tmp_path: Path):
    path = tmp_path / FILE
    for names in (["b", "a"], ["c", "a"], []):
        seen = SeenSources(f"{tmp_path}/")
        for name in names:
            seen.add(name)
        seen.write(spark)
    assert json.loads(path.read_text()) == {"sources": ["a", "b", "c"]}
    # Half of a file, as a process that is killed may leave: what this run has seen is known, and no more.
    path.write_text('{"sour')
    again = SeenSources(str(tmp_path))
    again.add("d")
    again.write(spark)
    assert json.loads(path.read_text()) == {"sources": ["d"]}
    path.unlink()
    again.write(spark)
    assert not path.exists(), "nothing is new"


def test_a_place_that_cannot_be_written_stops_no_batch(spark: SparkSession, tmp_path: Path):
    (tmp_path / "file").write_text("")
    seen = SeenSources(str(tmp_path / "file"))
    seen.add("a")
    seen.write(spark)
    assert (tmp_path / "file").read_text() == ""


def test_the_tables_of_topics_that_are_routed_by_an_expression(make_pipeline: Callable[..., Any]):
    source = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["all"]}
    table = {"source": "re:(?P<name>\\w+)", "target": "./lake/{name}", "keys": ["id"]}
    pipeline = make_pipeline(source, table, pipeline={"route_by": "split(topic, '[.]')[1]"})
    assert [found.target for found in known_tables(pipeline, ["orders"])] == ["./lake/orders"]
