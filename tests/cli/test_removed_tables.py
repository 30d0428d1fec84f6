"""Tables that are not there any more though their checkpoint is: the user is told, for nothing else would tell."""

import json
import logging
import shutil

import pytest

from stream_merge.cli.checks.removed_tables import read_before, removed_tables, warn_of_removed_tables
from stream_merge.cli.errors import ExitCode
from stream_merge.cli.query.topics import ReadTopics
from stream_merge.cli.run.stopping import StopSignals
from tests.cli.sample_parked import write_parked
from tests.cli.test_runner import landing, make_runner, rows_of  # noqa: F401 - fixtures

KAFKA = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topic_pattern": ".*"}


@pytest.fixture
def shop(make_pipeline, tmp_path):
    """Return the pipeline of a database, of which one table is a section of its own."""
    tables = (
        {"source": "shop.fixed", "target": f"{tmp_path}/fixed", "keys": ["id"], "create_if_missing": False},
        {"source": r"re:shop\.(?P<table>\w+)", "target": f"{tmp_path}/{{table}}"},
    )
    return make_pipeline(KAFKA, *tables, decode="debezium", pipeline={"parking": f"{tmp_path}/parked"})


def write_offsets(tmp_path, name, offsets):
    """Write a file of a checkpoint as Spark does; only its last line counts."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}')


def test_what_was_read_before_is_known_of_kafka(spark, shop, make_pipeline, tmp_path):
    write_offsets(tmp_path, "sources/0/0", {"begun": {"0": 5, "1": 5}, "latest": {"0": 9}, "empty": {"0": 0}})
    ends = {"begun": {"0": 5, "1": 6}, "latest": {"0": 9}, "empty": {"0": 0}, "new": {"0": 1}, "new, empty": {"0": 0}}
    write_offsets(tmp_path, "offsets/3", ends)
    topics = ReadTopics(spark, str(tmp_path), lambda _: {})
    assert read_before(shop, 4, topics) == ["begun", "new"]
    assert [read_before(shop, batch_id, topics) for batch_id in (0, 3, 5)] == [[], [], []]
    routed = make_pipeline(KAFKA, {"source": "a", "target": "./t", "keys": ["id"]}, pipeline={"route_by": "x"})
    assert read_before(routed, 4, topics) == []


def test_a_checkpoint_that_does_not_tell_where_it_began(spark, shop, tmp_path):
    write_offsets(tmp_path, "offsets/3", {"a": {"0": 1}})
    assert read_before(shop, 4, ReadTopics(spark, str(tmp_path), lambda _: {})) == []


def test_what_was_read_before_is_known_of_a_single_table(make_pipeline):
    one = make_pipeline({"format": "files", "path": "x", "schema": "id INT"}, {"target": "./t", "keys": ["id"]})
    assert (read_before(one, 7, None), read_before(one, 0, None)) == ([""], [])


def test_tables_that_are_not_there_are_told(spark, shop, create_table, create_source, tmp_path, caplog):
    """Not those that the user makes, those that are at rest, and those of topics that no section takes."""
    create_source("id INT", [(1,)]).write.format("delta").save(f"{tmp_path}/there")
    sources = ["shop.there", "shop.gone", "shop.fixed", "shop.resting", "other"]
    write_parked(spark, f"{tmp_path}/parked", [(1, f"{tmp_path}/resting", "shop.resting", "why")])
    assert list(removed_tables(spark, shop, sources)) == [("shop.gone", f"{tmp_path}/gone")]
    with caplog.at_level(logging.WARNING):
        warn_of_removed_tables(spark, shop, sources)
    (told,) = (record.getMessage() for record in caplog.records if record.name == "stream_merge.cli")
    assert told.startswith(f"{tmp_path}/gone is not there, but this checkpoint has read records of shop.gone before: ")


def test_a_table_that_was_removed_between_two_runs(make_runner, landing, read_rows, tmp_path, caplog):  # noqa: F811
    def run():
        with StopSignals() as signals, caplog.at_level(logging.WARNING):
            runner, *_ = make_runner(signals, once=True)
            assert runner.run() is ExitCode.OK
        told = [record.getMessage() for record in caplog.records if "is not there" in record.getMessage()]
        caplog.clear()
        return told

    landing("1.json", {"id": 1, "name": "a"})
    landing("2.json", {"id": 2, "name": "b"})
    assert run() == []
    shutil.rmtree(tmp_path / "orders")
    landing("3.json", {"id": 3, "name": "c"})
    (told,) = run()
    assert told.startswith(
        f"{tmp_path}/orders is not there, but this checkpoint has read records before: the table was"
    )
    assert rows_of(read_rows, tmp_path) == [(3, "c")]
    landing("4.json", {"id": 4, "name": "d"})
    assert run() == []
